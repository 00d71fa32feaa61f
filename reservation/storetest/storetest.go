// Package storetest is the contract that every reservation.Store fulfils: one suite, run on a real server by each
// adapter, and on memstore, which is its model.
//
//	func TestContract(t *testing.T) { storetest.Run(t, openForTest) }
//
// The adapter's factory gives a Harness for a fresh, empty store. What a store cannot do (a store without a server
// cannot lose a reply) the harness declares as unsupported, with the reason, which the skip prints.
//
// It promises that each case fails if the store breaks what the case is named for; the suite's own test plants faults
// and sees it fail. Names carry the invariants of the design (I1 to I11). It never sleeps: it waits on conditions.
// Long rounds run with TWINHOLD_SOAK=1.
package storetest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Config is what a group of cases wants of its store.
type Config struct {
	// Late is the pod's policy for late claims.
	Late reservation.LatePolicy
	// Retention is how long records outlive their expiry.
	Retention time.Duration
	// Limits are the pod's bounds on TTLs. They are tiny at the lower end, so that tests can see things expire.
	Limits reservation.Limits
}

// Factory makes a fresh, empty store with its fence set up, and registers its end with t.Cleanup.
type Factory func(t *testing.T, cfg Config) *Harness

// Feature is something that not every store can be tested for.
type Feature string

// The features.
const (
	// LostReplies: the store is behind a connection whose replies can be lost (Harness.Lossy).
	LostReplies Feature = "lost replies"
	// Crashes: the store's data outlives a killed process (Harness.Crash).
	Crashes Feature = "crashes"
	// Frozen: the store's fence carries the brake of freeze.
	Frozen Feature = "frozen"
)

// Harness is a store under test with what the suite needs around it.
type Harness struct {
	// Store is the store itself; every case uses it from many goroutines.
	Store reservation.Store
	// Stamp is the one that the fence holds.
	Stamp reservation.Stamp
	// Truth is the name under which the store decides.
	Truth reservation.Truth
	// Stock gives buckets their first stock.
	Stock func(ctx context.Context, stock []reservation.Stocking) error
	// Settle waits for background work (finishes of claims). Nil: there is none.
	Settle func(ctx context.Context) error
	// Inspect reads everything raw: Redis's half, MySQL's half, or both. LedgerOnly: MySQL holds no mirror.
	Inspect    func(ctx context.Context) (redis, mysql *reservation.Snapshot, err error)
	LedgerOnly bool
	// Now reads the store's own clock. Nil: it is this process's.
	Now func(ctx context.Context) (time.Time, error)
	// SetFence replaces the fence of the store that decides; the zero Fence removes it.
	SetFence func(ctx context.Context, f reservation.Fence) error
	// FenceRises: a caller's newer epoch raises this fence, as MySQL's does, instead of being answered REGRESSED.
	FenceRises bool
	// Lossy opens a second store on the same data behind a proxy. Nil if LostReplies is unsupported.
	Lossy func(t *testing.T) *Lossy
	// Crash says how a child process is killed in the middle of an operation. Nil if Crashes is unsupported.
	Crash *Crash
	// Unsupported gives the reason for each feature that the store does not have.
	Unsupported map[Feature]string
}

// Soak tells whether the long rounds run.
func Soak() bool { return os.Getenv("TWINHOLD_SOAK") == "1" }

// rounds gives the length of a test: short, or long in soak.
func rounds(short, long int) int {
	if Soak() {
		return long
	}
	return short
}

// testCase is one promise.
type testCase struct {
	name  string
	needs Feature
	late  reservation.LatePolicy // zero: ForceLate
	// retention of the store; zero: an hour.
	retention time.Duration
	run       func(e *env)
}

func (c testCase) config() Config {
	cfg := Config{
		Late: c.late, Retention: c.retention,
		Limits: reservation.Limits{DefaultTTL: time.Minute, MaxTTL: 2 * time.Hour, MinTTL: time.Millisecond},
	}
	if cfg.Late == 0 {
		cfg.Late = reservation.ForceLate
	}
	if cfg.Retention == 0 {
		cfg.Retention = time.Hour
	}
	return cfg
}

// group is the cases of one invariant, or of one thing that is none. Groups run in parallel, cases of a group one
// after the other: those that want the same Config share a store, each in a shop of its own.
type group struct {
	name  string
	cases []testCase
}

func groups() []group {
	return []group{
		{"I1", append(oversellCases(), crowdCases()...)},
		{"I1_late", lateCases()},
		{"I3", adjustCases()},
		{"I5", append(endCases(), raceCases()...)},
		{"I6", append(claimCases(), crashCases()...)},
		{"I6_lost", lossCases()},
		{"I9", append(keyCases(), retentionCases()...)},
		{"fence", fenceCases()},
		{"refused", refusedCases()},
		{"I1-I6", propertyCases(reservation.ForceLate)},
		{"I1-I6_refuse", propertyCases(reservation.RefuseLate)},
	}
}

// Run runs the whole contract.
func Run(t *testing.T, open Factory) {
	t.Helper()
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			runGroup(t, open, g)
		})
	}
}

func runGroup(t *testing.T, open Factory, g group) {
	harnesses := make(map[Config]*Harness)
	shops := make(map[Config]int64)
	for _, c := range g.cases {
		cfg := c.config()
		if harnesses[cfg] == nil {
			harnesses[cfg] = open(t, cfg)
			if err := harnesses[cfg].validate(); err != nil {
				t.Fatal(err)
			}
		}
		shops[cfg]++
		t.Run(c.name, func(t *testing.T) {
			h := harnesses[cfg]
			if reason, no := h.Unsupported[c.needs]; no && c.needs != "" {
				t.Skipf("%s: unsupported by this store: %s", c.needs, reason)
			}
			e := newEnv(t, h, cfg, shops[cfg])
			c.run(e)
			e.invariants()
		})
	}
}

func (h *Harness) validate() error {
	missing := func(what string, f Feature) error {
		return fmt.Errorf("storetest: the harness has no %s: set it, or give the reason in Unsupported[%q]", what, f)
	}
	_, noLoss := h.Unsupported[LostReplies]
	_, noCrash := h.Unsupported[Crashes]
	switch {
	case h.Store == nil || h.Stock == nil || h.Inspect == nil || h.SetFence == nil || h.Stamp.Epoch < 2 || h.Truth == 0:
		return fmt.Errorf("storetest: the harness needs Store, Stock, Inspect, SetFence, Truth and a Stamp of epoch 2 or above")
	case h.Lossy == nil && !noLoss:
		return missing("Lossy", LostReplies)
	case h.Crash == nil && !noCrash:
		return missing("Crash", Crashes)
	default:
		return nil
	}
}
