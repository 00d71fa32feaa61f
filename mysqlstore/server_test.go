package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestServerWithOtherDefaults: another time zone, isolation level, sql_mode and lock wait on the server change
// nothing: times are UTC with microseconds, transactions READ COMMITTED.
func TestServerWithOtherDefaults(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"SERIALIZABLE", "READ-UNCOMMITTED"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			stack := devtest.Private(t, devstack.Options{MySQL: true, MySQLArgs: []string{
				"--default-time-zone=+05:45", "--transaction-isolation=" + isolation, "--sql-mode=", "--innodb-lock-wait-timeout=50", "--autocommit=0",
			}})
			b := openOn(t, devtest.SchemaOn(t, stack.MySQL), complete)
			b.stock(20, 20)
			before := time.Now().UTC()
			res := b.reserve("a", line(1, 3), line(2, 1))
			if d := res.Record.CreatedAt.Sub(before); d < -time.Second || d > 10*time.Second {
				t.Errorf("created %v from now", d)
			}
			if got := res.Record.ExpiresAt.Sub(res.Record.CreatedAt); got != 10*time.Minute {
				t.Errorf("expires after %v", got)
			}
			got, err := b.Get(t.Context(), shop, res.Record.ID)
			if err != nil || !got.ExpiresAt.Equal(res.Record.ExpiresAt) || got.ExpiresAt.Location() != time.UTC {
				t.Errorf("kept as %v, answered as %v (%v)", got.ExpiresAt, res.Record.ExpiresAt, err)
			}
			// READ COMMITTED: locking an empty range does not lock the gap that a refill inserts into.
			level := ""
			far := b.another(func(o *mysqlstore.Options) {
				o.NoMultiStatements = true
				o.Failpoint = func(step string) {
					if step == "reserve.units" {
						level = isolationNow(t, b.DB())
					}
				}
			})
			far.reserve("b", line(1, 2))
			if level != "READ COMMITTED" {
				t.Errorf("the write ran at %q", level)
			}
			due := b.reserveFor("c", 20*time.Millisecond, line(1, 1))
			b.until("the hold is swept", func() bool {
				if _, err := b.Sweep(t.Context(), b.st, 10); err != nil {
					t.Fatal(err)
				}
				return b.state(due.Record.ID) == reservation.Expired
			})
			if _, err := b.Claim(t.Context(), b.st, shop, res.Record.ID); err != nil {
				t.Fatal(err)
			}
			b.invariants()
		})
	}
}

// isolationNow reads the isolation level of the one write transaction that is open.
func isolationNow(t *testing.T, db *sql.DB) string {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close()
	var level string
	err = conn.QueryRowContext(t.Context(), `SELECT trx_isolation_level FROM information_schema.innodb_trx
WHERE trx_rows_modified > 0 LIMIT 1`).Scan(&level)
	if err != nil {
		t.Error(err)
	}
	return level
}

// TestProcessInAnotherZone runs the life of a reservation in a process whose local time is not UTC.
func TestProcessInAnotherZone(t *testing.T) {
	if os.Getenv("TZ") == "Asia/Kathmandu" {
		t.Skip("this is the child; the other tests run here")
	}
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^(TestLifeOfAReservation|TestExpiryByTheSweeperAndByNeed|TestMirrorOutOfOrder)$", "-test.v")
	cmd.Env = append(os.Environ(), "TZ=Asia/Kathmandu")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS") != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestHungServer: a mysqld that is stopped obeys nobody's deadline; the store obeys its caller's.
func TestHungServer(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{MySQL: true})
	b := openOn(t, devtest.SchemaOn(t, stack.MySQL), complete, func(o *mysqlstore.Options) { o.WriteTimeout = time.Second })
	b.stock(10)
	held := b.reserve("a", line(1, 1))
	if err := stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	ops := map[string]func(context.Context) error{
		"reserve": func(ctx context.Context) error {
			_, err := b.Reserve(ctx, b.st, newID(t), request(t, "b", time.Minute, line(1, 1)))
			return err
		},
		"claim": func(ctx context.Context) error {
			_, err := b.Claim(ctx, b.st, shop, held.Record.ID)
			return err
		},
		"availability": func(ctx context.Context) error {
			_, err := b.Availability(ctx, bucket(1))
			return err
		},
		"sweep": func(ctx context.Context) error {
			_, err := b.Sweep(ctx, b.st, 10)
			return err
		},
	}
	for name, op := range ops {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		began := time.Now()
		err := op(ctx)
		cancel()
		if reservation.CodeOf(err) != reservation.CodeUnavailable || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
	}
	if err := stack.MySQL.Resume(); err != nil {
		t.Fatal(err)
	}
	if res := b.reserve("b", line(1, 1)); res.Record.Outcome != reservation.Granted {
		t.Errorf("afterwards: %+v", res)
	}
	b.figures(1, 8, 10)
	b.invariants()
}

