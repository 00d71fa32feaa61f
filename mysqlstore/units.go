package mysqlstore

import (
	"context"
	"database/sql"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// unitChunk is how many lines one UNION ALL takes: its cost grows faster than their number.
const unitChunk = 64

// want is a number of units to lock in one bucket.
type want struct {
	bucket reservation.Bucket
	units  int64
}

// lockUnits locks up to the wanted number of unit rows in each bucket and gives them as rows for qUnitsDelete, with
// the number had of each. With lockSkip, units that others hold are passed over; with lockWait, they are waited for.
func lockUnits(ctx context.Context, t *tx, clause string, wants []want) (units [][]int64, had []int64, err error) {
	had = make([]int64, len(wants))
	for start := 0; start < len(wants); start += unitChunk {
		chunk := wants[start:min(start+unitChunk, len(wants))]
		part, err := lockUnitChunk(ctx, t, clause, chunk, had[start:])
		if err != nil {
			return nil, nil, err
		}
		units = append(units, part...)
	}
	return units, had, nil
}

func lockUnitChunk(ctx context.Context, t *tx, clause string, chunk []want, had []int64) ([][]int64, error) {
	at := make(map[reservation.Bucket]int, len(chunk))
	for n, w := range chunk {
		at[w.bucket] = n
	}
	query, args := unitsQuery(clause, chunk)
	if query == "" {
		return nil, nil
	}
	var units [][]int64
	err := each(ctx, t.conn, func(rows *sql.Rows) error {
		b, id, err := scanUnit(rows)
		if err != nil {
			return err
		}
		had[at[b]]++
		units = append(units, []int64{b.Shop, b.Item, b.Group, id})
		return nil
	}, query, args...)
	return units, err
}

// unitsQuery is the statement that locks what is wanted; empty if that is nothing.
func unitsQuery(clause string, wants []want) (string, []any) {
	tag := tagUnitsTake
	if clause == lockWait {
		tag = tagUnitsForce
	}
	selects := make([]string, 0, len(wants))
	args := make([]any, 0, 4*len(wants))
	for _, w := range wants {
		if w.units <= 0 {
			continue
		}
		selects = append(selects, qUnitsOf+clause)
		args = append(args, w.bucket.Shop, w.bucket.Item, w.bucket.Group, w.units)
	}
	if len(selects) == 0 {
		return "", nil
	}
	return tag + strings.Join(selects, unionAll), args
}

func scanUnit(rows *sql.Rows) (b reservation.Bucket, id int64, err error) {
	err = asSQL(rows.Scan(&b.Shop, &b.Item, &b.Group, &id))
	return b, id, err
}

// deleteUnits takes locked units out of the pool.
func (s *Store) deleteUnits(ctx context.Context, t *tx, units [][]int64) error {
	if len(units) == 0 {
		return nil
	}
	n, err := exec(ctx, t.conn, qUnitsDelete, jsonRows(units))
	if err == nil && n != int64(len(units)) {
		err = corrupt("%d of %d locked units could be deleted", n, len(units))
	}
	t.takes(units)
	s.step(t, "units")
	return err
}

// takes adds units to those that the transaction takes out of the pool.
func (t *tx) takes(units [][]int64) {
	if t.took == nil {
		t.took = map[reservation.Bucket]int64{}
	}
	for _, u := range units {
		t.took[reservation.Bucket{Shop: u[0], Item: u[1], Group: u[2]}]++
	}
}

// take is what a quantity was made up of: from unpooled (also below 0), and from pool rows.
type take struct {
	unpooled int64
	beyond   int64 // the part of unpooled that went below 0: promised twice
}

// lockQuantity locks quantity for lines that nobody granted it to, or that are too large for the pool, under the
// ledgers' locks: from unpooled down to 0, then from pool rows. What is left makes unpooled negative with lockWait,
// and is a shortage with lockSkip: then had is false and nothing may be written.
func lockQuantity(ctx context.Context, t *tx, clause string, shop int64, lines []reservation.Line, ls ledgers) (takes []take, units [][]int64, had bool, err error) {
	takes = make([]take, len(lines))
	wants := make([]want, len(lines))
	for n, l := range lines {
		led := ls.find(l.Bucket(shop))
		takes[n].unpooled = min(max(led.unpooled, 0), l.Quantity)
		wants[n] = want{bucket: led.bucket, units: l.Quantity - takes[n].unpooled}
	}
	units, got, err := lockUnits(ctx, t, clause, wants)
	if err != nil {
		return nil, nil, false, err
	}
	had = true
	for n := range lines {
		if rest := wants[n].units - got[n]; rest > 0 {
			had = false
			takes[n].beyond = rest
			takes[n].unpooled += rest
		}
	}
	return takes, units, had, nil
}

// beyond sums what was taken that was not there.
func beyond(takes []take) int64 {
	var n int64
	for _, t := range takes {
		n += t.beyond
	}
	return n
}
