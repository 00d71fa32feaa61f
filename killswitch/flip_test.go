package killswitch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// to is an order that waives what a fresh pod cannot have.
func to(stage reservation.Stage) killswitch.Order {
	return killswitch.Order{To: stage, Waive: []string{"drill"}, Reason: "a test", Ticket: "T-1", Wait: 20 * time.Second}
}

func TestFlipWalksToCutoverAndBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.stock(10)
	r.reserve(r.redis, "k", 10*time.Minute) // catch-up has to bring it over
	r.router("r1")
	res, err := r.Execute(t.Context(), to(reservation.Cutover))
	if err != nil {
		t.Fatal(err)
	}
	if res.From != "shadow" || res.Stage != "cutover" || res.Epoch != 3 || len(res.Moves) != 2 {
		t.Errorf("%+v", res)
	}
	for i, m := range res.Moves {
		if m.Acks != 1 || m.Routers != 1 || len(m.Laggards) != 0 || fmt.Sprint(m.Waived) != "[drill]" {
			t.Errorf("move %d: %+v", i, m)
		}
	}
	r.at(3, reservation.Cutover)
	if again, err := r.Execute(t.Context(), to(reservation.Cutover)); err != nil || len(again.Moves) != 0 || again.Epoch != 3 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := r.Execute(t.Context(), killswitch.Order{To: reservation.Shadow}); err != nil {
		t.Fatal(err)
	}
	r.at(4, reservation.Shadow)
	want := []string{"flip 1 shadow -> 2 handover", "flip 2 handover -> 3 cutover", "flip 3 cutover -> 4 shadow"}
	if got := r.actions(); !slices.Equal(got, want) {
		t.Errorf("the audit says %q, want %q", got, want)
	}
	a := r.record(reservation.ActionFlip)
	if a.By != "tester" || a.Reason != "a test" || a.Ticket != "T-1" || fmt.Sprint(a.Waived) != "[drill]" || a.Store != "redis, mysql" || a.Debt == nil || !contains(a.Detail, "never drilled") && !contains(a.Detail, "drill (fail") {
		t.Errorf("the audit says %+v", a)
	}
}

// Without --execute nothing is changed, and the gates say the same.
func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.router("r1")
	p, err := r.Plan(t.Context(), to(reservation.Cutover))
	if err != nil || !p.Go() || len(p.Steps) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	if g := gate(t, p.Steps[1].Gates, killswitch.GateComplete); !g.Awaited || g.Waived || !g.Open() {
		t.Errorf("complete is awaited, not passed: %+v", g)
	}
	if g := gate(t, p.Steps[0].Gates, killswitch.GateDrill); !g.Waived {
		t.Errorf("drill is asked before the pod goes half-way: %+v", g)
	}
	r.at(1, reservation.Shadow)
	if n := len(r.actions()); n != 0 {
		t.Errorf("the audit says %v", r.actions())
	}
}

