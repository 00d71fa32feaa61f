package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// truthRecord is a reservation as Redis would tell of it.
func truthRecord(t testing.TB, key string, state reservation.State, ttl time.Duration, lines ...reservation.Line) reservation.Record {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	rec := reservation.Record{
		ID: newID(t), Shop: shop, Key: key, Hash: request(t, key, 10*time.Minute, lines...).Hash, Lines: lines,
		Outcome: reservation.Granted, State: state, DecidedBy: reservation.Redis, Epoch: 5,
		CreatedAt: now, ExpiresAt: now.Add(ttl), PurgeAt: now.Add(ttl + time.Hour),
	}
	if state == reservation.Rejected {
		rec.Outcome = reservation.RejectedShort
	}
	return rec
}

// after is the record as it is after an operation.
func after(rec reservation.Record, state reservation.State) reservation.Record {
	rec.State = state
	at := rec.CreatedAt.Add(time.Second)
	switch state {
	case reservation.Released:
		rec.ReleasedAt = at
	case reservation.Expired:
		rec.ExpiredAt = at
	case reservation.Claiming:
		rec.PinnedAt = at
	default:
	}
	return rec
}

func granted(rec reservation.Record) reservation.MirrorOp {
	return reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.Granted, Record: rec}
}

func rejected(rec reservation.Record, short ...reservation.Shortage) reservation.MirrorOp {
	rec.State, rec.Outcome, rec.Shortages = reservation.Rejected, reservation.RejectedShort, short
	return reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.RejectedShort, Record: rec}
}

func released(rec reservation.Record) reservation.MirrorOp {
	return reservation.MirrorOp{Op: reservation.OpRelease, Decision: reservation.ReleasedOK, Record: after(rec, reservation.Released)}
}

func expiredOp(rec reservation.Record) reservation.MirrorOp {
	return reservation.MirrorOp{Op: reservation.OpExpire, Decision: reservation.ExpiredOK, Record: after(rec, reservation.Expired)}
}

func (b *bench) mirror(op reservation.MirrorOp) reservation.Judgement {
	b.t.Helper()
	j, err := b.Mirror(b.t.Context(), b.st, op)
	if err != nil {
		b.t.Fatalf("mirror %s %s: %v", op.Op, op.Decision, err)
	}
	return j
}

// judged checks what matters of a judgement.
func judged(t testing.TB, got reservation.Judgement, want reservation.Decision, state reservation.State, stored bool) {
	t.Helper()
	if got.Decision != want || got.State != state || got.Stored != stored {
		t.Errorf("judged %s, %s, stored %t; want %s, %s, %t (%+v)", got.Decision, got.State, got.Stored, want, state, stored, got)
	}
}

func TestMirrorAgrees(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(10, 5)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 7), line(2, 5))
	judged(t, b.mirror(granted(rec)), reservation.Granted, reservation.Held, true)
	b.figures(1, 3, 10)
	judged(t, b.mirror(granted(rec)), reservation.Granted, reservation.Held, false)
	b.figures(1, 3, 10)

	no := b.mirror(rejected(truthRecord(t, "b", 0, time.Minute, line(1, 6)), reservation.Shortage{Item: 1, Group: 1, Requested: 6, Available: 3}))
	judged(t, no, reservation.RejectedShort, reservation.Rejected, true)
	if len(no.Levels) != 0 {
		t.Errorf("levels of an equal decision: %v", no.Levels)
	}
	judged(t, b.mirror(released(rec)), reservation.ReleasedOK, reservation.Released, true)
	judged(t, b.mirror(released(rec)), reservation.ReleasedOK, reservation.Released, false)
	b.figures(1, 10, 10)
	b.figures(2, 5, 5)
	b.invariants()
}

