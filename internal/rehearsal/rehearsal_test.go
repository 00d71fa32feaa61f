package rehearsal_test

import (
	"context"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/internal/rehearsal"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{}) }

func TestI1I5I6I7APodIsFlippedAndKilledUnderLoad(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	pods.Config.Gates.MinCompared = 20
	first := podsettest.Open(t, pods, podset.Options{Router: "router-1"})
	first.Router.Start()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	res, err := rehearsal.Run(ctx, rehearsal.Options{
		Config: pods.Config, Pod: "pod-1", First: first, Hold: time.Second,
		Phase: func(line string) { t.Log(time.Now().Format("15:04:05.0"), line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := res.WriteText(t.Output()); err != nil {
		t.Fatal(err)
	}
	if err := res.Err(); err != nil {
		t.Error(err)
	}
	if res.Kept.Claimed != res.Kept.Held || res.Kept.Held == 0 {
		t.Errorf("I7: %d holds from before, %d claimed", res.Kept.Held, res.Kept.Claimed)
	}
	if res.Buyers.Granted["mysql"] == 0 || res.Buyers.Granted["redis"] == 0 {
		t.Errorf("granted %v: both stores should have decided", res.Buyers.Granted)
	}
}
