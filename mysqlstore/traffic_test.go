package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestTrafficAcrossEpochs (I2, I3, I6): cut and connected routers reserve, claim, release, agree, mirror and mark; a
// drain takes the marks away; a sweeper sweeps; the fence moves through the stages. No error but a fence's reaches a
// caller, and the tables add up.
func TestTrafficAcrossEpochs(t *testing.T) {
	t.Parallel()
	b := open(t, cutover, func(o *mysqlstore.Options) { o.PoolSize, o.MaxOpenConns = 50, 30 })
	b.stock(300, 300, 300)
	limit := 4 * time.Second
	if devtest.Soak() {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	w := &traffic{b: b, stores: []*bench{b, b.another()}}
	w.stamp.Store(&b.st)
	var callers, wg sync.WaitGroup
	for n := range 16 {
		callers.Go(func() {
			for ctx.Err() == nil {
				w.told(t, w.one(t.Context(), t, w.stores[n%2]))
			}
		})
	}
	told, allTold := context.WithCancel(t.Context())
	defer allTold()
	loop := func(ctx context.Context, upkeep func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				w.told(t, upkeep())
			}
		})
	}
	loop(ctx, w.sweep)
	loop(ctx, w.move)
	loop(told, w.drain) // callers of a handover wait for it
	callers.Wait()
	allTold()
	wg.Wait()
	t.Logf("%d operations, %d refused by the fence, %d marks drained, epoch %d", w.ops.Load(), w.fenced.Load(), w.drained.Load(), b.fence().Epoch)
	if w.drained.Load() == 0 || w.fenced.Load() == 0 {
		t.Error("nothing was drained, or nothing fenced: this shows nothing")
	}
	b.st = b.fence().Stamp
	b.invariants()
}

type traffic struct {
	b      *bench
	stores []*bench
	stamp  atomic.Pointer[reservation.Stamp]

	keys, ops, fenced, drained atomic.Int64
}

// told sorts what a caller may be told.
func (w *traffic) told(t *testing.T, err error) {
	t.Helper()
	var fe *reservation.FenceError
	var ce *reservation.ConflictError
	var ie *reservation.InvalidError
	switch {
	case err == nil:
		w.ops.Add(1)
	case errors.As(err, &fe) && fe.Verdict == reservation.Stale:
		w.fenced.Add(1)
	case errors.As(err, &ce), errors.As(err, &ie): // of a stage that has just gone by
	default:
		t.Error(err)
	}
}

func (w *traffic) one(ctx context.Context, t *testing.T, s *bench) error {
	st := *w.stamp.Load()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	lines := []reservation.Line{line(1, 2), line(2, 1), line(3, 1)}[:1+rand.IntN(3)]
	key := fmt.Sprint("k", w.keys.Add(1))
	ttl := []time.Duration{time.Minute, 5 * time.Millisecond}[rand.IntN(2)]
	if st.Stage != reservation.Cutover {
		rec := provisional(t, key, time.Minute, lines...)
		_, err := s.Agree(ctx, st, rec)
		if err != nil || rand.IntN(2) == 0 {
			return err
		}
		rec.State = reservation.Held
		if rand.IntN(4) == 0 {
			_, err = s.Deduct(ctx, st, pinOf(rec))
			return err
		}
		_, err = s.Mirror(ctx, st, released(rec))
		return err
	}
	store := reservation.Store(s)
	if rand.IntN(2) == 0 {
		store = s.Cut()
	}
	id := newID(t)
	res, err := store.Reserve(ctx, st, id, request(t, key, ttl, lines...))
	if err != nil {
		return err
	}
	if rand.IntN(3) == 0 {
		if err := s.Mark(ctx, st, id); err != nil {
			return err
		}
	}
	if res.Record.Outcome != reservation.Granted {
		return nil
	}
	if rand.IntN(8) == 0 {
		_, err = store.Claim(ctx, st, shop, id)
	} else {
		_, err = store.Release(ctx, st, shop, id)
	}
	return err
}

// drain is a round of catch-up: it takes marks away, and in handover "too few" counts from then on.
func (w *traffic) drain() error {
	st, ctx := *w.stamp.Load(), w.b.t.Context()
	if err := w.b.Whole(ctx, st); err != nil {
		return err
	}
	page, err := w.b.Marked(ctx, reservation.ID{}, 50)
	if err != nil {
		return err
	}
	for _, r := range page {
		did, err := w.b.Unmark(ctx, st, r.ID, r.State)
		if err != nil {
			return err
		}
		if did {
			w.drained.Add(1)
		}
	}
	_, _, err = w.b.MarksDebt(ctx)
	return err
}

func (w *traffic) sweep() error {
	_, err := w.b.Sweep(w.b.t.Context(), *w.stamp.Load(), 100)
	return err
}

// move goes to the next stage, by a raise or by leaving it to the next write; after a moment in which traffic flows.
func (w *traffic) move() error {
	from, began := w.ops.Load(), time.Now()
	for w.ops.Load() < from+100 && time.Since(began) < time.Second {
		if _, err := w.b.ReadFence(w.b.t.Context()); err != nil {
			return err
		}
	}
	old := *w.stamp.Load()
	stages := []reservation.Stage{reservation.Cutover, reservation.Shadow, reservation.Handover}
	next := stamp(old.Epoch+1, stages[(old.Epoch+1-5)%3])
	if next.Stage == reservation.Shadow { // nobody writes here as shadow: straight on
		next = stamp(old.Epoch+2, reservation.Handover)
	}
	if rand.IntN(2) == 0 {
		if _, err := w.stores[1].Raise(w.b.t.Context(), next, nil); err != nil {
			return err
		}
	}
	w.stamp.Store(&next)
	return nil
}
