package loadgen_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/reservation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustMixed(t testing.TB, o loadgen.MixedOptions) loadgen.Plan {
	t.Helper()
	p, err := loadgen.Mixed(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMixed(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 1, Shop: 4, Carts: 2000, Buckets: 3, Adjustments: 10})
	ops := make(map[reservation.Op]int)
	for _, e := range p.Events {
		ops[e.Op]++
	}
	if len(p.Carts) != 2000 || len(p.Stock) != 3 || ops[reservation.OpClaim] == 0 || ops[reservation.OpRelease] == 0 || ops[reservation.OpAdjust] < 100 {
		t.Errorf("%d carts, stock %v, ops %v", len(p.Carts), p.Stock, ops)
	}
	if p.Stock[0].Quantity <= p.Stock[1].Quantity || p.Stock[1].Quantity <= p.Stock[2].Quantity {
		t.Errorf("the first bucket is not the hottest: %v", p.Stock)
	}
	s := run(t, p, newModel(p.Stock), loadgen.Options{Clients: 8})
	if s.Carts.Rejected < 200 || s.Carts.Granted < 200 {
		t.Errorf("%+v", s.Carts)
	}
	wholeRun(t, p, s)
	for _, o := range []loadgen.MixedOptions{
		{}, {Shop: 1, Carts: -1}, {Shop: 1, Buckets: -1}, {Shop: 1, MaxLines: 1001}, {Shop: 1, MaxQuantity: 1 << 31}, {Shop: 1, StockEach: -1}, {Shop: 1, Adjustments: 101}, {Shop: 1, TTL: -1},
	} {
		if _, err := loadgen.Mixed(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// Nobody is told an outcome that is not one: a call without a decision is made again with the same key.
func TestLostRepliesAreAskedForAgain(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 2, Shop: 1, Carts: 300})
	m := newModel(p.Stock)
	lost := make(map[string]bool)
	m.after = func(op reservation.Op, key string) error {
		if k := op.String() + key; !lost[k] {
			lost[k] = true
			return errLost
		}
		return nil
	}
	s := run(t, p, m, loadgen.Options{Clients: 8, Backoff: time.Microsecond})
	wholeRun(t, p, s)
	if s.Retried < 300 {
		t.Errorf("%d further tries, want one per call", s.Retried)
	}
	if total := stockLeft(p) - left(m) - heldOrSold(m); total != 0 {
		t.Errorf("%d units are taken twice or lost", total)
	}
}

func stockLeft(p loadgen.Plan) (n int64) {
	for _, s := range p.Stock {
		n += s.Quantity
	}
	return n
}

func left(m *model) (n int64) {
	for _, q := range m.available {
		n += q
	}
	return n
}

func heldOrSold(m *model) (n int64) {
	for _, r := range m.byID {
		if r.State == reservation.Held || r.State == reservation.Claimed {
			n += reservation.Units(r.Lines)
		}
	}
	return n
}

func TestUnknownStaysUnknown(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 3, Shop: 1, Carts: 50})
	m := newModel(p.Stock)
	m.after = func(op reservation.Op, _ string) error {
		if op == reservation.OpClaim {
			return errLost
		}
		return nil
	}
	s := run(t, p, m, loadgen.Options{Clients: 8, Backoff: time.Microsecond, Tries: 3})
	if s.Claim.Unknown == 0 || s.Claim.Claimed != 0 || s.Claim.Failed != 0 || s.Retried != 2*s.Claim.Unknown {
		t.Errorf("claims %+v, %d further tries", s.Claim, s.Retried)
	}
	if len(s.Errors) == 0 || !strings.Contains(s.Errors[0], "outcome of reserve in redis is unknown") {
		t.Errorf("errors %v", s.Errors)
	}

	m = newModel(p.Stock)
	m.before = func(reservation.Op, string) error {
		return &reservation.UnavailableError{Store: reservation.Redis, Cause: errors.New("down")}
	}
	s = run(t, p, m, loadgen.Options{Backoff: time.Microsecond, Tries: 2})
	if s.Carts.Unknown != 50 || s.Carts.Granted != 0 || s.Claim.Unknown != 0 || s.NotSent == 0 {
		t.Errorf("carts %+v, claims %+v, %d not sent", s.Carts, s.Claim, s.NotSent)
	}
}

