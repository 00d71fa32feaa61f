package shadow

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// RestoreOptions are the parts of one restore.
type RestoreOptions struct {
	Pod   string
	Redis RestorableRedis
	MySQL RestoreSource
	// Known are stamps that routers have seen, as far as the caller knows.
	Known []reservation.Stamp
	// Latch is the reason of the pod's latch if the caller has seen one: it is set again if Redis has lost it.
	Latch string
	// Wipe removes all of the pod's data from Redis first: a reseed.
	Wipe bool
	// To is the stamp to end with; zero: above every epoch seen, in the stage of the highest, shadow if in doubt.
	To reservation.Stamp
	// By, Reason and Ticket are for the audit.
	By, Reason, Ticket string
	// Page is how many records are read at a time. Default 500.
	Page       int
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
}

// RestoreResult says what a restore did.
type RestoreResult struct {
	Before, After reservation.Fence
	// Records and Buckets were read from MySQL; Stored of the records changed Redis.
	Records, Stored, Buckets int
	// Adopted are holds that Redis lacked; Forced of their units were not there.
	Adopted, Units, Forced int64
	// Unknown says in words what could not be known.
	Unknown []string
	Took    time.Duration
}

// Restore rebuilds a pod's Redis from its MySQL. It can be run again after any failure.
func Restore(_ context.Context, _ RestoreOptions) (RestoreResult, error) {
	return RestoreResult{}, errors.New("shadow: not built yet")
}
