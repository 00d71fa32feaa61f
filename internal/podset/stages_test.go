package podset_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// These tests are interleavings, written as scripts: two routers on one pod, real stores, and a hook before the write to
// the store that follows, where a script does what comes in between.

// crossing is a pod with two routers, A and B. A's writes to the store that follows pass the hook.
type crossing struct {
	*testing.T
	stack *devstack.Stack
	pods  *devpods.Pods
	a, b  *podset.Pod

	mu   sync.Mutex
	hook func(store reservation.Truth, op reservation.MirrorOp)
}

func newCrossing(t *testing.T, stage reservation.Stage) *crossing {
	t.Helper()
	pods, stack := podsettest.Pods(t, 1)
	pods.Config.Defaults.Poll = 50 * time.Millisecond
	c := &crossing{T: t, stack: stack, pods: pods}
	c.a = podsettest.Open(t, pods, podset.Options{Router: "A", Wrap: c.wrap}).Pods[0]
	c.b = podsettest.Open(t, pods, podset.Options{Router: "B"}).Pods[0]
	stock(t, c.a, 1, 1)
	for c.fence().Stage < stage {
		c.move(c.fence().Stage + 1)
	}
	return c
}

func (c *crossing) wrap(m reservation.Mirror) reservation.Mirror { return hooked{c, m} }

type hooked struct {
	c    *crossing
	next reservation.Mirror
}

func (h hooked) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	h.c.mu.Lock()
	hook := h.c.hook
	h.c.hook = nil // once
	h.c.mu.Unlock()
	if hook != nil {
		store := reservation.MySQL
		if _, redis := h.next.(*legacyredis.Store); redis {
			store = reservation.Redis
		}
		hook(store, op)
	}
	return h.next.Mirror(ctx, st, op)
}

// before has f called before A's next write to the store that follows.
func (c *crossing) before(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = func(reservation.Truth, reservation.MirrorOp) { f() }
}

func (c *crossing) fence() reservation.Fence {
	c.Helper()
	f, err := c.b.Redis.ReadFence(context.WithoutCancel(c.Context()))
	if err != nil {
		c.Fatal(err)
	}
	return f
}

// move flips the pod without asking any gate. Nobody is told.
func (c *crossing) move(to reservation.Stage) {
	c.Helper()
	f := c.fence()
	m := reservation.FenceMove{From: f.Stamp, To: to, Audit: reservation.AuditRecord{Pod: "pod-1", Action: reservation.ActionFlip, By: "test"}}
	if _, err := c.b.Redis.Move(c.Context(), m); err != nil {
		c.Fatalf("to %s: %v", to, err)
	}
}

// kill is the one line of the on-call.
func (c *crossing) kill() {
	c.Helper()
	if err := c.b.Client().Set(c.Context(), "{pod-1}:kill", "test", 0).Err(); err != nil {
		c.Fatal(err)
	}
}

func (c *crossing) reserve(p *podset.Pod, key string) reservation.Record {
	c.Helper()
	res, err := p.Router.Reserve(c.Context(), shop, key, []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute)
	if err != nil {
		c.Fatalf("reserve %s: %v", key, err)
	}
	return res.Record
}

func (c *crossing) claim(p *podset.Pod, id reservation.ID) {
	c.Helper()
	res, err := p.Router.Claim(c.Context(), shop, id)
	if err != nil || res.Record.State != reservation.Claimed {
		c.Fatalf("claim: %s, %v", res.Record.State, err)
	}
}

// rest brings both stores together, and checks the invariants.
func (c *crossing) rest(p *podset.Pod) {
	c.Helper()
	if err := p.Router.Queue().Drain(c.Context()); err != nil {
		c.Fatal(err)
	}
	if _, err := p.Quiesce(c.Context()); err != nil {
		c.Fatal(err)
	}
	wantInvariants(c.T, p)
}

