package storetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

func crowdCases() []testCase {
	return []testCase{
		{name: "50_buyers_for_10_units", run: fiftyForTen},
		{name: "opposite_order_50_callers", run: oppositeOrder},
		{name: "storm_of_everything", run: func(e *env) { storm(e) }},
		{name: "storm_of_everything_refuse", late: reservation.RefuseLate, run: func(e *env) { storm(e) }},
	}
}

// fiftyForTen: exactly the ten that are there are granted, and every one of them.
func fiftyForTen(e *env) {
	e.stock(10)
	const buyers = 50
	keys := make([]string, buyers)
	for i := range keys {
		keys[i] = e.key()
	}
	results := make([]reservation.Result, buyers)
	errs := make([]error, buyers)
	together(many(buyers, func(i int) { results[i], errs[i] = e.try(keys[i], line(1, 1)) })...)
	granted := 0
	for i, res := range results {
		if errs[i] != nil {
			e.Fatalf("reserve: %v", errs[i])
		}
		if res.Record.Outcome == reservation.Granted {
			granted++
		}
	}
	if granted != 10 {
		e.Fatalf("%d of 50 buyers were granted one of 10 units", granted)
	}
	e.figures(1, 0, 10, 10)
}

// oppositeOrder: two carts want the same buckets in opposite order, from 50 callers. No error reaches a caller, and
// nothing is left behind.
func oppositeOrder(e *env) {
	e.stock(1000, 1000, 1000)
	const callers = 50
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Duration(rounds(3, 20))*time.Second)
	defer cancel()
	var done atomic.Int64
	together(many(callers, func(i int) {
		lines := []reservation.Line{line(1, 2), line(2, 3), line(3, 1)}
		if i%2 == 1 {
			lines = []reservation.Line{line(3, 1), line(2, 3), line(1, 2)}
		}
		for n := 0; ctx.Err() == nil && done.Add(1) <= crowdLimit(); n++ {
			if !e.oneRound(lines, n%4 == 0) {
				return
			}
		}
	})...)
	e.Logf("%d rounds of reserve and release or claim by %d callers", done.Load(), callers)
	e.settle()
	for item := int64(1); item <= 3; item++ {
		if a := e.availability(item); a.Held != 0 || a.Available != a.OnHand {
			e.Fatalf("all is released or claimed, but bucket %s has %d available, %d held, %d on hand", a.Bucket, a.Available, a.Held, a.OnHand)
		}
	}
}

// crowdLimit bounds the operations of a crowd, for a store that is faster than the reading of its records afterwards.
func crowdLimit() int64 { return int64(rounds(10_000, 100_000)) }

// oneRound reserves and ends the hold; a rejection, once claims have used the stock up, is no error.
func (e *env) oneRound(lines []reservation.Line, claim bool) bool {
	res, err := e.try(e.key(), lines...)
	if err != nil {
		e.Errorf("reserve: %v", err)
		return false
	}
	if res.Record.Outcome != reservation.Granted {
		return true
	}
	if claim {
		_, err = e.tryClaim(e.shop, res.Record.ID)
	} else {
		_, err = e.tryRelease(e.shop, res.Record.ID)
	}
	if err != nil {
		e.Errorf("end of a hold: %v", err)
		return false
	}
	return true
}

// holds is a bag of reservations that many goroutines put into and take from.
type holds struct {
	mu  sync.Mutex
	ids []reservation.ID
}

func (h *holds) put(id reservation.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids = append(h.ids, id)
}

func (h *holds) any() (reservation.ID, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ids) == 0 {
		return reservation.ID{}, false
	}
	return h.ids[rand.IntN(len(h.ids))], true
}

// storm does everything at once on few buckets: the invariants at its end are the test.
func storm(e *env) {
	e.stock(20, 30, 40, 50)
	const callers = 12
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Duration(rounds(2, 20))*time.Second)
	defer cancel()
	var (
		bag  holds
		done atomic.Int64
	)
	together(append(many(callers, func(int) {
		for ctx.Err() == nil && done.Add(1) <= crowdLimit() {
			if err := e.anything(&bag); err != nil && !refusal(err) {
				e.Errorf("in the storm: %v", err)
				return
			}
		}
	}), func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil && done.Load() <= crowdLimit() {
			sweepCtx, cancel := e.ctx()
			if _, err := e.h.Store.Sweep(sweepCtx, e.h.Stamp, 50); err != nil {
				e.Errorf("sweep: %v", err)
			}
			cancel()
			<-tick.C
		}
	})...)
	e.Logf("%d operations", done.Load())
}

// refusal tells whether an error is an answer that the state of things explains.
func refusal(err error) bool {
	return busy(err) || reservation.DecisionOf(err) != reservation.Undecided
}

// anything does one operation at random.
func (e *env) anything(bag *holds) error {
	id, some := bag.any()
	switch n := rand.IntN(100); {
	case n < 45 || !some:
		ttl := longTTL
		if rand.IntN(3) == 0 {
			ttl = shortTTL
		}
		lines := []reservation.Line{line(1+rand.Int64N(4), 1+rand.Int64N(3)), line(1+rand.Int64N(4), 1+rand.Int64N(3))}
		ctx, cancel := e.ctx()
		defer cancel()
		res, err := e.h.Store.Reserve(ctx, e.h.Stamp, e.id(), e.request(e.shop, e.key(), ttl, lines...))
		if err == nil && res.Record.Outcome == reservation.Granted {
			bag.put(res.Record.ID)
		}
		return err
	case n < 65:
		_, err := e.tryClaim(e.shop, id)
		return err
	case n < 90:
		_, err := e.tryRelease(e.shop, id)
		return err
	default:
		delta := rand.Int64N(7) - 2
		if delta == 0 {
			delta = 5
		}
		_, err := e.tryAdjust(reservation.Adjustment{ID: e.key(), Bucket: e.bucket(1 + rand.Int64N(4)), Delta: delta})
		return err
	}
}
