package shadow

import (
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Lacks is what each store's view lacks, by reason.
type Lacks struct {
	// Missing is live in Redis, and MySQL has it not live, nor in a higher state. Marked and Unconfirmed are live in MySQL,
	// and Redis lacks them: somebody was promised the marked ones.
	Missing, Marked, Unconfirmed reservation.Debt
	// Differing counts ended reservations and rejections whose states differ, or that one store lacks, and what cannot be
	// read.
	Differing int
}

// Lacks gives what the survey found of it.
func (s Survey) Lacks() Lacks { return Lacks{s.Missing, s.Marked, s.Unconfirmed, s.Differing} }

// By gives it by reason. Of what differs nobody owes units.
func (l Lacks) By() map[string]reservation.Debt {
	return map[string]reservation.Debt{
		KindMissing: l.Missing, KindMarked: l.Marked, KindUnconfirmed: l.Unconfirmed,
		KindDiffering: {Reservations: int64(l.Differing)},
	}
}

// lacks says for which reason two states count; empty: for none.
func (f facts) lacks() string {
	r, q := f.redis, f.mysql
	switch {
	case r == q:
		return ""
	case r.Live() && q.Rank() < reservation.Refused.Rank() && !q.Live():
		return KindMissing
	case r == reservation.Claiming: // the last step of its claim is under way
		return ""
	case q.Live() && f.marked && !r.Live() && r.Rank() <= reservation.Rejected.Rank():
		return KindMarked
	case f.unanswered():
		return KindUnconfirmed
	case r.Live() && q.Live(), r == reservation.Provisional, r == 0 && q == reservation.Rejected && !f.marked:
		return ""
	default:
		return KindDiffering
	}
}

// count adds one reservation, for a reason.
func (l *Lacks) count(kind string, v view, now time.Time) {
	switch kind {
	case KindMissing:
		add(&l.Missing, v.redis, now)
	case KindMarked:
		add(&l.Marked, v.mysql, now)
	case KindUnconfirmed:
		add(&l.Unconfirmed, v.mysql, now)
	case KindDiffering:
		l.Differing++
	}
}

// Add adds what another part lacks.
func (l *Lacks) Add(o Lacks) {
	for _, d := range []struct{ to, from *reservation.Debt }{
		{&l.Missing, &o.Missing}, {&l.Marked, &o.Marked}, {&l.Unconfirmed, &o.Unconfirmed},
	} {
		d.to.Reservations += d.from.Reservations
		d.to.Units += d.from.Units
		d.to.DrainsInS = max(d.to.DrainsInS, d.from.DrainsInS)
	}
	l.Differing += o.Differing
}

// ShowLacks publishes what a round over everything has left.
func (c *CatchUp) ShowLacks(l Lacks) { c.metrics.show(l) }
