package replay_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/internal/replay"
	"github.com/twinhold/twinhold/reservation"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{}) }

// open sets up a pod in shadow on servers of its own.
func open(t *testing.T, wrap func(reservation.Mirror) reservation.Mirror) *podset.Set {
	t.Helper()
	pods, _ := podsettest.Pods(t, 1)
	set := podsettest.Open(t, pods, podset.Options{Wrap: wrap})
	set.Router.Start()
	return set
}

func day(t *testing.T, name string) loadgen.Recording {
	t.Helper()
	rec, err := loadgen.ReadFile(filepath.Join("..", "..", "testdata", "traffic", name))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

const (
	dec05 = "online-retail-2011-12-05.csv"
	dec06 = "online-retail-2011-12-06.csv"
)

func run(t *testing.T, set *podset.Set, opt loadgen.PlanOptions, clients int, recs ...loadgen.Recording) replay.Result {
	t.Helper()
	opt.Shop, opt.ExpireTTL = 1, 2*time.Second
	plan, err := loadgen.NewPlan(opt, recs...)
	if err != nil {
		t.Fatal(err)
	}
	return send(t, set, plan, replay.Options{Clients: clients, KeyPrefix: opt.KeyPrefix})
}

func send(t *testing.T, set *podset.Set, plan loadgen.Plan, opt replay.Options) replay.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	res, err := replay.Run(ctx, set, set.Pods[0], plan, opt)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func wantOK(t *testing.T, res replay.Result) {
	t.Helper()
	if !res.OK {
		t.Errorf("not ok: %q", res.Problems)
	}
	for _, name := range []string{"I1", "I2", "I3", "I4", "I5", "I6", "I11"} {
		if res.Invariants[name] != "ok" {
			t.Errorf("%s is %q", name, res.Invariants[name])
		}
	}
	if res.Unexplained != 0 || res.Gaps.Total != 0 || res.Compared != res.Operations {
		t.Errorf("%d of %d compared, gaps %v, %d unexplained", res.Compared, res.Operations, res.Gaps.ByReason, res.Unexplained)
	}
}

func TestI1ToI6AndI11OverRecordedDays(t *testing.T) {
	set := open(t, nil)
	repeat := 2
	if devtest.Soak() {
		repeat = 20
	}
	for _, name := range []string{dec05, dec06} {
		res := run(t, set, loadgen.PlanOptions{Stock: loadgen.Scarce(), Repeat: repeat, KeyPrefix: name}, 32, day(t, name))
		wantOK(t, res)
		rejected := float64(res.Carts.Rejected) / float64(res.Carts.Granted+res.Carts.Rejected)
		if rejected < 0.1 || rejected > 0.6 {
			t.Errorf("%s: %.0f%% of carts rejected, want 10%% to 60%%", name, 100*rejected)
		}
		for _, s := range res.Samples {
			if s.Explanation.Kind == diff.Race && (len(s.Explanation.Overlapping) == 0 || len(s.Explanation.Buckets) == 0) {
				t.Errorf("a race without evidence: %v", s)
			}
		}
		t.Logf("%s: %d operations, %v, explained %v", name, res.Operations, res.Verdicts, res.Explained)
	}
}

func TestPlentyRejectsNothing(t *testing.T) {
	set := open(t, nil)
	res := run(t, set, loadgen.PlanOptions{Stock: loadgen.Plenty()}, 16, day(t, dec05), day(t, dec06))
	wantOK(t, res)
	if res.Reserve.Rejected != 0 {
		t.Errorf("%d rejected though stock covers all demand", res.Reserve.Rejected)
	}
}

func TestResultHasTheKeysOthersRelyOn(t *testing.T) {
	b, err := json.Marshal(replay.Result{})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"operations", "reserve", "claim", "release", "compared", "gaps", "verdicts", "explained", "unexplained", "invariants", "latency_ms", "ok",
	} {
		if _, ok := got[key]; !ok {
			t.Errorf("the JSON of replay lacks %q", key)
		}
	}
}

// offByOne is a mirror that grants what is one unit short: "available + 1 >= requested", the classical slip.
type offByOne struct {
	inner   reservation.Mirror
	planted atomic.Int64
}

func (o *offByOne) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	j, err := o.inner.Mirror(ctx, st, op)
	if err != nil || op.Op != reservation.OpReserve || op.Replayed || op.Decision != reservation.RejectedShort {
		return j, err
	}
	short := op.Record.Shortages[0]
	if short.Requested-short.Available != 1 || j.Decision != reservation.RejectedShort {
		return j, nil
	}
	o.planted.Add(1)
	j.Decision = reservation.Granted
	for _, s := range op.Record.Shortages {
		j.Levels = append(j.Levels, reservation.Level{
			Bucket: reservation.Bucket{Shop: op.Record.Shop, Item: s.Item, Group: s.Group}, Available: s.Available,
		})
	}
	return j, nil
}

func TestPlantedOffByOneStaysUnexplained(t *testing.T) {
	planted := &offByOne{}
	set := open(t, func(m reservation.Mirror) reservation.Mirror {
		planted.inner = m
		return planted
	})
	plan, err := loadgen.Mixed(loadgen.MixedOptions{Seed: 7, Shop: 1, Carts: 2000, Buckets: 5, MaxLines: 1, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	res := send(t, set, plan, replay.Options{Clients: 32, WaitExpiry: time.Millisecond})
	if planted.planted.Load() == 0 {
		t.Fatal("the fault never showed: the workload does not come within one unit of the end")
	}
	if res.Unexplained != planted.planted.Load() || res.OK {
		t.Errorf("the fault showed %d times, unexplained %d, ok %v", planted.planted.Load(), res.Unexplained, res.OK)
	}
	for _, s := range res.Samples {
		if s.Explanation.Kind == diff.None && s.Verdict != diff.OversellRisk.String() {
			t.Errorf("an unexplained %s, want oversell_risk: %v", s.Verdict, s)
		}
	}
}