// Each gate, shut by a figure, refuses the flip, says the figure, and leaves the pod where it is.
func TestFlipIsRefusedByEachGate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		gate    string
		verdict killswitch.Verdict
		figure  string
		shut    func(r *rig)
		silent  bool // no router
	}{
		{gate: "evidence", verdict: killswitch.Fail, figure: "5000 compared, 3 unexplained", shut: func(r *rig) { r.evidence.Unexplained = 3 }},
		{gate: "evidence", verdict: killswitch.Inconclusive, figure: "999 compared", shut: func(r *rig) { r.evidence.Compared = 999 }},
		{gate: "latency", verdict: killswitch.Fail, figure: "p99 MySQL 99.0 ms, Redis 20.0 ms", shut: func(r *rig) { r.evidence.Redis.P99, r.evidence.MySQL.P99 = 20, 99 }},
		{gate: "latency", verdict: killswitch.Inconclusive, figure: "p99 MySQL 0.0 ms", shut: func(r *rig) { r.evidence.MySQL.P99 = 0 }},
		{gate: "pool", verdict: killswitch.Fail, figure: "1 short bucket of 3", shut: func(r *rig) { r.short = []reservation.Bucket{{Shop: 1, Item: 2, Group: 3}} }},
		{gate: "queue", verdict: killswitch.Inconclusive, figure: "no router", silent: true, shut: func(*rig) {}},
		{gate: "breaker", verdict: killswitch.Inconclusive, figure: "no router", silent: true, shut: func(*rig) {}},
		{gate: "queue", verdict: killswitch.Fail, figure: "101 waiting at most", shut: func(r *rig) {
			r.beat(reservation.Heartbeat{Router: "slow", Stamp: reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}, Queue: 101})
		}},
		{gate: "breaker", verdict: killswitch.Fail, figure: "closed at 1 of 2 routers", shut: func(r *rig) {
			r.beat(reservation.Heartbeat{Router: "broken", Stamp: reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}, Breaker: "open"})
		}},
		{gate: "breaker", verdict: killswitch.Fail, figure: "closed at 1 of 2 routers", shut: func(r *rig) {
			r.beat(reservation.Heartbeat{Router: "cut", Stamp: reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}, Cut: true})
		}},
		{gate: "health", verdict: killswitch.Fail, figure: "epoch 1, shadow", shut: func(r *rig) {
			if _, err := r.Freeze(r.t.Context(), reservation.Bucket{}, true, "why", ""); err != nil {
				r.t.Fatal(err)
			}
		}},
		{gate: "cooldown", verdict: killswitch.Fail, figure: "of 1h0m0s", shut: func(r *rig) {
			if _, err := r.Kill(r.t.Context(), "why", ""); err != nil {
				r.t.Fatal(err)
			}
			if _, err := r.Rearm(r.t.Context(), killswitch.Order{Waive: []string{"cooldown"}, Reason: "a test"}, true); err != nil {
				r.t.Fatal(err)
			}
		}},
		{gate: "debt", verdict: killswitch.Fail, figure: "2 reservations, 3 units", shut: func(r *rig) {
			r.opt.Survey = func(context.Context, reservation.Fence, reservation.Fence) (killswitch.Survey, error) {
				return killswitch.Survey{Debt: reservation.Debt{Reservations: 2, Units: 3}}, nil
			}
			r.Control = r.control()
		}},
		{gate: "debt", verdict: killswitch.Inconclusive, figure: "0 marks", shut: func(r *rig) {
			r.opt.Survey = nil
			r.Control = r.control()
		}},
	} {
		t.Run(tc.gate+" "+string(tc.verdict)+" "+tc.figure, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, reservation.Shadow)
			if !tc.silent {
				r.router("r1")
			}
			tc.shut(r)
			before, _ := r.fences()
			_, err := r.Execute(t.Context(), killswitch.Order{To: reservation.Handover})
			g := gate(t, refused(t, err, tc.gate).Gates, tc.gate)
			if g.Verdict != tc.verdict || !contains(g.Figure, tc.figure) || g.Reason == "" || g.Waived {
				t.Errorf("%+v", g)
			}
			p, err := r.Plan(t.Context(), killswitch.Order{To: reservation.Handover})
			if err != nil || p.Go() {
				t.Errorf("the plan would go: %+v, %v", p, err)
			}
			r.at(before.Epoch, reservation.Shadow)
			if !g.Waivable {
				_, err := r.Execute(t.Context(), killswitch.Order{To: reservation.Handover, Waive: []string{tc.gate}, Reason: "a test"})
				refused(t, err, "never waived")
				return
			}
			_, err = r.Execute(t.Context(), killswitch.Order{To: reservation.Handover, Waive: []string{tc.gate}})
			refused(t, err, "a waiver needs a reason")
			r.at(before.Epoch, reservation.Shadow)
		})
	}
}

func TestWaivedGatesGoAndAreOnRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.evidence = killswitch.Evidence{}
	o := killswitch.Order{To: reservation.Handover, Waive: []string{"queue", "breaker", "evidence", "latency", "cooldown"}, Reason: "a new shop"}
	if _, err := r.Execute(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	a := r.record(reservation.ActionFlip)
	// What had passed was not waived.
	if fmt.Sprint(a.Waived) != "[queue breaker evidence latency]" || a.Reason != "a new shop" || !contains(a.Detail, "evidence (inconclusive: 0 compared") {
		t.Errorf("%+v", a)
	}
}

func TestFlipRefusesWhatIsNoMove(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		from, to reservation.Stage
		most     reservation.Stage
		words    []string
	}{
		{reservation.Legacy, reservation.Cutover, 0, []string{"more than one step", "--to shadow"}},
		{reservation.Shadow, reservation.Complete, 0, []string{"more than one step", "--to cutover"}},
		{reservation.Shadow, reservation.Legacy, 0, []string{"no move"}},
		{reservation.Cutover, reservation.Handover, 0, []string{"no move"}},
		{reservation.Complete, reservation.Shadow, 0, []string{"only back to cutover"}},
		{reservation.Shadow, reservation.Cutover, reservation.Handover, []string{"max_stage is handover"}},
	} {
		r := newRig(t, tc.from)
		if tc.most != 0 {
			r.opt.MaxStage = tc.most
			r.Control = r.control()
		}
		_, err := r.Execute(t.Context(), to(tc.to))
		refused(t, err, tc.words...)
		p, err := r.Plan(t.Context(), to(tc.to))
		if err != nil || p.Go() || len(p.Refused) != 1 {
			t.Errorf("%s to %s: %+v, %v", tc.from, tc.to, p, err)
		}
		r.at(1, tc.from)
	}
}

