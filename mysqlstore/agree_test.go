package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/reservation"
)

var handover = reservation.Stamp{Epoch: 5, Stage: reservation.Handover}

// provisional is a hold that Redis has taken in handover.
func provisional(t testing.TB, key string, ttl time.Duration, lines ...reservation.Line) reservation.Record {
	t.Helper()
	return truthRecord(t, key, reservation.Provisional, ttl, lines...)
}

func (b *bench) agree(rec reservation.Record) reservation.Judgement {
	b.t.Helper()
	j, err := b.Agree(b.t.Context(), b.st, rec)
	if err != nil {
		b.t.Fatalf("agree: %v", err)
	}
	return j
}

func TestAgree(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(10, 2)
	yes := provisional(t, "yes", time.Minute, line(1, 7), line(2, 1))
	judged(t, b.agree(yes), reservation.Granted, reservation.Held, true)
	judged(t, b.agree(yes), reservation.Granted, reservation.Held, false)
	b.figures(1, 3, 10)
	got, err := b.Get(t.Context(), shop, yes.ID)
	want := yes
	want.State = reservation.Held
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("stored as, %v:\n%s", err, diff)
	}

	no := provisional(t, "no", time.Minute, line(1, 4), line(2, 1))
	no.Epoch = 4 // decided afresh in this epoch
	short := []reservation.Shortage{{Item: 1, Group: 1, Requested: 4, Available: 3}}
	j := b.agree(no)
	judged(t, j, reservation.RejectedShort, reservation.Rejected, true)
	if !cmp.Equal(j.Shortages, short) || !cmp.Equal(j.Levels, []reservation.Level{{Bucket: bucket(1), Available: 3}, {Bucket: bucket(2), Available: 1}}) {
		t.Errorf("why not: %+v", j)
	}
	if _, err := b.Release(t.Context(), b.st, shop, yes.ID); err != nil {
		t.Fatal(err)
	}
	j = b.agree(no) // the no stands, whatever has come free since
	judged(t, j, reservation.RejectedShort, reservation.Rejected, false)
	if !cmp.Equal(j.Shortages, short) || len(j.Levels) != 1 {
		t.Errorf("why not, again: %+v", j)
	}
	if got, err := b.Get(t.Context(), shop, no.ID); err != nil || got.Epoch != 5 || got.Outcome != reservation.RejectedShort || got.Key != "no" {
		t.Errorf("the no is stored as %+v, %v", got, err)
	}
	judged(t, b.agree(yes), reservation.Granted, reservation.Released, false)

	judged(t, b.agree(provisional(t, "u", time.Minute, line(99, 1))), reservation.UnknownBucket, 0, false)
	judged(t, b.agree(provisional(t, "late", -time.Second, line(1, 1))), reservation.Granted, reservation.Expired, true)
	judged(t, b.agree(provisional(t, "gone", -2*time.Hour, line(1, 1))), reservation.NotFound, 0, false)
	b.figures(1, 10, 10)
	b.figures(2, 2, 2)

	// Redis has asked its brake already, and does not ask MySQL's.
	if _, err := b.Freeze(t.Context(), reservation.Bucket{}, true, reservation.AuditRecord{}); err != nil {
		t.Fatal(err)
	}
	judged(t, b.agree(provisional(t, "frozen", time.Minute, line(1, 1))), reservation.Granted, reservation.Held, true)
	b.invariants()
}

func TestAgreeElsewhere(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(10)
	rec := provisional(t, "a", time.Minute, line(1, 1))
	var ie *reservation.InvalidError
	for _, st := range reservation.Stages() {
		_, err := b.Agree(t.Context(), stamp(5, st), rec)
		if st != reservation.Handover && !errors.As(err, &ie) {
			t.Errorf("agree in %s: %v", st, err)
		}
	}
	_, err := b.Agree(t.Context(), stamp(4, reservation.Handover), provisional(t, "b", time.Minute, line(1, 1)))
	refused(t, err, reservation.Stale)
	if _, err := b.Mirror(t.Context(), b.st, granted(rec)); !errors.As(err, &ie) {
		t.Errorf("a mirrored provisional hold: %v", err)
	}
	b.invariants()
}

// TestAgreeEndsNoDueHold: in handover Redis's expiry wins, so a hold that is due in MySQL still holds.
func TestAgreeEndsNoDueHold(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(5)
	due := provisional(t, "due", 1500*time.Millisecond, line(1, 5))
	judged(t, b.agree(due), reservation.Granted, reservation.Held, true)
	b.until("it is due", func() bool { return time.Now().After(due.ExpiresAt.Add(20 * time.Millisecond)) })
	judged(t, b.agree(provisional(t, "next", time.Minute, line(1, 1))), reservation.RejectedShort, reservation.Rejected, true)
	if s := b.state(due.ID); s != reservation.Held {
		t.Errorf("the due hold is %s", s)
	}
	b.invariants()
}

