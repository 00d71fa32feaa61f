package killswitch

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

var errNotYet = errors.New("killswitch: not built yet")

// Kill sends the pod back to Redis, and keeps it there until it is rearmed.
func (c *Control) Kill(_ context.Context, _, _ string) (KillResult, error) {
	return KillResult{}, errNotYet
}

// Plan says what a flip would do, gate by gate. It changes nothing.
func (c *Control) Plan(_ context.Context, _ Order) (Plan, error) { return Plan{}, errNotYet }

// Execute flips the pod.
func (c *Control) Execute(_ context.Context, _ Order) (FlipResult, error) {
	return FlipResult{}, errNotYet
}

// Rearm undoes a kill: the pod stays in shadow and may be flipped again. Without execute it only says what it would do.
func (c *Control) Rearm(_ context.Context, _ Order, _ bool) (RearmResult, error) {
	return RearmResult{}, errNotYet
}

// Drill kills and rearms the pod on purpose.
func (c *Control) Drill(_ context.Context, _, _ string) (DrillResult, error) {
	return DrillResult{}, errNotYet
}

// Freeze sets or lifts the brake of the pod (zero bucket) or of one bucket.
func (c *Control) Freeze(_ context.Context, _ reservation.Bucket, _ bool, _, _ string) (FreezeResult, error) {
	return FreezeResult{}, errNotYet
}

// Status shows the pod as it is. With full it surveys both stores however long that takes.
func (c *Control) Status(_ context.Context, _ bool) Status { return Status{} }

// Audit gives both stores' records, by time.
func (c *Control) Audit(_ context.Context) ([]reservation.AuditRecord, error) { return nil, errNotYet }

// Reseed rebuilds Redis from MySQL. Without execute it only says what it would do.
func (c *Control) Reseed(_ context.Context, _, _ string, _ bool) (ReseedResult, error) {
	return ReseedResult{}, errNotYet
}
