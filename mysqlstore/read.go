package mysqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Get gives a reservation of this shop; ErrNotFound if there is none, or if it is past its retention.
func (s *Store) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	r, err := s.lookForClaim(ctx, shop, id)
	if err != nil {
		return reservation.Record{}, err
	}
	if r == nil {
		return reservation.Record{}, reservation.ErrNotFound
	}
	return r.Record, nil
}

// Lookup is Get, and finds the entries of a claim whose record was purged: then State is Claimed and Key is empty.
func (s *Store) Lookup(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	r, err := s.lookForClaim(ctx, shop, id)
	if err != nil {
		return reservation.Record{}, err
	}
	if r != nil {
		return r.Record, nil
	}
	return s.claimFromEntries(ctx, s.reads, shop, id)
}

// claimFromEntries rebuilds what the ledger knows of a claim; ErrNotFound if it has no entry of it.
func (s *Store) claimFromEntries(ctx context.Context, r runner, shop int64, id reservation.ID) (reservation.Record, error) {
	old, err := s.pastClaim(ctx, r, shop, id)
	if err != nil {
		return reservation.Record{}, err
	}
	rec := reservation.Record{ID: id, Shop: shop, Outcome: reservation.Granted, State: reservation.Claimed, ClaimedAt: old.at}
	for _, c := range old.changes {
		rec.Lines = append(rec.Lines, reservation.Line{Item: c.Bucket.Item, Group: c.Bucket.Group, Quantity: -c.Delta})
	}
	return rec, nil
}

// ChangesOf gives what a claimed reservation's entries say, in bucket order; ErrNotFound if there are none. A version
// of 0 is one that was not kept.
func (s *Store) ChangesOf(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Change, error) {
	old, err := s.pastClaim(ctx, s.reads, shop, id)
	return old.changes, err
}

// pastClaim reads the entries of a claim; ErrNotFound if there are none.
func (s *Store) pastClaim(ctx context.Context, r runner, shop int64, id reservation.ID) (claimEntries, error) {
	var old claimEntries
	err := s.read(ctx, "entries", func(ctx context.Context) (err error) {
		old, err = entriesOf(ctx, r, shop, id)
		return err
	})
	if err == nil && len(old.changes) == 0 {
		err = reservation.ErrNotFound
	}
	return old, err
}

// claimEntries is what the journal says of a claim.
type claimEntries struct {
	changes []reservation.Change
	at      time.Time
}

// entriesOf reads the entries of a claim, in bucket order; without changes there are none.
func entriesOf(ctx context.Context, r runner, shop int64, id reservation.ID) (claimEntries, error) {
	var old claimEntries
	err := each(ctx, r, func(rows *sql.Rows) error {
		c := reservation.Change{Bucket: reservation.Bucket{Shop: shop}}
		if err := rows.Scan(&c.Bucket.Item, &c.Bucket.Group, &c.Delta, &c.Version, &old.at); err != nil {
			return asSQL(err)
		}
		old.changes = append(old.changes, c)
		return nil
	}, qClaimEntries, id[:], shop)
	return old, err
}

// Availability gives a bucket's figures; *UnknownBucketError if it was never stocked.
func (s *Store) Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	var ls []level
	err := s.read(ctx, "availability", func(ctx context.Context) (err error) {
		ls, err = countLevels(ctx, s.reads, []reservation.Bucket{b})
		return err
	})
	if err != nil {
		return reservation.Availability{}, err
	}
	l := ls[0]
	if !l.known {
		return reservation.Availability{}, &reservation.UnknownBucketError{Bucket: b}
	}
	return reservation.Availability{
		Bucket: b, Available: l.available(), Held: l.onHand - l.available(), OnHand: l.onHand, Version: l.version,
		Truth: reservation.MySQL,
	}, nil
}

// Walk gives up to limit reservations with an id above after, in order of id. Records past their retention are left
// out, as if they were purged.
func (s *Store) Walk(ctx context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	return s.recordsOf(ctx, "walk", qRecordsWalk, after[:], limit)
}

// Figures gives up to limit buckets after the given one, in bucket order.
func (s *Store) Figures(ctx context.Context, after reservation.Bucket, limit int) ([]reservation.Figures, error) {
	ctx = inClass(ctx, backgroundClass)
	var out []reservation.Figures
	err := s.read(ctx, "figures", func(ctx context.Context) error {
		out = nil
		return each(ctx, s.reads, func(rows *sql.Rows) error {
			var f reservation.Figures
			var unpooled int64
			err := rows.Scan(&f.Bucket.Shop, &f.Bucket.Item, &f.Bucket.Group, &f.OnHand, &unpooled, &f.Version)
			out = append(out, f)
			return asSQL(err)
		}, qLedgerWalk, after.Shop, after.Shop, after.Item, after.Shop, after.Item, after.Group, limit)
	})
	return out, err
}
