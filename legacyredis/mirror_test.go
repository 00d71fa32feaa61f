package legacyredis_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/reservation"
)

func cutover() reservation.Stamp { return at(9, reservation.Cutover) }

// truth is a record as MySQL decided it, in the state it is in now.
func (r *rig) truth(key string, state reservation.State, l ...reservation.Line) reservation.Record {
	r.tb.Helper()
	now, err := r.raw.Time(r.tb.Context()).Result()
	if err != nil {
		r.tb.Fatal(err)
	}
	now = now.UTC().Truncate(time.Microsecond)
	rec := reservation.Record{
		ID: newID(r.tb), Shop: 1, Key: key, Hash: request(r.tb, key, time.Hour, l...).Hash, Lines: l,
		Outcome: reservation.Granted, DecidedBy: reservation.MySQL, Epoch: 9,
		CreatedAt: now, ExpiresAt: now.Add(time.Hour), PurgeAt: now.Add(2 * time.Hour),
	}
	return inState(rec, state)
}

// inState is the record as it is once it has come to that state.
func inState(rec reservation.Record, state reservation.State) reservation.Record {
	rec.State = state
	then := rec.CreatedAt.Add(time.Second)
	switch state {
	case reservation.Rejected:
		rec.Outcome = reservation.RejectedShort
		for _, l := range rec.Lines {
			rec.Shortages = append(rec.Shortages, reservation.Shortage{Item: l.Item, Group: l.Group, Requested: l.Quantity})
		}
	case reservation.Released:
		rec.ReleasedAt = then
	case reservation.Expired:
		rec.ExpiredAt = then
	case reservation.Claimed, reservation.Refused:
		rec.ClaimedAt = then
	default:
	}
	return rec
}

// opOf is the operation that brought a record to its state.
func opOf(rec reservation.Record, changes ...reservation.Change) reservation.MirrorOp {
	op := reservation.MirrorOp{Record: rec, Changes: changes}
	switch rec.State {
	case reservation.Released:
		op.Op, op.Decision = reservation.OpRelease, reservation.ReleasedOK
	case reservation.Expired:
		op.Op, op.Decision = reservation.OpExpire, reservation.ExpiredOK
	case reservation.Claimed:
		op.Op, op.Decision = reservation.OpClaim, reservation.ClaimedOK
	case reservation.Refused:
		op.Op, op.Decision = reservation.OpClaim, reservation.RefundRequired
	case reservation.Rejected:
		op.Op, op.Decision = reservation.OpReserve, reservation.RejectedShort
	default:
		op.Op, op.Decision = reservation.OpReserve, reservation.Granted
	}
	return op
}

func (r *rig) mirror(st reservation.Stamp, op reservation.MirrorOp) reservation.Judgement {
	r.tb.Helper()
	j, err := r.store.Mirror(r.tb.Context(), st, op)
	if err != nil {
		r.tb.Fatalf("mirror %s %s: %v", op.Op, op.Record.State, err)
	}
	return j
}

func newCutover(t *testing.T, stock ...int64) *rig {
	t.Helper()
	r := newRig(t)
	r.stock(stock...)
	r.inStage(cutover())
	return r
}

func change(item, delta, version int64) reservation.Change {
	return reservation.Change{Bucket: bucket(item), Delta: delta, Version: version}
}

