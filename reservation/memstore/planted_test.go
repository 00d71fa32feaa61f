package memstore_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/memstore"
	"github.com/twinhold/twinhold/reservation/storetest"
)

// A suite that cannot fail is a bug. Here faults are planted in a store, and the suite must find each, in the case
// that is named for it.

// faultVariable names the fault of the child process that TestPlanted runs the suite in.
const faultVariable = "TWINHOLD_PLANTED_FAULT"

// fault is a store with one mistake.
type fault struct {
	wrap func(*memstore.Store) reservation.Store
	// caughtBy are the cases that must fail.
	caughtBy []string
}

func faults() map[string]fault {
	return map[string]fault{
		"off_by_one": {
			func(s *memstore.Store) reservation.Store { return offByOne{s} },
			[]string{"I1/two_buyers_7_and_6_of_10", "I1/line_of_74215_pieces"},
		},
		"last_unit_sold_twice": {
			func(s *memstore.Store) reservation.Store { return &oneMore{Store: s} },
			[]string{"I1/last_unit", "I1/50_buyers_for_10_units"},
		},
		"lost_release": {
			func(s *memstore.Store) reservation.Store { return lostRelease{s} },
			[]string{"I5/release_twice", "I9/replay_after_release", "I6_lost/release_before_commit_cut"},
		},
		"double_claim": {
			func(s *memstore.Store) reservation.Store { return doubleClaim{s} },
			[]string{"I6/claim_deducts_once", "I6/claim_50_times_at_once", "I6_lost/claim_after_commit_cut"},
		},
		"retry_is_a_new_request": {
			func(s *memstore.Store) reservation.Store { return newEachTime{s} },
			[]string{"I9/one_key_twice", "I9/one_key_50_times_at_once", "I6_lost/reserve_after_commit_cut"},
		},
		"lines_one_by_one": {
			func(s *memstore.Store) reservation.Store { return lineByLine{s} },
			[]string{"I1/all_or_nothing_2_and_4_of_5_and_3"},
		},
		"keys_fold_case": {
			func(s *memstore.Store) reservation.Store { return foldedKeys{s, strings.ToLower} },
			[]string{"I9/keys_differ_byte_for_byte"},
		},
		"keys_are_trimmed": {
			func(s *memstore.Store) reservation.Store {
				return foldedKeys{s, func(k string) string { return strings.TrimRight(k, " ") }}
			},
			[]string{"I9/keys_differ_byte_for_byte"},
		},
		"fence_is_not_asked": {
			func(s *memstore.Store) reservation.Store { return unfenced{s} },
			[]string{"fence/stale", "fence/regressed", "fence/same_epoch_other_stage"},
		},
		"rejection_is_not_kept": {
			func(s *memstore.Store) reservation.Store { return forgetfulRejection{s} },
			[]string{"I9/rejection_replays_after_stock_arrived"},
		},
		"expiry_gives_back_twice": {
			func(s *memstore.Store) reservation.Store { return doubleExpiry{s} },
			[]string{"I5/expiry_gives_units_back_once"},
		},
		"other_shops_are_served": {
			func(s *memstore.Store) reservation.Store { return anyShop{s} },
			[]string{"I5/another_shops_id_is_not_found"},
		},
		"late_claims_are_not_told": {
			func(s *memstore.Store) reservation.Store { return silentLate{s} },
			[]string{"I1_late/available_after_the_sweep"},
		},
		"release_after_claim_passes": {
			func(s *memstore.Store) reservation.Store { return politeRelease{s} },
			[]string{"I5/release_of_a_claimed_one_is_a_conflict", "I5/release_against_claim"},
		},
		"busy_reaches_the_caller": {
			func(s *memstore.Store) reservation.Store { return &sometimesBusy{Store: s} },
			[]string{"I1/opposite_order_50_callers"},
		},
		"figures_are_read_and_written_apart": {
			func(s *memstore.Store) reservation.Store { return lostUpdate{s} },
			[]string{"I5/release_twice_at_once", "I5/release_against_claim"},
		},
	}
}

// sound is no fault: the suite must pass, or its failures above would mean nothing.
const sound = "none"

// TestSuiteFindsPlantedFaults runs the suite in a child process for each fault, and wants it to fail where it should.
func TestSuiteFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	if os.Getenv(faultVariable) != "" {
		t.Skip("this process is a child that carries a planted fault")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Run(sound, func(t *testing.T) {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestPlanted$/^(I6_lost|I6|I9|I3|fence|refused|I1_late)$", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), faultVariable+"="+sound, "TWINHOLD_SOAK=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("the suite fails with nothing planted: %v\n%s", err, out)
		}
	})
	for name, f := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, want := range f.caughtBy {
				group, test, _ := strings.Cut(want, "/")
				pattern := "^TestPlanted$/^" + group + "$/^(" + test + ")$"
				cmd := exec.CommandContext(t.Context(), exe, "-test.run="+pattern, "-test.v", "-test.timeout=5m")
				cmd.Env = append(os.Environ(), faultVariable+"="+name, "TWINHOLD_SOAK=")
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				if err == nil || !strings.Contains(out.String(), "--- FAIL: TestPlanted/"+want+" ") {
					t.Errorf("with %q planted, %s does not fail:\n%s", name, want, out.String())
				}
			}
		})
	}
}

