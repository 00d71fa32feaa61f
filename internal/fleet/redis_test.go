package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// loss is one way in which Redis comes back with less than it had.
type loss struct {
	name string
	// prepare is called before the last holds are made; ruin while Redis is down.
	prepare, ruin func(data, aside string) error
}

func losses() []loss {
	nothing := func(string, string) error { return nil }
	wipe := func(data, _ string) error {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		return os.Mkdir(data, 0o700)
	}
	return []loss{
		{"empty", nothing, wipe},
		{"from its file", nothing, nothing},
		{"from an older copy", func(data, aside string) error { return os.CopyFS(aside, os.DirFS(data)) }, func(data, aside string) error {
			if err := os.RemoveAll(data); err != nil {
				return err
			}
			return os.CopyFS(data, os.DirFS(aside))
		}},
	}
}

// I1, I7: whatever Redis has lost, nothing is granted from it until it was restored, the first call notices, and holds
// that MySQL knows can be claimed afterwards.
func TestRedisRestarts(t *testing.T) {
	f := newFleet(t, settings{routers: 2, pods: 1})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 100_000, {Shop: b.Shop, Item: 2, Group: 1}: 40})
	for _, stage := range []string{"shadow", "cutover"} {
		if stage != "shadow" {
			f.flip(0, stage)
		}
		for _, l := range losses() {
			if !t.Run(l.name+" in "+stage, func(t *testing.T) { f.restarts(t, b, stage, l) }) {
				return
			}
		}
	}
	redis, mysql := f.settled(t)
	newJudge(f.history, redis, mysql).report(t)
}

// settled reads the stores once they are equal; holds may be live still.
func (f *fleet) settled(t *testing.T) (redis, mysql []reservation.Snapshot) {
	t.Helper()
	var why string
	if !untilWithin(t, restWithin, func() bool {
		redis, mysql = nil, nil
		rs, ms, err := f.stores[0].Inspect(t.Context())
		if err != nil {
			why = err.Error()
			return false
		}
		redis, mysql = append(redis, rs), append(mysql, ms)
		why = unequal(&rs, &ms)
		return why == ""
	}) {
		t.Errorf("the stores do not settle: %s", why)
	}
	return redis, mysql
}

func (f *fleet) restarts(t *testing.T, b reservation.Bucket, stage string, l loss) {
	server, aside := f.stack.Redis, filepath.Join(t.TempDir(), "copy")
	pod := f.pods[0].ID
	holds := f.holds(t, b, l.name+stage+"-early", 5)
	f.known(t, holds)
	must(t, l.prepare(server.DataDir(), aside))
	holds = append(holds, f.holds(t, b, l.name+stage+"-last", 5)...)
	f.known(t, holds)
	epoch, _ := f.incarnation(t, pod)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	end := server.Stop
	if stage == "cutover" { // nothing that was answered can be lost: buyers go on, and Redis gets no time to write
		end = server.Kill
		for _, r := range f.routers {
			f.prober(ctx, &wg, r, reservation.Bucket{Shop: b.Shop, Item: 2, Group: 1}, l.name, 3*time.Second)
		}
		pause(ctx, 300*time.Millisecond)
	}
	began := f.history.now()
	must(t, end())
	must(t, l.ruin(server.DataDir(), aside))
	must(t, server.Start(t.Context()))
	f.history.event("Redis restarted, "+l.name, began, "")
	restarted := f.history.now()

	first := call{Op: "reserve", Shop: b.Shop, Key: l.name + stage + "-first", Lines: []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: 1}}}
	f.ask(t.Context(), f.routers[0], first, longTTL, 3*time.Second)
	// In cutover a router that missed Redis is cut by then, and its call does not go there.
	if e, since := f.incarnation(t, pod); stage == "shadow" && since <= epoch && e != 0 && !f.suspect(t, pod) {
		t.Errorf("the first call after the restart did not notice: epoch %d, incarnation of epoch %d, not suspect", e, since)
	}
	if !untilWithin(t, 30*time.Second, func() bool {
		_, since := f.incarnation(t, pod)
		return since > epoch && !f.suspect(t, pod)
	}) {
		t.Fatalf("Redis is not restored: %s", f.run(t.Context(), "status", pod))
	}
	t.Logf("restored %.2f s after the restart", (f.history.now() - restarted).Seconds())
	for _, c := range f.history.snapshot() {
		if c.Op == "reserve" && c.Begin > restarted && c.Outcome == "GRANTED" && c.DecidedBy == "redis" && c.Epoch <= epoch && !c.Replayed {
			t.Errorf("granted by a Redis that was not restored: %s", c)
		}
	}
	f.claimable(b, holds)
	if st := f.status(pod); st.Stage != stage {
		t.Errorf("after the restore the pod is in %s, not in %s", st.Stage, stage)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holds makes holds of one unit.
func (f *fleet) holds(t *testing.T, b reservation.Bucket, tag string, n int) []call {
	t.Helper()
	var made []call
	for i := range n {
		c := call{Op: "reserve", Shop: b.Shop, Key: fmt.Sprintf("%s-%d", tag, i), Lines: []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: 1}}}
		got := f.answered(f.routers[i%len(f.routers)], c, longTTL)
		if got.Outcome != "GRANTED" {
			t.Fatalf("a hold to begin with: %s", got)
		}
		made = append(made, got)
	}
	return made
}