// states gives a reservation's states in Redis and in MySQL.
func (c *crossing) states(id reservation.ID) string {
	c.Helper()
	side := func(get func(context.Context, int64, reservation.ID) (reservation.Record, error)) string {
		rec, err := get(c.Context(), shop, id)
		if errors.Is(err, reservation.ErrNotFound) {
			return "none"
		}
		if err != nil {
			c.Fatal(err)
		}
		return rec.State.String()
	}
	return side(c.b.Redis.Get) + "/" + side(c.b.MySQL.Get)
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestI8AGrantThatAKillOvertakesIsDecidedByRedis(t *testing.T) {
	c := newCrossing(t, reservation.Cutover)
	c.before(c.kill)
	rec := c.reserve(c.a, "k")
	want(t, "outcome", rec.Outcome, reservation.Granted)
	want(t, "decided by", rec.DecidedBy, reservation.Redis)
	want(t, "stage", c.fence().Stage, reservation.Shadow)
	c.rest(c.a)
	want(t, "states", c.states(rec.ID), "held/held")
	c.claim(c.b, rec.ID)
	c.rest(c.b)
}

func TestI1AGrantThatAKillOvertakesMayBeRejectedByRedis(t *testing.T) {
	c := newCrossing(t, reservation.Cutover)
	var other reservation.Record
	c.before(func() {
		c.kill()
		other = c.reserve(c.b, "other")
	})
	rec := c.reserve(c.a, "k")
	want(t, "the other's outcome", other.Outcome, reservation.Granted)
	want(t, "outcome", rec.Outcome, reservation.RejectedShort)
	want(t, "again", c.reserve(c.b, "k").Outcome, reservation.RejectedShort)
	c.rest(c.a)
	c.rest(c.b)
	want(t, "states", c.states(rec.ID), "rejected/rejected")
	want(t, "the other's states", c.states(other.ID), "held/held")
}

func TestI9InHandoverMySQLsNoTurnsDown(t *testing.T) {
	c := newCrossing(t, reservation.Handover)
	// MySQL holds the unit for somebody whom nobody answered.
	foreign := c.foreignHold()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if res, err := c.a.Router.Reserve(ctx, shop, "k", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute); err == nil {
		t.Fatalf("%s although MySQL may hold back what Redis has ended", res.Record.State)
	}
	if err := c.b.MySQL.Whole(t.Context(), c.fence().Stamp); err != nil {
		t.Fatal(err)
	}
	rec := c.reserve(c.a, "k")
	want(t, "outcome", rec.Outcome, reservation.RejectedShort)
	want(t, "states", c.states(rec.ID), "rejected/rejected")
	av, err := c.b.Redis.Availability(t.Context(), reservation.Bucket{Shop: shop, Item: 1, Group: 1})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "available in Redis", av.Available, 1)
	want(t, "the foreign hold", c.states(foreign), "none/held")
	want(t, "again, through B", c.reserve(c.b, "k").Outcome, reservation.RejectedShort)
}

// foreignHold stores a hold in MySQL that Redis does not know.
func (c *crossing) foreignHold() reservation.ID {
	c.Helper()
	id, err := reservation.NewID()
	if err != nil {
		c.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	op := reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.Granted, Record: reservation.Record{
		ID: id, Shop: shop, Key: "foreign", Lines: []reservation.Line{{Item: 1, Group: 1, Quantity: 1}},
		Outcome: reservation.Granted, State: reservation.Held, DecidedBy: reservation.MySQL, Epoch: c.fence().Epoch,
		CreatedAt: now, ExpiresAt: now.Add(time.Minute), PurgeAt: now.Add(time.Hour),
	}}
	if _, err := c.b.MySQL.Mirror(c.Context(), c.fence().Stamp, op); err != nil {
		c.Fatal(err)
	}
	return id
}

func TestHandoverIsAbortedWhereMySQLIsSilent(t *testing.T) {
	c := newCrossing(t, reservation.Handover)
	c.reserveWarm()
	if err := c.stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	rec := c.reserve(c.a, "k")
	if err := c.stack.MySQL.Resume(); err != nil {
		t.Fatal(err)
	}
	want(t, "outcome", rec.Outcome, reservation.Granted)
	want(t, "decided by", rec.DecidedBy, reservation.Redis)
	want(t, "stage", c.fence().Stage, reservation.Shadow)
	audit, err := c.b.Redis.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "the last audit record", audit[len(audit)-1].Action, reservation.ActionAbort)
	want(t, "the same through B", c.reserve(c.b, "k").ID, rec.ID)
	c.rest(c.a)
	want(t, "states", c.states(rec.ID), "held/held")
}

// reserveWarm opens A's connections, with a bucket of its own.
func (c *crossing) reserveWarm() {
	c.Helper()
	stock(c.T, c.b, 2, 10)
	lines := []reservation.Line{{Item: 2, Group: 1, Quantity: 1}}
	if _, err := c.a.Router.Reserve(c.Context(), shop, "warm", lines, time.Minute); err != nil {
		c.Fatal(err)
	}
}

func TestI1ACutRouterMarksAndAKilledPodAdoptsWhatItMarked(t *testing.T) {
	c := newCrossing(t, reservation.Cutover)
	c.reserveWarm()
	if err := c.stack.Redis.Pause(); err != nil {
		t.Fatal(err)
	}
	rec := c.reserve(c.a, "k")
	want(t, "outcome", rec.Outcome, reservation.Granted)
	want(t, "decided by", rec.DecidedBy, reservation.MySQL)
	debt, marks, err := c.b.MySQL.MarksDebt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "marks", marks, 1)
	want(t, "debt", []int64{debt.Reservations, debt.Units}, "[1 1]")
	want(t, "A is cut", c.a.Router.State().Cut, true)
	if err := c.stack.Redis.Resume(); err != nil {
		t.Fatal(err)
	}
	c.kill()
	// B has not heard of anything; the same key is the same reservation.
	again := c.reserve(c.b, "k")
	want(t, "the same through B", again.ID, rec.ID)
	want(t, "another is rejected", c.reserve(c.b, "another").Outcome, reservation.RejectedShort)
	c.claim(c.b, rec.ID)
	c.a.Router.Start()
	devtest.Until(t, "the marks are drained", func() bool {
		_, marks, err := c.b.MySQL.MarksDebt(t.Context())
		return err == nil && marks == 0
	})
	c.rest(c.b)
	want(t, "states", c.states(rec.ID), "claimed/claimed")
}

