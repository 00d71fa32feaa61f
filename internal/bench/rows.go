package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	erDuplicate = 1062
	erLockWait  = 1205
	erDeadlock  = 1213
	// rowConns is how many connections a row scheme has at most in one process: as many as mysqlstore has. 8 and 64 made
	// no difference, since all but one wait for the row.
	rowConns = 32
	// optimisticConns is smaller, since each of them makes the others lose: 32 were half as fast.
	optimisticConns = 8
)

// rowScheme is a scheme on the tables of the single row.
func rowScheme(name, what string, open func(context.Context, Job) (session, error)) scheme {
	return scheme{name: name, what: what, setUp: setUpRows, open: open, read: readRows}
}

func setUpRows(ctx context.Context, p place, stock int64) (int64, error) {
	db, err := openRows(p.DSN, 1)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	for _, q := range []string{qRowInventory, qRowHeaders} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return 0, fmt.Errorf("create the tables of the single row: %w", err)
		}
	}
	items := make([]int, p.Buckets)
	for n := range items {
		items[n] = n + 1
	}
	list, err := json.Marshal(items)
	if err != nil {
		return 0, err
	}
	if _, err := db.ExecContext(ctx, qRowStock, stock, string(list)); err != nil {
		return 0, fmt.Errorf("stock the single rows: %w", err)
	}
	return 0, nil
}

func readRows(ctx context.Context, p place, stock int64) (books, error) {
	db, err := openRows(p.DSN, 1)
	if err != nil {
		return books{}, err
	}
	defer db.Close()
	b := books{stock: stock * int64(p.Buckets)}
	err = db.QueryRowContext(ctx, qRowBooks).Scan(&b.left, &b.held, &b.granted, &b.rejected)
	if err != nil {
		return b, fmt.Errorf("read the single rows: %w", err)
	}
	return b, nil
}

// openRows opens a schema as an expert would: arguments written into the statement by the client (one round trip a
// statement in place of three), several statements in a packet, READ COMMITTED.
func openRows(dsn string, conns int) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("MySQL DSN: %w", err)
	}
	cfg.InterpolateParams = true
	cfg.MultiStatements = true
	cfg.Collation = "utf8mb4_bin"
	cfg.Logger = &mysql.NopLogger{}
	params := map[string]string{}
	for k, v := range cfg.Params {
		params[k] = v
	}
	params["transaction_isolation"] = "'READ-COMMITTED'"
	cfg.Params = params
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("MySQL DSN: %w", err)
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// rows is what the row sessions share.
type rows struct {
	db   *sql.DB
	hold time.Duration
}

func newRows(j Job, conns int) (rows, error) {
	db, err := openRows(j.DSN, min(j.callers(), conns))
	return rows{db: db, hold: j.Hold}, err
}

func (r rows) close() error { return r.db.Close() }

// again runs one attempt until it is not a victim of a deadlock or of a lock wait. A key that is there already is
// answered with what it was answered then.
func (r rows) again(ctx context.Context, c call, try func() (answer, error)) (reply, error) {
	for {
		a, err := try()
		var me *mysql.MySQLError
		switch {
		case err == nil:
			return reply{answer: a}, nil
		case !errors.As(err, &me):
			return reply{}, err
		case me.Number == erDuplicate:
			return r.replay(ctx, c)
		case me.Number != erDeadlock && me.Number != erLockWait:
			return reply{}, err
		}
		if ctx.Err() != nil {
			return reply{}, context.Cause(ctx)
		}
	}
}

func (r rows) replay(ctx context.Context, c call) (reply, error) {
	var state string
	if err := r.db.QueryRowContext(ctx, qRowByKey, c.key).Scan(&state); err != nil {
		return reply{}, fmt.Errorf("read the header of a key that is taken: %w", err)
	}
	if state == "rejected" {
		return reply{answer: rejected, replayed: true}, nil
	}
	return reply{answer: granted, replayed: true}, nil
}

// written is the single row as it is written in the field.
type written struct{ rows }

func openWritten(_ context.Context, j Job) (session, error) {
	r, err := newRows(j, rowConns)
	return &written{r}, err
}

func (w *written) reserve(ctx context.Context, c call) (reply, error) {
	return w.again(ctx, c, func() (answer, error) { return w.try(ctx, c) })
}

func (w *written) try(ctx context.Context, c call) (answer, error) {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	res, err := tx.ExecContext(ctx, qRowTake, c.bucket+1)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, err
	}
	a, state := granted, "held"
	if n == 0 {
		a, state = rejected, "rejected"
	}
	if _, err := tx.ExecContext(ctx, qRowInsert, c.id[:], c.key, c.bucket+1, state); err != nil {
		return 0, err
	}
	if err := wait(ctx, w.hold); err != nil {
		return 0, err
	}
	return a, tx.Commit()
}

