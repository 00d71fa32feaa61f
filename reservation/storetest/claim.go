package storetest

import (
	"github.com/twinhold/twinhold/reservation"
)

func claimCases() []testCase {
	return []testCase{
		{name: "claim_deducts_once", run: claimOnce},
		{name: "claim_50_times_at_once", run: claimAtOnce},
		{name: "claim_of_two_lines_leaves_two_entries", run: claimTwoLines},
		{name: "claims_of_many_holds_of_one_bucket_at_once", run: claimMany},
		{name: "claim_leaves_other_holds_alone", run: claimOthers},
	}
}

func claimOnce(e *env) {
	e.stock(10)
	id := e.granted(line(1, 4))
	version := e.availability(1).Version
	if first := e.claim(id, reservation.Claimed, false); first.Replayed {
		e.Fatalf("the first claim says that it is a replay")
	}
	e.figures(1, 6, 0, 6)
	if v := e.availability(1).Version; v <= version {
		e.Fatalf("a claim left the ledger's version at %d, was %d", v, version)
	}
	version = e.availability(1).Version
	for range 3 {
		if again := e.claim(id, reservation.Claimed, false); !again.Replayed {
			e.Fatalf("a claim again is not told to be a replay")
		}
	}
	e.figures(1, 6, 0, 6)
	if v := e.availability(1).Version; v != version {
		e.Fatalf("replayed claims moved the ledger's version from %d to %d", version, v)
	}
	e.state(id, reservation.Claimed)
	e.wantEntries(id, line(1, 4))
}

// wantEntries wants exactly one claim entry per line, with its quantity.
func (e *env) wantEntries(id reservation.ID, lines ...reservation.Line) {
	e.Helper()
	left := make(map[reservation.Bucket]int64)
	for _, l := range lines {
		left[l.Bucket(e.shop)] = l.Quantity
	}
	for _, en := range e.entriesOf(id) {
		q, ok := left[en.Bucket]
		if !ok || q != -en.Delta {
			e.Fatalf("reservation %s has an entry of %d in bucket %s; want %v, once each", id, en.Delta, en.Bucket, lines)
		}
		delete(left, en.Bucket)
	}
	if len(left) > 0 {
		e.Fatalf("reservation %s has no entry for %v", id, left)
	}
}

func claimAtOnce(e *env) {
	e.stock(1000)
	for range rounds(4, 40) {
		id, before := e.granted(line(1, 3)), e.availability(1)
		const callers = 50
		results := make([]reservation.ClaimResult, callers)
		errs := make([]error, callers)
		together(many(callers, func(i int) { results[i], errs[i] = e.tryClaim(e.shop, id) })...)
		for i, res := range results {
			if errs[i] != nil {
				e.Fatalf("claim: %v", errs[i])
			}
			if res.Record.State != reservation.Claimed || res.Late {
				e.Fatalf("claim ended %s (late: %t)", res.Record.State, res.Late)
			}
		}
		e.figures(1, before.Available, before.Held-3, before.OnHand-3)
		e.wantEntries(id, line(1, 3))
	}
}

func claimTwoLines(e *env) {
	e.stock(10, 10)
	id := e.granted(line(1, 4), line(2, 7))
	e.claim(id, reservation.Claimed, false)
	e.claim(id, reservation.Claimed, false)
	e.figures(1, 6, 0, 6)
	e.figures(2, 3, 0, 3)
	e.wantEntries(id, line(1, 4), line(2, 7))
}

func claimMany(e *env) {
	const n = 40
	e.stock(n, 3*n)
	ids := make([]reservation.ID, n)
	for i := range ids {
		ids[i] = e.granted(line(1, 1), line(2, 2))
	}
	errs := make([]error, n)
	together(many(n, func(i int) { _, errs[i] = e.tryClaim(e.shop, ids[i]) })...)
	for _, err := range errs {
		if err != nil {
			e.Fatalf("claim: %v", err)
		}
	}
	e.figures(1, 0, 0, 0)
	e.figures(2, n, 0, n)
	for _, id := range ids {
		e.state(id, reservation.Claimed)
	}
}

func claimOthers(e *env) {
	e.stock(10)
	a, b := e.granted(line(1, 4)), e.granted(line(1, 6))
	e.claim(a, reservation.Claimed, false)
	e.state(b, reservation.Held)
	e.figures(1, 0, 6, 6)
	e.claim(b, reservation.Claimed, false)
	e.figures(1, 0, 0, 0)
	e.rejected(line(1, 1))
}
