package mysqlstore

import (
	"context"
	"database/sql"
	"slices"
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
	query, args := unitsQuery(clause, chunk)
	if query == "" {
		return nil, nil
	}
	var units [][]int64
	err := each(ctx, t.conn, func(rows *sql.Rows) error {
		n, id, err := scanUnit(rows, chunk)
		if err != nil {
			return err
		}
		b := chunk[n].bucket
		had[n]++
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
	args := make([]any, 0, 5*len(wants))
	for n, w := range wants {
		if w.units <= 0 {
			continue
		}
		selects = append(selects, qUnitsOf+clause)
		args = append(args, n, w.bucket.Shop, w.bucket.Item, w.bucket.Group, w.units)
	}
	if len(selects) == 0 {
		return "", nil
	}
	return tag + strings.Join(selects, unionAll), args
}

// scanUnit reads a row of unitsQuery: which of the wants it is for, and the unit's id.
func scanUnit(rows *sql.Rows, wants []want) (n int, id int64, err error) {
	if err = asSQL(rows.Scan(&n, &id)); err == nil && (n < 0 || n >= len(wants)) {
		err = corrupt("a unit for want %d of %d", n, len(wants))
	}
	return n, id, err
}

// deleteUnits takes locked units out of the pool.
func (s *Store) deleteUnits(ctx context.Context, t *tx, units [][]int64) error {
	t.takes(units)
	return s.send(ctx, t, unitDeletes(t, units))
}

// unitsPerRun is how many units a range has to take, on the average, to be worth a statement of its own.
const unitsPerRun = 8

// unitDeletes are the statements that take locked units out of the pool: each run of neighbours by its range where these
// are few, else all by their keys. Each unit of a run is there and locked, so a range takes nobody else's.
func unitDeletes(t *tx, units [][]int64) []statement {
	if len(units) == 0 {
		return nil
	}
	runs := runsOf(units)
	if len(runs) > 1 && (!t.packets || len(runs)*unitsPerRun > len(units)) {
		return []statement{change("units", len(units), "locked units", qUnitsDelete, jsonRows(units))}
	}
	sts := make([]statement, len(runs))
	for n, r := range runs {
		sts[n] = change("", int(r.last-r.first+1), "locked units", qUnitsDeleteRun,
			r.bucket.Shop, r.bucket.Item, r.bucket.Group, r.first, r.last, r.last-r.first+1)
	}
	sts[len(sts)-1].step = "units"
	return sts
}

// run is a number of units of one bucket whose ids follow each other.
type run struct {
	bucket      reservation.Bucket
	first, last int64
}

// runsOf sorts the units into runs, in primary-key order.
func runsOf(units [][]int64) []run {
	sorted := slices.Clone(units)
	slices.SortFunc(sorted, slices.Compare[[]int64])
	var runs []run
	for _, u := range sorted {
		b, id := reservation.Bucket{Shop: u[0], Item: u[1], Group: u[2]}, u[3]
		if n := len(runs) - 1; n >= 0 && runs[n].bucket == b && runs[n].last+1 == id {
			runs[n].last = id
		} else {
			runs = append(runs, run{b, id, id})
		}
	}
	return runs
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