// known waits until MySQL knows the holds.
func (f *fleet) known(t *testing.T, holds []call) {
	t.Helper()
	for _, h := range holds {
		id, err := reservation.ParseID(h.ID)
		must(t, err)
		if !untilWithin(t, 10*time.Second, func() bool {
			r, err := f.stores[0].MySQL.Get(t.Context(), h.Shop, id)
			return err == nil && r.State == reservation.Held
		}) {
			t.Fatalf("MySQL does not hear of %s", h)
		}
	}
}

// fenceNow reads the fence as it is stored. The connection may have been cut: then it looks again.
func (f *fleet) fenceNow(t *testing.T, pod string) map[string]string {
	t.Helper()
	var m map[string]string
	var err error
	if !untilWithin(t, 5*time.Second, func() bool {
		m, err = f.redis.HGetAll(t.Context(), "{"+pod+"}:fence").Result()
		return err == nil
	}) {
		t.Fatal(err)
	}
	return m
}

// incarnation reads the fence's epoch, and the epoch of its last restore; zeros: none.
func (f *fleet) incarnation(t *testing.T, pod string) (epoch, since uint64) {
	t.Helper()
	m := f.fenceNow(t, pod)
	epoch, _ = strconv.ParseUint(m["epoch"], 10, 64)             // absent: 0
	since, _ = strconv.ParseUint(m["incarnation_epoch"], 10, 64) // absent: 0
	return epoch, since
}

func (f *fleet) suspect(t *testing.T, pod string) bool {
	t.Helper()
	return f.fenceNow(t, pod)["suspect"] == "1"
}

// Connections that come and go are no restart: under ordinary load Redis is never suspect, and nothing is restored.
func TestNoFalseAlarm(t *testing.T) {
	lasts := 8 * time.Second
	if devtest.Soak() {
		lasts = 10 * time.Minute
	}
	seed := seedOf(t)
	f := newFleet(t, settings{routers: 3, pods: 1})
	m := &market{
		seed: seed, buyers: 24, buckets: f.scarce(4, 400), ttls: []time.Duration{2 * time.Second, 5 * time.Second},
		think: [2]time.Duration{20 * time.Millisecond, 200 * time.Millisecond}, decide: [2]time.Duration{0, time.Second},
	}
	m.open(t.Context(), f)
	pod := f.pods[0].ID
	_, before := f.incarnation(t, pod)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	disturbed := make(chan struct{})
	go func() {
		defer close(disturbed)
		f.reconnect(ctx, seed)
	}()
	looks := 0
	for pause(ctx, 20*time.Millisecond) {
		looks++
		if _, now := f.incarnation(t, pod); now != before || f.suspect(t, pod) {
			t.Errorf("a false alarm after %.1f s: incarnation of epoch %d (was %d), suspect %t", f.history.now().Seconds(), now, before, f.suspect(t, pod))
			break
		}
	}
	cancel()
	<-disturbed
	m.close()
	f.heal()
	t.Logf("looked %d times", looks)
	f.verdict(5 * time.Second)
}

// reconnect cuts every connection, and restarts routers, until the context ends.
func (f *fleet) reconnect(ctx context.Context, seed uint64) {
	r := newRand(seed, 1000)
	for n := 0; pause(ctx, between(r, 300*time.Millisecond, 900*time.Millisecond)); n++ {
		if n%4 != 3 {
			_ = f.redis.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err() // ours that look are cut too, and come again
			continue
		}
		rt := f.routers[r.IntN(len(f.routers))]
		if err := rt.term(); err != nil {
			f.tb.Error(err)
		}
		if err := rt.start(); err != nil {
			f.tb.Error(err)
		}
	}
}
