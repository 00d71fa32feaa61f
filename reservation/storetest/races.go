package storetest

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

func raceCases() []testCase {
	return []testCase{
		{name: "release_twice_at_once", run: releaseAtOnce},
		{name: "release_against_claim", run: releaseAgainstClaim},
		{name: "release_against_expiry", run: releaseAgainstExpiry},
		{name: "claim_against_expiry", run: func(e *env) { claimAgainstExpiry(e, false) }},
		{name: "claim_against_expiry_refuse", late: reservation.RefuseLate, run: func(e *env) { claimAgainstExpiry(e, false) }},
		{name: "claim_against_expiry_with_a_rival_refuse", late: reservation.RefuseLate, run: func(e *env) { claimAgainstExpiry(e, true) }},
		{name: "two_sweepers", run: twoSweepers},
	}
}

// raceRounds is how often two ends of a reservation meet.
func raceRounds() int { return rounds(100, 1000) }

// fresh stocks a bucket of its own for one round.
func (e *env) fresh(quantity int64) int64 {
	e.Helper()
	item := e.keys.Add(1)
	e.stockAll([]reservation.Stocking{{Bucket: e.bucket(item), Quantity: quantity}})
	return item
}

func releaseAtOnce(e *env) {
	item := e.fresh(10)
	for range raceRounds() {
		id := e.granted(line(item, 4))
		results := make([]reservation.ReleaseResult, 2)
		errs := make([]error, 2)
		together(many(2, func(i int) { results[i], errs[i] = e.tryRelease(e.shop, id) })...)
		if err := errors.Join(errs...); err != nil {
			e.Fatalf("release: %v", err)
		}
		if results[0].Replayed == results[1].Replayed {
			e.Fatalf("two releases at once say replayed %t and %t; want one of each", results[0].Replayed, results[1].Replayed)
		}
		e.figures(item, 10, 0, 10)
	}
}

// releaseAgainstClaim: one of the two is told that it happened, the other that it cannot.
// What the ledger was deducted is I6, computed from its journal once the rounds are over.
func releaseAgainstClaim(e *env) {
	var released, claimed int
	for range raceRounds() {
		item := e.fresh(10)
		id := e.granted(line(item, 4))
		var (
			claim                reservation.ClaimResult
			claimErr, releaseErr error
		)
		together(
			func() { claim, claimErr = e.tryClaim(e.shop, id) },
			func() {
				_, releaseErr = retriedQuietly(func() (reservation.ReleaseResult, error) { return e.tryRelease(e.shop, id) })
			},
		)
		switch {
		case claimErr == nil && claim.Record.State == reservation.Claimed:
			e.wantConflict(releaseErr, reservation.OpRelease, reservation.Claimed)
			claimed++
			e.figures(item, 6, 0, 6)
			e.state(id, reservation.Claimed)
		case claimErr == nil:
			e.Fatalf("the claim ended %s", claim.Record.State)
		default:
			e.wantConflict(claimErr, reservation.OpClaim, reservation.Released)
			if releaseErr != nil {
				e.Fatalf("the claim was told %v, the release %v", claimErr, releaseErr)
			}
			released++
			e.figures(item, 10, 0, 10)
			e.state(id, reservation.Released)
		}
	}
	e.Logf("%d claimed, %d released", claimed, released)
}

// retriedQuietly repeats what only says busy; it is for goroutines, which cannot fail a test.
func retriedQuietly[R any](op func() (R, error)) (R, error) {
	deadline := time.Now().Add(opTimeout)
	for {
		res, err := op()
		if !busy(err) || time.Now().After(deadline) {
			return res, err
		}
	}
}

// atExpiry has a sweeper wait for the very instant of a hold's expiry, and the racers come just before, at, or just
// after it.
func (e *env) atExpiry(id reservation.ID, sweeper func(), racers ...func()) {
	e.Helper()
	left := e.get(id).ExpiresAt.Sub(e.now())
	offset := time.Duration(rand.Int64N(int64(8*time.Millisecond))) - 3*time.Millisecond
	together(
		func() { <-time.After(left - time.Millisecond); sweeper() },
		func() { <-time.After(left + offset); together(racers...) },
	)
}

// sweepUntilEnded sweeps until the reservation is no longer held, and tells whether a sweep expired it.
func (e *env) sweepUntilEnded(id reservation.ID, told *atomic.Bool) error {
	deadline := time.Now().Add(opTimeout)
	for time.Now().Before(deadline) {
		ctx, cancel := e.ctx()
		res, err := e.h.Store.Sweep(ctx, e.h.Stamp, 100)
		if err != nil {
			cancel()
			return err
		}
		for _, rec := range res.Expired {
			if rec.ID == id {
				if told.Swap(true) {
					cancel()
					return errors.New("a hold was expired twice")
				}
			}
		}
		rec, err := e.h.Store.Get(ctx, e.shop, id)
		cancel()
		if err != nil {
			return err
		}
		if !rec.State.Live() {
			return nil
		}
	}
	return errors.New("the hold never ended")
}

