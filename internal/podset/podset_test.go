package podset_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{}) }

const shop = 1

func openPod(t *testing.T, pods *devpods.Pods) *podset.Pod {
	t.Helper()
	return podsettest.Open(t, pods, podset.Options{}).Pods[0]
}

func stock(t *testing.T, p *podset.Pod, item, quantity int64) {
	t.Helper()
	s := []reservation.Stocking{{Bucket: reservation.Bucket{Shop: shop, Item: item, Group: 1}, Quantity: quantity}}
	if _, _, err := p.Stock(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// past is a store that answers while the mirror hears nothing: what it does are gaps.
type past struct {
	t *testing.T
	p *podset.Pod
	n int
}

func (g *past) reserve(item, quantity int64, ttl time.Duration) reservation.Record {
	g.t.Helper()
	g.n++
	req, err := reservation.NewRequest(shop, fmt.Sprintf("gap-%d", g.n), []reservation.Line{{Item: item, Group: 1, Quantity: quantity}}, ttl, reservation.Limits{})
	if err != nil {
		g.t.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		g.t.Fatal(err)
	}
	res, err := g.p.Redis.Reserve(g.t.Context(), g.p.Router.Stamp(), id, req)
	if err != nil {
		g.t.Fatal(err)
	}
	return res.Record
}

func (g *past) release(rec reservation.Record) {
	g.t.Helper()
	if _, err := g.p.Redis.Release(g.t.Context(), g.p.Router.Stamp(), shop, rec.ID); err != nil {
		g.t.Fatal(err)
	}
}

func (g *past) claim(rec reservation.Record) {
	g.t.Helper()
	if _, err := g.p.Redis.Claim(g.t.Context(), g.p.Router.Stamp(), shop, rec.ID); err != nil {
		g.t.Fatal(err)
	}
}

// expire waits until the store's own sweep has ended a hold.
func (g *past) expire(rec reservation.Record) {
	g.t.Helper()
	devtest.Until(g.t, "the hold has expired", func() bool {
		if _, err := g.p.Redis.Sweep(g.t.Context(), g.p.Router.Stamp(), 100); err != nil {
			g.t.Fatal(err)
		}
		got, err := g.p.Redis.Get(g.t.Context(), shop, rec.ID)
		return err == nil && got.State == reservation.Expired
	})
}

func wantInvariants(t *testing.T, p *podset.Pod) {
	t.Helper()
	rs, ms, err := p.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report := p.Check(&rs, &ms, true)
	if !report.OK() {
		t.Errorf("the invariants do not hold:\n%s", report)
	}
	if _, ok := report.Result("I5"); !ok {
		t.Error("I5 was not evaluated")
	}
}

func TestI5CatchUpMendsEveryKindOfGap(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	p := openPod(t, pods)
	stock(t, p, 1, 10)
	g := &past{t: t, p: p}

	g.reserve(1, 3, time.Minute) // held
	released := g.reserve(1, 1, time.Minute)
	g.release(released)
	expired := g.reserve(1, 1, 100*time.Millisecond)
	g.expire(expired)
	claimed := g.reserve(1, 2, time.Minute)
	g.claim(claimed)
	g.reserve(1, 100, time.Minute) // rejected
	endedLater := g.reserve(1, 1, time.Minute)
	if err := p.Redis.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	round, err := p.CatchUp(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	// The claim wrote its record itself. The two holds were lost, the three others missing.
	if round.Repaired["lost"] != 2 || round.Repaired["missing"] != 3 || len(round.Left) != 0 {
		t.Errorf("repaired %v, left %v: want 2 lost, 3 missing, nothing left", round.Repaired, round.Left)
	}
	wantInvariants(t, p)

	g.release(endedLater)
	round, err = p.CatchUp(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if round.Repaired["leaked"] != 1 || round.Total() != 1 {
		t.Errorf("repaired %v: want 1 leaked", round.Repaired)
	}
	wantInvariants(t, p)

	round, err = p.CatchUp(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if round.Total() != 0 || round.Walked != 6 {
		t.Errorf("a healthy pod: %d walked, repaired %v, figures %d: want 6 and no repair", round.Walked, round.Repaired, round.Figures)
	}
}

func TestCatchUpLeavesTheYoungAlone(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	p := openPod(t, pods)
	stock(t, p, 1, 10)
	g := &past{t: t, p: p}
	g.reserve(1, 3, time.Minute)
	round, err := p.CatchUp(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if round.Total() != 0 || round.Skipped != 1 {
		t.Errorf("repaired %v, skipped %d: want nothing repaired, 1 skipped", round.Repaired, round.Skipped)
	}
}

func TestI4LostFiguresAreSentAgain(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	p := openPod(t, pods)
	stock(t, p, 1, 10)
	// The ledger changes and Redis never hears of it.
	adj := reservation.Adjustment{ID: "a", Bucket: reservation.Bucket{Shop: shop, Item: 1, Group: 1}, Delta: 5}
	if _, err := p.MySQL.ApplyAdjustment(t.Context(), p.Router.Stamp(), adj, false); err != nil {
		t.Fatal(err)
	}
	round, err := p.CatchUp(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if round.Figures != 1 {
		t.Errorf("%d figures sent, want 1", round.Figures)
	}
	av, err := p.Redis.Availability(t.Context(), adj.Bucket)
	if err != nil || av.Available != 15 || av.OnHand != 15 {
		t.Errorf("available %d, on hand %d (%v), want 15 and 15", av.Available, av.OnHand, err)
	}
}

func TestFencesStartOnceAndStay(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	p := openPod(t, pods)
	if got := p.Router.Stamp(); got != (reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}) {
		t.Fatalf("a new pod starts at %v", got)
	}
	pods.Config.Pods[0].Mirror = false // the file says legacy now: the fences stay what is true
	again := openPod(t, pods)
	if got := again.Router.Stamp().Stage; got != reservation.Shadow {
		t.Errorf("the pod is in %s after the file changed, want shadow", got)
	}
}

func TestInterruptedStartIsCompleted(t *testing.T) {
	pods, stack := podsettest.Pods(t, 1)
	openPod(t, pods)
	flush(t, stack)
	if got := openPod(t, pods).Router.Stamp().Epoch; got != 1 {
		t.Errorf("epoch %d, want 1: MySQL had the fence and nothing else", got)
	}
}

func TestFlushedRedisIsNotTakenForANewPod(t *testing.T) {
	pods, stack := podsettest.Pods(t, 1)
	p := openPod(t, pods)
	stock(t, p, 1, 10)
	if _, err := p.Router.Reserve(t.Context(), shop, "k", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	flush(t, stack)
	again := podsettest.Open(t, pods, podset.Options{Router: "again"})
	if got := again.Router.Pods()[0].Stamp(); got != p.Router.Stamp() {
		t.Errorf("opened at %v, want MySQL's fence %v", got, p.Router.Stamp())
	}
	_, err := p.Router.Reserve(t.Context(), shop, "k2", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
	var fence *reservation.FenceError
	if !errors.As(err, &fence) || fence.Verdict != reservation.NoFence {
		t.Errorf("a reserve on the flushed Redis gave %v, want NOFENCE", err)
	}
	again.Router.Start()
	devtest.Until(t, "Redis is restored", func() bool {
		res, err := again.Router.Reserve(t.Context(), shop, "k", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
		return err == nil && res.Replayed && res.Record.State == reservation.Held
	})
	fenceNow, err := again.Pods[0].Redis.ReadFence(t.Context())
	if err != nil || fenceNow.Incarnation < 2 || fenceNow.IncarnationEpoch != fenceNow.Epoch || fenceNow.Epoch < 2 {
		t.Errorf("the restored fence is %+v, %v", fenceNow, err)
	}
}

// flush empties the pod's private Redis.
func flush(t *testing.T, stack *devstack.Stack) {
	t.Helper()
	c := redisClient(t, stack.Redis.URL(0))
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestRouterStartsWithoutMySQLWhileRedisDecides(t *testing.T) {
	pods, stack := podsettest.Pods(t, 1)
	first := openPod(t, pods)
	stock(t, first, 1, 10)
	if err := stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.MySQL.Resume(); err != nil {
			t.Error(err)
		}
	})
	p := openPod(t, pods)
	res, err := p.Router.Reserve(t.Context(), shop, "k", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
	if err != nil || res.Record.Outcome != reservation.Granted {
		t.Errorf("reserve while MySQL is stopped: %v, %v", res.Record.Outcome, err)
	}
	if err := stack.MySQL.Resume(); err != nil {
		t.Fatal(err)
	}
}
