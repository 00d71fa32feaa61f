package loadgen_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/reservation"
)

func recordedDays(t testing.TB) []string {
	t.Helper()
	days, err := filepath.Glob("../../testdata/traffic/*.csv")
	if err != nil || len(days) < 2 {
		t.Fatalf("recorded days: %v, %v", days, err)
	}
	return days
}

func readDay(t testing.TB, path string) loadgen.Recording {
	t.Helper()
	rec, err := loadgen.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func mustPlan(t testing.TB, o loadgen.PlanOptions, recs ...loadgen.Recording) loadgen.Plan {
	t.Helper()
	p, err := loadgen.NewPlan(o, recs...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t testing.TB, p loadgen.Plan, m *model, o loadgen.Options) loadgen.Stats {
	t.Helper()
	s, err := loadgen.Run(context.Background(), p, m, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Of each recorded day, alone or many times at once, scarce stock rejects 20 to 60% of the carts, plenty none.
func TestScarceAndPlentyOnRecordedDays(t *testing.T) {
	for _, day := range recordedDays(t) {
		rec := readDay(t, day)
		for repeat, clients := range map[int]int{1: 1, 20: 32} {
			t.Run(fmt.Sprintf("%s/repeat=%d/clients=%d", filepath.Base(day), repeat, clients), func(t *testing.T) {
				t.Parallel()
				o := loadgen.PlanOptions{Shop: 1, Repeat: repeat, Stock: loadgen.Scarce()}
				p := mustPlan(t, o, rec)
				s := run(t, p, newModel(p.Stock), loadgen.Options{Clients: clients})
				share := 100 * float64(s.Carts.Rejected) / float64(s.Carts.Rejected+s.Carts.Granted)
				t.Logf("scarce: %.1f%% of %d carts rejected", share, len(p.Carts))
				if share < 20 || share > 60 {
					t.Errorf("scarce: %.1f%% of carts rejected, want 20 to 60%%", share)
				}
				wholeRun(t, p, s)

				o.Stock = loadgen.Plenty()
				p = mustPlan(t, o, rec)
				s = run(t, p, newModel(p.Stock), loadgen.Options{Clients: clients})
				if s.Reserve.Rejected != 0 || s.Adjust.Refused != 0 || s.NotSent != 0 {
					t.Errorf("plenty: %d rejected, %d write-offs refused, %d not sent; want none", s.Reserve.Rejected, s.Adjust.Refused, s.NotSent)
				}
				wholeRun(t, p, s)
			})
		}
	}
}

// wholeRun: every event has an answer, and nothing went wrong that a healthy target does not do.
func wholeRun(t *testing.T, p loadgen.Plan, s loadgen.Stats) {
	t.Helper()
	if s.Operations+s.NotSent != len(p.Events) {
		t.Errorf("%d operations + %d not sent, want %d events", s.Operations, s.NotSent, len(p.Events))
	}
	if len(s.Errors) > 0 || len(s.Disagreements) > 0 || s.Reserve.Unknown+s.Claim.Unknown+s.Release.Unknown+s.Adjust.Unknown > 0 {
		js, err := json.Marshal(s)
		t.Errorf("not a healthy run: %s %v", js, err)
	}
	if s.Claim.Conflict+s.Release.Conflict > 0 {
		t.Errorf("%d claims and %d releases in conflict, want none", s.Claim.Conflict, s.Release.Conflict)
	}
}

var errLost = &reservation.UnknownOutcomeError{Store: reservation.Redis, Op: reservation.OpReserve, Cause: errors.New("reply lost")}
