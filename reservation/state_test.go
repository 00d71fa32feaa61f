package reservation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twinhold/twinhold/reservation"
)

func TestStatesAndStagesReadBack(t *testing.T) {
	t.Parallel()
	for _, s := range reservation.States() {
		if back, err := reservation.ParseState(s.String()); err != nil || back != s || !s.Valid() {
			t.Errorf("ParseState(%q) = %v, %v", s, back, err)
		}
		if s.Final() == s.TakesUnits() || s.Live() && !s.TakesUnits() {
			t.Errorf("%s: final %t, takes units %t, live %t", s, s.Final(), s.TakesUnits(), s.Live())
		}
	}
	for _, s := range reservation.Stages() {
		if back, err := reservation.ParseStage(s.String()); err != nil || back != s || !s.Valid() {
			t.Errorf("ParseStage(%q) = %v, %v", s, back, err)
		}
	}
	var state reservation.State
	var stage reservation.Stage
	if state.Valid() || stage.Valid() || state.Final() || state.Rank() != 0 {
		t.Error("zero is valid")
	}
	if _, err := reservation.ParseState("HELD"); err == nil {
		t.Error("a state's name is read in capitals")
	}
	if _, err := reservation.ParseStage(""); err == nil || !strings.Contains(err.Error(), "use legacy") {
		t.Errorf("an empty stage: %v", err)
	}
}

// TestMerge: between the stores the higher rank wins, whoever is the truth; held against rejected is the truth's.
func TestMerge(t *testing.T) {
	t.Parallel()
	states := append([]reservation.State{0}, reservation.States()...)
	for _, a := range states {
		for _, b := range states {
			got := reservation.Merge(a, b)
			if got != a && got != b {
				t.Errorf("Merge(%s, %s) = %s, which is neither", a, b, got)
			}
			contested := a.Live() && b == reservation.Rejected || a == reservation.Rejected && b.Live()
			if contested {
				if got != a {
					t.Errorf("Merge(%s, %s) = %s; the truth had %s", a, b, got, a)
				}
				continue
			}
			if got.Rank() != max(a.Rank(), b.Rank()) {
				t.Errorf("Merge(%s, %s) = %s: a higher rank lost", a, b, got)
			}
			if a.Rank() == b.Rank() && got != a {
				t.Errorf("Merge(%s, %s) = %s: equal ranks go to the truth", a, b, got)
			}
			if again := reservation.Merge(got, b); again.Rank() != got.Rank() {
				t.Errorf("merging %s and %s twice gives %s, then %s", a, b, got, again)
			}
		}
	}
}

// TestStepsMoveUp: no step of a life leads to a lower rank, but the contested one, and the pin of a late claim, which
// takes units again.
func TestStepsMoveUp(t *testing.T) {
	t.Parallel()
	for _, from := range reservation.States() {
		for _, to := range reservation.States() {
			again := from == reservation.Rejected && to == reservation.Held || from == reservation.Expired && to == reservation.Claiming
			down := to.Rank() < from.Rank() && !again
			if from.CanBecome(to) && (down || from == to) {
				t.Errorf("%s can become %s", from, to)
			}
		}
	}
	for _, s := range []reservation.State{reservation.Claimed, reservation.Released, reservation.Refused} {
		for _, to := range reservation.States() {
			if s.CanBecome(to) {
				t.Errorf("%s, which is final for good, can become %s", s, to)
			}
		}
	}
}

