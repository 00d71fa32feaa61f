package mysqlstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestHungMirrorLeavesTheTruthItsConnections: mirror operations that hang wait for each other, and reserves go on.
func TestHungMirrorLeavesTheTruthItsConnections(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"lanes": false, "no lanes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const buckets = 12
			b := open(t, cutover)
			b.stock(50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50)
			var ops []reservation.MirrorOp
			for n := range int64(4 * buckets) {
				rec := truthRecord(t, fmt.Sprint("m", n), reservation.Held, time.Hour, line(n%buckets+1, 1))
				b.mirror(granted(rec))
				ops = append(ops, released(rec))
			}
			b.reserve("fills the pool", line(buckets+1, 1))
			j := &jam{reg: prometheus.NewRegistry()}
			j.bench = b.another(func(o *mysqlstore.Options) {
				o.MaxOpenConns, o.NoLanes, o.Registerer = 8, off, j.reg
				o.LockWait, o.WriteTimeout, o.Deadline = 3*time.Second, 5*time.Second, time.Minute
			})
			tx, err := b.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(t.Context(), "UPDATE inventory_ledger SET unpooled = unpooled WHERE inventory_item_id <= ?", buckets); err != nil {
				t.Fatal(err)
			}
			var done atomic.Int64
			var wg sync.WaitGroup
			for _, op := range ops {
				wg.Go(func() {
					if _, err := j.Mirror(t.Context(), j.st, op); err != nil {
						t.Error(err)
					}
					done.Add(1)
				})
			}
			j.until("mirror operations hold all that they may", func() bool { return j.DB().Stats().InUse >= 2 })
			for n := range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				_, err := j.buy(ctx, fmt.Sprint("k", n), line(buckets+1, 1))
				cancel()
				if err != nil {
					t.Fatalf("reserve %d beside a mirror that hangs: %v", n, err)
				}
			}
			if n := done.Load(); n != 0 {
				t.Errorf("%d mirror operations were through: this shows nothing", n)
			}
			if n := j.gauge("twinhold_mysql_budget_wait_seconds", "truth"); n != 0 {
				t.Errorf("the truth waited %v times", n)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if j.gauge("twinhold_mysql_budget_wait_seconds", "mirror") == 0 {
				t.Error("no mirror operation waited for a connection of its class")
			}
			b.figures(1, 50, 50)
			b.figures(buckets+1, 50-21, 50)
			b.invariants()
		})
	}
}

