package reconcile

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// TestAPageReadsNoMoreThanItself: in the middle of 3,000 buckets, a page of 20 rows touches some rows for each of them,
// and neither what lies before it nor what comes after.
func TestAPageReadsNoMoreThanItself(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.hand(
		`INSERT INTO inventory_ledger WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
SELECT s.s, n.i, 1, 10, 4, 1 FROM n JOIN (SELECT 1 s UNION ALL SELECT 2 UNION ALL SELECT 3) s`,
		`INSERT INTO reservation_units SELECT shop_id, inventory_item_id, 1, u.u FROM inventory_ledger
JOIN (SELECT 1 u UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4) u`,
		`INSERT INTO ledger_entries SELECT shop_id, inventory_item_id, 1, 'stock', '', NULL, 10, 0, UTC_TIMESTAMP(6), 1 FROM inventory_ledger`,
		`INSERT INTO reserved_quantities SELECT shop_id, inventory_item_id, 1, UNHEX(LPAD(HEX(shop_id * 100000 + inventory_item_id), 32, '0')), 2 FROM inventory_ledger`,
		`INSERT INTO reservations (id, shop_id, idem_key, request_hash, cart, outcome, state, decided_by, epoch, created_at, expires_at, purge_at)
SELECT reservation_id, shop_id, HEX(reservation_id), REPEAT('x', 32), '', 'granted', 'held', 'mysql', 5, UTC_TIMESTAMP(6),
 UTC_TIMESTAMP(6) + INTERVAL inventory_item_id SECOND, UTC_TIMESTAMP(6) + INTERVAL 1 DAY FROM reserved_quantities`,
		`INSERT INTO reservation_marks SELECT id, UTC_TIMESTAMP(6) FROM reservations`,
		"ANALYZE TABLE inventory_ledger, reservation_units, ledger_entries, reserved_quantities, reservations, reservation_marks",
	)
	r := b.reconciler()
	middle := cursor{bucket: reservation.Bucket{Shop: 2, Item: 500, Group: 1}}
	copy(middle.id[12:], []byte{0, 3, 0x0d, 0x40}) // 200,000: after the first shop's
	if err := b.db.QueryRowContext(t.Context(), "/* conn_tag:test */ SELECT expires_at FROM reservations ORDER BY expires_at LIMIT 1 OFFSET 1500").Scan(&middle.at); err != nil {
		t.Fatal(err)
	}
	const limit = 20
	for _, w := range r.walks() {
		var before, after int64
		var p page
		err := r.primary().snapshot(t.Context(), func(ctx context.Context, conn *sql.Conn) (err error) {
			before = handlerReads(ctx, t, conn)
			p, err = w.read(ctx, conn, r.primary(), middle, limit)
			after = handlerReads(ctx, t, conn)
			return err
		})
		if err != nil || p.rows != limit || len(p.suspects) != 0 {
			t.Errorf("%s: %d rows, %v suspects, %v", w.name, p.rows, p.suspects, err)
		}
		t.Logf("%s: %d rows read for a page of %d", w.name, after-before, limit)
		if after-before > 30*limit {
			t.Errorf("%s: read %d rows for a page of %d", w.name, after-before, limit)
		}
	}
	got := round(t, r)
	if c := got.Read; len(got.Findings) != 0 || c.Buckets != 3000 || c.Lines != 3000 || c.Holds != 3000 || c.Marks != 3000 {
		t.Errorf("found %v, read %+v", got.Findings, c)
	}
}

// handlerReads is how many rows this session has asked the storage engine for; some are of the question itself.
func handlerReads(ctx context.Context, t *testing.T, conn *sql.Conn) int64 {
	t.Helper()
	rows, err := conn.QueryContext(ctx, "/* conn_tag:test */ SHOW SESSION STATUS LIKE 'Handler_read%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var sum int64
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestEveryStatementIsTagged: the attribution of connections knows all of them.
func TestEveryStatementIsTagged(t *testing.T) {
	t.Parallel()
	for n, q := range []string{
		qIsolate, qSnapshot, qEnd, qBuckets, qJournal, qUnits, qEntries, qLines, qHolds, qMarks, qNewest, qFirstAfter, qReplica,
	} {
		if !strings.HasPrefix(q, "/* conn_tag:reconcile") {
			t.Error(fmt.Sprint(n), q)
		}
	}
}