func TestEveryStageRoutesEveryOperation(t *testing.T) {
	t.Parallel()
	for _, s := range reservation.Stages() {
		for _, o := range reservation.Ops() {
			r := s.Route(o)
			if r.Decides != reservation.Redis && r.Decides != reservation.MySQL || r.Mirror < reservation.Never || r.Mirror > reservation.Within {
				t.Errorf("%s of %s has the route %+v", o, s, r)
			}
			if r.Decides != s.Truth() {
				t.Errorf("%s of %s is decided by %s, but the truth is %s", o, s, r.Decides, s.Truth())
			}
			if s.DualWrite() && r.Mirror == reservation.Never {
				t.Errorf("%s is not mirrored in %s", o, s)
			}
		}
	}
	for _, bad := range []func(){
		func() { reservation.Stage(0).Route(reservation.OpClaim) },
		func() { reservation.Shadow.Route(0) },
		func() { reservation.Stage(9).Route(reservation.OpClaim) },
	} {
		if !panics(bad) {
			t.Error("an invalid stage or operation has a route")
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestMovesOfStages(t *testing.T) {
	t.Parallel()
	if reservation.Shadow.CanMoveTo(reservation.Cutover) {
		t.Error("shadow goes to cutover without handover: two stores could grant one unit")
	}
	if reservation.Complete.CanMoveTo(reservation.Shadow) || reservation.Stage(0).CanMoveTo(reservation.Legacy) {
		t.Error("a move that there is none of")
	}
	for _, c := range []struct {
		truth  reservation.Truth
		mirror bool
		want   reservation.Stage
	}{
		{reservation.Redis, false, reservation.Legacy},
		{reservation.Redis, true, reservation.Shadow},
		{reservation.MySQL, true, reservation.Cutover},
		{reservation.MySQL, false, reservation.Complete},
	} {
		if got := reservation.DeclaredStage(c.truth, c.mirror); got != c.want {
			t.Errorf("%s, mirror %t: %s; want %s", c.truth, c.mirror, got, c.want)
		}
	}
}

func TestCheckFence(t *testing.T) {
	t.Parallel()
	at := func(epoch uint64, stage reservation.Stage) reservation.Stamp {
		return reservation.Stamp{Epoch: epoch, Stage: stage}
	}
	for _, c := range []struct {
		caller, fence reservation.Stamp
		want          reservation.FenceVerdict // 0: let through
	}{
		{at(3, reservation.Shadow), at(3, reservation.Shadow), 0},
		{at(2, reservation.Shadow), at(3, reservation.Shadow), reservation.Stale},
		{at(2, reservation.Shadow), at(3, reservation.Handover), reservation.Stale},
		{at(4, reservation.Shadow), at(3, reservation.Shadow), reservation.Regressed},
		{at(3, reservation.Handover), at(3, reservation.Shadow), reservation.Regressed},
		{at(3, reservation.Shadow), at(0, 0), reservation.NoFence},
		{at(0, 0), at(0, 0), reservation.NoFence},
		{at(0, 0), at(1, reservation.Shadow), reservation.Stale},
	} {
		err := reservation.CheckFence(reservation.Redis, c.caller, reservation.Fence{Stamp: c.fence})
		var fe *reservation.FenceError
		switch {
		case c.want == 0 && err != nil:
			t.Errorf("%+v at %+v: %v", c.caller, c.fence, err)
		case c.want != 0 && (!errors.As(err, &fe) || fe.Verdict != c.want || fe.Caller != c.caller):
			t.Errorf("%+v at %+v: %v; want %s", c.caller, c.fence, err, c.want)
		case c.want == reservation.NoFence && !strings.Contains(err.Error(), "no fence"),
			c.want == reservation.Stale && !strings.Contains(err.Error(), "STALE"):
			t.Errorf("the message does not say it: %v", err)
		}
	}
}

func TestEachErrorHasItsCodeAndDecision(t *testing.T) {
	t.Parallel()
	b := reservation.Bucket{Shop: 1, Item: 2, Group: 3}
	cause := context.DeadlineExceeded
	for _, c := range []struct {
		err      error
		code     reservation.Code
		decision reservation.Decision
		says     string
	}{
		{&reservation.InvalidError{Field: "ttl", Reason: "is odd"}, reservation.CodeInvalidArgument, reservation.Undecided, "ttl is odd"},
		{&reservation.UnknownBucketError{Bucket: b}, reservation.CodeNotFound, reservation.UnknownBucket, "1:2:3"},
		{reservation.ErrNotFound, reservation.CodeNotFound, reservation.NotFound, "no such reservation"},
		{reservation.ErrKeyConflict, reservation.CodeAlreadyExists, reservation.KeyConflict, "use a new key"},
		{&reservation.ConflictError{Op: reservation.OpClaim, State: reservation.Released}, reservation.CodeFailedPrecondition, reservation.StateConflict, "cannot claim a released"},
		{&reservation.ShortError{Bucket: b, Asked: 5, Available: 2}, reservation.CodeFailedPrecondition, reservation.AdjustRefused, "cannot take 5 from bucket 1:2:3: only 2"},
		{reservation.ErrBusy, reservation.CodeUnavailable, reservation.Undecided, "retry with the same key"},
		{reservation.ErrFrozen, reservation.CodeUnavailable, reservation.Undecided, "frozen"},
		{&reservation.UnknownOutcomeError{Store: reservation.MySQL, Op: reservation.OpClaim, Cause: cause}, reservation.CodeUnavailable, reservation.Undecided, "outcome of claim in mysql is unknown"},
		{&reservation.UnavailableError{Store: reservation.Redis, Cause: cause}, reservation.CodeUnavailable, reservation.Undecided, "redis is unavailable"},
		{&reservation.FenceError{Store: reservation.Redis, Verdict: reservation.Stale}, reservation.CodeUnavailable, reservation.Undecided, "STALE"},
		{&reservation.CorruptError{Store: reservation.Redis, What: "a list"}, reservation.CodeInternal, reservation.Undecided, "corrupt"},
		{errors.New("a surprise"), reservation.CodeInternal, reservation.Undecided, "surprise"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			if got := reservation.CodeOf(err); got != c.code {
				t.Errorf("%v: code %s; want %s", err, got, c.code)
			}
			if got := reservation.DecisionOf(err); got != c.decision {
				t.Errorf("%v: decision %s; want %s", err, got, c.decision)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		}
	}
	if reservation.CodeOf(nil) != reservation.CodeOK {
		t.Error("no error has a code of its own")
	}
	for _, err := range []error{
		&reservation.UnknownOutcomeError{Cause: cause}, &reservation.UnavailableError{Cause: cause},
	} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%T hides its cause", err)
		}
	}
}

func TestNamesAreUniqueAndNeverEmpty(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for d := reservation.Granted; d <= reservation.Undecided; d++ {
		if s := d.String(); s == "" || seen[s] {
			t.Errorf("decision %d is called %q", d, s)
		} else {
			seen[s] = true
		}
	}
	for _, s := range []fmt.Stringer{
		reservation.Decision(0), reservation.Decision(99), reservation.State(99), reservation.Stage(99),
		reservation.Op(99), reservation.Truth(9), reservation.FenceVerdict(9),
	} {
		if s.String() == "" {
			t.Errorf("%T out of range has no name", s)
		}
	}
}
