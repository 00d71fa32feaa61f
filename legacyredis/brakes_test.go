package legacyredis_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/reservation"
)

func at(epoch uint64, stage reservation.Stage) reservation.Stamp {
	return reservation.Stamp{Epoch: epoch, Stage: stage}
}

// inStage sets the fence as it stands, without a move.
func (r *rig) inStage(st reservation.Stamp) {
	r.tb.Helper()
	if err := r.raw.HSet(r.tb.Context(), r.key("fence"), "epoch", st.Epoch, "stage", st.Stage.String()).Err(); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) fence() reservation.Fence {
	r.tb.Helper()
	f, err := r.store.ReadFence(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	return f
}

func (r *rig) audit() []reservation.AuditRecord {
	r.tb.Helper()
	list, err := r.store.Audit(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	return list
}

func by(name string) reservation.AuditRecord {
	return reservation.AuditRecord{By: name, Reason: "because \"so\"", Ticket: "T-1"}
}

// A plain SET of the latch is a complete kill: the first script that meets it, whichever, in handover and in cutover,
// makes it the fence's, once.
func TestI8LatchIsFoldedByEveryScript(t *testing.T) {
	t.Parallel()
	for _, stage := range []reservation.Stage{reservation.Handover, reservation.Cutover} {
		st := at(9, stage)
		for name, do := range map[string]func(r *rig, id reservation.ID) error{
			"reserve": func(r *rig, _ reservation.ID) error {
				_, err := r.store.Reserve(r.tb.Context(), st, newID(r.tb), request(r.tb, "new", time.Hour, line(1, 1)))
				return err
			},
			"claim": func(r *rig, id reservation.ID) error {
				_, err := r.store.Claim(r.tb.Context(), st, 1, id)
				return err
			},
			"release": func(r *rig, id reservation.ID) error {
				_, err := r.store.Release(r.tb.Context(), st, 1, id)
				return err
			},
			"sweep": func(r *rig, _ reservation.ID) error {
				_, err := r.store.Sweep(r.tb.Context(), st, 10)
				return err
			},
			"figures": func(r *rig, _ reservation.ID) error {
				_, err := r.store.ApplyFigures(r.tb.Context(), st, []reservation.Figures{{Bucket: bucket(1), OnHand: 99, Version: 9}}, true)
				return err
			},
			"mirror": func(r *rig, id reservation.ID) error {
				rec, err := r.store.Get(r.tb.Context(), 1, id)
				if err != nil {
					return err
				}
				rec.State = reservation.Released
				_, err = r.store.Mirror(r.tb.Context(), st, reservation.MirrorOp{Op: reservation.OpRelease, Decision: reservation.ReleasedOK, Record: rec})
				return err
			},
			"confirm": func(r *rig, id reservation.ID) error {
				_, err := r.store.Confirm(r.tb.Context(), st, id)
				return err
			},
			"turn down": func(r *rig, id reservation.ID) error {
				_, err := r.store.TurnDown(r.tb.Context(), st, id, nil)
				return err
			},
			"move": func(r *rig, _ reservation.ID) error {
				_, err := r.store.Move(r.tb.Context(), reservation.FenceMove{From: st, To: stage + 1, Audit: by("move")})
				return err
			},
		} {
			t.Run(fmt.Sprintf("%s/%s", stage, name), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.stock(10)
				id := r.reserve("k", line(1, 3)).Record.ID
				r.inStage(st)
				if err := r.raw.Set(t.Context(), r.key("kill"), `why "now"`, 0).Err(); err != nil {
					t.Fatal(err)
				}
				e := wantAs[*reservation.FenceError](t, do(r, id))
				want := at(10, reservation.Shadow)
				if e.Verdict != reservation.Stale || e.Fence.Stamp != want || !e.Fence.Killed || e.Fence.Latch != `why "now"` {
					t.Fatalf("%+v", e)
				}
				if f := r.fence(); f.Stamp != want || !f.Killed {
					t.Fatalf("fence %+v", f)
				}
				_ = do(r, id)
				list := r.audit()
				if len(list) != 1 || list[0].Action != reservation.ActionKill || list[0].By != "latch" || list[0].Reason != `why "now"` ||
					list[0].Before != st || list[0].After != want || list[0].Pod != r.pod || time.Since(list[0].At).Abs() > time.Minute {
					t.Fatalf("audit: %+v", list)
				}
				r.figures(1, 7, 3, 10)
			})
		}
	}
}

// A heartbeat folds it too: it is how a router comes to know.
func TestI8LatchIsFoldedByAHeartbeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.inStage(at(9, reservation.Cutover))
	if err := r.raw.Set(t.Context(), r.key("kill"), "", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if f := r.fence(); f.Stamp != at(9, reservation.Cutover) || !f.Killed {
		t.Fatalf("a look changed it, or does not show the latch: %+v", f)
	}
	f, err := r.store.Beat(t.Context(), reservation.Heartbeat{Router: "r1", Stamp: at(9, reservation.Cutover), Breaker: "closed"})
	if err != nil || f.Stamp != at(10, reservation.Shadow) || !f.Killed || f.Latch != "" {
		t.Fatalf("%+v, %v", f, err)
	}
}

// In the other stages the latch changes nothing: it forbids in shadow, and is inert in legacy and complete.
func TestLatchInTheOtherStages(t *testing.T) {
	t.Parallel()
	for _, stage := range []reservation.Stage{reservation.Legacy, reservation.Shadow, reservation.Complete} {
		r := newRig(t)
		r.stock(10)
		st := at(9, stage)
		r.inStage(st)
		if err := r.raw.Set(t.Context(), r.key("kill"), "why", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.store.Reserve(t.Context(), st, newID(t), request(t, "k", time.Hour, line(1, 1))); err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		if f := r.fence(); f.Stamp != st || !f.Killed {
			t.Fatalf("%s: %+v", stage, f)
		}
		if stage == reservation.Shadow {
			_, err := r.store.Move(t.Context(), reservation.FenceMove{From: st, To: reservation.Handover, Audit: by("x")})
			wantIs(t, err, reservation.ErrLatched)
		}
		if n := len(r.audit()); n != 0 {
			t.Fatalf("%s: %d audit records", stage, n)
		}
	}
}

func TestKillByStage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stage   reservation.Stage
		after   reservation.Stamp
		refused bool
	}{
		{reservation.Legacy, at(9, reservation.Legacy), true},
		{reservation.Shadow, at(9, reservation.Shadow), false},
		{reservation.Handover, at(10, reservation.Shadow), false},
		{reservation.Cutover, at(10, reservation.Shadow), false},
		{reservation.Complete, at(9, reservation.Complete), true},
	} {
		r := newRig(t)
		before := at(9, c.stage)
		r.inStage(before)
		a := by("anna")
		a.Debt = &reservation.Debt{Reservations: 3, Units: 5, DrainsInS: 1.5}
		f, err := r.store.Kill(t.Context(), a)
		var invalid *reservation.InvalidError
		if errors.As(err, &invalid) != c.refused || err != nil && !c.refused || f.Stamp != c.after || f.Killed == c.refused {
			t.Fatalf("%s: %+v, %v", c.stage, f, err)
		}
		if c.refused {
			if n := len(r.audit()); n != 0 {
				t.Fatalf("%s: a refused kill is in the audit", c.stage)
			}
			continue
		}
		again, err := r.store.Kill(t.Context(), by("ben"))
		if err != nil || !cmp.Equal(again, f) || f.Latch != a.Reason {
			t.Fatalf("%s: a second kill: %+v, %v", c.stage, again, err)
		}
		want := reservation.AuditRecord{
			Pod: r.pod, Action: reservation.ActionKill, By: "anna", Reason: a.Reason, Ticket: "T-1",
			Before: before, After: c.after, Debt: a.Debt, Store: "redis",
		}
		list := r.audit()
		if len(list) != 1 {
			t.Fatalf("%s: audit %+v", c.stage, list)
		}
		want.At = list[0].At
		if diff := cmp.Diff(want, list[0]); diff != "" {
			t.Fatalf("%s: %s", c.stage, diff)
		}
	}
}

