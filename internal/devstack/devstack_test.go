package devstack_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

// asParent makes the test binary start a stack, report on it and wait to be
// killed.
const asParent = "TWINHOLD_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(asParent) != "" {
		parent()
	}
	devtest.Main(m, devtest.Needs{MySQL: true, Redis: true})
}

func parent() {
	s, err := devstack.Start(context.Background(), devstack.Options{MySQL: true, Redis: true})
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	set, err := s.AddSentinelSet(context.Background(), devstack.SentinelOptions{})
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	pids := []string{s.Dir(), strconv.Itoa(s.MySQL.PID()), strconv.Itoa(s.Redis.PID()), strconv.Itoa(set.Replicas[0].PID())}
	for _, x := range set.Sentinels {
		pids = append(pids, strconv.Itoa(x.PID()))
	}
	os.Stdout.WriteString(strings.Join(pids, " ") + "\n")
	select {}
}

var both = devstack.Options{MySQL: true, Redis: true}

func TestSharedServersAnswerAndTellTheirVersion(t *testing.T) {
	t.Parallel()
	db := open(t, devtest.Schema(t))
	var version, schema string
	if err := db.QueryRowContext(t.Context(), "SELECT VERSION(), DATABASE()").Scan(&version, &schema); err != nil {
		t.Fatal(err)
	}
	if m := devtest.MySQL(t); version != m.Version || !regexp.MustCompile(`^[89]\.|^\d\d\.`).MatchString(version) {
		t.Errorf("version %q, handle says %q", version, m.Version)
	}
	if !strings.HasPrefix(schema, "t_") {
		t.Errorf("schema %q", schema)
	}
	if r := devtest.Redis(t); !regexp.MustCompile(`^([7-9]|\d\d)\.`).MatchString(r.Version) {
		t.Errorf("redis version %q", r.Version)
	}
}

func TestDurableDefaults(t *testing.T) {
	t.Parallel()
	db := open(t, devtest.Schema(t))
	want := map[string]string{
		"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1", "binlog_format": "ROW", "log_bin": "1",
		"bind_address": "127.0.0.1", "max_connections": "400",
	}
	for name, value := range want {
		var got string
		if err := db.QueryRowContext(t.Context(), "SELECT @@global."+name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != value {
			t.Errorf("%s = %s, want %s", name, got, value)
		}
	}
	c := client(t, devtest.Redis(t))
	for name, value := range map[string]string{"appendonly": "yes", "maxmemory-policy": "noeviction", "save": "", "bind": "127.0.0.1"} {
		got, err := c.ConfigGet(t.Context(), name).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got[name] != value {
			t.Errorf("%s = %q, want %q", name, got[name], value)
		}
	}
}

func TestExtraArgumentsWin(t *testing.T) {
	t.Parallel()
	s := devtest.Private(t, devstack.Options{
		MySQL: true, MySQLArgs: []string{"--max-connections=33"},
		Redis: true, RedisArgs: []string{"--appendfsync", "always"},
	})
	var n int
	if err := open(t, s.MySQL.DSN("")).QueryRowContext(t.Context(), "SELECT @@max_connections").Scan(&n); err != nil || n != 33 {
		t.Errorf("max_connections = %d, %v", n, err)
	}
	got, err := client(t, s.Redis).ConfigGet(t.Context(), "appendfsync").Result()
	if err != nil || got["appendfsync"] != "always" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTwoStacksAtOnceAndNothingLeftBehind(t *testing.T) {
	t.Parallel()
	a, b := devtest.Private(t, both), devtest.Private(t, both)
	if err := client(t, a.Redis).Set(t.Context(), "k", "a", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client(t, b.Redis).Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("b sees what was written to a: %v", err)
	}
	pids := []int{a.MySQL.PID(), a.Redis.PID()}
	if err := a.Redis.Pause(); err != nil { // Close ends a paused server too
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
	if _, err := os.Stat(a.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run folder is still there: %v", err)
	}
	if err := client(t, b.Redis).Ping(t.Context()).Err(); err != nil {
		t.Errorf("closing a disturbed b: %v", err)
	}
	if _, err := a.AddRedis(t.Context()); err == nil {
		t.Error("a closed stack started a further server")
	}
	if err := a.Redis.Start(t.Context()); err == nil {
		t.Error("a closed stack started a server again")
	}
}

func TestServersDieWithAKilledParent(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), asParent+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the parent said nothing: %v", err)
	}
	fields := strings.Fields(line)
	dir, pids := fields[0], make([]int, len(fields)-1)
	for i, f := range fields[1:] {
		pids[i], _ = strconv.Atoi(f)
	}
	if _, err := os.Stat(dir); err != nil || len(pids) != 6 || slices.ContainsFunc(pids, func(pid int) bool { return !alive(pid) }) {
		t.Fatalf("the servers never ran: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	devtest.Until(t, "the servers die with their parent", func() bool { return !slices.ContainsFunc(pids, alive) })
	devtest.Private(t, devstack.Options{Dir: filepath.Dir(filepath.Dir(dir)), Redis: true}) // any start cleans up
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale run folder is still there: %v", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := devtest.Private(t, both)
	if err := errors.Join(s.Redis.Pause(), s.MySQL.Pause()); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: s.Redis.Addr(), MaxRetries: -1, ReadTimeout: 200 * time.Millisecond})
	defer c.Close()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("a paused Redis answered")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	db := open(t, s.MySQL.DSN(""))
	if err := db.PingContext(ctx); err == nil {
		t.Error("a paused MySQL answered")
	}
	if err := errors.Join(s.Redis.Resume(), s.MySQL.Resume()); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "Redis answers again", func() bool { return c.Ping(t.Context()).Err() == nil })
	devtest.Until(t, "MySQL answers again", func() bool { return db.PingContext(t.Context()) == nil })
}

