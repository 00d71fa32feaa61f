package legacyredis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// privateRig is a store on a Redis of its own, to break.
func privateRig(t *testing.T, args ...string) (*rig, *devstack.Redis) {
	t.Helper()
	srv := devtest.Private(t, devstack.Options{Redis: true, RedisArgs: args}).Redis
	return newRigOn(t, srv.URL(0), "pod-1"), srv
}

func (r *rig) config(name, value string) {
	r.tb.Helper()
	if err := r.raw.ConfigSet(r.tb.Context(), name, value).Err(); err != nil {
		r.tb.Fatal(err)
	}
}

// tryReserve reserves one unit of item 1 within a deadline.
func (r *rig) tryReserve(key string, within time.Duration) (reservation.Result, error) {
	ctx, cancel := context.WithTimeout(r.tb.Context(), within)
	defer cancel()
	return r.store.Reserve(ctx, stamp(), newID(r.tb), request(r.tb, key, time.Hour, line(1, 1)))
}

// contents is everything in Redis, to show that nothing has changed.
func (r *rig) contents() map[string]string {
	r.tb.Helper()
	ctx := r.tb.Context()
	keys, err := r.raw.Keys(ctx, r.key("*")).Result()
	if err != nil {
		r.tb.Fatal(err)
	}
	out := map[string]string{}
	for _, k := range keys {
		if out[k], err = r.raw.Dump(ctx, k).Result(); err != nil {
			r.tb.Fatal(err)
		}
	}
	return out
}

func (r *rig) unchanged(before map[string]string) {
	r.tb.Helper()
	if diff := cmp.Diff(before, r.contents()); diff != "" {
		r.tb.Fatalf("something was changed:\n%s", diff)
	}
}

func TestScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t)
	r.stock(1_000_000)
	var wg sync.WaitGroup
	var kept atomic.Int64
	done := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				res, err := r.tryReserve(fmt.Sprintf("%d-%d", w, i), 10*time.Second)
				if err != nil {
					t.Errorf("reserve: %v", err)
					return
				}
				kept.Add(1)
				if i%2 == 0 {
					if _, err := r.release(res.Record.ID); err != nil {
						t.Errorf("release: %v", err)
						return
					}
					kept.Add(-1)
				}
			}
		})
	}
	for range 100 {
		if err := r.raw.ScriptFlush(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
	r.figures(1, 1_000_000-kept.Load(), kept.Load(), 1_000_000)
}

func TestBusyScript(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t, "--busy-reply-threshold", "20")
	r.stock(10)
	other := newClient(t, r.url)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		ended <- other.Eval(ctx, "while true do end", nil).Err()
	}()
	r.untilBusy()

	// Busy replies alone are "unavailable"; an attempt that the deadline cuts short is "unknown". Both mean: again.
	_, err := r.tryReserve("in vain", 300*time.Millisecond)
	if code := reservation.CodeOf(err); code != reservation.CodeUnavailable {
		t.Errorf("while Redis is busy: %s (%v), want unavailable", code, err)
	}

	answer := make(chan error, 1)
	go func() {
		_, err := r.tryReserve("patient", 20*time.Second)
		answer <- err
	}()
	r.killScript()
	if err := <-answer; err != nil {
		t.Fatalf("once the script was gone: %v", err)
	}
	<-ended
	if _, err := r.tryReserve("in vain", 20*time.Second); err != nil {
		t.Errorf("the same key again: %v", err)
	}
	r.figures(1, 8, 2, 10)
}

// killScript ends the script that keeps Redis busy. A new connection of ours would meet it in its own check, so this one
// is not ours.
func (r *rig) killScript() {
	r.tb.Helper()
	o, err := redis.ParseURL(r.url)
	if err != nil {
		r.tb.Fatal(err)
	}
	plain := redis.NewClient(o)
	defer func() { _ = plain.Close() }()
	if err := plain.ScriptKill(r.tb.Context()).Err(); err != nil {
		r.tb.Fatal(err)
	}
}

// untilBusy waits until Redis says that it is busy, to a command or to the check of a new connection.
func (r *rig) untilBusy() {
	r.tb.Helper()
	devtest.Until(r.tb, "Redis is busy", func() bool {
		err := r.raw.Ping(r.tb.Context()).Err()
		return err != nil && strings.Contains(err.Error(), "BUSY")
	})
}

