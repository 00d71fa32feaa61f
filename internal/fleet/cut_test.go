package fleet

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// db opens a pod's schema, for looking at its tables.
func (f *fleet) db(pod int) *sql.DB {
	f.tb.Helper()
	db, err := mysqlstore.OpenDB(f.pods[pod].MySQL.Reveal(), mysqlstore.Options{MaxOpenConns: 2})
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = db.Close() })
	return db
}

// marked reads the marks, joined with what they mark.
func (f *fleet) marked(db *sql.DB) map[string]reservation.State {
	f.tb.Helper()
	rows, err := db.QueryContext(f.tb.Context(), `SELECT m.reservation_id, COALESCE(r.state, '')
FROM reservation_marks m LEFT JOIN reservations r ON r.id = m.reservation_id`)
	if err != nil {
		f.tb.Fatal(err)
	}
	defer rows.Close()
	got := map[string]reservation.State{}
	for rows.Next() {
		var id []byte
		var state string
		if err := rows.Scan(&id, &state); err != nil {
			f.tb.Fatal(err)
		}
		got[uuid.UUID(id).String()] = stateOf(state)
	}
	if err := rows.Err(); err != nil {
		f.tb.Fatal(err)
	}
	return got
}

// outcomes are what one router answers while it is cut: by reservation, the state that was told last.
type outcomes map[string]reservation.State

// spree makes every kind of outcome through one router: units counts the holds that are left.
func (f *fleet) spree(r *router, b, empty reservation.Bucket, tag string) (o outcomes, holds []call, units int64) {
	f.tb.Helper()
	o = outcomes{}
	for i := range 12 {
		c := call{Op: "reserve", Shop: b.Shop, Key: fmt.Sprintf("%s-%d", tag, i), Lines: []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: int64(1 + i%3)}}}
		if i%4 == 3 {
			c.Lines[0].Item = empty.Item
		}
		got := f.answered(r, c, longTTL)
		if got.Code != "ok" || got.DecidedBy != "mysql" {
			f.tb.Fatalf("%s, cut off in cutover: %s", r.name, got)
		}
		o[got.ID] = got.State
		op := map[int]string{1: "release", 2: "claim"}[i%4] // the first is a hold: nothing but its own mark tells of it
		if op == "" {
			if got.Outcome == "GRANTED" {
				holds, units = append(holds, got), units+c.Lines[0].Quantity
			}
			continue
		}
		end := f.answered(r, call{Op: op, Shop: b.Shop, Key: c.Key, ID: got.ID}, 0)
		if end.Code != "ok" {
			f.tb.Fatalf("%s of %s: %s", op, c.Key, end)
		}
		o[got.ID] = end.State
	}
	return o, holds, units
}

// I1, I5, I7, I8: routers that are all cut from Redis in cutover go on with marks, and stop with the kill; what they
// answered is known, counted exactly, and brought to Redis before the pod may go forward again.
func TestCutRouters(t *testing.T) {
	if !devtest.Soak() {
		t.Skip("TWINHOLD_SOAK=1 cuts all of them; TestCutRouter cuts one")
	}
	for name, cut := range map[string]func(f *fleet, i int){
		"refused":    func(f *fleet, i int) { f.proxies[i].Refuse() },
		"blackholed": func(f *fleet, i int) { f.proxies[i].Blackhole() },
	} {
		t.Run(name, func(t *testing.T) { cutRouters(t, cut) })
	}
}

func cutRouters(t *testing.T, cut func(f *fleet, i int)) {
	f := newFleet(t, settings{routers: 2, pods: 1, cuttable: map[int]bool{0: true, 1: true}})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	empty := reservation.Bucket{Shop: b.Shop, Item: 2, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 200, empty: 0})
	pod, lone := f.pods[0].ID, f.routers[1]
	f.flip(0, "cutover")
	before := f.holds(t, b, "before", 1)
	for i := range f.routers {
		cut(f, i)
	}
	o, holds, units := f.spree(lone, b, empty, "cut")
	db := f.db(0)
	f.allMarked(db, o)
	f.exactDebt(pod, int64(len(holds)), units)

	// MySQL does not answer: the kill stands all the same, and rearm waits for MySQL to confirm it.
	must(t, f.stack.MySQL.Pause())
	k := f.mustKill(t.Context(), 0)
	f.refused("MySQL has not confirmed the kill")
	must(t, f.stack.MySQL.Resume())
	// No router reaches Redis, so MySQL's fence waits for the command to be run again; which is the same kill.
	if !untilWithin(t, 10*time.Second, func() bool {
		again := f.mustKill(t.Context(), 0)
		if again.Epoch != k.Epoch {
			t.Errorf("killed again: epoch %d, was %d", again.Epoch, k.Epoch)
		}
		return again.MySQL
	}) {
		t.Error("killed again and again, MySQL's fence is not raised")
	}
	f.stopsWithFence(lone, b, k.Epoch)
	f.refused("marks are outstanding")

	for _, p := range f.proxies {
		p.Allow()
	}
	f.drained(db, 30*time.Second)
	f.exactDebt(pod, 0, 0)
	f.claimable(b, append(holds, before...))
	f.rearm(0)
	newJudge(f.history, nil, nil).report(t)
}