// Kills, moves and latches at once: the epoch goes up by one for each change, and each change is written down.
func TestKillsAndMovesAtOnce(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		r := newRig(t)
		st := at(9, reservation.Handover)
		r.inStage(st)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if f, err := r.store.Kill(t.Context(), by("k")); err != nil || f.Stage != reservation.Shadow || !f.Killed {
					t.Errorf("kill: %+v, %v", f, err)
				}
			})
			wg.Go(func() {
				_, err := r.store.Move(t.Context(), reservation.FenceMove{From: st, To: reservation.Cutover, Audit: by("m")})
				var stale *reservation.FenceError
				if err != nil && !errors.As(err, &stale) {
					t.Errorf("move: %v", err)
				}
			})
		}
		wg.Wait()
		f, list := r.fence(), r.audit()
		if f.Stage != reservation.Shadow || !f.Killed || int(f.Epoch)-9 != len(list) || len(list) > 2 {
			t.Fatalf("round %d: %+v after %+v", round, f, list)
		}
		for i, a := range list {
			if a.Before.Epoch != uint64(9+i) || a.After.Epoch != uint64(10+i) {
				t.Fatalf("audit: %+v", list)
			}
		}
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	from := stamp()
	for _, to := range []reservation.Stage{reservation.Handover, reservation.Cutover, reservation.Complete, reservation.Cutover, reservation.Shadow} {
		f, err := r.store.Move(t.Context(), reservation.FenceMove{From: from, To: to, Audit: by("m")})
		if err != nil || f.Stamp != at(from.Epoch+1, to) {
			t.Fatalf("to %s: %+v, %v", to, f, err)
		}
		_, err = r.store.Move(t.Context(), reservation.FenceMove{From: from, To: to, Audit: by("m")})
		if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.Stale || e.Fence.Stamp != f.Stamp {
			t.Fatalf("again: %v", e)
		}
		from = f.Stamp
	}
	_, err := r.store.Move(t.Context(), reservation.FenceMove{From: from, To: reservation.Complete, Audit: by("m")})
	wantAs[*reservation.InvalidError](t, err)
	_, err = r.store.Move(t.Context(), reservation.FenceMove{From: at(from.Epoch+1, from.Stage), To: reservation.Handover, Audit: by("m")})
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.Regressed {
		t.Fatal(e)
	}
	if list := r.audit(); len(list) != 5 || list[0].Action != reservation.ActionFlip || list[4].After != from {
		t.Fatalf("%+v", list)
	}
}

