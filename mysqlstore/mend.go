package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// qMend gives a record other terms.
const qMend = `/* conn_tag:mend */ UPDATE reservations
SET idem_key = ?, request_hash = ?, cart = ?, expires_at = ?, purge_at = ? WHERE id = ?`

// qShort gives buckets of which more is promised than there is.
const qShort = `/* conn_tag:short */ SELECT shop_id, inventory_item_id, inventory_group_id, unpooled FROM inventory_ledger
WHERE unpooled < 0 ORDER BY shop_id, inventory_item_id, inventory_group_id LIMIT ?`

// Mend gives a record the lines, key, hash and expiry of another, whatever its state: a person's correction. Its units
// move with its lines, also those that are not there (forced). Nothing is written unless the record is still as shown: then
// done is false.
func (s *Store) Mend(ctx context.Context, st reservation.Stamp, shown, to reservation.Record, a reservation.AuditRecord) (forced int64, done bool, err error) {
	if err := validateRecord(to); err != nil {
		return 0, false, err
	}
	ctx, cancel := s.withBudget(inClass(ctx, backgroundClass))
	defer cancel()
	w := work{path: "mend", op: reservation.OpReserve, stamp: st, id: to.ID, lines: len(to.Lines)}
	err = s.write(ctx, w, func(ctx context.Context, t *tx) error {
		forced, done = 0, false
		p, err := lockPair(ctx, t, to)
		switch {
		case err != nil:
			return err
		case p.cur == nil, !shownTerms(p.cur.Record, shown):
			// It may be what an earlier run of this body committed.
			done = p.cur != nil && p.cur.State == shown.State && shownTerms(p.cur.Record, withTerms(shown, to))
			return nil
		case p.holder != nil && p.holder.ID != to.ID:
			return &reservation.InvalidError{Field: "key", Reason: fmt.Sprintf("is that of %s in MySQL: mend that one first", p.holder.ID)}
		}
		if forced, err = s.mend(ctx, t, p, to); err != nil {
			return err
		}
		done = true
		return s.writeDown(ctx, t, st, a)
	})
	return forced, done, err
}

// mend writes the terms, and moves the units of one that holds some.
func (s *Store) mend(ctx context.Context, t *tx, p *pair, to reservation.Record) (forced int64, err error) {
	cur := p.cur
	if cur.State.TakesUnits() {
		if err := p.unknown(to); err != nil {
			return 0, err
		}
		if err := s.giveBack(ctx, t, cur.Shop, cur.Lines); err != nil {
			return 0, err
		}
		if err := s.deleteLines(ctx, t, cur); err != nil {
			return 0, err
		}
		ls, err := lockLedgers(ctx, t, qLedgerLock, bucketsOf(to.Shop, to.Lines)) // as they are now
		if err != nil {
			return 0, err
		}
		takes, units, _, err := lockQuantity(ctx, t, lockWait, to.Shop, to.Lines, ls)
		if err != nil {
			return 0, err
		}
		if err := s.takeLocked(ctx, t, to.Shop, to.Lines, takes, units); err != nil {
			return 0, err
		}
		forced = beyond(takes)
		if err := s.insertLines(ctx, t, to.Shop, to.ID, to.Lines); err != nil {
			return 0, err
		}
	}
	var key []byte
	if to.Key != "" {
		key = []byte(to.Key)
	}
	_, err = exec(ctx, t.conn, qMend, key, to.Hash[:], packCart(to.Lines), to.ExpiresAt, to.PurgeAt, to.ID[:])
	return forced, err
}

// Note writes an audit record down of what a person did with a store's other methods.
func (s *Store) Note(ctx context.Context, st reservation.Stamp, a reservation.AuditRecord) error {
	w := work{path: "note", op: reservation.OpAdjust, stamp: st}
	return s.write(ctx, w, func(ctx context.Context, t *tx) error { return s.writeDown(ctx, t, st, a) })
}

func (s *Store) writeDown(ctx context.Context, t *tx, st reservation.Stamp, a reservation.AuditRecord) error {
	a.Before, a.After = st, st
	return s.insertAudit(ctx, t, a, sql.NullInt64{})
}

// shownTerms compares what a mend looks at.
func shownTerms(a, b reservation.Record) bool {
	return a.Shop == b.Shop && a.State == b.State && a.Key == b.Key && a.Hash == b.Hash && a.Epoch == b.Epoch &&
		a.ExpiresAt.Equal(b.ExpiresAt) && a.PurgeAt.Equal(b.PurgeAt) && slices.Equal(a.Lines, b.Lines)
}

// withTerms is a record with what a mend writes.
func withTerms(r, to reservation.Record) reservation.Record {
	r.Key, r.Hash, r.Lines, r.ExpiresAt, r.PurgeAt = to.Key, to.Hash, to.Lines, to.ExpiresAt, to.PurgeAt
	return r
}

// Short gives some buckets of which more is promised than there is, with by how much.
func (s *Store) Short(ctx context.Context, limit int) (map[reservation.Bucket]int64, error) {
	ctx = inClass(ctx, backgroundClass)
	var out map[reservation.Bucket]int64
	err := s.read(ctx, "short", func(ctx context.Context) error {
		out = map[reservation.Bucket]int64{}
		return each(ctx, s.reads, func(rows *sql.Rows) error {
			var b reservation.Bucket
			var unpooled int64
			err := rows.Scan(&b.Shop, &b.Item, &b.Group, &unpooled)
			out[b] = -unpooled
			return asSQL(err)
		}, qShort, limit)
	})
	return out, err
}
