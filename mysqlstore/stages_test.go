package mysqlstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestMirrorHeldAgainstRejected: it goes to the store that decides in the caller's stage, but what somebody was
// promised stays: a marked hold, and one that is adopted.
func TestMirrorHeldAgainstRejected(t *testing.T) {
	t.Parallel()
	type row struct {
		stage         reservation.Stage
		mine, theirs  reservation.State
		marked, adopt bool
		want          reservation.State
	}
	held, rejectedState := reservation.Held, reservation.Rejected
	var rows []row
	for _, stage := range reservation.Stages()[1:] {
		redis := stage.Truth() == reservation.Redis
		either := func(redisSays, mysqlSays reservation.State) reservation.State {
			if redis {
				return redisSays
			}
			return mysqlSays
		}
		rows = append(rows,
			row{stage, held, rejectedState, false, false, either(rejectedState, held)},
			row{stage, held, rejectedState, true, false, held},
			row{stage, rejectedState, held, false, false, either(held, rejectedState)},
			row{stage, rejectedState, held, true, false, either(held, rejectedState)},
			row{stage, rejectedState, held, false, true, held},
			row{stage, rejectedState, held, true, true, held},
		)
	}
	b := open(t, stamp(5, reservation.Cutover))
	for n, c := range rows {
		item := int64(n + 1)
		b.st = stamp(uint64(6+2*n), reservation.Cutover)
		stockOne(t, b, item, 5)
		quantity := int64(3)
		if c.mine == rejectedState {
			b.reserve(fmt.Sprint("other", n), line(item, 4))
		}
		mine := b.reserve(fmt.Sprint("k", n), line(item, quantity)).Record
		if mine.State != c.mine {
			t.Fatalf("MySQL's is %s", mine.State)
		}
		if c.marked {
			mark(b, mine.ID)
		}
		b.st = stamp(uint64(7+2*n), c.stage)
		theirs := truthRecord(t, mine.Key, c.theirs, time.Hour, mine.Lines...)
		theirs.ID, theirs.Hash, theirs.Epoch = mine.ID, mine.Hash, 3
		op := granted(theirs)
		if c.theirs == rejectedState {
			op = rejected(theirs, reservation.Shortage{Item: item, Group: 1, Requested: 3, Available: 1})
		}
		op.Adopt = c.adopt
		j := b.mirror(op)
		if j.State != c.want || j.Stored != (c.want != c.mine) || b.state(mine.ID) != c.want {
			t.Errorf("%+v: %+v", c, j)
		}
		got, err := b.Get(t.Context(), shop, mine.ID)
		if err != nil {
			t.Fatal(err)
		}
		// The record tells the answer that counts: the one that stands.
		want := mine
		want.Marked = c.marked
		if c.want != c.mine {
			want.State, want.Outcome, want.Shortages = c.want, op.Record.Outcome, op.Record.Shortages
			want.DecidedBy, want.Epoch = reservation.Redis, 3
			want.CreatedAt, want.ExpiresAt, want.PurgeAt = theirs.CreatedAt, theirs.ExpiresAt, theirs.PurgeAt
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v:\n%s", c, diff)
		}
		left := int64(5)
		if c.mine == rejectedState {
			left -= 4
		}
		if c.want == held {
			left -= quantity
		}
		b.figures(item, left, 5)
	}
	b.invariants()
}

