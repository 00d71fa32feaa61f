package shadow

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/twinhold/twinhold/reservation"
)

// workers is how many reservations a round looks at side by side: what differs costs round trips.
const workers = 8

// walk visits every reservation of both stores. They are read in order of id and visited by several workers, each of
// which is called with its number. The two pages were not read at the same instant, so one that seems to differ is read
// again in both before it is shown. The first error ends the walk.
func (c *CatchUp) walk(ctx context.Context, fence reservation.Fence, visit func(ctx context.Context, worker int, v view) error) error {
	views := make(chan view)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(views)
		return c.pairs(ctx, fence, views)
	})
	for worker := range workers {
		group.Go(func() error {
			for v := range views {
				var err error
				if v.redis == nil || v.mysql == nil || v.redis.State != v.mysql.State {
					v, err = c.look(ctx, v)
				}
				if err == nil && v.any() != nil {
					err = visit(ctx, worker, v)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// pairs reads both stores in order of id and gives each reservation as the two have it.
func (c *CatchUp) pairs(ctx context.Context, fence reservation.Fence, views chan<- view) error {
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
		select {
		case views <- view{redis: r, mysql: q, fence: fence}:
		case <-ctx.Done():
			return context.Cause(ctx)
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