// TestAgreeAndTheKey: Redis's id keeps the key; a hold that nobody was promised gives way, an answer stays.
func TestAgreeAndTheKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		other  int64 // units that the one has which has the key
		same   bool  // as an answer to the same request
		before func(b *bench, id reservation.ID)
		want   reservation.Decision
		state  reservation.State // of the other one, afterwards
		left   int64
	}{
		"a hold of nobody's":                    {4, true, nil, reservation.Granted, reservation.Rejected, 1},
		"a hold of nobody's, another request's": {5, false, nil, reservation.Granted, reservation.Rejected, 1},
		"a marked hold":                         {1, true, mark, reservation.Granted, reservation.Held, 0},
		"a marked hold, and too little left":    {4, true, mark, reservation.RejectedShort, reservation.Held, 1},
		"a marked hold, another request's":      {5, false, mark, reservation.KeyConflict, reservation.Held, 0},
		"an end":                                {4, true, release, reservation.Granted, reservation.Released, 1},
		"an end, another request's":             {5, false, release, reservation.KeyConflict, reservation.Released, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, cutover)
			b.stock(5)
			first := b.reserve("k", line(1, c.other))
			if c.before != nil {
				c.before(b, first.Record.ID)
			}
			b.st = stamp(6, reservation.Handover)
			b.whole()
			rec := provisional(t, "k", time.Minute, line(1, 4))
			if c.same {
				rec.Hash = first.Record.Hash
			}
			j := b.agree(rec)
			if j.Decision != c.want || j.Stored != (c.want != reservation.KeyConflict) {
				t.Errorf("got %+v, want %s", j, c.want)
			}
			if s := b.state(first.Record.ID); s != c.state {
				t.Errorf("the other one is %s, want %s", s, c.state)
			}
			keeper := rec.ID
			if c.want == reservation.KeyConflict {
				keeper = first.Record.ID
			}
			if r, err := b.ByKey(t.Context(), shop, "k"); err != nil || r.ID != keeper {
				t.Errorf("the key is %s's (%v)", r.ID, err)
			}
			b.figures(1, c.left, 5)
			b.invariants()
		})
	}
}

func mark(b *bench, id reservation.ID) {
	if err := b.Mark(b.t.Context(), b.st, id); err != nil {
		b.t.Fatal(err)
	}
}

func release(b *bench, id reservation.ID) {
	if _, err := b.Release(b.t.Context(), b.st, shop, id); err != nil {
		b.t.Fatal(err)
	}
}

