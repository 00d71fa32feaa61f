package shadow

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/twinhold/twinhold/reservation"
)

// workers is how many reservations a round looks at side by side: what differs costs round trips.
const workers = 8

// Span is a part of the reservations of both stores, in order of id, which is that of creation.
type Span struct {
	// After and UpTo bound it: ids above After, up to UpTo.
	After, UpTo reservation.ID
	// Limit ends it after so many reservations; 0: none does.
	Limit int
	// Rate is how many records a second are read from both stores together; 0: as many as can be.
	Rate int
}

// Last is the highest id: the end of every walk.
func Last() (id reservation.ID) {
	for i := range id {
		id[i] = 0xff
	}
	return id
}

// whole is the span of everything.
func whole() Span { return Span{UpTo: Last()} }

// walk visits the reservations of a span in both stores. They are read in order of id and visited by several workers,
// each of which is called with its number. The two pages were not read at the same instant, so one that seems to differ
// is read again in both before it is shown. The first error ends the walk. It gives the id up to which it came.
func (c *CatchUp) walk(ctx context.Context, fence reservation.Fence, s Span, visit func(ctx context.Context, worker int, v view) error) (upTo reservation.ID, err error) {
	views := make(chan view)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		defer close(views)
		upTo, err = c.pairs(ctx, fence, s, views)
		return err
	})
	for worker := range workers {
		group.Go(func() error {
			for v := range views {
				if err := c.show(ctx, v, worker, visit); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return upTo, err
}

// show visits one reservation, once it is sure that what differs does so now.
func (c *CatchUp) show(ctx context.Context, v view, worker int, visit func(ctx context.Context, worker int, v view) error) error {
	if v.bad == nil && (v.redis == nil || v.mysql == nil || v.redis.State != v.mysql.State) {
		var err error
		if v, err = c.look(ctx, v.id(), v.fence); err != nil {
			return err
		}
	}
	if v.bad == nil && v.any() == nil {
		return nil
	}
	return visit(ctx, worker, v)
}

// pairs reads a span of both stores in order of id and gives each reservation as the two have it.
func (c *CatchUp) pairs(ctx context.Context, fence reservation.Fence, s Span, views chan<- view) (upTo reservation.ID, err error) {
	pace := newPacer(s.Rate)
	redis := &cursor{walker: c.opt.Redis, store: reservation.Redis, page: c.opt.Page, after: s.After, pace: pace}
	mysql := &cursor{walker: c.opt.MySQL, store: reservation.MySQL, page: c.opt.Page, after: s.After, pace: pace}
	upTo = s.After
	for n := 0; s.Limit == 0 || n < s.Limit; n++ {
		r, err := redis.peek(ctx)
		if err != nil {
			return upTo, c.reading(reservation.Redis, err)
		}
		q, err := mysql.peek(ctx)
		if err != nil {
			return upTo, c.reading(reservation.MySQL, err)
		}
		r, q = lower(r, q)
		v := paired(r, q, fence)
		if r == nil && q == nil || above(v.id(), s.UpTo) {
			return s.UpTo, nil
		}
		redis.advance(r)
		mysql.advance(q)
		select {
		case views <- v:
			upTo = v.id()
		case <-ctx.Done():
			return upTo, context.Cause(ctx)
		}
	}
	return upTo, nil
}

func above(a, b reservation.ID) bool { return bytes.Compare(a[:], b[:]) > 0 }

func (c *CatchUp) reading(store reservation.Truth, err error) error {
	return fmt.Errorf("catch-up of pod %s reads %s: %w", c.opt.Pod, store, err)
}

// look reads one reservation in both stores.
func (c *CatchUp) look(ctx context.Context, id reservation.ID, fence reservation.Fence) (view, error) {
	redis, err := raw(ctx, c.opt.Redis, reservation.Redis, id)
	if err != nil {
		return view{}, c.reading(reservation.Redis, err)
	}
	mysql, err := raw(ctx, c.opt.MySQL, reservation.MySQL, id)
	if err != nil {
		return view{}, c.reading(reservation.MySQL, err)
	}
	return paired(redis, mysql, fence), nil
}

// entry is one record as a walk finds it: bad where it cannot be read.
type entry struct {
	id  reservation.ID
	rec *reservation.Record
	bad error
}

// paired is what two stores have under one id.
func paired(r, q *entry, fence reservation.Fence) view {
	v := view{fence: fence}
	if r != nil {
		v.of, v.redis, v.bad = r.id, r.rec, r.bad
	}
	if q != nil {
		v.of, v.mysql, v.bad = q.id, q.rec, errors.Join(v.bad, q.bad)
	}
	return v
}

// raw reads one record as it is stored: a Get may show a claim under way as what it is about to become.
func raw(ctx context.Context, w reservation.Walker, store reservation.Truth, id reservation.ID) (*entry, error) {
	recs, err := w.Walk(ctx, before(id), 1)
	switch {
	case isCorrupt(err):
		return one(ctx, w, store, id, err)
	case err != nil || len(recs) == 0 || recs[0].ID != id:
		return nil, err
	}
	return &entry{id: id, rec: &recs[0]}, nil
}

// one settles whose a record is that cannot be read: this id's, or that of the next one.
func one(ctx context.Context, w reservation.Walker, store reservation.Truth, id reservation.ID, cause error) (*entry, error) {
	l, ok := w.(lister)
	if !ok {
		return nil, cause
	}
	ids, err := l.IDs(ctx, before(id), 1)
	if err != nil || len(ids) == 0 || ids[0] != id {
		return nil, err
	}
	return unreadable(id, store, cause), nil
}

func unreadable(id reservation.ID, store reservation.Truth, cause error) *entry {
	return &entry{id: id, bad: fmt.Errorf("%s: cannot be read in %s: %w", id, store, cause)}
}

func isCorrupt(err error) bool {
	var corrupt *reservation.CorruptError
	return errors.As(err, &corrupt)
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
func lower(r, q *entry) (*entry, *entry) {
	if r == nil || q == nil {
		return r, q
	}
	switch bytes.Compare(r.id[:], q.id[:]) {
	case -1:
		return r, nil
	case 1:
		return nil, q
	default:
		return r, q
	}
}

// lister lists ids without reading what is behind them: the way past a record that cannot be read.
type lister interface {
	IDs(ctx context.Context, after reservation.ID, limit int) ([]reservation.ID, error)
}

// cursor pages through a store.
type cursor struct {
	walker reservation.Walker
	store  reservation.Truth
	page   int
	pace   *pacer
	buf    []entry
	after  reservation.ID
	end    bool
}

func (c *cursor) peek(ctx context.Context) (*entry, error) {
	if len(c.buf) == 0 && !c.end {
		if err := c.fill(ctx); err != nil {
			return nil, err
		}
	}
	if len(c.buf) == 0 {
		return nil, nil //nolint:nilnil // the end of the store is no error
	}
	return &c.buf[0], nil
}

// fill reads the next page; where something in it cannot be read, record by record.
func (c *cursor) fill(ctx context.Context) error {
	recs, err := c.walker.Walk(ctx, c.after, c.page)
	switch {
	case isCorrupt(err):
		err = c.pick(ctx, err)
	case err == nil:
		c.buf = make([]entry, len(recs))
		for i := range recs {
			c.buf[i] = entry{id: recs[i].ID, rec: &recs[i]}
		}
	}
	if err != nil {
		return err
	}
	c.end = len(c.buf) == 0
	if !c.end {
		c.after = c.buf[len(c.buf)-1].id
	}
	return c.pace.read(ctx, len(c.buf))
}

// pick reads a page one by one. An id that is gone by then is left out; if all are, the page after it is next.
func (c *cursor) pick(ctx context.Context, cause error) error {
	l, ok := c.walker.(lister)
	if !ok {
		return cause
	}
	for c.buf = nil; len(c.buf) == 0; {
		ids, err := l.IDs(ctx, c.after, c.page)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			e, err := raw(ctx, c.walker, c.store, id)
			if err != nil {
				return err
			}
			if e != nil {
				c.buf = append(c.buf, *e)
			}
		}
		c.after = ids[len(ids)-1]
	}
	return nil
}

func (c *cursor) advance(taken *entry) {
	if taken != nil {
		c.buf = c.buf[1:]
	}
}
