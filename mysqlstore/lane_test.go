package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// jam is a store whose lanes can be stopped up: transactions that run alone stay where they are, before their COMMIT,
// so that all who come after them wait, and are then carried out together.
type jam struct {
	*bench
	reg    *prometheus.Registry
	hold   chan struct{}
	jammed atomic.Bool
	held   atomic.Int64      // who stay where they are
	shared func(step string) // called at each step of a shared transaction

	solos   sync.WaitGroup
	waiting int
	slack   int // how many of these may have got a turn, because one who waited for a lock gave up
}

// jamTime is how long those who run alone may stay where they are, on a machine that has much else to do.
const jamTime = 30 * time.Second

// impatient is for those who lose replies: a transaction whose reply is swallowed ends with its time limit.
func impatient(o *mysqlstore.Options) { o.WriteTimeout = 5 * time.Second }

// multi runs a test with several statements in a packet, and one by one.
func multi(t *testing.T, body func(t *testing.T, tune func(*mysqlstore.Options))) {
	t.Helper()
	for name, off := range map[string]bool{"packets": false, "singly": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(t, func(o *mysqlstore.Options) { o.NoMultiStatements = off })
		})
	}
}

func newJam(t *testing.T, st reservation.Stamp, tune ...func(*mysqlstore.Options)) *jam {
	t.Helper()
	j := &jam{reg: prometheus.NewRegistry(), hold: make(chan struct{})}
	j.bench = open(t, st, append(tune, j.options)...)
	return j
}

func (j *jam) options(o *mysqlstore.Options) {
	o.Registerer, o.WriteTimeout, o.LockWait = j.reg, jamTime, 3*time.Second
	o.Failpoint = func(step string) {
		path, name, _ := strings.Cut(step, ".")
		stops := slices.Contains([]string{"reserve", "reserve_shared", "release"}, path) && name == "commit"
		switch {
		case j.jammed.Load() && stops:
			j.held.Add(1)
			<-j.hold
		case strings.HasSuffix(path, "_shared") && j.shared != nil:
			j.shared(step)
		}
	}
}

// queue starts a call, and returns once it waits in its lane.
func (j *jam) queue(op func() error) chan error {
	j.t.Helper()
	done := j.start(op)
	j.allWait()
	return done
}

func (j *jam) start(op func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- op() }()
	j.waiting++
	return done
}

func (j *jam) allWait() {
	j.t.Helper()
	j.until("the calls wait in their lane", func() bool {
		n := int(j.gauge("twinhold_mysql_lane_waiting"))
		return n <= j.waiting && n >= j.waiting-j.slack
	})
}

// letGo lets those go who run alone; with them gone, all who wait are carried out.
func (j *jam) letGo() {
	j.jammed.Store(false)
	close(j.hold)
}

