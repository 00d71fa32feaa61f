package lab

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// session is one of the two people in a step: a connection of its own, in one transaction at a time.
type session struct {
	name string
	conn *sql.Conn
	id   int64 // the server's number of the connection
	tx   *sql.Tx
	acc  *account
	late *pending
}

func newSession(ctx context.Context, db *sql.DB, name string, acc *account) (*session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &session{name: name, conn: conn, acc: acc}
	if err := conn.QueryRowContext(ctx, qConnection).Scan(&s.id); err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), conn.Close())
	}
	return s, nil
}

// newPair makes A and B. close ends both, whatever they are doing.
func newPair(ctx context.Context, db *sql.DB, acc *account) (a, b *session, closeBoth func(), err error) {
	if a, err = newSession(ctx, db, "A", acc); err != nil {
		return nil, nil, nil, err
	}
	if b, err = newSession(ctx, db, "B", acc); err != nil {
		a.close()
		return nil, nil, nil, err
	}
	return a, b, func() { a.close(); b.close() }, nil
}

func (s *session) close() {
	if s.late != nil {
		s.late.cancel()
		<-s.late.done
	}
	if s.tx != nil {
		_ = s.tx.Rollback()
	}
	_ = s.conn.Close()
}

// begin starts a transaction, after it has rolled back the one before.
func (s *session) begin(ctx context.Context, level sql.IsolationLevel) (err error) {
	if s.tx != nil {
		_ = s.tx.Rollback()
	}
	s.acc.say("%s> BEGIN, %s", s.name, strings.ToUpper(level.String()))
	if s.tx, err = s.conn.BeginTx(ctx, &sql.TxOptions{Isolation: level}); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

func (s *session) commit() error {
	s.acc.say("%s> COMMIT", s.name)
	tx := s.tx
	s.tx = nil
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (s *session) rollback() error {
	s.acc.say("%s> ROLLBACK", s.name)
	tx := s.tx
	s.tx = nil
	if err := tx.Rollback(); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// exec runs a statement and gives the rows that it changed.
func (s *session) exec(ctx context.Context, query string, args ...any) (int64, error) {
	p := s.start(ctx, query, args...)
	<-p.done
	s.late = nil
	return p.rows, p.err
}

// pending is a statement under way, perhaps waiting for a lock.
type pending struct {
	done   chan struct{}
	cancel context.CancelFunc
	rows   int64
	err    error
	took   time.Duration
}

// start sends a statement and does not wait for its end.
func (s *session) start(ctx context.Context, query string, args ...any) *pending {
	s.acc.say("%s> %s", s.name, short(query, args...))
	ctx, cancel := context.WithCancel(ctx)
	p := &pending{done: make(chan struct{}), cancel: cancel}
	s.late = p
	tx := s.tx
	go func() {
		defer close(p.done)
		defer cancel()
		began := time.Now()
		res, err := tx.ExecContext(ctx, query, args...)
		p.took = time.Since(began)
		if p.err = err; err == nil {
			p.rows, p.err = res.RowsAffected()
		}
	}()
	return p
}

// wait gives the statement's end.
func (s *session) wait(p *pending) (int64, error) {
	<-p.done
	s.late = nil
	return p.rows, p.err
}

// unit is a row of the pool.
type unit struct{ item, id int64 }

// take runs a SELECT of units and shows which came.
func (s *session) take(ctx context.Context, query string, args ...any) (units []unit, err error) {
	s.acc.say("%s> %s", s.name, short(query, args...))
	rows, err := s.tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("take units: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var u unit
		if err := rows.Scan(&u.item, &u.id); err != nil {
			return nil, fmt.Errorf("take units: %w", err)
		}
		units = append(units, u)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("take units: %w", err)
	}
	s.acc.say("   %s gets %s", s.name, unitsText(units))
	return units, nil
}

// read gives one figure that a session sees.
func (s *session) read(ctx context.Context, query string) (n int64, err error) {
	s.acc.say("%s> %s", s.name, short(query))
	if err := s.tx.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	s.acc.say("   %s sees %d", s.name, n)
	return n, nil
}

func unitsText(units []unit) string {
	if len(units) == 0 {
		return "no row"
	}
	words := make([]string, 0, len(units))
	for _, u := range units {
		words = append(words, fmt.Sprintf("%d/%d", u.item, u.id))
	}
	return "item/unit " + strings.Join(words, " ")
}

// MySQL's numbers of the errors that the steps are about.
const (
	errSyntax   = 1064
	errTwice    = 1062
	errLockWait = 1205
	errDeadlock = 1213
)

// number gives MySQL's number of an error: 0 if there was none. What is not MySQL's stays an error.
func number(err error) (int64, error) {
	var e *mysql.MySQLError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &e):
		return int64(e.Number), nil
	default:
		return 0, err
	}
}

// short is a statement as a person reads it: on one line, without its tag and what is the same in all of them (shop
// and group are 1, the order is the key's), its values in their places.
func short(query string, args ...any) string {
	if from := strings.Index(query, "/* conn_tag:"); from >= 0 {
		to := strings.Index(query[from:], "*/ ")
		query = query[:from] + query[from+to+len("*/ "):]
	}
	query = strings.Join(strings.Fields(query), " ")
	if into, _, ok := strings.Cut(query, " WITH RECURSIVE"); ok {
		query = into + " (? units of item ?)"
	}
	query = strings.NewReplacer("shop_id = 1 AND ", "", " AND group_id = 1", "", "ORDER BY shop_id, item_id, group_id, id", "ORDER BY id").Replace(query)
	for _, arg := range args {
		query = strings.Replace(query, "?", fmt.Sprint(arg), 1)
	}
	return query
}