// TestHungAtCommit: the server hangs when COMMIT has been sent. The caller is answered within its deadline, with an
// unknown outcome and never with a failure.
func TestHungAtCommit(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(10)
	far, p := b.behind(t)
	var uo *reservation.UnknownOutcomeError
	hung := func(op func(ctx context.Context) error) error {
		f := p.Swallow(faultproxy.Rule{Match: []byte("conn_tag:commit "), When: faultproxy.After})
		defer f.Remove()
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := op(ctx)
		if took := time.Since(began); f.Fired() == 0 || took > 4*time.Second {
			t.Errorf("%d COMMITs hung, answered %v after %v", f.Fired(), err, took)
		}
		return err
	}
	first := b.reserve("filled", line(1, 1)) // fills the pool, so that the next COMMIT is a reserve's
	err := hung(func(ctx context.Context) error {
		_, err := far.Reserve(ctx, b.st, newID(t), request(t, "a", 10*time.Minute, line(1, 1)))
		return err
	})
	if err != nil && !errors.As(err, &uo) {
		t.Errorf("reserve: %v", err)
	}
	if res := b.reserve("a", line(1, 1)); !res.Replayed {
		t.Errorf("the reserve that was committed: %+v", res)
	}
	err = hung(func(ctx context.Context) error {
		_, err := far.Release(ctx, b.st, shop, first.Record.ID)
		return err
	})
	if !errors.As(err, &uo) || uo.Op != reservation.OpRelease {
		t.Errorf("release: %v", err)
	}
	b.until("the release that was committed is seen", func() bool { return b.state(first.Record.ID) == reservation.Released })
	b.invariants()
}