func TestReadOnlyReplica(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{Redis: true, RedisArgs: []string{"--repl-diskless-sync-delay", "0"}})
	host, port, _ := strings.Cut(stack.Redis.Addr(), ":")
	replica, err := stack.AddRedis(t.Context(), "--replicaof", host, port)
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, stack.Redis.URL(0), "pod-1")
	r.stock(10)
	first := r.reserve("k", line(1, 1))
	there := newClient(t, replica.URL(0))
	devtest.Until(t, "the replica has followed", func() bool {
		return there.Exists(t.Context(), r.key("res:%s", first.Record.ID)).Val() == 1
	})

	s := r.open(t, replica.URL(0))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = s.Reserve(ctx, stamp(), newID(t), request(t, "new", time.Hour, line(1, 1)))
	if e := wantAs[*reservation.UnavailableError](t, err); !redis.IsReadOnlyError(e.Cause) {
		t.Fatal(e)
	}
	_, err = s.Release(ctx, stamp(), 1, first.Record.ID)
	wantAs[*reservation.UnavailableError](t, err)
	// Not even reads: the connection would outlive a promotion, and its server would never have been looked at.
	_, err = s.Availability(ctx, bucket(1))
	wantAs[*reservation.UnavailableError](t, err)
	r.figures(1, 9, 1, 10)

	findings, err := s.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, findings, "role", reservation.Failure)
}

func TestMisconf(t *testing.T) {
	t.Parallel()
	r, srv := privateRig(t)
	r.stock(10)
	id := r.reserve("k", line(1, 1)).Record.ID
	// A snapshot that cannot be put in its place: then Redis takes no writes.
	if err := os.Mkdir(filepath.Join(srv.DataDir(), "dump.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.config("save", "3600 1")
	devtest.Until(t, "a snapshot has failed", func() bool {
		_ = r.raw.BgSave(t.Context()).Err() // refused while one runs
		return strings.Contains(r.raw.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	})
	before := r.contents()
	_, err := r.tryReserve("new", 5*time.Second)
	if e := wantAs[*reservation.UnavailableError](t, err); !redis.HasErrorPrefix(e.Cause, "MISCONF") {
		t.Fatal(e)
	}
	_, err = r.release(id)
	wantAs[*reservation.UnavailableError](t, err)
	r.unchanged(before)
	if again := r.reserve("k", line(1, 1)); !again.Replayed {
		t.Fatal("a replay writes nothing, and is answered")
	}
	r.config("save", "")
	if _, err := r.release(id); err != nil {
		t.Fatal(err)
	}
	r.figures(1, 10, 0, 10)
}

func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t)
	r.stock(10)
	id := r.reserve("k", line(1, 1)).Record.ID
	old := r.reserve("old", line(1, 11)).Record.ID
	due := r.reserve("due", line(1, 2)).Record.ID
	r.expireNow(due)
	before := r.contents()
	r.config("maxmemory", "1")
	_, err := r.tryReserve("new", 5*time.Second)
	if e := wantAs[*reservation.UnavailableError](t, err); !redis.IsOOMError(e.Cause) {
		t.Fatal(e)
	}
	_, err = r.release(id)
	wantAs[*reservation.UnavailableError](t, err)
	_, err = r.store.Claim(t.Context(), stamp(), 1, id)
	wantAs[*reservation.UnavailableError](t, err)
	_, err = r.store.Sweep(t.Context(), stamp(), 10)
	wantAs[*reservation.UnavailableError](t, err)
	_, err = r.store.ApplyFigures(t.Context(), stamp(), []reservation.Figures{{Bucket: bucket(1), OnHand: 99, Version: 9}}, true)
	wantAs[*reservation.UnavailableError](t, err)
	r.config("maxmemory", "0")
	r.unchanged(before)

	// What only removes goes on, so that memory can be had again.
	if _, err := r.release(due); err != nil {
		t.Fatal(err)
	}
	r.setTime(old, "purge_at", -time.Second)
	r.config("maxmemory", "1")
	if again := r.reserve("k", line(1, 1)); !again.Replayed {
		t.Fatal("a replay writes nothing, and is answered")
	}
	if res := r.sweep(); res.Purged != 1 {
		t.Fatalf("sweep: %+v", res)
	}
	r.config("maxmemory", "0")
	r.figures(1, 9, 1, 10)
	r.noOrphans()
}

// Memory that runs out in the middle of a script does not stop it there.
func TestOutOfMemoryHalfWay(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t)
	const n = 500
	stock, cart := make([]int64, n), make([]reservation.Line, n)
	for i := range n {
		stock[i], cart[i] = 1_000_000, line(int64(i+1), 20_000) // beyond Redis's shared small integers
	}
	r.stock(stock...)
	r.reserve("warm", cart...)
	taken := int64(20_000)
	whole, none := 0, 0
	for room := 0; room <= 64<<10 && taken < 900_000; room += 2 << 10 {
		used, err := strconv.Atoi(infoField(t, r.raw, "memory", "used_memory"))
		if err != nil {
			t.Fatal(err)
		}
		r.config("maxmemory", strconv.Itoa(used+room))
		_, err = r.store.Reserve(t.Context(), stamp(), newID(t), request(t, fmt.Sprint("room ", room), time.Hour, cart...))
		r.config("maxmemory", "0")
		if err == nil {
			whole++
			taken += 20_000
		} else {
			wantAs[*reservation.UnavailableError](t, err)
			none++
		}
		for _, item := range []int64{1, n / 2, n} {
			r.figures(item, 1_000_000-taken, taken, 1_000_000)
		}
	}
	t.Logf("%d whole, %d not at all", whole, none)
	if whole == 0 || none == 0 {
		t.Fatal("memory did not run out in the middle: nothing was tested")
	}
	r.noOrphans()
}

