package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// shortTTL is over soon; every store is given time to grant it first.
const shortTTL = 20 * time.Millisecond

// endCases are the ends of a reservation one after the other; raceCases have them meet.
func endCases() []testCase {
	return []testCase{
		{name: "release_twice", run: releaseTwice},
		{name: "release_takes_the_quantity_from_the_record", run: releaseQuantity},
		{name: "release_of_an_expired_hold", run: releaseExpired},
		{name: "release_of_a_due_hold", run: releaseDue},
		{name: "release_of_a_claimed_one_is_a_conflict", run: releaseClaimed},
		{name: "release_of_a_rejected_one_is_a_conflict", run: releaseRejected},
		{name: "expiry_gives_units_back_once", run: expireOnce},
		{name: "expiry_in_batches", run: expireBatches},
		{name: "expiry_leaves_what_is_not_due", run: expireNotDue},
		{name: "record_keeps_its_history", run: history},
		{name: "another_shops_id_is_not_found", run: otherShop},
		{name: "unknown_id_is_not_found", run: unknownID},
	}
}

func releaseTwice(e *env) {
	e.stock(10)
	id := e.granted(line(1, 4))
	if first := e.release(id); first.Replayed || first.WasExpired {
		e.Fatalf("the first release says replayed %t, was expired %t", first.Replayed, first.WasExpired)
	}
	for range 3 {
		if again := e.release(id); !again.Replayed {
			e.Fatalf("a release again is not told to be a replay")
		}
	}
	e.figures(1, 10, 0, 10)
	_, err := e.tryClaim(e.shop, id)
	e.wantConflict(err, reservation.OpClaim, reservation.Released)
	e.state(id, reservation.Released)
	e.figures(1, 10, 0, 10)
}

func releaseQuantity(e *env) {
	e.stock(10, 10)
	keep := e.granted(line(1, 3), line(2, 1))
	id := e.granted(line(1, 2), line(2, 5))
	e.release(id)
	e.figures(1, 7, 3, 10)
	e.figures(2, 9, 1, 10)
	e.state(keep, reservation.Held)
}

func releaseExpired(e *env) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 4))
	e.expire(id)
	res := e.release(id)
	if res.Replayed || !res.WasExpired {
		e.Fatalf("release of an expired hold: replayed %t, was expired %t", res.Replayed, res.WasExpired)
	}
	e.figures(1, 10, 0, 10)
	_, err := e.tryClaim(e.shop, id)
	e.wantConflict(err, reservation.OpClaim, reservation.Released)
	e.figures(1, 10, 0, 10)
}

// releaseDue: past its expiry, but not swept yet. The units come back once, whoever brings them.
func releaseDue(e *env) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 4))
	e.pass(e.get(id).ExpiresAt)
	e.release(id)
	e.figures(1, 10, 0, 10)
	if swept := e.sweep(); len(swept) > 0 {
		e.Fatalf("a released hold was expired too: %v", swept)
	}
	e.state(id, reservation.Released)
	e.figures(1, 10, 0, 10)
}

func releaseClaimed(e *env) {
	e.stock(10)
	id := e.granted(line(1, 4))
	e.claim(id, reservation.Claimed, false)
	e.settle()
	_, err := retried(e, func() (reservation.ReleaseResult, error) { return e.tryRelease(e.shop, id) })
	e.wantConflict(err, reservation.OpRelease, reservation.Claimed)
	e.state(id, reservation.Claimed)
	e.figures(1, 6, 0, 6)
}

func releaseRejected(e *env) {
	e.stock(1)
	id := e.rejected(line(1, 4)).Record.ID
	_, err := e.tryRelease(e.shop, id)
	e.wantConflict(err, reservation.OpRelease, reservation.Rejected)
	_, err = e.tryClaim(e.shop, id)
	e.wantConflict(err, reservation.OpClaim, reservation.Rejected)
	e.state(id, reservation.Rejected)
	e.figures(1, 1, 0, 1)
}

func expireOnce(e *env) {
	e.stock(10, 10)
	id := e.grantedFor(shortTTL, line(1, 4), line(2, 5))
	e.pass(e.get(id).ExpiresAt)
	var told int
	e.until("the hold is expired", func() bool {
		for _, rec := range e.sweep() {
			if rec.ID == id {
				told++
			}
		}
		return e.get(id).State == reservation.Expired
	})
	e.sweep()
	if told != 1 {
		e.Fatalf("the sweeps reported the hold %d times", told)
	}
	e.figures(1, 10, 0, 10)
	e.figures(2, 10, 0, 10)
}

// expireBatches: a sweep ends limit reservations at most, says whether there is more, and the next goes on.
func expireBatches(e *env) {
	e.stock(100)
	const n = 23
	ids := make(map[reservation.ID]bool)
	var last reservation.ID
	for range n {
		last = e.grantedFor(shortTTL, line(1, 2))
		ids[last] = true
	}
	e.pass(e.get(last).ExpiresAt)
	e.until("every hold is expired", func() bool {
		ctx, cancel := e.ctx()
		defer cancel()
		res, err := e.h.Store.Sweep(ctx, e.h.Stamp, 5)
		if err != nil {
			e.Fatalf("sweep: %v", err)
		}
		if len(res.Expired) > 5 {
			e.Fatalf("a sweep of 5 ended %d", len(res.Expired))
		}
		for _, rec := range res.Expired {
			delete(ids, rec.ID)
		}
		if len(ids) > 0 && len(res.Expired) == 5 && !res.More {
			e.Fatalf("a full sweep does not say that there is more; %d are left", len(ids))
		}
		return len(ids) == 0
	})
	e.figures(1, 100, 0, 100)
}

