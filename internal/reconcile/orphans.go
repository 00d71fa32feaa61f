package reconcile

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// lines looks for live lines whose reservation is not live or not there, or whose bucket has no ledger row.
func (r *Reconciler) lines(ctx context.Context, conn *sql.Conn, _ *source, after cursor, limit int) (page, error) {
	var p page
	scan := func(rows *sql.Rows) error {
		var (
			b        reservation.Bucket
			raw      []byte
			quantity int64
			state    string
			ledger   bool
		)
		if err := rows.Scan(&b.Shop, &b.Item, &b.Group, &raw, &quantity, &state, &ledger); err != nil {
			return err //nolint:wrapcheck // each says where
		}
		id := idOf(raw)
		p.rows++
		p.last = cursor{bucket: b, id: id}
		r.judgeLine(&p, b, id, quantity, state, ledger)
		return nil
	}
	args := append(after.bucketArgs(), after.bucket.Shop, after.bucket.Item, after.bucket.Group, after.id[:], limit)
	err := each(ctx, conn, scan, qLines, args...)
	return p, err
}

func (r *Reconciler) judgeLine(p *page, b reservation.Bucket, id reservation.ID, quantity int64, state string, ledger bool) {
	before := cursor{bucket: b, id: beforeID(id)}
	giveBack := r.mendBucket(b, "in one transaction: UPDATE inventory_ledger SET unpooled = unpooled + %d WHERE %s; "+
		"DELETE FROM reserved_quantities WHERE reservation_id = %s AND %[2]s", quantity, ofBucket(b), hexOf(id))
	switch state {
	case reservation.Held.String():
	case "":
		p.add(Finding{
			Check: LineOrphan, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a live line of %d belongs to a reservation that is not there: nobody can claim or release it", quantity),
			Fix:   giveBack,
		}, before)
	default:
		p.add(Finding{
			Check: LineEnded, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a live line of %d belongs to a reservation that is %s: nothing will ever give it back", quantity, state),
			Fix:   giveBack,
		}, before)
	}
	if !ledger {
		p.add(Finding{
			Check: LineBucket, Bucket: b, Reservation: id,
			Found: fmt.Sprintf("a live line of %d is of a bucket that has no ledger row: it cannot be claimed", quantity),
			Fix:   "put the ledger row back from a backup or from its entries (on_hand is their sum, version their highest)",
		}, before)
	}
}

// units looks for unit rows of buckets without a ledger row.
func (r *Reconciler) units(ctx context.Context, conn *sql.Conn, _ *source, after cursor, limit int) (page, error) {
	return r.strays(ctx, conn, qUnits, after, limit, func(b reservation.Bucket) Finding {
		return Finding{
			Check: UnitBucket, Bucket: b,
			Found: "unit rows are there, but no ledger row: they can be reserved, and never claimed",
			Fix: "put the ledger row back from a backup or from its entries; where the bucket is not meant to be: " +
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
			Fix:   "put the ledger row back from a backup or from its entries (on_hand is their sum, version their highest)",
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