// TestNoSessionKeepsATransaction: whatever ends an operation, no connection goes back with a transaction open.
func TestNoSessionKeepsATransaction(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.MaxOpenConns = 2 })
	b.stock(5)
	b.reserve("a", line(1, 1))
	for n := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		far := b.another(func(o *mysqlstore.Options) {
			o.NoMultiStatements = n%2 == 0
			o.Failpoint = func(step string) {
				if strings.HasPrefix(step, "reserve") {
					cancel()
				}
			}
		})
		if _, err := far.Reserve(ctx, b.st, newID(t), request(t, fmt.Sprint("k", n), time.Minute, line(1, 1))); err == nil {
			t.Fatal("a cancelled caller was answered")
		}
		if err := far.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []reservation.Stamp{{Epoch: 4, Stage: reservation.Complete}, {Epoch: 5, Stage: reservation.Cutover}} {
		if _, err := b.Claim(t.Context(), bad, shop, b.reserve("a", line(1, 1)).Record.ID); reservation.CodeOf(err) != reservation.CodeUnavailable {
			t.Errorf("stamp %+v: %v", bad, err)
		}
	}
	b.until("no transaction is left open", func() bool {
		var open int
		err := b.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM information_schema.innodb_trx x
JOIN information_schema.processlist p ON p.ID = x.trx_mysql_thread_id WHERE p.DB = DATABASE()`).Scan(&open)
		return err == nil && open == 0
	})
	b.figures(1, 4, 5)
	b.invariants()
}

func TestMigrateAgainAndHalfWay(t *testing.T) {
	t.Parallel()
	dsn := devtest.Schema(t)
	ctx := t.Context()
	_, err := mysqlstore.Open(ctx, mysqlstore.Options{DSN: dsn, Pod: "p"})
	if err == nil || !strings.Contains(err.Error(), "migrate") {
		t.Errorf("a schema that is not there: %v", err)
	}
	done := make(chan error, 4)
	for range 4 {
		go func() { done <- mysqlstore.Migrate(ctx, dsn) }()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	b := openOn(t, dsn, complete)
	b.stock(5)
	// As if it had died after the DDL of the last file and before noting it.
	if _, err := b.DB().ExecContext(ctx, "DELETE FROM goose_db_version WHERE version_id >= 5"); err != nil {
		t.Fatal(err)
	}
	if err := mysqlstore.Migrate(ctx, dsn); err != nil {
		t.Fatal(err)
	}
	b.figures(1, 5, 5)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	findings, err := b.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range findings {
		seen[f.Check] = true
		if f.Severity != reservation.Fine || f.Found == "" {
			t.Errorf("%+v", f)
		}
	}
	for _, want := range []string{"version", "skip_locked", "binlog_format", "clock", "schema", "fence"} {
		if !seen[want] {
			t.Errorf("no finding of %s", want)
		}
	}
	wrong := b.another(func(o *mysqlstore.Options) { o.Now = func() time.Time { return time.Now().Add(time.Minute) } })
	findings, err = wrong.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if (f.Severity == reservation.Fine) == (f.Check == "clock") || (f.Check == "clock" && f.Fix == "") {
			t.Errorf("a process that is a minute ahead: %+v", f)
		}
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	dsn := devtest.Schema(t)
	ctx := t.Context()
	if err := mysqlstore.Migrate(ctx, dsn); err != nil {
		t.Fatal(err)
	}
	s, err := mysqlstore.Open(ctx, mysqlstore.Options{DSN: dsn, Pod: "pod-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	empty, err := s.Empty(ctx)
	if err != nil || !empty {
		t.Fatalf("empty: %t, %v", empty, err)
	}
	var fe *reservation.FenceError
	if _, _, err := s.Stock(ctx, complete, []reservation.Stocking{{Bucket: bucket(1), Quantity: 1}}); !errors.As(err, &fe) || fe.Verdict != reservation.NoFence {
		t.Errorf("without a fence: %v", err)
	}
	f, err := s.InitFence(ctx, complete)
	if err != nil || f.Stamp != complete {
		t.Fatalf("init: %+v, %v", f, err)
	}
	if f, err = s.InitFence(ctx, shadow); err != nil || f.Stamp != complete {
		t.Errorf("init again leaves the fence that is there: %+v, %v", f, err)
	}
	b := &bench{Store: s, t: t, dsn: dsn, st: complete}
	b.stock(3)
	b.reserve("a", line(1, 1))
	if err := setFence(ctx, s.DB(), "pod-1", reservation.Fence{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.InitFence(ctx, complete); !errors.As(err, &fe) || fe.Verdict != reservation.NoFence {
		t.Errorf("a schema with reservations and no fence is not set up again: %v", err)
	}
}

func TestOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]mysqlstore.Options{
		"DSN is empty":     {Pod: "p"},
		"Pod has":          {DSN: "root@tcp(127.0.0.1:1)/x"},
		"LockWait":         {DSN: "root@tcp(127.0.0.1:1)/x", Pod: "p", LockWait: time.Minute},
		"names no schema":  {DSN: "root@tcp(127.0.0.1:1)/", Pod: "p"},
		"PoolSize":         {DSN: "root@tcp(127.0.0.1:1)/x", Pod: "p", PoolSize: -1},
		"is unavailable":   {DSN: "root@tcp(127.0.0.1:1)/x", Pod: "p"},
		"user:password@tc": {DSN: "nonsense", Pod: "p"},
	} {
		_, err := mysqlstore.Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := open(t, complete, func(o *mysqlstore.Options) { o.Registerer = reg })
	b.stock(5)
	b.reserve("a", line(1, 1))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		seen[f.GetName()] = true
	}
	for _, want := range []string{"twinhold_mysql_operation_duration_seconds", "twinhold_mysql_refills_total", "twinhold_mysql_refill_units_total"} {
		if !seen[want] {
			t.Errorf("no %s", want)
		}
	}
}