func expireNotDue(e *env) {
	e.stock(10)
	keep := e.granted(line(1, 3))
	id := e.grantedFor(shortTTL, line(1, 4))
	e.expire(id)
	e.state(keep, reservation.Held)
	e.figures(1, 7, 3, 10)
	e.claim(keep, reservation.Claimed, false)
	e.figures(1, 7, 0, 7)
}

// history: a record keeps who decided it, what was asked for, and the time of each step, in UTC with microseconds.
func history(e *env) {
	e.stock(100)
	before := e.now().Add(-time.Second)
	ctx, cancel := e.ctx()
	defer cancel()
	req := e.request(e.shop, e.key(), longTTL, line(1, 3))
	id := e.id()
	res, err := e.h.Store.Reserve(ctx, e.h.Stamp, id, req)
	if err != nil {
		e.Fatalf("reserve: %v", err)
	}
	for _, rec := range []reservation.Record{res.Record, e.get(id)} {
		if rec.ID != id || rec.Shop != req.Shop || rec.Key != req.Key || rec.Hash != req.Hash || !slices.Equal(rec.Lines, req.Lines) {
			e.Fatalf("the record is %+v; want the request %+v with the id %s", rec, req, id)
		}
		if rec.DecidedBy != e.h.Truth || rec.Epoch != e.h.Stamp.Epoch {
			e.Fatalf("decided by %s in epoch %d; want %s in %d", rec.DecidedBy, rec.Epoch, e.h.Truth, e.h.Stamp.Epoch)
		}
		if rec.CreatedAt.Before(before) || rec.CreatedAt.After(e.now().Add(time.Second)) {
			e.Fatalf("created at %s; that is not now", rec.CreatedAt)
		}
		if got := rec.ExpiresAt.Sub(rec.CreatedAt); got != longTTL {
			e.Fatalf("expires %v after its creation; want %v", got, longTTL)
		}
		if got := rec.PurgeAt.Sub(rec.ExpiresAt); got != e.cfg.Retention {
			e.Fatalf("is purged %v after its expiry; want %v", got, e.cfg.Retention)
		}
		if !rec.ReleasedAt.IsZero() || !rec.ExpiredAt.IsZero() || !rec.ClaimedAt.IsZero() || rec.Late {
			e.Fatalf("a fresh hold has taken a later step: %+v", rec)
		}
		if _, offset := rec.ExpiresAt.Zone(); offset != 0 || rec.ExpiresAt.Nanosecond()%1000 != 0 {
			e.Fatalf("expires at %s: want UTC with microseconds", rec.ExpiresAt)
		}
	}
	e.release(id)
	if rec := e.get(id); rec.ReleasedAt.Before(rec.CreatedAt) {
		e.Fatalf("released at %s, created at %s", rec.ReleasedAt, rec.CreatedAt)
	}
	id = e.grantedFor(shortTTL, line(1, 1))
	e.expire(id)
	if rec := e.get(id); rec.ExpiredAt.Before(rec.ExpiresAt) {
		e.Fatalf("expired at %s, before its expiry at %s", rec.ExpiredAt, rec.ExpiresAt)
	}
	id = e.granted(line(1, 1))
	e.claim(id, reservation.Claimed, false)
	e.settle()
	if rec := e.get(id); rec.ClaimedAt.Before(before) || rec.ClaimedAt.After(e.now().Add(time.Second)) {
		e.Fatalf("claimed at %s; that is not now", rec.ClaimedAt)
	}
}

func otherShop(e *env) {
	other := *e
	other.shop++
	e.stock(10)
	other.stock(10)
	held := e.granted(line(1, 4))
	claimed := e.granted(line(1, 1))
	e.claim(claimed, reservation.Claimed, false)
	for _, id := range []reservation.ID{held, claimed} {
		other.wantNotFound(id)
	}
	e.state(held, reservation.Held)
	e.figures(1, 5, 4, 9)
	other.figures(1, 10, 0, 10)
}

func unknownID(e *env) {
	e.stock(10)
	e.wantNotFound(e.id())
	e.wantNotFound(reservation.ID{})
	e.figures(1, 10, 0, 10)
}

// wantNotFound: claim, release and get of the id are all answered not found.
func (e *env) wantNotFound(id reservation.ID) {
	e.Helper()
	_, err := e.tryClaim(e.shop, id)
	if !errors.Is(err, reservation.ErrNotFound) {
		e.Fatalf("claim: got %v; want not found", err)
	}
	_, err = e.tryRelease(e.shop, id)
	if !errors.Is(err, reservation.ErrNotFound) {
		e.Fatalf("release: got %v; want not found", err)
	}
	ctx, cancel := e.ctx()
	defer cancel()
	if _, err := e.h.Store.Get(ctx, e.shop, id); !errors.Is(err, reservation.ErrNotFound) {
		e.Fatalf("get: got %v; want not found", err)
	}
}