func TestMirrorForcesAndTells(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(5, 9)
	// MySQL has one hold that Redis does not know of any more: Redis can grant more than MySQL has.
	b.mirror(granted(truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3))))
	j := b.mirror(granted(truthRecord(t, "b", reservation.Held, time.Minute, line(1, 4), line(2, 1))))
	judged(t, j, reservation.RejectedShort, reservation.Held, true)
	want := reservation.Judgement{
		Levels:    []reservation.Level{{Bucket: bucket(1), Available: 2}, {Bucket: bucket(2), Available: 9}},
		Shortages: []reservation.Shortage{{Item: 1, Group: 1, Requested: 4, Available: 2}}, Forced: 2,
	}
	if !cmp.Equal(j.Levels, want.Levels) || !cmp.Equal(j.Shortages, want.Shortages) || j.Forced != want.Forced {
		t.Errorf("got %+v, want %+v", j, want)
	}
	b.figures(1, -2, 5)
	snap := b.invariants()
	if s := snap.Buckets[0]; s.Unpooled != -2 || s.Pool != 0 {
		t.Errorf("forced: unpooled %d, pool %d; want -2, 0", s.Unpooled, s.Pool)
	}
	// The truth rejects what MySQL would have granted.
	j = b.mirror(rejected(truthRecord(t, "c", 0, time.Minute, line(2, 2)), reservation.Shortage{Item: 2, Group: 1, Requested: 2}))
	judged(t, j, reservation.Granted, reservation.Rejected, true)
	if !cmp.Equal(j.Levels, []reservation.Level{{Bucket: bucket(2), Available: 8}}) {
		t.Errorf("levels of the lines that the truth found short: %v", j.Levels)
	}
	b.figures(2, 8, 9)
	b.invariants()
}

func TestMirrorOfATruthThatRejectedCountsItsShortLinesFirst(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(1, 9)
	// The truth was short of item 2; MySQL is not, but it lacks item 1: it would have rejected too.
	j := b.mirror(rejected(truthRecord(t, "a", 0, time.Minute, line(1, 2), line(2, 2)), reservation.Shortage{Item: 2, Group: 1, Requested: 2}))
	judged(t, j, reservation.RejectedShort, reservation.Rejected, true)
}

func TestMirrorTruthWinsOverHeldAndRejected(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(5)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 4))
	b.mirror(rejected(rec))
	b.figures(1, 5, 5)
	j := b.mirror(granted(rec))
	if j.State != reservation.Held || !j.Stored {
		t.Errorf("a truth that granted after all: %+v", j)
	}
	b.figures(1, 1, 5)
	b.invariants()
	j = b.mirror(rejected(rec))
	if j.State != reservation.Rejected || !j.Stored {
		t.Errorf("a truth that rejected: %+v", j)
	}
	b.figures(1, 5, 5)
	b.invariants()
}

func TestMirrorOutOfOrder(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(5)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
	j := b.mirror(released(rec))
	judged(t, j, reservation.NotFound, reservation.Released, true)
	if !j.Backfilled {
		t.Error("a release whose reserve is missing is not called backfilled")
	}
	j = b.mirror(granted(rec))
	if !j.Overtaken || j.Stored || j.State != reservation.Released {
		t.Errorf("a reserve after its own release: %+v", j)
	}
	b.figures(1, 5, 5)

	late := truthRecord(t, "b", reservation.Held, -time.Second, line(1, 2))
	judged(t, b.mirror(granted(late)), reservation.Granted, reservation.Expired, true)
	b.figures(1, 5, 5)

	replay := granted(truthRecord(t, "c", reservation.Held, time.Minute, line(1, 2)))
	replay.Replayed = true
	j = b.mirror(replay)
	if !j.Backfilled || j.State != reservation.Held || !j.Stored {
		t.Errorf("a replay whose record is missing: %+v", j)
	}
	b.figures(1, 3, 5)
	if j = b.mirror(replay); j.Backfilled || j.Decision != reservation.Granted {
		t.Errorf("a replay whose record is there: %+v", j)
	}
	b.invariants()
}

func TestMirrorKeyCollision(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(9)
	mine := truthRecord(t, "k", reservation.Held, time.Minute, line(1, 4))
	b.mirror(granted(mine))
	truths := truthRecord(t, "k", reservation.Held, time.Minute, line(1, 3))
	j := b.mirror(granted(truths))
	judged(t, j, reservation.KeyConflict, reservation.Held, true)
	if s := b.state(mine.ID); s != reservation.Rejected {
		t.Errorf("the other holder of the key is %s", s)
	}
	if r, err := b.Get(t.Context(), shop, mine.ID); err != nil || r.Key != "" {
		t.Errorf("the other holder keeps the key %q, %v", r.Key, err)
	}
	b.figures(1, 6, 9)
	b.invariants()
}

