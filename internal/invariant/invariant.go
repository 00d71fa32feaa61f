// Package invariant computes the invariants I1 to I6 of the design from what the stores hold: raw snapshots of their
// tables and keys, never counters of the process.
//
// It promises that a violation comes with its evidence (which bucket, which reservation, which figures) in words that
// need no other page, and that an invariant for which nothing could be evaluated is absent from the report rather
// than ok. It never reads a store itself and never mends anything.
package invariant

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Options say in what condition the stores were when they were read.
type Options struct {
	// Settled: nothing was in flight, the mirror had caught up, background work was done. It allows the strict
	// comparisons: no pins left, both stores equal record by record and figure by figure.
	Settled bool
	// LedgerOnly: MySQL did not mirror reservations (stage legacy): it has the ledger and what claims wrote there.
	LedgerOnly bool
	// Now is the time of the reading. Records whose retention has ended by then are not compared between the stores,
	// since either may have purged them. Zero: none has ended.
	Now time.Time
	// OldestKept: claim entries of reservations created before it may have outlived their record, which was purged.
	// Zero: nothing was purged, and an entry without its record is a violation.
	OldestKept time.Time
	// PinnedAdjustments are negative adjustments that Redis has taken and the ledger has not confirmed: they count
	// as held.
	PinnedAdjustments []reservation.Adjustment
}

// Result is one invariant. It is violated if there is any violation.
type Result struct {
	// Invariant is its name, I1 to I6.
	Invariant string
	// Evaluated counts the equations that were computed (buckets, records, lines, entries, as the invariant has it).
	Evaluated int
	// Violations hold the evidence, one sentence each.
	Violations []string
	// Exceptions are differences that the invariant allows because they are on record; each says why.
	Exceptions []string
}

// OK tells whether nothing was violated.
func (r Result) OK() bool { return len(r.Violations) == 0 }

// String is ok or violated.
func (r Result) String() string {
	if r.OK() {
		return "ok"
	}
	return "violated"
}

// Report holds the invariants that were evaluated, in order.
type Report struct{ Results []Result }

// OK tells whether something was evaluated and nothing was violated.
func (r Report) OK() bool {
	for _, x := range r.Results {
		if !x.OK() {
			return false
		}
	}
	return len(r.Results) > 0
}

// Result gives one invariant by its name, if it was evaluated.
func (r Report) Result(name string) (Result, bool) {
	i := slices.IndexFunc(r.Results, func(x Result) bool { return x.Invariant == name })
	if i < 0 {
		return Result{}, false
	}
	return r.Results[i], true
}

// Map gives "ok" or "violated" by name, for the invariants that were evaluated.
func (r Report) Map() map[string]string {
	m := make(map[string]string, len(r.Results))
	for _, x := range r.Results {
		m[x.Invariant] = x.String()
	}
	return m
}

// Violations gives the evidence of all invariants, each with its name in front.
func (r Report) Violations() []string {
	var all []string
	for _, x := range r.Results {
		for _, v := range x.Violations {
			all = append(all, x.Invariant+": "+v)
		}
	}
	return all
}

// shown is how many sentences of evidence String prints of one invariant.
const shown = 20

// String is the report for people: a line per invariant, evidence below it.
func (r Report) String() string {
	if len(r.Results) == 0 {
		return "no invariant was evaluated: the stores hold nothing\n"
	}
	var b strings.Builder
	for _, x := range r.Results {
		fmt.Fprintf(&b, "%s %s (%d evaluated", x.Invariant, x, x.Evaluated)
		if n := len(x.Exceptions); n > 0 {
			fmt.Fprintf(&b, ", %d exceptions on record", n)
		}
		b.WriteString(")\n")
		writeSome(&b, "  violated: ", x.Violations)
		writeSome(&b, "  exception: ", x.Exceptions)
	}
	return b.String()
}

func writeSome(b *strings.Builder, prefix string, lines []string) {
	for i, l := range lines {
		if i == shown {
			fmt.Fprintf(b, "%sand %d more\n", prefix, len(lines)-shown)
			return
		}
		b.WriteString(prefix + l + "\n")
	}
}

// Check evaluates whatever the snapshots allow. Either may be nil; with MySQL alone there is no I4 and I5, with Redis
// alone only I1 (by its counters) and I4.
func Check(redis, mysql *reservation.Snapshot, opts Options) Report {
	c := newCheck(redis, mysql, opts)
	c.oversell()
	if mysql != nil {
		c.pool()
		c.journal()
	}
	if redis != nil {
		c.counters()
	}
	if redis != nil && mysql != nil {
		c.sameReservations()
	}
	if mysql != nil {
		c.deductedOnce()
	}
	c.orphans()

	var rep Report
	for i := range c.results {
		if c.results[i].Evaluated > 0 {
			rep.Results = append(rep.Results, c.results[i])
		}
	}
	return rep
}

func (c *check) orphans() {
	if c.redis != nil {
		for _, o := range c.redis.Orphans {
			c.r(4).violated("Redis holds something that belongs to nothing: %s", o)
		}
	}
	if c.mysql != nil {
		for _, o := range c.mysql.Orphans {
			c.r(2).violated("MySQL holds something that belongs to nothing: %s", o)
		}
	}
}
