package invariant

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// check is one run: the snapshots, indexed once, and the results as they grow.
type check struct {
	opts         Options
	redis, mysql *reservation.Snapshot
	results      [6]Result

	redisRecs, mysqlRecs map[reservation.ID]reservation.Record
	ledger               map[reservation.Bucket]reservation.BucketState
	journals             map[reservation.Bucket]*journal
	claims               map[reservation.ID][]reservation.Entry
}

// journal is a bucket's entries, summed by kind.
type journal struct {
	entries               int64
	sum, stocked, claimed int64
	forced                int64 // what forced adjustments took
	firstStock            int
}

func newCheck(redis, mysql *reservation.Snapshot, opts Options) *check {
	c := &check{
		opts: opts, redis: redis, mysql: mysql,
		redisRecs: index(redis), mysqlRecs: index(mysql),
		ledger:   make(map[reservation.Bucket]reservation.BucketState),
		journals: make(map[reservation.Bucket]*journal),
		claims:   make(map[reservation.ID][]reservation.Entry),
	}
	for i := range c.results {
		c.results[i].Invariant = fmt.Sprintf("I%d", i+1)
	}
	if mysql == nil {
		return c
	}
	for _, b := range mysql.Buckets {
		c.ledger[b.Bucket] = b
	}
	for _, e := range mysql.Entries {
		c.addEntry(e)
	}
	return c
}

func (c *check) addEntry(e reservation.Entry) {
	j := c.journals[e.Bucket]
	if j == nil {
		j = &journal{}
		c.journals[e.Bucket] = j
	}
	j.entries++
	j.sum += e.Delta
	switch e.Kind {
	case reservation.EntryClaim:
		j.claimed -= e.Delta
		c.claims[e.Reservation] = append(c.claims[e.Reservation], e)
	case reservation.EntryAdjust:
		j.stocked += e.Delta
		if e.Delta < 0 && e.Forced {
			j.forced -= e.Delta
		}
	default:
		j.stocked += e.Delta
		j.firstStock++
	}
}

func index(s *reservation.Snapshot) map[reservation.ID]reservation.Record {
	m := make(map[reservation.ID]reservation.Record)
	if s == nil {
		return m
	}
	for _, r := range s.Records {
		m[r.ID] = r
	}
	return m
}

// r gives the result of invariant n.
func (c *check) r(n int) *Result { return &c.results[n-1] }

// violated counts a violation as evaluated too, so that a report cannot be empty of what it found.
func (r *Result) violated(format string, args ...any) {
	r.Evaluated++
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

func (r *Result) exception(format string, args ...any) {
	r.Exceptions = append(r.Exceptions, fmt.Sprintf(format, args...))
}

// unless counts one equation, and a violation if it does not hold.
func (r *Result) unless(holds bool, format string, args ...any) {
	if !holds {
		r.violated(format, args...)
		return
	}
	r.Evaluated++
}

// promised sums the lines of the records that somebody was promised, by bucket. A pinned one whose entry is there
// has been deducted already.
func (c *check) promised(recs map[reservation.ID]reservation.Record) map[reservation.Bucket]int64 {
	sum := make(map[reservation.Bucket]int64)
	for _, rec := range recs {
		if !rec.State.Live() || rec.State == reservation.Claiming && len(c.claims[rec.ID]) > 0 {
			continue
		}
		for _, l := range rec.Lines {
			sum[l.Bucket(rec.Shop)] += l.Quantity
		}
	}
	return sum
}

// lateClaims sums what late claims took, by bucket: the most that they can have taken at another's expense.
func (c *check) lateClaims() map[reservation.Bucket]int64 {
	sum := make(map[reservation.Bucket]int64)
	seen := make(map[reservation.ID]bool)
	for _, recs := range []map[reservation.ID]reservation.Record{c.redisRecs, c.mysqlRecs} {
		for _, rec := range recs {
			late := rec.Late && (rec.State == reservation.Claimed || rec.State == reservation.Claiming)
			if !late || seen[rec.ID] {
				continue
			}
			seen[rec.ID] = true
			for _, l := range rec.Lines {
				sum[l.Bucket(rec.Shop)] += l.Quantity
			}
		}
	}
	return sum
}

func (c *check) purged(t time.Time) bool {
	return !c.opts.Now.IsZero() && !t.IsZero() && !c.opts.Now.Before(t)
}

// inOrder walks a map by bucket, so that two reports of one snapshot read the same.
func inOrder[V any](m map[reservation.Bucket]V) []reservation.Bucket {
	return slices.SortedFunc(maps.Keys(m), reservation.Bucket.Compare)
}

// idsInOrder walks records by id, which is by creation.
func idsInOrder[V any](m map[reservation.ID]V) []reservation.ID {
	return slices.SortedFunc(maps.Keys(m), func(a, b reservation.ID) int { return cmp.Compare(a.String(), b.String()) })
}
