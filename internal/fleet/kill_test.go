package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// acks are when each router was first seen to have acknowledged an epoch, by its heartbeat in Redis.
type acks struct {
	mu    sync.Mutex
	first map[string]map[uint64]time.Duration
}

// watchAcks reads the heartbeats until the context ends.
func (f *fleet) watchAcks(ctx context.Context, pod int) (*acks, func()) {
	a := &acks{first: map[string]map[uint64]time.Duration{}}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause(ctx, 5*time.Millisecond) {
			beats, err := f.redis.HGetAll(ctx, "{"+f.pods[pod].ID+"}:routers").Result()
			if err != nil {
				continue
			}
			a.note(f.history.now(), beats)
		}
	})
	return a, func() {
		cancel()
		wg.Wait()
	}
}

func (a *acks) note(now time.Duration, beats map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, text := range beats {
		var hb struct{ Epoch uint64 }
		_, told, _ := strings.Cut(text, " ") // the time of the heartbeat stands before it
		if json.Unmarshal([]byte(told), &hb) != nil {
			continue
		}
		if a.first[name] == nil {
			a.first[name] = map[uint64]time.Duration{}
		}
		if _, ok := a.first[name][hb.Epoch]; !ok {
			a.first[name][hb.Epoch] = now
		}
	}
}

// of gives when a router was first seen at an epoch or above.
func (a *acks) of(name string, epoch uint64) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := never, false
	for e, t := range a.first[name] {
		if e >= epoch {
			at, ok = min(at, t), true
		}
	}
	return at, ok
}

// probeTTL is short: a hold that a kill left in MySQL alone, with nobody answered, is waited for by the next flip.
const probeTTL = 2 * time.Second

// prober reserves one unit again and again through one router, a fresh key each time.
func (f *fleet) prober(ctx context.Context, wg *sync.WaitGroup, r *router, b reservation.Bucket, tag string, within time.Duration) {
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			c := call{Op: "reserve", Shop: b.Shop, Key: fmt.Sprintf("%s-%s-%d", tag, r.name, i), Lines: []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: 1}}}
			if got := f.ask(ctx, r, c, probeTTL, within); got.undecided() {
				pause(ctx, 5*time.Millisecond)
			}
		}
	})
}