func TestMirrorJudgesAndStoresAReserve(t *testing.T) {
	t.Parallel()
	r := newCutover(t, 10)
	rec := r.truth("k", reservation.Held, line(1, 4))
	j := r.mirror(cutover(), opOf(rec))
	if j.Decision != reservation.Granted || j.State != reservation.Held || !j.Stored || j.Forced != 0 || j.Backfilled || j.Overtaken || j.Levels != nil {
		t.Fatalf("%+v", j)
	}
	if diff := cmp.Diff(rec, *j.Record); diff != "" {
		t.Fatal(diff)
	}
	r.figures(1, 6, 4, 10)
	if j := r.mirror(cutover(), opOf(rec)); j.Stored || j.State != reservation.Held {
		t.Fatalf("again: %+v", j)
	}

	j = r.mirror(cutover(), opOf(r.truth("more", reservation.Held, line(1, 8))))
	want := []reservation.Level{{Bucket: bucket(1), Available: 6}}
	if j.Decision != reservation.RejectedShort || j.State != reservation.Held || !j.Stored || j.Forced != 2 || !cmp.Equal(j.Levels, want) || len(j.Shortages) != 1 || j.Shortages[0].Available != 6 {
		t.Fatalf("one that Redis would have rejected: %+v", j)
	}
	r.figures(1, -2, 12, 10)

	j = r.mirror(cutover(), opOf(r.truth("no", reservation.Rejected, line(1, 1))))
	if j.Decision != reservation.RejectedShort || j.State != reservation.Rejected || !j.Stored || j.Levels != nil {
		t.Fatalf("%+v", j)
	}
	r.figures(1, -2, 12, 10)
	if again := r.reserveIn(cutover(), "no", line(1, 1)); !again.Replayed || again.Record.Outcome != reservation.RejectedShort {
		t.Fatalf("I9: %+v", again)
	}
	if j := r.mirror(cutover(), opOf(r.truth("x", reservation.Held, line(7, 1)))); j.Decision != reservation.UnknownBucket || j.Stored || j.Record != nil {
		t.Fatalf("a bucket that Redis does not know: %+v", j)
	}
	r.noOrphans()
}

// An oversell by the truth shows in the levels.
func TestMirrorTellsWhatItWouldHaveGranted(t *testing.T) {
	t.Parallel()
	r := newCutover(t, 10)
	j := r.mirror(cutover(), opOf(r.truth("k", reservation.Rejected, line(1, 4))))
	if j.Decision != reservation.Granted || j.State != reservation.Rejected || !cmp.Equal(j.Levels, []reservation.Level{{Bucket: bucket(1), Available: 10}}) {
		t.Fatalf("%+v", j)
	}
	r.figures(1, 10, 0, 10)
}

// Whatever Redis has, and whatever the truth says: the state that both must end in (reservation.Merge), its units moved
// once, whichever store decides.
func TestI5MirrorMergesEveryPairOfStates(t *testing.T) {
	t.Parallel()
	here := []reservation.State{
		0, reservation.Provisional, reservation.Held, reservation.Rejected, reservation.Expired, reservation.Refused,
		reservation.Released, reservation.Claimed,
	}
	for _, st := range []reservation.Stamp{cutover(), at(9, reservation.Shadow)} {
		for _, have := range here {
			for _, theirs := range here[2:] {
				t.Run(fmt.Sprintf("%s/%s/%s", st.Stage, have, theirs), func(t *testing.T) {
					t.Parallel()
					r := newCutover(t, 10)
					rec := r.truth("k", reservation.Held, line(1, 4))
					r.place(rec, have)
					r.inStage(st)
					want := theirs
					if have != 0 {
						want = reservation.Merge(theirs, have)
						if st.Stage.Truth() == reservation.Redis {
							want = reservation.Merge(have, theirs)
						}
					}
					for range 2 {
						j := r.mirror(st, opOf(inState(rec, theirs), change(1, -4, 2)))
						if j.State != want {
							t.Fatalf("it is %s, want %s: %+v", j.State, want, j)
						}
						held, onHand := int64(0), int64(10)
						if want.TakesUnits() {
							held = 4
						}
						if want == reservation.Claimed {
							onHand = 6
						}
						r.figures(1, onHand-held, held, onHand)
						r.stateNow(rec.ID, want)
					}
					r.noOrphans()
				})
			}
		}
	}
}

// place puts a record into Redis in a state.
func (r *rig) place(rec reservation.Record, state reservation.State) {
	r.tb.Helper()
	switch state {
	case 0:
	case reservation.Provisional:
		r.mirror(cutover(), opOf(rec))
		if err := r.raw.HSet(r.tb.Context(), r.key("res:%s", rec.ID), "state", "provisional").Err(); err != nil {
			r.tb.Fatal(err)
		}
	default:
		r.mirror(cutover(), opOf(inState(rec, state), change(1, -4, 2)))
	}
}

