package invariant

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// sameReservations is I5: both stores hold the same reservations. What is in flight may be missing or behind on one
// side; what both hold was asked for alike from the first moment.
func (c *check) sameReservations() {
	r := c.r(5)
	all := make(map[reservation.ID]bool)
	for id := range c.redisRecs {
		all[id] = true
	}
	for id := range c.mysqlRecs {
		all[id] = true
	}
	for _, id := range idsInOrder(all) {
		red, inRedis := c.redisRecs[id]
		sql, inMySQL := c.mysqlRecs[id]
		switch {
		case inRedis && c.purged(red.PurgeAt), inMySQL && c.purged(sql.PurgeAt):
		case inRedis && inMySQL:
			c.samePair(red, sql)
		case !c.opts.Settled:
		case inRedis && red.State == reservation.Provisional:
			// MySQL has said nothing yet, and nobody was answered.
		case inRedis && c.opts.LedgerOnly:
		case inRedis:
			r.violated("reservation %s (shop %d, %s) is in Redis, but not in MySQL", id, red.Shop, red.State)
		case sql.State == reservation.Rejected && sql.DecidedBy == reservation.MySQL && !sql.Marked:
			// Its router died before Redis had it, and so before anybody was answered: a retry is decided under its id.
		default:
			r.violated("reservation %s (shop %d, %s) is in MySQL, but not in Redis", id, sql.Shop, sql.State)
		}
	}
}

func (c *check) samePair(red, sql reservation.Record) {
	r, id := c.r(5), red.ID
	r.unless(red.Shop == sql.Shop, "reservation %s is of shop %d in Redis, of shop %d in MySQL", id, red.Shop, sql.Shop)
	r.unless(red.Hash == sql.Hash, "reservation %s has the hash %x in Redis, %x in MySQL", id, red.Hash[:4], sql.Hash[:4])
	r.unless(sameLines(red.Lines, sql.Lines), "reservation %s has the lines %s in Redis, %s in MySQL", id, show(red.Lines), show(sql.Lines))
	if c.opts.Settled || red.Outcome == sql.Outcome {
		r.unless(red.Outcome == sql.Outcome, "reservation %s was %s in Redis, %s in MySQL", id, red.Outcome, sql.Outcome)
		r.unless(red.ExpiresAt.Equal(sql.ExpiresAt), "reservation %s expires at %s in Redis, at %s in MySQL",
			id, stamp(red.ExpiresAt), stamp(sql.ExpiresAt))
	}
	if c.opts.Settled {
		r.unless(red.Key == sql.Key, "reservation %s has the key %q in Redis, %q in MySQL", id, red.Key, sql.Key)
		r.unless(red.State == sql.State, "reservation %s is %s in Redis, %s in MySQL", id, red.State, sql.State)
	}
}

// deductedOnce is I6: one claim entry per line of a claimed record, with its quantity, and none for others.
func (c *check) deductedOnce() {
	states := make(map[reservation.ID]reservation.Record, len(c.mysqlRecs))
	for id, rec := range c.redisRecs {
		states[id] = rec
	}
	for id, rec := range c.mysqlRecs {
		if other, ok := states[id]; !ok || rec.State.Rank() > other.State.Rank() {
			states[id] = rec
		}
	}
	for _, id := range idsInOrder(states) {
		c.entriesOf(states[id])
	}
	for _, id := range idsInOrder(c.claims) {
		if _, ok := states[id]; !ok {
			c.entriesWithoutRecord(id)
		}
	}
}

func (c *check) entriesOf(rec reservation.Record) {
	r, entries := c.r(6), c.claims[rec.ID]
	switch rec.State {
	case reservation.Claimed:
	case reservation.Claiming:
		if c.opts.Settled {
			r.violated("reservation %s has been pinned since %s and its claim is not finished", rec.ID, stamp(rec.PinnedAt))
		}
		if len(entries) == 0 {
			return
		}
	default:
		r.unless(len(entries) == 0, "reservation %s is %s, but the ledger was deducted for it: %s", rec.ID, rec.State, showEntries(entries))
		return
	}
	taken := make(map[reservation.Bucket][]int64)
	for _, e := range entries {
		taken[e.Bucket] = append(taken[e.Bucket], -e.Delta)
	}
	for _, l := range rec.Lines {
		b := l.Bucket(rec.Shop)
		got := taken[b]
		delete(taken, b)
		switch {
		case len(got) == 0:
			r.violated("reservation %s is %s, but the ledger was never deducted for its %d units of bucket %s", rec.ID, rec.State, l.Quantity, b)
		case len(got) > 1:
			r.violated("reservation %s was deducted %d times from bucket %s: %v", rec.ID, len(got), b, got)
		default:
			r.unless(got[0] == l.Quantity, "reservation %s has %d units of bucket %s, but %d were deducted", rec.ID, l.Quantity, b, got[0])
		}
	}
	for _, b := range inOrder(taken) {
		r.violated("reservation %s has no line of bucket %s, but %v were deducted there", rec.ID, b, taken[b])
	}
}

func (c *check) entriesWithoutRecord(id reservation.ID) {
	if created, ok := createdAt(id); ok && !c.opts.OldestKept.IsZero() && created.Before(c.opts.OldestKept) {
		c.r(6).Evaluated++ // its record was purged; the entry stays for good
		return
	}
	c.r(6).violated("the ledger was deducted for reservation %s, which no store knows: %s", id, showEntries(c.claims[id]))
}

// createdAt reads the time in a UUIDv7.
func createdAt(id reservation.ID) (time.Time, bool) {
	if id.Version() != 7 {
		return time.Time{}, false
	}
	var ms int64
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms), true
}

// sameLines compares lines whatever their order.
func sameLines(a, b []reservation.Line) bool {
	return slices.Equal(sorted(a), sorted(b))
}

func sorted(lines []reservation.Line) []reservation.Line {
	return slices.SortedFunc(slices.Values(lines), func(a, b reservation.Line) int { return a.Bucket(1).Compare(b.Bucket(1)) })
}

// linesShown is how many lines of a cart a sentence shows.
const linesShown = 5

func show(lines []reservation.Line) string {
	if len(lines) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, l := range sorted(lines) {
		if i == linesShown {
			fmt.Fprintf(&b, ", and %d more", len(lines)-linesShown)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d:%d x %d", l.Item, l.Group, l.Quantity)
	}
	return b.String()
}

func showEntries(entries []reservation.Entry) string {
	parts := make([]string, 0, len(entries))
	for i, e := range entries {
		if i == linesShown {
			parts = append(parts, fmt.Sprintf("and %d more", len(entries)-linesShown))
			break
		}
		parts = append(parts, fmt.Sprintf("%d from bucket %s at %s", -e.Delta, e.Bucket, stamp(e.At)))
	}
	return strings.Join(parts, ", ")
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
