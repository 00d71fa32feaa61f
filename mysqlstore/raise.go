package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// Raise sets the fence to this stamp if its epoch is newer, and gives the fence that is there then: once it has
// returned, no transaction of an older epoch commits any more. It waits for the oldest write transaction, at most
// until the caller's deadline. With an audit record the change is written down in the same transaction; if somebody
// without one has raised the fence to this very stamp before, the record is added to that change.
//
// It may be run again at any time. A *FenceError with NoFence says that there is no fence to raise; an
// *UnavailableError leaves open whether it was done.
func (s *Store) Raise(ctx context.Context, st reservation.Stamp, a *reservation.AuditRecord) (reservation.Fence, error) {
	if err := validateStamp(st); err != nil {
		return reservation.Fence{}, err
	}
	r := &raise{s: s, st: st, audit: a}
	err := s.changeFence(ctx, "raise", r.once)
	return r.fence, err
}

// catchUp raises the fence for writes that found it behind, once for all of this process.
func (s *Store) catchUp(ctx context.Context, st reservation.Stamp) error {
	_, err := s.shared(ctx, "raise", st, func(ctx context.Context) (int, error) {
		_, err := s.Raise(ctx, st, nil)
		return 0, err
	})
	var ue *reservation.UnavailableError
	if errors.As(err, &ue) {
		return asSQL(err) // it is no answer to the write, which may try again
	}
	return err
}

// changeFence runs one change of the fence's row until it is done, inside the caller's deadline, and keeps the
// others of this process out meanwhile. once starts from nothing each time, and finds out what a COMMIT whose reply
// was lost has done.
func (s *Store) changeFence(ctx context.Context, path string, once func(context.Context) error) error {
	ctx, cancel := s.withBudget(inClass(ctx, truthClass)) // whoever comes first, all wait for it
	defer cancel()
	began := s.opts.Now()
	defer func() { s.metrics.duration.WithLabelValues(path).Observe(s.opts.Now().Sub(began).Seconds()) }()
	select {
	case s.raising <- struct{}{}:
		defer func() { <-s.raising }()
	case <-ctx.Done():
		return unavailable(context.Cause(ctx))
	}
	for n := 1; ; n++ {
		err := once(ctx)
		var ce *commitError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &ce):
			s.metrics.retries.WithLabelValues("commit").Inc()
		case isAnswer(err):
			return err
		case retryReason(err) == "":
			return unavailable(err)
		default:
			s.metrics.retries.WithLabelValues(retryReason(err)).Inc()
		}
		if n >= s.opts.Attempts || !pause(ctx, n) {
			return unavailable(ended(ctx, err))
		}
	}
}

// fenceTx runs a transaction that holds the fence's row, exclusively, and nothing else.
func (s *Store) fenceTx(ctx context.Context, path string, body func(context.Context, *tx, reservation.Fence) error) error {
	limit := s.opts.LockWait + s.opts.WriteTimeout
	return s.inTx(ctx, limit, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
		f, now, err := s.readFence(ctx, t.conn, qFenceLock)
		if err != nil {
			return err
		}
		t.path, t.fence, t.now = path, f, now
		return body(ctx, t, f)
	})
}

// raise is one Raise through its attempts.
type raise struct {
	s     *Store
	st    reservation.Stamp
	audit *reservation.AuditRecord
	fence reservation.Fence
}

// once looks without locks first: a fence that is there already holds up nobody.
func (r *raise) once(ctx context.Context) error {
	f, _, err := r.s.readFence(ctx, r.s.reads, qFenceRead)
	if err != nil {
		return err
	}
	r.fence = f
	switch {
	case f.Epoch == 0:
		return &reservation.FenceError{Store: reservation.MySQL, Verdict: reservation.NoFence, Caller: r.st}
	case f.Epoch < r.st.Epoch:
		return r.s.fenceTx(ctx, "raise", r.update)
	case f.Stamp == r.st && r.audit != nil:
		return r.s.inTx(ctx, r.s.opts.WriteTimeout, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
			t.path = "raise"
			return r.record(ctx, t, r.audit.Before)
		})
	default:
		return nil
	}
}

func (r *raise) update(ctx context.Context, t *tx, before reservation.Fence) error {
	n, err := exec(ctx, t.conn, qFenceRaise, r.st.Epoch, r.st.Stage.String(), []byte(r.s.opts.Pod), r.st.Epoch)
	switch {
	case err != nil:
		return err
	case n == 0:
		return errRace // somebody was first, or took the fence away
	}
	r.s.step(t, "fence")
	r.fence = before
	r.fence.Stamp = r.st
	if r.audit == nil {
		return nil
	}
	return r.record(ctx, t, before.Stamp)
}

