package reconcile

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// holds looks for live reservations without lines, and for those that are held long past their expiry. What a replica
// has not heard of yet is no fault: its lag is granted on top.
func (r *Reconciler) holds(ctx context.Context, conn *sql.Conn, src *source, after cursor, limit int) (page, error) {
	var p page
	scan := func(rows *sql.Rows) error {
		var (
			raw     []byte
			shop    int64
			expires time.Time
			overdue int64
			lines   int
			cart    []byte
		)
		if err := rows.Scan(&raw, &shop, &expires, &overdue, &lines, &cart); err != nil {
			return err //nolint:wrapcheck // each says where
		}
		id, late := idOf(raw), time.Duration(overdue)*time.Microsecond
		p.rows++
		p.last = cursor{at: expires, id: id}
		before := cursor{at: expires, id: beforeID(id)}
		if wants, readable := cartOf(cart); lines == 0 || readable && lines < len(wants) {
			p.add(holdWithout(shop, id, lines, wants), before)
		}
		if late > r.opts.HoldGrace+src.lag {
			p.add(Finding{
				Check: HoldOverdue, Reservation: id,
				Found: fmt.Sprintf("reservation of shop %d is still held %s after its expiry: its units cannot be sold", shop, late.Round(time.Second)),
				Fix: fmt.Sprintf("does a router run (twinhold status %s), and does its sweep log errors? Its cart may be unreadable: "+
					"twinhold get --shop %d %s --both; a claim under way in Redis holds it too", r.opts.Pod, shop, id),
			}, before)
		}
		return nil
	}
	err := each(ctx, conn, scan, qHolds, after.at, after.at, after.id[:], limit)
	return p, err
}

// holdWithout is a hold that lacks live lines: it can neither be claimed nor given up until they are back.
func holdWithout(shop int64, id reservation.ID, lines int, wants [][3]int64) Finding {
	f := Finding{
		Check: HoldEmpty, Reservation: id,
		Found: fmt.Sprintf("reservation of shop %d is held, but has no lines: its units are promised and not taken, and it can neither be claimed nor released", shop),
		Fix:   fmt.Sprintf("its cart cannot be read either: see what Redis has of it, twinhold get --shop %d %s --both, and put its lines into reserved_quantities", shop, id),
	}
	if lines > 0 {
		f.Found = fmt.Sprintf("reservation of shop %d is held, but has %d of the %d lines of its cart: it can neither be claimed nor released", shop, lines, len(wants))
	}
	if len(wants) > 0 {
		values := make([]string, len(wants))
		for n, l := range wants {
			values[n] = fmt.Sprintf("(%d, %d, %d, %s, %d)", shop, l[0], l[1], hexOf(id), l[2])
		}
		f.Fix = "put them back: INSERT IGNORE INTO reserved_quantities (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity) VALUES " +
			strings.Join(values, ", ") + "; and look again: what I2 says then is right"
	}
	return f
}

// marks looks for outcomes that wait for Redis long, and for notes on reservations that are not there.
func (r *Reconciler) marks(ctx context.Context, conn *sql.Conn, src *source, after cursor, limit int) (page, error) {
	var p page
	scan := func(rows *sql.Rows) error {
		var (
			raw   []byte
			age   int64
			there bool
		)
		if err := rows.Scan(&raw, &age, &there); err != nil {
			return err //nolint:wrapcheck // each says where
		}
		id, old := idOf(raw), time.Duration(age)*time.Microsecond
		p.rows++
		p.last = cursor{id: id}
		before := cursor{id: beforeID(id)}
		switch {
		case !there:
			p.add(Finding{
				Check: MarkOrphan, Reservation: id,
				Found: "a mark is there, but not its reservation: it holds up every flip, and nothing takes it away",
				Fix:   "DELETE FROM reservation_marks WHERE reservation_id = " + hexOf(id),
			}, before)
		case old > r.opts.MarkAge+src.lag:
			p.add(Finding{
				Check: MarkOld, Reservation: id,
				Found: fmt.Sprintf("an outcome that was answered without Redis has waited for it for %s", old.Round(time.Second)),
				Fix:   fmt.Sprintf("does a router reach Redis (twinhold status %s)? It drains the marks, and logs why not", r.opts.Pod),
			}, before)
		}
		return nil
	}
	err := each(ctx, conn, scan, qMarks, after.id[:], limit)
	return p, err
}
