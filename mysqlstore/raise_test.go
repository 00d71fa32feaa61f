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

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

func stamp(epoch uint64, stage reservation.Stage) reservation.Stamp {
	return reservation.Stamp{Epoch: epoch, Stage: stage}
}

func (b *bench) fence() reservation.Fence {
	b.t.Helper()
	f, err := b.ReadFence(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

func refused(t testing.TB, err error, verdict reservation.FenceVerdict) {
	t.Helper()
	var fe *reservation.FenceError
	if !errors.As(err, &fe) || fe.Verdict != verdict || fe.Store != reservation.MySQL {
		t.Errorf("got %v; want %s", err, verdict)
	}
}

// TestFenceRisesWithTheWrite: every write of a newer epoch raises the fence first, and is carried out.
func TestFenceRisesWithTheWrite(t *testing.T) {
	t.Parallel()
	b := open(t, stamp(5, reservation.Cutover))
	b.stock(50)
	ctx := t.Context()
	held := func() reservation.ID { return b.reserve(newID(t).String(), line(1, 1)).Record.ID }
	writes := map[string]func(st reservation.Stamp) error{
		"reserve": func(st reservation.Stamp) error {
			_, err := b.Reserve(ctx, st, newID(t), request(t, newID(t).String(), time.Minute, line(1, 1)))
			return err
		},
		"claim": func(st reservation.Stamp) error { _, err := b.Claim(ctx, st, shop, held()); return err },
		"release": func(st reservation.Stamp) error {
			_, err := b.Release(ctx, st, shop, held())
			return err
		},
		"adjust": func(st reservation.Stamp) error {
			_, err := b.Adjust(ctx, st, reservation.Adjustment{ID: newID(t).String(), Bucket: bucket(1), Delta: 1})
			return err
		},
		"mirror": func(st reservation.Stamp) error {
			_, err := b.Mirror(ctx, st, granted(truthRecord(t, newID(t).String(), reservation.Held, time.Minute, line(1, 1))))
			return err
		},
		"deduct": func(st reservation.Stamp) error {
			_, err := b.Deduct(ctx, st, pinOf(truthRecord(t, newID(t).String(), reservation.Held, time.Minute, line(1, 1))))
			return err
		},
		"mark":   func(st reservation.Stamp) error { return b.Mark(ctx, st, held()) },
		"unmark": func(st reservation.Stamp) error { _, err := b.Unmark(ctx, st, held(), reservation.Held); return err },
		"sweep":  func(st reservation.Stamp) error { _, err := b.Sweep(ctx, st, 10); return err },
		"stock": func(st reservation.Stamp) error {
			_, _, err := b.Stock(ctx, st, []reservation.Stocking{{Bucket: bucket(int64(st.Epoch) * 100), Quantity: 1}})
			return err
		},
	}
	for name, write := range writes {
		next := stamp(b.st.Epoch+1, reservation.Cutover)
		if err := write(next); err != nil {
			t.Errorf("%s of a newer epoch: %v", name, err)
		}
		if f := b.fence(); f.Stamp != next {
			t.Errorf("%s of epoch %d leaves the fence at %+v", name, next.Epoch, f.Stamp)
		}
		old := b.st
		b.st = next
		refused(t, write(old), reservation.Stale)
		refused(t, write(stamp(next.Epoch, reservation.Complete)), reservation.Regressed)
	}
	b.invariants()
}

// TestI8RaiseEndsTheOldEpoch: once Raise has returned, nobody writes with the old epoch any more, in any process.
func TestI8RaiseEndsTheOldEpoch(t *testing.T) {
	t.Parallel()
	b := open(t, stamp(5, reservation.Cutover))
	b.stock(100_000)
	const rounds, writers = 5, 8
	stores := []*bench{b, b.another(), b.another()}
	for round := range uint64(rounds) {
		old, next := stamp(5+round, reservation.Cutover), stamp(6+round, reservation.Cutover)
		var wg sync.WaitGroup
		var wrote atomic.Int64
		for w := range writers {
			wg.Go(func() {
				for n := 0; ; n++ {
					key := fmt.Sprintf("r%d w%d n%d", round, w, n)
					_, err := stores[w%len(stores)].Reserve(t.Context(), old, newID(t), request(t, key, time.Hour, line(1, 1)))
					if err != nil {
						refused(t, err, reservation.Stale)
						return
					}
					wrote.Add(1)
				}
			})
		}
		b.until("everybody writes", func() bool { return wrote.Load() > 2*writers })
		f, err := b.Raise(t.Context(), next, nil)
		if err != nil || f.Stamp != next {
			t.Fatalf("raise: %+v, %v", f, err)
		}
		then := b.countOf(old.Epoch)
		wg.Wait()
		if now := b.countOf(old.Epoch); now != then || now != wrote.Load() {
			t.Errorf("round %d: %d records of the old epoch when the fence was up, %d afterwards, %d answered", round, then, now, wrote.Load())
		}
	}
	b.invariants()
}

func (b *bench) countOf(epoch uint64) (n int64) {
	b.t.Helper()
	if err := b.DB().QueryRowContext(b.t.Context(), "SELECT COUNT(*) FROM reservations WHERE epoch = ?", epoch).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// paused is a store whose first write stops at a step until it is let go. Its statements travel one by one.
func (b *bench) paused(step string) (far *bench, reached <-chan struct{}, letGo func()) {
	at, gate := make(chan struct{}), make(chan struct{})
	var once, open sync.Once
	far = b.another(func(o *mysqlstore.Options) {
		o.WriteTimeout, o.NoMultiStatements = 20*time.Second, true
		o.Failpoint = func(s string) {
			if s == step {
				once.Do(func() {
					close(at)
					<-gate
				})
			}
		}
	})
	letGo = func() { open.Do(func() { close(gate) }) }
	b.t.Cleanup(letGo)
	return far, at, letGo
}

// TestRaiseWaitsForTheOldest: it waits for the transaction that has read the old fence, no longer than its caller's
// deadline; a write that was under way when it began has been committed when it returns.
func TestRaiseWaitsForTheOldest(t *testing.T) {
	t.Parallel()
	b := open(t, stamp(5, reservation.Cutover))
	b.stock(10)
	b.reserve("fills the pool", line(1, 1))
	far, reached, letGo := b.paused("reserve.units")
	old, next := b.st, stamp(6, reservation.Shadow)
	wrote := make(chan error, 1)
	go func() {
		_, err := far.Reserve(t.Context(), old, newID(t), request(t, "a", time.Hour, line(1, 2)))
		wrote <- err
	}()
	<-reached

	short, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	began := time.Now()
	var ue *reservation.UnavailableError
	if _, err := b.Raise(short, next, nil); !errors.As(err, &ue) || time.Since(began) > 3*time.Second {
		t.Errorf("a raise that cannot wait: %v after %v", err, time.Since(began))
	}
	if f := b.fence(); f.Stamp != old {
		t.Errorf("it left the fence at %+v", f.Stamp)
	}

	raised := make(chan error, 1)
	go func() {
		_, err := b.Raise(t.Context(), next, nil)
		raised <- err
	}()
	b.until("the raise waits for the fence's row", func() bool {
		var n int
		err := b.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM performance_schema.data_locks
WHERE OBJECT_SCHEMA = DATABASE() AND OBJECT_NAME = 'pod_fence' AND LOCK_STATUS = 'WAITING'`).Scan(&n)
		return err == nil && n > 0
	})
	select {
	case err := <-raised:
		t.Fatalf("the raise did not wait: %v", err)
	default:
	}
	letGo()
	if err := <-raised; err != nil {
		t.Fatal(err)
	}
	if n := b.countOf(old.Epoch); n != 2 {
		t.Errorf("%d records of the old epoch are there when the raise returns; want 2", n)
	}
	if err := <-wrote; err != nil {
		t.Errorf("the write that was under way: %v", err)
	}
	_, err := b.Reserve(t.Context(), old, newID(t), request(t, "b", time.Hour, line(1, 1)))
	refused(t, err, reservation.Stale)
	b.invariants()
}

// TestRaiseFromManySides: processes that raise to different epochs, through Raise and through their writes, leave the
// fence at the highest, and never lower it on the way.
func TestRaiseFromManySides(t *testing.T) {
	t.Parallel()
	b := open(t, stamp(5, reservation.Shadow))
	b.stock(1000)
	stop := make(chan struct{})
	var watch, wg sync.WaitGroup
	watch.Go(func() {
		last := uint64(0)
		for {
			select {
			case <-stop:
				return
			default:
			}
			f := b.fence()
			if f.Epoch < last {
				t.Errorf("the fence fell from %d to %d", last, f.Epoch)
			}
			last = f.Epoch
		}
	})
	stages := []reservation.Stage{reservation.Shadow, reservation.Handover, reservation.Cutover}
	const top = 40
	for p := range 3 {
		s := b.another()
		for e := uint64(6); e <= top; e++ {
			st := stamp(e, stages[e%3])
			wg.Go(func() {
				if f, err := s.Raise(t.Context(), st, nil); err != nil || f.Epoch < st.Epoch {
					t.Errorf("raise to %d: %+v, %v", st.Epoch, f.Stamp, err)
				}
			})
			wg.Go(func() {
				rec := truthRecord(t, fmt.Sprintf("p%d e%d", p, e), reservation.Held, time.Minute, line(1, 1))
				if _, err := s.Mirror(t.Context(), st, granted(rec)); err != nil {
					refused(t, err, reservation.Stale)
				}
			})
		}
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	if f := b.fence(); f.Stamp != stamp(top, stages[top%3]) {
		t.Errorf("the fence ends at %+v", f.Stamp)
	}
	b.invariants()
}

func TestRaiseIsOnRecordOnce(t *testing.T) {
	t.Parallel()
	for name, arm := range commitLoss() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, stamp(5, reservation.Shadow))
			far, p := b.behind(t)
			a := reservation.AuditRecord{Action: reservation.ActionFlip, By: "ann", Reason: "wave 1", Ticket: "T-1", Waived: []string{"drill"}}
			f := arm(p)
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			fence, err := far.Raise(ctx, stamp(6, reservation.Handover), &a)
			if err != nil || fence.Stamp != stamp(6, reservation.Handover) || f.Fired() != 1 {
				t.Fatalf("raise: %+v, %v, fired %d", fence, err, f.Fired())
			}
			f.Remove()
			if _, err := b.Raise(ctx, stamp(6, reservation.Handover), &a); err != nil {
				t.Error(err)
			}
			if f, err := b.Raise(ctx, stamp(4, reservation.Cutover), &a); err != nil || f.Epoch != 6 {
				t.Errorf("an older epoch: %+v, %v", f, err)
			}
			// Somebody raises it without a record, and the person's record comes after.
			if _, err := b.Raise(ctx, stamp(7, reservation.Cutover), nil); err != nil {
				t.Error(err)
			}
			b2 := a
			b2.Before = stamp(6, reservation.Handover)
			if _, err := b.Raise(ctx, stamp(7, reservation.Cutover), &b2); err != nil {
				t.Error(err)
			}
			recs, err := b.Audit(ctx)
			if err != nil || len(recs) != 2 {
				t.Fatalf("audit: %+v, %v", recs, err)
			}
			for n, rec := range recs {
				if age := time.Since(rec.At); age > time.Minute || age < -time.Minute {
					t.Errorf("record %d is of %v", n, rec.At)
				}
				want := a
				want.At, want.Pod, want.Store = rec.At, "pod-1", "mysql"
				want.Before, want.After = stamp(5+uint64(n), reservation.Shadow+reservation.Stage(n)), stamp(6+uint64(n), reservation.Handover+reservation.Stage(n))
				if diff := cmp.Diff(want, rec); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestRaiseWithoutAFence(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	if err := setFence(t.Context(), b.DB(), b.opts.Pod, reservation.Fence{}); err != nil {
		t.Fatal(err)
	}
	_, err := b.Raise(t.Context(), stamp(6, reservation.Shadow), nil)
	refused(t, err, reservation.NoFence)
	_, err = b.Freeze(t.Context(), reservation.Bucket{}, true, reservation.AuditRecord{})
	refused(t, err, reservation.NoFence)
	var ie *reservation.InvalidError
	if _, err := b.Raise(t.Context(), stamp(6, 0), nil); !errors.As(err, &ie) {
		t.Errorf("a stamp without a stage: %v", err)
	}
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(10, 10, 10)
	ctx := t.Context()
	first := b.reserve("a", line(1, 1), line(2, 1))
	other := b.reserve("b", line(2, 1))
	freeze := func(bk reservation.Bucket, on bool, reason string) reservation.Fence {
		t.Helper()
		f, err := b.Freeze(ctx, bk, on, reservation.AuditRecord{Action: map[bool]string{true: reservation.ActionFreeze, false: reservation.ActionUnfreeze}[on], By: "ann", Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.fence(); !cmp.Equal(got, f) {
			t.Errorf("freeze tells %+v, the fence is %+v", f, got)
		}
		return f
	}
	try := func(want error, lines ...reservation.Line) {
		t.Helper()
		if _, err := b.Reserve(ctx, b.st, newID(t), request(t, newID(t).String(), time.Minute, lines...)); !errors.Is(err, want) {
			t.Errorf("reserve of %v: %v; want %v", lines, err, want)
		}
	}
	freeze(bucket(3), true, "one")
	f := freeze(bucket(1), true, "two")
	if want := []reservation.Bucket{bucket(1), bucket(3)}; f.Frozen || !cmp.Equal(f.FrozenBuckets, want) {
		t.Errorf("frozen: %+v", f)
	}
	freeze(bucket(1), true, "again, which changes nothing")
	try(reservation.ErrFrozen, line(1, 1))
	try(reservation.ErrFrozen, line(2, 1), line(3, 1))
	try(nil, line(2, 1))
	if res := b.reserve("a", line(1, 1), line(2, 1)); !res.Replayed || res.Record.ID != first.Record.ID {
		t.Errorf("a replay in a frozen bucket: %+v", res)
	}
	freeze(reservation.Bucket{}, true, "three")
	try(reservation.ErrFrozen, line(2, 1))
	if _, err := b.Claim(ctx, b.st, shop, first.Record.ID); err != nil {
		t.Errorf("claim while frozen: %v", err)
	}
	if _, err := b.Release(ctx, b.st, shop, other.Record.ID); err != nil {
		t.Errorf("release while frozen: %v", err)
	}
	freeze(reservation.Bucket{}, false, "four")
	freeze(bucket(1), false, "five")
	try(nil, line(1, 1))
	try(reservation.ErrFrozen, line(3, 1))
	// A raise leaves the brakes as they are.
	if _, err := b.Raise(ctx, stamp(6, reservation.Complete), nil); err != nil {
		t.Fatal(err)
	}
	b.st = stamp(6, reservation.Complete)
	try(reservation.ErrFrozen, line(3, 1))

	recs, err := b.Audit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, r := range recs {
		told = append(told, fmt.Sprintf("%s %s %q by %s at %d", r.Action, r.Reason, r.Detail, r.By, r.After.Epoch))
	}
	if diff := cmp.Diff([]string{
		`freeze one "bucket 7:3:1" by ann at 5`, `freeze two "bucket 7:1:1" by ann at 5`, `freeze three "" by ann at 5`,
		`unfreeze four "" by ann at 5`, `unfreeze five "bucket 7:1:1" by ann at 5`,
	}, told); diff != "" {
		t.Error(diff)
	}
	b.invariants()
}
