package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

// serveAsWorker is the test binary as a process of callers.
func serveAsWorker() {
	if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func worker(ctx context.Context) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), asWorker+"=1")
	return cmd, nil
}

func testServers(t *testing.T) Servers {
	t.Helper()
	return Servers{
		MySQL: devtest.MySQL(t).DSN(""), Redis: devtest.RedisURL(t),
		MySQLPID: devtest.MySQL(t).PID(), RedisPID: devtest.Redis(t).PID(), Versions: "test",
	}
}

func short(t *testing.T, kind string) Options {
	t.Helper()
	return Options{Bench: kind, Servers: testServers(t), Callers: []int{4}, Measure: 200 * time.Millisecond, Rounds: 1, Worker: worker}
}

// schemasLeft are scratch schemas on the server.
func schemasLeft(t *testing.T) []string {
	t.Helper()
	db, err := openRows(devtest.MySQL(t).DSN(""), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "/* conn_tag:test */ SHOW DATABASES LIKE 'twinhold\\_bench%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var left []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		left = append(left, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return left
}

// keysLeft are keys of scratch places on the server.
func keysLeft(t *testing.T) (left []string) {
	t.Helper()
	err := withRedis(devtest.RedisURL(t), func(c *redis.Client) (err error) {
		left, err = c.Keys(t.Context(), "{twinhold_bench_*").Result()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// Every scheme of every bench, with all that a flag can add, gives figures and balanced books, and leaves nothing.
func TestEverySchemeIsExact(t *testing.T) {
	benches := []struct {
		name string
		set  func(*Options)
	}{
		{Pool, func(o *Options) {
			o.Buckets, o.Skew, o.Retries, o.Hold, o.RTT = 3, 1.1, 0.2, time.Millisecond, 200*time.Microsecond
		}},
		{Claim, func(o *Options) { o.Retries = 0.2 }},
		{SoldOut, func(o *Options) { o.Retries = 0.2 }},
		{Neighbours, func(*Options) {}},
		{Mirror, func(o *Options) { o.Buckets, o.RTT = 3, 200*time.Microsecond }},
		{Cost, func(o *Options) {
			o.Callers, o.Schemes = []int{1, 40}, []string{"stock_10", "holds_1000", "lines_10"}
		}},
	}
	t.Run("benches", func(t *testing.T) {
		for _, tc := range benches {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				checkBench(t, tc.name, tc.set)
			})
		}
	})
	if left := append(schemasLeft(t), keysLeft(t)...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func checkBench(t *testing.T, name string, set func(*Options)) {
	t.Helper()
	o := short(t, name)
	set(&o)
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := benchOf(name)
	want, base := len(b.schemes), b.schemes[0].name
	if name == Cost {
		want, base = 4*2+2, "stock_1000" // lines have one caller
		checkCost(t, res)
	}
	if len(res.Rows) != want || res.Base != base {
		t.Errorf("base %s, %d rows, want %d: %+v", res.Base, len(res.Rows), want, res.Rows)
	}
	for _, r := range res.Rows {
		if !r.Exact || r.OpsS <= 0 || r.P50 <= 0 || r.P99 < r.P50 || r.Ratio <= 0 || r.ServerUS == nil || r.ClientUS < 0 {
			t.Errorf("%+v", r)
		}
		if least := ms(o.RTT); r.P50 < least {
			t.Errorf("%s: p50 is %v ms, and a round trip alone takes %v", r.Scheme, r.P50, least)
		}
		if least := ms(o.RTT + o.Hold); !strings.HasPrefix(r.Scheme, "redis") && o.Retries < 0.5 && r.P50 < least {
			t.Errorf("%s: p50 is %v ms, and a round trip with the hold takes %v", r.Scheme, r.P50, least)
		}
		if r.Scheme == r.Base && r.Ratio != 1 {
			t.Errorf("the base's ratio is %v", r.Ratio)
		}
	}
}

// checkCost checks what only cost tells: what a line costs, and that units are too few where there are 10 for 40 callers
// at most: a slow machine may never have more than 10 of them at once.
func checkCost(t *testing.T, res Result) {
	t.Helper()
	for _, r := range res.Rows {
		if part, _, _ := strings.Cut(r.Scheme, "_"); !strings.HasPrefix(r.Base, part) {
			t.Errorf("%s is compared with %s", r.Scheme, r.Base)
		}
		if few := r.Scheme == "stock_10" && r.Callers > 10; !few && r.Rejected > 0 {
			t.Errorf("%s with %d callers: %v of the calls were rejected", r.Scheme, r.Callers, r.Rejected)
		}
		if r.Scheme == "lines_10" && (r.ServerUSLine == nil || *r.ServerUSLine != *r.ServerUS/10) {
			t.Errorf("what a line costs: %+v", r)
		}
	}
}

// One unit that is lost or doubled is found in every kind of book.
func TestAPlantedUnitIsFound(t *testing.T) {
	t.Parallel()
	exec := func(query string) func(context.Context, *entrant) error {
		return func(ctx context.Context, e *entrant) error {
			db, err := openRows(e.place.DSN, 1)
			if err != nil {
				return err
			}
			defer db.Close()
			_, err = db.ExecContext(ctx, query)
			return err
		}
	}
	for _, tc := range []struct {
		name, bench, scheme, want string
		plant                     func(context.Context, *entrant) error
	}{
		{
			"a unit of the row is lost", Pool, "single_row", "left the stock",
			exec("/* conn_tag:test */ UPDATE inventory SET available = available - 1"),
		},
		{
			"a header without its unit", Pool, "single_row_best", "are held or claimed",
			exec("/* conn_tag:test */ UPDATE headers SET quantity = 2 LIMIT 1"),
		},
		{
			"a unit of the pool is lost", Pool, "pool", "I2:",
			exec("/* conn_tag:test */ DELETE FROM reservation_units LIMIT 1"),
		},
		{
			"a unit went to somebody who was not told", Pool, "pool", "left the stock",
			exec("/* conn_tag:test */ UPDATE inventory_ledger l, (SELECT id FROM reservations LIMIT 1) r, reserved_quantities q " +
				"SET l.unpooled = l.unpooled - 1, q.quantity = 2 WHERE q.reservation_id = r.id"),
		},
		{
			"a counter is one too high", Pool, "redis", "left the stock",
			func(ctx context.Context, e *entrant) error { return bump(ctx, e.place) },
		},
		{
			"a unit of Redis is lost", Pool, "redis_reserve", "I4:",
			func(ctx context.Context, e *entrant) error { return inRedis(ctx, e.place, "DECR", ":avail:1:1:1") },
		},
		{
			"a unit of Redis went to somebody who was not told", Pool, "redis_reserve", "left the stock",
			func(ctx context.Context, e *entrant) error {
				return errors.Join(inRedis(ctx, e.place, "DECR", ":avail:1:1:1"), inRedis(ctx, e.place, "INCR", ":held:1:1:1"))
			},
		},
		{
			"a reservation in Redis without its record", Pool, "redis_reserve", "is in the index",
			func(ctx context.Context, e *entrant) error {
				return forAnyRecord(ctx, e.place, func(c *redis.Client, key string) error { return c.Del(ctx, key).Err() })
			},
		},
		{
			"a record in Redis of two units", Pool, "redis_reserve", "are held or claimed",
			func(ctx context.Context, e *entrant) error {
				return forAnyRecord(ctx, e.place, func(c *redis.Client, key string) error { return c.HSet(ctx, key, "lines", "1:1:2").Err() })
			},
		},
		{
			"a claim deducted twice", Claim, "claim", "I",
			exec("/* conn_tag:test */ UPDATE inventory_ledger SET on_hand = on_hand - 1"),
		},
		{
			"a release that was told and not made", Cost, "lines_1", "releases",
			exec("/* conn_tag:test */ UPDATE reservations SET state = 'held' WHERE state = 'released' LIMIT 1"),
		},
		{
			"a rejection was not stored", SoldOut, "stored", "rejections",
			exec("/* conn_tag:test */ DELETE FROM headers LIMIT 1"),
		},
		{
			"a grant that the mirror lacks", Mirror, "shadow", "grants",
			exec("/* conn_tag:test */ DELETE FROM reservations LIMIT 1"),
		},
		{
			"a gap", Mirror, "shadow", "1 gaps",
			exec("/* conn_tag:test */ INSERT INTO diff_tallies (pod, hour, router, op, kind, name, n) VALUES ('p', NOW(), 'r', 'reserve', 'gap', 'timeout', 1)"),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := short(t, tc.bench)
			o.Schemes, o.Base, o.tamper = []string{tc.scheme}, tc.scheme, tc.plant
			o.Measure = 100 * time.Millisecond
			switch tc.bench {
			case Cost:
				o.Callers = []int{1}
			case Mirror:
				o.Schemes, o.Base = nil, "" // it needs both, and shadow runs first
			}
			res, err := Run(t.Context(), o)
			var inexact *InexactError
			if !errors.As(err, &inexact) || inexact.Scheme != tc.scheme || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want an InexactError of %s with %q", err, tc.scheme, tc.want)
			}
			if len(res.Rows) != 1 || res.Rows[0].Exact {
				t.Errorf("rows %+v: want one that is not exact", res.Rows)
			}
		})
	}
}

func bump(ctx context.Context, p place) error {
	return withRedis(p.Redis, func(c *redis.Client) error { return c.Incr(ctx, p.counter(0)).Err() })
}

func inRedis(ctx context.Context, p place, command, key string) error {
	return withRedis(p.Redis, func(c *redis.Client) error { return c.Do(ctx, command, p.Prefix+key).Err() })
}

// forAnyRecord finds one record of redis_reserve.
func forAnyRecord(ctx context.Context, p place, do func(c *redis.Client, key string) error) error {
	return withRedis(p.Redis, func(c *redis.Client) error {
		ids, err := c.ZRange(ctx, p.Prefix+":created", 0, 0).Result()
		if err != nil {
			return err
		}
		return do(c, p.Prefix+":res:"+ids[0])
	})
}

// Callers in processes of their own are summed: their grants are the stock's loss, their rates add up.
func TestProcessesAreSummed(t *testing.T) {
	t.Parallel()
	o := short(t, Pool)
	o.Processes, o.Callers, o.Schemes, o.Base = []int{1, 3}, []int{2, 5}, []string{"single_row_best", "redis"}, "single_row_best"
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range res.Rows {
		if !r.Exact || r.OpsS <= 0 || (r.Scheme == r.Base) != (r.Ratio == 1) {
			t.Errorf("%+v", r)
		}
		got = append(got, fmt.Sprintf("%s %d in %d", r.Scheme, r.Callers, r.Processes))
	}
	// 2 callers are too few for 3 processes.
	want := []string{"single_row_best 2 in 1", "redis 2 in 1", "single_row_best 5 in 1", "redis 5 in 1", "single_row_best 5 in 3", "redis 5 in 3"}
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	o.Worker = func(ctx context.Context) (*exec.Cmd, error) {
		return exec.CommandContext(ctx, "sh", "-c", "echo no such thing >&2; exit 3"), nil
	}
	if _, err = Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("a process that fails: %v", err)
	}
}

func TestReportsAddUp(t *testing.T) {
	report := func(ops int64, elapsed time.Duration, us ...int64) Report {
		h := newHistogram()
		for _, v := range us {
			record(h, time.Duration(v)*time.Microsecond)
		}
		b, err := encodeHistogram(h)
		if err != nil {
			t.Fatal(err)
		}
		return Report{ClientCPU: time.Second, ServerCPU: time.Duration(ops) * time.Millisecond, Tallies: []Tally{
			{Ops: ops, Elapsed: elapsed, Latency: b, Granted: ops + 1, Rejected: 2, Claimed: 3, Replayed: 4, Again: 5, All: 6, Span: elapsed},
		}}
	}
	m, err := sum([]Report{report(100, time.Second, 10, 20), report(300, 2*time.Second, 30, 1000)})
	if err != nil {
		t.Fatal(err)
	}
	l := m.loads[0]
	if l.opsS != 250 || l.Ops != 400 || l.Granted != 402 || l.Rejected != 4 || l.Claimed != 6 || l.Replayed != 8 || l.Again != 10 || l.All != 12 {
		t.Errorf("%+v", l)
	}
	if m.client != 2*time.Second || m.server != 300*time.Millisecond || l.hist.TotalCount() != 4 {
		t.Errorf("client %v, server %v, %d latencies", m.client, m.server, l.hist.TotalCount())
	}
	if s := sampleOf(m); s.p50 != 0.02 || s.p99 != 1 || s.client != 5000 || s.server != 750 {
		t.Errorf("%+v", s)
	}
}

func TestSplitSharesEverything(t *testing.T) {
	j := Job{Loads: []Load{{Kind: reserveLoad, Callers: 7, Rate: 700}, {Kind: claimLoad, Callers: 3, First: 0, Last: 100}}}
	var callers, claimers int
	var rate float64
	next := uint64(0)
	for _, part := range split(j, 3) {
		callers += part.Loads[0].Callers
		claimers += part.Loads[1].Callers
		rate += part.Loads[0].Rate
		if part.Loads[1].First != next {
			t.Errorf("holds from %d, want %d", part.Loads[1].First, next)
		}
		next = part.Loads[1].Last
	}
	if callers != 7 || claimers != 3 || rate < 699.9 || rate > 700.1 || next != 100 {
		t.Errorf("%d callers, %d claimers, rate %v, holds to %d", callers, claimers, rate, next)
	}
}

// Ratios are medians of ratios of rounds, not ratios of medians.
func TestRatiosAreByRound(t *testing.T) {
	base := []sample{{opsS: 100, p50: 10, p99: 20, server: -1}, {opsS: 10, p50: 100, p99: 200, server: -1}, {opsS: 50, p50: 20, p99: 40, server: -1}}
	own := []sample{{opsS: 200, p50: 5, p99: 10, server: 7, again: 1}, {opsS: 50, p50: 25, p99: 400, server: 9}, {opsS: 150, p50: 5, p99: 20, server: 8, again: 2}}
	r := rowOf(own, base, "ops_s")
	if r.Ratio != 3 || !slices.Equal(r.Ratios, []float64{2, 5, 3}) || r.OpsS != 150 || r.P50Ratio != 0.25 || r.P99Ratio != 0.5 || *r.ServerUS != 8 || r.SentAgain != 3 {
		t.Errorf("%+v", r)
	}
	if r := rowOf(own, base, "p99_ms"); r.Ratio != 0.5 {
		t.Errorf("ratio of p99: %v", r.Ratio)
	}
	if r := rowOf(base, base, "ops_s"); r.Ratio != 1 || r.ServerUS != nil {
		t.Errorf("%+v", r)
	}
	if m := median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median %v", m)
	}
	if r := ratio(1, 0); r != 0 {
		t.Errorf("ratio to nothing: %v", r)
	}
}