// gauge sums a metric of the store over its labels; of a histogram, its count.
func (j *jam) gauge(name string, labels ...string) (sum float64) {
	j.t.Helper()
	families, err := j.reg.Gather()
	if err != nil {
		j.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			text := fmt.Sprint(m.GetLabel())
			has := true
			for _, l := range labels {
				has = has && strings.Contains(text, `"`+l+`"`)
			}
			if has {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// buy is a reserve of one cart under this key.
func (j *jam) buy(ctx context.Context, key string, lines ...reservation.Line) (reservation.Result, error) {
	return j.Reserve(ctx, j.st, newID(j.t), request(j.t, key, 10*time.Minute, lines...))
}

// stopReserves stops up the lane of item 1, which loses 2 units by that.
func (j *jam) stopReserves() {
	j.t.Helper()
	j.reserve("fills the pool", line(1, 1))
	j.jammed.Store(true)
	for n := range 2 {
		j.solos.Go(func() {
			if _, err := j.buy(j.t.Context(), fmt.Sprint("solo", n), line(1, 1)); err != nil {
				j.t.Error(err)
			}
		})
	}
	j.until("two run alone", func() bool { return j.held.Load() == 2 })
}

// TestLaneIsolation: a request that fails, whatever the reason, is answered as it would be alone, and harms nobody.
func TestLaneIsolation(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		j := newJam(t, complete, tune)
		j.stock(100, 100)
		old := j.reserve("old", line(1, 1))
		j.stopReserves()
		var good []chan error
		for n := range 6 {
			good = append(good, j.queue(func() error {
				res, err := j.buy(t.Context(), fmt.Sprint("k", n), line(1, 1), line(2, 1))
				if err == nil && (res.Replayed || res.Record.State != reservation.Held) {
					err = fmt.Errorf("%+v", res)
				}
				return err
			}))
		}
		conflict := j.queue(func() error { _, err := j.buy(t.Context(), "old", line(1, 2)); return err })
		replay := j.queue(func() error {
			res, err := j.buy(t.Context(), "old", line(1, 1))
			if err == nil && (!res.Replayed || res.Record.ID != old.Record.ID) {
				err = fmt.Errorf("%+v", res)
			}
			return err
		})
		unknown := j.queue(func() error { _, err := j.buy(t.Context(), "unknown", line(1, 1), line(99, 1)); return err })
		twice := j.queue(func() error {
			_, err := j.Reserve(t.Context(), j.st, old.Record.ID, request(t, "another key", time.Minute, line(1, 1)))
			return err
		})
		j.letGo()
		for _, done := range append(good, replay) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		var ub *reservation.UnknownBucketError
		if err := <-unknown; !errors.As(err, &ub) || ub.Bucket != bucket(99) {
			t.Errorf("a bucket that is not there: %v", err)
		}
		for _, done := range []chan error{conflict, twice} {
			if err := <-done; !errors.Is(err, reservation.ErrKeyConflict) {
				t.Errorf("a key or an id that is another's: %v", err)
			}
		}
		if n := j.gauge("twinhold_mysql_lane_apart_total", "1062"); n == 0 {
			t.Error("no shared transaction failed: this shows nothing")
		}
		j.solos.Wait()
		j.figures(1, 100-1-1-2-6, 100)
		j.figures(2, 94, 100)
		j.invariants()
	})
}

// TestLaneIsFair: the last units go to those who came first.
func TestLaneIsFair(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		j := newJam(t, complete, tune)
		j.stock(9)
		j.stopReserves() // 6 are left
		var outcomes [8]reservation.Result
		var calls []chan error
		for n, quantity := range []int64{2, 5, 1, 2, 1, 1, 1, 1} {
			calls = append(calls, j.queue(func() (err error) {
				outcomes[n], err = j.buy(t.Context(), fmt.Sprint("k", n), line(1, quantity))
				return err
			}))
		}
		j.letGo()
		for n, done := range calls {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			want := reservation.Granted
			if n == 1 || n > 4 {
				want = reservation.RejectedShort
			}
			if got := outcomes[n].Record.Outcome; got != want {
				t.Errorf("caller %d: %s, want %s", n, got, want)
			}
		}
		j.solos.Wait()
		j.figures(1, 0, 9)
		j.invariants()
	})
}

// TestLaneCancelled: who goes before its work begins changes nothing, and is told in time. Who goes later is told that
// the outcome is unknown, and finds it under its key.
func TestLaneCancelled(t *testing.T) {
	t.Parallel()
	j := newJam(t, complete)
	j.stock(100)
	j.stopReserves()
	ctx, cancel := context.WithCancel(t.Context())
	gone := j.queue(func() error { _, err := j.buy(ctx, "gone", line(1, 1)); return err })
	soon, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	began := time.Now()
	_, err := j.buy(soon, "deadline", line(1, 1))
	if reservation.CodeOf(err) != reservation.CodeUnavailable || time.Since(began) > 2*time.Second {
		t.Errorf("a deadline in the lane: %v after %v", err, time.Since(began))
	}
	cancel()
	var uo *reservation.UnknownOutcomeError
	if err := <-gone; reservation.CodeOf(err) != reservation.CodeUnavailable || errors.As(err, &uo) {
		t.Errorf("gone before its work began: %v", err)
	}
	if n := j.gauge("twinhold_mysql_lane_dropped_total"); n != 2 {
		t.Errorf("%v were dropped, not 2", n)
	}
	j.waiting--

	late, leave := context.WithCancel(t.Context())
	at, on := make(chan struct{}), make(chan struct{})
	var once sync.Once
	j.shared = func(step string) {
		if step == "reserve_shared.commit" {
			once.Do(func() { close(at); <-on })
		}
	}
	lost := j.queue(func() error { _, err := j.buy(late, "late", line(1, 1)); return err })
	stays := j.queue(func() error { _, err := j.buy(t.Context(), "stays", line(1, 1)); return err })
	j.letGo()
	<-at
	leave()
	if err := <-lost; !errors.As(err, &uo) {
		t.Errorf("gone while its transaction ran: %v", err)
	}
	close(on)
	if err := <-stays; err != nil {
		t.Error(err)
	}
	j.solos.Wait()
	if res := j.reserve("late", line(1, 1)); !res.Replayed || res.Record.State != reservation.Held {
		t.Errorf("its outcome: %+v", res)
	}
	j.figures(1, 100-1-2-2, 100)
	for _, key := range []string{"gone", "deadline"} {
		if _, err := j.ByKey(t.Context(), shop, key); !errors.Is(err, reservation.ErrNotFound) {
			t.Errorf("%s: %v", key, err)
		}
	}
	j.invariants()
}

