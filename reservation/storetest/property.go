package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/memstore"
)

// propertyCases are run under each policy, in parallel.
func propertyCases(late reservation.LatePolicy) []testCase {
	return []testCase{{name: "random_operations_against_the_model", late: late, run: againstModel}}
}

// opsPerCheck times rapid's 100 checks, under each of the two policies, makes the 10,000 operations.
const opsPerCheck = 50

// againstModel carries the same random operations out on the store and on memstore, compares every answer and all
// figures, and computes the invariants from the store's own tables at the end.
func againstModel(e *env) {
	var checks, ops atomic.Int64
	rapid.Check(e.t, func(rt *rapid.T) {
		at := *e
		at.reporter, at.keys = rt, new(atomic.Int64)
		at.shop += checks.Add(1)
		m := newModelled(&at)
		for range rounds(opsPerCheck, 4*opsPerCheck) {
			m.step(rt)
			ops.Add(1)
		}
		at.invariants()
	})
	e.Logf("%d operations in %d checks", ops.Load(), checks.Load())
}

// modelled is the store and its model side by side.
type modelled struct {
	*env
	model *memstore.Store
	clock *modelClock
	ids   []reservation.ID
	shops [2]int64 // the shop, and one that has nothing
	items int64
}

// modelClock stands still but for the steps in which the case waits for the store's clock to pass.
type modelClock struct{ now time.Time }

func newModelled(e *env) *modelled {
	clock := &modelClock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	model, err := memstore.New(memstore.Options{
		Clock: func() time.Time { return clock.now }, Truth: e.h.Truth, Late: e.cfg.Late, Retention: e.cfg.Retention,
	})
	if err != nil {
		e.Fatalf("%v", err)
	}
	ctx, cancel := e.ctx()
	defer cancel()
	if _, err := model.InitFence(ctx, e.h.Stamp); err != nil {
		e.Fatalf("%v", err)
	}
	m := &modelled{env: e, model: model, clock: clock, shops: [2]int64{e.shop, e.shop + shopStride/2}, items: 4}
	var stock []reservation.Stocking
	for item := int64(1); item <= m.items; item++ {
		stock = append(stock, reservation.Stocking{Bucket: e.bucket(item), Quantity: []int64{0, 3, 8, 20}[item-1]})
	}
	e.stockAll(stock)
	if _, _, err := model.Stock(ctx, e.h.Stamp, stock); err != nil {
		e.Fatalf("%v", err)
	}
	return m
}

// answer is what one operation came to, in either store, without what may differ between them (times, texts).
type answer struct {
	Decision   reservation.Decision
	ID         reservation.ID
	Outcome    reservation.Decision
	State      reservation.State
	Late       bool
	Replayed   bool
	WasExpired bool
	Forced     bool
	Key        string
	Lines      []reservation.Line
	Shortages  []reservation.Shortage
	OnHand     int64
}

func fromRecord(rec reservation.Record) answer {
	for i, s := range rec.Shortages {
		rec.Shortages[i].Available = max(0, s.Available) // below zero, after force, is nothing available too
	}
	return answer{
		ID: rec.ID, Outcome: rec.Outcome, State: rec.State, Late: rec.Late, Key: rec.Key,
		Lines: rec.Lines, Shortages: rec.Shortages,
	}
}

// refused makes an answer of an error. An error that is no decision stays itself.
func refused(err error) (answer, error) {
	d := reservation.DecisionOf(err)
	if d == reservation.Undecided {
		return answer{}, err
	}
	a := answer{Decision: d}
	var conflict *reservation.ConflictError
	if errors.As(err, &conflict) {
		a.State = conflict.State
	}
	return a, nil
}

// both runs an operation on both stores and wants the same answer.
func (m *modelled) both(what string, op func(s reservation.Store) (answer, error)) answer {
	m.Helper()
	want, err := op(m.model)
	if err != nil {
		m.Fatalf("%s: the model answered %v", what, err)
	}
	got, err := retried(m.env, func() (answer, error) { return op(m.h.Store) })
	if err != nil {
		m.Fatalf("%s: the store answered %v; want %+v", what, err, want)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		m.Fatalf("%s: the store differs from the model (-model +store):\n%s", what, diff)
	}
	return got
}

