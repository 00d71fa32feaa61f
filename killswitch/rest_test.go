package killswitch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

func TestRearmIsRefused(t *testing.T) {
	t.Parallel()
	ok := killswitch.Order{Waive: []string{"cooldown"}, Reason: "a test"}
	t.Run("not killed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, reservation.Shadow)
		_, err := r.Rearm(t.Context(), ok, true)
		refused(t, err, "it is not killed")
	})
	t.Run("during the cool-down", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, reservation.Cutover)
		if _, err := r.Kill(t.Context(), "why", ""); err != nil {
			t.Fatal(err)
		}
		res, err := r.Rearm(t.Context(), killswitch.Order{}, true)
		refused(t, err, "cooldown", "of 1h0m0s", "killed by tester")
		if !res.Killed || res.Done || gate(t, res.Gates, "health").Verdict != killswitch.Pass {
			t.Errorf("%+v", res)
		}
		_, err = r.Rearm(t.Context(), killswitch.Order{Waive: []string{"cooldown"}}, true)
		refused(t, err, "a waiver needs a reason")
		later := r.control(func(o *killswitch.Options) { o.Now = func() time.Time { return time.Now().Add(2 * time.Hour) } })
		if res, err := later.Rearm(t.Context(), killswitch.Order{}, false); err != nil || res.Done {
			t.Errorf("two hours later: %+v, %v", res, err)
		}
		r.at(2, reservation.Shadow)
	})
	t.Run("with marks", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, reservation.Cutover)
		r.stock(10)
		if err := r.mysql.Mark(t.Context(), reservation.Stamp{Epoch: 1, Stage: reservation.Cutover}, r.reserve(r.mysql, "k", time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Kill(t.Context(), "why", ""); err != nil {
			t.Fatal(err)
		}
		_, err := r.Rearm(t.Context(), ok, true)
		refused(t, err, "debt", "1 mark")
		_, err = r.Rearm(t.Context(), killswitch.Order{Waive: []string{"debt"}, Reason: "a test"}, true)
		refused(t, err, "never waived")
	})
	t.Run("without MySQL", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, reservation.Cutover)
		if _, err := r.Kill(t.Context(), "why", ""); err != nil {
			t.Fatal(err)
		}
		r.reopenMySQL("twinhold:x@tcp(" + refusingAddress(t) + ")/pod")
		_, err := r.Rearm(t.Context(), ok, true)
		refused(t, err, "health", "cannot confirm the kill's epoch")
		if f, err := r.redis.ReadFence(t.Context()); err != nil || !f.Killed || f.Epoch != 2 {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

func TestRearm(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Cutover)
	// By hand, and nobody has met it yet: the rearm folds it first.
	if err := r.raw.Set(t.Context(), r.key("kill"), "by hand", 0).Err(); err != nil {
		t.Fatal(err)
	}
	o := killswitch.Order{Waive: []string{"cooldown"}, Reason: "a mistake", Ticket: "T-2"}
	if res, err := r.Rearm(t.Context(), o, true); err != nil || !res.Done || res.Killed || res.Epoch != 3 || res.Stage != "shadow" {
		t.Fatalf("%+v, %v", res, err)
	}
	r.at(3, reservation.Shadow)
	a := r.record(reservation.ActionRearm)
	if fmt.Sprint(a.Waived) != "[cooldown]" || a.Reason != "a mistake" || a.Ticket != "T-2" || a.Before.Epoch != 2 || a.After.Epoch != 3 {
		t.Errorf("%+v", a)
	}
}

func TestDrill(t *testing.T) {
	t.Parallel()
	for _, stage := range []reservation.Stage{reservation.Shadow, reservation.Cutover} {
		r := newRig(t, stage)
		_, err := r.Drill(t.Context(), "release", "")
		refused(t, err, "no router")
		r.router("r1")
		r.router("r2")
		res, err := r.Drill(t.Context(), "release", "")
		if err != nil {
			t.Fatal(err)
		}
		if res.Acks != 2 || res.Routers != 2 || len(res.Laggards) != 0 || res.Stage != "shadow" || res.Before != stage.String() {
			t.Errorf("%+v", res)
		}
		r.at(res.Epoch, reservation.Shadow)
		f, _ := r.fences()
		if f.Killed {
			t.Error("it is still killed")
		}
		// It opens the gate drill, for this version alone, and starts no cool-down.
		p, err := r.Plan(t.Context(), killswitch.Order{To: reservation.Cutover})
		if err != nil || !p.Go() {
			t.Errorf("%s: %+v, %v", stage, p.Shut(), err)
		}
		next := r.control(func(o *killswitch.Options) { o.Version = "v2" })
		if p, err = next.Plan(t.Context(), killswitch.Order{To: reservation.Cutover}); err != nil {
			t.Fatal(err)
		}
		if g := gate(t, p.Steps[0].Gates, "drill"); g.Verdict != killswitch.Fail || !contains(g.Reason, `"v1"`) {
			t.Errorf("a new version: %+v", g)
		}
	}
}