// TestMirrorWhereMySQLDecides: catch-up brings what only Redis has. What somebody was promised is stored by force,
// what nobody was is stored if there is room, an end is stored as it is; MySQL's own id keeps the key.
func TestMirrorWhereMySQLDecides(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(5)
	own := b.reserve("k", line(1, 3))

	judged(t, b.mirror(granted(truthRecord(t, "room", reservation.Held, time.Hour, line(1, 1)))), reservation.Granted, reservation.Held, true)
	none := truthRecord(t, "no room", reservation.Held, time.Hour, line(1, 2))
	j := b.mirror(granted(none))
	judged(t, j, reservation.RejectedShort, 0, false)
	if !cmp.Equal(j.Levels, []reservation.Level{{Bucket: bucket(1), Available: 1}}) || len(j.Shortages) != 1 {
		t.Errorf("why not: %+v", j)
	}
	b.figures(1, 1, 5)
	adopt := granted(none)
	adopt.Adopt = true
	if j = b.mirror(adopt); j.State != reservation.Held || j.Forced != 1 {
		t.Errorf("adopted: %+v", j)
	}
	b.figures(1, -1, 5)

	// The same key under another id.
	for _, c := range []struct {
		op    reservation.MirrorOp
		adopt bool
		want  reservation.State
	}{
		{granted(truthRecord(t, "k", reservation.Held, time.Hour, line(1, 1))), false, reservation.Rejected},
		{granted(truthRecord(t, "k", reservation.Held, time.Hour, line(1, 1))), true, reservation.Held},
		{released(truthRecord(t, "k", reservation.Held, time.Hour, line(1, 1))), false, reservation.Released},
	} {
		c.op.Adopt = c.adopt
		if j := b.mirror(c.op); j.State != c.want || !j.Stored {
			t.Errorf("under a key that is MySQL's: %+v, want %s", j, c.want)
		}
		if r, err := b.Get(t.Context(), shop, c.op.Record.ID); err != nil || r.Key != "" || r.State != c.want {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if r, err := b.ByKey(t.Context(), shop, "k"); err != nil || r.ID != own.Record.ID || r.State != reservation.Held {
		t.Errorf("the key: %+v, %v", r, err)
	}
	b.figures(1, -2, 5)

	// An end of Redis's counts; MySQL's answer stays on the record, and its higher state too.
	gone := own.Record
	gone.ExpiresAt = gone.ExpiresAt.Add(time.Second)
	if j := b.mirror(released(gone)); j.State != reservation.Released || !j.Record.ExpiresAt.Equal(own.Record.ExpiresAt) || j.Record.ReleasedAt.IsZero() {
		t.Errorf("an end: %+v", j)
	}
	if j := b.mirror(expiredOp(gone)); j.State != reservation.Released || j.Stored {
		t.Errorf("a lower end: %+v", j)
	}
	claimed := granted(own.Record)
	claimed.Op, claimed.Decision, claimed.Record.State = reservation.OpClaim, reservation.ClaimedOK, reservation.Claimed
	if _, err := b.Mirror(t.Context(), b.st, claimed); !errors.Is(err, mysqlstore.ErrEntryMissing) {
		t.Errorf("a claim without its entry: %v", err)
	}
	b.invariants()
}

// TestMirrorTakesOverWhatWasDecidedAnew: MySQL had agreed to a provisional hold, nobody was answered, and Redis decides
// it afresh in a later epoch with a later expiry: that is the one that was promised. Its units stay as they are.
func TestMirrorTakesOverWhatWasDecidedAnew(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(5)
	rec := provisional(t, "a", time.Minute, line(1, 2))
	b.agree(rec)
	marked := provisional(t, "b", time.Minute, line(1, 1))
	b.agree(marked)
	b.st = stamp(6, reservation.Cutover)
	mark(b, marked.ID)
	b.st = stamp(7, reservation.Shadow)
	for _, r := range []reservation.Record{rec, marked} {
		anew := r
		anew.State, anew.Epoch = reservation.Held, 7
		anew.ExpiresAt, anew.PurgeAt = r.ExpiresAt.Add(time.Minute), r.PurgeAt.Add(time.Minute)
		b.mirror(granted(anew))
		want := anew.ExpiresAt
		if r.ID == marked.ID {
			want = r.ExpiresAt // that one was answered
		}
		for range 2 {
			got, err := b.Get(t.Context(), shop, r.ID)
			if err != nil || got.State != reservation.Held || !got.ExpiresAt.Equal(want) {
				t.Errorf("%s: %+v, %v; want it to expire at %v", r.Key, got, err, want)
			}
			old := r
			old.State = reservation.Held
			b.mirror(granted(old)) // what comes late changes nothing
		}
	}
	b.figures(1, 2, 5)
	b.invariants()
}

// TestMirrorOfAReplay: in shadow a replay is compared and changes nothing, unless it is adopted; in handover what is
// answered is in MySQL first.
func TestMirrorOfAReplay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stage reservation.Stage
		adopt bool
		want  reservation.State
	}{
		{reservation.Shadow, false, reservation.Rejected},
		{reservation.Shadow, true, reservation.Held},
		{reservation.Handover, false, reservation.Held},
	} {
		b := open(t, stamp(5, c.stage))
		b.stock(5)
		rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
		b.mirror(rejected(rec))
		op := granted(rec)
		op.Replayed, op.Adopt = true, c.adopt
		if j := b.mirror(op); j.State != c.want || j.Decision != reservation.RejectedShort || j.Stored != (c.want == reservation.Held) {
			t.Errorf("%+v: %+v", c, j)
		}
		b.invariants()
	}
}