func TestMirrorStoresNothingOfARefusal(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(5)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
	b.mirror(granted(rec))
	before := b.invariants()

	other := truthRecord(t, "a", 0, time.Minute, line(1, 1))
	judged(t, b.mirror(reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.KeyConflict, Record: other}),
		reservation.KeyConflict, reservation.Held, false)
	unknown := truthRecord(t, "u", 0, time.Minute, line(77, 1))
	judged(t, b.mirror(reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.UnknownBucket, Record: unknown}),
		reservation.UnknownBucket, 0, false)
	judged(t, b.mirror(granted(truthRecord(t, "v", reservation.Held, time.Minute, line(77, 1)))), reservation.UnknownBucket, 0, false)
	stranger := reservation.Record{ID: newID(t), Shop: shop}
	judged(t, b.mirror(reservation.MirrorOp{Op: reservation.OpRelease, Decision: reservation.NotFound, Record: stranger}),
		reservation.NotFound, 0, false)
	judged(t, b.mirror(reservation.MirrorOp{Op: reservation.OpClaim, Decision: reservation.NotFound, Record: reservation.Record{ID: rec.ID, Shop: shop}}),
		reservation.ClaimedOK, reservation.Held, false)
	if diff := cmp.Diff(before, b.invariants()); diff != "" {
		t.Errorf("something changed:\n%s", diff)
	}
}

func TestMirrorCompareAndSet(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(5)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
	held, none := reservation.Held, reservation.State(0)
	op := granted(rec)
	op.Expect = &held
	if j := b.mirror(op); j.Stored || j.State != 0 {
		t.Errorf("expected held, nothing is there: %+v", j)
	}
	op.Expect = &none
	if j := b.mirror(op); !j.Stored || j.State != reservation.Held {
		t.Errorf("expected nothing: %+v", j)
	}
	gone := released(rec)
	gone.Expect = &none
	if j := b.mirror(gone); j.Stored || j.State != reservation.Held {
		t.Errorf("expected nothing, a hold is there: %+v", j)
	}
	gone.Expect = &held
	if j := b.mirror(gone); !j.Stored || j.State != reservation.Released {
		t.Errorf("expected held: %+v", j)
	}
	claimed := granted(rec)
	claimed.Op, claimed.Decision, claimed.Record.State = reservation.OpClaim, reservation.ClaimedOK, reservation.Claimed
	if _, err := b.Mirror(t.Context(), b.st, claimed); !errors.Is(err, mysqlstore.ErrEntryMissing) {
		t.Errorf("a claim without its entry: %v", err)
	}
	b.figures(1, 5, 5)
	b.invariants()
}

func TestMirrorIsFenced(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(5)
	old := reservation.Stamp{Epoch: 4, Stage: reservation.Shadow}
	_, err := b.Mirror(t.Context(), old, granted(truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))))
	var fe *reservation.FenceError
	if !errors.As(err, &fe) || fe.Verdict != reservation.Stale {
		t.Errorf("an older epoch: %v", err)
	}
	b.figures(1, 5, 5)
}

func TestMirrorLargeCartsAndLines(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(100_000, 10)
	judged(t, b.mirror(granted(truthRecord(t, "a", reservation.Held, time.Minute, line(1, 74_215)))), reservation.Granted, reservation.Held, true)
	b.figures(1, 25_785, 100_000)
	judged(t, b.mirror(granted(truthRecord(t, "b", reservation.Held, time.Minute, line(1, 30_000)))), reservation.RejectedShort, reservation.Held, true)
	b.figures(1, -4_215, 100_000)
	b.invariants()
}