// TestLaneStamps: members of another epoch never share; each meets the fence as it would alone.
func TestLaneStamps(t *testing.T) {
	t.Parallel()
	j := newJam(t, complete)
	j.stock(100)
	j.stopReserves()
	call := func(key string, st reservation.Stamp) chan error {
		return j.queue(func() error {
			_, err := j.Reserve(t.Context(), st, newID(t), request(t, key, time.Minute, line(1, 1)))
			return err
		})
	}
	var now, stale, next []chan error
	for n := range 3 {
		now = append(now, call(fmt.Sprint("now", n), j.st))
		stale = append(stale, call(fmt.Sprint("stale", n), stamp(j.st.Epoch-1, reservation.Cutover)))
		next = append(next, call(fmt.Sprint("next", n), stamp(j.st.Epoch+1, reservation.Complete)))
	}
	j.letGo()
	for n := range 3 {
		var fe *reservation.FenceError
		if err := <-stale[n]; !errors.As(err, &fe) || fe.Verdict != reservation.Stale {
			t.Errorf("an older epoch: %v", err)
		}
		if err := <-next[n]; err != nil {
			t.Errorf("a newer epoch: %v", err)
		}
		if err := <-now[n]; err != nil && (!errors.As(err, &fe) || fe.Verdict != reservation.Stale) {
			t.Errorf("this epoch: %v", err) // the newer one's transaction may have been first
		}
	}
	j.solos.Wait()
	if f := j.fence(); f.Epoch != j.st.Epoch+1 {
		t.Errorf("the fence: %+v", f)
	}
	j.invariants()
}

// TestLaneSameKey (I9): one key several times at once is one reservation.
func TestLaneSameKey(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		j := newJam(t, complete, tune)
		j.stock(100)
		j.stopReserves()
		results := make([]reservation.Result, 5)
		var calls []chan error
		for n := range results {
			calls = append(calls, j.queue(func() (err error) {
				results[n], err = j.buy(t.Context(), "same", line(1, 3))
				return err
			}))
		}
		j.letGo()
		fresh := 0
		for n, done := range calls {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if !results[n].Replayed {
				fresh++
			}
			if results[n].Record.ID != results[0].Record.ID || results[n].Record.State != reservation.Held {
				t.Errorf("caller %d: %+v", n, results[n])
			}
		}
		if fresh != 1 {
			t.Errorf("%d of them were first", fresh)
		}
		j.solos.Wait()
		j.figures(1, 100-3-3, 100)
		j.invariants()
	})
}