// TestMirrorAdoptsWhatIsDue: a promise past its expiry takes no units any more.
func TestMirrorAdoptsWhatIsDue(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(5)
	rec := truthRecord(t, "a", reservation.Held, -time.Second, line(1, 2))
	b.mirror(rejected(rec))
	op := granted(rec)
	op.Adopt = true
	if j := b.mirror(op); j.State != reservation.Expired || !j.Stored {
		t.Errorf("adopted: %+v", j)
	}
	b.figures(1, 5, 5)
	b.invariants()
}

// TestDeductByMySQLsClock: where MySQL decides, or the pin is unjudged, late is judged under the lock, and the policy
// asked; the pin's own word counts only while Redis decides.
func TestDeductByMySQLsClock(t *testing.T) {
	t.Parallel()
	const none, held, swept = 0, reservation.Held, reservation.Expired
	for _, c := range []struct {
		name     string
		stage    reservation.Stage
		unjudged bool
		mine     reservation.State
		past     bool // the expiry
		pin      reservation.Pin
		free     int64 // units that are available beside
		refuse   bool  // the pod's policy
		want     reservation.State
		late     bool
		left     int64
	}{
		{"in time", reservation.Cutover, false, held, false, reservation.Pin{Late: true, Refuse: true}, 0, true, reservation.Claimed, false, 0},
		{"late, its own units are there", reservation.Cutover, false, held, true, reservation.Pin{}, 0, true, reservation.Claimed, true, 0},
		{"late, expired, some are available", reservation.Cutover, false, swept, true, reservation.Pin{}, 3, true, reservation.Claimed, true, 0},
		{"late, expired, none is left, refuse", reservation.Cutover, false, swept, true, reservation.Pin{}, 0, true, reservation.Refused, true, 0},
		{"late, expired, none is left, force", reservation.Cutover, false, swept, true, reservation.Pin{}, 0, false, reservation.Claimed, true, -3},
		{"unknown, in time", reservation.Cutover, false, none, false, reservation.Pin{}, 0, true, reservation.Claimed, false, -3},
		{"unknown, late, available", reservation.Cutover, false, none, true, reservation.Pin{}, 3, true, reservation.Claimed, true, 0},
		{"unknown, late, none is left, refuse", reservation.Cutover, false, none, true, reservation.Pin{}, 0, true, reservation.Refused, true, 0},
		{"unknown, late, none is left, force", reservation.Cutover, false, none, true, reservation.Pin{}, 0, false, reservation.Claimed, true, -3},
		{"unjudged after a kill, in time", reservation.Shadow, true, held, false, reservation.Pin{Late: true, Refuse: true}, 0, true, reservation.Claimed, false, 0},
		{"unjudged after a kill, late, refuse", reservation.Shadow, true, swept, true, reservation.Pin{}, 0, true, reservation.Refused, true, 0},
		{"unjudged after a kill, unknown, late", reservation.Shadow, true, none, true, reservation.Pin{}, 3, true, reservation.Claimed, true, 0},
		{"judged by Redis: in time", reservation.Shadow, false, swept, true, reservation.Pin{}, 0, true, reservation.Claimed, false, -3},
		{"judged by Redis: refused", reservation.Shadow, false, held, false, reservation.Pin{Late: true, Refuse: true}, 0, false, reservation.Refused, true, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			policy := reservation.ForceLate
			if c.refuse {
				policy = reservation.RefuseLate
			}
			b := open(t, stamp(5, reservation.Shadow), func(o *mysqlstore.Options) { o.LatePolicy = policy })
			others := int64(10)
			if c.mine != held {
				others -= c.free
			} else {
				others -= 3 + c.free
			}
			b.stock(10)
			b.mirror(granted(truthRecord(t, "others", reservation.Held, time.Hour, line(1, others))))
			ttl := time.Hour
			if c.past {
				ttl = -time.Second
			}
			rec := truthRecord(t, "a", reservation.Held, ttl, line(1, 3))
			switch {
			case c.mine == held && c.past: // it has run out and nobody has swept it
				rec.ExpiresAt = time.Now().UTC().Add(300 * time.Millisecond).Truncate(time.Microsecond)
				b.mirror(granted(rec))
				b.until("it is due", func() bool { return time.Now().After(rec.ExpiresAt.Add(20 * time.Millisecond)) })
			case c.mine == held:
				b.mirror(granted(rec))
			case c.mine == swept:
				b.mirror(expiredOp(rec))
			}
			b.st = stamp(6, c.stage)
			pin := c.pin
			pin.Record, pin.Unjudged = after(rec, reservation.Claiming), c.unjudged
			d := b.deduct(pin)
			if d.State != c.want || d.Late != c.late || d.Replayed || (len(d.Changes) > 0) != (c.want == reservation.Claimed) {
				t.Errorf("got %+v; want %s, late %t", d, c.want, c.late)
			}
			if again := b.deduct(pin); again.State != c.want || again.Late != c.late || !again.Replayed || !cmp.Equal(again.Changes, d.Changes) {
				t.Errorf("again: %+v", again)
			}
			if r, err := b.Get(t.Context(), shop, rec.ID); err != nil || r.Late != c.late || r.State != c.want {
				t.Errorf("record: %+v, %v", r, err)
			}
			onHand := int64(10)
			if c.want == reservation.Claimed {
				onHand = 7
			}
			b.figures(1, c.left, onHand)
			b.invariants()
		})
	}
}

