package replay_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/internal/replay"
	"github.com/twinhold/twinhold/reservation"
)

func mixed(t *testing.T, seed uint64) loadgen.Plan {
	t.Helper()
	plan, err := loadgen.Mixed(loadgen.MixedOptions{Seed: seed, Shop: 1, Carts: 300, Buckets: 5, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func optionsFor(plan loadgen.Plan) replay.Options {
	return replay.Options{Clients: 16, KeyPrefix: plan.Carts[0].Key + "-", WaitExpiry: time.Millisecond}
}

// Records that the mirror has lost, with no gap that says so, are a difference: catch-up mends them and the run is not ok.
func TestRecordsLostByTheMirrorAreUnexplained(t *testing.T) {
	set := open(t, nil)
	plan := mixed(t, 1)
	opt := optionsFor(plan)
	var deleted int64
	opt.Phase = func(what string) {
		if !strings.HasPrefix(what, "waiting for the mirror") {
			return
		}
		if err := set.Pods[0].Router.Queue().Drain(t.Context()); err != nil {
			t.Error(err)
		}
		res, err := set.Pods[0].MySQL.DB().ExecContext(t.Context(), "DELETE FROM reservations WHERE state = 'rejected' LIMIT 7")
		if err != nil {
			t.Error(err)
			return
		}
		deleted, _ = res.RowsAffected() // MySQL always knows
	}
	res := send(t, set, plan, opt)
	if deleted != 7 {
		t.Fatalf("%d records deleted, want 7: the workload rejects too little", deleted)
	}
	if res.OK || res.Unexplained != 7 || res.CatchUp.Repaired["missing"] != 7 {
		t.Errorf("ok %v, unexplained %d, repaired %v: want not ok, 7 and 7", res.OK, res.Unexplained, res.CatchUp.Repaired)
	}
}

// Claims that a dead process left pinned, and holds that the mirror never heard of, are the backlog of earlier runs.
func TestBacklogIsClearedBeforeTheRun(t *testing.T) {
	pods, stack := podsettest.Pods(t, 1)
	pods.Config.Tuning.PinLease = 2 * time.Second
	set := podsettest.Open(t, pods, podset.Options{})
	b := reservation.Bucket{Shop: 1, Item: 1000, Group: 1}
	if _, _, err := set.Pods[0].Stock(t.Context(), []reservation.Stocking{{Bucket: b, Quantity: 100}}); err != nil {
		t.Fatal(err)
	}
	direct := set.Pods[0].Redis // what goes past the router, the mirror does not hear of
	for n := range 5 {
		req, err := reservation.NewRequest(1, "before-"+string(rune('a'+n)), []reservation.Line{{Item: 1000, Group: 1, Quantity: 1}}, time.Minute, reservation.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		id, err := reservation.NewID()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Reserve(t.Context(), set.Pods[0].Router.Stamp(), id, req); err != nil {
			t.Fatal(err)
		}
		if n < 2 {
			pinWithoutLedger(t, stack.MySQL.Pause, stack.MySQL.Resume, set, id)
		}
	}
	set.Router.Start()
	plan := mixed(t, 2)
	res := send(t, set, plan, optionsFor(plan))
	wantOK(t, res)
	if got := res.Backlog.Repaired["lost"]; got != 3 {
		t.Errorf("backlog %v, want 3 lost holds", res.Backlog.Repaired)
	}
}

// pinWithoutLedger claims while MySQL is stopped: the pin stays.
func pinWithoutLedger(t *testing.T, pause, resume func() error, set *podset.Set, id reservation.ID) {
	t.Helper()
	if err := pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := set.Pods[0].Redis.Claim(ctx, set.Pods[0].Router.Stamp(), 1, id); reservation.CodeOf(err) != reservation.CodeUnavailable {
		t.Errorf("a claim without its ledger gave %v", err)
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
}

func TestOneReplayAtATime(t *testing.T) {
	set := open(t, nil)
	plan := mixed(t, 3)
	opt := optionsFor(plan)
	tried := false
	opt.Phase = func(string) {
		if tried {
			return
		}
		tried = true
		if _, err := replay.Run(t.Context(), set, set.Pods[0], mixed(t, 4), replay.Options{}); !errors.Is(err, replay.ErrTaken) {
			t.Errorf("a second replay gave %v, want %v", err, replay.ErrTaken)
		}
	}
	wantOK(t, send(t, set, plan, opt))
	devtest.Until(t, "the lease is given back", func() bool {
		n, err := set.Pods[0].Client().Exists(t.Context(), "{pod-1}:replay").Result()
		return err == nil && n == 0
	})
}
