package legacyredis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// unavailable tries everything that a store can be asked for: none of it may work on half a pod.
func (r *rig) unavailable(id reservation.ID) {
	r.tb.Helper()
	ctx, s, st := r.tb.Context(), r.store, stamp()
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 60*time.Millisecond)
		r.tb.Cleanup(cancel)
		return ctx
	}
	for name, f := range map[string]func() error{
		"reserve": func() error {
			_, err := s.Reserve(soon(), st, newID(r.tb), request(r.tb, "new", time.Hour, line(1, 1)))
			return err
		},
		"replay": func() error {
			_, err := s.Reserve(soon(), st, newID(r.tb), request(r.tb, "k", time.Hour, line(1, 3)))
			return err
		},
		"claim":   func() error { _, err := s.Claim(soon(), st, 1, id); return err },
		"release": func() error { _, err := s.Release(soon(), st, 1, id); return err },
		"sweep":   func() error { _, err := s.Sweep(soon(), st, 10); return err },
		"kill":    func() error { _, err := s.Kill(soon(), by("x")); return err },
		"fence":   func() error { _, err := s.ReadFence(soon()); return err },
		"get":     func() error { _, err := s.Get(soon(), 1, newID(r.tb)); return err },
		"figures": func() error {
			_, err := s.ApplyFigures(soon(), st, []reservation.Figures{{Bucket: bucket(1), OnHand: 1, Version: 99}}, true)
			return err
		},
	} {
		if err := f(); reservation.CodeOf(err) != reservation.CodeUnavailable {
			r.tb.Errorf("%s: %v; want unavailable", name, err)
		}
	}
}

// While a slot moves each node has a part of the pod's keys. At every step of it nothing is done, and nothing is
// told: not "not found" either. A latch by redis-cli -c is taken at any time.
func TestI4HalfAPodIsNotTouched(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r, from, to, slot := onCluster(t, c)
	r.stock(10, 10)
	id := r.reserve("k", line(1, 3)).Record.ID
	for i := range 12 {
		r.reserve(fmt.Sprintf("filler-%d", i), line(2, 1))
	}
	all := everywhere(t, c)
	there := plainClient(t, to)
	whole := contentsOf(t, r.raw)
	steps := 0
	err := c.MoveSlot(t.Context(), slot, to, func() {
		steps++
		before := [2]map[string]string{contentsOf(t, r.raw), contentsOf(t, there)}
		r.unavailable(id)
		if diff := cmp.Diff(before, [2]map[string]string{contentsOf(t, r.raw), contentsOf(t, there)}); diff != "" {
			t.Errorf("step %d: %s", steps, diff)
		}
		if steps == 2 {
			if err := all.Set(t.Context(), r.key("kill"), "at night", 0).Err(); err != nil {
				t.Errorf("a latch by hand: %v", err)
			}
		}
	})
	if err != nil || steps < 4 {
		t.Fatalf("%d steps, %v", steps, err)
	}
	if n := plainClient(t, from).DBSize(t.Context()).Val(); n != 0 {
		t.Fatalf("%d keys stayed behind", n)
	}
	f := r.fence()
	if !f.Suspect || f.Latch != "at night" {
		t.Fatalf("after the move: %+v", f)
	}
	r.refusals(stamp(), id, reservation.Regressed)
	now := contentsOf(t, there)
	for _, key := range []string{r.key("fence"), r.key("kill")} {
		delete(now, key)
		delete(whole, key)
	}
	if diff := cmp.Diff(whole, now); diff != "" {
		t.Fatalf("what arrived: %s", diff)
	}
}

