package reconcile

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"
)

// Source names where a round read.
type Source string

// The sources.
const (
	Primary Source = "primary"
	Replica Source = "replica"
)

// endTimeout bounds the ROLLBACK of a page.
const endTimeout = time.Second

// source is one server to read from, and how far behind the primary it is.
type source struct {
	db      *sql.DB
	name    Source
	lag     time.Duration
	timeout time.Duration
}

// snapshot runs f in one consistent view. The view ends here in any case, or the connection does.
func (s *source) snapshot(ctx context.Context, f func(context.Context, *sql.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("reach the %s: %w", s.name, err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		if _, err := conn.ExecContext(end, qEnd); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = conn.Close() // gives it back; a broken one is dropped
	}()
	for _, q := range []string{qIsolate, qSnapshot} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("begin to read the %s: %w", s.name, err)
		}
	}
	return f(ctx, conn)
}

// runner is what a query runs on.
type runner interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each runs a query and calls scan for every row.
func each(ctx context.Context, r runner, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := r.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}
