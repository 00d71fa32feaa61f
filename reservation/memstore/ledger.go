package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Claim deducts a paid reservation for good, or answers refund_required.
func (s *Store) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	unlock, err := s.enter(ctx, st)
	if err != nil {
		return reservation.ClaimResult{}, err
	}
	defer unlock()
	now := s.now()

	rec, ok := s.known(shop, id, now)
	if !ok {
		return s.claimed(shop, id)
	}
	switch rec.State {
	case reservation.Claimed, reservation.Refused:
		return reservation.ClaimResult{Record: clone(rec), Late: rec.Late, Replayed: true}, nil
	case reservation.Held, reservation.Expired:
	default:
		return reservation.ClaimResult{}, &reservation.ConflictError{Op: reservation.OpClaim, State: rec.State}
	}

	// Late is judged by the clock, whatever the record still says: a hold past its expiry gives its units up
	// before it asks for them again.
	rec.Late = rec.State == reservation.Expired || !now.Before(rec.ExpiresAt)
	if rec.Late && rec.State == reservation.Held {
		s.giveBack(rec)
	}
	if rec.Late && s.canClaimLate(rec) {
		s.take(rec)
		s.deduct(rec, now)
	} else if !rec.Late && s.onHandCovers(rec) {
		s.deduct(rec, now)
	} else {
		if !rec.Late {
			s.giveBack(rec)
		}
		rec.State = reservation.Refused
	}
	rec.ClaimedAt = now
	return reservation.ClaimResult{Record: clone(rec), Late: rec.Late}, nil
}

// claimed answers the claim of an id that is unknown, or past its retention: its entry is there for good.
func (s *Store) claimed(shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	rec := reservation.Record{ID: id, Shop: shop, Outcome: reservation.Granted, State: reservation.Claimed}
	for _, e := range s.entries {
		if e.Kind == reservation.EntryClaim && e.Reservation == id && e.Bucket.Shop == shop {
			rec.Lines = append(rec.Lines, reservation.Line{Item: e.Bucket.Item, Group: e.Bucket.Group, Quantity: -e.Delta})
			rec.ClaimedAt = e.At
		}
	}
	if len(rec.Lines) == 0 {
		return reservation.ClaimResult{}, reservation.ErrNotFound
	}
	return reservation.ClaimResult{Record: rec, Replayed: true}, nil
}

// canClaimLate: from what is available now, else by force if the policy says so and the goods are there.
func (s *Store) canClaimLate(rec *reservation.Record) bool {
	available := true
	for _, l := range rec.Lines {
		available = available && s.buckets[l.Bucket(rec.Shop)].available >= l.Quantity
	}
	return available || s.opts.Late == reservation.ForceLate && s.onHandCovers(rec)
}

func (s *Store) onHandCovers(rec *reservation.Record) bool {
	for _, l := range rec.Lines {
		if s.buckets[l.Bucket(rec.Shop)].onHand < l.Quantity {
			return false
		}
	}
	return true
}

// deduct takes a hold's units out of the ledger: one entry per line.
func (s *Store) deduct(rec *reservation.Record, now time.Time) {
	for _, l := range rec.Lines {
		b := s.buckets[l.Bucket(rec.Shop)]
		b.held -= l.Quantity
		b.onHand -= l.Quantity
		b.version++
		s.entries = append(s.entries, reservation.Entry{
			Bucket: l.Bucket(rec.Shop), Kind: reservation.EntryClaim, Reservation: rec.ID, Delta: -l.Quantity, At: now,
		})
	}
	rec.State = reservation.Claimed
}

// Adjust changes a bucket's stock, once per id, never below what is promised unless forced.
func (s *Store) Adjust(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	if err := adj.Validate(); err != nil {
		return reservation.AdjustResult{}, err
	}
	unlock, err := s.enter(ctx, st)
	if err != nil {
		return reservation.AdjustResult{}, err
	}
	defer unlock()

	key := shopKey{adj.Bucket.Shop, adj.ID}
	if old, ok := s.adjusts[key]; ok {
		if old.adj.Bucket != adj.Bucket || old.adj.Delta != adj.Delta {
			return reservation.AdjustResult{}, reservation.ErrKeyConflict
		}
		res := old.result
		res.Replayed = true
		return res, nil
	}
	b, ok := s.buckets[adj.Bucket]
	if !ok {
		return reservation.AdjustResult{}, &reservation.UnknownBucketError{Bucket: adj.Bucket}
	}
	if err := refuse(b, adj); err != nil {
		return reservation.AdjustResult{}, err
	}
	forced := adj.Delta < 0 && b.available+adj.Delta < 0
	b.onHand += adj.Delta
	b.available += adj.Delta
	b.version++
	s.entries = append(s.entries, reservation.Entry{
		Bucket: adj.Bucket, Kind: reservation.EntryAdjust, Adjustment: adj.ID, Delta: adj.Delta, Forced: forced, At: s.now(),
	})
	res := reservation.AdjustResult{Figures: figures(adj.Bucket, b), Forced: forced}
	s.adjusts[key] = adjusted{adj, res}
	return res, nil
}

// refuse gives the reason for which a bucket does not take an adjustment.
func refuse(b *bucket, adj reservation.Adjustment) error {
	switch {
	case b.onHand+adj.Delta > reservation.MaxOnHand:
		return &reservation.InvalidError{Field: "delta", Reason: fmt.Sprintf(
			"%d on top of %d is more than a bucket can hold: %d at most", adj.Delta, b.onHand, int64(reservation.MaxOnHand))}
	case b.onHand+adj.Delta < 0:
		// Not even by force: nobody can take away what is not there.
		return &reservation.ShortError{Bucket: adj.Bucket, Asked: -adj.Delta, Available: b.available}
	case adj.Delta < 0 && b.available+adj.Delta < 0 && !adj.Force:
		return &reservation.ShortError{Bucket: adj.Bucket, Asked: -adj.Delta, Available: b.available}
	default:
		return nil
	}
}

// Stock gives buckets their first stock; a bucket that is there is left alone and reported.
func (s *Store) Stock(ctx context.Context, st reservation.Stamp, stock []reservation.Stocking) ([]reservation.Figures, []reservation.Bucket, error) {
	for _, k := range stock {
		if err := k.Validate(); err != nil {
			return nil, nil, err
		}
	}
	unlock, err := s.enter(ctx, st)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()

	var (
		created  []reservation.Figures
		existing []reservation.Bucket
	)
	for _, k := range stock {
		if _, ok := s.buckets[k.Bucket]; ok {
			existing = append(existing, k.Bucket)
			continue
		}
		b := &bucket{onHand: k.Quantity, available: k.Quantity, version: 1}
		s.buckets[k.Bucket] = b
		s.entries = append(s.entries, reservation.Entry{
			Bucket: k.Bucket, Kind: reservation.EntryStock, Delta: k.Quantity, At: s.now(),
		})
		created = append(created, figures(k.Bucket, b))
	}
	return created, existing, nil
}

func figures(at reservation.Bucket, b *bucket) reservation.Figures {
	return reservation.Figures{Bucket: at, OnHand: b.onHand, Version: b.version}
}

// clone copies a record, so that nobody outside shares a slice with the store.
func clone(r *reservation.Record) reservation.Record {
	c := *r
	c.Lines = slices.Clone(r.Lines)
	c.Shortages = slices.Clone(r.Shortages)
	return c
}
