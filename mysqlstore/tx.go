package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

const (
	rollbackTimeout = 500 * time.Millisecond
	linesPerLimit   = 250
)

// runner is what statements run on: a connection inside a transaction, or the whole pool for a lone read.
type runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// tx is one open transaction.
type tx struct {
	conn  *sql.Conn
	path  string // what it is part of, for failpoints
	fence reservation.Fence
	now   time.Time // MySQL's clock when the fence was read
	stamp reservation.Stamp

	packets   bool // statements may travel together
	committed bool // COMMIT went with the last packet
	idle      bool // nothing was written: ROLLBACK ends it, and no reply to that is missed

	took  map[reservation.Bucket]int64 // units out of the pool
	moved []reservation.Bucket         // whose unpooled has changed
}

// exec runs a statement and gives the number of rows it matched.
func exec(ctx context.Context, r runner, query string, args ...any) (int64, error) {
	leave, err := enter(ctx, r)
	if err != nil {
		return 0, err
	}
	defer leave()
	res, err := r.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, asSQL(err)
	}
	n, err := res.RowsAffected()
	return n, asSQL(err)
}

// each runs a query and calls scan for every row.
func each(ctx context.Context, r runner, scan func(*sql.Rows) error, query string, args ...any) error {
	leave, err := enter(ctx, r)
	if err != nil {
		return err
	}
	defer leave()
	rows, err := r.QueryContext(ctx, query, args...)
	if err != nil {
		return asSQL(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return asSQL(rows.Err())
}

// work describes one write: what it is called in metrics, what it answers for, and how it is looked up when the
// reply to its COMMIT was lost.
type work struct {
	path  string
	op    reservation.Op
	stamp reservation.Stamp
	id    reservation.ID // whose row tells whether the write was committed; zero: the body's own locks tell
	lines int
	// prior is the COMMIT of a shared transaction that may have carried this out already, and gave no reply.
	prior error
	// attempted, if not nil, is called after each attempt.
	attempted func()
}

// write runs the body in a transaction of its own, again after a deadlock, a lock wait, a lost race or a lost
// connection, inside the caller's deadline. A fence that is behind the caller's epoch is raised first. The body starts from nothing each time. When the reply to a COMMIT was
// lost, the row is looked up under its locks first, so that the next run of the body finds it or its absence
// proven. An error of the domain that the body gives is given as it is; anything else is unavailable or unknown.
func (s *Store) write(ctx context.Context, w work, body func(context.Context, *tx) error) error {
	return s.attempts(ctx, w, func(ctx context.Context) error { return s.once(ctx, w, body) })
}

// attempts is write with a transaction that is given.
func (s *Store) attempts(ctx context.Context, w work, once func(context.Context) error) error {
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	began := s.opts.Now()
	defer func() { s.metrics.duration.WithLabelValues(w.path).Observe(s.opts.Now().Sub(began).Seconds()) }()

	unknown := w.prior // the reply to a COMMIT that is not yet accounted for
	if unknown != nil {
		if proven, found := s.settle(ctx, w.id); proven && !found {
			unknown = nil
		}
	}
	for n := 1; ; n++ {
		err := once(ctx)
		if w.attempted != nil {
			w.attempted()
		}
		if errors.Is(err, errBehind) {
			behind := s.catchUp(ctx, w.stamp)
			if behind == nil && n < s.opts.Attempts {
				s.metrics.retries.WithLabelValues("fence").Inc()
				continue
			}
			err = errors.Join(err, behind)
		}
		var ce *commitError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &ce):
			unknown = err
			s.metrics.retries.WithLabelValues("commit").Inc()
			if proven, found := s.settle(ctx, w.id); proven && !found {
				unknown = nil // it was not committed
			}
		case isAnswer(err):
			var fe *reservation.FenceError
			if unknown == nil || !errors.As(err, &fe) {
				return err
			}
			// The fence is read before the locks, so this says nothing of the commit.
			return s.outcomeUnknown(w, errors.Join(unknown, err))
		default:
			reason := retryReason(err)
			if reason == "" {
				if unknown != nil {
					return s.outcomeUnknown(w, errors.Join(unknown, err))
				}
				return unavailable(err)
			}
			s.metrics.retries.WithLabelValues(reason).Inc()
		}
		if n < s.opts.Attempts && pause(ctx, n) {
			continue
		}
		if unknown != nil {
			return s.outcomeUnknown(w, ended(ctx, unknown))
		}
		return unavailable(ended(ctx, err))
	}
}

func (s *Store) outcomeUnknown(w work, cause error) error {
	s.metrics.unknown.WithLabelValues(w.path).Inc()
	return &reservation.UnknownOutcomeError{Store: reservation.MySQL, Op: w.op, Cause: cause}
}