func TestBudgetsAreChecked(t *testing.T) {
	t.Parallel()
	for want, budgets := range map[string]mysqlstore.Budgets{
		"9 connections for truth are out of range":                 {Truth: 9},
		"-1 connections for mirror are out of range":               {Mirror: -1},
		"may hold 8 of 8 connections: leave some to the truth":     {Mirror: 5, Refill: 2, Background: 1},
		"9 connections for background are out of range: use 1 to ": {Background: 9},
	} {
		_, err := mysqlstore.Open(t.Context(), mysqlstore.Options{
			DSN: "u:p@tcp(127.0.0.1:1)/s", Pod: "pod-1", Lazy: true, MaxOpenConns: 8, Budgets: budgets,
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", budgets, err, want)
		}
	}
}

// TestDeepest: the buckets of which most is gone, deepest first, without asking the server.
func TestDeepest(t *testing.T) {
	t.Parallel()
	j := &jam{reg: prometheus.NewRegistry()}
	j.bench = open(t, complete, func(o *mysqlstore.Options) { o.PoolSize, o.LowWater, o.Registerer = 100, -1, j.reg })
	b := j.bench
	b.stock(1000, 1000, 30)
	for item, units := range map[int64]int64{1: 10, 2: 40, 3: 5} {
		b.reserve(fmt.Sprint("k", item), line(item, units))
	}
	want := []mysqlstore.Depth{{bucket(3), 25, 100}, {bucket(2), 60, 100}, {bucket(1), 90, 100}}
	for n, expect := range map[int][]mysqlstore.Depth{-1: nil, 0: nil, 2: want[:2], 10: want} {
		got := b.Deepest(n)
		if fmt.Sprint(got) != fmt.Sprint(expect) {
			t.Errorf("the deepest %d: %v, want %v", n, got, expect)
		}
	}
	for rank, want := range map[string]float64{"1": 0.25, "2": 0.6, "3": 0.9, "4": 0} {
		if got := j.gauge("twinhold_mysql_deepest_pool_ratio", rank); got != want {
			t.Errorf("rank %s: %v, want %v", rank, got, want)
		}
	}
}

// TestSweepIsANeighbour: while 5,000 due holds of a bucket are swept, none of its claims waits for more than the batch
// that is under way; and the sweep keeps to its rate.
func TestSweepIsANeighbour(t *testing.T) {
	t.Parallel()
	const due, rate, batch = 5000, 4000, 250
	var batches atomic.Int64
	b := open(t, complete, func(o *mysqlstore.Options) {
		o.SweepRate, o.WriteTimeout, o.Deadline = rate, jamTime, time.Minute
		o.Failpoint = func(step string) {
			if step == "expire.committed" {
				batches.Add(1)
			}
		}
	})
	b.stock(6000)
	var held []reservation.ID
	for n := range 40 {
		held = append(held, b.reserveFor(fmt.Sprint("k", n), time.Hour, line(1, 1)).Record.ID)
	}
	b.overdue(due)
	var swept reservation.SweepResult
	var took time.Duration
	over := make(chan error, 1)
	go func() {
		began := time.Now()
		res, err := b.Sweep(context.WithoutCancel(t.Context()), b.st, due)
		swept, took = res, time.Since(began)
		over <- err
	}()
	b.until("the sweep has begun", func() bool { return batches.Load() > 0 })
	beside := 0
	for _, id := range held {
		before := batches.Load()
		if _, err := b.Claim(t.Context(), b.st, shop, id); err != nil {
			t.Fatal(err)
		}
		after := batches.Load()
		if after-before > 2 { // the one that was under way, and one that ended between the count and the claim's turn
			t.Errorf("a claim waited for %d batches of the sweep", after-before)
		}
		if after < due/batch {
			beside++
		}
	}
	if err := <-over; err != nil || len(swept.Expired) != due {
		t.Fatalf("%d were swept, %v", len(swept.Expired), err)
	}
	if least := time.Duration(float64(due-batch) / rate * float64(time.Second)); took < least {
		t.Errorf("%d rows took %v: at %d rows a second it is %v and more", due, took, rate, least)
	}
	if n := batches.Load(); n < due/batch || beside < 3 {
		t.Errorf("%d batches, %d claims beside them: this shows little", n, beside)
	}
	b.figures(1, 6000-40, 6000-int64(len(held)))
	b.invariants()
}

// overdue puts due holds of one unit of item 1 into the tables.
func (b *bench) overdue(n int) {
	b.t.Helper()
	for _, q := range []string{
		"UPDATE inventory_ledger SET unpooled = unpooled - ? WHERE inventory_item_id = 1",
		`INSERT INTO reservations (id, shop_id, idem_key, request_hash, cart, outcome, state, decided_by, epoch, unmirrored, late, created_at, expires_at, purge_at)
SELECT /*+ SET_VAR(cte_max_recursion_depth = 100000) */ UNHEX(LPAD(HEX(c.n), 32, '0')), 7, CONCAT('due', c.n), UNHEX(REPEAT('00', 32)), '[[1,1,1]]', 'granted', 'held', 'mysql', 5, FALSE, FALSE,
 UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR
FROM (WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < ?) SELECT n FROM c) c`,
		`INSERT INTO reserved_quantities (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity)
SELECT 7, 1, 1, id, 1 FROM reservations WHERE idem_key LIKE 'due%' LIMIT ?`,
	} {
		if _, err := b.DB().ExecContext(b.t.Context(), q, n); err != nil {
			b.t.Fatal(err)
		}
	}
}