// best is the strongest form of the single row: one packet, one round trip. The header goes first, so that the row's
// lock is held from the UPDATE to the COMMIT and for nothing else; a header whose UPDATE found too little becomes a
// stored rejection in the same transaction. (The UPDATE first, and a stored procedure, were as fast.)
type best struct {
	rows
	// soldOut is where sold out was seen last: there, a look without locks and the stored rejection are one statement.
	soldOut atomic.Bool
}

func openBest(_ context.Context, j Job) (session, error) {
	r, err := newRows(j, rowConns)
	return &best{rows: r}, err
}

func (b *best) reserve(ctx context.Context, c call) (reply, error) {
	return b.again(ctx, c, func() (answer, error) { return b.try(ctx, c) })
}

func (b *best) try(ctx context.Context, c call) (answer, error) {
	if b.soldOut.Load() {
		done, err := b.reject(ctx, c)
		if done || err != nil {
			return rejected, err
		}
		b.soldOut.Store(false)
	}
	query, args := qBest, []any{c.id[:], c.key, c.bucket + 1, c.bucket + 1, c.id[:]}
	if b.hold > 0 {
		query, args = qBestHold, append(args, b.hold.Seconds())
	}
	counts, err := packet(ctx, b.db, query, args...)
	switch {
	case err != nil:
		return 0, err
	case counts[2] == 1:
		return granted, nil
	}
	b.soldOut.Store(true)
	return rejected, nil
}

// reject stores a rejection if nothing is available, which it reads without locks.
func (b *best) reject(ctx context.Context, c call) (bool, error) {
	res, err := b.db.ExecContext(ctx, qRowReject, c.id[:], c.key, c.bucket+1, c.bucket+1)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// packet sends several statements at once and gives how many rows each has changed. After an error the transaction
// may be open, so it is rolled back, or the connection thrown away.
func packet(ctx context.Context, db *sql.DB, query string, args ...any) (counts []int64, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = conn.Raw(func(raw any) error {
		named := make([]driver.NamedValue, len(args))
		for n, a := range args {
			v, err := driver.DefaultParameterConverter.ConvertValue(a)
			if err != nil {
				return err
			}
			named[n] = driver.NamedValue{Ordinal: n + 1, Value: v}
		}
		ex, ok := raw.(driver.ExecerContext)
		if !ok {
			return errors.New("the MySQL driver does not execute packets")
		}
		res, err := ex.ExecContext(ctx, query, named)
		if err != nil {
			return err
		}
		all, ok := res.(mysql.Result)
		if !ok {
			return errors.New("the MySQL driver does not count the rows of each statement")
		}
		counts = all.AllRowsAffected()
		return nil
	})
	if err != nil {
		if _, back := conn.ExecContext(ctx, qRollback); back != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
	return counts, err
}

// optimistic reads the row's version without a lock, and writes only if nobody was faster.
type optimistic struct{ rows }

func openOptimistic(_ context.Context, j Job) (session, error) {
	r, err := newRows(j, optimisticConns)
	return &optimistic{r}, err
}

func (o *optimistic) reserve(ctx context.Context, c call) (reply, error) {
	for n := 0; ; n++ {
		lost := false
		r, err := o.again(ctx, c, func() (a answer, err error) {
			a, lost, err = o.try(ctx, c)
			return a, err
		})
		if err != nil || !lost {
			return r, err
		}
		// Jittered, and longer with each loss: else everybody loses again.
		if err := wait(ctx, rand.N(100*time.Microsecond<<min(n, 8))); err != nil {
			return reply{}, err
		}
	}
}

func (o *optimistic) try(ctx context.Context, c call) (a answer, lost bool, err error) {
	var available, version int64
	if err := o.db.QueryRowContext(ctx, qRowVersion, c.bucket+1).Scan(&available, &version); err != nil {
		return 0, false, err
	}
	if available < 1 {
		_, err := o.db.ExecContext(ctx, qRowInsert, c.id[:], c.key, c.bucket+1, "rejected")
		return rejected, false, err
	}
	query, args := qOptimistic, []any{c.bucket + 1, version, c.id[:], c.key, c.bucket + 1}
	if o.hold > 0 {
		query, args = qOptimisticHold, append(args, o.hold.Seconds())
	}
	counts, err := packet(ctx, o.db, query, args...)
	if err != nil {
		return 0, false, err
	}
	return granted, counts[1] == 0, nil
}
