package lab

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
)

// The longest that a lock is waited for: long enough to be seen waiting, and in the step that shows the time-out itself
// as short as MySQL can.
const (
	patient   = 3 * time.Second
	impatient = time.Second
)

// tidyTimeout bounds the removal of what a run made.
const tidyTimeout = 10 * time.Second

// scratch is a schema and a prefix of Redis keys that are the run's alone.
type scratch struct {
	admin  *mysql.Config // reaches the server without a schema
	schema string
	db     *sql.DB // looks on, and sets up
	short  *sql.DB // waits for locks for one second only
	redis  *legacyredis.Client
	prefix string
}

func openScratch(ctx context.Context, dsn, url string) (*scratch, error) {
	admin, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("MySQL DSN: %w (use user:password@tcp(host:port)/)", err)
	}
	name := strings.ToLower(rand.Text()[:12])
	s := &scratch{admin: admin, schema: "twinhold_lab_" + name, prefix: "{lab-" + name + "}:field:"}
	if s.redis, err = legacyredis.NewClient(url, "lab-"+name); err != nil {
		return nil, err
	}
	admin.DBName = ""
	if err := s.watching(ctx); err != nil {
		_ = s.redis.Close()
		return nil, err
	}
	if err := s.onServer(ctx, qCreateSchema+s.schema); err != nil {
		_ = s.redis.Close()
		return nil, fmt.Errorf("create the scratch schema %s: %w", s.schema, err)
	}
	inside := admin.Clone()
	inside.DBName = s.schema
	s.db, err = mysqlstore.OpenDB(inside.FormatDSN(), mysqlstore.Options{LockWait: patient})
	if err == nil {
		s.short, err = mysqlstore.OpenDB(inside.FormatDSN(), mysqlstore.Options{LockWait: impatient})
	}
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// ErrBlind: the server does not tell of its locks.
var ErrBlind = errors.New("this MySQL runs with performance_schema=OFF, so it does not tell of its locks")

// watching refuses a server on which nothing could be shown, before anything is made there.
func (s *scratch) watching(ctx context.Context) (err error) {
	c, err := mysql.NewConnector(s.admin)
	if err != nil {
		return fmt.Errorf("MySQL DSN: %w", err)
	}
	db := sql.OpenDB(c)
	defer func() { err = errors.Join(err, db.Close()) }()
	var on bool
	if err := db.QueryRowContext(ctx, qWatching).Scan(&on); err != nil {
		return fmt.Errorf("ask MySQL: %w", err)
	}
	if !on {
		return ErrBlind
	}
	return nil
}

// close removes everything, also when the person has interrupted the run.
func (s *scratch) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	for _, db := range []*sql.DB{s.db, s.short} {
		if db != nil {
			_ = db.Close()
		}
	}
	err := s.onServer(ctx, qDropSchema+s.schema)
	if err != nil {
		err = fmt.Errorf("remove the scratch schema %s (do it by hand): %w", s.schema, err)
	}
	return errors.Join(err, s.redis.Close())
}

// onServer runs one statement outside any schema.
func (s *scratch) onServer(ctx context.Context, query string) (err error) {
	c, err := mysql.NewConnector(s.admin)
	if err != nil {
		return fmt.Errorf("MySQL DSN: %w", err)
	}
	db := sql.OpenDB(c)
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, query)
	return err
}

// setUp runs statements that no step shows. A step starts with new tables: rows that an earlier one has deleted would
// still carry locks until they are purged.
func (s *scratch) setUp(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := s.db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("set the step up: %w", err)
		}
	}
	return nil
}

// fill runs one such statement with values.
func (s *scratch) fill(ctx context.Context, query string, args ...any) error {
	if _, err := s.db.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("set the step up: %w", err)
	}
	return nil
}

// newUnits makes the pool anew, with so many units of each of these items.
func (s *scratch) newUnits(ctx context.Context, each int, items ...int) error {
	if err := s.setUp(ctx, qDropUnits, qCreateUnits); err != nil {
		return err
	}
	for _, item := range items {
		if err := s.fill(ctx, qRefill, each, item); err != nil {
			return err
		}
	}
	return nil
}

// number reads one figure, for the step's account.
func (s *scratch) number(ctx context.Context, query string) (n int64, err error) {
	if err := s.db.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("look at the figure: %w", err)
	}
	return n, nil
}