func TestRearm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.store.Rearm(t.Context(), stamp(), by("x"))
	wantIs(t, err, reservation.ErrNotLatched)
	if _, err := r.store.Kill(t.Context(), by("x")); err != nil {
		t.Fatal(err)
	}
	_, err = r.store.Rearm(t.Context(), at(6, reservation.Shadow), by("x"))
	wantAs[*reservation.FenceError](t, err)
	f, err := r.store.Rearm(t.Context(), stamp(), by("x"))
	if err != nil || f.Stamp != at(8, reservation.Shadow) || f.Killed {
		t.Fatalf("%+v, %v", f, err)
	}
	if list := r.audit(); len(list) != 2 || list[1].Action != reservation.ActionRearm || list[1].After != f.Stamp {
		t.Fatalf("%+v", list)
	}
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5, 5)
	try := func(key string, l ...reservation.Line) error {
		_, err := r.store.Reserve(t.Context(), stamp(), newID(t), request(t, key, time.Hour, l...))
		return err
	}
	first := r.reserve("first", line(1, 1))
	set := func(b reservation.Bucket, on bool) reservation.Fence {
		t.Helper()
		f, err := r.store.Freeze(t.Context(), b, on, by("x"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	set(bucket(1), true)
	set(bucket(11), true) // of which bucket(1) is a prefix, and nothing else
	if f := set(bucket(1), true); !cmp.Equal(f.FrozenBuckets, []reservation.Bucket{bucket(11), bucket(1)}) || f.Frozen {
		t.Fatalf("%+v", f)
	}
	wantIs(t, try("a", line(2, 1), line(1, 1)), reservation.ErrFrozen)
	if err := try("b", line(2, 1)); err != nil {
		t.Fatalf("another bucket: %v", err)
	}
	if again := r.reserve("first", line(1, 1)); !again.Replayed {
		t.Fatal("a replay is no new decision")
	}
	if _, err := r.release(first.Record.ID); err != nil {
		t.Fatal(err)
	}
	set(bucket(1), false)
	if err := try("a", line(1, 1)); err != nil {
		t.Fatal(err)
	}
	set(reservation.Bucket{}, true)
	wantIs(t, try("c", line(2, 1)), reservation.ErrFrozen)
	if f := set(reservation.Bucket{}, false); f.Frozen || len(f.FrozenBuckets) != 1 {
		t.Fatalf("%+v", f)
	}
	var actions []string
	for _, a := range r.audit() {
		actions = append(actions, a.Action+" "+a.Detail)
	}
	want := []string{"freeze bucket 1:1:1", "freeze bucket 1:11:1", "unfreeze bucket 1:1:1", "freeze ", "unfreeze "}
	if diff := cmp.Diff(want, actions); diff != "" {
		t.Fatal(diff)
	}
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, hb := range []reservation.Heartbeat{
		{Router: "b", Stamp: stamp(), Cut: true, Queue: 3, Breaker: "half-open", Skipped: 7},
		{Router: "a", Breaker: "none"}, // it knows no fence yet
	} {
		if f, err := r.store.Beat(t.Context(), hb); err != nil || f.Stamp != stamp() {
			t.Fatalf("%+v, %v", f, err)
		}
	}
	list, err := r.store.Routers(t.Context(), time.Minute)
	if err != nil || len(list) != 2 || list[0].Router != "a" || list[0].Stamp != (reservation.Stamp{}) {
		t.Fatalf("%+v, %v", list, err)
	}
	b := list[1]
	if b.Stamp != stamp() || !b.Cut || b.Queue != 3 || b.Breaker != "half-open" || b.Skipped != 7 || b.Ago < 0 || b.Ago > time.Minute {
		t.Fatalf("%+v", b)
	}
	if err := r.raw.HSet(t.Context(), r.key("routers"), "old", "1 {}").Err(); err != nil {
		t.Fatal(err)
	}
	if list, err = r.store.Routers(t.Context(), time.Minute); err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := r.store.Leave(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if names := r.raw.HKeys(t.Context(), r.key("routers")).Val(); !cmp.Equal(names, []string{"a"}) {
		t.Fatalf("left: %v", names)
	}
}

// A kill is a few bytes, and goes through where Redis takes no other write.
func TestI8KillWithoutMemory(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t)
	r.stock(10)
	r.inStage(at(9, reservation.Cutover))
	r.config("maxmemory", "1")
	f, err := r.store.Kill(t.Context(), by("x"))
	if err != nil || f.Stamp != at(10, reservation.Shadow) || !f.Killed {
		t.Fatalf("%+v, %v", f, err)
	}
	// And a latch that was there before is folded.
	r.config("maxmemory", "0")
	r.inStage(at(11, reservation.Cutover))
	r.config("maxmemory", "1")
	_, err = r.store.Reserve(t.Context(), at(11, reservation.Cutover), newID(t), request(t, "k", time.Hour, line(1, 1)))
	if e := wantAs[*reservation.FenceError](t, err); e.Fence.Stamp != at(12, reservation.Shadow) {
		t.Fatal(e)
	}
}
