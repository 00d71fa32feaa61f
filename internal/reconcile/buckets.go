package reconcile

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// shortJournal is how many entries of a bucket are summed beside its figures. More are summed piece by piece, each piece
// in a snapshot of its own: entries are never changed, and those up to a version of the ledger are a closed set.
const shortJournal = 5000

// long is a journal that is summed piece by piece.
type long struct {
	bucket          reservation.Bucket
	onHand, version int64
}

// buckets reads figures and judges I2 and I3.
func (r *Reconciler) buckets(ctx context.Context, conn *sql.Conn, _ *source, after cursor, limit int) (page, error) {
	var p page
	scan := func(rows *sql.Rows) error {
		var (
			b                               reservation.BucketState
			pool, reserved, entries, summed int64
		)
		if err := rows.Scan(&b.Bucket.Shop, &b.Bucket.Item, &b.Bucket.Group, &b.OnHand, &b.Unpooled, &b.Version,
			&pool, &reserved, &entries, &summed); err != nil {
			return err //nolint:wrapcheck // each says where
		}
		b.Pool, b.Reserved = pool, reserved
		p.rows++
		p.last = cursor{bucket: b.Bucket}
		r.judgePool(&p, b)
		if entries > shortJournal {
			p.long = append(p.long, long{b.Bucket, b.OnHand, b.Version})
			return nil
		}
		r.judgeJournal(&p, b.Bucket, b.OnHand, entries, summed)
		return nil
	}
	err := each(ctx, conn, scan, qBuckets, append(after.bucketArgs(), limit, shortJournal+1)...)
	return p, err
}

// judgePool is I2.
func (r *Reconciler) judgePool(p *page, b reservation.BucketState) {
	if off := b.Pool + b.Reserved + b.Unpooled - b.OnHand; off != 0 {
		means := "so many are on hand and cannot be bought"
		if off > 0 {
			means = "so many can be promised and are not on hand"
		}
		p.add(Finding{
			Check: I2, Bucket: b.Bucket,
			Found: fmt.Sprintf("%d in the pool + %d reserved + %d unpooled = %d, but on hand are %d: off by %+d, %s",
				b.Pool, b.Reserved, b.Unpooled, b.Pool+b.Reserved+b.Unpooled, b.OnHand, off, means),
			Fix: "mend what else is found of this bucket first and look again, since that changes what is off; " +
				r.mendBucket(b.Bucket, "UPDATE inventory_ledger SET unpooled = unpooled %s WHERE %s", plus(-off), ofBucket(b.Bucket)),
		}, beforeBucket(b.Bucket))
	}
	if b.Unpooled < 0 && b.Pool > 0 {
		n := min(-b.Unpooled, b.Pool)
		p.add(Finding{
			Check: Negative, Bucket: b.Bucket,
			Found: fmt.Sprintf("unpooled is %d (so many are promised twice) while %d units are in the pool, where anybody can still take them", b.Unpooled, b.Pool),
			Fix: r.mendBucket(b.Bucket, "in one transaction: SELECT * FROM inventory_ledger WHERE %[1]s FOR UPDATE; DELETE FROM reservation_units "+
				"WHERE %[1]s ORDER BY id DESC LIMIT %[2]d; UPDATE inventory_ledger SET unpooled = unpooled + (the rows deleted) WHERE %[1]s", ofBucket(b.Bucket), n),
		}, beforeBucket(b.Bucket))
	}
}

// judgeJournal is I3.
func (r *Reconciler) judgeJournal(p *page, b reservation.Bucket, onHand, entries, summed int64) {
	if summed == onHand {
		return
	}
	p.add(Finding{
		Check: I3, Bucket: b,
		Found: fmt.Sprintf("on hand are %d, but its %d entries sum to %d: off by %+d", onHand, entries, summed, onHand-summed),
		Fix: r.mendBucket(b, "count the stock. Where the entries are right: UPDATE inventory_ledger SET on_hand = on_hand - (%[1]d), "+
			"unpooled = unpooled - (%[1]d), version = version + 1 WHERE %[2]s. Where on_hand is right, the entry that is missing or "+
			"too many has to be put right", onHand-summed, ofBucket(b)),
	}, beforeBucket(b))
}

// walkJournal sums a long journal.
func (r *Reconciler) walkJournal(ctx context.Context, src *source, l long, counts *Counts, p *page) error {
	kind, ref := []byte{}, []byte{} // before every key; nil would be NULL
	var entries, summed int64
	for {
		var n int64
		err := src.snapshot(ctx, func(ctx context.Context, conn *sql.Conn) error {
			n = 0
			return each(ctx, conn, func(rows *sql.Rows) error {
				var some, sum int64
				if err := rows.Scan(&kind, &ref, &some, &sum); err != nil {
					return err //nolint:wrapcheck // each says where
				}
				n += some
				summed += sum
				return nil
			}, qJournal, l.version, l.bucket.Shop, l.bucket.Item, l.bucket.Group, kind, kind, ref, shortJournal)
		})
		if err != nil {
			return err
		}
		counts.Pages++
		entries += n
		if n < shortJournal {
			break
		}
		if err := r.rest(ctx, 0); err != nil {
			return err
		}
	}
	r.judgeJournal(p, l.bucket, l.onHand, entries, summed)
	return nil
}
