package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// statement is one step of a shared transaction. Steps that need no reply of each other travel in one packet, where
// connections for that are to be had, else one after the other.
type statement struct {
	query string
	args  []any
	// scan reads each row of a result; nil for a statement that has none.
	scan func(*sql.Rows) error
	// then is asked once the rows are read, before anything is made of what comes after.
	then func() error
	// exact: it must match this many rows.
	exact bool
	rows  int64
	what  string // the rows, for the error where they were others
	step  string // the failpoint after it
}

// change is a statement that must match this many rows.
func change(step string, rows int, what, query string, args ...any) statement {
	return statement{query: query, args: args, exact: true, rows: int64(rows), what: what, step: step}
}

// insert is a statement that puts its rows in, each of them, or fails.
func insert(step, query string, args ...any) statement {
	return statement{query: query, args: args, step: step}
}

const endOfStatement = ";\n"

// erManyRows is what qGuard ends in where the statement before it matched another number of rows.
const erManyRows = 1242

// send carries the statements out in their order.
func (s *Store) send(ctx context.Context, t *tx, sts []statement) error {
	if !t.packets {
		return s.sendSingly(ctx, t, sts)
	}
	err := sendPacket(ctx, t, sts)
	for _, st := range sts {
		if err == nil && st.step != "" {
			s.step(t, st.step)
		}
	}
	return err
}

func (s *Store) sendSingly(ctx context.Context, t *tx, sts []statement) error {
	for _, st := range sts {
		if st.scan != nil {
			if err := each(ctx, t.conn, st.scan, st.query, st.args...); err != nil {
				return err
			}
		} else {
			n, err := exec(ctx, t.conn, st.query, st.args...)
			if err != nil {
				return err
			}
			if st.exact && n != st.rows {
				return corrupt("%d of %d %s could be written", n, st.rows, st.what)
			}
		}
		if st.then != nil {
			if err := st.then(); err != nil {
				return err
			}
		}
		if st.step != "" {
			s.step(t, st.step)
		}
	}
	return nil
}

// sendPacket sends all statements as one. The server stops at the first error; what follows it is not carried out.
// The driver tells the matched rows of the last statement only, so the server is made to compare them itself.
func sendPacket(ctx context.Context, t *tx, sts []statement) error {
	var text strings.Builder
	var args []any
	for n, st := range sts {
		if n > 0 {
			text.WriteString(endOfStatement)
		}
		text.WriteString(st.query)
		args = append(args, st.args...)
		if st.exact {
			text.WriteString(endOfStatement)
			text.WriteString(qGuard)
			args = append(args, st.rows)
		}
	}
	rows, err := t.conn.QueryContext(ctx, text.String(), args...)
	if err != nil {
		return packetError(err, sts)
	}
	defer rows.Close()
	for n := range sts {
		st := &sts[n]
		if st.scan == nil {
			continue
		}
		for rows.Next() {
			if err := st.scan(rows); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return packetError(err, sts)
		}
		if st.then != nil {
			if err := st.then(); err != nil {
				return err
			}
		}
		rows.NextResultSet() // the next one with columns, or the end; an error shows below
	}
	for rows.NextResultSet() {
	}
	return packetError(rows.Err(), sts)
}

// packetError turns the guard's error into what it stands for.
func packetError(err error, sts []statement) error {
	var me *mysql.MySQLError
	if !errors.As(err, &me) || me.Number != erManyRows {
		return asSQL(err)
	}
	var what []string
	for _, st := range sts {
		if st.exact && !slices.Contains(what, st.what) {
			what = append(what, st.what)
		}
	}
	return corrupt("not all %s could be written", strings.Join(what, ", "))
}