// roundTrip is the median of one PING.
func (f *fleet) roundTrip() time.Duration {
	f.tb.Helper()
	took := make([]time.Duration, 201)
	for i := range took {
		began := time.Now()
		if err := f.redis.Ping(f.tb.Context()).Err(); err != nil {
			f.tb.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// killedUnderLoad probes through every router in cutover, kills by way of kill, and waits until every router answers by
// Redis. It gives the time from the kill's return to the first answer that came from Redis, and to the last router's.
func (f *fleet) killedUnderLoad(b reservation.Bucket, tag string, kill func() time.Duration) (first, last time.Duration) {
	f.tb.Helper()
	ctx, cancel := context.WithCancel(f.tb.Context())
	var wg sync.WaitGroup
	for _, r := range f.routers {
		for n := range 4 {
			f.prober(ctx, &wg, r, b, fmt.Sprintf("%s-%d", tag, n), 3*time.Second)
		}
	}
	defer wg.Wait()
	defer cancel()
	pause(ctx, time.Second)
	from := len(f.history.snapshot())
	returned := kill()
	for _, r := range f.routers { // those of before may wait for a store that does not answer
		f.prober(ctx, &wg, r, b, tag+"-after", 3*time.Second)
	}
	var by map[string]time.Duration
	if !untilWithin(f.tb, 30*time.Second, func() bool {
		by = firstByRedis(f.history.snapshot()[from:], returned)
		return len(by) == len(f.routers)
	}) {
		f.tb.Errorf("30 s after the kill (%s) only %v answer by Redis", tag, by)
	}
	first = never
	for _, at := range by {
		first, last = min(first, at-returned), max(last, at-returned)
	}
	return first, last
}

// firstByRedis gives, by router, the end of the first fresh grant that Redis decided and that was asked for after a time.
func firstByRedis(calls []call, after time.Duration) map[string]time.Duration {
	by := map[string]time.Duration{}
	for _, c := range calls {
		if c.Op != "reserve" || c.Code != "ok" || c.DecidedBy != "redis" || c.Begin < after {
			continue
		}
		if at, ok := by[c.Router]; !ok || c.End < at {
			by[c.Router] = c.End
		}
	}
	return by
}

// I8: with polling all but off, a kill is in force at the next write of each router: nothing that was asked for after its
// acknowledgement is granted by MySQL.
func TestI8KillWithoutPolling(t *testing.T) {
	f := newFleet(t, settings{routers: 3, pods: 1, poll: time.Minute, cutBudget: 5 * time.Second})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 1_000_000})
	seen, stop := f.watchAcks(t.Context(), 0)
	defer stop()
	pod := f.pods[0].ID
	for name, kill := range map[string]func() time.Duration{
		"command": func() time.Duration { f.mustKill(t.Context(), 0); return f.history.now() },
		"key": func() time.Duration {
			before, _, err := f.fence(t.Context(), pod)
			must(t, err)
			must(t, f.redis.Set(t.Context(), "{"+pod+"}:kill", "by hand", 0).Err())
			// Every router reaches Redis, so from here on each finds the key at its next write.
			f.history.kill(killDone{epoch: before + 1, returned: f.history.now(), debt: &reservation.Debt{}})
			return f.history.now()
		},
	} {
		f.flip(0, "cutover")
		before, _, err := f.fence(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		first, last := f.killedUnderLoad(b, name, kill)
		rtt := f.roundTrip()
		t.Logf("kill by %s, no polling: first answer by Redis after %s (%.0f round trips of %s), the last router's after %s",
			name, first, float64(first)/float64(rtt), rtt, last)
		f.neverAfterAck(seen, before)
		f.rearm(0)
	}
	newJudge(f.history, nil, nil).report(t)
}

// neverAfterAck judges the calls by each router's own acknowledgement of a kill of epoch before.
func (f *fleet) neverAfterAck(seen *acks, before uint64) {
	f.tb.Helper()
	acked := 0
	for _, r := range f.routers {
		at, ok := seen.of(r.name, before+1)
		if !ok {
			f.tb.Logf("%s was not seen to acknowledge epoch %d", r.name, before+1)
			continue
		}
		acked++
		for _, c := range f.history.snapshot() {
			if c.Router == r.name && c.Op == "reserve" && c.Outcome == "GRANTED" && c.DecidedBy == "mysql" && c.Epoch <= before && c.Begin > at {
				f.tb.Errorf("I8: %s acknowledged the kill at %.4f: %s", r.name, at.Seconds(), c)
			}
		}
	}
	if acked == 0 {
		f.tb.Error("no router acknowledged the kill: nothing was judged")
	}
}

// A kill needs only Redis: with MySQL healthy, stopped as it stands, and gone, the routers grant by Redis again.
func TestKillWhateverMySQLDoes(t *testing.T) {
	if !devtest.Soak() {
		t.Skip("TWINHOLD_SOAK=1 measures it; killswitch kills with MySQL stopped, refusing and gone in every run")
	}
	f := newFleet(t, settings{routers: 2, pods: 1})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 1_000_000})
	for _, c := range []struct {
		name         string
		before, heal func() error
	}{
		{"healthy", func() error { return nil }, func() error { return nil }},
		{"stopped", f.stack.MySQL.Pause, f.stack.MySQL.Resume},
		{"gone", f.stack.MySQL.Kill, func() error { return f.stack.MySQL.Start(t.Context()) }},
	} {
		f.flip(0, "cutover")
		first, last := f.killedUnderLoad(b, c.name, func() time.Duration {
			if err := c.before(); err != nil {
				t.Fatal(err)
			}
			k := f.mustKill(t.Context(), 0)
			if c.name == "healthy" == (k.Debt == nil) {
				t.Errorf("MySQL %s: the kill tells the debt %v", c.name, k.Debt)
			}
			return f.history.now()
		})
		rtt := f.roundTrip()
		t.Logf("MySQL %s: first answer by Redis %s after the kill's return (%.0f round trips of %s), the last router's after %s",
			c.name, first, float64(first)/float64(rtt), rtt, last)
		if err := c.heal(); err != nil {
			t.Fatal(err)
		}
		f.rearm(0)
	}
	newJudge(f.history, nil, nil).report(t)
}