// A life's operations in any order, each any number of times, end in the same.
func TestI5MirrorInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		r := newCutover(t, 20)
		rng := rand.New(rand.NewPCG(seed, 1))
		paid, given := r.truth("paid", reservation.Held, line(1, 4)), r.truth("given", reservation.Held, line(1, 3))
		ops := []reservation.MirrorOp{
			opOf(paid), opOf(inState(paid, reservation.Claimed), change(1, -4, 2)),
			opOf(given), opOf(inState(given, reservation.Expired)), opOf(inState(given, reservation.Released)),
		}
		ops = append(ops, ops...)
		rng.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
		for _, op := range ops {
			r.mirror(cutover(), op)
		}
		r.stateNow(paid.ID, reservation.Claimed)
		r.stateNow(given.ID, reservation.Released)
		r.figures(1, 16, 0, 16)
		r.noOrphans()
	}
}

// What came too late to matter takes nothing.
func TestMirrorPastExpiryAndRetention(t *testing.T) {
	t.Parallel()
	r := newCutover(t, 10)
	due := r.truth("due", reservation.Held, line(1, 4))
	due.CreatedAt, due.ExpiresAt = due.CreatedAt.Add(-time.Hour), due.CreatedAt.Add(-time.Minute)
	if j := r.mirror(cutover(), opOf(due)); j.State != reservation.Expired || !j.Stored || j.Record.ExpiredAt.IsZero() {
		t.Fatalf("%+v", j)
	}
	gone := due
	gone.ID, gone.Key, gone.PurgeAt = newID(t), "gone", due.ExpiresAt.Add(time.Second)
	if j := r.mirror(cutover(), opOf(gone)); j.Decision != reservation.NotFound || j.Stored {
		t.Fatalf("%+v", j)
	}
	r.figures(1, 10, 0, 10)
	r.noOrphans()
}

func TestMirrorBackfills(t *testing.T) {
	t.Parallel()
	r := newCutover(t, 10)
	for _, state := range []reservation.State{reservation.Released, reservation.Expired, reservation.Refused} {
		rec := r.truth(state.String(), state, line(1, 4))
		j := r.mirror(cutover(), opOf(rec))
		if j.Decision != reservation.NotFound || !j.Backfilled || !j.Stored || j.State != state {
			t.Fatalf("%+v", j)
		}
		held := opOf(inState(rec, reservation.Held))
		held.Record = rec
		held.Record.State = reservation.Held
		if j := r.mirror(cutover(), held); !j.Overtaken || j.Stored || j.State != state {
			t.Fatalf("its reserve, later: %+v", j)
		}
	}
	op := opOf(r.truth("replayed", reservation.Held, line(1, 1)))
	op.Replayed = true
	if j := r.mirror(cutover(), op); !j.Backfilled || j.State != reservation.Held {
		t.Fatalf("a replay of what is not here: %+v", j)
	}
	r.figures(1, 9, 1, 10)
}

// A key with two ids: the truth's keeps it.
func TestI9MirrorOfAKeyThatAnotherHas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		holder, becomes, op reservation.State
	}{
		{reservation.Held, reservation.Rejected, reservation.Held},
		{reservation.Provisional, reservation.Rejected, reservation.Held},
		{reservation.Held, reservation.Rejected, reservation.Rejected},
		{reservation.Released, reservation.Released, reservation.Held},
		{reservation.Held, reservation.Held, reservation.Released},
	} {
		r := newCutover(t, 10)
		other := r.truth("k", reservation.Held, line(1, 3))
		r.place(other, c.holder)
		rec := r.truth("k", c.op, line(1, 2))
		if c.op == reservation.Held {
			rec.Hash[0]++
		}
		j := r.mirror(cutover(), opOf(rec))
		if c.op == reservation.Held && j.Decision != reservation.KeyConflict || !j.Stored || j.State != c.op {
			t.Fatalf("%+v: %+v", c, j)
		}
		if got := r.stateNow(other.ID, c.becomes); got.Key != "" {
			t.Fatalf("%+v: two records have the key", c)
		}
		if id := r.raw.Get(t.Context(), r.key("key:1:k")).Val(); id != rec.ID.String() {
			t.Fatalf("%+v: the key leads to %s", c, id)
		}
		held := int64(0)
		if c.becomes == reservation.Held {
			held += 3
		}
		if c.op == reservation.Held {
			held += 2
		}
		r.figures(1, 10-held, held, 10)
		r.noOrphans()
	}
}

