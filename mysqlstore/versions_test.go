package mysqlstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

func change(item, delta, version int64) reservation.Change {
	return reservation.Change{Bucket: bucket(item), Delta: delta, Version: version}
}

// TestI6ChangesAreTheClaimsOwn: a claim and an adjustment tell which versions of the ledger they made, and tell the
// same again however far the ledger has gone on since.
func TestI6ChangesAreTheClaimsOwn(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(10, 4)
	ctx := t.Context()
	first := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3), line(2, 1))
	b.mirror(granted(first))
	overtaken := truthRecord(t, "b", reservation.Held, time.Minute, line(1, 2)) // its reserve has not arrived
	adj := reservation.Adjustment{ID: "x", Bucket: bucket(1), Delta: 5}

	want := map[reservation.ID][]reservation.Change{
		first.ID:     {change(1, -3, 2), change(2, -1, 2)},
		overtaken.ID: {change(1, -2, 4)},
	}
	d := b.deduct(pinOf(first))
	res, err := b.ApplyAdjustment(ctx, b.st, adj, false)
	if err != nil || res.Change != change(1, 5, 3) {
		t.Errorf("adjusted: %+v, %v", res, err)
	}
	if o := b.deduct(pinOf(overtaken)); !cmp.Equal(d.Changes, want[first.ID]) || !cmp.Equal(o.Changes, want[overtaken.ID]) {
		t.Errorf("deducted %+v and %+v", d.Changes, o.Changes)
	}

	for _, rec := range []reservation.Record{first, overtaken} {
		again := b.deduct(pinOf(rec))
		if !again.Replayed || !cmp.Equal(again.Changes, want[rec.ID]) {
			t.Errorf("again: %+v; want the changes %+v", again, want[rec.ID])
		}
		if got, err := b.ChangesOf(ctx, shop, rec.ID); err != nil || !cmp.Equal(got, want[rec.ID]) {
			t.Errorf("changes of %s: %+v, %v", rec.Key, got, err)
		}
	}
	if res, err = b.ApplyAdjustment(ctx, b.st, adj, false); err != nil || !res.Replayed || res.Change != change(1, 5, 3) || res.Figures.Version != 4 {
		t.Errorf("adjusted again: %+v, %v", res, err)
	}
	if _, res, err = b.AdjustmentByID(ctx, shop, "x"); err != nil || res.Change != change(1, 5, 3) {
		t.Errorf("the adjustment by its id: %+v, %v", res, err)
	}
	if _, err := b.ChangesOf(ctx, shop+1, first.ID); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("changes of another shop's: %v", err)
	}
	// A bucket's versions run from 1 without a gap, one an entry.
	versions := map[reservation.Bucket]map[int64]int64{}
	for _, e := range b.invariants().Entries {
		if versions[e.Bucket] == nil {
			versions[e.Bucket] = map[int64]int64{}
		}
		versions[e.Bucket][e.Version] = e.Delta
	}
	if diff := cmp.Diff(map[reservation.Bucket]map[int64]int64{
		bucket(1): {1: 10, 2: -3, 3: 5, 4: -2}, bucket(2): {1: 4, 2: -1},
	}, versions); diff != "" {
		t.Error(diff)
	}
}

// TestDeductTellsLate: a replay tells the lateness that was judged, whatever its own pin says.
func TestDeductTellsLate(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(10)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3))
	b.mirror(granted(rec))
	pin := pinOf(rec)
	pin.Late = true
	if d := b.deduct(pin); !d.Late {
		t.Errorf("late by its pin: %+v", d)
	}
	pin.Late = false
	if d := b.deduct(pin); !d.Late || !d.Replayed {
		t.Errorf("again: %+v", d)
	}
}

// TestMigrateAnOlderSchema: a schema of the version before entries had versions, with entries in it.
func TestMigrateAnOlderSchema(t *testing.T) {
	t.Parallel()
	dsn := devtest.Schema(t)
	ctx := t.Context()
	if err := mysqlstore.MigrateTo(ctx, dsn, 10); err != nil {
		t.Fatal(err)
	}
	db, err := mysqlstore.OpenDB(dsn, mysqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{
		"INSERT INTO inventory_ledger VALUES (7, 1, 1, 8, 8, 2)",
		`INSERT INTO ledger_entries (shop_id, inventory_item_id, inventory_group_id, kind, ref, delta, created_at)
VALUES (7, 1, 1, 'stock', '', 10, NOW(6)), (7, 1, 1, 'claim', REPEAT('a', 16), -2, NOW(6))`,
		"INSERT INTO pod_fence (pod, epoch, stage, updated_at) VALUES ('pod-1', 5, 'shadow', NOW(6))",
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	b := openOn(t, dsn, shadow)
	old := reservation.ID([]byte("aaaaaaaaaaaaaaaa"))
	if got, err := b.ChangesOf(ctx, shop, old); err != nil || !cmp.Equal(got, []reservation.Change{change(1, -2, 0)}) {
		t.Errorf("an entry of before: %+v, %v", got, err)
	}
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3))
	if d := b.deduct(pinOf(rec)); !cmp.Equal(d.Changes, []reservation.Change{change(1, -3, 3)}) {
		t.Errorf("an entry of now: %+v", d)
	}
}
