package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

func keyCases() []testCase {
	return []testCase{
		{name: "one_key_twice", run: keyTwice},
		{name: "one_key_50_times_at_once", run: keyAtOnce},
		{name: "one_key_50_times_at_once_rejected", run: keyAtOnceRejected},
		{name: "one_key_again_and_again_during_the_first", run: keyDuring},
		{name: "same_lines_in_another_order_are_the_same_request", run: keySameRequest},
		{name: "another_quantity_is_a_conflict", run: keyConflict},
		{name: "another_quantity_at_once_is_a_conflict", run: keyConflictAtOnce},
		{name: "one_key_in_two_shops", run: keyInTwoShops},
		{name: "rejection_replays_after_stock_arrived", run: rejectionReplays},
		{name: "replay_after_release", run: replayAfterRelease},
		{name: "replay_after_claim_and_after_expiry", run: replayAfterEnd},
		{name: "replay_of_a_sold_out_bucket", run: replaySoldOut},
		{name: "keys_differ_byte_for_byte", run: keysByteForByte},
		{name: "key_of_255_bytes", run: longestKey},
	}
}

// wantReplay wants the first answer again: its id, outcome, key, lines, and the state of now.
func (e *env) wantReplay(res reservation.Result, first reservation.Record, now reservation.State) {
	e.Helper()
	if !res.Replayed {
		e.Fatalf("a retry with the key %q was not told to be a replay", first.Key)
	}
	if res.Record.ID != first.ID || res.Record.Outcome != first.Outcome || res.Record.State != now {
		e.Fatalf("replay: id %s, %s, %s now; want id %s, %s, %s now",
			res.Record.ID, res.Record.Outcome, res.Record.State, first.ID, first.Outcome, now)
	}
	if !res.Record.ExpiresAt.Equal(first.ExpiresAt) {
		e.Fatalf("replay: expires at %s; want %s", res.Record.ExpiresAt, first.ExpiresAt)
	}
}

func keyTwice(e *env) {
	e.stock(10)
	first := e.reserve("k", line(1, 3))
	e.wantOutcome(first, reservation.Granted, reservation.Held)
	if first.Replayed {
		e.Fatalf("the first reserve says that it is a replay")
	}
	for range 3 {
		e.wantReplay(e.reserve("k", line(1, 3)), first.Record, reservation.Held)
	}
	e.figures(1, 7, 3, 10)
}

func keyAtOnce(e *env) {
	e.stock(1000)
	for range rounds(4, 40) {
		key, before := e.key(), e.availability(1)
		oneAnswer(e, key, 50, line(1, 3))
		e.figures(1, before.Available-3, before.Held+3, 1000)
	}
}

func keyAtOnceRejected(e *env) {
	e.stock(2)
	res := oneAnswer(e, e.key(), 50, line(1, 3))
	if res.Record.Outcome != reservation.RejectedShort {
		e.Fatalf("3 of 2 were %s", res.Record.Outcome)
	}
	e.figures(1, 2, 0, 2)
}

// oneAnswer sends one request n times at once: one id, one outcome, and one of them is no replay.
func oneAnswer(e *env, key string, n int, lines ...reservation.Line) reservation.Result {
	e.Helper()
	results := make([]reservation.Result, n)
	errs := make([]error, n)
	together(many(n, func(i int) { results[i], errs[i] = e.try(key, lines...) })...)
	firsts := 0
	for i, res := range results {
		if errs[i] != nil {
			e.Fatalf("reserve %d of %d with one key: %v", i+1, n, errs[i])
		}
		if res.Record.ID != results[0].Record.ID || res.Record.Outcome != results[0].Record.Outcome {
			e.Fatalf("one key was answered %s %s and %s %s", results[0].Record.ID, results[0].Record.Outcome, res.Record.ID, res.Record.Outcome)
		}
		if !res.Replayed {
			firsts++
		}
	}
	if firsts != 1 {
		e.Fatalf("%d of %d answers to one key say that they are no replay; want 1", firsts, n)
	}
	return results[0]
}

