package diff_test

import (
	"context"
	"testing"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true}) }

// ledger is the tally table of a fresh schema, as routers see it.
func ledger(t *testing.T) func(router string) *diff.TallyTable {
	t.Helper()
	dsn := devtest.Schema(t)
	if err := mysqlstore.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	db, err := mysqlstore.OpenDB(dsn, mysqlstore.Options{MaxOpenConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return func(router string) *diff.TallyTable { return &diff.TallyTable{DB: db, Pod: "pod-1", Router: router} }
}

type levels struct{}

func (levels) Levels(context.Context, reservation.Bucket) (redis, mysql int64, err error) {
	return 0, 0, nil
}

func (levels) Lines(context.Context, int64, reservation.ID) ([]reservation.Line, error) {
	return nil, reservation.ErrNotFound
}

// counter is a router's engine with a clock of its own.
type counter struct {
	t      *testing.T
	engine *diff.Engine
	table  *diff.TallyTable
	now    time.Time
}

func newCounter(t *testing.T, table *diff.TallyTable, now time.Time) *counter {
	t.Helper()
	c := &counter{t: t, table: table, now: now}
	e, err := diff.New(diff.Options{Pod: "pod-1", Stores: levels{}, Sink: table, Now: func() time.Time { return c.now }})
	if err != nil {
		t.Fatal(err)
	}
	c.engine = e
	return c
}

// reserve counts one reserve that took the truth and then the mirror so long.
func (c *counter) reserve(st reservation.Stage, truth, mirror time.Duration, mirrors reservation.Decision) {
	c.t.Helper()
	id, err := reservation.NewID()
	if err != nil {
		c.t.Fatal(err)
	}
	s := c.engine.Begin(reservation.OpReserve)
	c.now = c.now.Add(truth)
	s.Decided(diff.Outcome{
		Decision: reservation.Granted, Record: &reservation.Record{ID: id, State: reservation.Held}, ID: id,
		Stamp: reservation.Stamp{Epoch: 1, Stage: st},
	})
	s.MirrorBegins()
	c.now = c.now.Add(mirror)
	s.Compare(reservation.Judgement{Decision: mirrors, State: reservation.Held})
}

func (c *counter) flush() {
	c.t.Helper()
	if err := c.engine.Settle(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	if err := c.engine.Flush(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func TestSumOfEveryRouter(t *testing.T) {
	t.Parallel()
	table := ledger(t)
	now := time.Now().UTC().Truncate(time.Hour)
	a, b := newCounter(t, table("a"), now), newCounter(t, table("b"), now.Add(-2*time.Hour))
	const n = 50
	for range n {
		a.reserve(reservation.Shadow, 2*time.Millisecond, 20*time.Millisecond, reservation.Granted)
		b.reserve(reservation.Cutover, 30*time.Millisecond, 3*time.Millisecond, reservation.Granted)
	}
	a.reserve(reservation.Shadow, time.Millisecond, time.Millisecond, reservation.RejectedShort) // nothing explains it
	b.engine.Begin(reservation.OpRelease).Undecided(diff.GapUnavailable, diff.Outcome{})
	a.engine.Found(diff.Find{Verdict: diff.Lost, Marked: true})
	a.flush()
	a.flush() // once more changes nothing
	b.flush()
	got, err := table("reader").Sum(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got.Operations != 2*n+2 || got.Compared != 2*n+1 || got.Unexplained != 1 || got.Gaps["unavailable"] != 1 || got.GapTotal() != 1 ||
		got.Verdicts["match"] != 2*n || got.Verdicts["false_soldout"] != 1 || got.Found["lost"] != 1 || got.Timed != 2*n+1 || got.Routers != 2 {
		t.Errorf("the sum is %+v", got)
	}
	if !got.Last.Equal(now) || !got.First.Equal(now.Add(-2*time.Hour)) {
		t.Errorf("from %v to %v, want %v to %v", got.First, got.Last, now.Add(-2*time.Hour), now)
	}
	// Redis: half took 2 ms, half 3. MySQL: half 20, half 30.
	for name, c := range map[string]struct{ got, want float64 }{
		"redis p50": {got.RedisMS.P50, 2}, "redis p99": {got.RedisMS.P99, 3},
		"mysql p50": {got.MySQLMS.P50, 20}, "mysql p99": {got.MySQLMS.P99, 30},
	} {
		if c.got < c.want || c.got > 1.051*c.want {
			t.Errorf("%s is %v, want %v and a twentieth more at most", name, c.got, c.want)
		}
	}
}

func TestSumOfTheLastHours(t *testing.T) {
	t.Parallel()
	table := ledger(t)
	now := time.Now().UTC().Truncate(time.Hour)
	for i, ago := range []time.Duration{0, 5 * time.Hour, 50 * time.Hour} {
		c := newCounter(t, table(string(rune('a'+i))), now.Add(-ago))
		c.reserve(reservation.Shadow, time.Millisecond, time.Millisecond, reservation.Granted)
		c.flush()
	}
	for since, want := range map[time.Duration]int64{0: 3, time.Minute: 1, 24 * time.Hour: 2, 52 * time.Hour: 3} {
		if got, err := table("reader").Sum(t.Context(), since); err != nil || got.Compared != want {
			t.Errorf("the last %v: %+v, %v; want %d", since, got, err, want)
		}
	}
	other := table("reader")
	other.Pod = "pod-2"
	if got, err := other.Sum(t.Context(), 0); err != nil || got.Operations != 0 || !got.First.IsZero() {
		t.Errorf("a pod without tallies: %+v, %v", got, err)
	}
}

// Only what a mirror has missed, of other routers, and of late.
func TestOthersGaps(t *testing.T) {
	t.Parallel()
	table := ledger(t)
	now := time.Now().UTC().Truncate(time.Hour)
	gaps := func(router string, at time.Time, reasons ...diff.GapReason) {
		c := newCounter(t, table(router), at)
		for _, r := range reasons {
			c.engine.Begin(reservation.OpRelease).Undecided(r, diff.Outcome{})
		}
		c.flush()
	}
	gaps("me", now, diff.GapTimeout)
	gaps("a", now, diff.GapTimeout, diff.GapCut, diff.GapUnavailable, diff.GapRefused, diff.GapNoMirror)
	gaps("b", now.Add(-3*time.Hour), diff.GapQueueFull)
	for ago, want := range map[time.Duration]int64{0: 2, 3 * time.Hour: 3} {
		if n, err := table("me").OthersGaps(t.Context(), now.Add(-ago)); err != nil || n != want {
			t.Errorf("%d gaps, %v: want %d", n, err, want)
		}
	}
}
