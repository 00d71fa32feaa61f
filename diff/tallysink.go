package diff

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// TallyRow is one count of one hour, as this process has counted it so far.
type TallyRow struct {
	Hour time.Time
	Op   string
	Kind string
	Name string
	N    int64
}

// TallySink takes the engine's counts in batches. Each row replaces what the process wrote for the same hour and count
// before, so that a flush whose reply was lost may be sent again.
type TallySink interface {
	PutTallies(ctx context.Context, rows []TallyRow) error
}

// TallyTable keeps tallies in the pod's own MySQL, table diff_tallies, one row an hour, router and count.
type TallyTable struct {
	DB  *sql.DB
	Pod string
	// Router names this run of the process: two that share a name would overwrite each other's counts.
	Router string
}

var (
	_ TallySink = (*TallyTable)(nil)
	_ GapReader = (*TallyTable)(nil)
)

const (
	sqlPutTallies = `INSERT /* conn_tag:diff.flush */ INTO diff_tallies (pod, hour, router, op, kind, name, n) VALUES `
	sqlPutUpdate  = ` AS put ON DUPLICATE KEY UPDATE n = GREATEST(diff_tallies.n, put.n)`
	sqlTallyRow   = `(?, ?, ?, ?, ?, ?, ?)`
	sqlSumTallies = `SELECT /* conn_tag:diff.read */ op, kind, name, SUM(n) FROM diff_tallies WHERE pod = ? AND hour >= ? GROUP BY op, kind, name`
	// The gaps left out are those in which the truth moved nothing, or the mirror was told all the same.
	sqlOthersGaps = `SELECT /* conn_tag:diff.read */ COALESCE(SUM(n), 0) FROM diff_tallies WHERE pod = ? AND hour >= ? ` +
		`AND router <> ? AND kind = 'gap' AND name NOT IN ('unavailable', 'frozen', 'backfilled', 'no_mirror', 'incoherent')`
)

// PutTallies writes the rows in one statement: all of them or none.
func (t *TallyTable) PutTallies(ctx context.Context, rows []TallyRow) error {
	if len(rows) == 0 {
		return nil
	}
	args := make([]any, 0, 7*len(rows))
	for _, r := range rows {
		args = append(args, t.Pod, r.Hour, t.Router, r.Op, r.Kind, r.Name, r.N)
	}
	values := strings.Repeat(sqlTallyRow+", ", len(rows)-1) + sqlTallyRow
	if _, err := t.DB.ExecContext(ctx, sqlPutTallies+values+sqlPutUpdate, args...); err != nil {
		return fmt.Errorf("write %d tallies of pod %s: %w", len(rows), t.Pod, err)
	}
	return nil
}

// Read sums the tallies of every router since a time.
func (t *TallyTable) Read(ctx context.Context, since time.Time) (Tally, error) {
	n, err := t.cells(ctx, sqlSumTallies, t.Pod, since)
	if err != nil {
		return Tally{}, err
	}
	return tallyOf(n), nil
}

// OthersGaps counts the operations of other routers that a mirror has missed, in the hours from since on.
func (t *TallyTable) OthersGaps(ctx context.Context, since time.Time) (n int64, err error) {
	if err = t.DB.QueryRowContext(ctx, sqlOthersGaps, t.Pod, since, t.Router).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the gaps of the other routers of pod %s: %w", t.Pod, err)
	}
	return n, nil
}

func parseCell(op, kindName, name string) (cell, error) {
	c := cell{name: name}
	for _, o := range reservation.Ops() {
		if o.String() == op {
			c.op = o
		}
	}
	for k := kindOperations; k < kindEnd; k++ {
		if k.String() == kindName {
			c.kind = k
		}
	}
	if c.op == 0 || c.kind == 0 {
		return cell{}, fmt.Errorf("table diff_tallies holds an unknown count (%s, %s): a newer version wrote it", op, kindName)
	}
	return c, nil
}

// Flush hands the present hour's counts to the sink. What fails is kept for the next flush; counts that come while
// the hour changes belong to the hour of the flush that first carries them.
func (e *Engine) Flush(ctx context.Context) error {
	if e.opt.Sink == nil {
		return nil
	}
	e.flushing.Lock()
	defer e.flushing.Unlock()
	now := e.now().UTC().Truncate(time.Hour)
	e.mu.Lock()
	if e.tally.hour.IsZero() {
		e.tally.hour = now
	}
	hour := e.tally.hour
	taken := e.tally.snapshot()
	var rows []TallyRow
	for c, n := range taken {
		if n != e.tally.flushed[c] {
			rows = append(rows, TallyRow{Hour: hour, Op: c.op.String(), Kind: c.kind.String(), Name: c.name, N: n - e.tally.base[c]})
		}
	}
	e.mu.Unlock()
	if len(rows) > 0 {
		if err := e.opt.Sink.PutTallies(ctx, rows); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tally.flushed = taken
	if now.After(hour) {
		e.tally.hour, e.tally.base = now, taken
	}
	return nil
}
