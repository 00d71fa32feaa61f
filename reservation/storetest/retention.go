package storetest

import (
	"errors"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// shortRetention lets a case see records end; on a slow machine too a case does its part before that.
const shortRetention = 600 * time.Millisecond

func retentionCases() []testCase {
	cases := []testCase{
		{name: "past_retention_the_key_is_taken_over", run: func(e *env) { takeOver(e, true) }},
		{name: "past_retention_the_key_is_taken_over_before_the_purge", run: func(e *env) { takeOver(e, false) }},
		{name: "past_retention_a_rejections_key_is_taken_over", run: takeOverRejection},
		{name: "past_retention_a_claims_entry_is_found", run: claimOfPurged},
		{name: "past_retention_the_key_takes_another_request", run: takeOverOther},
		{name: "purge_forgets_what_has_ended", run: purge},
	}
	for i := range cases {
		cases[i].retention = shortRetention
	}
	return append(cases, testCase{name: "within_retention_nothing_is_forgotten", run: keepWithin})
}

// takeOver: past purge_at the key and the id are unknown, whether or not the purge has run, and a new record takes
// the key; the old one's units come back all the same.
func takeOver(e *env, swept bool) {
	e.stock(10)
	first := e.reserveFor(shortTTL, "k", line(1, 4))
	e.wantOutcome(first, reservation.Granted, reservation.Held)
	if swept {
		e.pass(first.Record.ExpiresAt)
		e.sweep()
	}
	e.pass(first.Record.PurgeAt)
	e.wantNotFound(first.Record.ID)
	second := e.reserve("k", line(1, 4))
	e.wantOutcome(second, reservation.Granted, reservation.Held)
	if second.Replayed || second.Record.ID == first.Record.ID {
		e.Fatalf("past its retention a key was replayed")
	}
	e.until("the old hold's units are back", func() bool {
		e.sweep()
		return e.availability(1).Held == 4
	})
	e.figures(1, 6, 4, 10)
	e.wantReplay(e.reserve("k", line(1, 4)), second.Record, reservation.Held)
	e.claim(second.Record.ID, reservation.Claimed, false)
	e.wantNotFound(first.Record.ID)
	e.figures(1, 6, 0, 6)
}

// takeOverRejection: a rejection lives until created + ttl + retention.
func takeOverRejection(e *env) {
	e.stock(2)
	first := e.reserveFor(shortTTL, "k", line(1, 3))
	e.wantOutcome(first, reservation.RejectedShort, reservation.Rejected)
	if want := first.Record.CreatedAt.Add(shortTTL + shortRetention); !first.Record.PurgeAt.Equal(want) {
		e.Fatalf("a rejection is purged at %s; want created + ttl + retention = %s", first.Record.PurgeAt, want)
	}
	e.adjust("delivery", 1, 10, false)
	e.pass(first.Record.PurgeAt)
	second := e.reserve("k", line(1, 3))
	e.wantOutcome(second, reservation.Granted, reservation.Held)
	e.figures(1, 9, 3, 12)
}

func takeOverOther(e *env) {
	e.stock(10)
	first := e.reserveFor(shortTTL, "k", line(1, 4))
	e.release(first.Record.ID)
	e.pass(first.Record.PurgeAt)
	second := e.reserve("k", line(1, 7))
	e.wantOutcome(second, reservation.Granted, reservation.Held)
	e.figures(1, 3, 7, 10)
}

// claimOfPurged: entries stay for good, so a paid reservation is never deducted again.
func claimOfPurged(e *env) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 4))
	res, err := e.tryClaim(e.shop, id) // late or not: a slow machine may have let it expire
	if err != nil || res.Record.State != reservation.Claimed {
		e.Fatalf("claim: %s, %v", res.Record.State, err)
	}
	e.figures(1, 6, 0, 6)
	e.pass(res.Record.PurgeAt)
	for range 2 {
		again, err := e.tryClaim(e.shop, id)
		if err != nil {
			e.Fatalf("the claim of a purged id: %v", err)
		}
		if again.Record.State != reservation.Claimed || !again.Replayed {
			e.Fatalf("the claim of a purged id: %s, replayed %t", again.Record.State, again.Replayed)
		}
		e.figures(1, 6, 0, 6)
		e.sweep()
	}
	e.wantEntries(id, line(1, 4))
	if _, err := e.tryRelease(e.shop, id); err == nil {
		e.Fatalf("a claimed reservation was released once its record was purged")
	}
	e.figures(1, 6, 0, 6)
}

func purge(e *env) {
	e.stock(10)
	released := e.grantedFor(shortTTL, line(1, 1))
	e.release(released)
	expired := e.grantedFor(shortTTL, line(1, 2))
	e.expire(expired)
	kept := e.granted(line(1, 3))
	e.pass(e.now().Add(shortTTL + shortRetention))
	e.until("the ended records are purged", func() bool {
		e.sweep()
		return !e.stored(released) && !e.stored(expired)
	})
	e.state(kept, reservation.Held)
	e.figures(1, 7, 3, 10)
}

// stored tells whether a record is there, raw.
func (e *env) stored(id reservation.ID) bool {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	red, sql, err := e.h.Inspect(ctx)
	if err != nil {
		e.Fatalf("inspect: %v", err)
	}
	for _, snap := range []*reservation.Snapshot{red, sql} {
		if snap == nil {
			continue
		}
		for _, rec := range snap.Records {
			if rec.ID == id {
				return true
			}
		}
	}
	return false
}

func keepWithin(e *env) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 1))
	e.expire(id)
	e.sweep()
	e.state(id, reservation.Expired)
	ctx, cancel := e.ctx()
	defer cancel()
	if _, err := e.h.Store.Get(ctx, e.shop, e.id()); !errors.Is(err, reservation.ErrNotFound) {
		e.Fatalf("get of an unknown id: %v", err)
	}
	e.claim(id, reservation.Claimed, true)
	e.figures(1, 9, 0, 9)
}