// In handover the flip waits for what the gate complete lacks, and says what it waits for.
func TestFlipWaitsForComplete(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.router("r1")
	var mu sync.Mutex
	var told []string
	ready := false
	survey := r.opt.Survey
	r.opt.Survey = func(ctx context.Context, inRedis, inMySQL reservation.Fence) (killswitch.Survey, error) {
		s, err := survey(ctx, inRedis, inMySQL)
		mu.Lock()
		defer mu.Unlock()
		if inRedis.Stage == reservation.Handover && !ready {
			s.Ready, s.Because, s.Unconfirmed = false, []string{"2 older reservations are live in one store only"}, 2
		}
		return s, err
	}
	o := to(reservation.Cutover)
	o.Progress = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, line)
		if contains(line, "waiting: complete: 2 older") {
			ready = true
		}
	}
	if _, err := r.control().Execute(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !ready {
		t.Errorf("it did not say what it waited for: %q", told)
	}
	r.at(3, reservation.Cutover)
}

func TestFlipThatWaitsTooLongStaysInHandover(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.router("r1")
	r.opt.Survey = func(context.Context, reservation.Fence, reservation.Fence) (killswitch.Survey, error) {
		return killswitch.Survey{Because: []string{"a hold is left to its expiry"}}, nil
	}
	o := to(reservation.Cutover)
	o.Wait = 100 * time.Millisecond
	res, err := r.control().Execute(t.Context(), o)
	refused(t, err, "complete", "left to its expiry", "stays in handover", "--to shadow")
	if len(res.Moves) != 1 || res.Stage != "handover" {
		t.Errorf("%+v", res)
	}
	r.at(2, reservation.Handover)
	if _, err := r.Execute(t.Context(), killswitch.Order{To: reservation.Shadow}); err != nil {
		t.Error(err)
	}
}

// A kill wins over a flip at every step of it, and the flip does not go on.
func TestKillDuringAFlipWins(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"gate_passed", "before_move", "moved", "waited", "before_raise", "raised"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, reservation.Shadow)
			r.router("r1")
			killed := false
			flipper := r.control(func(o *killswitch.Options) {
				o.Failpoint = func(s string) {
					if s == step && !killed {
						killed = true
						if _, err := r.Kill(t.Context(), "at "+step, ""); err != nil {
							t.Error(err)
						}
					}
				}
			})
			_, err := flipper.Execute(t.Context(), to(reservation.Cutover))
			refused(t, err, "killed")
			f, _ := r.fences()
			if f.Stage != reservation.Shadow || !f.Killed || f.Latch != "at "+step {
				t.Errorf("%+v", f)
			}
			_, err = r.Execute(t.Context(), to(reservation.Cutover))
			refused(t, err, "killed")
		})
	}
}

// A router that aborts the handover is not overruled by the flip that led there.
func TestFlipDoesNotOverruleAnAbort(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Shadow)
	r.router("r1")
	aborted := false
	flipper := r.control(func(o *killswitch.Options) {
		o.Failpoint = func(s string) {
			if f, _ := r.fences(); s == "raised" && f.Stage == reservation.Handover && !aborted {
				aborted = true
				_, err := r.redis.Move(t.Context(), reservation.FenceMove{From: f.Stamp, To: reservation.Shadow, Audit: reservation.AuditRecord{Action: reservation.ActionAbort, By: "r1"}})
				if err != nil {
					t.Error(err)
				}
			}
		}
	})
	_, err := flipper.Execute(t.Context(), to(reservation.Cutover))
	refused(t, err, "somebody else has moved it", "audit")
	if f, _ := r.fences(); f.Stage != reservation.Shadow || f.Epoch != 3 {
		t.Errorf("%+v", f)
	}
}

// errAbandoned ends a flip at a failpoint, as if its process were gone.
var errAbandoned = errors.New("abandoned")