func infoField(tb testing.TB, c redis.UniversalClient, section, name string) string {
	tb.Helper()
	for l := range strings.Lines(c.Info(tb.Context(), section).Val()) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), name+":"); ok {
			return v
		}
	}
	tb.Fatalf("no %s in INFO %s", name, section)
	return ""
}

func TestMissingCounter(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"avail": "unknown", "held": "corrupt"} {
		r := newRig(t)
		r.stock(5, 5)
		id := r.reserve("k", line(1, 1), line(2, 1)).Record.ID
		missing := r.key("%s:%s", kind, bucket(2))
		if err := r.raw.Del(t.Context(), missing).Err(); err != nil {
			t.Fatal(err)
		}
		before := r.contents()
		_, err := r.store.Reserve(t.Context(), stamp(), newID(t), request(t, "new", time.Hour, line(1, 1), line(2, 1)))
		if want == "unknown" {
			wantAs[*reservation.UnknownBucketError](t, err)
		} else if e := wantAs[*reservation.CorruptError](t, err); !strings.Contains(e.What, missing) {
			t.Fatal(e)
		}
		// Units cannot go back to where there is no counter.
		_, err = r.release(id)
		wantAs[*reservation.CorruptError](t, err)
		r.unchanged(before)
		r.expireNow(id)
		if res := r.sweep(); res.Skipped != 1 || len(res.Expired) != 0 {
			t.Fatalf("sweep: %+v", res)
		}
		r.figures(1, 4, 1, 5)
		// And no half bucket is filled up silently.
		_, err = r.store.ApplyFigures(t.Context(), stamp(), []reservation.Figures{{Bucket: bucket(2), OnHand: 9, Version: 9}}, true)
		wantAs[*reservation.CorruptError](t, err)
		if snap, err := r.store.Inspect(t.Context()); err != nil || !slices.ContainsFunc(snap.Orphans, func(s string) bool { return strings.Contains(s, missing) }) {
			t.Fatalf("orphans %q, %v", snap.Orphans, err)
		}
	}
}

func TestKeyOfTheWrongType(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"fence", "exp", "created", "avail", "held", "key", "res", "text"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.stock(5, 5)
			old := r.reserve("old", line(1, 1))
			key := map[string]string{
				"fence": r.key("fence"), "exp": r.key("exp"), "created": r.key("created"),
				"avail": r.key("avail:%s", bucket(2)), "held": r.key("held:%s", bucket(2)), "text": r.key("avail:%s", bucket(2)),
				"key": r.key("key:1:new"), "res": r.key("res:%s", old.Record.ID),
			}[name]
			asked := "new"
			if name == "res" {
				asked = "old"
			}
			ctx := t.Context()
			if err := r.raw.Del(ctx, key).Err(); err != nil {
				t.Fatal(err)
			}
			if name == "text" {
				r.raw.Set(ctx, key, "five", 0)
			} else {
				r.raw.RPush(ctx, key, "x")
			}
			before := r.contents()
			_, err := r.store.Reserve(ctx, stamp(), newID(t), request(t, asked, time.Hour, line(1, 1), line(2, 1)))
			if e := wantAs[*reservation.CorruptError](t, err); !strings.Contains(e.What, key) {
				t.Fatalf("%v does not name %s", e, key)
			}
			r.unchanged(before)
			if name == "res" {
				_, err = r.release(old.Record.ID)
				wantAs[*reservation.CorruptError](t, err)
				_, err = r.store.Get(ctx, 1, old.Record.ID)
				wantAs[*reservation.CorruptError](t, err)
			}
			if name == "avail" {
				_, err = r.store.Availability(ctx, bucket(2))
				wantAs[*reservation.CorruptError](t, err)
			}
			r.unchanged(before)
		})
	}
}