// TestMirrorAnyOrder (I5): the operations of one reservation, in any order and any number of times, end in the same
// tables as once and in order.
func TestMirrorAnyOrder(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	rounds := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		rounds++
		item := rounds
		if _, _, err := b.Stock(t.Context(), b.st, []reservation.Stocking{{Bucket: bucket(item), Quantity: 5}}); err != nil {
			rt.Fatal(err)
		}
		q := rapid.Int64Range(1, 8).Draw(rt, "quantity")
		rec := truthRecord(t, fmt.Sprint("k", rounds), reservation.Held, time.Minute, line(item, q))
		history := rapid.SampledFrom(histories()).Draw(rt, "history")
		ops := history.ops(rec)
		for range rapid.IntRange(0, 3).Draw(rt, "repeats") {
			ops = append(ops, rapid.SampledFrom(ops).Draw(rt, "again"))
		}
		ops = rapid.Permutation(ops).Draw(rt, "order")
		for _, op := range ops {
			if err := op(b); err != nil {
				rt.Fatal(err)
			}
		}
		got, err := b.Get(t.Context(), shop, rec.ID)
		if err != nil {
			rt.Fatal(err)
		}
		a, err := b.Availability(t.Context(), bucket(item))
		if err != nil {
			rt.Fatal(err)
		}
		available, onHand := int64(5), int64(5)
		switch history.ends {
		case reservation.Held:
			available -= q
		case reservation.Claimed:
			if q <= onHand { // else the guard on on_hand refuses
				available, onHand = available-q, onHand-q
			} else {
				history.ends = reservation.Refused
			}
		default:
		}
		if got.State != history.ends || a.Available != available || a.OnHand != onHand {
			rt.Fatalf("ended %s, available %d, on hand %d; want %s, %d, %d", got.State, a.Available, a.OnHand, history.ends, available, onHand)
		}
		want := after(rec, history.ends)
		if history.ends == reservation.Released && (!got.ReleasedAt.Equal(want.ReleasedAt) || got.Key != rec.Key) {
			rt.Fatalf("released at %v under %q; want %v, %q", got.ReleasedAt, got.Key, want.ReleasedAt, rec.Key)
		}
	})
	b.invariants()
}

type step func(b *bench) error

type history struct {
	ends reservation.State
	ops  func(rec reservation.Record) []step
}

func mirrored(op reservation.MirrorOp) step {
	return func(b *bench) error {
		_, err := b.Mirror(b.t.Context(), b.st, op)
		return err
	}
}

func deducted(rec reservation.Record) step {
	return func(b *bench) error {
		_, err := b.Deduct(b.t.Context(), b.st, reservation.Pin{Record: after(rec, reservation.Claiming)})
		return err
	}
}

func histories() []history {
	return []history{
		{reservation.Held, func(r reservation.Record) []step { return []step{mirrored(granted(r))} }},
		{reservation.Rejected, func(r reservation.Record) []step { return []step{mirrored(rejected(r))} }},
		{reservation.Released, func(r reservation.Record) []step { return []step{mirrored(granted(r)), mirrored(released(r))} }},
		{reservation.Expired, func(r reservation.Record) []step { return []step{mirrored(granted(r)), mirrored(expiredOp(r))} }},
		{reservation.Released, func(r reservation.Record) []step {
			last := released(after(r, reservation.Expired))
			return []step{mirrored(granted(r)), mirrored(expiredOp(r)), mirrored(last)}
		}},
		{reservation.Claimed, func(r reservation.Record) []step { return []step{mirrored(granted(r)), deducted(r)} }},
		{reservation.Claimed, func(r reservation.Record) []step { // expired, then claimed late
			return []step{mirrored(granted(r)), mirrored(expiredOp(r)), deducted(after(r, reservation.Expired))}
		}},
	}
}

func TestMirrorLosesTheWordOfItsCommit(t *testing.T) {
	t.Parallel()
	for name, arm := range commitLoss() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, shadow)
			b.stock(5)
			far, p := b.behind(t)
			rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
			b.mirror(granted(truthRecord(t, "first", reservation.Held, time.Minute, line(1, 1)))) // fills the pool
			for _, op := range []reservation.MirrorOp{granted(rec), released(rec)} {
				f := arm(p)
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				j, err := far.Mirror(ctx, b.st, op)
				cancel()
				if err != nil || f.Fired() != 1 {
					t.Fatalf("%s: %v, fired %d", op.Op, err, f.Fired())
				}
				judged(t, j, op.Decision, op.Record.State, true)
				f.Remove()
			}
			b.figures(1, 4, 5)
			b.invariants()
		})
	}
}

func TestMirrorSameOperationAtOnce(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(50)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
	ops := []reservation.MirrorOp{granted(rec), released(rec)}
	errs := make(chan error, 40)
	for n := range 40 {
		go func() {
			_, err := b.Mirror(t.Context(), b.st, ops[n%2])
			errs <- err
		}()
	}
	for range 40 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	b.figures(1, 50, 50)
	if s := b.state(rec.ID); s != reservation.Released {
		t.Errorf("ended %s", s)
	}
	b.invariants()
}