// contentsOf is every key of one server, as DUMP gives it.
func contentsOf(t *testing.T, c redis.UniversalClient) map[string]string {
	t.Helper()
	out := map[string]string{}
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		pipe := c.Pipeline()
		pipe.Do(t.Context(), "ASKING") // a node that a slot comes to shows what it has; others need not know it
		dump := pipe.Dump(t.Context(), k)
		_, _ = pipe.Exec(t.Context())
		if out[k], err = dump.Result(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// restoreByHand takes the pod's Redis out of doubt as it is, as if MySQL knew nothing more.
func (r *rig) restoreByHand() reservation.Stamp {
	r.tb.Helper()
	f := r.fence()
	v, err := r.store.BeginRestore(r.tb.Context(), f.Stamp, false)
	if err != nil {
		r.tb.Fatal(err)
	}
	f, err = v.Finish(r.tb.Context(), at(f.Epoch+1, f.Stage), "", by("x"))
	if err != nil {
		r.tb.Fatal(err)
	}
	return f.Stamp
}

// A slot moves to another node and back under load. Callers meet nothing but "again, with the same key" and the doubt;
// after each move the pod is in doubt until it is restored; in the end every unit is where its record says.
func TestI4SlotMovesUnderLoad(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r, from, to, slot := onCluster(t, c)
	const stocked = 100_000
	r.stock(stocked)
	moves := 2
	if devtest.Soak() {
		moves = 20
	}
	var now atomic.Pointer[reservation.Stamp]
	st := stamp()
	now.Store(&st)
	ctx, stop := context.WithCancel(t.Context())
	load := newCarts(r, &now)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() { load.run(ctx, w) })
	}
	for i := range moves {
		load.awaitMore(200)
		dest := to
		if i%2 == 1 {
			dest = from
		}
		if err := c.MoveSlot(t.Context(), slot, dest, nil); err != nil {
			t.Fatal(err)
		}
		devtest.Until(t, "the new node is in doubt", func() bool { f, err := r.store.ReadFence(t.Context()); return err == nil && f.Suspect })
		available := func() string { return plainClient(t, dest).Get(t.Context(), r.key("avail:%s", bucket(1))).Val() }
		before, retried := available(), load.retried.Load()
		devtest.Until(t, "callers are refused", func() bool { return load.retried.Load() > retried+20 })
		if now := available(); now != before || now == "" {
			t.Errorf("a node in doubt granted or took back units: %s available, then %s", before, now)
		}
		st := r.restoreByHand()
		now.Store(&st)
	}
	load.awaitMore(200)
	stop()
	wg.Wait()
	for _, err := range load.strange {
		t.Errorf("a caller met: %v", err)
	}
	snap, err := r.store.Inspect(t.Context())
	if err != nil || len(snap.Orphans) > 0 {
		t.Fatalf("%v, orphans %q", err, snap.Orphans)
	}
	var held int64
	for _, rec := range snap.Records {
		if rec.State == reservation.Held {
			held++
		}
	}
	if want := load.live.Load(); held < want || held > want+load.unknown.Load() {
		t.Errorf("%d held; callers hold %d, and %d do not know", held, want, load.unknown.Load())
	}
	r.figures(1, stocked-held, held, stocked)
	if load.retried.Load() == 0 {
		t.Error("no caller met a move: nothing was tried")
	}
	t.Logf("granted %d, released %d, retried %d, unknown in the end %d", load.granted.Load(), load.released.Load(), load.retried.Load(), load.unknown.Load())
}

// carts are callers that reserve a unit and give every second one back. Each repeats until it has an answer.
type carts struct {
	r                                         *rig
	now                                       *atomic.Pointer[reservation.Stamp]
	granted, released, live, retried, unknown atomic.Int64
	mu                                        sync.Mutex
	strange                                   []error
}

func newCarts(r *rig, now *atomic.Pointer[reservation.Stamp]) *carts { return &carts{r: r, now: now} }

func (l *carts) run(ctx context.Context, worker int) {
	for n := 0; ctx.Err() == nil; n++ {
		id, err := reservation.NewID()
		if err != nil {
			l.odd(err)
			return
		}
		req, err := reservation.NewRequest(1, fmt.Sprintf("%d-%d", worker, n), lines(line(1, 1)), time.Hour, limits())
		if err != nil {
			l.odd(err)
			return
		}
		if !l.again(ctx, func(ctx context.Context) error {
			_, err := l.r.store.Reserve(ctx, *l.now.Load(), id, req)
			return err
		}) {
			return
		}
		l.granted.Add(1)
		l.live.Add(1)
		if n%2 == 0 {
			continue
		}
		l.live.Add(-1)
		if !l.again(ctx, func(ctx context.Context) error {
			_, err := l.r.store.Release(ctx, *l.now.Load(), 1, id)
			return err
		}) {
			return
		}
		l.released.Add(1)
	}
}

// again repeats a call until it is answered; false: the test was over first, and the outcome is not known.
func (l *carts) again(ctx context.Context, call func(context.Context) error) bool {
	for {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		err := call(attempt)
		cancel()
		if err == nil {
			return true
		}
		l.retried.Add(1)
		var fence *reservation.FenceError
		if reservation.CodeOf(err) != reservation.CodeUnavailable && !errors.As(err, &fence) {
			l.odd(err)
			return false
		}
		if ctx.Err() != nil {
			l.unknown.Add(1)
			return false
		}
	}
}

func (l *carts) odd(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strange = append(l.strange, err)
}

func (l *carts) awaitMore(n int64) {
	l.r.tb.Helper()
	want := l.granted.Load() + n
	devtest.UntilWithin(l.r.tb, 60*time.Second, "callers are granted units", func() bool { return l.granted.Load() >= want })
}
