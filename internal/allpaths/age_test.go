package allpaths

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// aged is a store on a schema of its own, with one bucket.
type aged struct {
	*testing.T
	s *mysqlstore.Store
	n int
}

func newAged(t *testing.T, o mysqlstore.Options, quantity int64) *aged {
	t.Helper()
	dsn := devtest.Schema(t)
	if err := mysqlstore.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	o.DSN, o.Pod, o.Retention = dsn, "pod-1", time.Hour
	s, err := mysqlstore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.InitFence(t.Context(), stamp); err != nil {
		t.Fatal(err)
	}
	b := reservation.Bucket{Shop: shop, Item: 1, Group: 1}
	if _, _, err := s.Stock(t.Context(), stamp, []reservation.Stocking{{Bucket: b, Quantity: quantity}}); err != nil {
		t.Fatal(err)
	}
	return &aged{T: t, s: s}
}

// reserve takes units and gives them back, and tells how long the taking took.
func (a *aged) reserve(units int64) time.Duration {
	a.Helper()
	a.n++
	req, err := reservation.NewRequest(shop, fmt.Sprint("k", a.n), []reservation.Line{{Item: 1, Group: 1, Quantity: units}}, time.Hour, reservation.Limits{MaxTTL: time.Hour})
	if err != nil {
		a.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		a.Fatal(err)
	}
	began := time.Now()
	res, err := a.s.Reserve(a.Context(), stamp, id, req)
	took := time.Since(began)
	if err != nil || res.Record.Outcome != reservation.Granted {
		a.Fatalf("reserve %d: %s, %v", units, res.Record.Outcome, err)
	}
	if _, err := a.s.Release(a.Context(), stamp, shop, id); err != nil {
		a.Fatal(err)
	}
	return took
}

// p50 is the median of many reserves.
func (a *aged) p50(units int64) time.Duration {
	a.Helper()
	took := make([]time.Duration, 301)
	for n := range took {
		took[n] = a.reserve(units)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// within checks a ratio of medians that were taken in turns.
func (a *aged) within(what string, now, before time.Duration, most float64) {
	a.Helper()
	ratio := float64(now) / float64(before)
	a.Logf("%s: %s, before %s: %.2f", what, now, before, ratio)
	if ratio > most {
		a.Errorf("%s takes %.2f times as long, at most %.1f is allowed", what, ratio, most)
	}
}

func onlySoak(t *testing.T) {
	t.Helper()
	if !devtest.Soak() {
		t.Skip("TWINHOLD_SOAK=1 runs it: it takes a minute")
	}
}

// An old read view (a backup) keeps every version of what was consumed. Unit ids are reused, so reserves do not wade
// through them.
func TestReserveBesideAnOldReadView(t *testing.T) {
	onlySoak(t)
	a := newAged(t, mysqlstore.Options{}, 1_000_000)
	before := a.p50(1)
	view, err := a.s.DB().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = view.Close() })
	for _, q := range []string{
		"/* conn_tag:test */ SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
		"/* conn_tag:test */ START TRANSACTION WITH CONSISTENT SNAPSHOT",
	} {
		if _, err := view.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	for consumed := 0; consumed < 200_000; consumed += 500 {
		a.reserve(500)
	}
	a.within("a reserve beside a read view as old as 200,000 units", a.p50(1), before, 1.5)
	if _, err := view.ExecContext(t.Context(), "/* conn_tag:test */ ROLLBACK"); err != nil {
		t.Fatal(err)
	}
}

// A refill does not sum the live holds: what is unpooled is stored.
func TestRefillUnderManyHolds(t *testing.T) {
	onlySoak(t)
	// No background, and every reserve takes all that a pool has: each one refills.
	a := newAged(t, mysqlstore.Options{PoolSize: 50, LowWater: -1}, 1_000_000)
	a.lay(0, 1_000)
	a.p50(50)
	few := a.p50(50)
	a.lay(1_000, 300_000)
	a.within("a refill with 300,000 live holds", a.p50(50), few, 1.5)
}

// The numbers from 0 to 999,999.
const numbers = `(SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n + 100000 * f.n AS n FROM
 (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) a,
 (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) b,
 (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) c,
 (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) d,
 (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) e,
 (SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) f) numbers
WHERE n >= ? AND n < ?`

const heldID = "UNHEX(CONCAT('01a0000000007000', LPAD(HEX(n), 16, '0')))"

// lay stores holds of one unit each by hand, numbered from up to to.
func (a *aged) lay(from, to int64) {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), 5*time.Minute)
	defer cancel()
	tx, err := a.s.DB().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		a.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, s := range []struct {
		query string
		args  []any
	}{
		{"/* conn_tag:test */ UPDATE inventory_ledger SET unpooled = unpooled - ?", []any{to - from}},
		{"/* conn_tag:test */ INSERT INTO reservations (id, shop_id, idem_key, request_hash, cart, outcome, state, decided_by, epoch, created_at, expires_at, purge_at) SELECT " +
			heldID + ", 7, CONCAT('laid-', n), REPEAT('b', 32), '[[1,1,1]]', 'granted', 'held', 'mysql', 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 DAY, UTC_TIMESTAMP(6) + INTERVAL 3 DAY FROM " + numbers, []any{from, to}},
		{"/* conn_tag:test */ INSERT INTO reserved_quantities (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity) SELECT 7, 1, 1, " + heldID + ", 1 FROM " + numbers, []any{from, to}},
	} {
		if _, err := tx.ExecContext(ctx, s.query, s.args...); err != nil {
			a.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		a.Fatal(err)
	}
}