// TestDeductConflicts: while MySQL decides its rejected and its released are conflicts, and nothing is changed; while
// Redis decides only its released is.
func TestDeductConflicts(t *testing.T) {
	t.Parallel()
	for _, stage := range []reservation.Stage{reservation.Shadow, reservation.Handover, reservation.Cutover} {
		for _, mine := range []reservation.State{reservation.Rejected, reservation.Released} {
			for _, unjudged := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/unjudged %t", stage, mine, unjudged), func(t *testing.T) {
					t.Parallel()
					b := open(t, stamp(5, reservation.Shadow))
					b.stock(10)
					rec := truthRecord(t, "a", reservation.Held, time.Hour, line(1, 3))
					if mine == reservation.Rejected {
						b.mirror(rejected(rec))
					} else {
						b.mirror(released(rec))
					}
					b.st = stamp(6, stage)
					pin := pinOf(rec)
					pin.Unjudged = unjudged
					want, left := mine, int64(10)
					if mine == reservation.Rejected && stage != reservation.Cutover {
						want, left = reservation.Claimed, 7
					}
					d := b.deduct(pin)
					if d.State != want || d.Replayed || (len(d.Changes) > 0) != (want == reservation.Claimed) ||
						d.Judgement.Decision != reservation.StateConflict || b.state(rec.ID) != want {
						t.Errorf("got %+v; want %s", d, want)
					}
					b.figures(1, left, left)
					b.invariants()
				})
			}
		}
	}
}

// TestI7DeductLeavesTheOtherHolderOfItsKey: while MySQL decides, an id that Redis brings takes no key away from a hold
// that MySQL has answered.
func TestI7DeductLeavesTheOtherHolderOfItsKey(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(10)
	own := b.reserve("k", line(1, 2)).Record
	rec := truthRecord(t, "k", reservation.Held, time.Hour, line(1, 3))
	if d := b.deduct(pinOf(rec)); d.State != reservation.Claimed {
		t.Errorf("got %+v", d)
	}
	if r, err := b.ByKey(t.Context(), shop, "k"); err != nil || r.ID != own.ID || r.State != reservation.Held {
		t.Errorf("the key: %+v, %v", r, err)
	}
	b.figures(1, 5, 7)
	b.invariants()
}

// TestDeductKeepsAMarkedAnswer: what was answered without Redis stays on the record; the claim takes only its steps.
func TestDeductKeepsAMarkedAnswer(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(10)
	own := b.reserve("k", line(1, 2)).Record
	mark(b, own.ID)
	b.st = stamp(6, reservation.Shadow)
	rec := own
	rec.ExpiresAt, rec.Epoch, rec.DecidedBy = rec.ExpiresAt.Add(time.Second), 6, reservation.Redis
	if d := b.deduct(pinOf(rec)); d.State != reservation.Claimed {
		t.Errorf("got %+v", d)
	}
	got, err := b.Get(t.Context(), shop, own.ID)
	if err != nil || !got.Marked || !got.ExpiresAt.Equal(own.ExpiresAt) || got.Epoch != own.Epoch || got.DecidedBy != reservation.MySQL || got.PinnedAt.IsZero() {
		t.Errorf("record: %+v, %v", got, err)
	}
	b.invariants()
}
