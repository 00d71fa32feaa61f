package storetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// Crash says at which steps a store can be killed, and how a child process finds its data.
type Crash struct {
	// Points are the store's own names of its steps, by operation, in order: its Options.Failpoint is called with
	// each as the step is reached. OpReserve's must lie between the lines too, where the store takes them one by one.
	Points map[reservation.Op][]string
	// Atomic gives the reason for each operation that has no steps: one script, one message. Its cases are skipped.
	Atomic map[reservation.Op]string
	// Attach is handed to the function given to Child: addresses, the schema, the pod, the options.
	Attach map[string]string
}

func crashCases() []testCase {
	return []testCase{
		{name: "claim_killed_at_each_step_and_tried_again", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpClaim, claimKilledThenRetried)
		}},
		{name: "claim_killed_at_each_step_is_rolled_forward", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpClaim, claimKilledThenSwept)
		}},
		{name: "late_claim_killed_at_each_step", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpClaim, lateClaimKilled)
		}},
		{name: "reserve_killed_at_each_step_takes_all_or_nothing", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpReserve, reserveKilled)
		}},
		{name: "rejection_killed_at_each_step_takes_nothing", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpReserve, rejectionKilled)
		}},
		{name: "release_killed_at_each_step", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpRelease, releaseKilled)
		}},
		{name: "adjustment_killed_at_each_step", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpAdjust, adjustKilled)
		}},
		{name: "sweep_killed_at_each_step", needs: Crashes, run: func(e *env) {
			e.eachPoint(reservation.OpExpire, sweepKilled)
		}},
	}
}

// eachPoint runs a case for each step of an operation, each in a shop of its own.
func (e *env) eachPoint(op reservation.Op, run func(e *env, point string)) {
	points := e.h.Crash.Points[op]
	if reason, atomic := e.h.Crash.Atomic[op]; atomic && len(points) == 0 {
		e.t.Skipf("%s has no steps in this store: %s", op, reason)
	}
	if len(points) == 0 {
		e.Fatalf("the harness names no step of %s to be killed at", op)
	}
	for i, point := range points {
		at := *e
		at.shop += int64(i + 1)
		e.Logf("%s killed at %q", op, point)
		run(&at, point)
		if e.t.Failed() {
			e.Fatalf("%s killed at %q: see above", op, point)
		}
		at.invariants()
	}
}

// killed runs the job in a child process that dies at the point. A step that this job never comes to (a rejection
// takes nothing) is told by false.
func (e *env) killed(point string, job Job) bool {
	e.Helper()
	job.Point, job.Stamp, job.Shop, job.Attach = point, e.h.Stamp, e.shop, e.h.Crash.Attach
	err := runChild(e.t.Context(), job)
	if errors.Is(err, errNotReached) {
		return false
	}
	if err != nil {
		e.Fatalf("child killed at %q: %v", point, err)
	}
	return true
}

func (e *env) mustBeKilled(point string, job Job) {
	e.Helper()
	if !e.killed(point, job) {
		e.Fatalf("the child ended without coming to %q: no such step in %s", point, job.Op)
	}
}

func claimKilledThenRetried(e *env, point string) {
	e.stock(10)
	id := e.granted(line(1, 4))
	e.mustBeKilled(point, Job{Op: reservation.OpClaim, ID: id})
	res, err := retried(e, func() (reservation.ClaimResult, error) { return e.tryClaim(e.shop, id) })
	if err != nil || res.Record.State != reservation.Claimed {
		e.Fatalf("the claim again: %s, %v", res.Record.State, err)
	}
	e.figures(1, 6, 0, 6)
	e.state(id, reservation.Claimed)
	e.wantEntries(id, line(1, 4))
}

// claimKilledThenSwept: a claim that got anywhere is finished by the sweeper alone, and one that got nowhere has
// changed nothing.
func claimKilledThenSwept(e *env, point string) {
	e.stock(10)
	id := e.granted(line(1, 4))
	e.mustBeKilled(point, Job{Op: reservation.OpClaim, ID: id})
	var states []reservation.State
	e.until("the pin is rolled forward", func() bool {
		e.sweep()
		e.settle()
		states = e.rawStates(id)
		return !slices.Contains(states, reservation.Claiming)
	})
	e.Logf("after the crash at %q and the sweep: %v", point, states)
	if e.get(id).State == reservation.Held {
		e.figures(1, 6, 4, 10)
		e.wantEntries(id)
		e.claim(id, reservation.Claimed, false)
	}
	e.figures(1, 6, 0, 6)
	e.state(id, reservation.Claimed)
	e.wantEntries(id, line(1, 4))
}