func (m *modelled) reserveBoth(key string, ttl time.Duration, lines []reservation.Line) answer {
	m.Helper()
	m.settle() // a replay of a claimed one says claiming until its claim is finished
	req, id := m.request(m.shop, key, ttl, lines...), m.id()
	got := m.both(fmt.Sprintf("reserve %q of %v", key, req.Lines), func(s reservation.Store) (answer, error) {
		ctx, cancel := m.ctx()
		defer cancel()
		res, err := s.Reserve(ctx, m.h.Stamp, id, req)
		if err != nil {
			return refused(err)
		}
		a := fromRecord(res.Record)
		a.Replayed = res.Replayed
		return a, nil
	})
	if got.Decision == 0 && !got.Replayed {
		m.ids = append(m.ids, got.ID)
	}
	return got
}

func (m *modelled) claimBoth(shop int64, id reservation.ID) {
	m.Helper()
	m.both("claim "+id.String(), func(s reservation.Store) (answer, error) {
		ctx, cancel := m.ctx()
		defer cancel()
		res, err := s.Claim(ctx, m.h.Stamp, shop, id)
		if err != nil {
			return refused(err)
		}
		return answer{ID: res.Record.ID, State: res.Record.State, Late: res.Late, Replayed: res.Replayed, Lines: res.Record.Lines}, nil
	})
}

func (m *modelled) releaseBoth(shop int64, id reservation.ID) {
	m.Helper()
	m.settle() // a release that meets a pin is busy
	m.both("release "+id.String(), func(s reservation.Store) (answer, error) {
		ctx, cancel := m.ctx()
		defer cancel()
		res, err := s.Release(ctx, m.h.Stamp, shop, id)
		if err != nil {
			return refused(err)
		}
		a := answer{ID: res.Record.ID, State: res.Record.State, Replayed: res.Replayed}
		a.WasExpired = res.WasExpired && !res.Replayed
		return a, nil
	})
}

func (m *modelled) adjustBoth(adj reservation.Adjustment) {
	m.Helper()
	m.both(fmt.Sprintf("adjust %+v", adj), func(s reservation.Store) (answer, error) {
		ctx, cancel := m.ctx()
		defer cancel()
		res, err := s.Adjust(ctx, m.h.Stamp, adj)
		if err != nil {
			return refused(err)
		}
		a := answer{Replayed: res.Replayed}
		if !res.Replayed {
			a.Forced, a.OnHand = res.Forced, res.Figures.OnHand
		}
		return a, nil
	})
}

func (m *modelled) getBoth(shop int64, id reservation.ID) {
	m.Helper()
	m.settle()
	m.both("get "+id.String(), func(s reservation.Store) (answer, error) {
		ctx, cancel := m.ctx()
		defer cancel()
		rec, err := s.Get(ctx, shop, id)
		if err != nil {
			return refused(err)
		}
		return fromRecord(rec), nil
	})
}

// sameFigures compares all buckets.
func (m *modelled) sameFigures() {
	m.Helper()
	m.settle()
	ctx, cancel := m.ctx()
	defer cancel()
	for item := int64(1); item <= m.items; item++ {
		want, err := m.model.Availability(ctx, m.bucket(item))
		if err != nil {
			m.Fatalf("the model: %v", err)
		}
		got := m.availability(item)
		if got.Available != want.Available || got.Held != want.Held || got.OnHand != want.OnHand {
			m.Fatalf("bucket %s: the store has %d available, %d held, %d on hand; the model %d, %d, %d",
				want.Bucket, got.Available, got.Held, got.OnHand, want.Available, want.Held, want.OnHand)
		}
	}
}

// sweepBoth sweeps both stores and wants the same holds expired, of this case's shop.
func (m *modelled) sweepBoth() {
	m.Helper()
	ctx, cancel := m.ctx()
	defer cancel()
	res, err := m.model.Sweep(ctx, m.h.Stamp, 100)
	if err != nil {
		m.Fatalf("the model: %v", err)
	}
	want := make(map[reservation.ID]bool)
	for _, rec := range res.Expired {
		want[rec.ID] = true
	}
	for _, rec := range m.sweep() {
		if rec.Shop == m.shop && !want[rec.ID] {
			m.Fatalf("the store expired %s, the model did not", rec.ID)
		}
		delete(want, rec.ID)
	}
	if len(want) > 0 {
		m.Fatalf("the model expired %v, the store did not", want)
	}
}