// I7, I8: one router is cut and the others are not: it goes on, what it answers is known to Redis soon, and it stops
// with the kill.
func TestCutRouter(t *testing.T) {
	f := newFleet(t, settings{routers: 3, pods: 1, cuttable: map[int]bool{2: true}})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	empty := reservation.Bucket{Shop: b.Shop, Item: 2, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 200, empty: 0})
	f.flip(0, "cutover")
	f.proxies[2].Blackhole()
	_, holds, _ := f.spree(f.routers[2], b, empty, "cut")
	f.drained(f.db(0), 10*time.Second)
	_, more, _ := f.spree(f.routers[2], b, empty, "cut again")
	k := f.mustKill(t.Context(), 0)
	for _, name := range k.Laggards {
		if name != f.routers[2].name {
			t.Errorf("%s has not acknowledged the kill, though it reaches Redis", name)
		}
	}
	if !slices.Contains(k.Laggards, f.routers[2].name) {
		t.Errorf("the cut router cannot have acknowledged the kill: %+v", k)
	}
	f.stopsWithFence(f.routers[2], b, k.Epoch)
	f.proxies[2].Allow()
	f.drained(f.db(0), 20*time.Second)
	f.claimable(b, append(holds, more...))
	f.rearm(0)
	newJudge(f.history, nil, nil).report(t)
}

// drained: no mark is left.
func (f *fleet) drained(db *sql.DB, within time.Duration) {
	f.tb.Helper()
	if !untilWithin(f.tb, within, func() bool { return len(f.marked(db)) == 0 }) {
		f.tb.Errorf("the marks are not drained within %s: %v", within, f.marked(db))
	}
}

// claimable: holds can be claimed, through every router.
func (f *fleet) claimable(b reservation.Bucket, holds []call) {
	f.tb.Helper()
	for i, h := range holds {
		got := f.answered(f.routers[i%len(f.routers)], call{Op: "claim", Shop: b.Shop, Key: h.Key, ID: h.ID}, 0)
		if got.Code != "ok" || got.State != reservation.Claimed {
			f.tb.Errorf("I7: claim: %s", got)
		}
	}
}

// allMarked: every outcome has its mark, and what is marked is in the state that was told.
func (f *fleet) allMarked(db *sql.DB, o outcomes) {
	f.tb.Helper()
	marks := f.marked(db)
	for id, told := range o {
		if got, ok := marks[id]; !ok || got != told {
			f.tb.Errorf("reservation %s was answered %s by the cut router: marked %t, in MySQL %s", id, told, ok, got)
		}
	}
	if len(marks) != len(o) {
		f.tb.Errorf("%d outcomes were answered without Redis, and %d are marked", len(o), len(marks))
	}
}

// exactDebt: status tells how many live reservations, and how many units, Redis lacks.
func (f *fleet) exactDebt(pod string, reservations, units int64) {
	f.tb.Helper()
	var st podStatus
	if !untilWithin(f.tb, 5*time.Second, func() bool {
		st = f.status(pod)
		return st.Debt != nil && st.Debt.Reservations == reservations && st.Debt.Units == units
	}) {
		f.tb.Errorf("the debt is %d reservations of %d units, status tells %+v (held because: %v)", reservations, units, st.Debt, st.HeldBecause)
	}
}

// refused: a rearm is refused now (exit 2).
func (f *fleet) refused(why string) {
	f.tb.Helper()
	res := f.run(f.tb.Context(), "rearm", f.pods[0].ID, "--execute", "--waive", "cooldown", "--reason", "too early")
	if res.code != 2 {
		f.tb.Errorf("%s: rearm is to be refused (exit 2): %s", why, res)
	}
}

// stopsWithFence: a poll after MySQL's fence has the kill's epoch, the cut router grants nothing.
func (f *fleet) stopsWithFence(r *router, b reservation.Bucket, epoch uint64) {
	f.tb.Helper()
	if !untilWithin(f.tb, 20*time.Second, func() bool {
		fence, err := f.stores[0].MySQL.ReadFence(f.tb.Context())
		return err == nil && fence.Epoch >= epoch
	}) {
		f.tb.Fatalf("MySQL's fence does not get the kill's epoch %d", epoch)
	}
	raised := f.history.now()
	for i := range 20 {
		c := call{Op: "reserve", Shop: b.Shop, Key: fmt.Sprintf("after-kill-%d", i), Lines: []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: 1}}}
		got := f.ask(f.tb.Context(), r, c, longTTL, 2*time.Second)
		if got.Code == "ok" && got.Begin > raised+f.set.poll {
			f.tb.Errorf("I8: MySQL's fence had the kill's epoch %d at %.4f, and the cut router goes on: %s", epoch, raised.Seconds(), got)
		}
		if got.Code == "ok" && got.Begin > raised {
			f.tb.Logf("granted within a poll of the fence: %s", strings.TrimSpace(got.String()))
		}
		pause(f.tb.Context(), 20*time.Millisecond)
	}
}
