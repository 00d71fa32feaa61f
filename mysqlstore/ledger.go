package mysqlstore

import (
	"context"
	"database/sql"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// level is a bucket's figures as one transaction sees them. Without a ledger row it is not known.
type level struct {
	bucket                    reservation.Bucket
	known                     bool
	onHand, unpooled, version int64
	pool                      int64 // visible unit rows; where it was counted
}

func (l level) available() int64 { return l.unpooled + l.pool }

// ledgers are the locked ledger rows of an operation, in primary-key order.
type ledgers []level

func (ls ledgers) find(b reservation.Bucket) *level {
	n, ok := slices.BinarySearchFunc(ls, b, func(l level, b reservation.Bucket) int { return l.bucket.Compare(b) })
	if !ok {
		return nil
	}
	return &ls[n]
}

// unknown gives an error for the first bucket that has no ledger row.
func (ls ledgers) unknown() error {
	for _, l := range ls {
		if !l.known {
			return &reservation.UnknownBucketError{Bucket: l.bucket}
		}
	}
	return nil
}

// lockLedgers locks the ledger rows of these buckets in primary-key order. With qLedgerTryLock, locked ones are
// skipped and stay unknown.
func lockLedgers(ctx context.Context, t *tx, query string, buckets []reservation.Bucket) (ledgers, error) {
	ls := newLedgers(buckets)
	lock := ls.lock()
	if query != qLedgerLock {
		lock.query, lock.args = query, []any{jsonBucketList(ls.buckets())}
	}
	err := each(ctx, t.conn, lock.scan, lock.query, lock.args...)
	return ls, err
}

// lock is the statement that locks these rows and reads them.
func (ls ledgers) lock() statement {
	if len(ls) == 1 {
		b := ls[0].bucket
		return statement{query: qLedgerLockOne, args: []any{b.Shop, b.Item, b.Group}, scan: ls.scan}
	}
	return statement{query: qLedgerLock, args: []any{jsonBucketList(ls.buckets())}, scan: ls.scan}
}

// newLedgers is these buckets in order, each once, of which nothing is known yet.
func newLedgers(buckets []reservation.Bucket) ledgers {
	sorted := slices.Clone(buckets)
	slices.SortFunc(sorted, reservation.Bucket.Compare)
	sorted = slices.Compact(sorted)
	ls := make(ledgers, len(sorted))
	for n, b := range sorted {
		ls[n].bucket = b
	}
	return ls
}

func (ls ledgers) buckets() []reservation.Bucket {
	out := make([]reservation.Bucket, len(ls))
	for n, l := range ls {
		out[n] = l.bucket
	}
	return out
}

func (ls ledgers) scan(rows *sql.Rows) error {
	var l level
	if err := rows.Scan(&l.bucket.Shop, &l.bucket.Item, &l.bucket.Group, &l.onHand, &l.unpooled, &l.version); err != nil {
		return asSQL(err)
	}
	l.known = true
	if at := ls.find(l.bucket); at != nil {
		*at = l
	}
	return nil
}

// countLevels reads figures and counts units without locks, in the order of the buckets given.
func countLevels(ctx context.Context, r runner, buckets []reservation.Bucket) ([]level, error) {
	out := make([]level, 0, len(buckets))
	err := each(ctx, r, func(rows *sql.Rows) error {
		l, err := scanLevel(rows)
		out = append(out, l)
		return err
	}, qLedgerCount, jsonBucketList(buckets))
	if err == nil && len(out) != len(buckets) {
		err = corrupt("asked for %d buckets, got %d", len(buckets), len(out))
	}
	return out, err
}

// scanLevel reads a row of qLedgerCount.
func scanLevel(rows *sql.Rows) (level, error) {
	var (
		l                         level
		onHand, unpooled, version sql.NullInt64
	)
	err := rows.Scan(&l.bucket.Shop, &l.bucket.Item, &l.bucket.Group, &onHand, &unpooled, &version, &l.pool)
	l.known = onHand.Valid
	l.onHand, l.unpooled, l.version = onHand.Int64, unpooled.Int64, version.Int64
	return l, asSQL(err)
}

// levelsOf counts what is available to each line, for a caller that wants to show it.
func levelsOf(ls []level) []reservation.Level {
	out := make([]reservation.Level, len(ls))
	for n, l := range ls {
		out[n] = reservation.Level{Bucket: l.bucket, Available: l.available()}
	}
	return out
}

// shortagesOf gives the lines that cannot be had of these levels, which are in the order of the lines.
func shortagesOf(lines []reservation.Line, ls []level) []reservation.Shortage {
	var out []reservation.Shortage
	for n, l := range lines {
		if a := ls[n].available(); a < l.Quantity {
			out = append(out, reservation.Shortage{Item: l.Item, Group: l.Group, Requested: l.Quantity, Available: a})
		}
	}
	return out
}

// move is one bucket's change in the ledger.
type move struct {
	bucket                    reservation.Bucket
	onHand, unpooled, version int64
}

// moveLedgers applies changes to ledger rows that are already locked. None may take on_hand below 0.
func (s *Store) moveLedgers(ctx context.Context, t *tx, moves []move) error {
	return s.sendSingly(ctx, t, []statement{t.moves(moves)})
}

func (t *tx) moves(moves []move) statement {
	rows := make([][]int64, len(moves))
	for n, m := range moves {
		rows[n] = []int64{m.bucket.Shop, m.bucket.Item, m.bucket.Group, m.onHand, m.unpooled, m.version}
		if m.unpooled != 0 {
			t.moved = append(t.moved, m.bucket)
		}
	}
	const rowsOf = "ledger rows"
	if len(moves) == 1 {
		m, b := moves[0], moves[0].bucket
		return change("ledger", 1, rowsOf, qLedgerMoveOne, m.onHand, m.unpooled, m.version, b.Shop, b.Item, b.Group, m.onHand)
	}
	return change("ledger", len(moves), rowsOf, qLedgerMove, jsonRows(rows))
}

// claimChanges is what a claim of this record does to locked ledger rows, one change a line.
func claimChanges(ls ledgers, rec reservation.Record) []reservation.Change {
	out := make([]reservation.Change, len(rec.Lines))
	for n, l := range rec.Lines {
		b := l.Bucket(rec.Shop)
		out[n] = reservation.Change{Bucket: b, Delta: -l.Quantity, Version: ls.find(b).version + 1}
	}
	return out
}

// giveBack raises unpooled by the quantities of these lines.
func (s *Store) giveBack(ctx context.Context, t *tx, shop int64, lines []reservation.Line) error {
	moves := make([]move, len(lines))
	for n, l := range lines {
		moves[n] = move{bucket: l.Bucket(shop), unpooled: l.Quantity}
	}
	return s.moveLedgers(ctx, t, moves)
}