// Where Redis decides its own record keeps the key, and what MySQL held under it was promised to nobody, unless it is
// adopted.
func TestI9MirrorOfAKeyThatTheTruthHas(t *testing.T) {
	t.Parallel()
	for _, adopt := range []bool{false, true} {
		r := newRig(t)
		r.stock(10)
		own := r.reserve("k", line(1, 3)).Record
		op := opOf(r.truth("k", reservation.Held, line(1, 2)))
		op.Adopt = adopt
		j := r.mirror(stamp(), op)
		want, held := reservation.Rejected, int64(3)
		if adopt {
			want, held = reservation.Held, 5
		}
		if j.State != want || j.Record.Key != "" {
			t.Fatalf("adopt %t: %+v", adopt, j)
		}
		if id := r.raw.Get(t.Context(), r.key("key:1:k")).Val(); id != own.ID.String() {
			t.Fatalf("the key leads to %s", id)
		}
		r.figures(1, 10-held, held, 10)
		r.noOrphans()
	}
}

func TestMirrorAdoptsOverARejection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	rec := r.truth("k", reservation.Held, line(1, 4))
	r.inStage(cutover())
	r.place(rec, reservation.Rejected)
	r.inStage(stamp())
	if j := r.mirror(stamp(), opOf(rec)); j.State != reservation.Rejected || j.Stored {
		t.Fatalf("where Redis decides its rejection stands: %+v", j)
	}
	op := opOf(rec)
	op.Adopt = true
	if j := r.mirror(stamp(), op); j.State != reservation.Held || !j.Stored || j.Record.Outcome != reservation.Granted || len(j.Record.Shortages) != 0 {
		t.Fatalf("%+v", j)
	}
	r.figures(1, 6, 4, 10)
}

func TestMirrorComparesAndSets(t *testing.T) {
	t.Parallel()
	r := newCutover(t, 10)
	rec := r.truth("k", reservation.Held, line(1, 4))
	op := opOf(inState(rec, reservation.Released))
	held, none := reservation.Held, reservation.State(0)
	op.Expect = &held
	if j := r.mirror(cutover(), op); j.Stored || j.State != 0 {
		t.Fatalf("%+v", j)
	}
	first := opOf(rec)
	first.Expect = &none
	if j := r.mirror(cutover(), first); !j.Stored {
		t.Fatalf("%+v", j)
	}
	if j := r.mirror(cutover(), first); j.Stored || j.State != reservation.Held || j.Record == nil {
		t.Fatalf("%+v", j)
	}
	if j := r.mirror(cutover(), op); !j.Stored || j.State != reservation.Released {
		t.Fatalf("%+v", j)
	}
	r.figures(1, 10, 0, 10)
}

