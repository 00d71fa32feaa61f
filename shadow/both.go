package shadow

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// Pair is one reservation as both stores have it, for a person.
type Pair struct {
	// Redis and MySQL are nil where the store does not know it.
	Redis, MySQL *reservation.Record
	// Unreadable: a store has something under it that cannot be read.
	Unreadable error
	// Differs says what catch-up leaves to a person; empty: nothing.
	Differs string
}

// Both reads a reservation in both stores, and says what of it is a person's to mend.
func (c *CatchUp) Both(ctx context.Context, fence reservation.Fence, id reservation.ID) (Pair, error) {
	v, err := c.look(ctx, id, fence)
	if err != nil {
		return Pair{}, err
	}
	p := Pair{Redis: v.redis, MySQL: v.mysql, Unreadable: v.bad}
	if v.bad != nil || v.any() == nil {
		return p, nil //nolint:nilerr // it is told in the pair
	}
	var part Part
	if s := c.plan(v, c.opt.StoreNow()); s.left != "" {
		err = c.leaves(ctx, v, s, &part)
	}
	if len(part.Differ) > 0 {
		p.Differs = part.Differ[0].What
	}
	return p, err
}
