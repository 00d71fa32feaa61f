package mysqlstore_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// BenchmarkLanes prints operations per second with lanes against those without, within one run.
//
//	TWINHOLD_BENCH_RTT=500us go test ./mysqlstore -run '^$' -bench Lanes/reserve/64 -benchtime 1x
func BenchmarkLanes(b *testing.B) {
	for _, what := range []string{"reserve", "claim", "sold out"} {
		for _, callers := range []int{1, 2, 4, 16, 64, 256} {
			for _, buckets := range []int{1, 100} {
				b.Run(fmt.Sprintf("%s/%d callers/%d buckets", what, callers, buckets), func(b *testing.B) {
					for b.Loop() {
						compareLanes(b, what, callers, buckets)
					}
				})
			}
		}
	}
}

func benchFor() time.Duration {
	d, err := time.ParseDuration(os.Getenv("TWINHOLD_BENCH_FOR"))
	if err != nil {
		return 1500 * time.Millisecond
	}
	return d
}

// compareLanes runs the modes one after the other, three times, and reports the medians.
func compareLanes(b *testing.B, what string, callers, buckets int) {
	modes := []struct {
		name string
		tune func(*mysqlstore.Options)
	}{
		{"none", func(o *mysqlstore.Options) { o.NoLanes = true }},
		{"single", func(o *mysqlstore.Options) { o.NoMultiStatements = true }},
		{"packets", func(*mysqlstore.Options) {}},
	}
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("TWINHOLD_BENCH_ROUNDS")); err == nil {
		rounds = n
	}
	rates := map[string][]float64{}
	for range rounds {
		for _, m := range modes {
			rates[m.name] = append(rates[m.name], rate(b, what, callers, buckets, m.tune))
		}
		if what == "reserve" && buckets == 1 {
			rates["row"] = append(rates["row"], singleRow(b, callers))
		}
	}
	base := median(rates["none"])
	for _, m := range modes {
		b.ReportMetric(median(rates[m.name]), m.name+"/s")
		b.ReportMetric(median(rates[m.name])/base, m.name+"-ratio")
	}
	if row := rates["row"]; row != nil {
		b.ReportMetric(median(row), "row/s")
		b.ReportMetric(median(rates["packets"])/median(row), "packets-to-row")
	}
}

// singleRow is how many reserves a second one row with a counter gives: the update, a header, COMMIT.
func singleRow(b *testing.B, callers int) float64 {
	s := open(b, complete, func(o *mysqlstore.Options) { o.MaxOpenConns = 64 })
	far := s.another(behindDelay(b, s))
	ctx := b.Context()
	for _, q := range []string{
		"CREATE TABLE one_row (id INT PRIMARY KEY, available BIGINT NOT NULL)", "INSERT INTO one_row VALUES (1, 1000000000)",
		"CREATE TABLE header (id BINARY(16) PRIMARY KEY, idem_key VARBINARY(255), created_at DATETIME(6), UNIQUE (idem_key))",
	} {
		if _, err := s.DB().ExecContext(ctx, q); err != nil {
			b.Fatal(err)
		}
	}
	var done atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for time.Since(began) < benchFor() {
				id := newID(b)
				tx, err := far.DB().BeginTx(ctx, nil)
				if err == nil {
					_, err = tx.ExecContext(ctx, "UPDATE one_row SET available = available - 1 WHERE id = 1 AND available >= 1")
				}
				if err == nil {
					_, err = tx.ExecContext(ctx, "INSERT INTO header VALUES (?, ?, UTC_TIMESTAMP(6))", id[:], id.String())
				}
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

func median(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[len(sorted)/2]
}

// rate is how many operations a second so many callers get done on a fresh schema.
func rate(b *testing.B, what string, callers, buckets int, tune func(*mysqlstore.Options)) float64 {
	s := open(b, complete)
	stock := make([]int64, buckets)
	for n := range stock {
		stock[n] = 10_000_000
		if what == "sold out" {
			stock[n] = 0
		}
	}
	s.stock(stock...)
	far := s.another(tune, behindDelay(b, s))
	var n, done atomic.Int64
	run := func(limit time.Duration, op func(context.Context, int64) error) {
		ctx, cancel := context.WithTimeout(b.Context(), limit)
		defer cancel()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := op(b.Context(), n.Add(1)); err != nil {
						b.Error(err)
						return
					}
					done.Add(1)
				}
			})
		}
		wg.Wait()
	}
	ids := make(chan reservation.ID, 400_000)
	reserve := func(ctx context.Context, n int64) error {
		id := newID(b)
		req := request(b, fmt.Sprint("k", n), time.Hour, line(n%int64(buckets)+1, 1))
		res, err := far.Reserve(ctx, far.st, id, req)
		if err == nil && (res.Record.Outcome == reservation.Granted) == (what == "sold out") {
			err = fmt.Errorf("%+v", res)
		}
		if what == "claim" {
			ids <- id
		}
		return err
	}
	run(300*time.Millisecond, reserve)
	if what == "claim" {
		prepare := s.another()
		far, prepare = prepare, far
		run(2*benchFor(), reserve)
		far = prepare
		held := len(ids)
		began := time.Now()
		var last atomic.Int64
		done.Store(0)
		run(benchFor(), func(ctx context.Context, _ int64) error {
			select {
			case id := <-ids:
				_, err := far.Claim(ctx, far.st, shop, id)
				last.Store(int64(time.Since(began)))
				return err
			default:
				<-time.After(time.Millisecond)
				done.Add(-1)
				return nil
			}
		})
		if int(done.Load()) == held {
			b.Logf("all %d were claimed before the time was over", held)
		}
		return float64(done.Load()) / time.Duration(last.Load()).Seconds()
	}
	done.Store(0)
	began := time.Now()
	run(benchFor(), reserve)
	return float64(done.Load()) / time.Since(began).Seconds()
}

