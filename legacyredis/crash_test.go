package legacyredis_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// This file shows why a claim pins first. The claim found in the field has two steps, one in MySQL and one in Redis,
// and a process that dies between them leaves figures that nothing ever puts right. It is kept here in its bare form,
// with its own table and keys, and killed with -9 in both orders of its steps; then ours is killed at each of its own.

// childEnv names what a child process of this test binary does.
const childEnv = "TWINHOLD_FIELD_CLAIM"

// childDone is the exit code of a child that was not killed.
const childDone = 42

// child runs in a process of its own. It dies between the steps, if all goes as it should.
func child(order string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	f, err := openField(os.Getenv("FIELD_DSN"), os.Getenv("FIELD_URL"), os.Getenv("FIELD_POD"))
	if err == nil {
		err = f.claim(ctx, order, os.Getenv("FIELD_RESERVATION"), func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		})
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	return childDone
}

// field is the system as it was found: a counter and a hash in Redis, a ledger in MySQL, one bucket.
type field struct {
	db    *sql.DB
	redis redis.UniversalClient
	pod   string
}

func openField(dsn, url, pod string) (*field, error) {
	db, err := mysqlstore.OpenDB(dsn, mysqlstore.Options{MaxOpenConns: 2})
	if err != nil {
		return nil, err
	}
	client, err := legacyredis.NewClient(url, pod)
	return &field{db: db, redis: client, pod: pod}, err
}

func (f *field) key(name string) string { return "{" + f.pod + "}:field:" + name }

func (f *field) setUp(ctx context.Context, onHand int64) error {
	_, err := f.db.ExecContext(ctx, "CREATE TABLE field_ledger (item BIGINT PRIMARY KEY, on_hand BIGINT NOT NULL)")
	if err == nil {
		_, err = f.db.ExecContext(ctx, "INSERT INTO field_ledger VALUES (1, ?)", onHand)
	}
	return errors.Join(err, f.redis.Set(ctx, f.key("avail"), onHand, 0).Err())
}

func (f *field) reserve(ctx context.Context, id string, quantity int64) (bool, error) {
	left, err := f.redis.DecrBy(ctx, f.key("avail"), quantity).Result()
	if err != nil {
		return false, err
	}
	if left < 0 {
		return false, f.redis.IncrBy(ctx, f.key("avail"), quantity).Err()
	}
	return true, f.redis.HSet(ctx, f.key("res:"+id), "quantity", quantity).Err()
}

// claim is the bare claim: deduct the ledger, clear the reservation, in either order, and nothing in between.
func (f *field) claim(ctx context.Context, order, id string, between func()) error {
	quantity, err := f.redis.HGet(ctx, f.key("res:"+id), "quantity").Int64()
	if err != nil {
		return err
	}
	deduct := func() error {
		_, err := f.db.ExecContext(ctx, "UPDATE field_ledger SET on_hand = on_hand - ? WHERE item = 1 AND on_hand >= ?", quantity, quantity)
		return err
	}
	clearing := func() error { return f.redis.Del(ctx, f.key("res:"+id)).Err() }
	first, second := deduct, clearing
	if order == "clear first" {
		first, second = clearing, deduct
	}
	if err := first(); err != nil {
		return err
	}
	between()
	return second()
}

// expire is what ends every reservation that nobody cleared.
func (f *field) expire(ctx context.Context, id string) error {
	quantity, err := f.redis.HGet(ctx, f.key("res:"+id), "quantity").Int64()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return errors.Join(err, f.redis.Del(ctx, f.key("res:"+id)).Err(), f.redis.IncrBy(ctx, f.key("avail"), quantity).Err())
}

func (f *field) figures(ctx context.Context) (available, onHand int64, err error) {
	err = f.db.QueryRowContext(ctx, "SELECT on_hand FROM field_ledger WHERE item = 1").Scan(&onHand)
	available, rerr := f.redis.Get(ctx, f.key("avail")).Int64()
	return available, onHand, errors.Join(err, rerr)
}

