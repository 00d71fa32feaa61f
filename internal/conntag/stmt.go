package conntag

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
)

// fullStmt is what the MySQL driver's prepared statements can do.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
	ColumnConverter(idx int) driver.ValueConverter
}

// stmt is a prepared statement; it keeps the tag of its text.
type stmt struct {
	fullStmt
	conn  *conn
	tally *tally
}

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	r := s.conn.startAs(s.tally)
	res, err := s.fullStmt.ExecContext(ctx, args)
	s.conn.end(r, err)
	return res, err
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	r := s.conn.startAs(s.tally)
	rows, err := s.fullStmt.QueryContext(ctx, args)
	s.conn.end(r, err)
	return watched(rows, s.tally), err
}

// tx is a transaction that the driver has begun.
type tx struct {
	driver.Tx
	conn *conn
}

// Commit implements driver.Tx.
func (t *tx) Commit() error {
	r := t.conn.startAs(t.conn.meter.tags.find(driverCommit))
	err := t.Tx.Commit()
	t.conn.end(r, err)
	return err
}

// Rollback implements driver.Tx.
func (t *tx) Rollback() error {
	r := t.conn.startAs(t.conn.meter.tags.find(driverRollback))
	err := t.Tx.Rollback()
	t.conn.end(r, err)
	return err
}

// fullRows is what the MySQL driver's rows can do.
type fullRows interface {
	driver.RowsNextResultSet
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// rows count the error that comes in place of a row: a SELECT ... FOR UPDATE that waits in vain has told its columns
// before it fails.
type rows struct {
	fullRows
	tally  *tally
	failed bool
}

func watched(r driver.Rows, t *tally) driver.Rows {
	full, ok := r.(fullRows)
	if !ok {
		return r // nil too
	}
	return &rows{fullRows: full, tally: t}
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	err := r.fullRows.Next(dest)
	r.note(err)
	return err
}

// NextResultSet implements driver.RowsNextResultSet: a later statement of a packet fails here.
func (r *rows) NextResultSet() error {
	err := r.fullRows.NextResultSet()
	r.note(err)
	return err
}

func (r *rows) note(err error) {
	if err != nil && !r.failed && !errors.Is(err, io.EOF) {
		r.failed = true
		r.tally.fail(err)
	}
}
