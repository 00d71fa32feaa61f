package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// told is what the buyer of one key was answered, and what its reservation became.
type remembered struct {
	call
	state reservation.State
}

// memory holds keys of every kind, made in every stage, and asks them again.
type memory struct {
	f    *fleet
	shop int64
	all  []remembered
}

// held until long after the test, so that nothing but the buyers ends anything.
const longTTL = 8 * time.Minute

// answered asks one router, and again while it is undecided; the test goes on with a decision only.
func (f *fleet) answered(r *router, c call, ttl time.Duration) call {
	f.tb.Helper()
	var got call
	if !untilWithin(f.tb, 20*time.Second, func() bool {
		got = f.ask(f.tb.Context(), r, c, ttl, 3*time.Second)
		return !got.undecided()
	}) {
		f.tb.Fatalf("no decision within 20 s; the last answer: %s", got)
	}
	return got
}

// make makes four keys in the present stage: granted, rejected, released, claimed.
func (m *memory) make(stage string) {
	m.f.tb.Helper()
	for i, kind := range []string{"granted", "rejected", "released", "claimed"} {
		r := m.f.routers[i%len(m.f.routers)]
		c := call{Op: "reserve", Shop: m.shop, Key: stage + "-" + kind, Lines: []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}}
		if kind == "rejected" {
			c.Lines[0].Item = 2 // of which there is none
		}
		got := m.f.answered(r, c, longTTL)
		want := "GRANTED"
		if kind == "rejected" {
			want = "REJECTED"
		}
		if got.Code != "ok" || got.Outcome != want {
			m.f.tb.Fatalf("%s: %s", c.Key, got)
		}
		k := remembered{call: got, state: got.State}
		if op := map[string]string{"released": "release", "claimed": "claim"}[kind]; op != "" {
			end := m.f.answered(r, call{Op: op, Shop: m.shop, Key: c.Key, ID: got.ID}, 0)
			if end.Code != "ok" {
				m.f.tb.Fatalf("%s of %s: %s", op, c.Key, end)
			}
			k.state = end.State
		}
		m.all = append(m.all, k)
	}
}

// again asks every key again, through every router.
func (m *memory) again(where string) {
	m.f.tb.Helper()
	for _, k := range m.all {
		for _, r := range m.f.routers {
			c := call{Op: "reserve", Shop: m.shop, Key: k.Key, Lines: k.Lines}
			got := m.f.answered(r, c, longTTL)
			if got.Code != "ok" || got.ID != k.ID || got.Outcome != k.Outcome || got.State != k.state {
				m.f.tb.Errorf("I9: %s: key %s was answered %s (%s, %s), and now by %s: %s", where, k.Key, k.Outcome, k.ID, k.state, r.name, got)
			}
		}
	}
}

// another request under a known key is a conflict in every stage.
func (m *memory) conflict(where string) {
	m.f.tb.Helper()
	k := m.all[0]
	c := call{Op: "reserve", Shop: m.shop, Key: k.Key, Lines: []reservation.Line{{Item: 1, Group: 1, Quantity: 2}}}
	r := m.f.routers[len(m.f.routers)-1]
	var got answer
	if !untilWithin(m.f.tb, 20*time.Second, func() bool {
		a, err := m.f.post(m.f.tb.Context(), r, "Reserve", bodyOf(c, longTTL), 3*time.Second) // not for the history: it is another request
		got = a
		return err == nil && a.Code != "unavailable"
	}) || got.Code != "already_exists" {
		m.f.tb.Errorf("I9: %s: key %s with another request: %+v", where, k.Key, got)
	}
}

// flip takes the pod to a stage, and waits until the gates let it.
func (f *fleet) flip(pod int, stage string) {
	f.tb.Helper()
	if err := f.asked(f.tb.Context(), gatesWithin, flipTo(f.pods[pod].ID, stage)...); err != nil {
		f.tb.Fatal(err)
	}
}

// rearm waits until the gates let it.
func (f *fleet) rearm(pod int) {
	f.tb.Helper()
	err := f.asked(f.tb.Context(), gatesWithin, "rearm", f.pods[pod].ID, "--execute", "--waive", "cooldown", "--reason", "fleet test")
	if err != nil {
		f.tb.Fatal(err)
	}
}

func (f *fleet) mustKill(ctx context.Context, pod int) killed {
	f.tb.Helper()
	k, err := f.kill(ctx, pod)
	if err != nil {
		f.tb.Fatal(err)
	}
	return k
}

// onHand reads the ledger.
func (f *fleet) onHand(b reservation.Bucket) int64 {
	f.tb.Helper()
	av, err := f.stores[f.podOf(b.Shop)].MySQL.Availability(f.tb.Context(), b)
	if err != nil {
		f.tb.Fatal(err)
	}
	return av.OnHand
}

// I6, I7, I9: keys of every kind keep their answer across every move and through every router, and a hold of each
// stage can be claimed afterwards, once.
func TestSameKeyAcrossFlips(t *testing.T) {
	f := newFleet(t, settings{routers: 2, pods: 1})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 1000, {Shop: b.Shop, Item: 2, Group: 1}: 0})
	m := &memory{f: f, shop: b.Shop}
	for n, move := range []struct {
		name string
		do   func()
	}{
		{"shadow", func() {}},
		{"handover", func() { f.flip(0, "handover") }},
		{"cutover", func() { f.flip(0, "cutover") }},
		{"kill", func() { f.mustKill(t.Context(), 0) }},
		{"rearm", func() { f.rearm(0) }},
		{"cutover-again", func() { f.flip(0, "cutover") }},
		{"complete", func() { f.flip(0, "complete") }},
		{"back-in-cutover", func() { f.flip(0, "cutover") }},
		{"killed-again", func() { f.mustKill(t.Context(), 0) }},
	} {
		move.do()
		where := fmt.Sprintf("step %d, %s", n+1, move.name)
		if n > 0 {
			m.again(where)
			m.conflict(where)
		}
		m.make(move.name)
		m.again(where)
	}
	if t.Failed() {
		return
	}
	for _, r := range f.routers {
		if err := r.kill9(); err != nil {
			t.Fatal(err)
		}
		if err := r.start(); err != nil {
			t.Fatal(err)
		}
	}
	m.again("after a restart of every router")
	m.claimAll(b)
	newJudge(f.history, nil, nil).report(t)
}

// claimAll claims every hold, twice, through different routers.
func (m *memory) claimAll(b reservation.Bucket) {
	m.f.tb.Helper()
	before, held := m.f.onHand(b), int64(0)
	for i := range m.all {
		k := &m.all[i]
		if k.state != reservation.Held {
			continue
		}
		held++
		for _, r := range m.f.routers {
			got := m.f.answered(r, call{Op: "claim", Shop: m.shop, Key: k.Key, ID: k.ID}, 0)
			if got.Code != "ok" || got.State != reservation.Claimed {
				m.f.tb.Errorf("I7: claim of %s: %s", k.Key, got)
			}
		}
		k.state = reservation.Claimed
	}
	if after := m.f.onHand(b); after != before-held {
		m.f.tb.Errorf("I6: %d holds of one unit were claimed twice, and on hand went from %d to %d", held, before, after)
	}
	m.again("after the claims")
}