func TestI7AHoldFromBeforeAFlipIsClaimedAfterIt(t *testing.T) {
	c := newCrossing(t, reservation.Shadow)
	stock(t, c.b, 3, 100)
	var held []reservation.ID
	hold := func() {
		res, err := c.a.Router.Reserve(t.Context(), shop, fmt.Sprintf("h-%d", len(held)), []reservation.Line{{Item: 3, Group: 1, Quantity: 2}}, time.Minute)
		if err != nil || res.Record.Outcome != reservation.Granted {
			t.Fatalf("hold: %v %v", res.Record.Outcome, err)
		}
		held = append(held, res.Record.ID)
	}
	next := 0
	claimOne := func(p *podset.Pod) {
		c.claim(p, held[next])
		c.claim(c.a, held[next]) // again, through the other: the same answer
		next++
	}
	for range 12 {
		hold()
	}
	for _, to := range []reservation.Stage{reservation.Handover, reservation.Cutover, reservation.Shadow, reservation.Handover, reservation.Cutover} {
		c.rest(c.a)
		c.move(to)
		claimOne(c.b)
		hold()
		claimOne(c.b)
	}
	c.kill()
	claimOne(c.b)
	c.rest(c.b)
	av, err := c.b.MySQL.Availability(t.Context(), reservation.Bucket{Shop: shop, Item: 3, Group: 1})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "on_hand after 11 claims of 2", av.OnHand, 100-22)
}

func TestI5ARejectionThatMySQLDecidesAnewHasOneExpiry(t *testing.T) {
	c := newCrossing(t, reservation.Handover)
	if got := c.reserve(c.b, "first").Outcome; got != reservation.Granted {
		t.Fatalf("the only unit: %s", got)
	}
	c.before(func() { // Redis has rejected it, MySQL has not stored that yet
		c.move(reservation.Cutover)
		if _, err := c.b.MySQL.Raise(t.Context(), c.fence().Stamp, nil); err != nil {
			t.Error(err)
		}
	})
	rec := c.reserve(c.a, "k")
	want(t, "outcome", rec.Outcome, reservation.RejectedShort)
	want(t, "decided by", rec.DecidedBy, reservation.MySQL)
	want(t, "states", c.states(rec.ID), "rejected/rejected")
	inRedis, err := c.b.Redis.Get(t.Context(), shop, rec.ID)
	if err != nil || !inRedis.ExpiresAt.Equal(rec.ExpiresAt) {
		t.Errorf("Redis says it expires %v (%v), the buyer was told %v", inRedis.ExpiresAt, err, rec.ExpiresAt)
	}
	c.rest(c.b)
}

// A brake that reached only one store binds in every stage in which both have a part; replays are answered.
func TestABrakeInOneStoreBinds(t *testing.T) {
	for _, stage := range []reservation.Stage{reservation.Shadow, reservation.Cutover} {
		c := newCrossing(t, stage)
		stock(t, c.a, 2, 5)
		c.a.Router.Start() // it polls both fences
		first := c.reserve(c.a, "k")
		brakes := map[string]func(context.Context, reservation.Bucket, bool, reservation.AuditRecord) (reservation.Fence, error){
			"redis": c.b.Redis.Freeze, "mysql": c.b.MySQL.Freeze,
		}
		for store, freeze := range brakes {
			for _, b := range []reservation.Bucket{{}, {Shop: shop, Item: 2, Group: 1}} {
				for _, on := range []bool{true, false} {
					if _, err := freeze(t.Context(), b, on, reservation.AuditRecord{By: "test"}); err != nil {
						t.Fatal(err)
					}
					c.awaitBrake(fmt.Sprintf("%s, %s frozen: %v in %s", stage, b, on, store), on)
				}
			}
			if again := c.reserve(c.a, "k"); again.ID != first.ID {
				t.Errorf("%s: the replay is %s, not %s", stage, again.ID, first.ID)
			}
		}
	}
}

// awaitBrake waits until router A takes new reservations of item 2, or takes none.
func (c *crossing) awaitBrake(what string, on bool) {
	c.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for n := 0; ; n++ {
		res, err := c.a.Router.Reserve(c.Context(), shop, fmt.Sprint(what, n), []reservation.Line{{Item: 2, Group: 1, Quantity: 1}}, time.Minute)
		switch {
		case errors.Is(err, reservation.ErrFrozen) && on:
			return
		case err == nil && !on:
			return
		case err != nil && !errors.Is(err, reservation.ErrFrozen), time.Now().After(deadline):
			c.Fatalf("%s: %v", what, err)
		case err == nil:
			if _, err := c.a.Router.Release(c.Context(), shop, res.Record.ID); err != nil {
				c.Fatal(err)
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-c.Context().Done():
		}
	}
}