// TestI1AgreeAtOnce: routers that agree to the same ids, and to different ids for the last units, in two processes.
func TestI1AgreeAtOnce(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(10)
	stores := []*bench{b, b.another()}
	var wg sync.WaitGroup
	var stored, yes atomic.Int64
	for n := range 15 {
		rec := provisional(t, fmt.Sprint("k", n), time.Minute, line(1, 1))
		var first sync.Map
		for r := range 3 {
			wg.Go(func() {
				j, err := stores[r%2].Agree(t.Context(), b.st, rec)
				if err != nil {
					t.Error(err)
					return
				}
				if before, loaded := first.LoadOrStore("answer", j.Decision); loaded && before != j.Decision {
					t.Errorf("%s: %s to one, %s to another", rec.Key, before, j.Decision)
				}
				if j.Stored {
					stored.Add(1)
					if j.Decision == reservation.Granted {
						yes.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if stored.Load() != 15 || yes.Load() != 10 {
		t.Errorf("%d stored, %d granted; want 15, 10", stored.Load(), yes.Load())
	}
	b.figures(1, 0, 10)
	b.invariants()
}

// TestAgreeSameKeyAtOnce: two ids under one key end with one holder of the key, and units taken once.
func TestAgreeSameKeyAtOnce(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(100)
	for n := range 10 {
		key := fmt.Sprint("k", n)
		var wg sync.WaitGroup
		recs := make([]reservation.Record, 4)
		for r := range recs {
			recs[r] = provisional(t, key, time.Minute, line(1, 2))
			wg.Go(func() {
				if j, err := b.Agree(t.Context(), b.st, recs[r]); err != nil || j.Decision != reservation.Granted {
					t.Errorf("%+v, %v", j, err)
				}
			})
		}
		wg.Wait()
		held := 0
		for _, rec := range recs {
			switch got, err := b.Get(t.Context(), shop, rec.ID); {
			case err != nil:
				t.Error(err)
			case got.State == reservation.Held && got.Key == key:
				held++
			case got.State != reservation.Rejected || got.Key != "":
				t.Errorf("%+v", got)
			}
		}
		if held != 1 {
			t.Errorf("%d hold the key", held)
		}
	}
	b.figures(1, 80, 100)
	b.invariants()
}

// Until MySQL is known to hold back nothing that Redis has ended, too few units in it are no "sold out": what Redis has
// given back may not have come here yet.
func TestAgreeBeforeMySQLIsWhole(t *testing.T) {
	t.Parallel()
	b := open(t, stamp(5, reservation.Shadow))
	b.stock(3)
	held := b.reserve("held", line(1, 2))
	b.st = stamp(6, reservation.Handover)
	rec := provisional(t, "a", time.Minute, line(1, 2))
	soon := func() (reservation.Judgement, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		return b.Agree(ctx, b.st, rec)
	}
	if j, err := soon(); !errors.Is(err, reservation.ErrBusy) {
		t.Fatalf("too few before it is whole: %+v, %v", j, err)
	}
	for _, st := range []reservation.Stamp{stamp(5, reservation.Handover), stamp(7, reservation.Handover), stamp(6, reservation.Cutover)} {
		if err := b.Whole(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		if j, err := soon(); !errors.Is(err, reservation.ErrBusy) {
			t.Fatalf("whole in %v is not whole in %v: %+v, %v", st, b.st, j, err)
		}
	}
	asked := make(chan reservation.Judgement, 1)
	go func() { asked <- b.agree(rec) }()
	released := held.Record
	released.State, released.ReleasedAt = reservation.Released, released.CreatedAt.Add(time.Second)
	if _, err := b.Mirror(t.Context(), b.st, reservation.OpTo(released)); err != nil {
		t.Fatal(err)
	}
	judged(t, <-asked, reservation.Granted, reservation.Held, true)

	more := provisional(t, "b", time.Minute, line(1, 3))
	b.whole()
	judged(t, b.agree(more), reservation.RejectedShort, reservation.Rejected, true)
	b.st = stamp(8, reservation.Handover)
	more = provisional(t, "c", time.Minute, line(1, 3))
	rec = more
	if j, err := soon(); !errors.Is(err, reservation.ErrBusy) {
		t.Fatalf("whole in one handover is not whole in the next: %+v, %v", j, err)
	}
}

func TestAgreeBusy(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(3)
	judged(t, b.agree(provisional(t, "fills the pool", time.Minute, line(1, 1))), reservation.Granted, reservation.Held, true)
	letGo := grip(t, b, "SELECT id FROM reservation_units WHERE shop_id = 7 AND inventory_item_id = 1 FOR UPDATE")
	defer letGo()
	rec := provisional(t, "a", time.Minute, line(1, 2))
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	if j, err := b.Agree(ctx, b.st, rec); !errors.Is(err, reservation.ErrBusy) {
		t.Fatalf("units that somebody holds for the moment: %+v, %v", j, err)
	}
	letGo()
	judged(t, b.agree(rec), reservation.Granted, reservation.Held, true)
	b.invariants()
}

func TestAgreeLosesTheWordOfItsCommit(t *testing.T) {
	t.Parallel()
	for name, arm := range commitLoss() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, handover)
			b.stock(5)
			far, p := b.behind(t)
			judged(t, b.agree(provisional(t, "fills the pool", time.Minute, line(1, 1))), reservation.Granted, reservation.Held, true)
			for _, c := range []struct {
				q    int64
				want reservation.Decision
				end  reservation.State
			}{{2, reservation.Granted, reservation.Held}, {3, reservation.RejectedShort, reservation.Rejected}} {
				rec := provisional(t, fmt.Sprint("k", c.q), time.Minute, line(1, c.q))
				f := arm(p)
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				j, err := far.Agree(ctx, b.st, rec)
				cancel()
				if err != nil || f.Fired() != 1 {
					t.Fatalf("%v, fired %d", err, f.Fired())
				}
				judged(t, j, c.want, c.end, true)
				f.Remove()
			}
			b.figures(1, 2, 5)
			b.invariants()
		})
	}
}

// TestAgreeUnknown: the word of COMMIT stays out until the deadline: the outcome is unknown, never a no; asked again,
// it is what was committed.
func TestAgreeUnknown(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(5)
	far, p := b.behind(t)
	judged(t, b.agree(provisional(t, "fills the pool", time.Minute, line(1, 1))), reservation.Granted, reservation.Held, true)
	rec := provisional(t, "a", time.Minute, line(1, 2))
	f := p.Swallow(everyCommit())
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	began := time.Now()
	j, err := far.Agree(ctx, b.st, rec)
	var uo *reservation.UnknownOutcomeError
	if !errors.As(err, &uo) && (err != nil || j.Decision != reservation.Granted) || time.Since(began) > 4*time.Second || f.Fired() == 0 {
		t.Errorf("%+v, %v after %v", j, err, time.Since(began))
	}
	f.Remove()
	judged(t, b.agree(rec), reservation.Granted, reservation.Held, false)
	b.figures(1, 2, 5)
	b.invariants()
}

// TestAgreeLargeCart: more units than the pool has rows.
func TestAgreeLargeCart(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	b.stock(100_000)
	judged(t, b.agree(provisional(t, "a", time.Minute, line(1, 74_215))), reservation.Granted, reservation.Held, true)
	judged(t, b.agree(provisional(t, "b", time.Minute, line(1, 30_000))), reservation.RejectedShort, reservation.Rejected, true)
	b.figures(1, 25_785, 100_000)
	b.invariants()
}
