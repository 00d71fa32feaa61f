package faultproxy_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true, Redis: true}) }

func start(t *testing.T, upstream string, protocol faultproxy.Protocol) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Start(upstream, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
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

// mysqlThrough is a schema with a table t, seen through a proxy and directly.
func mysqlThrough(t *testing.T, params string) (p *faultproxy.Proxy, through, direct *sql.DB) {
	t.Helper()
	dsn := devtest.Schema(t)
	cfg, err := mysql.ParseDSN(dsn + params)
	if err != nil {
		t.Fatal(err)
	}
	p = start(t, cfg.Addr, faultproxy.MySQL)
	cfg.Addr = p.Addr()
	cfg.Logger = &mysql.NopLogger{} // it would report what the test breaks
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	through, direct = sql.OpenDB(c), open(t, dsn)
	t.Cleanup(func() { through.Close() })
	exec(t, direct, "CREATE TABLE t (n INT PRIMARY KEY, s VARCHAR(4000))")
	return p, through, direct
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// insert is a transaction; only its COMMIT may fail.
func insert(ctx context.Context, t *testing.T, db *sql.DB, n int) error {
	t.Helper()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO t (n) VALUES ("+strconv.Itoa(n)+")"); err != nil {
		t.Fatal(err)
	}
	return tx.Commit()
}

func TestMySQLPassesUnchanged(t *testing.T) {
	t.Parallel()
	for _, params := range []string{"", "?interpolateParams=true&multiStatements=true"} {
		p, db, _ := mysqlThrough(t, params)
		// A rule that never agrees sees every message, to the end of each reply.
		seen := 0
		p.Cut(faultproxy.Rule{When: faultproxy.After, Func: func([]byte) bool { seen++; return false }})
		held := p.Hold(faultproxy.Rule{When: faultproxy.After})
		held.Release() // from now on every reply is read to its end before it passes
		long := strings.Repeat("x", 3000)
		for n := range 40 {
			exec(t, db, "INSERT INTO t (n, s) VALUES (?, ?)", n, long)
		}
		rows, err := db.QueryContext(t.Context(), "SELECT n, s FROM t WHERE n >= ? ORDER BY n", 0)
		if err != nil {
			t.Fatal(err)
		}
		next := 0
		for rows.Next() {
			var n int
			var s string
			if err := rows.Scan(&n, &s); err != nil || n != next || s != long {
				t.Fatalf("row %d: %d, %d bytes, %v", next, n, len(s), err)
			}
			next++
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || next != 40 {
			t.Fatalf("%d rows, %v", next, err)
		}
		if _, err := db.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (1)"); err == nil {
			t.Error("the server's error got lost")
		}
		var big []byte // more than one physical packet
		if err := db.QueryRowContext(t.Context(), "SELECT REPEAT('y', 20000000)").Scan(&big); err != nil || len(big) != 20000000 {
			t.Errorf("%d bytes, %v", len(big), err)
		}
		if seen < 43 || held.Fired() < 43 {
			t.Errorf("rules saw %d messages, %d replies", seen, held.Fired())
		}
	}
}

func TestCutBeforeCommitRollsBack(t *testing.T) {
	t.Parallel()
	p, db, direct := mysqlThrough(t, "")
	f := p.Cut(faultproxy.Rule{Match: []byte("COMMIT"), When: faultproxy.Before, Times: 1})
	if err := insert(t.Context(), t, db, 1); err == nil {
		t.Error("the COMMIT was answered")
	}
	if n := count(t, direct); n != 0 || f.Fired() != 1 {
		t.Errorf("%d rows, fired %d times", n, f.Fired())
	}
	if err := insert(t.Context(), t, db, 2); err != nil { // Times: 1
		t.Error(err)
	}
}

func TestCutAfterCommitLosesTheReplyOnly(t *testing.T) {
	t.Parallel()
	p, db, direct := mysqlThrough(t, "")
	f := p.Cut(faultproxy.Rule{Match: []byte("COMMIT"), When: faultproxy.After, Times: 1})
	if err := insert(t.Context(), t, db, 1); err == nil {
		t.Error("the reply came through")
	}
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, direct); n != 1 {
		t.Errorf("%d rows, want the committed one", n)
	}
}

