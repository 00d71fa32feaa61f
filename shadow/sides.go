package shadow

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// RedisSide is a pod's Redis, as catch-up and the survey use it.
type RedisSide interface {
	reservation.Walker
	reservation.Mirror
	// ApplyFigures gives Redis the ledger's figures absolutely, where they are newer than its own.
	ApplyFigures(ctx context.Context, st reservation.Stamp, figures []reservation.Figures, create bool) (applied int, err error)
	// Availability gives a bucket's figures, with the version up to which Redis has every change of the ledger.
	Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error)
}

// MySQLSide is a pod's MySQL, as catch-up and the survey use it.
type MySQLSide interface {
	reservation.Walker
	reservation.Mirror
	reservation.Marks
	Ledger
	// Whole notes that in this handover MySQL holds nothing back any more that Redis has ended.
	Whole(ctx context.Context, st reservation.Stamp) error
	// Availability gives a bucket's figures; below zero means that more is promised than there is.
	Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error)
}

// Ledger is the ledger as it is copied to Redis.
type Ledger interface {
	// Figures walks the ledger in bucket order: up to limit buckets after the given one.
	Figures(ctx context.Context, after reservation.Bucket, limit int) ([]reservation.Figures, error)
	// ChangesOf gives the changes of a claimed reservation's entries; ErrNotFound if there are none.
	ChangesOf(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Change, error)
}

// RestorableRedis is a pod's Redis, as a restore uses it.
type RestorableRedis interface {
	// ReadFence gives the fence that is there, whatever state Redis is in; Epoch 0: none.
	ReadFence(ctx context.Context) (reservation.Fence, error)
	// BeginRestore closes Redis to everybody else. seen is the highest stamp that anybody is known to have seen. With
	// wipe everything of the pod is removed first.
	BeginRestore(ctx context.Context, seen reservation.Stamp, wipe bool) (reservation.Restoring, error)
	// Routers gives the heartbeats that Redis still has.
	Routers(ctx context.Context, keep time.Duration) ([]reservation.Heartbeat, error)
}

// RestoreSource is the MySQL that a Redis is rebuilt from. If it is a reservation.MySQLFence too, its fence is raised
// once Redis has its own.
type RestoreSource interface {
	reservation.Walker
	Figures(ctx context.Context, after reservation.Bucket, limit int) ([]reservation.Figures, error)
	ReadFence(ctx context.Context) (reservation.Fence, error)
}