// keyDuring meets the first one's commit at every moment: retries keep coming before, during and after it.
func keyDuring(e *env) {
	e.stock(1000)
	for range rounds(10, 100) {
		key, before := e.key(), e.availability(1)
		firstDone := make(chan struct{})
		ids := make([]reservation.ID, 8)
		errs := make([]error, 8)
		together(append(many(7, func(i int) {
			for more := true; more && errs[i+1] == nil; {
				select {
				case <-firstDone:
					more = false // once more, after the commit
				default:
				}
				var res reservation.Result
				res, errs[i+1] = e.try(key, line(1, 2))
				if prev := ids[i+1]; prev != (reservation.ID{}) && prev != res.Record.ID && errs[i+1] == nil {
					errs[i+1] = errors.New("the id changed from one replay to the next")
				}
				ids[i+1] = res.Record.ID
			}
		}), func() {
			defer close(firstDone)
			var res reservation.Result
			res, errs[0] = e.try(key, line(1, 2))
			ids[0] = res.Record.ID
		})...)
		for i := range ids {
			if errs[i] != nil {
				e.Fatalf("reserve: %v", errs[i])
			}
			if ids[i] != ids[0] {
				e.Fatalf("one key gave the ids %s and %s", ids[0], ids[i])
			}
		}
		e.figures(1, before.Available-2, before.Held+2, 1000)
	}
}

func keySameRequest(e *env) {
	e.stock(10, 10)
	first := e.reserve("k", line(1, 3), line(2, 2))
	e.wantReplay(e.reserve("k", line(2, 1), line(1, 3), line(2, 1)), first.Record, reservation.Held)
	e.figures(1, 7, 3, 10)
	e.figures(2, 8, 2, 10)
}

func keyConflict(e *env) {
	e.stock(10, 10)
	first := e.reserve("k", line(1, 3))
	for _, other := range [][]reservation.Line{{line(1, 4)}, {line(2, 3)}, {line(1, 3), line(2, 1)}, {line(9, 3)}} {
		if _, err := e.try("k", other...); !errors.Is(err, reservation.ErrKeyConflict) {
			e.Fatalf("the key with %v: got %v; want a key conflict", other, err)
		}
	}
	ctx, cancel := e.ctx()
	defer cancel()
	_, err := e.h.Store.Reserve(ctx, e.h.Stamp, e.id(), e.request(e.shop, "k", 30*time.Minute, line(1, 3)))
	if !errors.Is(err, reservation.ErrKeyConflict) {
		e.Fatalf("the key with another ttl: got %v; want a key conflict", err)
	}
	e.wantReplay(e.reserve("k", line(1, 3)), first.Record, reservation.Held)
	e.figures(1, 7, 3, 10)
	e.figures(2, 10, 0, 10)
}

func keyConflictAtOnce(e *env) {
	e.stock(1000)
	for range rounds(10, 100) {
		key, before := e.key(), e.availability(1)
		results := make([]reservation.Result, 2)
		errs := make([]error, 2)
		together(many(2, func(i int) { results[i], errs[i] = e.try(key, line(1, int64(i+1))) })...)
		won := 0
		if errs[0] != nil {
			won = 1
		}
		if errs[won] != nil || !errors.Is(errs[1-won], reservation.ErrKeyConflict) {
			e.Fatalf("two requests with one key were answered %v and %v; want one grant and one conflict", errs[0], errs[1])
		}
		q := int64(won + 1)
		e.figures(1, before.Available-q, before.Held+q, 1000)
	}
}