func TestDataSurvivesRestartAndKill(t *testing.T) {
	t.Parallel()
	s := devtest.Private(t, both)
	c, db := client(t, s.Redis), open(t, devtest.SchemaOn(t, s.MySQL))
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE t (n INT PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	addrs := s.Redis.Addr() + s.MySQL.Addr()
	for i, again := range []func(*devstack.Server) error{
		func(s *devstack.Server) error { return s.Restart(t.Context()) },
		func(s *devstack.Server) error {
			if err := s.Kill(); err != nil {
				return err
			}
			if s.PID() != 0 {
				return errors.New("killed and still there")
			}
			return s.Start(t.Context())
		},
	} {
		if err := c.Incr(t.Context(), "n").Err(); err != nil {
			t.Fatal(err)
		}
		// everysec: a write is safe once the file has been flushed.
		devtest.Until(t, "Redis has flushed", func() bool {
			info, err := c.Info(t.Context(), "persistence").Result()
			return err == nil && strings.Contains(info, "aof_pending_bio_fsync:0")
		})
		if _, err := db.ExecContext(t.Context(), "INSERT INTO t VALUES (?)", i); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(again(s.Redis.Server), again(s.MySQL.Server)); err != nil {
			t.Fatal(err)
		}
		devtest.Until(t, "the pool has noticed", func() bool { return db.PingContext(t.Context()) == nil })
		var rows int
		if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t").Scan(&rows); err != nil || rows != i+1 {
			t.Errorf("MySQL has %d rows, want %d: %v", rows, i+1, err)
		}
		if n, err := c.Get(t.Context(), "n").Int(); err != nil || n != i+1 {
			t.Errorf("Redis has %d, want %d: %v", n, i+1, err)
		}
	}
	if s.Redis.Addr()+s.MySQL.Addr() != addrs {
		t.Error("a server changed its address")
	}
}

func TestFurtherServersAndAReplica(t *testing.T) {
	t.Parallel()
	s := devtest.Private(t, devstack.Options{Redis: true})
	_, port, _ := strings.Cut(s.Redis.Addr(), ":")
	replica, err := s.AddRedis(t.Context(), "--replicaof", "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the replica follows", func() bool {
		n, err := client(t, s.Redis).Wait(t.Context(), 1, time.Second).Result()
		return err == nil && n == 1
	})
	if replica.Addr() == s.Redis.Addr() {
		t.Error("one address for two servers")
	}
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dev := filepath.Dir(filepath.Dir(devtest.Stack(t).Dir()))
	_, err := devstack.Start(t.Context(), devstack.Options{Dir: dev, MySQL: true, MySQLArgs: []string{"--no-such-option"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-option") || !strings.Contains(err.Error(), "\nhint: ") {
		t.Errorf("got %v", err)
	}
	var typed *devstack.Error
	if !errors.As(err, &typed) {
		t.Errorf("%T", err)
	}
}

func TestSchemaNamesAreChecked(t *testing.T) {
	t.Parallel()
	if err := devtest.MySQL(t).CreateSchema(t.Context(), "a`; DROP"); err == nil {
		t.Error("accepted")
	}
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func client(t *testing.T, r *devstack.Redis) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { c.Close() })
	return c
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