func (r *raise) record(ctx context.Context, t *tx, before reservation.Stamp) error {
	rec := *r.audit
	rec.Before, rec.After = before, r.st
	return r.s.insertAudit(ctx, t, rec, sql.NullInt64{Int64: int64(r.st.Epoch), Valid: true})
}

// Whole notes that in this handover MySQL holds nothing back any more that Redis has ended, so that its "too few" counts
// from now on. In any other epoch or stage than the fence's it changes nothing. Errors are those of Raise.
func (s *Store) Whole(ctx context.Context, st reservation.Stamp) error {
	return s.changeFence(ctx, "whole", func(ctx context.Context) error {
		f, _, err := s.readFence(ctx, s.reads, qFenceRead)
		if err != nil || f.Stamp != st || f.Whole == st.Epoch || !st.Stage.Route(reservation.OpReserve).Both {
			return err
		}
		return s.fenceTx(ctx, "whole", func(ctx context.Context, t *tx, _ reservation.Fence) error {
			_, err := exec(ctx, t.conn, qFenceWhole, st.Epoch, []byte(s.opts.Pod), st.Epoch, st.Stage.String())
			return err
		})
	})
}

// Freeze sets or lifts the brake of the pod (zero bucket) or of one bucket, and writes that down in the same
// transaction. What is so already changes nothing and leaves no record. Errors are those of Raise.
func (s *Store) Freeze(ctx context.Context, b reservation.Bucket, on bool, a reservation.AuditRecord) (reservation.Fence, error) {
	whole := b == (reservation.Bucket{})
	if !whole {
		if err := b.Validate(); err != nil {
			return reservation.Fence{}, err
		}
	}
	var after reservation.Fence
	err := s.changeFence(ctx, "freeze", func(ctx context.Context) error {
		return s.fenceTx(ctx, "freeze", func(ctx context.Context, t *tx, f reservation.Fence) error {
			if f.Epoch == 0 {
				return &reservation.FenceError{Store: reservation.MySQL, Verdict: reservation.NoFence}
			}
			after = braked(f, b, on)
			if after.Frozen == f.Frozen && len(after.FrozenBuckets) == len(f.FrozenBuckets) {
				return nil
			}
			if _, err := exec(ctx, t.conn, qFenceFreeze, after.Frozen, packBuckets(after.FrozenBuckets), []byte(s.opts.Pod)); err != nil {
				return err
			}
			s.step(t, "fence")
			rec := a
			rec.Before, rec.After = f.Stamp, f.Stamp
			if rec.Detail == "" && !whole {
				rec.Detail = "bucket " + b.String()
			}
			return s.insertAudit(ctx, t, rec, sql.NullInt64{})
		})
	})
	return after, err
}

// braked is the fence with one brake set or lifted.
func braked(f reservation.Fence, b reservation.Bucket, on bool) reservation.Fence {
	if b == (reservation.Bucket{}) {
		f.Frozen = on
		return f
	}
	f.FrozenBuckets = slices.DeleteFunc(slices.Clone(f.FrozenBuckets), func(o reservation.Bucket) bool { return o == b })
	if on {
		f.FrozenBuckets = append(f.FrozenBuckets, b)
		slices.SortFunc(f.FrozenBuckets, reservation.Bucket.Compare)
	}
	return f
}

// insertAudit writes a record down. One that is a change of epoch is written once, whoever brings it.
func (s *Store) insertAudit(ctx context.Context, t *tx, rec reservation.AuditRecord, raised sql.NullInt64) error {
	if t.now.IsZero() {
		if err := one(ctx, t.conn, []any{&t.now}, qNow); err != nil {
			return err
		}
	}
	rec.At, rec.Pod, rec.Store = t.now, s.opts.Pod, reservation.MySQL.String()
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("mysqlstore: audit record: %w", err)
	}
	_, err = exec(ctx, t.conn, qAuditInsert, []byte(s.opts.Pod), rec.At, rec.Action, raised, string(body))
	s.step(t, "audit")
	return err
}

// Audit gives the pod's records, oldest first.
func (s *Store) Audit(ctx context.Context) ([]reservation.AuditRecord, error) {
	var out []reservation.AuditRecord
	err := s.read(ctx, "audit", func(ctx context.Context) error {
		out = nil
		return each(ctx, s.reads, func(rows *sql.Rows) error {
			var body []byte
			if err := rows.Scan(&body); err != nil {
				return asSQL(err)
			}
			var rec reservation.AuditRecord
			if err := json.Unmarshal(body, &rec); err != nil {
				return corrupt("an audit record of %s: %v", s.opts.Pod, err)
			}
			out = append(out, rec)
			return nil
		}, qAudit, []byte(s.opts.Pod))
	})
	return out, err
}