func TestFreezeReachesBothStores(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	b := reservation.Bucket{Shop: 1, Item: 2, Group: 3}
	for _, bucket := range []reservation.Bucket{{}, b} {
		for _, on := range []bool{true, false} {
			res, err := r.Freeze(t.Context(), bucket, on, "why", "T")
			if err != nil || fmt.Sprint(res.Reached) != "[redis mysql]" || len(res.Missed) != 0 || res.Frozen != on {
				t.Errorf("%+v, %v", res, err)
			}
			inRedis, inMySQL := r.fences()
			for _, f := range []reservation.Fence{inRedis, inMySQL} {
				if bucket == b && (len(f.FrozenBuckets) == 1) != on || bucket != b && f.Frozen != on {
					t.Errorf("%v %v: %+v", bucket, on, f)
				}
			}
		}
	}
	if n := len(r.actions()); n != 4 {
		t.Errorf("%d records, want one a change: %v", n, r.actions())
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.router("r1")
	s := r.Status(t.Context(), false)
	if s.Stage != "shadow" || *s.Epoch != 1 || s.Truth != "redis" || *s.Killed || s.Breaker != "closed" || len(s.Routers) != 1 || len(s.HeldBecause) != 0 {
		t.Errorf("%+v", s)
	}
	if s.Debt == nil || *s.Debt != (reservation.Debt{}) || s.ViewComplete == nil || !*s.ViewComplete {
		t.Errorf("debt %v, view complete %v", s.Debt, s.ViewComplete)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"pod", "stage", "epoch", "truth", "killed", "debt", "view_complete", "queue", "breaker", "routers", "held_because", "seen_s_ago", "id"} {
		if !strings.Contains(string(text), `"`+key+`":`) {
			t.Errorf("no %s in %s", key, text)
		}
	}
	r.beat(reservation.Heartbeat{Router: "old", Stamp: reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}, Breaker: "open", Cut: true})
	if _, err := r.Kill(t.Context(), "the reason", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Rearm(t.Context(), killswitch.Order{Waive: []string{"cooldown"}, Reason: "x"}, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Kill(t.Context(), "the reason", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Freeze(t.Context(), reservation.Bucket{}, true, "", ""); err != nil {
		t.Fatal(err)
	}
	s = r.Status(t.Context(), false)
	all := strings.Join(s.HeldBecause, "\n")
	for _, want := range []string{"killed: the reason", "frozen (in both stores)", "router old is still at epoch 1", "router old is cut", "breaker of router old is open"} {
		if !strings.Contains(all, want) {
			t.Errorf("it does not say %q:\n%s", want, all)
		}
	}
	if fmt.Sprint(s.Laggards) != "[old]" || s.Breaker != "open" {
		t.Errorf("%+v", s)
	}
}

// At 3 a.m. with a store that hangs: what is not known is null, and it says why.
func TestStatusWithAHungStore(t *testing.T) {
	t.Parallel()
	on, stack := private(t)
	r := newRigOn(t, on, "pod-1", reservation.Cutover)
	r.router("r1")
	r.Status(t.Context(), false)
	status := func(what string, words ...string) killswitch.Status {
		t.Helper()
		began := time.Now()
		s := r.Status(t.Context(), false)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s: it took %s", what, took)
		}
		for _, w := range words {
			if !strings.Contains(strings.Join(s.HeldBecause, "\n"), w) {
				t.Errorf("%s: it does not say %q: %q", what, w, s.HeldBecause)
			}
		}
		return s
	}
	if err := stack.MySQL.Pause(); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "MySQL hangs", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := r.mysql.ReadFence(ctx)
		return err != nil
	})
	s := status("MySQL hung", "MySQL does not answer", "nothing can be reserved or claimed: twinhold kill pod-1")
	if s.Stage != "cutover" || s.Debt != nil || s.ViewComplete != nil || s.Marks != nil || len(s.Routers) != 1 {
		t.Errorf("%+v", s)
	}
	if err := stack.MySQL.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.mysql.Freeze(t.Context(), reservation.Bucket{Shop: 1, Item: 1, Group: 1}, true, reservation.AuditRecord{By: "x", Reason: "counting"}); err != nil {
		t.Fatal(err)
	}
	if err := stack.Redis.Pause(); err != nil {
		t.Fatal(err)
	}
	s = status("Redis hung", "Redis does not answer")
	if s.Stage != "cutover" || *s.Epoch != 1 || s.ViewComplete != nil {
		t.Errorf("%+v", s)
	}
	if s.Killed != nil || s.Routers != nil || s.Queue != nil || s.Frozen != nil || s.Suspect != nil || s.Incarnation != nil || s.Redis.Epoch != nil || s.Unknown() {
		t.Errorf("what nobody could know is told: %+v", s)
	}
	// A Redis that hangs does not use up MySQL's time.
	if recs, err := r.Audit(t.Context()); err == nil || killswitch.BothFailed(err) || len(recs) != 1 || recs[0].Reason != "counting" {
		t.Errorf("%+v, %v", recs, err)
	}
	if err := stack.Redis.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestReseed(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Cutover)
	r.stock(10)
	id := r.reserve(r.mysql, "k", time.Minute)
	if res, err := r.Reseed(t.Context(), "why", "", false); err != nil || res.Done || res.Epoch != 2 || res.Stage != "cutover" {
		t.Fatalf("%+v, %v", res, err)
	}
	r.at(1, reservation.Cutover)
	if err := r.raw.Set(t.Context(), r.key("avail:1:1:1"), 77, 0).Err(); err != nil {
		t.Fatal(err)
	}
	res, err := r.Reseed(t.Context(), "why", "", true)
	if err != nil || !res.Done {
		t.Fatalf("%+v, %v", res, err)
	}
	r.at(2, reservation.Cutover)
	if rec, err := r.redis.Get(t.Context(), 1, id); err != nil || rec.State != reservation.Held {
		t.Errorf("%+v, %v", rec, err)
	}
	if av, err := r.redis.Availability(t.Context(), reservation.Bucket{Shop: 1, Item: 1, Group: 1}); err != nil || av.Available != 9 {
		t.Errorf("%+v, %v", av, err)
	}
	if a := r.record(reservation.ActionReseed); a.Reason != "why" || a.By != "tester" {
		t.Errorf("%+v", a)
	}
	for _, stage := range []reservation.Stage{reservation.Legacy, reservation.Complete} {
		_, err := newRig(t, stage).Reseed(context.Background(), "why", "", true)
		refused(t, err, stage.String())
	}
}