func TestPercentiles(t *testing.T) {
	h := newHistogram()
	for us := 1; us <= 10_000; us++ {
		record(h, time.Duration(us)*time.Microsecond)
	}
	record(h, 0)
	record(h, time.Hour) // clipped, not lost
	if p50, p99 := quantileMS(h, 50), quantileMS(h, 99); p50 < 4.995 || p50 > 5.01 || p99 < 9.89 || p99 > 9.92 || h.TotalCount() != 10_002 {
		t.Errorf("p50 %v, p99 %v, %d values", p50, p99, h.TotalCount())
	}
}

// What was due and never begun counts with the time that it has waited.
func TestAnOverloadedOpenLoopShowsItsQueue(t *testing.T) {
	t.Parallel()
	o := short(t, Pool)
	o.Callers, o.Schemes, o.Base, o.Hold, o.Rate = []int{1}, []string{"single_row"}, "single_row", 20*time.Millisecond, 1000
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r := res.Rows[0]; r.OpsS > 50 || r.P50 < 40 {
		t.Errorf("a caller that needs 20 ms and 1000 calls a second: %+v", r)
	}
}

// The CPU of a process by the kernel's book is what the process says of itself, and nobody uses more than there is.
func TestCPUIsThatOfTheProcess(t *testing.T) {
	o := newOthers(os.Getpid())
	for began := ownCPU(); ownCPU()-began < 100*time.Millisecond; {
		newHistogram()
	}
	seen, ok := processCPU(os.Getpid())
	if own := ownCPU(); !ok || seen < own-50*time.Millisecond || seen > own+50*time.Millisecond {
		t.Errorf("the kernel says %v (%t), the process %v", seen, ok, own)
	}
	if share := o.share(); share == nil || *share < 0 || *share > 1 {
		t.Errorf("others' share is %v", share)
	}
	if _, ok := processCPU(0); ok {
		t.Error("no process has CPU time")
	}
}

