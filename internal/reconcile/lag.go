package reconcile

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"
)

// Behind is how far a replica is behind its primary, and what else it says of itself.
type Behind struct {
	Lag time.Duration
	// Stopped: it does not follow any more.
	Stopped bool
}

// Behind asks how far the replica is behind. There has to be one.
func (r *Reconciler) Behind(ctx context.Context) (Behind, error) { return r.lagOf(ctx) }

// lagOf asks both servers. The age of the first reservation that only the primary has needs no right of its own and knows
// a replica that has stopped; what the replica says of itself needs REPLICATION CLIENT and knows changes that are no new
// reservations. The greater counts.
func (r *Reconciler) lagOf(ctx context.Context) (Behind, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.PageTimeout)
	defer cancel()
	var b Behind
	newest := make([]byte, 16)
	err := each(ctx, r.opts.Replica, func(rows *sql.Rows) error { return rows.Scan(&newest) }, qNewest)
	if err != nil {
		return b, err
	}
	own, err := r.replicaSays(ctx)
	if err != nil {
		return b, err
	}
	var age int64
	err = each(ctx, r.opts.Primary, func(rows *sql.Rows) error { return rows.Scan(&age) }, qFirstAfter, newest)
	if err != nil {
		return b, &primaryError{err}
	}
	own.Lag = max(own.Lag, time.Duration(age)*time.Microsecond)
	return own, nil
}

// primaryError is a primary that cannot be asked: there is nothing to fall back to.
type primaryError struct{ err error }

// Error says so.
func (e *primaryError) Error() string { return fmt.Sprintf("ask the primary: %v", e.err) }

// Unwrap gives the cause.
func (e *primaryError) Unwrap() error { return e.err }

// replicaSays reads the replica's own account. A server that does not give it (no right, before 8.0.22, no replica at
// all) says nothing, which is no error: the other figure is there.
func (r *Reconciler) replicaSays(ctx context.Context) (Behind, error) {
	var b Behind
	rows, err := r.opts.Replica.QueryContext(ctx, qReplica)
	if err != nil {
		return b, ctx.Err() //nolint:wrapcheck // the context's own
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return b, fmt.Errorf("read the replica's status: %w", err)
	}
	for rows.Next() {
		values := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return b, fmt.Errorf("read the replica's status: %w", err)
		}
		for i, name := range names {
			switch name {
			case "Seconds_Behind_Source":
				if s, err := strconv.ParseInt(values[i].String, 10, 64); err == nil {
					b.Lag = max(b.Lag, time.Duration(s)*time.Second)
				}
			case "Replica_SQL_Running", "Replica_IO_Running":
				b.Stopped = b.Stopped || values[i].String == "No"
			}
		}
	}
	if err := rows.Err(); err != nil {
		return b, fmt.Errorf("read the replica's status: %w", err)
	}
	return b, nil
}
