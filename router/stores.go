package router

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Redis is what the router asks of a pod's Redis.
type Redis interface {
	reservation.Store
	reservation.Mirror
	reservation.Confirmer
	ReadFence(ctx context.Context) (reservation.Fence, error)
	Beat(ctx context.Context, hb reservation.Heartbeat) (reservation.Fence, error)
	Leave(ctx context.Context, router string) error
	Routers(ctx context.Context, keep time.Duration) ([]reservation.Heartbeat, error)
	Move(ctx context.Context, m reservation.FenceMove) (reservation.Fence, error)
}

// MySQL is what the router asks of a pod's MySQL.
type MySQL interface {
	reservation.Store
	reservation.Mirror
	reservation.Agreer
	ReadFence(ctx context.Context) (reservation.Fence, error)
	Raise(ctx context.Context, st reservation.Stamp, a *reservation.AuditRecord) (reservation.Fence, error)
	Mark(ctx context.Context, st reservation.Stamp, id reservation.ID) error
	// ByKey finds a reservation by its key; ErrNotFound if there is none, or it is past its retention.
	ByKey(ctx context.Context, shop int64, key string) (reservation.Record, error)
	ChangesOf(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Change, error)
	// Cut is the store as a router uses it that cannot reach Redis: its outcomes are marked in their own transaction.
	Cut() reservation.Store
}

// Reader is a store as reads see it.
type Reader interface {
	Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error)
	Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error)
}
