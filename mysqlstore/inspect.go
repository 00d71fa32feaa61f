package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// inspectTimeout bounds the snapshot: a read view that stays open for long keeps old row versions alive.
const inspectTimeout = 5 * time.Minute

// Inspect reads the whole schema in one read-only REPEATABLE READ snapshot, so its figures belong together. They
// are raw: nothing is computed from the rest.
func (s *Store) Inspect(ctx context.Context) (reservation.Snapshot, error) {
	ctx = inClass(ctx, backgroundClass)
	var i *inspection
	err := s.inTx(ctx, inspectTimeout, qIsolateRR, qSnapshot, func(ctx context.Context, t *tx) (err error) {
		i = &inspection{s: s, t: t, at: map[reservation.Bucket]int{}}
		i.snap = reservation.Snapshot{Store: reservation.MySQL, Lines: map[reservation.ID][]reservation.Line{}}
		if i.snap.Fence, _, err = s.readFence(ctx, t.conn, qFenceRead); err != nil {
			return err
		}
		for _, part := range []func(context.Context) error{i.ledger, i.records, i.units, i.lines, i.entries, i.marks} {
			if err := part(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		if isAnswer(err) {
			return reservation.Snapshot{}, err
		}
		return reservation.Snapshot{}, unavailable(err)
	}
	return i.snap, nil
}

type inspection struct {
	s    *Store
	t    *tx
	snap reservation.Snapshot
	at   map[reservation.Bucket]int
	ids  []reservation.ID
}

func (i *inspection) orphan(format string, args ...any) {
	i.snap.Orphans = append(i.snap.Orphans, fmt.Sprintf(format, args...))
}

func (i *inspection) ledger(ctx context.Context) error {
	return each(ctx, i.t.conn, func(rows *sql.Rows) error {
		var b reservation.BucketState
		err := rows.Scan(&b.Bucket.Shop, &b.Bucket.Item, &b.Bucket.Group, &b.OnHand, &b.Unpooled, &b.Version)
		i.at[b.Bucket] = len(i.snap.Buckets)
		i.snap.Buckets = append(i.snap.Buckets, b)
		return asSQL(err)
	}, qInspectLedger)
}

func (i *inspection) records(ctx context.Context) error {
	return each(ctx, i.t.conn, func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if r == nil {
			return err
		}
		if err != nil {
			i.orphan("%v", err)
		}
		i.ids = append(i.ids, r.ID)
		i.snap.Records = append(i.snap.Records, r.Record)
		return nil
	}, qInspectRecords)
}

func (i *inspection) units(ctx context.Context) error {
	return each(ctx, i.t.conn, func(rows *sql.Rows) error {
		var b reservation.Bucket
		var n int64
		if err := rows.Scan(&b.Shop, &b.Item, &b.Group, &n); err != nil {
			return asSQL(err)
		}
		if at, ok := i.at[b]; ok {
			i.snap.Buckets[at].Pool = n
		} else {
			i.orphan("%d units of bucket %s, which has no ledger row", n, b)
		}
		return nil
	}, qInspectUnits)
}

func (i *inspection) lines(ctx context.Context) error {
	return each(ctx, i.t.conn, func(rows *sql.Rows) error {
		var (
			b  reservation.Bucket
			id []byte
			q  int64
		)
		if err := rows.Scan(&b.Shop, &b.Item, &b.Group, &id, &q); err != nil {
			return asSQL(err)
		}
		res := reservation.ID(id)
		if at, ok := i.at[b]; ok {
			i.snap.Buckets[at].Reserved += q
		} else {
			i.orphan("a line of bucket %s, which has no ledger row", b)
		}
		i.snap.Lines[res] = append(i.snap.Lines[res], reservation.Line{Item: b.Item, Group: b.Group, Quantity: q})
		n, ok := slices.BinarySearchFunc(i.ids, res, func(a, b reservation.ID) int { return slices.Compare(a[:], b[:]) })
		switch {
		case !ok:
			i.orphan("a line of bucket %s of reservation %s, which is not there", b, res)
		case !i.snap.Records[n].State.TakesUnits():
			i.orphan("a line of bucket %s of reservation %s, which is %s", b, res, i.snap.Records[n].State)
		}
		return nil
	}, qInspectLines)
}

func (i *inspection) entries(ctx context.Context) error {
	return each(ctx, i.t.conn, func(rows *sql.Rows) error {
		var (
			e    reservation.Entry
			kind string
			ref  []byte
		)
		err := rows.Scan(&e.Bucket.Shop, &e.Bucket.Item, &e.Bucket.Group, &kind, &ref, &e.Delta, &e.Version, &e.Forced, &e.At)
		if err != nil {
			return asSQL(err)
		}
		e.Kind = reservation.EntryKind(kind)
		switch e.Kind {
		case reservation.EntryClaim:
			copy(e.Reservation[:], ref)
		case reservation.EntryAdjust:
			e.Adjustment = string(ref)
		case reservation.EntryStock:
		}
		if _, ok := i.at[e.Bucket]; !ok {
			i.orphan("an entry of bucket %s, which has no ledger row", e.Bucket)
		}
		i.snap.Entries = append(i.snap.Entries, e)
		return nil
	}, qInspectEntries)
}

// marks compares the notes with the rows that they are on: both say it, or neither.
func (i *inspection) marks(ctx context.Context) error {
	noted := map[reservation.ID]bool{}
	err := each(ctx, i.t.conn, func(rows *sql.Rows) error {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return asSQL(err)
		}
		noted[reservation.ID(id)] = true
		return nil
	}, qInspectMarks)
	if err != nil {
		return err
	}
	for _, r := range i.snap.Records {
		if r.Marked != noted[r.ID] {
			i.orphan("reservation %s: its row says marked: %t, reservation_marks: %t", r.ID, r.Marked, noted[r.ID])
		}
		delete(noted, r.ID)
	}
	for _, id := range slices.SortedFunc(maps.Keys(noted), func(a, b reservation.ID) int { return slices.Compare(a[:], b[:]) }) {
		i.orphan("a mark of reservation %s, which is not there", id)
	}
	return nil
}
