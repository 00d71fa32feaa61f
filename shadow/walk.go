package shadow

import (
	"bytes"
	"context"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// walk visits every reservation of both stores, in order of id. The two pages were not read at the same instant, so
// one that seems to differ is read again in both before it is shown.
func (c *CatchUp) walk(ctx context.Context, fence reservation.Fence, visit func(view) error) error {
	redis := &cursor{walker: c.opt.Redis, page: c.opt.Page}
	mysql := &cursor{walker: c.opt.MySQL, page: c.opt.Page}
	for {
		r, err := redis.peek(ctx)
		if err != nil {
			return c.reading(reservation.Redis, err)
		}
		q, err := mysql.peek(ctx)
		if err != nil {
			return c.reading(reservation.MySQL, err)
		}
		if r == nil && q == nil {
			return nil
		}
		r, q = lower(r, q)
		redis.advance(r)
		mysql.advance(q)
		v := view{redis: r, mysql: q, fence: fence}
		if r == nil || q == nil || r.State != q.State {
			if v, err = c.look(ctx, v); err != nil {
				return err
			}
		}
		if v.any() == nil {
			continue
		}
		if err := visit(v); err != nil {
			return err
		}
	}
}

func (c *CatchUp) reading(store reservation.Truth, err error) error {
	return fmt.Errorf("catch-up of pod %s reads %s: %w", c.opt.Pod, store, err)
}

// look reads one reservation in both stores.
func (c *CatchUp) look(ctx context.Context, v view) (view, error) {
	id := v.any().ID
	redis, err := raw(ctx, c.opt.Redis, id)
	if err != nil {
		return v, c.reading(reservation.Redis, err)
	}
	mysql, err := raw(ctx, c.opt.MySQL, id)
	if err != nil {
		return v, c.reading(reservation.MySQL, err)
	}
	return view{redis: redis, mysql: mysql, fence: v.fence}, nil
}

// raw reads one record as it is stored: a Get may show a claim under way as what it is about to become.
func raw(ctx context.Context, w reservation.Walker, id reservation.ID) (*reservation.Record, error) {
	recs, err := w.Walk(ctx, before(id), 1)
	if err != nil || len(recs) == 0 || recs[0].ID != id {
		return nil, err
	}
	return &recs[0], nil
}

// before is the id that comes directly before this one.
func before(id reservation.ID) reservation.ID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i]--
		if id[i] != 0xff {
			break
		}
	}
	return id
}

// lower keeps the record with the lower id, or both where they are the same reservation.
func lower(r, q *reservation.Record) (*reservation.Record, *reservation.Record) {
	if r == nil || q == nil {
		return r, q
	}
	switch bytes.Compare(r.ID[:], q.ID[:]) {
	case -1:
		return r, nil
	case 1:
		return nil, q
	default:
		return r, q
	}
}

// cursor pages through a store.
type cursor struct {
	walker reservation.Walker
	page   int
	buf    []reservation.Record
	after  reservation.ID
	end    bool
}

func (c *cursor) peek(ctx context.Context) (*reservation.Record, error) {
	if len(c.buf) == 0 && !c.end {
		recs, err := c.walker.Walk(ctx, c.after, c.page)
		if err != nil {
			return nil, err
		}
		c.buf, c.end = recs, len(recs) == 0
		if len(recs) > 0 {
			c.after = recs[len(recs)-1].ID
		}
	}
	if len(c.buf) == 0 {
		return nil, nil //nolint:nilnil // the end of the store is no error
	}
	return &c.buf[0], nil
}

func (c *cursor) advance(taken *reservation.Record) {
	if taken != nil {
		c.buf = c.buf[1:]
	}
}