// behindDelay puts a proxy before the server that delays each message, if the environment says so.
func behindDelay(b *testing.B, s *bench) func(*mysqlstore.Options) {
	rtt, err := time.ParseDuration(os.Getenv("TWINHOLD_BENCH_RTT"))
	if err != nil {
		return func(*mysqlstore.Options) {}
	}
	cfg, err := mysql.ParseDSN(s.dsn)
	if err != nil {
		b.Fatal(err)
	}
	p, err := faultproxy.Start(cfg.Addr, faultproxy.MySQL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	p.SetRTT(rtt)
	cfg.Addr = p.Addr()
	return func(o *mysqlstore.Options) { o.DSN = cfg.FormatDSN() }
}

// BenchmarkMirrorLanes prints mirror operations per second on one hot bucket: each caller stores a hold, and ends every
// second one.
//
//	go test ./mysqlstore -run '^$' -bench MirrorLanes -benchtime 1x
func BenchmarkMirrorLanes(b *testing.B) {
	for _, callers := range []int{8, 32, 64} {
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			for b.Loop() {
				alone := mirrorRate(b, callers, func(o *mysqlstore.Options) { o.NoLanes = true })
				singly := mirrorRate(b, callers, func(o *mysqlstore.Options) { o.NoMultiStatements = true })
				packets := mirrorRate(b, callers, func(*mysqlstore.Options) {})
				b.ReportMetric(alone, "none/s")
				b.ReportMetric(singly, "single/s")
				b.ReportMetric(packets, "packets/s")
				b.ReportMetric(packets/alone, "packets-ratio")
			}
		})
	}
}

func mirrorRate(b *testing.B, callers int, tune func(*mysqlstore.Options)) float64 {
	s := open(b, shadow)
	s.stock(10_000_000)
	far := s.another(tune, behindDelay(b, s))
	var done atomic.Int64
	run := func(limit time.Duration) {
		began := time.Now()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for n := 0; time.Since(began) < limit; n++ {
					rec := truthRecord(b, newID(b).String(), reservation.Held, time.Hour, line(1, 1))
					ops := []reservation.MirrorOp{granted(rec), released(rec)}
					for _, op := range ops[:1+n%2] {
						if _, err := far.Mirror(b.Context(), far.st, op); err != nil {
							b.Error(err)
							return
						}
						done.Add(1)
					}
				}
			})
		}
		wg.Wait()
	}
	run(300 * time.Millisecond)
	done.Store(0)
	began := time.Now()
	run(benchFor())
	return float64(done.Load()) / time.Since(began).Seconds()
}
