package mysqlstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestSoldOutIsRemembered: while a bucket is sold out most rejections need no look of their own, each is stored, and
// whatever stock this process gives back is sellable at once, by whatever way it comes.
func TestSoldOutIsRemembered(t *testing.T) {
	t.Parallel()
	j := newJam(t, complete)
	j.stock(5)
	ctx := t.Context()
	held := j.reserve("all", line(1, 5)).Record.ID
	back := map[string]func(key string){
		"a release": func(string) {
			if _, err := j.Release(ctx, j.st, shop, held); err != nil {
				t.Fatal(err)
			}
		},
		"stock that arrives": func(key string) {
			adj := reservation.Adjustment{ID: key, Bucket: bucket(1), Delta: 5}
			if _, err := j.Adjust(ctx, j.st, adj); err != nil {
				t.Fatal(err)
			}
		},
		"an expiry": func(string) {
			if _, err := j.DB().ExecContext(ctx, "UPDATE reservations SET expires_at = UTC_TIMESTAMP(6) WHERE id = ?", held[:]); err != nil {
				t.Fatal(err)
			}
			if res, err := j.Sweep(ctx, j.st, 10); err != nil || len(res.Expired) != 1 {
				t.Fatal(res, err)
			}
		},
	}
	n := 0
	for range 5 {
		for what, give := range back {
			for range 4 {
				n++
				res := j.reserve(fmt.Sprint("k", n), line(1, 5))
				if res.Record.Outcome != reservation.RejectedShort || len(res.Record.Shortages) != 1 || res.Record.Shortages[0].Available != 0 {
					t.Fatalf("nothing is left: %+v", res)
				}
			}
			give(fmt.Sprint("adj", n))
			n++
			res := j.reserve(fmt.Sprint("k", n), line(1, 5))
			if res.Record.Outcome != reservation.Granted {
				t.Fatalf("at once after %s: %+v", what, res)
			}
			held = res.Record.ID
		}
	}
	if got := j.gauge("twinhold_mysql_sold_out_remembered_total"); got == 0 {
		t.Error("nothing was remembered: this shows nothing")
	}
	for m := range n {
		if again, err := j.ByKey(ctx, shop, fmt.Sprint("k", m+1)); err != nil || again.ID == (reservation.ID{}) {
			t.Errorf("k%d is not stored: %v", m+1, err)
		}
	}
	j.invariants()
}

// TestSoldOutElsewhere: what another process gives back is sellable within a moment, though callers keep asking.
func TestSoldOutElsewhere(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(5)
	far := b.another()
	held := b.reserve("all", line(1, 5)).Record.ID
	if res := far.reserve("none", line(1, 1)); res.Record.Outcome != reservation.RejectedShort {
		t.Fatalf("%+v", res)
	}
	if _, err := b.Release(t.Context(), b.st, shop, held); err != nil {
		t.Fatal(err)
	}
	n, after := 0, time.Now()
	b.until("the other process sells it", func() bool {
		n++
		began := time.Now()
		res := far.reserve(fmt.Sprint("k", n), line(1, 1))
		granted := res.Record.Outcome == reservation.Granted
		if !granted && began.Sub(after) > 60*time.Millisecond {
			t.Errorf("rejected %v after it was given back", began.Sub(after))
		}
		return granted
	})
	b.invariants()
}

// TestWaterMark: a pool below the mark is refilled before anybody finds it empty.
func TestWaterMark(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	j := &jam{reg: reg}
	j.bench = open(t, complete, func(o *mysqlstore.Options) { o.Registerer, o.PoolSize = reg, 100 })
	j.stock(10_000)
	for n := range 20 {
		for m := range 8 {
			j.reserve(fmt.Sprint("k", n, "-", m), line(1, 10))
		}
		j.until("the pool is not below its mark, which is 30, and 10 for each of two transactions", func() bool {
			var units int
			err := j.DB().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM reservation_units").Scan(&units)
			return err == nil && units >= 50
		})
	}
	inline, background := j.gauge("twinhold_mysql_refills_total", "inline"), j.gauge("twinhold_mysql_refills_total", "background")
	if background < 10 || inline > background {
		t.Errorf("%v refills in the background, %v inline", background, inline)
	}
	j.invariants()
}

// TestAllPaths (I1, I2, I3, I6): two processes, 64 callers, few buckets: reserves, claims, releases, expiries, sweeps and
// adjustments. No error reaches a caller, and the tables add up.
func TestAllPaths(t *testing.T) {
	t.Parallel()
	one := &jam{reg: prometheus.NewRegistry()}
	one.bench = open(t, complete, func(o *mysqlstore.Options) { o.Registerer, o.PoolSize = one.reg, 100 })
	one.stock(300, 300, 300)
	two := one.another(func(o *mysqlstore.Options) { o.Registerer, o.NoMultiStatements = nil, true })
	limit := 3 * time.Second
	if devtest.Soak() {
		limit = time.Minute
	}
	stop := time.Now().Add(limit)
	var n, sold atomic.Int64
	var wg sync.WaitGroup
	stores := []*bench{one.bench, two}
	for c := range 64 {
		wg.Go(func() {
			b := stores[c%2]
			for time.Now().Before(stop) {
				k := n.Add(1)
				if err := buyAndEnd(t.Context(), t, b, k); err != nil {
					t.Error(err)
					return
				}
				if k%50 == 0 {
					adj := reservation.Adjustment{ID: fmt.Sprint("adj", k), Bucket: bucket(k%3 + 1), Delta: 20}
					if _, err := b.Adjust(t.Context(), b.st, adj); err != nil {
						t.Error(err)
						return
					}
					sold.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(stop) {
			if _, err := two.Sweep(t.Context(), two.st, 100); err != nil {
				t.Error(err)
				return
			}
			one.invariants()
		}
	})
	wg.Wait()
	t.Logf("%d carts, %d adjustments, %v deadlocks, %v shared transactions, %v members run alone", n.Load(), sold.Load(),
		one.gauge("twinhold_mysql_retries_total", "1213")+one.gauge("twinhold_mysql_lane_apart_total", "1213"),
		one.gauge("twinhold_mysql_lane_batch_members"), one.gauge("twinhold_mysql_lane_apart_total"))
	one.invariants()
}
