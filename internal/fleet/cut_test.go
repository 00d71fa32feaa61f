package fleet

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

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
		op := map[int]string{0: "claim", 1: "release"}[i%4]
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

// I1, I5, I7, I8: a router that is cut from Redis in cutover goes on with marks, and stops with the kill; what it
// answered is known, counted exactly, and brought to Redis before the pod may go forward again.
func TestCutRouter(t *testing.T) {
	needs(t, "flip", "kill", "rearm", "status")
	for name, cut := range map[string]func(f *fleet){
		"refused":    func(f *fleet) { f.proxies[2].Refuse() },
		"blackholed": func(f *fleet) { f.proxies[2].Blackhole() },
	} {
		t.Run(name, func(t *testing.T) { cutRouter(t, cut) })
	}
}

func cutRouter(t *testing.T, cut func(f *fleet)) {
	f := newFleet(t, settings{routers: 3, pods: 1, cuttable: map[int]bool{2: true}})
	b := reservation.Bucket{Shop: f.shopOf(0), Item: 1, Group: 1}
	empty := reservation.Bucket{Shop: b.Shop, Item: 2, Group: 1}
	f.stock(map[reservation.Bucket]int64{b: 200, empty: 0})
	pod, lone := f.pods[0].ID, f.routers[2]
	f.flip(0, "cutover")
	before := f.answered(f.routers[0], call{Op: "reserve", Shop: b.Shop, Key: "before", Lines: []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}}, longTTL)
	cut(f)

	o, holds, units := f.spree(lone, b, empty, "cut")
	db := f.db(0)
	f.allMarked(db, o)
	f.exactDebt(pod, int64(len(holds)), units)

	// MySQL does not answer: the kill stands all the same, and rearm waits for MySQL to confirm it.
	if err := f.stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	k := f.mustKill(t.Context(), 0)
	refused(t, f.run(t.Context(), "rearm", pod, "--execute", "--waive", "cooldown", "--reason", "too early"), "MySQL has not confirmed the kill")
	if err := f.stack.MySQL.Resume(); err != nil {
		t.Fatal(err)
	}
	f.stopsWithFence(lone, b, k.Epoch)
	refused(t, f.run(t.Context(), "rearm", pod, "--execute", "--waive", "cooldown", "--reason", "too early"), "marks are outstanding, or a router is cut")

	for _, p := range f.proxies {
		p.Allow()
	}
	if !untilWithin(t, 30*time.Second, func() bool { return len(f.marked(db)) == 0 }) {
		t.Fatalf("the marks are not drained: %v", f.marked(db))
	}
	f.exactDebt(pod, 0, 0)
	for i, h := range append(holds, before) {
		got := f.answered(f.routers[i%len(f.routers)], call{Op: "claim", Shop: b.Shop, Key: h.Key, ID: h.ID}, 0)
		if got.Code != "ok" || got.State != reservation.Claimed {
			t.Errorf("I7: claim of a hold of a cut router: %s", got)
		}
	}
	f.rearm(0)
	newJudge(f.history, nil, nil).report(t)
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

// refused: the command says no (exit 2), whatever the reason's words.
func refused(t *testing.T, res result, why string) {
	t.Helper()
	if res.code != 2 {
		t.Errorf("%s: rearm is to be refused (exit 2): %s", why, res)
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