func TestPickerFollowsZipf(t *testing.T) {
	counts := func(skew float64) []int {
		p, n := newPicker(4, skew, 1), make([]int, 4)
		for range 40_000 {
			n[p.next()]++
		}
		return n
	}
	// Weights 1, 1/2, 1/3, 1/4 of 25/12.
	for n, got := range counts(1) {
		want := 40_000 * 12 / 25 / (n + 1)
		if got < want*95/100 || got > want*105/100 {
			t.Errorf("bucket %d was picked %d times, want about %d", n, got, want)
		}
	}
	for n, got := range counts(0) {
		if got < 9_500 || got > 10_500 {
			t.Errorf("evenly: bucket %d was picked %d times", n, got)
		}
	}
}

// Nothing is started where the pod's own schema is all that the user may write to.
func TestRefusedWithoutASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	dsn := devtest.Schema(t)
	admin, err := openRows(dsn, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	user := cfg.DBName
	for _, q := range []string{"CREATE USER '" + user + "'@'127.0.0.1'", "GRANT ALL ON `" + cfg.DBName + "`.* TO '" + user + "'@'127.0.0.1'"} {
		if _, err := admin.ExecContext(t.Context(), "/* conn_tag:test */ "+q); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { dropUser(t, devtest.MySQL(t).DSN(""), user) })
	cfg.User = user
	o := short(t, Pool)
	o.Servers.MySQL = cfg.FormatDSN()
	_, err = Run(t.Context(), o)
	var refused *NoSchemaError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a NoSchemaError", err)
	}
	var tables int
	if err := admin.QueryRowContext(t.Context(), "/* conn_tag:test */ SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()").Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables in the pod's schema, %v", tables, err)
	}
}

