package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// decides refuses a mark under a stage in which Redis decides: there, nothing is answered without it.
func decides(st reservation.Stamp) error {
	if st.Stage.Valid() && st.Stage.Truth() == reservation.MySQL {
		return nil
	}
	return &reservation.InvalidError{Field: "stamp", Reason: fmt.Sprintf("is of stage %s: only where MySQL decides is an outcome answered without Redis", st.Stage)}
}

// Mark notes that this reservation's outcome is answered without Redis. Marked already is fine. ErrNotFound if there
// is no such reservation; *InvalidError for a stamp of a stage in which Redis decides.
func (s *Store) Mark(ctx context.Context, st reservation.Stamp, id reservation.ID) error {
	if err := decides(st); err != nil {
		return err
	}
	w := work{path: "mark", op: reservation.OpReserve, stamp: st}
	return s.write(ctx, w, func(ctx context.Context, t *tx) error { return s.markRow(ctx, t, id) })
}

// markRow marks a reservation whose row is not locked yet.
func (s *Store) markRow(ctx context.Context, t *tx, id reservation.ID) error {
	n, err := exec(ctx, t.conn, qMarkSet, id[:])
	switch {
	case err != nil:
		return err
	case n == 0:
		return reservation.ErrNotFound
	}
	return s.insertMark(ctx, t, id)
}

// markOutcome marks a reservation whose row was locked and, but for a replay, has just been written as marked.
func (s *Store) markOutcome(ctx context.Context, t *tx, id reservation.ID, replayed bool) error {
	if replayed {
		return s.markRow(ctx, t, id)
	}
	return s.insertMark(ctx, t, id)
}

func (s *Store) insertMark(ctx context.Context, t *tx, id reservation.ID) error {
	_, err := exec(ctx, t.conn, qMarkInsert, id[:], t.now)
	s.step(t, "mark")
	return err
}

// Marked gives up to limit marked reservations with an id above after, in order of id, also those past their
// retention: a mark keeps them.
func (s *Store) Marked(ctx context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	return s.recordsOf(ctx, "marked", qMarked, after[:], limit)
}

// Unmark removes the mark if the reservation's state is still expect, and tells whether it did: Redis has it now.
// Expect is zero for a mark whose reservation is not there. Any stage may do it.
func (s *Store) Unmark(ctx context.Context, st reservation.Stamp, id reservation.ID, expect reservation.State) (bool, error) {
	done := false
	w := work{path: "unmark", op: reservation.OpReserve, stamp: st}
	err := s.write(ctx, w, func(ctx context.Context, t *tx) error {
		cur, err := rowByID(ctx, t.conn, qRecordLock, id)
		if err != nil {
			return err
		}
		var state reservation.State
		if cur != nil {
			state = cur.State
		}
		if state != expect {
			done = false
			return nil
		}
		if cur != nil {
			if _, err := exec(ctx, t.conn, qMarkClear, id[:]); err != nil {
				return err
			}
		}
		s.step(t, "record")
		n, err := exec(ctx, t.conn, qMarkDelete, id[:])
		s.step(t, "mark")
		done = done || n > 0 // an earlier run of the body, whose COMMIT was not confirmed, may have done it
		return err
	})
	return done && err == nil, err
}

// MarksDebt sums the marked reservations that are live, and counts all marks.
func (s *Store) MarksDebt(ctx context.Context) (debt reservation.Debt, marks int64, err error) {
	err = s.read(ctx, "marks_debt", func(ctx context.Context) error {
		var left int64 // microseconds
		err := one(ctx, s.reads, []any{&marks, &debt.Reservations, &debt.Units, &left}, qMarksDebt)
		debt.DrainsInS = max(time.Duration(left)*time.Microsecond, 0).Seconds()
		return err
	})
	return debt, marks, err
}

// ByKey gives the reservation of this shop that has the key; ErrNotFound if there is none, or if it is past its
// retention.
func (s *Store) ByKey(ctx context.Context, shop int64, key string) (reservation.Record, error) {
	var r *row
	err := s.read(ctx, "by_key", func(ctx context.Context) (err error) {
		r, err = rowByKey(ctx, s.reads, shop, key)
		return err
	})
	if err == nil && (r == nil || r.purged()) {
		err = reservation.ErrNotFound
	}
	if err != nil {
		return reservation.Record{}, err
	}
	return r.Record, nil
}

// Cut is the store as a router sees it that has lost its Redis in a stage in which MySQL decides: each outcome of a
// reserve, a claim or a release carries its mark in its own transaction, a replay too. An id that MySQL does not know
// is *UnavailableError to a claim and to a release: Redis may know it. Everything else is the store's.
func (s *Store) Cut() reservation.Store { return &cut{s} }

type cut struct{ s *Store }

var errOnlyRedis = errors.New("MySQL does not know this reservation, and Redis, which may, cannot be asked")

// Reserve is the store's, marked.
func (c *cut) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	if err := decides(st); err != nil {
		return reservation.Result{}, err
	}
	return c.s.reserve(ctx, &reserving{s: c.s, st: st, id: id, req: req, mark: true})
}

// Claim is the store's, marked.
func (c *cut) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	if err := decides(st); err != nil {
		return reservation.ClaimResult{}, err
	}
	res, err := c.s.claim(ctx, st, shop, id, true)
	return res, onlyRedis(err)
}

// Release is the store's, marked.
func (c *cut) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	if err := decides(st); err != nil {
		return reservation.ReleaseResult{}, err
	}
	res, err := c.s.release(ctx, st, shop, id, true)
	return res, onlyRedis(err)
}

func onlyRedis(err error) error {
	if errors.Is(err, reservation.ErrNotFound) {
		return unavailable(errOnlyRedis)
	}
	return err
}

// Adjust is the store's.
func (c *cut) Adjust(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	return c.s.Adjust(ctx, st, adj)
}

// Get is the store's.
func (c *cut) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	return c.s.Get(ctx, shop, id)
}

// Availability is the store's.
func (c *cut) Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	return c.s.Availability(ctx, b)
}

// Sweep is the store's.
func (c *cut) Sweep(ctx context.Context, st reservation.Stamp, limit int) (reservation.SweepResult, error) {
	return c.s.Sweep(ctx, st, limit)
}

// recordsOf runs a query for a page of reservations.
func (s *Store) recordsOf(ctx context.Context, path, query string, args ...any) ([]reservation.Record, error) {
	ctx = inClass(ctx, backgroundClass)
	var out []reservation.Record
	err := s.read(ctx, path, func(ctx context.Context) error {
		out = nil
		return each(ctx, s.reads, func(rows *sql.Rows) error {
			r, err := scanRow(rows)
			if err == nil {
				out = append(out, r.Record)
			}
			return err
		}, query, args...)
	})
	return out, err
}