// A latch set by hand in shadow leaves no record; the kill command that confirms it does, once for each reason, and the
// cool-down counts from the first.
func TestKillOfAKilledPodIsWrittenDownOncePerReason(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	if err := r.raw.Set(t.Context(), r.key("kill"), `by "hand"`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"confirm", "confirm", "again"} {
		if res, err := r.Kill(t.Context(), reason, ""); err != nil || !res.Already && reason == "again" {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	recs, err := r.redis.Audit(t.Context())
	if err != nil || len(recs) != 2 || recs[0].Reason != "confirm" || recs[1].Reason != "again" {
		t.Fatalf("%+v, %v", recs, err)
	}
	if a := recs[0]; a.Action != reservation.ActionKill || a.Before != a.After || a.Detail != `killed before: by "hand"` {
		t.Errorf("%+v", a)
	}
	res, err := r.Rearm(t.Context(), killswitch.Order{}, false)
	if g := gate(t, res.Gates, "cooldown"); g.Verdict != killswitch.Fail || !strings.Contains(g.Reason, recs[0].At.UTC().Format(time.RFC3339)) {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestDrillInShadowWritesDownWhoAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.router("r1")
	r.router("r2")
	if _, err := r.Drill(t.Context(), "why", ""); err != nil {
		t.Fatal(err)
	}
	recs, err := r.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last := recs[len(recs)-1]; !strings.Contains(last.Detail, "2 of 2 routers acknowledged") || last.Store != "redis, mysql" {
		t.Errorf("%+v", recs)
	}
}

// A brake in one store binds wherever both have a part. Where only the other has, it stops nothing, and status does not
// claim that it does.
func TestStatusOfABrakeInTheOtherStore(t *testing.T) {
	t.Parallel()
	for stage, binds := range map[reservation.Stage]bool{reservation.Legacy: false, reservation.Shadow: true, reservation.Cutover: true} {
		r := newRig(t, stage)
		if _, err := r.mysql.Freeze(t.Context(), reservation.Bucket{}, true, reservation.AuditRecord{By: "x", Reason: "why"}); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(r.Status(t.Context(), false).HeldBecause, "\n")
		if strings.Contains(text, "no new reservations until") != binds || strings.Contains(text, "GO ON") == binds {
			t.Errorf("%s: frozen in MySQL only: %q", stage, text)
		}
	}
}
