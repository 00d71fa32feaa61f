package memstore

import (
	"bytes"
	"context"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// Get reads a reservation of the shop.
func (s *Store) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	if ctx.Err() != nil {
		return reservation.Record{}, &reservation.UnavailableError{Store: s.opts.Truth, Cause: context.Cause(ctx)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.known(shop, id, s.now())
	if !ok {
		return reservation.Record{}, reservation.ErrNotFound
	}
	return clone(rec), nil
}

// Availability reads a bucket's figures.
func (s *Store) Availability(ctx context.Context, at reservation.Bucket) (reservation.Availability, error) {
	if ctx.Err() != nil {
		return reservation.Availability{}, &reservation.UnavailableError{Store: s.opts.Truth, Cause: context.Cause(ctx)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[at]
	if !ok {
		return reservation.Availability{}, &reservation.UnknownBucketError{Bucket: at}
	}
	return reservation.Availability{
		Bucket: at, Available: b.available, Held: b.held, OnHand: b.onHand, Version: b.version, Truth: s.opts.Truth,
	}, nil
}

// Inspect shows the store in MySQL's shape: a ledger with its journal and live lines. Without a pool, everything
// that is free is unpooled.
func (s *Store) Inspect(context.Context) (reservation.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.snapshot(reservation.MySQL)
	snap.Entries = slices.Clone(s.entries)
	snap.Lines = make(map[reservation.ID][]reservation.Line)
	reserved := make(map[reservation.Bucket]int64)
	for _, rec := range snap.Records {
		if !rec.State.TakesUnits() {
			continue
		}
		snap.Lines[rec.ID] = slices.Clone(rec.Lines)
		for _, l := range rec.Lines {
			reserved[l.Bucket(rec.Shop)] += l.Quantity
		}
	}
	for i := range snap.Buckets {
		b := &snap.Buckets[i]
		b.Unpooled, b.Available, b.Held = b.Available, 0, 0
		b.Reserved = reserved[b.Bucket]
	}
	return snap, nil
}

// InspectCounters shows the store in Redis's shape: counters and records, without a journal.
func (s *Store) InspectCounters(context.Context) (reservation.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(reservation.Redis), nil
}

func (s *Store) snapshot(store reservation.Truth) reservation.Snapshot {
	snap := reservation.Snapshot{Store: store, Fence: s.fence}
	for at, b := range s.buckets {
		snap.Buckets = append(snap.Buckets, reservation.BucketState{
			Bucket: at, OnHand: b.onHand, Version: b.version, Available: b.available, Held: b.held,
		})
	}
	slices.SortFunc(snap.Buckets, func(a, b reservation.BucketState) int { return a.Bucket.Compare(b.Bucket) })
	for _, rec := range s.inOrder() {
		snap.Records = append(snap.Records, clone(rec))
	}
	return snap
}

// inOrder gives the records in order of id, which is the order of creation.
func (s *Store) inOrder() []*reservation.Record {
	recs := make([]*reservation.Record, 0, len(s.records))
	for _, rec := range s.records {
		recs = append(recs, rec)
	}
	slices.SortFunc(recs, func(a, b *reservation.Record) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return recs
}

// ReadFence reads the fence; Epoch 0 means that there is none.
func (s *Store) ReadFence(context.Context) (reservation.Fence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence, nil
}

// Empty tells whether the store holds neither a reservation nor a fence.
func (s *Store) Empty(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence.Epoch == 0 && len(s.records) == 0, nil
}

// InitFence sets the first fence, if the store is empty, and gives the one that is there afterwards.
func (s *Store) InitFence(_ context.Context, st reservation.Stamp) (reservation.Fence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence.Epoch == 0 && len(s.records) == 0 {
		s.fence = reservation.Fence{Stamp: st}
	}
	return s.fence, nil
}

// SetFence replaces the fence, whatever it was: the zero Fence removes it.
func (s *Store) SetFence(f reservation.Fence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence = f
}
