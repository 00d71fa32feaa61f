// Package devtest gives tests real servers: one shared stack per test process,
// started when the first test asks for it, and private ones for tests that
// pause or kill a server.
//
// Tests on the shared stack keep apart by a fresh schema (Schema) and a fresh
// pod id (Pod), never by wiping a server, so they can run in parallel.
//
//	func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true, Redis: true}) }
//
//	func TestReserve(t *testing.T) {
//		t.Parallel()
//		dsn, url, pod := devtest.Schema(t), devtest.RedisURL(t), devtest.Pod(t)
//		...
//	}
package devtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/twinhold/twinhold/internal/devstack"
)

// Needs says what a package's tests use.
type Needs struct {
	// MySQL and Redis are the servers of the shared stack.
	MySQL, Redis bool
	// MySQLArgs and RedisArgs are further arguments of the shared servers.
	MySQLArgs, RedisArgs []string
	// Leaks are options of the check for goroutines left behind, which Main
	// makes after the shared stack is gone.
	Leaks []goleak.Option
}

// shared is the test process's stack. It is a global because TestMain has no
// other way to hand something to a test.
//
//nolint:gochecknoglobals // see above
var shared struct {
	mu    sync.Mutex
	needs *Needs
	stack *devstack.Stack
	err   error
}

// Main runs a package's tests, ends the shared stack, and fails if goroutines
// are left. Call it from TestMain; it does not return.
func Main(m *testing.M, needs Needs) { os.Exit(run(m, needs)) }

func run(m *testing.M, needs Needs) int {
	shared.needs = &needs
	code := m.Run()
	if shared.stack != nil {
		if err := shared.stack.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := goleak.Find(append(needs.Leaks, redialing())...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
	}
	return code
}

// Stack is the shared stack. Do not pause, stop or flush its servers: see
// Private.
func Stack(tb testing.TB) *devstack.Stack {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.needs == nil {
		tb.Fatal("devtest: call devtest.Main in TestMain")
	}
	if shared.stack == nil && shared.err == nil {
		shared.stack, shared.err = devstack.Start(context.Background(), devstack.Options{
			MySQL: shared.needs.MySQL, MySQLArgs: shared.needs.MySQLArgs,
			Redis: shared.needs.Redis, RedisArgs: shared.needs.RedisArgs,
			Progress: progress,
		})
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.stack
}

// Private starts a stack for this test alone and closes it at the end of the
// test. It takes about two seconds with MySQL, a tenth of one without.
func Private(tb testing.TB, o devstack.Options) *devstack.Stack {
	tb.Helper()
	if o.Progress == nil {
		o.Progress = progress
	}
	s, err := devstack.Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// progress shows the slow things only: a download, a new data folder.
func progress(line string) {
	if strings.Contains(line, "fetch") || strings.Contains(line, "prepar") {
		fmt.Fprintln(os.Stderr, line)
	}
}

// MySQL is the shared mysqld.
func MySQL(tb testing.TB) *devstack.MySQL {
	tb.Helper()
	m := Stack(tb).MySQL
	if m == nil {
		tb.Fatal("devtest: TestMain's Needs do not name MySQL")
	}
	return m
}

// Redis is the shared redis-server.
func Redis(tb testing.TB) *devstack.Redis {
	tb.Helper()
	r := Stack(tb).Redis
	if r == nil {
		tb.Fatal("devtest: TestMain's Needs do not name Redis")
	}
	return r
}

// Schema creates an empty schema on the shared mysqld, returns its DSN (without
// parameters), and drops it at the end of the test.
func Schema(tb testing.TB) string {
	tb.Helper()
	return SchemaOn(tb, MySQL(tb))
}

// SchemaOn is Schema on the given server. A server that is down or paused at
// the end of the test keeps the schema.
func SchemaOn(tb testing.TB, m *devstack.MySQL) string {
	tb.Helper()
	name := "t_" + random()
	if err := m.CreateSchema(tb.Context(), name); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := m.DropSchema(ctx, name); err != nil {
			tb.Logf("devtest: schema %s stays: %v", name, err)
		}
	})
	return m.DSN(name)
}

// RedisURL is the address of the shared redis-server. Keep to keys of your own
// Pod.
func RedisURL(tb testing.TB) string {
	tb.Helper()
	return Redis(tb).URL(0)
}

// Pod makes up a pod id, "t-" and random letters. If the shared stack has a
// Redis, all keys with the hash tag {pod} are removed at the end of the test.
func Pod(tb testing.TB) string {
	tb.Helper()
	pod := "t-" + random()
	if shared.needs == nil || !shared.needs.Redis {
		return pod
	}
	addr := Redis(tb).Addr()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := removeKeys(ctx, addr, "{"+pod+"}*"); err != nil {
			tb.Errorf("devtest: removing the keys of %s: %v", pod, err)
		}
	})
	return pod
}

func removeKeys(ctx context.Context, addr, pattern string) error {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	var cursor uint64
	for {
		keys, next, err := c.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := c.Unlink(ctx, keys...).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func random() string { return strings.ToLower(rand.Text()[:12]) }

// Until polls the condition until it holds, and fails the test after ten
// seconds (what says what was awaited). It is for conditions that send no
// signal.
func Until(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	UntilWithin(tb, 10*time.Second, what, cond)
}

// UntilWithin is Until with another limit.
func UntilWithin(tb testing.TB, limit time.Duration, what string, cond func() bool) {
	tb.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// Soak reports whether long tests are to run: TWINHOLD_SOAK=1, as make soak
// sets it.
func Soak() bool { return os.Getenv("TWINHOLD_SOAK") == "1" }

// redialing is the Redis client's goroutine that looks once a second whether a server it could not dial is back. It
// notices that its pool was closed at its next look, which a test does not wait for.
func redialing() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
}