func TestAfterAPacketOfSeveralStatementsMeansAfterTheLast(t *testing.T) {
	t.Parallel()
	p, db, direct := mysqlThrough(t, "?multiStatements=true")
	f := p.Cut(faultproxy.Rule{Match: []byte("COMMIT"), When: faultproxy.After, Times: 1})
	_, err := db.ExecContext(t.Context(), "START TRANSACTION; SELECT SLEEP(0.1), 1; INSERT INTO t (n) VALUES (1); SELECT n FROM t FOR UPDATE; COMMIT")
	if err == nil {
		t.Error("the reply came through")
	}
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, direct); n != 1 {
		t.Errorf("%d rows, want the committed one", n)
	}
}

func TestSwallowedReplyLeavesTheConnectionOpen(t *testing.T) {
	t.Parallel()
	for when, rows := range map[faultproxy.When]int{faultproxy.Before: 0, faultproxy.After: 1} {
		p, db, direct := mysqlThrough(t, "?readTimeout=300ms")
		f := p.Swallow(faultproxy.Rule{Match: []byte("COMMIT"), When: when, Times: 1})
		began := time.Now()
		err := insert(t.Context(), t, db, 1)
		if took := time.Since(began); err == nil || took < 300*time.Millisecond {
			t.Errorf("%v: %v after %v, want the read timeout", when, err, took)
		}
		if err := f.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		devtest.Until(t, "the server ends the transaction", func() bool { return count(t, direct) == rows })
	}
}

func TestHoldWritesAnInterleaving(t *testing.T) {
	t.Parallel()
	p, db, direct := mysqlThrough(t, "")
	f := p.Hold(faultproxy.Rule{Match: []byte("COMMIT"), When: faultproxy.Before, Times: 1})
	done := make(chan error, 1)
	go func() { done <- insert(t.Context(), t, db, 1) }()
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, direct); n != 0 {
		t.Errorf("%d rows while the COMMIT is held", n)
	}
	select {
	case err := <-done:
		t.Errorf("answered while held: %v", err)
	default:
	}
	f.Release()
	if err := <-done; err != nil || count(t, direct) != 1 {
		t.Errorf("after the release: %v", err)
	}
}

// redisThrough is a client that never retries, and one that goes directly.
func redisThrough(t *testing.T) (p *faultproxy.Proxy, through, direct *redis.Client, key string) {
	t.Helper()
	r := devtest.Redis(t)
	p = start(t, r.Addr(), faultproxy.Redis)
	o := &redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: 300 * time.Millisecond, DialerRetries: 1}
	through, direct = redis.NewClient(o), redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { _ = errors.Join(through.Close(), direct.Close()) })
	return p, through, direct, "{" + devtest.Pod(t) + "}:n"
}

func TestRedisFaults(t *testing.T) {
	t.Parallel()
	const script = "return redis.call('INCR', KEYS[1])"
	type fault func(*faultproxy.Proxy, faultproxy.Rule) *faultproxy.Fault
	for _, c := range []struct {
		name  string
		fault fault
		when  faultproxy.When
		want  int
		slow  bool
	}{
		{"cut before", (*faultproxy.Proxy).Cut, faultproxy.Before, 0, false},
		{"cut after", (*faultproxy.Proxy).Cut, faultproxy.After, 1, false},
		{"swallow before", (*faultproxy.Proxy).Swallow, faultproxy.Before, 0, true},
		{"swallow after", (*faultproxy.Proxy).Swallow, faultproxy.After, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, through, direct, key := redisThrough(t)
			f := c.fault(p, faultproxy.Rule{Match: []byte(key), When: c.when, Times: 1})
			began := time.Now()
			if err := through.Eval(t.Context(), script, []string{key}).Err(); err == nil {
				t.Error("answered")
			}
			if slow := time.Since(began) >= 300*time.Millisecond; slow != c.slow {
				t.Errorf("failed after %v", time.Since(began))
			}
			if err := f.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			n, err := direct.Get(t.Context(), key).Int()
			if err != nil && !errors.Is(err, redis.Nil) || n != c.want {
				t.Errorf("counter is %d, want %d: %v", n, c.want, err)
			}
			if err := through.Incr(t.Context(), key).Err(); err != nil {
				t.Errorf("the next one: %v", err)
			}
		})
	}
}