// What is neither a decision nor an unknown outcome is not retried, and is shown.
func TestFailuresAreShown(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 4, Shop: 1, Carts: 40})
	m := newModel(nil) // no bucket is known
	s := run(t, p, m, loadgen.Options{})
	if s.Reserve.Failed != s.Operations || s.Reserve.Unknown != 0 || s.Retried != 0 || len(s.Errors) != 20 || !strings.Contains(s.Errors[0], "unknown bucket") {
		t.Errorf("%+v", s)
	}
}

// A target that forgets a key (I9) is found out by the retries.
func TestDisagreeingRetriesAreShown(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 5, Shop: 1, Carts: 200})
	m := newModel(p.Stock)
	s, err := loadgen.Run(context.Background(), p, forgetful{m}, loadgen.Options{Clients: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Disagreements) == 0 || !strings.Contains(s.Disagreements[0], "reserve mixed-5-") {
		t.Errorf("disagreements %v", s.Disagreements)
	}
}

type forgetful struct{ *model }

func (f forgetful) Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error) {
	f.mu.Lock()
	delete(f.byKey, key)
	f.mu.Unlock()
	return f.model.Reserve(ctx, shop, key, lines, ttl)
}

// ordered fails a test where a cart's call begins before the one that it follows has ended, or one after another
// although nothing binds them.
type ordered struct {
	*model
	mu       sync.Mutex
	running  map[string]bool
	most     int
	overlaps []string
	delay    time.Duration
}

func (o *ordered) during(key string) func() {
	o.mu.Lock()
	if o.running[key] {
		o.overlaps = append(o.overlaps, key)
	}
	o.running[key] = true
	o.most = max(o.most, len(o.running))
	o.mu.Unlock()
	<-time.After(o.delay) // inside a synctest bubble, where this takes no time
	return func() {
		o.mu.Lock()
		delete(o.running, key)
		o.mu.Unlock()
	}
}

func (o *ordered) Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error) {
	defer o.during(key)()
	return o.model.Reserve(ctx, shop, key, lines, ttl)
}

func (o *ordered) Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	defer o.during(o.keyOf(id))()
	return o.model.Claim(ctx, shop, id)
}

func (o *ordered) Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	defer o.during(o.keyOf(id))()
	return o.model.Release(ctx, shop, id)
}

func (o *ordered) keyOf(id reservation.ID) string {
	o.model.mu.Lock()
	defer o.model.mu.Unlock()
	return o.byID[id].Key
}

func TestOneCartInOrderOthersSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := mustMixed(t, loadgen.MixedOptions{Seed: 6, Shop: 1, Carts: 300, StockEach: 1 << 30})
		o := &ordered{model: newModel(p.Stock), running: make(map[string]bool), delay: 10 * time.Millisecond}
		s, err := loadgen.Run(t.Context(), p, o, loadgen.Options{Clients: 12})
		if err != nil {
			t.Fatal(err)
		}
		wholeRun(t, p, s)
		if len(o.overlaps) > 0 {
			t.Errorf("two calls of one cart at once: %v", o.overlaps)
		}
		if o.most < 8 || o.most > 12 {
			t.Errorf("%d calls at once at most, want up to 12", o.most)
		}
	})
}

// At a fixed rate, latency counts from the moment at which a call was due: a target that stands still for a second
// makes everything that was due in that second late.
func TestFixedRateCountsFromTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := mustMixed(t, loadgen.MixedOptions{Seed: 7, Shop: 1, Carts: 400, StockEach: 1 << 30})
		o := &ordered{model: newModel(p.Stock), running: make(map[string]bool)}
		var stood atomic.Bool
		o.before = func(reservation.Op, string) error {
			if stood.CompareAndSwap(false, true) {
				<-time.After(time.Second) // inside a synctest bubble, with the model's lock held
			}
			return nil
		}
		paced := false
		s, err := loadgen.Run(t.Context(), p, o, loadgen.Options{
			Clients: 1, Speed: 100,
			Pace: func(context.Context) error { paced = true; return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if paced {
			t.Error("a fixed rate waited for the target")
		}
		late := 0
		for _, a := range s.Answers {
			if a.Took > 100*time.Millisecond {
				late++
			}
		}
		// 90 calls are due in the first 0.9 s of the second; those that follow a late one are due when it is answered.
		if late < 70 || late > 90 {
			t.Errorf("%d calls are more than 100 ms late, want 70 to 90", late)
		}
		if want := time.Duration(len(p.Events)-1) * 10 * time.Millisecond; s.Took < want || s.Took > want+50*time.Millisecond {
			t.Errorf("the run took %v, want %v", s.Took, want)
		}
	})
}

