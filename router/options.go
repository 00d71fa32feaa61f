package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// Tuning is what of a pod's options may change while it serves.
type Tuning struct {
	// Limits bound the ttl that a caller may ask for.
	Limits reservation.Limits
	// Poll is the pause between two heartbeats, and two reads of MySQL's fence. Default 200 ms.
	Poll time.Duration
	// CutBudget is how long, in cutover, a write to Redis may take before the router goes on without it. Default 250 ms.
	CutBudget time.Duration
	// AgreeBudget is how long, in handover, MySQL may take before the router takes the pod back to shadow. Default 1 s.
	AgreeBudget time.Duration
	// LookUp bounds a look-up of marks in MySQL. Default 50 ms.
	LookUp time.Duration
	// SweepEvery is the pause between sweeps. Default 200 ms. SweepBatch is how many records one takes. Default 500.
	SweepEvery time.Duration
	SweepBatch int
	// CatchUpEvery is the pause between two full rounds of catch-up; 0: none. CatchUpTurn is that between two quick turns.
	CatchUpEvery, CatchUpTurn time.Duration
}

func (t Tuning) withDefaults() Tuning {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&t.Poll, 200*time.Millisecond)
	def(&t.CutBudget, 250*time.Millisecond)
	def(&t.AgreeBudget, time.Second)
	def(&t.LookUp, 50*time.Millisecond)
	def(&t.SweepEvery, 200*time.Millisecond)
	if t.SweepBatch == 0 {
		t.SweepBatch = 500
	}
	return t
}

// PodOptions configure a Pod.
type PodOptions struct {
	ID    string
	Shops []ShopRange
	// Name is this router's among the pod's routers, in heartbeats.
	Name string
	// Fence is what the router believes at first; see Fences.
	Fence reservation.Fence
	// MySQLFence is what MySQL's fence said at the start; the zero fence: it was not asked.
	MySQLFence reservation.Fence
	Tuning     Tuning
	Redis      Redis
	MySQL      MySQL
	// Mirrors, if not nil, are asked in place of the two stores where they follow. Tests plant faults there.
	Mirrors shadow.Either
	// Queue and Diff tune the mirror and the comparison; pod, stores, logger and registerer are filled in.
	Queue shadow.Options
	Diff  diff.Options
	// Restore rebuilds the pod's Redis from MySQL; known are stamps that this router has seen. Nil: nobody does here.
	Restore func(ctx context.Context, known []reservation.Stamp) error
	// CatchUp carries a full round of catch-up on, or begins one that is due; it is called again and again in the dual-write
	// stages, and tells whether there is more to do at once. QuickTurn brings over what is known to be missing, and what is
	// new. Missed hears of each reservation of which this router's mirror has missed something.
	CatchUp   func(ctx context.Context) (more bool, err error)
	QuickTurn func(ctx context.Context) error
	Missed    func(id reservation.ID)
	// DrainMarks gives Redis what is marked; it is called while marks are outstanding and Redis can be reached.
	DrainMarks func(ctx context.Context) error
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o *PodOptions) defaults() {
	if o.Name == "" {
		o.Name = "router"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Missed == nil {
		o.Missed = func(reservation.ID) {}
	}
	if o.Mirrors.Redis == nil {
		o.Mirrors.Redis = o.Redis
	}
	if o.Mirrors.MySQL == nil {
		o.Mirrors.MySQL = o.MySQL
	}
}

func (o *PodOptions) validate() error {
	switch {
	case o.ID == "":
		return errors.New("router: PodOptions.ID is empty")
	case o.Redis == nil || o.MySQL == nil:
		return fmt.Errorf("router: pod %s lacks a store", o.ID)
	case o.Fence.Epoch == 0 || !o.Fence.Stage.Valid():
		return fmt.Errorf("router: pod %s has no fence to start from", o.ID)
	default:
		return nil
	}
}
