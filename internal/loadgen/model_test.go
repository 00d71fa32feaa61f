package loadgen_test

import (
	"context"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// model is the smallest thing that answers as a store does: counters behind one lock. It stands for no store; it
// says what a plan would meet if calls came one after the other.
type model struct {
	mu        sync.Mutex
	available map[reservation.Bucket]int64
	byKey     map[string]*reservation.Record
	byID      map[reservation.ID]*reservation.Record
	adjusted  map[string]bool
	// before, if set, runs before each call and may fail it.
	before func(op reservation.Op, key string) error
	// after, if set, may lose the reply of a call that was carried out.
	after func(op reservation.Op, key string) error
	calls int
}

func newModel(stock []reservation.Stocking) *model {
	m := &model{
		available: make(map[reservation.Bucket]int64), byKey: make(map[string]*reservation.Record),
		byID: make(map[reservation.ID]*reservation.Record), adjusted: make(map[string]bool),
	}
	for _, s := range stock {
		m.available[s.Bucket] = s.Quantity
	}
	return m
}

func (m *model) enter(op reservation.Op, key string) (func(*error), error) {
	m.mu.Lock()
	m.calls++
	if m.before != nil {
		if err := m.before(op, key); err != nil {
			m.mu.Unlock()
			return nil, err
		}
	}
	return func(err *error) {
		if *err == nil && m.after != nil {
			*err = m.after(op, key)
		}
		m.mu.Unlock()
	}, nil
}

func (m *model) Reserve(_ context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (res reservation.Result, err error) {
	leave, err := m.enter(reservation.OpReserve, key)
	if err != nil {
		return res, err
	}
	defer leave(&err)
	if rec, ok := m.byKey[key]; ok {
		return reservation.Result{Record: *rec, Replayed: true}, nil
	}
	req, err := reservation.NewRequest(shop, key, lines, max(ttl, time.Nanosecond), reservation.Limits{})
	if err != nil {
		return res, err
	}
	id, err := reservation.NewID()
	if err != nil {
		return res, err
	}
	rec := &reservation.Record{ID: id, Shop: shop, Key: key, Lines: req.Lines, Outcome: reservation.Granted, State: reservation.Held}
	for _, l := range req.Lines {
		have, known := m.available[l.Bucket(shop)]
		if !known {
			return res, &reservation.UnknownBucketError{Bucket: l.Bucket(shop)}
		}
		if have < l.Quantity {
			rec.Outcome, rec.State = reservation.RejectedShort, reservation.Rejected
		}
	}
	if rec.Outcome == reservation.Granted {
		m.move(rec, -1)
	}
	m.byKey[key], m.byID[id] = rec, rec
	return reservation.Result{Record: *rec}, nil
}

func (m *model) move(rec *reservation.Record, sign int64) {
	for _, l := range rec.Lines {
		m.available[l.Bucket(rec.Shop)] += sign * l.Quantity
	}
}

func (m *model) Claim(_ context.Context, shop int64, id reservation.ID) (res reservation.ClaimResult, err error) {
	leave, err := m.enter(reservation.OpClaim, id.String())
	if err != nil {
		return res, err
	}
	defer leave(&err)
	rec, ok := m.byID[id]
	switch {
	case !ok || rec.Shop != shop:
		return res, reservation.ErrNotFound
	case rec.State == reservation.Claimed:
		return reservation.ClaimResult{Record: *rec, Replayed: true}, nil
	case rec.State != reservation.Held:
		return res, &reservation.ConflictError{Op: reservation.OpClaim, State: rec.State}
	}
	rec.State = reservation.Claimed
	return reservation.ClaimResult{Record: *rec}, nil
}

func (m *model) Release(_ context.Context, shop int64, id reservation.ID) (res reservation.ReleaseResult, err error) {
	leave, err := m.enter(reservation.OpRelease, id.String())
	if err != nil {
		return res, err
	}
	defer leave(&err)
	rec, ok := m.byID[id]
	switch {
	case !ok || rec.Shop != shop:
		return res, reservation.ErrNotFound
	case rec.State == reservation.Released:
		return reservation.ReleaseResult{Record: *rec, Replayed: true}, nil
	case rec.State != reservation.Held:
		return res, &reservation.ConflictError{Op: reservation.OpRelease, State: rec.State}
	}
	rec.State = reservation.Released
	m.move(rec, 1)
	return reservation.ReleaseResult{Record: *rec}, nil
}

func (m *model) Adjust(_ context.Context, adj reservation.Adjustment) (res reservation.AdjustResult, err error) {
	leave, err := m.enter(reservation.OpAdjust, adj.ID)
	if err != nil {
		return res, err
	}
	defer leave(&err)
	have, known := m.available[adj.Bucket]
	switch {
	case !known:
		return res, &reservation.UnknownBucketError{Bucket: adj.Bucket}
	case m.adjusted[adj.ID]:
		return reservation.AdjustResult{Replayed: true}, nil
	case have+adj.Delta < 0:
		return res, &reservation.ShortError{Bucket: adj.Bucket, Asked: -adj.Delta, Available: have}
	}
	m.adjusted[adj.ID] = true
	m.available[adj.Bucket] += adj.Delta
	return reservation.AdjustResult{}, nil
}