func TestFieldClaimLosesUnitsWhenKilled(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]struct {
		available, onHand int64
		loss              string
	}{
		// Deducted, and the reservation lives on: it expires, and its 4 units are sold once more.
		"deduct first": {10, 6, "oversell"},
		// Cleared, and never deducted: 4 units lie in the warehouse and nobody can buy them, ever.
		"clear first": {6, 10, "undersell"},
	} {
		t.Run(want.loss, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			dsn, url, pod := devtest.Schema(t), devtest.RedisURL(t), devtest.Pod(t)
			f, err := openField(dsn, url, pod)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.db.Close(); _ = f.redis.Close() })
			if err := f.setUp(ctx, 10); err != nil {
				t.Fatal(err)
			}
			if ok, err := f.reserve(ctx, "r1", 4); !ok || err != nil {
				t.Fatal(ok, err)
			}
			killed(t, childEnv+"="+order, "FIELD_DSN="+dsn, "FIELD_URL="+url, "FIELD_POD="+pod, "FIELD_RESERVATION=r1")
			// The payment's callback comes again and finds what the crash has left; then time passes.
			if want.loss == "undersell" {
				if err := f.claim(ctx, order, "r1", func() {}); !errors.Is(err, redis.Nil) {
					t.Fatalf("the reservation is cleared, and the claim again says %v", err)
				}
			}
			if err := f.expire(ctx, "r1"); err != nil {
				t.Fatal(err)
			}
			available, onHand, err := f.figures(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if available != want.available || onHand != want.onHand {
				t.Fatalf("available %d, on hand %d; want %d and %d", available, onHand, want.available, want.onHand)
			}
			if want.loss != "oversell" {
				return
			}
			sold, err := f.reserve(ctx, "r2", 10)
			if err != nil || !sold {
				t.Fatalf("10 of the 6 that are there: sold %t, %v", sold, err)
			}
		})
	}
}

// killed runs this test binary as a child and wants it dead by SIGKILL.
func killed(t *testing.T, env ...string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the child was not killed: %v\n%s", err, out)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v\n%s", err, out)
	}
}

// pinChild is what a child does with our claim: die at a step.
const pinChildEnv = "TWINHOLD_PIN_CLAIM"

func pinChild(point string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	attach := map[string]string{"url": os.Getenv("FIELD_URL"), "dsn": os.Getenv("FIELD_DSN"), "pod": os.Getenv("FIELD_POD"), "retention": "48h"}
	s, err := openContractChild(ctx, attach, func(at string) {
		if at == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err == nil {
		var id reservation.ID
		if id, err = reservation.ParseID(os.Getenv("FIELD_RESERVATION")); err == nil {
			_, err = s.Claim(ctx, stamp(), 1, id)
		}
	}
	if flusher, ok := s.(contractChild); ok {
		err = errors.Join(err, flusher.Flush(ctx))
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	return childDone
}

// Ours, killed at each of its steps, in time and late: the sweeper alone brings it to exact figures (I5, I6).
func TestPinnedClaimIsExactWhenKilled(t *testing.T) {
	t.Parallel()
	for _, point := range []string{legacyredis.FailClaimPinned, legacyredis.FailClaimDeducted, legacyredis.FailClaimFinished} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s late %t", point, late), func(t *testing.T) {
				t.Parallel()
				dsn, url, pod := devtest.Schema(t), devtest.RedisURL(t), devtest.Pod(t)
				my := openLedgerAt(t, dsn, pod, stamp())
				g := &gate{Ledger: my}
				b := &book{mysql: my, gate: g, rig: newRigOn(t, url, pod, func(o *legacyredis.Options) { o.Ledger = g })}
				b.stockBoth(10)
				id := b.reserve("k", line(1, 4)).Record.ID
				if late {
					b.expireNow(id)
					b.sweep()
				}
				killed(t, pinChildEnv+"="+point, "FIELD_DSN="+dsn, "FIELD_URL="+url, "FIELD_POD="+pod, "FIELD_RESERVATION="+id.String())
				devtest.Until(t, "nothing is pinned any more", func() bool {
					b.sweep()
					rec, err := b.raw.HGet(t.Context(), b.key("res:%s", id), "state").Result()
					return err == nil && rec != "claiming"
				})
				if rec := b.state(id, reservation.Claimed); rec.Late != late {
					t.Fatalf("late %t; want %t", rec.Late, late)
				}
				b.figures(1, 6, 0, 6)
				if n := b.entries(id); n != 1 {
					t.Fatalf("I6: %d entries", n)
				}
				b.mustClaim(id, reservation.Claimed, late, true)
				b.figures(1, 6, 0, 6)
				b.noOrphans()
			})
		}
	}
}
