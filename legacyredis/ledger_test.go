package legacyredis_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// openLedger opens a real ledger in a schema of its own.
func openLedger(t *testing.T) *mysqlstore.Store {
	t.Helper()
	return openLedgerAt(t, devtest.Schema(t), "pod-1", stamp())
}

func openLedgerAt(t *testing.T, dsn, pod string, st reservation.Stamp, change ...func(*mysqlstore.Options)) *mysqlstore.Store {
	t.Helper()
	if err := mysqlstore.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	o := mysqlstore.Options{DSN: dsn, Pod: pod, WriteTimeout: 5 * time.Second, LockWait: 3 * time.Second, MaxOpenConns: 8}
	for _, f := range change {
		f(&o)
	}
	s, err := mysqlstore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.InitFence(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	return s
}

// stockBoth gives items 1, 2, 3... their first stock, in the ledger and then in Redis.
func (b *book) stockBoth(quantities ...int64) {
	b.tb.Helper()
	var stock []reservation.Stocking
	for i, q := range quantities {
		stock = append(stock, reservation.Stocking{Bucket: bucket(int64(i + 1)), Quantity: q})
	}
	figs, existing, err := b.mysql.Stock(b.tb.Context(), stamp(), stock)
	if err != nil || len(existing) > 0 {
		b.tb.Fatalf("stock: %v, there before: %v", err, existing)
	}
	n, err := b.store.ApplyFigures(b.tb.Context(), stamp(), figs, true)
	if err != nil || n != len(figs) {
		b.tb.Fatalf("stock: %d applied, %v", n, err)
	}
}

// entries counts what the journal has of a claim, and checks I3 by the way: on_hand is the sum of the entries.
func (b *book) entries(id reservation.ID) int {
	b.tb.Helper()
	snap, err := b.mysql.Inspect(b.tb.Context())
	if err != nil {
		b.tb.Fatal(err)
	}
	sums := map[reservation.Bucket]int64{}
	n := 0
	for _, e := range snap.Entries {
		sums[e.Bucket] += e.Delta
		if e.Reservation == id {
			n++
		}
	}
	for _, l := range snap.Buckets {
		if sums[l.Bucket] != l.OnHand {
			b.tb.Fatal(errors.New("I3: on_hand is not the sum of the entries"))
		}
	}
	return n
}