// settle waits until no transaction that wrote this reservation's row is open any more: whatever a read finds from
// then on is final. It is not fenced, since it changes nothing. Not proven: it did not get that far.
func (s *Store) settle(ctx context.Context, id reservation.ID) (proven, found bool) {
	if id == (reservation.ID{}) {
		return false, false
	}
	for n := 1; n < s.opts.Attempts; n++ {
		err := s.inTx(ctx, s.opts.LockWait+s.opts.WriteTimeout, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
			found = false
			return each(ctx, t.conn, func(*sql.Rows) error {
				found = true
				return nil
			}, qSettle, id[:])
		})
		var ce *commitError
		if err == nil || errors.As(err, &ce) {
			return true, found // the look-up was had; its own COMMIT changes nothing
		}
		if !pause(ctx, n) {
			return false, false
		}
	}
	return false, false
}

// once is one attempt: fence first, then the body.
func (s *Store) once(ctx context.Context, w work, body func(context.Context, *tx) error) error {
	limit := s.opts.WriteTimeout * time.Duration(1+w.lines/linesPerLimit)
	return s.inTx(ctx, limit, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
		fence, now, err := s.readFence(ctx, t.conn, qFenceShare)
		if err != nil {
			return err
		}
		if err := checkFence(w.stamp, fence); err != nil {
			return err
		}
		t.path, t.fence, t.now, t.stamp = w.path, fence, now, w.stamp
		return body(ctx, t)
	})
}

// inTx runs the body between START TRANSACTION and COMMIT on one connection. COMMIT is a statement of ours and not
// sql.Tx.Commit, because that takes no context: against a server that hangs it would hold the caller for ever. For
// the same reason the isolation level is set by the statement that BeginTx would send. The transaction always ends
// here; a connection on which ROLLBACK fails is thrown away, so none goes back with a transaction open.
func (s *Store) inTx(ctx context.Context, limit time.Duration, isolate, start string, body func(context.Context, *tx) error) error {
	return s.inTxOn(ctx, s.db, limit, isolate, start, body)
}

// inTxOn is inTx on a connection of this pool. Without the statements that begin it, the body's first packet does.
func (s *Store) inTxOn(ctx context.Context, db *sql.DB, limit time.Duration, isolate, start string, body func(context.Context, *tx) error) error {
	leave, err := s.budgetOf(db).enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeLimit)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return s.limited(ctx, asSQL(err))
	}
	committed := false
	defer func() {
		if !committed {
			rollback(ctx, conn)
		}
		_ = conn.Close() // gives it back; a broken one is dropped
	}()
	t := &tx{conn: conn}
	for _, q := range []string{isolate, start} {
		if q == "" {
			continue
		}
		if _, err := exec(ctx, conn, q); err != nil {
			return s.limited(ctx, err)
		}
	}
	if err := body(ctx, t); err != nil {
		var ce *commitError
		if errors.As(err, &ce) {
			s.note(t)
			return err
		}
		return s.limited(ctx, err)
	}
	if t.idle {
		return nil
	}
	if !t.committed {
		s.step(t, "commit")
		if err := ctx.Err(); err != nil {
			return s.limited(ctx, asSQL(err)) // not sent
		}
		if _, err := conn.ExecContext(ctx, qCommit); err != nil {
			s.note(t)
			return &commitError{err}
		}
	}
	committed = true
	s.note(t)
	s.step(t, "committed")
	return nil
}

// note takes down of what a transaction that is committed, or may be, has done to the pools.
func (s *Store) note(t *tx) {
	for _, b := range t.moved {
		s.soldOut.forget(b)
	}
	for b, n := range t.took {
		s.soldOut.forget(b) // fewer are left than was seen
		s.drained(t.stamp, b, n)
	}
}

// limited names the transaction's own time limit as the reason where it was that.
func (s *Store) limited(ctx context.Context, err error) error {
	if ctx.Err() != nil && !isAnswer(err) && errors.Is(context.Cause(ctx), errTimeLimit) {
		return asSQL(errors.Join(errTimeLimit, err))
	}
	return err
}

// rollback ends the transaction, or the connection if that cannot be done.
func rollback(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, qRollback); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// step calls the failpoint: "claim.ledger".
func (s *Store) step(t *tx, name string) {
	if s.opts.Failpoint != nil {
		s.opts.Failpoint(t.path + "." + name)
	}
}

// withBudget gives a call a deadline, so that every loop here ends. A caller's nearer one stands.
func (s *Store) withBudget(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.opts.Deadline)
}

// pause waits a jittered moment that grows with n; false if the context ended first.
func pause(ctx context.Context, n int) bool {
	ceiling := min(time.Millisecond<<min(n, 6), 50*time.Millisecond)
	t := time.NewTimer(rand.N(ceiling) + time.Millisecond/2)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// read runs a lone read, again if its connection was lost.
func (s *Store) read(ctx context.Context, path string, body func(context.Context) error) error {
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	began := s.opts.Now()
	defer func() { s.metrics.duration.WithLabelValues(path).Observe(s.opts.Now().Sub(began).Seconds()) }()
	for n := 1; ; n++ {
		err := body(ctx)
		if err == nil || isAnswer(err) {
			return err
		}
		if retryReason(err) != "lost" || n >= s.opts.Attempts || !pause(ctx, n) {
			return unavailable(err)
		}
	}
}
