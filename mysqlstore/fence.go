package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// readFence gives the pod's fence and MySQL's clock; epoch 0 if there is none.
func (s *Store) readFence(ctx context.Context, r runner, query string) (reservation.Fence, time.Time, error) {
	var row fenceRow
	if err := each(ctx, r, row.scan, query, []byte(s.opts.Pod)); err != nil {
		return reservation.Fence{}, row.now, err
	}
	if !row.now.IsZero() {
		s.clock.note(row.now, s.opts.Now())
	}
	return row.fence(s.opts.Pod)
}

// fenceRow is the fence as its row says it.
type fenceRow struct {
	f      reservation.Fence
	now    time.Time
	stage  string
	frozen []byte
}

func (r *fenceRow) scan(rows *sql.Rows) error {
	return asSQL(rows.Scan(&r.f.Epoch, &r.stage, &r.f.Frozen, &r.frozen, &r.f.Whole, &r.now, &r.f.Marks))
}

func (r *fenceRow) fence(pod string) (f reservation.Fence, now time.Time, err error) {
	f, now = r.f, r.now
	if f.Epoch == 0 {
		return reservation.Fence{}, now, nil
	}
	if f.Stage, err = reservation.ParseStage(r.stage); err != nil {
		return reservation.Fence{}, now, corrupt("the fence of %s: %v", pod, err)
	}
	if f.FrozenBuckets, err = unpackBuckets(r.frozen); err != nil {
		return reservation.Fence{}, now, corrupt("the fence of %s: frozen_buckets: %v", pod, err)
	}
	return f, now, nil
}

// errBehind: the caller's epoch is newer than the fence's, which has to be raised before the write can go on.
var errBehind = errors.New("the fence is behind the caller")

// checkFence compares a write's stamp with the fence that its transaction has read.
func checkFence(st reservation.Stamp, f reservation.Fence) error {
	if f.Epoch != 0 && f.Epoch < st.Epoch {
		return errBehind
	}
	return reservation.CheckFence(reservation.MySQL, st, f)
}

// ReadFence gives the pod's fence, with the number of marks outstanding; its Epoch is 0 if there is none.
func (s *Store) ReadFence(ctx context.Context) (reservation.Fence, error) {
	var f reservation.Fence
	err := s.read(ctx, "read_fence", func(ctx context.Context) (err error) {
		f, _, err = s.readFence(ctx, s.reads, qFenceRead)
		return err
	})
	return f, err
}

// Empty tells whether the schema holds neither a fence of this pod nor any reservation.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	var empty bool
	err := s.read(ctx, "empty", func(ctx context.Context) error {
		f, _, err := s.readFence(ctx, s.reads, qFenceRead)
		if err != nil {
			return err
		}
		var has bool
		if err := one(ctx, s.reads, []any{&has}, qHasRecords); err != nil {
			return err
		}
		empty = f.Epoch == 0 && !has
		return nil
	})
	return empty, err
}

// InitFence creates the fence if the schema holds nothing of this pod, and gives the fence that is there then. A
// schema that holds reservations but no fence has lost it: that is a *reservation.FenceError with NoFence.
func (s *Store) InitFence(ctx context.Context, st reservation.Stamp) (reservation.Fence, error) {
	if err := validateStamp(st); err != nil {
		return reservation.Fence{}, err
	}
	empty, err := s.Empty(ctx)
	if err != nil {
		return reservation.Fence{}, err
	}
	if empty {
		if err := s.insertFence(ctx, st); err != nil {
			return reservation.Fence{}, err
		}
	}
	f, err := s.ReadFence(ctx)
	if err == nil && f.Epoch == 0 {
		err = &reservation.FenceError{Store: reservation.MySQL, Verdict: reservation.NoFence, Caller: st}
	}
	return f, err
}

func validateStamp(st reservation.Stamp) error {
	if st.Epoch == 0 || !st.Stage.Valid() {
		return &reservation.InvalidError{Field: "stamp", Reason: "needs an epoch above 0 and a valid stage"}
	}
	return nil
}

// insertFence inserts the row. A lost reply is settled by the second try, which meets the first one's row; so is a
// lost race, whose winner's fence stands.
func (s *Store) insertFence(ctx context.Context, st reservation.Stamp) error {
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	for n := 1; ; n++ {
		err := s.inTx(ctx, s.opts.WriteTimeout, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
			_, err := exec(ctx, t.conn, qFenceInit, []byte(s.opts.Pod), st.Epoch, st.Stage.String())
			return err
		})
		if err == nil || retryReason(err) == "1062" {
			return nil
		}
		if n >= s.opts.Attempts || !pause(ctx, n) {
			return unavailable(err)
		}
	}
}

// one reads exactly one row.
func one(ctx context.Context, r runner, dest []any, query string, args ...any) error {
	found := false
	err := each(ctx, r, func(rows *sql.Rows) error {
		found = true
		return asSQL(rows.Scan(dest...))
	}, query, args...)
	if err == nil && !found {
		return asSQL(sql.ErrNoRows)
	}
	return err
}
