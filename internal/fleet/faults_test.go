package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/reservation"
)

// fault is one row of the table: something that breaks under load, and is whole again afterwards.
type fault struct {
	name string
	// prepare, if not nil, is called before the load begins.
	prepare func(f *fleet) error
	// strike breaks it, for as long as it says, and mends it.
	strike func(ctx context.Context, f *fleet) error
	// loses: Redis comes back with less than it had. Where it decides, what it answered last and had not mirrored is lost
	// with it, so there the load begins once the mirror has followed.
	loses bool
	// within is how long the stores may take to be equal after the load has ended.
	within time.Duration
}

// equalWithin is the stated time.
const equalWithin = 30 * time.Second

// strikes is how often something short happens, and outage how long something long lasts.
const (
	strikes = 40
	outage  = 20 * time.Second
)

func faults() []fault {
	return []fault{
		{name: "replies of Redis swallowed", strike: swallowReplies, within: equalWithin},
		{name: "connections to MySQL reset", strike: resetMySQL, within: equalWithin},
		{name: "MySQL stopped for 20 s", strike: stopped(func(f *fleet) server { return f.stack.MySQL }), within: equalWithin},
		{name: "Redis stopped for 20 s", strike: stopped(func(f *fleet) server { return f.stack.Redis }), within: equalWithin},
		{name: "routers killed with -9, 40 times", strike: killRouters, within: equalWithin},
		{name: "SCRIPT FLUSH each second", strike: flushScripts, within: equalWithin},
		{name: "Redis restarted empty", strike: restartEmpty, loses: true, within: equalWithin},
		{name: "Redis failed over to an older copy", prepare: copyRedis, strike: restartOlder, loses: true, within: equalWithin},
		{name: "MySQL killed with -9 and started", strike: restartMySQL, within: equalWithin},
		{name: "Redis out of memory", strike: outOfMemory, within: equalWithin},
	}
}

// server is what both private servers can do.
type server interface {
	Pause() error
	Resume() error
}

func stopped(of func(*fleet) server) func(context.Context, *fleet) error {
	return func(ctx context.Context, f *fleet) error {
		s := of(f)
		if err := s.Pause(); err != nil {
			return err
		}
		pause(ctx, outage)
		return s.Resume()
	}
}

func swallowReplies(ctx context.Context, f *fleet) error {
	for n := range strikes {
		for i := range f.routers {
			f.proxies[i].Swallow(faultproxy.Rule{Match: []byte("EVALSHA"), When: []faultproxy.When{faultproxy.Before, faultproxy.After}[n%2], Times: 1})
		}
		pause(ctx, outage/strikes)
	}
	return nil
}

func resetMySQL(ctx context.Context, f *fleet) error {
	for range strikes {
		for i := range f.routers {
			f.mysqls[i].CutAll()
		}
		pause(ctx, outage/strikes)
	}
	return nil
}

