package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// I5, I11: in an outage of the mirror the debt is what was granted meanwhile and is live still, to the unit; it goes down
// as holds end, and to zero once the mirror is back.
func TestDebtInAnOutage(t *testing.T) {
	f := newFleet(t, settings{routers: 2, pods: 1, between: true})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 1000})
	pod := f.pods[0].ID
	f.known(t, f.holds(t, b, "before", 3))
	f.exactDebt(pod, 0, 0)
	for _, p := range f.mysqls {
		p.Refuse()
	}
	var units int64
	var made []call
	const k = 12
	for n := range k {
		ttl := longTTL
		if n%3 == 0 {
			ttl = 8 * time.Second
		}
		c := call{Op: "reserve", Shop: b.Shop, Key: fmt.Sprint("outage-", n), Lines: []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: int64(1 + n%4)}}}
		got := f.answered(f.routers[n%2], c, ttl)
		if got.Outcome != "GRANTED" {
			t.Fatalf("in shadow the mirror's outage is nobody's business: %s", got)
		}
		made, units = append(made, got), units+c.Lines[0].Quantity
	}
	f.exactDebt(pod, k, units)
	released := f.answered(f.routers[0], call{Op: "release", Shop: b.Shop, Key: made[1].Key, ID: made[1].ID}, 0)
	if released.Code != "ok" {
		t.Fatalf("release: %s", released)
	}
	left, leftUnits := int64(0), int64(0)
	for n, c := range made {
		if n != 1 && n%3 != 0 { // one was released, every third has expired
			left, leftUnits = left+1, leftUnits+c.Lines[0].Quantity
		}
	}
	if !untilWithin(t, 15*time.Second, func() bool {
		st := f.status(pod)
		return st.Debt != nil && st.Debt.Reservations == left && st.Debt.Units == leftUnits
	}) {
		t.Errorf("with the short ones at their end the debt is %+v, not %d of %d units", f.status(pod).Debt, left, leftUnits)
	}
	for _, p := range f.mysqls {
		p.Allow()
	}
	if !untilWithin(t, 15*time.Second, func() bool {
		st := f.status(pod)
		return st.Debt != nil && *st.Debt == (reservation.Debt{}) && st.ViewComplete != nil && *st.ViewComplete
	}) {
		t.Errorf("with the mirror back the debt does not go: %+v", f.status(pod))
	}
	redis, mysql := f.settled(t)
	newJudge(f.history, redis, mysql).report(t)
}
