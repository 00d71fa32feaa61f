package podset_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// traffic reserves, and claims, releases or leaves, until the context ends. It gives how many it reserved.
func traffic(ctx context.Context, t *testing.T, p *podset.Pod, buyers int) int64 {
	t.Helper()
	var n atomic.Int64
	var all sync.WaitGroup
	for buyer := range buyers {
		all.Go(func() {
			pause := time.NewTicker(20 * time.Millisecond)
			defer pause.Stop()
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-pause.C:
				}
				n.Add(1)
				if err := buy(context.WithoutCancel(ctx), p, fmt.Sprintf("%d-%d", buyer, i), i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return n.Load()
}

// buy is one buyer's way: the first bucket is sold out soon, and holds end in every way.
func buy(ctx context.Context, p *podset.Pod, key string, i int) error {
	lines := []reservation.Line{{Item: int64(1 + i%3), Group: 1, Quantity: 1}}
	res, err := p.Router.Reserve(ctx, shop, key, lines, []time.Duration{2 * time.Second, 10 * time.Minute}[i%2])
	if err != nil || res.Record.Outcome != reservation.Granted {
		return err
	}
	switch i % 4 {
	case 1:
		_, err = p.Router.Release(ctx, shop, res.Record.ID)
	case 2, 3:
		_, err = p.Router.Claim(ctx, shop, res.Record.ID)
	}
	if errors.Is(err, reservation.ErrBusy) {
		return nil
	}
	return err
}

// Healthy traffic sees no repair, neither by quick turns nor by full rounds, in shadow and in cutover.
func TestI5HealthyTrafficSeesNoRepair(t *testing.T) {
	for _, stage := range []reservation.Stage{reservation.Shadow, reservation.Cutover} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			pods, _ := podsettest.Pods(t, 1)
			pods.Config.Tuning.CatchUp, pods.Config.Tuning.CatchUpTurn = time.Second, 200*time.Millisecond
			pods.Config.Tuning.Settle = 2 * time.Second // as it is by default
			slowIsNotIll(pods)
			set := podsettest.Open(t, pods, podset.Options{Registerer: registry})
			p := set.Pods[0]
			stock(t, p, 1, 5)
			stock(t, p, 2, 1_000_000)
			stock(t, p, 3, 1_000_000)
			set.Start()
			if stage == reservation.Cutover {
				toCutover(t, p)
			}
			long := 10 * time.Second
			if devtest.Soak() {
				long = time.Minute
			}
			turns := func(turn string) float64 {
				return counter(t, registry, "twinhold_catchup_turns_total", map[string]string{"turn": turn, "result": "ok"})
			}
			ctx, cancel := context.WithCancel(t.Context())
			var sold sync.WaitGroup
			var reserved int64
			defer func() { cancel(); sold.Wait() }()
			sold.Go(func() { reserved = traffic(ctx, t, p, 8) })
			began := time.Now()
			eventually(t, "there was time, and enough turns to say something", long+2*time.Minute, func() bool {
				return time.Since(began) > long && turns("round") >= 3 && turns("new") >= 10
			})
			cancel()
			sold.Wait()
			if got := counter(t, registry, "twinhold_catchup_repairs_total", nil); got != 0 {
				t.Errorf("%v repairs among %d reservations", got, reserved)
			}
			if got := counter(t, registry, "twinhold_catchup_figures_total", nil); got != 0 {
				t.Errorf("%v buckets were given figures", got)
			}
			eventually(t, "the short holds have ended", 20*time.Second, func() bool { return shortHolds(t, p) == 0 })
			if _, err := p.Quiesce(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantInvariants(t, p)
		})
	}
}

// shortHolds counts the holds of either store that end within 10 s.
func shortHolds(t *testing.T, p *podset.Pod) (n int) {
	t.Helper()
	rs, ms, err := p.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(rs.Records, ms.Records...) {
		if r.State == reservation.Held && time.Until(r.ExpiresAt) < 10*time.Second {
			n++
		}
	}
	return n
}

// toCutover takes an empty pod there, waiving what only traffic gives.
func toCutover(t *testing.T, p *podset.Pod) {
	t.Helper()
	c, err := p.Control(podset.ControlOptions{By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Execute(t.Context(), killswitch.Order{
		To: reservation.Cutover, Reason: "test", Wait: time.Minute,
		Waive: []string{killswitch.GateEvidence, killswitch.GateLatency, killswitch.GateDrill, killswitch.GateCooldown, killswitch.GatePool},
	}); err != nil {
		t.Fatal(err)
	}
}

// I5: three planted faults give exactly three repairs, by the loops that run all the time, and no more in the next rounds.
func TestI5ThreePlantedFaultsGiveThreeRepairsOnce(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	set := podsettest.Open(t, turning(t, 200*time.Millisecond, 100*time.Millisecond), podset.Options{Registerer: registry})
	p := set.Pods[0]
	stock(t, p, 1, 10)
	leaked := hold(t, p, "leaked")
	hold(t, p, "kept")
	if err := p.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	past := func(key string, quantity int64) reservation.ID { // past the router: its mirror hears nothing
		req, err := reservation.NewRequest(shop, key, []reservation.Line{{Item: 1, Group: 1, Quantity: quantity}}, time.Minute, reservation.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		id, err := reservation.NewID()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Redis.Reserve(t.Context(), p.Router.Stamp(), id, req); err != nil {
			t.Fatal(err)
		}
		return id
	}
	lost := past("lost", 2)
	past("missing", 50)
	if _, err := p.Redis.Release(t.Context(), p.Router.Stamp(), shop, leaked.ID); err != nil {
		t.Fatal(err)
	}
	set.Start()
	repairs := func(was string) float64 {
		return counter(t, registry, "twinhold_catchup_repairs_total", map[string]string{"was": was})
	}
	eventually(t, "the lost hold is there", 20*time.Second, func() bool { return inMySQL(p, lost) })
	eventually(t, "three are mended", 20*time.Second, func() bool { return repairs("lost")+repairs("leaked")+repairs("missing") == 3 })
	was, _, err := p.CatchUpProgress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		eventually(t, "another round", 20*time.Second, func() bool {
			at, _, err := p.CatchUpProgress(t.Context())
			next := err == nil && at.LastBegan.After(was.LastBegan)
			if next {
				was = at
			}
			return next
		})
	}
	if repairs("lost") != 1 || repairs("leaked") != 1 || repairs("missing") != 1 || counter(t, registry, "twinhold_catchup_repairs_total", nil) != 3 {
		t.Errorf("%v lost, %v leaked, %v missing", repairs("lost"), repairs("leaked"), repairs("missing"))
	}
}

// slowIsNotIll gives a busy machine all the time that it needs: no store is given up.
func slowIsNotIll(pods *devpods.Pods) {
	t := &pods.Config.Tuning
	for _, d := range []*time.Duration{&t.CutBudget, &t.HandoverBudget, &t.Mirror.Deadline, &t.Redis.Deadline, &t.MySQL.Deadline, &t.MySQL.TransactionLimit} {
		*d = 20 * time.Second
	}
}

// I5: a due hold that MySQL ends because somebody wants its units is told to Redis like one that a sweep ends.
func TestI5HoldThatARefillEndsIsMirrored(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, reservation.Cutover)
	res, err := c.a.Router.Reserve(t.Context(), shop, "first", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, 2*time.Second)
	if err != nil || res.Record.Outcome != reservation.Granted {
		t.Fatal(res, err)
	}
	n := 0
	eventually(t, "its unit is had by somebody else", 20*time.Second, func() bool { // no router sweeps here
		n++
		next, err := c.a.Router.Reserve(t.Context(), shop, fmt.Sprint("next", n), []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
		return err == nil && next.Record.Outcome == reservation.Granted
	})
	if err := c.a.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "the first hold", c.states(res.Record.ID), "expired/expired")
}