// TestLaneLostCommit (I6): the reply to a shared COMMIT is lost, in every way. Each member gets its own outcome, once.
func TestLaneLostCommit(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		for name, lose := range commitLoss() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				near := open(t, complete, func(o *mysqlstore.Options) { o.WriteTimeout = jamTime })
				near.stock(100)
				j := &jam{reg: prometheus.NewRegistry(), hold: make(chan struct{})}
				far, p := near.behind(t, tune, j.options, impatient)
				j.bench = far
				j.stopReserves()
				var fault *faultproxy.Fault
				var once sync.Once
				j.shared = func(step string) {
					if strings.HasSuffix(step, "_shared.commit") {
						once.Do(func() {
							j.solos.Wait() // theirs is another COMMIT
							fault = lose(p)
						})
					}
				}
				results := make([]reservation.Result, 10)
				calls := make([]chan error, len(results))
				for n := range results {
					calls[n] = j.start(func() (err error) {
						results[n], err = j.buy(t.Context(), fmt.Sprint("k", n), line(1, 1))
						return err
					})
				}
				j.allWait()
				j.letGo()
				for n, done := range calls {
					if err := <-done; err != nil || results[n].Replayed || results[n].Record.State != reservation.Held {
						t.Errorf("caller %d: %+v, %v", n, results[n], err)
					}
				}
				apart := j.gauge("twinhold_mysql_lane_apart_total", "commit")
				if fault == nil || fault.Fired() != 1 || apart != 10 {
					t.Errorf("%v of 10 were told that the reply to their COMMIT was lost (%+v): this shows nothing", apart, fault)
				}
				far.figures(1, 100-3-10, 100)
				near.invariants()
				claimsLost(t, near, lose, results[:5], true, tune)
				claimsLost(t, near, lose, results[5:], false, tune)
				near.figures(1, 100-3-9, 100-9)
				near.invariants()
			})
		}
	})
}

// claimsLost claims holds together, with a release among them if that is asked for, and loses the reply to their COMMIT.
func claimsLost(
	t *testing.T, near *bench, lose func(*faultproxy.Proxy) *faultproxy.Fault, held []reservation.Result, release bool,
	tune func(*mysqlstore.Options),
) {
	t.Helper()
	j := &jam{reg: prometheus.NewRegistry(), hold: make(chan struct{})}
	far, p := near.behind(t, tune, j.options, impatient)
	j.bench = far
	j.stopReleases(near)
	var fault *faultproxy.Fault
	var once sync.Once
	j.shared = func(step string) {
		if step == "ledger_shared.commit" || step == "claim_shared.commit" {
			once.Do(func() { fault = lose(p) }) // it has the ledger's row, so nobody else of this bucket is at a COMMIT
		}
	}
	calls := make([]chan error, len(held))
	for n, h := range held {
		calls[n] = j.start(func() error {
			if n == 0 && release {
				res, err := j.Release(t.Context(), j.st, shop, h.Record.ID)
				if err == nil && (res.Replayed || res.WasExpired) {
					err = fmt.Errorf("%+v", res)
				}
				return err
			}
			res, err := j.Claim(t.Context(), j.st, shop, h.Record.ID)
			if err == nil && (res.Replayed || res.Record.State != reservation.Claimed) {
				err = fmt.Errorf("%+v", res)
			}
			return err
		})
	}
	j.allWait()
	j.letGo()
	for n, done := range calls {
		if err := <-done; err != nil {
			t.Errorf("ending %d: %v", n, err)
		}
	}
	if fault == nil || fault.Fired() != 1 {
		t.Error("no reply of a shared COMMIT was lost: this shows nothing")
	}
	if !release && far.Packets() && j.gauge("twinhold_mysql_operation_duration_seconds", "claim_shared") == 0 {
		t.Error("no claims were one packet: this shows nothing of them")
	}
}

// stopReleases stops up the ledger's lane of item 1, with two holds that are given back by it.
func (j *jam) stopReleases(near *bench) {
	j.t.Helper()
	var ids []reservation.ID
	for n := range 2 {
		ids = append(ids, near.reserve(fmt.Sprint("to be released", n, newID(j.t)), line(1, 1)).Record.ID)
	}
	j.slack = 2
	j.jammed.Store(true)
	for _, id := range ids {
		j.solos.Go(func() {
			if _, err := j.Release(j.t.Context(), j.st, shop, id); err != nil {
				j.t.Error(err)
			}
		})
	}
	j.until("one holds the ledger's row, one waits for it", func() bool {
		var n int
		err := near.DB().QueryRowContext(j.t.Context(), `SELECT COUNT(*) FROM performance_schema.data_locks
WHERE OBJECT_SCHEMA = DATABASE() AND OBJECT_NAME = 'inventory_ledger' AND LOCK_TYPE = 'RECORD'`).Scan(&n)
		return err == nil && n == 2
	})
}