func TestPaceAndProgress(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 8, Shop: 1, Carts: 100})
	asked := 0
	var seen []int
	s := run(t, p, newModel(p.Stock), loadgen.Options{
		Pace: func(context.Context) error { asked++; return nil },
		Progress: func(done, total int) {
			if total != len(p.Events) {
				t.Errorf("a total of %d, want %d", total, len(p.Events))
			}
			seen = append(seen, done)
		},
	})
	wholeRun(t, p, s)
	if asked != len(p.Events) {
		t.Errorf("asked %d times, want %d", asked, len(p.Events))
	}
	if len(seen) == 0 || seen[len(seen)-1] != len(p.Events) || !slices.IsSorted(seen) {
		t.Errorf("progress %v", seen)
	}
}

// A run that is stopped ends at once, with everything that was answered until then.
func TestStoppedRuns(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 9, Shop: 1, Carts: 500})
	because := errors.New("enough")

	ctx, cancel := context.WithCancelCause(context.Background())
	m := newModel(p.Stock)
	m.before = func(reservation.Op, string) error {
		if m.calls == 100 {
			cancel(because)
		}
		return nil
	}
	s, err := loadgen.Run(ctx, p, m, loadgen.Options{Clients: 4})
	if !errors.Is(err, because) || s.Operations < 50 || s.Operations >= len(p.Events) {
		t.Errorf("stopped by its context: %v after %d operations", err, s.Operations)
	}

	n := 0
	s, err = loadgen.Run(context.Background(), p, newModel(p.Stock), loadgen.Options{Pace: func(context.Context) error {
		if n++; n > 10 {
			return because
		}
		return nil
	}})
	if !errors.Is(err, because) || s.Operations > 10 {
		t.Errorf("stopped by its pace: %v after %d operations", err, s.Operations)
	}

	m = newModel(p.Stock)
	m.before = func(reservation.Op, string) error {
		return &reservation.UnavailableError{Store: reservation.MySQL, Cause: because}
	}
	ctx, cancelTimeout := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancelTimeout()
	if _, err = loadgen.Run(ctx, p, m, loadgen.Options{Clients: 4, Backoff: time.Hour}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped while it waits for another try: %v", err)
	}

	for _, o := range []loadgen.Options{{Clients: -1}, {Speed: -1}, {Tries: -1}, {Backoff: -1}, {CallTimeout: -1}} {
		if _, err := loadgen.Run(context.Background(), p, m, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// Stats are the JSON of replay: these keys are an interface.
func TestStatsJSON(t *testing.T) {
	p := mustMixed(t, loadgen.MixedOptions{Seed: 10, Shop: 1, Carts: 100})
	js, err := json.Marshal(run(t, p, newModel(p.Stock), loadgen.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]any
	var all map[string]any
	if err := json.Unmarshal(js, &all); err != nil {
		t.Fatal(err)
	}
	got = make(map[string]map[string]any)
	for k, v := range all {
		if m, ok := v.(map[string]any); ok {
			got[k] = m
		}
	}
	for key, fields := range map[string][]string{
		"reserve": {"granted", "rejected", "unknown"}, "claim": {"claimed", "refund_required", "late", "conflict", "unknown"},
		"release": {"released", "conflict", "unknown"}, "adjust": {"adjusted", "refused", "unknown"},
	} {
		for _, f := range fields {
			if _, ok := got[key][f]; !ok {
				t.Errorf("%s.%s is missing: %s", key, f, js)
			}
		}
	}
	if all["operations"] == nil || strings.Contains(string(js), "nswers") {
		t.Errorf("%s", js)
	}
}
