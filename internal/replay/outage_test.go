package replay_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

// openTwo sets up pod-1 in shadow and pod-2 in legacy, on the same private servers.
func openTwo(t *testing.T) (*podset.Set, *devstack.Stack) {
	t.Helper()
	pods, stack := podsettest.Pods(t, 2)
	pods.Config.Pods[1].Mirror = false
	pods.Config.Tuning.PinLease = time.Second
	pods.Config.Tuning.Mirror.Deadline = time.Second
	set := podsettest.Open(t, pods, podset.Options{})
	t.Cleanup(func() {
		if err := stack.MySQL.Resume(); err != nil {
			t.Error(err)
		}
	})
	set.Router.Start()
	return set, stack
}

const (
	stocked = 1_000_000
	rate    = 400 // operations a second
)

func stockBoth(t *testing.T, set *podset.Set) {
	t.Helper()
	for i, p := range set.Pods {
		b := bucketOf(i)
		if _, _, err := p.Stock(t.Context(), []reservation.Stocking{{Bucket: b, Quantity: stocked}}); err != nil {
			t.Fatal(err)
		}
	}
}

func bucketOf(pod int) reservation.Bucket {
	return reservation.Bucket{Shop: int64(pod*devpods.ShopsPerPod + 1), Item: 1, Group: 1}
}

// fixedRate sends reserve and release at a fixed rate, to the two pods by turns of a twentieth of a second, so that what
// disturbs the machine disturbs both, and gives each pod's p99 of an answer, counted from when the call was due.
func fixedRate(t *testing.T, set *podset.Set, round int) (p99 [2]time.Duration) {
	t.Helper()
	const turn = rate / 20
	var mu sync.Mutex
	var took [2][]time.Duration
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for n := range 2 * rate {
		<-tick.C
		pod := n / turn % 2
		wg.Go(func() {
			one := func(call func(context.Context) error) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				due := time.Now()
				if err := call(ctx); err != nil {
					t.Errorf("pod %d: %v", pod, err)
				}
				mu.Lock()
				defer mu.Unlock()
				took[pod] = append(took[pod], time.Since(due))
			}
			b := bucketOf(pod)
			var id reservation.ID
			one(func(ctx context.Context) error {
				res, err := set.Router.Reserve(ctx, b.Shop, fmt.Sprintf("r%d-%d-%d", pod, round, n), []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
				id = res.Record.ID
				return err
			})
			one(func(ctx context.Context) error {
				_, err := set.Router.Release(ctx, b.Shop, id)
				return err
			})
		})
	}
	wg.Wait()
	for pod := range took {
		slices.Sort(took[pod])
		p99[pod] = took[pod][len(took[pod])*99/100]
	}
	return p99
}

// TestI10MirrorStopped: with the mirror's MySQL stopped, reserves and releases answer as they do without a mirror,
// claims answer unavailable within their deadline, and afterwards every figure is exact.
func TestI10MirrorStopped(t *testing.T) {
	set, stack := openTwo(t)
	stockBoth(t, set)
	held := holds(t, set, 20)
	if err := stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	claimsAreUnavailable(t, set, held)
	ratios := make([]float64, 0, 5)
	for round := range cap(ratios) {
		p99 := fixedRate(t, set, round)
		ratios = append(ratios, float64(p99[0])/float64(p99[1]))
	}
	slices.Sort(ratios)
	t.Logf("p99 of shadow over legacy, MySQL stopped: %.2f", ratios)
	// What the mirror does is in every round, what the machine does is not.
	if quiet := ratios[1]; quiet > 1.5 {
		t.Errorf("I10: the ratio of p99 is at least %.2f but in one round, at most 1.5 is allowed", quiet)
	}
	if err := stack.MySQL.Resume(); err != nil {
		t.Fatal(err)
	}
	exactAfterwards(t, set, held)
}

func holds(t *testing.T, set *podset.Set, n int) []reservation.ID {
	t.Helper()
	ids := make([]reservation.ID, n)
	for i := range ids {
		res, err := set.Router.Reserve(t.Context(), 1, fmt.Sprintf("held-%d", i), []reservation.Line{{Item: 1, Group: 1, Quantity: 2}}, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = res.Record.ID
	}
	return ids
}

func claimsAreUnavailable(t *testing.T, set *podset.Set, held []reservation.ID) {
	t.Helper()
	const deadline = 500 * time.Millisecond
	var wg sync.WaitGroup
	for _, id := range held {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			began := time.Now()
			_, err := set.Router.Claim(ctx, 1, id)
			if code := reservation.CodeOf(err); code != reservation.CodeUnavailable {
				t.Errorf("a claim without MySQL gave %q (%v), want unavailable", code, err)
			}
			if took := time.Since(began); took > deadline+time.Second {
				t.Errorf("a claim with a deadline of %v took %v", deadline, took)
			}
		})
	}
	wg.Wait()
}

// exactAfterwards waits until the pins have been rolled forward and checks every figure of the shadow pod.
func exactAfterwards(t *testing.T, set *podset.Set, held []reservation.ID) {
	t.Helper()
	pod := set.Pods[0]
	devtest.UntilWithin(t, time.Minute, "every pinned claim has been rolled forward", func() bool {
		for _, id := range held {
			rec, err := pod.Redis.Get(t.Context(), 1, id)
			if err != nil || rec.State != reservation.Claimed {
				return false
			}
		}
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	devtest.UntilWithin(t, time.Minute, "the mirror's breaker is closed again", func() bool {
		_, err := set.Router.Reserve(ctx, 1, "probe-"+time.Now().String(), []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, 10*time.Minute)
		return err == nil && pod.Router.Queue().Breaker() == "closed"
	})
	if _, err := pod.Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	rs, ms, err := pod.Inspect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	report := pod.Check(&rs, &ms, true)
	if !report.OK() {
		t.Errorf("the invariants do not hold:\n%s", report)
	}
	for _, name := range []string{"I1", "I2", "I3", "I4", "I5", "I6"} {
		if _, ok := report.Result(name); !ok {
			t.Errorf("%s was not evaluated", name)
		}
	}
	tally, err := pod.Tallies.Read(ctx, time.Unix(0, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	if tally.Operations != tally.Compared+tally.GapTotal() || tally.GapTotal() == 0 {
		t.Errorf("I11: %d operations, %d compared, gaps %v", tally.Operations, tally.Compared, tally.Gaps)
	}
	if tally.Unexplained != 0 {
		samples, _ := pod.Router.Engine().Samples()
		t.Errorf("%d unexplained: %v", tally.Unexplained, samples)
	}
	t.Logf("%d operations, %d compared, gaps %v", tally.Operations, tally.Compared, tally.Gaps)
	av, err := pod.MySQL.Availability(ctx, bucketOf(0))
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(stocked - 2*len(held)); av.OnHand != want {
		t.Errorf("on hand %d after %d claims of 2, want %d", av.OnHand, len(held), want)
	}
}