func dropUser(t *testing.T, dsn, user string) {
	db, err := openRows(dsn, 1)
	if err != nil {
		t.Error(err)
		return
	}
	defer db.Close()
	if _, err := db.ExecContext(context.Background(), "/* conn_tag:test */ DROP USER '"+user+"'@'127.0.0.1'"); err != nil && !errors.Is(err, sql.ErrConnDone) {
		t.Error(err)
	}
}

func TestMistakesAreRefused(t *testing.T) {
	for _, tc := range []struct {
		want string
		o    Options
	}{
		{`there is no bench "x": use pool`, Options{Bench: "x"}},
		{`has no scheme "fast": it has single_row`, Options{Bench: Pool, Schemes: []string{"fast"}}},
		{`has no scheme "fast"`, Options{Bench: Pool, Base: "fast"}},
		{"callers -1", Options{Bench: Pool, Callers: []int{-1}}},
		{"2 callers are too few for 3 processes: use 3 or more", Options{Bench: Pool, Callers: []int{2}, Processes: []int{3}}},
		{"2 callers are too few for 3 processes", Options{Bench: Pool, Callers: []int{2, 1}, Processes: []int{1, 3}}},
		{"1 callers are too few for 2 processes", Options{Bench: Pool, Callers: []int{1, 8}, Processes: []int{2}}},
		{"lines are measured with 1 caller", Options{Bench: Cost, Only: partLines, Callers: []int{8}}},
		{"run it once for each", Options{Bench: Neighbours, Callers: []int{4, 8}}},
		{"has no part \"rows\": it has stock, holds, lines", Options{Bench: Cost, Only: "rows"}},
		{"has no part \"stock\": it has none", Options{Bench: Pool, Only: "stock"}},
		{"use 6 or more", Options{Bench: Neighbours, Callers: []int{5}, Processes: []int{3}}},
		{"processes 65", Options{Bench: Pool, Callers: []int{65}, Processes: []int{65}}},
		{"0.1 to 3600 seconds", Options{Bench: Pool, Measure: time.Millisecond}},
		{"runs 101", Options{Bench: Pool, Rounds: 101}},
		{"buckets -1", Options{Bench: Pool, Buckets: -1}},
		{"rtt -1s", Options{Bench: Pool, RTT: -time.Second}},
		{"hold 2s", Options{Bench: Pool, Hold: 2 * time.Second}},
		{"skew -0.5", Options{Bench: Pool, Skew: -0.5}},
		{"retries 1 is", Options{Bench: Pool, Retries: 1}},
		{"rate -5", Options{Bench: Pool, Rate: -5}},
		{"finds its rate by itself", Options{Bench: Neighbours, Rate: 5}},
	} {
		err := tc.o.Validate()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
	for _, kind := range Benches() {
		if err := (Options{Bench: kind}).Validate(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
