package reconcile

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// liveLine is a live line, and what else says something of it.
type liveLine struct {
	bucket   reservation.Bucket
	id       reservation.ID
	quantity int64
	state    string // of its reservation; empty: there is none
	cart     []byte
	ledger   bool // its bucket has a ledger row
	entry    bool // its reservation's claim of the bucket is in the journal
}

// lines looks for live lines whose reservation is not live, not there or of another quantity, or whose bucket has no
// ledger row.
func (r *Reconciler) lines(ctx context.Context, conn *sql.Conn, _ *source, after cursor, limit int) (page, error) {
	var p page
	scan := func(rows *sql.Rows) error {
		var l liveLine
		var raw []byte
		b := &l.bucket
		if err := rows.Scan(&b.Shop, &b.Item, &b.Group, &raw, &l.quantity, &l.state, &l.cart, &l.ledger, &l.entry); err != nil {
			return err //nolint:wrapcheck // each says where
		}
		l.id = idOf(raw)
		p.rows++
		p.last = cursor{bucket: l.bucket, id: l.id}
		r.judgeLine(&p, l)
		return nil
	}
	args := append(after.bucketArgs(), after.bucket.Shop, after.bucket.Item, after.bucket.Group, after.id[:], limit)
	err := each(ctx, conn, scan, qLines, args...)
	return p, err
}

func (r *Reconciler) judgeLine(p *page, l liveLine) {
	b, id, quantity := l.bucket, l.id, l.quantity
	before := cursor{bucket: b, id: beforeID(id)}
	const drop = "DELETE FROM reserved_quantities WHERE reservation_id = %s AND %s"
	giveBack := r.mendBucket(b, "in one transaction: UPDATE inventory_ledger SET unpooled = unpooled + %d WHERE %s; "+drop,
		quantity, ofBucket(b), hexOf(id), ofBucket(b))
	switch {
	case l.state == reservation.Held.String():
		if want, readable := quantityIn(l.cart, b); readable && want != quantity && l.ledger {
			mend := fmt.Sprintf("UPDATE reserved_quantities SET quantity = %d WHERE reservation_id = %s AND %s", want, hexOf(id), ofBucket(b))
			if want == 0 {
				mend = fmt.Sprintf(drop, hexOf(id), ofBucket(b))
			}
			p.add(Finding{
				Check: LineDiffers, Bucket: b, Reservation: id,
				Found: fmt.Sprintf("a live line is %d, and its reservation's cart has %d: a claim would take %d and free %d", quantity, want, want, quantity),
				Fix:   r.mendBucket(b, "%s; and look again: what I2 says then is right", mend),
			}, before)
		}
	case l.state == "":
		p.add(Finding{
			Check: LineOrphan, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a live line of %d belongs to a reservation that is not there: nobody can claim or release it", quantity),
			Fix:   giveBack,
		}, before)
	case l.state == reservation.Claimed.String() && !l.entry:
		p.add(Finding{
			Check: ClaimMissing, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a reservation is claimed, and its deduction of %d is not in the ledger: what was paid for still counts as on hand", quantity),
			Fix: r.mendBucket(b, "in one transaction: UPDATE inventory_ledger SET on_hand = on_hand - %[1]d, version = version + 1 WHERE %[2]s; "+
				"INSERT INTO ledger_entries (shop_id, inventory_item_id, inventory_group_id, kind, ref, delta, version, created_at) "+
				"SELECT shop_id, inventory_item_id, inventory_group_id, 'claim', %[3]s, -%[1]d, version, UTC_TIMESTAMP(6) FROM inventory_ledger WHERE %[2]s; "+
				"DELETE FROM reserved_quantities WHERE reservation_id = %[3]s AND %[2]s", quantity, ofBucket(b), hexOf(id)),
		}, before)
	default:
		p.add(Finding{
			Check: LineEnded, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a live line of %d belongs to a reservation that is %s: nothing will ever give it back", quantity, l.state),
			Fix:   giveBack,
		}, before)
	}
	if !l.ledger {
		p.add(Finding{
			Check: LineBucket, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a live line of %d is of a bucket that has no ledger row: it cannot be claimed", quantity),
			Fix:   ledgerBack,
		}, before)
	}
}

// units looks for unit rows of buckets without a ledger row.
func (r *Reconciler) units(ctx context.Context, conn *sql.Conn, _ *source, after cursor, limit int) (page, error) {
	return r.strays(ctx, conn, qUnits, after, limit, func(b reservation.Bucket) Finding {
		return Finding{
			Check: UnitBucket, Bucket: b,
			Found: "unit rows are there, but no ledger row: they can be reserved, and never claimed",
			Fix: ledgerBack + "; where the bucket is not meant to be: " +
				"DELETE FROM reservation_units WHERE " + ofBucket(b),
		}
	})
}

// entries looks for journals of buckets without a ledger row.
func (r *Reconciler) entries(ctx context.Context, conn *sql.Conn, _ *source, after cursor, limit int) (page, error) {
	return r.strays(ctx, conn, qEntries, after, limit, func(b reservation.Bucket) Finding {
		return Finding{
			Check: EntryBucket, Bucket: b,
			Found: "entries are there, but no ledger row: the bucket is unknown to every caller",
			Fix:   ledgerBack,
		}
	})
}

func (r *Reconciler) strays(ctx context.Context, conn *sql.Conn, query string, after cursor, limit int, finding func(reservation.Bucket) Finding) (page, error) {
	var p page
	scan := func(rows *sql.Rows) error {
		var b reservation.Bucket
		var ledger bool
		if err := rows.Scan(&b.Shop, &b.Item, &b.Group, &ledger); err != nil {
			return err //nolint:wrapcheck // each says where
		}
		p.rows++
		p.last = cursor{bucket: b}
		if !ledger {
			p.add(finding(b), beforeBucket(b))
		}
		return nil
	}
	err := each(ctx, conn, scan, query, append(after.bucketArgs(), limit)...)
	return p, err
}

func idOf(raw []byte) (id reservation.ID) {
	copy(id[:], raw)
	return id
}

// cartOf reads a cart as the column keeps it: [[item,group,quantity],...].
func cartOf(cart []byte) (lines [][3]int64, readable bool) {
	err := json.Unmarshal(cart, &lines)
	return lines, err == nil && len(lines) > 0
}

// quantityIn is what a cart has of a bucket.
func quantityIn(cart []byte, b reservation.Bucket) (quantity int64, readable bool) {
	lines, readable := cartOf(cart)
	for _, l := range lines {
		if l[0] == b.Item && l[1] == b.Group {
			quantity += l[2]
		}
	}
	return quantity, readable
}