// TestPlanted is the suite on a store with a fault. It only runs in the child.
func TestPlanted(t *testing.T) {
	name := os.Getenv(faultVariable)
	f, ok := faults()[name]
	if name == sound {
		f, ok = fault{wrap: func(s *memstore.Store) reservation.Store { return s }}, true
	}
	if !ok {
		t.Skip("runs in the children of TestSuiteFindsPlantedFaults only")
	}
	storetest.Run(t, func(t *testing.T, cfg storetest.Config) *storetest.Harness {
		t.Helper()
		h := harness(t, cfg, f.wrap)
		delete(h.Unsupported, storetest.LostReplies)
		h.Lossy = func(*testing.T) *storetest.Lossy {
			l := &forgetful{Store: h.Store}
			return &storetest.Lossy{Store: l, Arm: l.arm}
		}
		return h
	})
}

// forgetful loses the word of one operation. It stands in for the proxy of a real store, so that the cases of lost
// replies can be seen to fail too; no store is tested through it.
type forgetful struct {
	reservation.Store
	armed, fired bool
	loss         storetest.Loss
}

func (f *forgetful) arm(_ reservation.Op, loss storetest.Loss) (func() int, error) {
	f.armed, f.fired, f.loss = true, false, loss
	return func() int {
		if f.fired {
			return 1
		}
		return 0
	}, nil
}

// lose carries the operation out, unless it is lost before, and answers that nobody knows.
func (f *forgetful) lose(op reservation.Op, do func() error) error {
	if !f.armed {
		return do()
	}
	f.armed, f.fired = false, true
	if f.loss.Committed {
		if err := do(); err != nil {
			return err
		}
	}
	return &reservation.UnknownOutcomeError{Store: reservation.MySQL, Op: op, Cause: io.ErrUnexpectedEOF}
}

func (f *forgetful) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (res reservation.Result, err error) {
	err = f.lose(reservation.OpReserve, func() (err error) {
		res, err = f.Store.Reserve(ctx, st, id, req)
		return err
	})
	return res, err
}

func (f *forgetful) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (res reservation.ClaimResult, err error) {
	err = f.lose(reservation.OpClaim, func() (err error) {
		res, err = f.Store.Claim(ctx, st, shop, id)
		return err
	})
	return res, err
}

func (f *forgetful) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (res reservation.ReleaseResult, err error) {
	err = f.lose(reservation.OpRelease, func() (err error) {
		res, err = f.Store.Release(ctx, st, shop, id)
		return err
	})
	return res, err
}

func (f *forgetful) Adjust(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (res reservation.AdjustResult, err error) {
	err = f.lose(reservation.OpAdjust, func() (err error) {
		res, err = f.Store.Adjust(ctx, st, adj)
		return err
	})
	return res, err
}

// offByOne takes one unit less than was asked for, where more than one was.
type offByOne struct{ *memstore.Store }

func (s offByOne) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	lines := append([]reservation.Line(nil), req.Lines...)
	if lines[0].Quantity > 1 {
		lines[0].Quantity--
	}
	req.Lines = lines
	return s.Store.Reserve(ctx, st, id, req)
}

// oneMore finds one more unit each time something is sold out.
type oneMore struct {
	*memstore.Store
	mu sync.Mutex
	n  int
}

func (s *oneMore) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	a, err := s.Availability(ctx, req.Lines[0].Bucket(req.Shop))
	if err == nil && a.Available == 0 && a.OnHand > 0 {
		s.mu.Lock()
		s.n++
		adj := reservation.Adjustment{ID: strings.Repeat("x", s.n%200) + id.String(), Bucket: a.Bucket, Delta: 1}
		s.mu.Unlock()
		if _, err := s.Adjust(ctx, st, adj); err != nil {
			return reservation.Result{}, err
		}
	}
	return s.Store.Reserve(ctx, st, id, req)
}

// lostRelease answers and does nothing.
type lostRelease struct{ *memstore.Store }

func (s lostRelease) Release(ctx context.Context, _ reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	rec, err := s.Get(ctx, shop, id)
	rec.State = reservation.Released
	return reservation.ReleaseResult{Record: rec}, err
}

// doubleClaim deducts again on a replay.
type doubleClaim struct{ *memstore.Store }

func (s doubleClaim) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	res, err := s.Store.Claim(ctx, st, shop, id)
	if err == nil && res.Replayed {
		again, _ := reservation.NewID()
		_, err = s.Adjust(ctx, st, reservation.Adjustment{
			ID: again.String(), Bucket: res.Record.Lines[0].Bucket(shop), Delta: -res.Record.Lines[0].Quantity, Force: true,
		})
	}
	return res, err
}