// rawStates reads a reservation's state as each store has it.
func (e *env) rawStates(id reservation.ID) []reservation.State {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	red, sql, err := e.h.Inspect(ctx)
	if err != nil {
		e.Fatalf("inspect: %v", err)
	}
	var states []reservation.State
	for _, snap := range []*reservation.Snapshot{red, sql} {
		if snap == nil {
			continue
		}
		for _, rec := range snap.Records {
			if rec.ID == id {
				states = append(states, rec.State)
			}
		}
	}
	return states
}

func lateClaimKilled(e *env, point string) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 4))
	e.expire(id)
	e.mustBeKilled(point, Job{Op: reservation.OpClaim, ID: id})
	res, err := retried(e, func() (reservation.ClaimResult, error) { return e.tryClaim(e.shop, id) })
	if err != nil || res.Record.State != reservation.Claimed || !res.Late {
		e.Fatalf("the late claim again: %s (late: %t), %v", res.Record.State, res.Late, err)
	}
	e.figures(1, 6, 0, 6)
	e.wantEntries(id, line(1, 4))
}

func reserveKilled(e *env, point string) {
	e.stock(5, 5)
	key := e.key()
	lines := []reservation.Line{line(1, 2), line(2, 4)}
	e.mustBeKilled(point, Job{Op: reservation.OpReserve, Request: e.request(e.shop, key, longTTL, lines...)})
	one, two := e.availability(1), e.availability(2)
	none := one.Held == 0 && two.Held == 0 && one.Available == 5 && two.Available == 5
	all := one.Held == 2 && two.Held == 4 && one.Available == 3 && two.Available == 1
	if !none && !all {
		e.Fatalf("a crash at %q left half a cart: %+v, %+v", point, one, two)
	}
	res, err := retried(e, func() (reservation.Result, error) { return e.try(key, lines...) })
	if err != nil {
		e.Fatalf("the reserve again: %v", err)
	}
	e.wantOutcome(res, reservation.Granted, reservation.Held)
	if res.Replayed != all {
		e.Fatalf("the reserve again says replayed %t, but the crash left all of the cart: %t", res.Replayed, all)
	}
	e.figures(1, 3, 2, 5)
	e.figures(2, 1, 4, 5)
}

// rejectionKilled is 2 and 4 against 5 and 3 with a crash between the lines.
func rejectionKilled(e *env, point string) {
	e.stock(5, 3)
	key := e.key()
	lines := []reservation.Line{line(1, 2), line(2, 4)}
	if !e.killed(point, Job{Op: reservation.OpReserve, Request: e.request(e.shop, key, longTTL, lines...)}) {
		e.Logf("a rejection does not come to %q", point)
	}
	e.figures(1, 5, 0, 5)
	e.figures(2, 3, 0, 3)
	res, err := retried(e, func() (reservation.Result, error) { return e.try(key, lines...) })
	if err != nil {
		e.Fatalf("the reserve again: %v", err)
	}
	e.wantOutcome(res, reservation.RejectedShort, reservation.Rejected)
	e.figures(1, 5, 0, 5)
	e.figures(2, 3, 0, 3)
}

func releaseKilled(e *env, point string) {
	e.stock(10)
	id := e.granted(line(1, 4))
	e.mustBeKilled(point, Job{Op: reservation.OpRelease, ID: id})
	if _, err := retried(e, func() (reservation.ReleaseResult, error) { return e.tryRelease(e.shop, id) }); err != nil {
		e.Fatalf("the release again: %v", err)
	}
	e.state(id, reservation.Released)
	e.figures(1, 10, 0, 10)
}

func adjustKilled(e *env, point string) {
	e.stock(10)
	for i, delta := range []int64{-3, 5} {
		adj := reservation.Adjustment{ID: fmt.Sprintf("adj-%d", i), Bucket: e.bucket(1), Delta: delta}
		if !e.killed(point, Job{Op: reservation.OpAdjust, Adjustment: adj}) && delta < 0 {
			e.Fatalf("the child ended without coming to %q: no such step in a negative adjustment", point)
		}
		_, err := retried(e, func() (reservation.AdjustResult, error) { return e.tryAdjust(adj) })
		if err != nil {
			e.Fatalf("the adjustment again: %v", err)
		}
	}
	e.figures(1, 12, 0, 12)
}

func sweepKilled(e *env, point string) {
	e.stock(10, 10)
	a, b := e.grantedFor(shortTTL, line(1, 4), line(2, 1)), e.grantedFor(shortTTL, line(1, 1))
	e.pass(e.get(b).ExpiresAt)
	e.mustBeKilled(point, Job{Op: reservation.OpExpire})
	e.until("both holds are expired", func() bool {
		e.sweep()
		return e.get(a).State == reservation.Expired && e.get(b).State == reservation.Expired
	})
	e.figures(1, 10, 0, 10)
	e.figures(2, 10, 0, 10)
}