func killRouters(ctx context.Context, f *fleet) error {
	for n := range strikes {
		r := f.routers[n%len(f.routers)]
		if err := r.kill9(); err != nil {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
	return nil
}

func flushScripts(ctx context.Context, f *fleet) error {
	for range 10 {
		if err := f.redis.ScriptFlush(ctx).Err(); err != nil {
			return err
		}
		pause(ctx, time.Second)
	}
	return nil
}

func restartEmpty(ctx context.Context, f *fleet) error {
	return restartRedis(ctx, f, func(data string) error { return os.Mkdir(data, 0o700) })
}

// restartOlder is what a replica that lacks the last writes is when it is promoted. (sentinel_test.go has a real one.)
func restartOlder(ctx context.Context, f *fleet) error {
	return restartRedis(ctx, f, func(data string) error { return os.CopyFS(data, os.DirFS(olderCopy(f))) })
}

func olderCopy(f *fleet) string { return filepath.Join(f.dir, "older") }

func copyRedis(f *fleet) error {
	if err := os.RemoveAll(olderCopy(f)); err != nil {
		return err
	}
	return os.CopyFS(olderCopy(f), os.DirFS(f.stack.Redis.DataDir()))
}

// restartRedis kills Redis with -9 and starts it on other data.
func restartRedis(ctx context.Context, f *fleet, fill func(data string) error) error {
	if err := f.stack.Redis.Kill(); err != nil {
		return err
	}
	data := f.stack.Redis.DataDir()
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := fill(data); err != nil {
		return err
	}
	if err := f.stack.Redis.Start(ctx); err != nil {
		return err
	}
	pause(ctx, 5*time.Second)
	return nil
}

func restartMySQL(ctx context.Context, f *fleet) error {
	if err := f.stack.MySQL.Kill(); err != nil {
		return err
	}
	if err := f.stack.MySQL.Start(ctx); err != nil {
		return err
	}
	pause(ctx, 5*time.Second)
	return nil
}

func outOfMemory(ctx context.Context, f *fleet) error {
	if err := f.redis.ConfigSet(ctx, "maxmemory", "1mb").Err(); err != nil {
		return err
	}
	pause(ctx, outage/2)
	return f.redis.ConfigSet(ctx, "maxmemory", "0").Err()
}

// row is what was seen of one fault.
type row struct {
	stage, fault       string
	calls, undecided   int
	equal, debt, until time.Duration // after the load's end; until: the limit
}

func (r row) String() string {
	return fmt.Sprintf("| %s | %s | %d | %d | %.1f s | %.1f s |", r.stage, r.fault, r.calls, r.undecided, r.equal.Seconds(), r.debt.Seconds())
}

// TestFaultTable (I1 to I7, I9, I11): mixed load through three routers while one thing after the other breaks. After each,
// both stores are equal again, reservation by reservation and bucket by bucket, within the stated time, the debt is back
// to zero, and no buyer was told anything that does not hold.
func TestFaultTable(t *testing.T) {
	if !devtest.Soak() {
		t.Skip("TWINHOLD_SOAK=1 runs it: it takes about 12 minutes")
	}
	for _, stage := range []string{"shadow", "cutover"} {
		t.Run(stage, func(t *testing.T) {
			seed := seedOf(t)
			f := newFleet(t, settings{routers: 3, pods: 1, between: true})
			buckets := f.scarce(6, 400)
			if stage != "shadow" {
				f.flip(0, stage)
			}
			var rows []row
			for n, fault := range faults() {
				if !t.Run(fault.name, func(t *testing.T) {
					rows = append(rows, f.endure(t, stage, fault, seed+uint64(n), buckets)) //nolint:gosec // a small number
				}) {
					break
				}
			}
			f.accounted()
			t.Log(table(rows))
		})
	}
}

func table(rows []row) string {
	var b strings.Builder
	b.WriteString("\n| stage | fault | calls | undecided | stores equal after | debt zero after |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// endure strikes once, under load, and waits until both stores are equal.
func (f *fleet) endure(t *testing.T, stage string, fault fault, seed uint64, buckets [][]reservation.Bucket) row {
	m := &market{
		tag: stage + "-" + strings.ReplaceAll(fault.name, " ", "-") + "-", seed: seed, buyers: 16, buckets: buckets,
		ttls:  []time.Duration{4 * time.Second, 60 * time.Second},
		think: [2]time.Duration{20 * time.Millisecond, 200 * time.Millisecond}, decide: [2]time.Duration{0, 800 * time.Millisecond},
		how: insistence{attempt: 2 * time.Second, total: 60 * time.Second},
	}
	r := newRand(seed, 5000)
	for _, b := range buckets[0] {
		if err := f.restock(t.Context(), r, b, 200, m.tag+b.String()); err != nil {
			t.Fatal(err)
		}
	}
	if fault.prepare != nil {
		if err := fault.prepare(f); err != nil {
			t.Fatal(err)
		}
	}
	quiet := fault.loses && stage == "shadow"
	from := len(f.history.snapshot())
	m.open(t.Context(), f)
	pause(t.Context(), 2*time.Second)
	if quiet {
		m.close()
		f.settled(t)
	}
	began := f.history.now()
	if err := fault.strike(t.Context(), f); err != nil {
		t.Error(err)
	}
	f.history.event(fault.name, began, "")
	if quiet {
		m.tag += "after-"
		m.open(t.Context(), f)
	}
	pause(t.Context(), 2*time.Second)
	m.close()
	ended := time.Now()
	res := row{stage: stage, fault: fault.name, until: fault.within}
	redis, mysql := f.settled(t)
	res.equal = time.Since(ended)
	var st podStatus
	if !untilWithin(t, fault.within, func() bool {
		st = f.status(f.pods[0].ID)
		return st.Debt != nil && *st.Debt == (reservation.Debt{}) && st.ViewComplete != nil && *st.ViewComplete
	}) {
		t.Errorf("the debt is not back to zero: %+v, held because %v", st.Debt, st.HeldBecause)
	}
	res.debt = time.Since(ended)
	if res.equal > fault.within {
		t.Errorf("the stores were equal after %s, wanted within %s", res.equal, fault.within)
	}
	if st.Stage != stage {
		t.Errorf("the pod is in %s, not in %s", st.Stage, stage)
	}
	for _, c := range f.history.snapshot()[from:] {
		if res.calls++; c.undecided() {
			res.undecided++
		}
	}
	f.audited()
	newJudge(f.history, redis, mysql).report(t)
	return res
}

// TestClockOff (I1 to I7, I9, I11): the clock of one router of three is ten minutes off, all the time. Expiry is judged by
// the stores' clocks, so nobody notices.
func TestClockOff(t *testing.T) {
	if !devtest.Soak() {
		t.Skip("TWINHOLD_SOAK=1 runs it: it builds the product on another clock")
	}
	for _, off := range []int{600, -600} {
		for _, stage := range []string{"shadow", "cutover"} {
			t.Run(fmt.Sprintf("%d s in %s", off, stage), func(t *testing.T) {
				f := newFleet(t, settings{routers: 3, pods: 1, between: true, clockOff: off})
				buckets := f.scarce(6, 400)
				if stage != "shadow" {
					f.flip(0, stage)
				}
				calm := fault{name: fmt.Sprintf("clock of one router %d s off", off), within: equalWithin, strike: func(ctx context.Context, _ *fleet) error {
					pause(ctx, outage)
					return nil
				}}
				t.Log(table([]row{f.endure(t, stage, calm, seedOf(t), buckets)}))
				f.accounted()
				if n := f.repairs(); n > 0 {
					t.Errorf("catch-up made %v repairs in a healthy flow", n)
				}
			})
		}
	}
}

// repairs is what all routers' catch-up has written.
func (f *fleet) repairs() (n float64) {
	f.tb.Helper()
	for _, r := range f.routers {
		text, err := get(f.tb.Context(), f.http, "http://"+*r.admin.Load()+"/metrics")
		if err != nil {
			f.tb.Fatal(err)
		}
		for _, v := range sums(text, "twinhold_catchup_repairs_total") {
			n += v
		}
	}
	return n
}