// releaseAgainstExpiry: the units come back once, whoever brings them, and the release is told that it happened.
func releaseAgainstExpiry(e *env) {
	item := e.fresh(10)
	var expiredFirst int
	for range raceRounds() {
		id := e.grantedFor(shortTTL, line(item, 4))
		var (
			told                 atomic.Bool
			release              reservation.ReleaseResult
			releaseErr, sweepErr error
		)
		e.atExpiry(id,
			func() { sweepErr = e.sweepUntilEnded(id, &told) },
			func() { release, releaseErr = e.tryRelease(e.shop, id) },
		)
		if err := errors.Join(releaseErr, sweepErr); err != nil {
			e.Fatalf("%v", err)
		}
		if release.WasExpired != told.Load() {
			e.Fatalf("the release says was expired %t; a sweep says expired %t", release.WasExpired, told.Load())
		}
		if told.Load() {
			expiredFirst++
		}
		e.state(id, reservation.Released)
		e.figures(item, 10, 0, 10)
	}
	e.Logf("%d of %d were expired first", expiredFirst, raceRounds())
}

// claimAgainstExpiry: a claim in time stands and nobody expires it; past its time it is late, and takes the units
// again only if the rival has not got them.
func claimAgainstExpiry(e *env, rival bool) {
	tally := make(map[string]int)
	for range raceRounds() {
		item := e.fresh(4)
		id := e.grantedFor(shortTTL, line(item, 4))
		var (
			told                         atomic.Bool
			claim                        reservation.ClaimResult
			won                          reservation.Result
			claimErr, sweepErr, rivalErr error
		)
		racers := []func(){func() { claim, claimErr = e.tryClaim(e.shop, id) }}
		rivalKey := e.key()
		if rival {
			racers = append(racers, func() { won, rivalErr = e.try(rivalKey, line(item, 4)) })
		}
		e.atExpiry(id, func() { sweepErr = e.sweepUntilEnded(id, &told) }, racers...)
		if err := errors.Join(claimErr, sweepErr, rivalErr); err != nil {
			e.Fatalf("%v", err)
		}
		rivalWon := won.Record.Outcome == reservation.Granted
		how := e.judgeClaimAtExpiry(id, item, claim, told.Load(), rivalWon)
		if told.Load() {
			how += ", expired before"
		}
		tally[how]++
	}
	e.Logf("%v", tally)
}

func (e *env) judgeClaimAtExpiry(id reservation.ID, item int64, claim reservation.ClaimResult, expired, rivalWon bool) string {
	e.Helper()
	switch {
	case claim.Record.State == reservation.Claimed && rivalWon:
		e.Fatalf("4 units were claimed (late: %t) and granted to a rival", claim.Late)
	case claim.Record.State == reservation.Claimed && !claim.Late && expired:
		e.Fatalf("a claim in time was answered claimed, and a sweep was told that it expired the hold")
	case claim.Record.State == reservation.Claimed:
		e.state(id, reservation.Claimed)
		e.figures(item, 0, 0, 0)
		if claim.Late {
			return "claimed late"
		}
		return "claimed in time"
	case claim.Record.State != reservation.Refused || !rivalWon || !claim.Late:
		e.Fatalf("the claim ended %s (late: %t), the rival won: %t", claim.Record.State, claim.Late, rivalWon)
	}
	e.state(id, reservation.Refused)
	e.figures(item, 0, 4, 4)
	return "refused, the rival has them"
}

// twoSweepers share the due holds: each is expired by exactly one.
func twoSweepers(e *env) {
	const n = 60
	item := e.fresh(n)
	ids := make([]reservation.ID, n)
	for i := range ids {
		ids[i] = e.grantedFor(shortTTL, line(item, 1))
	}
	e.pass(e.get(ids[n-1]).ExpiresAt)
	told := make([]map[reservation.ID]int, 4)
	errs := make([]error, 4)
	together(many(len(told), func(i int) {
		told[i] = make(map[reservation.ID]int)
		for range 10 {
			ctx, cancel := e.ctx()
			res, err := e.h.Store.Sweep(ctx, e.h.Stamp, 10)
			cancel()
			if err != nil {
				errs[i] = err
				return
			}
			for _, rec := range res.Expired {
				told[i][rec.ID]++
			}
		}
	})...)
	if err := errors.Join(errs...); err != nil {
		e.Fatalf("sweep: %v", err)
	}
	left := e.sweep()
	sum := make(map[reservation.ID]int)
	for _, rec := range left {
		sum[rec.ID]++
	}
	for _, m := range told {
		for id, n := range m {
			sum[id] += n
		}
	}
	for _, id := range ids {
		e.state(id, reservation.Expired)
		if sum[id] != 1 {
			e.Fatalf("hold %s was reported expired %d times", id, sum[id])
		}
	}
	e.figures(item, n, 0, n)
}