// A pin is left alone: by a release, an expiry, a hold, a rejection. Its own end moves it, and a release that knows of it.
func TestMirrorLeavesAPinAlone(t *testing.T) {
	t.Parallel()
	for _, theirs := range []reservation.State{reservation.Held, reservation.Rejected, reservation.Expired, reservation.Released} {
		r := newCutover(t, 10)
		rec := r.truth("k", reservation.Held, line(1, 4))
		r.mirror(cutover(), opOf(rec))
		r.pinIt(cutover(), rec.ID)
		if j := r.mirror(cutover(), opOf(inState(rec, theirs))); j.Stored || j.State != reservation.Claiming {
			t.Fatalf("%s: %+v", theirs, j)
		}
		r.figures(1, 6, 4, 10)
		if theirs == reservation.Released {
			op, pinned := opOf(inState(rec, theirs)), reservation.Claiming
			op.Expect = &pinned
			if j := r.mirror(cutover(), op); !j.Stored || j.State != reservation.Released {
				t.Fatalf("%+v", j)
			}
			r.figures(1, 10, 0, 10)
			continue
		}
		r.mirror(cutover(), opOf(inState(rec, reservation.Claimed), change(1, -4, 2)))
		r.figures(1, 6, 0, 6)
		r.noOrphans()
	}
}

func TestMirrorJudgesWhatTheTruthRefused(t *testing.T) {
	t.Parallel()
	r := newCutover(t, 10)
	rec := r.truth("k", reservation.Held, line(1, 4))
	r.mirror(cutover(), opOf(rec))
	before := r.contents()
	asked := reservation.Record{ID: newID(t), Shop: 1, Key: "k", Hash: reservation.Hash{1}, Lines: lines(line(1, 4))}
	j := r.mirror(cutover(), reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.KeyConflict, Record: asked})
	if j.Decision != reservation.KeyConflict || j.State != reservation.Held {
		t.Fatalf("%+v", j)
	}
	asked.Key = "other"
	j = r.mirror(cutover(), reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.KeyConflict, Record: asked})
	if j.Decision != reservation.Granted || len(j.Levels) != 1 {
		t.Fatalf("%+v", j)
	}
	asked.Lines = lines(line(5, 1))
	j = r.mirror(cutover(), reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.UnknownBucket, Record: asked})
	if j.Decision != reservation.UnknownBucket {
		t.Fatalf("%+v", j)
	}
	for _, op := range []reservation.Op{reservation.OpClaim, reservation.OpRelease} {
		j = r.mirror(cutover(), reservation.MirrorOp{Op: op, Decision: reservation.NotFound, Record: reservation.Record{ID: newID(t), Shop: 1}})
		if j.Decision != reservation.NotFound {
			t.Fatalf("%+v", j)
		}
		j = r.mirror(cutover(), reservation.MirrorOp{Op: op, Decision: reservation.NotFound, Record: reservation.Record{ID: rec.ID, Shop: 2}})
		if j.Decision != reservation.NotFound {
			t.Fatalf("of another shop: %+v", j)
		}
	}
	j = r.mirror(cutover(), reservation.MirrorOp{Op: reservation.OpRelease, Decision: reservation.StateConflict, Record: rec})
	if j.Decision != reservation.ReleasedOK || j.State != reservation.Held || j.Record == nil {
		t.Fatalf("%+v", j)
	}
	for delta, want := range map[int64]reservation.Decision{-6: reservation.Adjusted, -7: reservation.AdjustRefused} {
		j = r.mirror(cutover(), reservation.MirrorOp{
			Op: reservation.OpAdjust, Decision: reservation.AdjustRefused,
			Adjustment: &reservation.Adjustment{ID: "a", Bucket: bucket(1), Delta: delta},
		})
		if j.Decision != want {
			t.Fatalf("%d: %+v", delta, j)
		}
	}
	r.unchanged(before)
}

// A lost reply: stored once, and told as what it is, one of which nothing can be judged any more.
func TestLostReplyOfMirror(t *testing.T) {
	t.Parallel()
	r, s, p := proxied(t)
	r.stock(10)
	r.inStage(cutover())
	rec := r.truth("k", reservation.Held, line(1, 4))
	f := p.Cut(scriptFor(rec.ID, faultproxy.After, 1))
	j, err := s.Mirror(t.Context(), cutover(), opOf(rec))
	if err != nil || f.Fired() != 1 || !j.Stored || !j.Overtaken || j.State != reservation.Held {
		t.Fatalf("%+v, %v, fired %d", j, err, f.Fired())
	}
	r.figures(1, 6, 4, 10)
}