// newEachTime forgets the key.
type newEachTime struct{ *memstore.Store }

func (s newEachTime) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	req.Key += id.String()
	return s.Store.Reserve(ctx, st, id, req)
}

// lineByLine keeps the lines that it got before one was short.
type lineByLine struct{ *memstore.Store }

func (s lineByLine) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	res, err := s.Store.Reserve(ctx, st, id, req)
	if err != nil || res.Record.Outcome != reservation.RejectedShort || len(req.Lines) < 2 {
		return res, err
	}
	for _, l := range req.Lines {
		one, _ := reservation.NewID()
		part := req
		part.Key, part.Lines = one.String(), []reservation.Line{l}
		if _, err := s.Store.Reserve(ctx, st, one, part); err != nil {
			return res, err
		}
	}
	return res, nil
}

// foldedKeys takes different keys for one.
type foldedKeys struct {
	*memstore.Store
	fold func(string) string
}

func (s foldedKeys) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	req.Key = s.fold(req.Key)
	return s.Store.Reserve(ctx, st, id, req)
}

// unfenced carries out whatever the caller's epoch is.
type unfenced struct{ *memstore.Store }

func (s unfenced) Reserve(ctx context.Context, _ reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	f, err := s.ReadFence(ctx)
	if err != nil {
		return reservation.Result{}, err
	}
	return s.Store.Reserve(ctx, f.Stamp, id, req)
}

// forgetfulRejection decides a rejected key afresh.
type forgetfulRejection struct{ *memstore.Store }

func (s forgetfulRejection) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	res, err := s.Store.Reserve(ctx, st, id, req)
	if err == nil && res.Replayed && res.Record.Outcome == reservation.RejectedShort {
		req.Key += id.String()
		return s.Store.Reserve(ctx, st, id, req)
	}
	return res, err
}

// doubleExpiry brings the units back twice.
type doubleExpiry struct{ *memstore.Store }

func (s doubleExpiry) Sweep(ctx context.Context, st reservation.Stamp, limit int) (reservation.SweepResult, error) {
	res, err := s.Store.Sweep(ctx, st, limit)
	for _, rec := range res.Expired {
		adj := reservation.Adjustment{ID: rec.ID.String(), Bucket: rec.Lines[0].Bucket(rec.Shop), Delta: rec.Lines[0].Quantity}
		if _, err := s.Adjust(ctx, st, adj); err != nil {
			return res, err
		}
	}
	return res, err
}

// anyShop finds an id wherever it is.
type anyShop struct{ *memstore.Store }

func (s anyShop) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	snap, err := s.Inspect(ctx)
	if err != nil {
		return reservation.ClaimResult{}, err
	}
	for _, rec := range snap.Records {
		if rec.ID == id {
			shop = rec.Shop
		}
	}
	return s.Store.Claim(ctx, st, shop, id)
}

// silentLate says that every claim was in time.
type silentLate struct{ *memstore.Store }

func (s silentLate) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	res, err := s.Store.Claim(ctx, st, shop, id)
	res.Late = false
	return res, err
}

// politeRelease tells everybody that it worked.
type politeRelease struct{ *memstore.Store }

func (s politeRelease) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	res, err := s.Store.Release(ctx, st, shop, id)
	if reservation.DecisionOf(err) == reservation.StateConflict {
		rec, err := s.Get(ctx, shop, id)
		rec.State = reservation.Released
		return reservation.ReleaseResult{Record: rec, Replayed: true}, err
	}
	return res, err
}

// sometimesBusy lets a collision through to the caller.
type sometimesBusy struct {
	*memstore.Store
	mu sync.Mutex
	n  int
}

func (s *sometimesBusy) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	s.mu.Lock()
	s.n++
	busy := s.n%100 == 0
	s.mu.Unlock()
	if busy {
		return reservation.Result{}, reservation.ErrBusy
	}
	return s.Store.Reserve(ctx, st, id, req)
}

// lostUpdate looks first and acts later, so that two at once both act: the release of a hold that a claim took in
// between, or two releases, give units back that are not there.
type lostUpdate struct{ *memstore.Store }

func (s lostUpdate) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	before, err := s.Get(ctx, shop, id)
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	for range 100 {
		runtime.Gosched() // the window, as wide as a round trip to a server
	}
	res, err := s.Store.Release(ctx, st, shop, id)
	after, again := reservation.NewID()
	if before.State == reservation.Held && again == nil && (err != nil || res.Replayed) {
		// Somebody else was first, and this one does not notice.
		adj := reservation.Adjustment{ID: after.String(), Bucket: before.Lines[0].Bucket(shop), Delta: before.Lines[0].Quantity}
		if _, err := s.Adjust(ctx, st, adj); err != nil {
			return res, err
		}
		before.State = reservation.Released
		return reservation.ReleaseResult{Record: before}, nil
	}
	return res, err
}
