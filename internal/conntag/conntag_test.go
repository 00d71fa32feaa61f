package conntag_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true}) }

// clock is moved by the test, so that every second can be told exactly.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time         { return time.Unix(0, c.at.Load()) }
func (c *clock) passes(d time.Duration) { c.at.Add(int64(d)) }

type rig struct {
	*testing.T
	clock *clock
	meter *conntag.Meter
	reg   *prometheus.Registry
	db    *sql.DB
}

func connectorTo(t *testing.T) driver.Connector {
	t.Helper()
	cfg, err := mysql.ParseDSN(devtest.Schema(t) + "?interpolateParams=true&innodb_lock_wait_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newRig(t *testing.T, now func(*clock) func() time.Time) *rig {
	t.Helper()
	r := &rig{T: t, clock: &clock{}, reg: prometheus.NewRegistry()}
	var err error
	if r.meter, err = conntag.New(conntag.Options{Registerer: r.reg, Now: now(r.clock)}); err != nil {
		t.Fatal(err)
	}
	r.db = sql.OpenDB(r.meter.Wrap(connectorTo(t)))
	t.Cleanup(func() { _ = r.db.Close() })
	return r
}

func byHand(c *clock) func() time.Time { return c.now }
func real(*clock) func() time.Time     { return time.Now }

func (r *rig) exec(on interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any,
) {
	r.Helper()
	if _, err := on.ExecContext(r.Context(), query, args...); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) conn() *sql.Conn {
	r.Helper()
	c, err := r.db.Conn(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *rig) close(c *sql.Conn) {
	r.Helper()
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
}

// usage is what stands for each tag: statements, seconds held, longest, in use.
func (r *rig) usage() map[string]string {
	all := map[string]string{}
	for _, u := range r.meter.Usage() {
		all[u.Tag] = fmt.Sprintf("%d statements, held %v, longest %v, in use %d", u.Statements, u.Held, u.Longest, u.InUse)
	}
	return all
}

func (r *rig) want(what string, want map[string]string) {
	r.Helper()
	if got := r.usage(); !maps.Equal(got, want) {
		r.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

func TestEverySecondOfAHoldIsSomebodys(t *testing.T) {
	t.Parallel()
	r := newRig(t, byHand)
	c := r.conn()
	r.exec(c, "/* conn_tag:a */ DO 1")
	r.close(c)
	r.clock.passes(time.Hour) // in the pool: nobody's
	r.want("returned at once", map[string]string{"a": "1 statements, held 0s, longest 0s, in use 0"})

	c = r.conn()
	r.want("checked out, and nothing sent yet", map[string]string{
		"a": "1 statements, held 0s, longest 0s, in use 0", conntag.Idle: "0 statements, held 0s, longest 0s, in use 1",
	})
	r.clock.passes(time.Second)
	r.exec(c, "/* conn_tag:a */ DO 1")
	r.clock.passes(2 * time.Second)
	r.exec(c, "DO /* conn_tag:b */ 1")
	r.clock.passes(4 * time.Second)
	r.want("while it lasts", map[string]string{
		"a": "2 statements, held 3s, longest 3s, in use 0", "b": "1 statements, held 4s, longest 4s, in use 1",
	})
	r.clock.passes(8 * time.Second)
	r.close(c)
	r.clock.passes(time.Hour)
	r.want("returned", map[string]string{
		"a": "2 statements, held 3s, longest 3s, in use 0", "b": "1 statements, held 12s, longest 12s, in use 0",
	})
	c = r.conn()
	r.clock.passes(16 * time.Second)
	r.close(c)
	if got := r.usage()[conntag.Idle]; got != "0 statements, held 16s, longest 16s, in use 0" {
		t.Errorf("a connection that nobody used: %s", got)
	}
}

func TestTransactionsPreparedStatementsAndPings(t *testing.T) {
	t.Parallel()
	r := newRig(t, byHand)
	if err := r.db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := r.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	r.clock.passes(time.Second)
	st, err := tx.PrepareContext(t.Context(), "/* conn_tag:prepared */ SELECT ? + 1")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		var got int
		if err := st.QueryRowContext(t.Context(), n).Scan(&got); err != nil || got != n+1 {
			t.Errorf("%d: %d, %v", n, got, err)
		}
	}
	r.clock.passes(2 * time.Second)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	tx, err = r.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.exec(tx, "DO 2")
	r.clock.passes(4 * time.Second)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.want("all", map[string]string{
		"driver.ping": "1 statements, held 0s, longest 0s, in use 0", "driver.begin": "2 statements, held 1s, longest 1s, in use 0",
		"prepared": "3 statements, held 2s, longest 2s, in use 0", "driver.commit": "1 statements, held 0s, longest 0s, in use 0",
		conntag.Untagged: "1 statements, held 4s, longest 4s, in use 0", "driver.rollback": "1 statements, held 0s, longest 0s, in use 0",
	})
	if n := r.meter.Untagged(); n != 1 {
		t.Errorf("%d statements without a tag", n)
	}
}

// Without interpolation the driver declines a statement with values, and database/sql prepares it: one statement.
func TestAStatementThatTheDriverPreparesCountsOnce(t *testing.T) {
	t.Parallel()
	meter, err := conntag.New(conntag.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := mysql.ParseDSN(devtest.Schema(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(meter.Wrap(c))
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "/* conn_tag:once */ DO ?", 1); err != nil {
		t.Fatal(err)
	}
	u := meter.Usage()
	if len(u) != 1 || u[0].Tag != "once" || u[0].Statements != 1 || u[0].Held <= 0 || u[0].Longest > u[0].Held || u[0].InUse != 0 {
		t.Errorf("%+v", u)
	}
}

// Many at once, and somebody who reads: each statement is counted, nothing is in use at the end, and what is read
// never goes down.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, real)
	r.db.SetMaxOpenConns(4)
	const callers, each = 8, 50
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			for range each {
				if _, err := r.db.ExecContext(t.Context(), fmt.Sprintf("/* conn_tag:caller_%d */ DO 1", n%2)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	held := map[string]time.Duration{}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		for _, u := range r.meter.Usage() {
			if u.Held < held[u.Tag] || u.Longest > u.Held {
				t.Errorf("%s: held %v after %v, longest %v", u.Tag, u.Held, held[u.Tag], u.Longest)
			}
			held[u.Tag] = u.Held
		}
	}
	delete(held, conntag.Idle) // seen between a checkout and its statement
	for _, u := range r.meter.Usage() {
		if u.Statements != callers/2*each || u.InUse != 0 {
			t.Errorf("%+v", u)
		}
	}
	if len(held) != 2 {
		t.Errorf("tags: %v", held)
	}
}

func TestWhatTheMetricsSay(t *testing.T) {
	t.Parallel()
	r := newRig(t, byHand)
	c := r.conn()
	r.exec(c, "/* conn_tag:slow */ DO 1")
	r.exec(c, "DO 1")
	r.exec(c, "/* conn_tag:slow */ DO 1")
	r.clock.passes(3 * time.Second)
	defer r.close(c)
	for _, m := range []struct {
		name string
		want float64
	}{{conntag.MetricHeld, 3}, {conntag.MetricLongest, 3}, {conntag.MetricInUse, 1}, {conntag.MetricUntagged, 1}, {conntag.MetricStatements, 2}} {
		if got := metric(t, r.reg, m.name, map[string]string{"tag": "slow"}); got != m.want {
			t.Errorf("%s is %v, want %v", m.name, got, m.want)
		}
	}
	if _, err := conntag.New(conntag.Options{Registerer: r.reg}); err == nil {
		t.Error("two meters on one registry, and nobody said so")
	}
}

// metric reads one figure: a counter's or a gauge's, or how many a histogram has seen. A metric without labels is
// found by any.
func metric(t *testing.T, g prometheus.Gatherer, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if want, ok := labels[l.GetName()]; ok && want != l.GetValue() {
					continue next
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return 0
}
