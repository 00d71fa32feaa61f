package mysqlstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

const stockBatch = 500

// Stock creates buckets with their first stock. One that is there is left alone and reported. The pool stays empty:
// the first reserve fills it, so that importing a large catalogue writes one row a bucket and not a thousand, and
// buckets that nobody buys never have unit rows.
func (s *Store) Stock(ctx context.Context, st reservation.Stamp, stock []reservation.Stocking) ([]reservation.Figures, []reservation.Bucket, error) {
	sorted := slices.Clone(stock)
	slices.SortFunc(sorted, func(a, b reservation.Stocking) int { return a.Bucket.Compare(b.Bucket) })
	for n, k := range sorted {
		if err := k.Validate(); err != nil {
			return nil, nil, err
		}
		if n > 0 && sorted[n-1].Bucket == k.Bucket {
			return nil, nil, &reservation.InvalidError{Field: "stock", Reason: fmt.Sprintf("names bucket %s twice: give each bucket once", k.Bucket)}
		}
	}
	var created []reservation.Figures
	var existing []reservation.Bucket
	for batch := range slices.Chunk(sorted, stockBatch) {
		c, e, err := s.stockBatch(ctx, st, batch)
		created = append(created, c...)
		existing = append(existing, e...)
		if err != nil {
			return created, existing, err
		}
	}
	return created, existing, nil
}

func (s *Store) stockBatch(ctx context.Context, st reservation.Stamp, batch []reservation.Stocking) (created []reservation.Figures, existing []reservation.Bucket, err error) {
	buckets := make([]reservation.Bucket, len(batch))
	for n, k := range batch {
		buckets[n] = k.Bucket
	}
	w := work{path: "stock", op: reservation.OpAdjust, stamp: st, lines: len(batch)}
	err = s.write(ctx, w, func(ctx context.Context, t *tx) error {
		created, existing = nil, nil
		ls, err := lockLedgers(ctx, t, qLedgerLock, buckets)
		if err != nil {
			return err
		}
		var rows [][]int64
		for n, k := range batch {
			if ls[n].known {
				existing = append(existing, k.Bucket)
				continue
			}
			rows = append(rows, []int64{k.Bucket.Shop, k.Bucket.Item, k.Bucket.Group, k.Quantity})
			t.moved = append(t.moved, k.Bucket)
			created = append(created, reservation.Figures{Bucket: k.Bucket, OnHand: k.Quantity, Version: 1})
		}
		if len(rows) == 0 {
			return nil
		}
		list := jsonRows(rows)
		if _, err := exec(ctx, t.conn, qLedgerInsert, list); err != nil {
			return err
		}
		s.step(t, "ledger")
		_, err = exec(ctx, t.conn, qEntriesStock, t.now, list)
		s.step(t, "entries")
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return created, existing, nil
}
