package server

import (
	"context"

	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// Pod is one pod as the server shows it, asks it and moves it.
type Pod struct {
	ID string
	// Stores says which two stores these are, without where or how (config.Pod.StoresID). Clients that have a
	// configuration of their own compare it. Empty: not told.
	Stores string
	// State is what the router knows of the pod just now. It asks nobody.
	State func() State
	// Mirror is how many operations wait for the mirror, and its breaker. Nil: nothing is mirrored.
	Mirror func() (queue int, breaker string)
	// Redis and MySQL are the two fences, for readiness.
	Redis, MySQL FenceReader
	// Control makes the pod's kill switch for one person, who stands in its audit. Nil: the pod cannot be moved here.
	Control func(by string) (Control, error)
}

// State is what a router knows of a pod.
type State struct {
	Stamp reservation.Stamp
	// Cut: it goes on with MySQL because it cannot use Redis. Why says why, or what else is wrong.
	Cut bool
	Why string
	// Suspect: Redis has lost writes, and is being restored.
	Suspect bool
	// RedisOK and MySQLOK: the store answered when it was last asked.
	RedisOK, MySQLOK bool
	Frozen           bool
	// Killed: the latch is set; Latch is its reason.
	Killed bool
	Latch  string
}

// FenceReader reads a store's fence; Epoch 0: there is none.
type FenceReader interface {
	ReadFence(ctx context.Context) (reservation.Fence, error)
}

// Control is what the admin API asks of a pod's kill switch.
type Control interface {
	Status(ctx context.Context, full bool) killswitch.Status
	Plan(ctx context.Context, o killswitch.Order) (killswitch.Plan, error)
	Execute(ctx context.Context, o killswitch.Order) (killswitch.FlipResult, error)
	Kill(ctx context.Context, reason, ticket string) (killswitch.KillResult, error)
	Rearm(ctx context.Context, o killswitch.Order, execute bool) (killswitch.RearmResult, error)
	Drill(ctx context.Context, reason, ticket string) (killswitch.DrillResult, error)
	Freeze(ctx context.Context, b reservation.Bucket, on bool, reason, ticket string) (killswitch.FreezeResult, error)
	Audit(ctx context.Context) ([]reservation.AuditRecord, error)
}

var _ Control = (*killswitch.Control)(nil)

// SetPods replaces the pods that the server shows and moves, as after a reload.
func (s *Server) SetPods(pods []Pod) { s.pods.Store(&pods) }

func (s *Server) podsNow() []Pod { return *s.pods.Load() }
