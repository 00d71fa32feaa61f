package podset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

// ailing is a pod in shadow, whose rounds follow each other, with a hold and a reservation of every other kind.
type ailing struct {
	*testing.T
	p        *podset.Pod
	registry *prometheus.Registry
	hold     reservation.Record
}

func newAiling(t *testing.T) *ailing {
	t.Helper()
	a := &ailing{T: t, registry: prometheus.NewRegistry()}
	set := podsettest.Open(t, turning(t, 100*time.Millisecond, 100*time.Millisecond), podset.Options{Registerer: a.registry})
	a.p = set.Pods[0]
	stock(t, a.p, 1, 10)
	stock(t, a.p, 2, 10)
	res, err := a.p.Router.Reserve(t.Context(), shop, "hold", []reservation.Line{{Item: 1, Group: 1, Quantity: 2}}, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	a.hold = res.Record
	other := hold(t, a.p, "other")
	if _, err := a.p.Router.Claim(t.Context(), shop, hold(t, a.p, "paid").ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.p.Router.Release(t.Context(), shop, other.ID); err != nil {
		t.Fatal(err)
	}
	if err := a.p.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.p.Redis.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	set.Router.Start()
	return a
}

func (a *ailing) key(rest string) string { return "{pod-1}:" + rest }

func (a *ailing) redis(field string, value any) {
	a.Helper()
	if err := a.p.Client().HSet(a.Context(), a.key("res:"+a.hold.ID.String()), field, value).Err(); err != nil {
		a.Fatal(err)
	}
}

func (a *ailing) sql(query string, args ...any) {
	a.Helper()
	if _, err := a.p.MySQL.DB().ExecContext(a.Context(), query, args...); err != nil {
		a.Fatal(err)
	}
}

func (a *ailing) frozen() []reservation.Bucket {
	a.Helper()
	f, err := a.p.Redis.ReadFence(context.Background())
	if err != nil {
		a.Fatal(err)
	}
	return f.FrozenBuckets
}

// rounds waits until some more rounds have ended.
func (a *ailing) rounds(n int) {
	a.Helper()
	was, _, err := a.p.CatchUpProgress(a.Context())
	if err != nil {
		a.Fatal(err)
	}
	for n > 0 {
		eventually(a.T, "another round", 30*time.Second, func() bool {
			at, _, err := a.p.CatchUpProgress(a.Context())
			next := err == nil && at.LastBegan.After(was.LastBegan)
			if next {
				was = at
			}
			return next
		})
		n--
	}
}

func (a *ailing) mend(o podset.MendOrder) podset.MendResult {
	a.Helper()
	res, err := a.p.Mend(a.Context(), o, "ada")
	if err != nil {
		a.Fatal(err)
	}
	return res
}

// audit gives the records of an action.
func (a *ailing) audit(action string) []reservation.AuditRecord {
	a.Helper()
	c, err := a.p.Control(podset.ControlOptions{By: "test"})
	if err != nil {
		a.Fatal(err)
	}
	recs, err := c.Audit(a.Context())
	if err != nil {
		a.Fatal(err)
	}
	var out []reservation.AuditRecord
	for _, r := range recs {
		if r.Action == action {
			out = append(out, r)
		}
	}
	return out
}

// A difference of two records that lasts freezes its bucket, once, with the evidence kept; a person's command mends it
// from either store, moves the units with the lines, and lets the bucket in again.
func TestLastingDifferenceOfRecordsFreezesAndIsMended(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(a *ailing)
		what  string
	}{
		"expiry": {func(a *ailing) { a.redis("expires_at", a.hold.ExpiresAt.Add(time.Second).UnixMicro()) }, "expires"},
		"lines": {func(a *ailing) {
			a.redis("lines", "1:1:3")
			a.p.Client().IncrBy(a.Context(), a.key("held:1:1:1"), 1)
			a.p.Client().DecrBy(a.Context(), a.key("avail:1:1:1"), 1)
		}, "lines"},
		"hash": {func(a *ailing) { a.redis("hash", strings.Repeat("ab", 32)) }, "key, hash or shop"},
	} {
		for _, from := range []reservation.Truth{reservation.Redis, reservation.MySQL} {
			t.Run(name+" from "+from.String(), func(t *testing.T) {
				t.Parallel()
				a := newAiling(t)
				a.rounds(1)
				c.plant(a)
				eventually(t, "the bucket is frozen", 30*time.Second, func() bool { return len(a.frozen()) == 1 })
				want(t, "frozen", fmt.Sprint(a.frozen()), "[1:1:1]")
				freezes := a.audit(reservation.ActionFreeze)
				want(t, "freezes in the audit", len(freezes), 1)
				wantEvidence(t, freezes[0], a.hold, c.what)
				eventually(t, "it is counted", 10*time.Second, func() bool {
					return counter(t, a.registry, "twinhold_catchup_frozen_buckets_total", nil) == 1
				})
				want(t, "differences", counter(t, a.registry, "twinhold_catchup_differences", map[string]string{"kind": "record"}), 1.0)
				if _, err := a.p.Router.Reserve(t.Context(), shop, "x", []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute); err == nil {
					t.Error("a frozen bucket takes reservations")
				}
				hold2, err := a.p.Router.Reserve(t.Context(), shop, "y", []reservation.Line{{Item: 2, Group: 1, Quantity: 1}}, time.Minute)
				if err != nil || hold2.Record.Outcome != reservation.Granted {
					t.Errorf("another bucket: %v", err)
				}

				wantWhy(t, a)

				order := podset.MendOrder{ID: a.hold.ID, From: from}
				shown := a.mend(order)
				if shown.Done || len(shown.Would) != 1 || fmt.Sprint(shown.Frozen) != "[1:1:1]" || shown.Refused != "" {
					t.Errorf("shown: %+v", shown)
				}
				order.Execute, order.Reason = true, "INC-1"
				done := a.mend(order)
				if !done.Done || done.Left != "" || done.Forced != 0 || fmt.Sprint(done.Unfrozen) != "[1:1:1]" {
					t.Errorf("done: %+v", done)
				}
				want(t, "frozen", len(a.frozen()), 0)
				mends := a.audit(reservation.ActionMend)
				if len(mends) != 1 || mends[0].By != "ada" || mends[0].Reason != "INC-1" || !strings.Contains(mends[0].Detail, a.hold.ID.String()) {
					t.Errorf("audit: %+v", mends)
				}
				again := a.mend(podset.MendOrder{ID: a.hold.ID, From: from})
				if len(again.Would) != 0 || again.Refused != "" {
					t.Errorf("again: %+v", again)
				}
				a.rounds(4)
				want(t, "frozen afterwards", len(a.frozen()), 0)
				if _, err := a.p.Quiesce(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantInvariants(t, a.p)
			})
		}
	}
}

// wantWhy checks that status says why the bucket is frozen, and what to do.
func wantWhy(t *testing.T, a *ailing) {
	t.Helper()
	c, err := a.p.Control(podset.ControlOptions{By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Status(t.Context(), false)
	mend := "twinhold mend pod-1 --id " + a.hold.ID.String() + " --from redis|mysql"
	if len(s.BucketFreezes) != 1 || s.BucketFreezes[0].Mend != mend || len(s.BucketFreezes[0].Evidence) == 0 {
		t.Errorf("%+v", s.BucketFreezes)
	}
	if why := strings.Join(s.HeldBecause, "\n"); !strings.Contains(why, "bucket 1:1:1 is frozen since") || !strings.Contains(why, mend) {
		t.Errorf("held because %s", why)
	}
	if s.CatchUp == nil || s.CatchUp.LastEnded == nil || s.CatchUp.Router == "" {
		t.Errorf("rounds: %+v", s.CatchUp)
	}
}

// wantEvidence checks that a freeze's record has both records whole, and both stores' figures.
func wantEvidence(t *testing.T, rec reservation.AuditRecord, hold reservation.Record, what string) {
	t.Helper()
	_, text, ok := strings.Cut(rec.Detail, "; evidence ")
	var e podset.Evidence
	if err := json.Unmarshal([]byte(text), &e); !ok || err != nil {
		t.Fatalf("no evidence in %q: %v", rec.Detail, err)
	}
	switch {
	case e.Redis == nil || e.MySQL == nil || e.Redis.ID != hold.ID.String() || e.MySQL.ID != hold.ID.String():
		t.Errorf("the two records: %+v, %+v", e.Redis, e.MySQL)
	case e.Redis.Times["created"].IsZero() || e.MySQL.Times["purge"].IsZero() || e.Redis.Hash == "":
		t.Errorf("they are not whole: %+v, %+v", e.Redis, e.MySQL)
	case e.Rounds != 3 || !strings.Contains(e.What, what) || e.Since == nil:
		t.Errorf("what, for how long: %+v", e)
	case len(e.Buckets) != 1 || e.Buckets[0].Redis == nil || e.Buckets[0].MySQL == nil || e.Buckets[0].MySQL.OnHand != 9:
		t.Errorf("figures: %+v", e.Buckets)
	}
	if !strings.Contains(rec.Reason, hold.ID.String()) {
		t.Errorf("the reason does not name it: %q", rec.Reason)
	}
}

// I4: counters of Redis that do not add up freeze their bucket, and are mended from the ledger.
func TestI4LastingDifferenceOfCountersFreezesAndIsMended(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(a *ailing){
		"available": func(a *ailing) { a.p.Client().IncrBy(a.Context(), a.key("avail:1:1:1"), 4) },
		"held": func(a *ailing) {
			a.p.Client().IncrBy(a.Context(), a.key("held:1:1:1"), 3)
			a.p.Client().DecrBy(a.Context(), a.key("avail:1:1:1"), 3)
		},
		"on_hand": func(a *ailing) {
			a.p.Client().IncrBy(a.Context(), a.key("onhand:1:1:1"), 3)
			a.p.Client().IncrBy(a.Context(), a.key("avail:1:1:1"), 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAiling(t)
			a.rounds(1)
			plant(a)
			eventually(t, "the bucket is frozen", 30*time.Second, func() bool { return len(a.frozen()) == 1 })
			b := a.frozen()[0]
			want(t, "frozen", b.String(), "1:1:1")
			if r := a.mend(podset.MendOrder{Bucket: b, From: reservation.Redis}); r.Refused == "" {
				t.Errorf("from Redis: %+v", r)
			}
			if r := a.mend(podset.MendOrder{Bucket: b, From: reservation.MySQL}); r.Done || len(r.Would) == 0 || r.Refused != "" {
				t.Errorf("shown: %+v", r)
			}
			r := a.mend(podset.MendOrder{Bucket: b, From: reservation.MySQL, Execute: true, Reason: "INC-2"})
			if !r.Done || r.Left != "" || len(r.Warnings) != 0 || fmt.Sprint(r.Unfrozen) != "[1:1:1]" {
				t.Errorf("done: %+v", r)
			}
			want(t, "mends in the audit", len(a.audit(reservation.ActionMend)), 1)
			if _, err := a.p.Quiesce(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantInvariants(t, a.p)
		})
	}
}

// I6: a claim that Redis answered and the ledger lacks is made up for, once; it is never taken back.
func TestI6ClaimWithoutItsEntryFreezesAndIsMended(t *testing.T) {
	t.Parallel()
	a := newAiling(t)
	a.rounds(1)
	paid, err := a.p.Router.Claim(t.Context(), shop, a.hold.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.p.Redis.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := paid.Record.ID
	a.sql("DELETE FROM ledger_entries WHERE delta = -2") // MySQL has lost the claim's transaction
	a.sql("UPDATE inventory_ledger SET on_hand = on_hand + 2 WHERE inventory_item_id = 1")
	a.sql("UPDATE reservations SET state = 'held', claimed_at = NULL WHERE id = ?", id[:])
	a.sql("INSERT INTO reserved_quantities (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity) VALUES (1, 1, 1, ?, 2)", id[:])
	eventually(t, "the bucket is frozen", 30*time.Second, func() bool { return len(a.frozen()) == 1 })
	if r := a.mend(podset.MendOrder{ID: id, From: reservation.MySQL, Execute: true, Reason: "no"}); r.Refused == "" || r.Done {
		t.Errorf("a claim is taken back: %+v", r)
	}
	r := a.mend(podset.MendOrder{ID: id, From: reservation.Redis, Execute: true, Reason: "INC-3"})
	if !r.Done || r.Left != "" || len(r.Warnings) != 0 {
		t.Errorf("done: %+v", r)
	}
	m, err := a.p.MySQL.Availability(t.Context(), reservation.Bucket{Shop: shop, Item: 1, Group: 1})
	if err != nil || m.OnHand != 7 {
		t.Errorf("on hand %d, %v: want 10 less 1 and 2", m.OnHand, err)
	}
	if r := a.mend(podset.MendOrder{ID: id, From: reservation.Redis, Execute: true, Reason: "again"}); r.Done {
		t.Errorf("again: %+v", r)
	}
}

// What a mend would take and is not there is said, before and after, and stays visible.
func TestMendSaysWhatIsPromisedTwice(t *testing.T) {
	t.Parallel()
	a := newAiling(t)
	a.rounds(1)
	a.redis("lines", "1:1:30")
	for kind, n := range map[string]int64{"held": 28, "avail": -28} {
		a.p.Client().IncrBy(t.Context(), a.key(kind+":1:1:1"), n)
	}
	o := podset.MendOrder{ID: a.hold.ID, From: reservation.Redis}
	shown := a.mend(o)
	if len(shown.Warnings) != 1 || !strings.Contains(shown.Warnings[0], "28 more units are taken in mysql, and 7 are available: 21 are promised twice") {
		t.Errorf("%q", shown.Warnings)
	}
	o.Execute, o.Reason = true, "INC-4"
	if done := a.mend(o); !done.Done || done.Forced != 21 {
		t.Errorf("%+v", done)
	}
	m, err := a.p.MySQL.Availability(t.Context(), reservation.Bucket{Shop: shop, Item: 1, Group: 1})
	if err != nil || m.Available != -21 {
		t.Errorf("available %d, %v", m.Available, err)
	}
}

// What changed since it was shown is not written over.
func TestMendRefusesWhatHasChanged(t *testing.T) {
	t.Parallel()
	a := newAiling(t)
	shown, err := a.p.Redis.Get(t.Context(), shop, a.hold.ID)
	if err != nil {
		t.Fatal(err)
	}
	to := shown
	to.Lines = []reservation.Line{{Item: 1, Group: 1, Quantity: 4}}
	if _, err := a.p.Router.Release(t.Context(), shop, a.hold.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "MySQL has the release", 20*time.Second, func() bool { return !inMySQL(a.p, a.hold.ID) })
	note := reservation.AuditRecord{Pod: "pod-1", By: "ada", Reason: "test"}
	if _, done, err := a.p.Redis.Mend(t.Context(), a.p.Router.Stamp(), shown, to, note); done || err != nil {
		t.Errorf("Redis: %v, %v", done, err)
	}
	if _, done, err := a.p.MySQL.Mend(t.Context(), a.p.Router.Stamp(), shown, to, note); done || err != nil {
		t.Errorf("MySQL: %v, %v", done, err)
	}
	want(t, "mends in the audit", len(a.audit(reservation.ActionMend)), 0)
	if _, err := a.p.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantInvariants(t, a.p)
}

// What either store lacks is in metrics after each full round, by reason with units and time, and in status.
func TestDebtByReasonIsShown(t *testing.T) {
	t.Parallel()
	a := newAiling(t)
	req, err := reservation.NewRequest(shop, "lonely", []reservation.Line{{Item: 2, Group: 1, Quantity: 3}}, 5*time.Minute, reservation.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.p.MySQL.Reserve(t.Context(), a.p.Router.Stamp(), id, req); err != nil { // nobody was answered
		t.Fatal(err)
	}
	of := func(name, kind string) float64 { return counter(t, a.registry, name, map[string]string{"kind": kind}) }
	eventually(t, "the round counts it", 30*time.Second, func() bool { return of("twinhold_debt_reservations", "unconfirmed") == 1 })
	want(t, "units", of("twinhold_debt_units", "unconfirmed"), 3.0)
	if s := of("twinhold_debt_drains_seconds", "unconfirmed"); s < 200 || s > 300 {
		t.Errorf("drains in %v s", s)
	}
	for _, kind := range []string{"missing", "marked", "differing"} {
		want(t, kind, of("twinhold_debt_reservations", kind), 0.0)
	}
	c, err := a.p.Control(podset.ControlOptions{By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if by := c.Status(t.Context(), true).DebtBy; by["unconfirmed"].Units != 3 || by["missing"].Reservations != 0 || len(by) != 4 {
		t.Errorf("status: %+v", by)
	}
	a.sql("UPDATE reservations SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR WHERE id = ?", id[:])
	eventually(t, "it has ended, and is no debt any more", 30*time.Second, func() bool { return of("twinhold_debt_reservations", "unconfirmed") == 0 })
	want(t, "frozen", len(a.frozen()), 0)
}