func TestRedisPipelineIsCutInTheMiddle(t *testing.T) {
	t.Parallel()
	p, through, direct, key := redisThrough(t)
	p.Cut(faultproxy.Rule{Match: []byte("second"), When: faultproxy.After, Times: 1})
	_, err := through.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Append(t.Context(), key, "first")
		pipe.HSet(t.Context(), key+":h", "a", 1, "b", 2)
		pipe.HGetAll(t.Context(), key+":h")
		pipe.Append(t.Context(), key, "second")
		return nil
	})
	if err == nil {
		t.Error("the pipeline was answered")
	}
	if got, err := direct.Get(t.Context(), key).Result(); err != nil || got != "firstsecond" {
		t.Errorf("%q, %v", got, err)
	}
}

// Who has seen the cut finds it counted.
func TestACutIsCountedOnceItIsSeen(t *testing.T) {
	t.Parallel()
	p, through, _, key := redisThrough(t)
	for n := range 300 {
		f := p.Cut(faultproxy.Rule{Match: []byte(key), When: faultproxy.After, Times: 1})
		if err := through.Incr(t.Context(), key).Err(); err == nil {
			t.Fatalf("round %d: the reply came through", n)
		}
		if f.Fired() != 1 {
			t.Fatalf("round %d: fired %d times", n, f.Fired())
		}
		f.Remove()
	}
}

func TestRefuseAndAllow(t *testing.T) {
	t.Parallel()
	p, through, _, key := redisThrough(t)
	if err := through.Incr(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	p.Refuse()
	began := time.Now()
	if err := through.Incr(t.Context(), key).Err(); err == nil {
		t.Error("answered while refusing")
	}
	if took := time.Since(began); took > 250*time.Millisecond {
		t.Errorf("refusing took %v, it is not a timeout", took)
	}
	p.Allow()
	if n, err := through.Incr(t.Context(), key).Result(); err != nil || n != 2 {
		t.Errorf("after Allow: %d, %v", n, err)
	}
}

func TestBlackhole(t *testing.T) {
	t.Parallel()
	p, db, direct := mysqlThrough(t, "?readTimeout=200ms&timeout=200ms")
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	p.Blackhole()
	if err := tx.Commit(); err == nil {
		t.Error("committed through a black hole")
	}
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("connected through a black hole")
	}
	// The server has not heard that its client is gone: the row lock stays.
	_, err = direct.ExecContext(t.Context(), "INSERT INTO t (n) SELECT 1 FROM (SELECT SLEEP(0)) s WHERE NOT EXISTS (SELECT 1 FROM t WHERE n = 1 FOR UPDATE NOWAIT)")
	var locked *mysql.MySQLError
	if !errors.As(err, &locked) || locked.Number != 3572 {
		t.Errorf("the transaction is not open any more: %v", err)
	}
	p.Allow()
	if err := insert(t.Context(), t, db, 2); err != nil {
		t.Error(err)
	}
	devtest.Until(t, "the server has rolled back", func() bool { return count(t, direct) == 1 })
}

func TestRTT(t *testing.T) {
	t.Parallel()
	p, _, _, key := redisThrough(t)
	through := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: 5 * time.Second})
	t.Cleanup(func() { _ = through.Close() })
	if err := through.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.SetRTT(50 * time.Millisecond)
	began := time.Now()
	if err := through.Incr(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("a round trip took %v", took)
	}
	began = time.Now()
	if _, err := through.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for range 20 {
			pipe.Incr(t.Context(), key)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 50*time.Millisecond || took > 20*50*time.Millisecond {
		t.Errorf("a pipeline of 20 took %v, want one round trip", took)
	}
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := start(t, l.Addr().String(), faultproxy.Redis)
	c, err := net.Dial("tcp", p.Addr())
	if err == nil { // the reset may be faster than the dial
		defer c.Close()
		_, err = io.ReadAll(c)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("want a reset, got %v", err)
	}
	devtest.Until(t, "the link is gone", func() bool { return p.Connections() == 0 })
}

func TestWaitTellsWhatItSaw(t *testing.T) {
	t.Parallel()
	p, _, _, _ := redisThrough(t)
	f := p.Cut(faultproxy.Rule{Match: []byte("never"), When: faultproxy.Before})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := f.WaitFor(ctx, 2); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "fired 0 times") {
		t.Error(err)
	}
	f.Remove()
}