// A broken record never stops the sweeper.
func TestSweepGoesAroundABrokenRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(100)
	var ids []reservation.ID
	for i := range 5 {
		id := r.reserve(fmt.Sprint(i), line(1, 1)).Record.ID
		r.expireNow(id)
		ids = append(ids, id)
	}
	if err := r.raw.HSet(t.Context(), r.key("res:%s", ids[0]), "lines", "nonsense").Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.raw.HDel(t.Context(), r.key("res:%s", ids[1]), "state").Err(); err != nil {
		t.Fatal(err)
	}
	var expired, skipped int
	for range 5 {
		res, err := r.store.Sweep(t.Context(), stamp(), 2)
		if err != nil {
			t.Fatal(err)
		}
		expired += len(res.Expired)
		skipped += res.Skipped
	}
	if expired != 3 || skipped != 2 {
		t.Fatalf("%d expired, %d skipped", expired, skipped)
	}
	r.figures(1, 98, 2, 100)
}

// A server stopped by SIGSTOP: deadlines are obeyed, the outcome is unknown, and there is one effect in the end.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	for _, within := range []time.Duration{300 * time.Millisecond, 2500 * time.Millisecond} {
		r, srv := privateRig(t)
		r.stock(10)
		r.reserve("connected", line(1, 1))
		if err := srv.Pause(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := r.tryReserve("k", within)
		took := time.Since(start)
		if e := wantAs[*reservation.UnknownOutcomeError](t, err); e.Store != reservation.Redis || e.Op != reservation.OpReserve {
			t.Fatal(e)
		}
		if took > within+300*time.Millisecond {
			t.Fatalf("a deadline of %v took %v", within, took)
		}
		// A read is no effect: it is unavailable.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err = r.store.Availability(ctx, bucket(1))
		cancel()
		wantAs[*reservation.UnavailableError](t, err)

		if err := srv.Resume(); err != nil {
			t.Fatal(err)
		}
		if res := r.reserve("k", line(1, 1)); !res.Replayed {
			t.Fatal("it was carried out, and is told as a replay")
		}
		r.figures(1, 8, 2, 10)
	}
}

// A server that is down was never sent anything.
func TestServerDown(t *testing.T) {
	t.Parallel()
	// With the default (every second) Redis may put a write off while the disk is busy, and a kill would lose the stock.
	r, srv := privateRig(t, "--appendfsync", "always")
	r.stock(10)
	if err := srv.Kill(); err != nil {
		t.Fatal(err)
	}
	fresh := r.open(t, r.url)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := fresh.Reserve(ctx, stamp(), newID(t), request(t, "k", time.Hour, line(1, 1)))
	wantAs[*reservation.UnavailableError](t, err)
	var unknown *reservation.UnknownOutcomeError
	if errors.As(err, &unknown) {
		t.Fatal("nothing was sent, and the outcome is told to be unknown")
	}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// It is back, but another process: it may have lost writes, and is not believed.
	devtest.Until(t, "the server is back, and suspect", func() bool {
		_, err := r.tryReserve("k", time.Second)
		var e *reservation.FenceError
		return errors.As(err, &e) && e.Verdict == reservation.Regressed && e.Fence.Suspect
	})
}

func TestCheckFindsWhatTheDesignAssumes(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t)
	findings, err := r.store.Check(t.Context())
	if err != nil || len(findings) != 6 {
		t.Fatalf("%+v, %v", findings, err)
	}
	for _, f := range findings {
		if f.Severity != reservation.Fine || f.Found == "" || f.Fix != "" {
			t.Errorf("%+v", f)
		}
	}
	r.config("maxmemory-policy", "allkeys-lru")
	r.config("appendonly", "no")
	if findings, err = r.store.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, findings, "maxmemory-policy", reservation.Failure)
	wantFinding(t, findings, "appendonly", reservation.Failure)
}

func wantFinding(t *testing.T, findings []reservation.Finding, name string, want reservation.Severity) {
	t.Helper()
	for _, f := range findings {
		if f.Check == name {
			if f.Severity != want || f.Fix == "" {
				t.Fatalf("%+v; want %s and what to do", f, want)
			}
			return
		}
	}
	t.Fatalf("no finding %s in %+v", name, findings)
}
