package podset_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, within time.Duration, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", within, what)
		case <-tick.C:
		}
	}
}

// turning is a configuration in which only some of catch-up runs.
func turning(t *testing.T, full, turn time.Duration) *devpods.Pods {
	t.Helper()
	pods, _ := podsettest.Pods(t, 1)
	pods.Config.Tuning.Settle, pods.Config.Tuning.CatchUp, pods.Config.Tuning.CatchUpTurn = 300*time.Millisecond, full, turn
	pods.Config.Defaults.Poll = 50 * time.Millisecond
	return pods
}

func hold(t *testing.T, p *podset.Pod, key string) reservation.Record {
	t.Helper()
	res, err := p.Router.Reserve(t.Context(), shop, key, []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
	if err != nil || res.Record.Outcome != reservation.Granted {
		t.Fatalf("reserve %s: %+v, %v", key, res, err)
	}
	return res.Record
}

// inMySQL tells whether MySQL holds a reservation.
func inMySQL(p *podset.Pod, id reservation.ID) bool {
	rec, err := p.MySQL.Get(context.Background(), shop, id)
	return err == nil && rec.State == reservation.Held
}

// counter sums a counter or gauge over its labels.
func counter(t *testing.T, r *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matches := 0
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == l.GetValue() {
					matches++
				}
			}
			if matches == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// I5, I11: what a mirror has missed is brought over by a look at just that, with no full round, and the gap explains it.
func TestMissedReservationsAreLookedAt(t *testing.T) {
	t.Parallel()
	var off atomic.Bool
	registry := prometheus.NewRegistry()
	set := podsettest.Open(t, turning(t, 0, 50*time.Millisecond), podset.Options{
		Registerer: registry, Wrap: func(m reservation.Mirror) reservation.Mirror { return deaf{m, &off} },
	})
	p := set.Pods[0]
	const holds = 60
	stock(t, p, 1, holds)
	set.Start()
	old := hold(t, p, "old")
	eventually(t, "the mirror has the first", 10*time.Second, func() bool { return inMySQL(p, old.ID) })
	off.Store(true)
	for n := range holds - 1 {
		hold(t, p, fmt.Sprint("k", n))
	}
	released, err := p.Router.Release(t.Context(), shop, old.ID) // its creation is long behind the cursor
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	off.Store(false)
	eventually(t, "nothing waits for a look", 20*time.Second, func() bool {
		return counter(t, registry, "twinhold_catchup_missed_reservations", nil) == 0
	})
	rec, err := p.MySQL.Get(t.Context(), shop, released.Record.ID)
	if err != nil || rec.State != reservation.Released {
		t.Errorf("the release: %s, %v", rec.State, err)
	}
	if got := counter(t, registry, "twinhold_catchup_repairs_total", nil); got != holds {
		t.Errorf("%v repairs, want %d", got, holds)
	}
	if got := p.Router.Engine().Tally(); got.Unexplained != 0 {
		t.Errorf("%d unexplained", got.Unexplained)
	}
	if round, err := p.CatchUp(t.Context(), 0); err != nil || round.Total() != 0 {
		t.Errorf("a full round still finds %+v, %v", round, err)
	}
}

// What a router that is gone never mirrored is found by the turn over what is new.
func TestNewReservationsThatNobodyMirroredAreFound(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	set := podsettest.Open(t, turning(t, 0, 50*time.Millisecond), podset.Options{Registerer: registry})
	p := set.Pods[0]
	stock(t, p, 1, 10)
	set.Start()
	eventually(t, "the cursor is there", 10*time.Second, func() bool {
		return p.Client().Exists(t.Context(), "{pod-1}:catchup:cursor").Val() == 1
	})
	req, err := reservation.NewRequest(shop, "orphan", []reservation.Line{{Item: 1, Group: 1, Quantity: 2}}, time.Minute, reservation.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Redis.Reserve(t.Context(), p.Router.Stamp(), id, req); err != nil { // past the router: its mirror hears nothing
		t.Fatal(err)
	}
	eventually(t, "MySQL holds it", 5*time.Second, func() bool { return inMySQL(p, id) })
	if got := counter(t, registry, "twinhold_catchup_repairs_total", map[string]string{"was": "lost"}); got != 1 {
		t.Errorf("%v repairs", got)
	}
}

// A full round goes on where it was when its router dies, and the lease is taken over. Where it is is shown.
func TestFullRoundGoesOnInAnotherRouter(t *testing.T) {
	t.Parallel()
	pods := turning(t, 200*time.Millisecond, 0)
	pods.Config.Tuning.CatchUpRate = 20 // 10 reservations a second
	first := podsettest.Open(t, pods, podset.Options{Router: "first"})
	a := first.Pods[0]
	const holds = 30
	stock(t, a, 1, holds+1)
	for n := range holds {
		hold(t, a, fmt.Sprint("k", n))
	}
	if err := a.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Router.Start()
	var left podset.Progress
	eventually(t, "a part of the round is walked", 20*time.Second, func() bool {
		at, holder, err := a.CatchUpProgress(t.Context())
		left = at
		return err == nil && holder == "first" && at.Walked >= 10 && at.Walked < holds
	})
	if left.Of != holds {
		t.Errorf("of %d reservations, want %d", left.Of, holds)
	}
	second := podsettest.Open(t, pods, podset.Options{Router: "second"})
	second.Router.Start()
	dies(t, a) // it neither goes on nor gives up its lease
	// And somebody has written the lease by hand, without an end.
	if err := a.Client().Set(t.Context(), "{pod-1}:catchup", "by hand", 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other router ends the round", 30*time.Second, func() bool {
		at, holder, err := a.CatchUpProgress(t.Context())
		return err == nil && holder == "second" && at.LastBegan.Equal(left.Began) && at.LastWalked == holds
	})
}

// dies stops a router's loops as a crash would.
func dies(t *testing.T, p *podset.Pod) {
	t.Helper()
	tuning := p.Router.Tuning()
	tuning.CatchUpEvery, tuning.CatchUpTurn = 0, 0
	p.Router.Tune(tuning)
}

// A full round takes its time: it reads no more than it may.
func TestFullRoundIsPaced(t *testing.T) {
	t.Parallel()
	pods := turning(t, 100*time.Millisecond, 0)
	pods.Config.Tuning.CatchUpRate = 40
	set := podsettest.Open(t, pods, podset.Options{})
	p := set.Pods[0]
	const holds = 60
	stock(t, p, 1, holds)
	for n := range holds {
		hold(t, p, fmt.Sprint("k", n))
	}
	if err := p.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	set.Router.Start()
	var at podset.Progress
	eventually(t, "a round ends", 30*time.Second, func() bool {
		var err error
		at, _, err = p.CatchUpProgress(t.Context())
		return err == nil && !at.LastEnded.IsZero()
	})
	if took := at.LastEnded.Sub(at.LastBegan); took < 2*time.Second || at.LastWalked != holds {
		t.Errorf("%d reservations, 120 records, in %s at 40 a second", at.LastWalked, took)
	}
}

// A store that does not answer costs nothing that was noted: it is looked at once it does.
func TestMissedReservationsWaitForAStore(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	pods, stack := podsettest.Pods(t, 1)
	pods.Config.Tuning.Settle, pods.Config.Tuning.CatchUp, pods.Config.Tuning.CatchUpTurn = 300*time.Millisecond, 0, 50*time.Millisecond
	pods.Config.Tuning.Mirror.Deadline, pods.Config.Tuning.MySQL.Deadline = 200*time.Millisecond, 500*time.Millisecond
	pods.Config.Tuning.Mirror.Breaker.OpenFor = 500 * time.Millisecond
	set := podsettest.Open(t, pods, podset.Options{Registerer: registry})
	p := set.Pods[0]
	stock(t, p, 1, 30)
	set.Router.Start()
	if err := stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	var last reservation.Record
	for n := range 30 {
		last = hold(t, p, fmt.Sprint("k", n))
	}
	drained := p.Router.Queue().Drain(t.Context())
	if err := errors.Join(drained, stack.MySQL.Resume()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "MySQL has the last", 30*time.Second, func() bool { return inMySQL(p, last.ID) })
	eventually(t, "nothing waits for a look", 30*time.Second, func() bool {
		return counter(t, registry, "twinhold_catchup_missed_reservations", nil) == 0
	})
	if got := p.Router.Engine().Tally(); got.Unexplained != 0 {
		t.Errorf("%d unexplained", got.Unexplained)
	}
}