func keyInTwoShops(e *env) {
	other := *e
	other.shop++
	e.stock(10)
	other.stock(10)
	a, b := e.reserve("k", line(1, 3)), other.reserve("k", line(1, 3))
	if a.Record.ID == b.Record.ID || b.Replayed {
		e.Fatalf("one key in two shops is one hold")
	}
	e.figures(1, 7, 3, 10)
	other.figures(1, 7, 3, 10)
	e.release(a.Record.ID)
	other.state(b.Record.ID, reservation.Held)
}

func rejectionReplays(e *env) {
	e.stock(2)
	first := e.reserve("k", line(1, 3))
	e.wantOutcome(first, reservation.RejectedShort, reservation.Rejected)
	e.adjust("delivery", 1, 10, false)
	again := e.reserve("k", line(1, 3))
	e.wantReplay(again, first.Record, reservation.Rejected)
	if len(again.Record.Shortages) != 1 || again.Record.Shortages[0] != first.Record.Shortages[0] {
		e.Fatalf("the replayed rejection has the short lines %v; want %v", again.Record.Shortages, first.Record.Shortages)
	}
	e.figures(1, 12, 0, 12)
	e.granted(line(1, 3))
}

func replayAfterRelease(e *env) {
	e.stock(10)
	first := e.reserve("k", line(1, 3))
	e.release(first.Record.ID)
	e.wantReplay(e.reserve("k", line(1, 3)), first.Record, reservation.Released)
	e.figures(1, 10, 0, 10)
}

func replayAfterEnd(e *env) {
	e.stock(10)
	claimed := e.reserve("claimed", line(1, 3))
	e.claim(claimed.Record.ID, reservation.Claimed, false)
	e.settle()
	e.wantReplay(e.reserve("claimed", line(1, 3)), claimed.Record, reservation.Claimed)

	expired := e.reserveFor(shortTTL, "expired", line(1, 2))
	e.expire(expired.Record.ID)
	e.wantReplay(e.reserveFor(shortTTL, "expired", line(1, 2)), expired.Record, reservation.Expired)
	e.figures(1, 7, 0, 7)
}

func replaySoldOut(e *env) {
	e.stock(3)
	first := e.reserve("k", line(1, 3))
	e.rejected(line(1, 1))
	e.wantReplay(e.reserve("k", line(1, 3)), first.Record, reservation.Held)
	e.figures(1, 0, 3, 3)
}

// keysByteForByte: what a collation, a trim or a case fold would call equal is not.
func keysByteForByte(e *env) {
	keys := []string{
		"order-a", "order-A", "order-a ", " order-a", "order-á", "order-a\u0301", "ORDER-A", "order-a\t", "order-a\n",
		"order-a\x00", "order-a:1", "order-\xff\xfe", "straße", "strasse", "0", "00", "-", "{order-a}", "order-a\u200b", "é", "e\u0301",
	}
	e.stock(int64(len(keys)))
	seen := make(map[reservation.ID]string)
	firsts := make(map[string]reservation.Record)
	for _, k := range keys {
		res := e.reserve(k, line(1, 1))
		e.wantOutcome(res, reservation.Granted, reservation.Held)
		if other, dup := seen[res.Record.ID]; dup || res.Replayed {
			e.Fatalf("the keys %q and %q are one to the store", k, other)
		}
		seen[res.Record.ID], firsts[k] = k, res.Record
	}
	for _, k := range keys {
		e.wantReplay(e.reserve(k, line(1, 1)), firsts[k], reservation.Held)
		if rec := e.get(firsts[k].ID); rec.Key != k {
			e.Fatalf("the record of key %q says %q", k, rec.Key)
		}
	}
	e.figures(1, 0, int64(len(keys)), int64(len(keys)))
}

func longestKey(e *env) {
	e.stock(10)
	a, b := strings.Repeat("k", 254)+"a", strings.Repeat("k", 254)+"b"
	first := e.reserve(a, line(1, 1))
	e.reserve(b, line(1, 1))
	e.wantReplay(e.reserve(a, line(1, 1)), first.Record, reservation.Held)
	e.figures(1, 8, 2, 10)
}