// abandonAt runs an order, and stops it for good at the n-th step. It tells the step's name; empty: it came to its end.
func (r *rig) abandonAt(n int, o killswitch.Order) (name string, err error) {
	seen := 0
	c := r.control(func(opt *killswitch.Options) {
		opt.Failpoint = func(step string) {
			if seen++; seen == n {
				name = step
				panic(errAbandoned)
			}
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil && p != any(errAbandoned) {
				panic(p)
			}
		}()
		_, err = c.Execute(r.t.Context(), o)
	}()
	<-done
	return name, err
}

// A flip that was killed at any step is finished by running it again: every move once, in one audit record.
func TestFlipKilledAtAnyStepIsFinished(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		from, to reservation.Stage
		want     []string
		least    int // steps there must be
	}{
		{reservation.Shadow, reservation.Cutover, []string{"flip 1 shadow -> 2 handover", "flip 2 handover -> 3 cutover"}, 12},
		{reservation.Cutover, reservation.Complete, []string{"flip 1 cutover -> 2 complete"}, 6},
		{reservation.Cutover, reservation.Shadow, []string{"flip 1 cutover -> 2 shadow"}, 6},
		{reservation.Complete, reservation.Cutover, []string{"flip 1 complete -> 2 cutover", "reseed 1 complete -> 2 cutover"}, 5},
	} {
		t.Run(tc.from.String()+" to "+tc.to.String(), func(t *testing.T) {
			t.Parallel()
			on := shared(t) // of pods that hold no reservation
			for n := 1; ; n++ {
				r := newRigOn(t, on, devtest.Pod(t), tc.from)
				r.router("r1")
				step, err := r.abandonAt(n, to(tc.to))
				if step == "" {
					if err != nil || n <= tc.least {
						t.Errorf("it came to its end after %d steps: %v", n-1, err)
					}
					return
				}
				if p, err := r.Plan(t.Context(), to(tc.to)); err != nil || !p.Go() {
					t.Errorf("at %s: the plan to finish it: %+v, %v", step, p, err)
				}
				if _, err := r.Execute(t.Context(), to(tc.to)); err != nil {
					t.Errorf("at step %d, %s: run again: %v", n, step, err)
					continue
				}
				r.at(uint64(1+len(tc.want)-btoi(tc.from == reservation.Complete)), tc.to)
				if got := r.actions(); !slices.Equal(got, tc.want) {
					t.Errorf("at step %d, %s: the audit says %q, want %q", n, step, got, tc.want)
				}
			}
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A walk that was killed half-way can be undone in place of finished.
func TestFlipKilledAtAnyStepIsUndone(t *testing.T) {
	t.Parallel()
	on := shared(t)
	for n := 1; ; n++ {
		r := newRigOn(t, on, devtest.Pod(t), reservation.Shadow)
		r.router("r1")
		step, _ := r.abandonAt(n, to(reservation.Cutover))
		if step == "" {
			return
		}
		if _, err := r.Execute(t.Context(), killswitch.Order{To: reservation.Shadow}); err != nil {
			t.Errorf("at %s: %v", step, err)
		}
		if f, m := r.fences(); f.Stage != reservation.Shadow || m.Stamp != f.Stamp {
			t.Errorf("at %s: Redis %+v, MySQL %+v", step, f, m)
		}
	}
}

// Out of complete Redis is rebuilt: what MySQL granted meanwhile is there.
func TestLeavingCompleteRebuildsRedis(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Complete)
	st := reservation.Stamp{Epoch: 1, Stage: reservation.Complete}
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	if _, _, err := r.mysql.Stock(t.Context(), st, []reservation.Stocking{{Bucket: b, Quantity: 10}}); err != nil {
		t.Fatal(err)
	}
	id := r.reserve(r.mysql, "k", time.Minute)
	res, err := r.Execute(t.Context(), killswitch.Order{To: reservation.Cutover, Reason: "back"})
	if err != nil {
		t.Fatal(err)
	}
	if res.Stage != "cutover" || len(res.Moves) != 1 {
		t.Errorf("%+v", res)
	}
	r.at(2, reservation.Cutover)
	rec, err := r.redis.Get(t.Context(), 1, id)
	if err != nil || rec.State != reservation.Held {
		t.Errorf("Redis has %+v, %v", rec, err)
	}
	av, err := r.redis.Availability(t.Context(), b)
	if err != nil || av.Available != 9 || av.OnHand != 10 {
		t.Errorf("Redis has %+v, %v", av, err)
	}
	if f, _ := r.fences(); f.Incarnation == 0 || f.IncarnationEpoch != 2 || f.Suspect {
		t.Errorf("%+v", f)
	}
}

// Back to shadow needs Redis alone.
func TestFlipBackWithoutMySQL(t *testing.T) {
	t.Parallel()
	r := newRig(t, reservation.Cutover)
	r.reopenMySQL("twinhold:x@tcp(" + refusingAddress(t) + ")/pod")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, err := r.Execute(ctx, killswitch.Order{To: reservation.Shadow, Reason: "MySQL is gone"})
	if err != nil || res.Stage != "shadow" || len(res.Notes) != 1 || !contains(res.Notes[0], "MySQL's fence has not taken") {
		t.Errorf("%+v, %v", res, err)
	}
}
