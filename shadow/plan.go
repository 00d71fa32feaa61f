package shadow

import (
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// view is one reservation as both stores have it: nil where a store does not know it.
type view struct {
	redis, mysql *reservation.Record
	fence        reservation.Fence // Redis's, as the round began
	of           reservation.ID    // whose it is; zero: that of its records
	bad          error             // a store has something under it that cannot be read
}

func (v view) id() reservation.ID {
	if rec := v.any(); v.of == (reservation.ID{}) && rec != nil {
		return rec.ID
	}
	return v.of
}

// facts are what the rules look at.
type facts struct {
	redis, mysql reservation.State // zero: not known
	epoch        uint64            // the later of the two records'
	stamp        reservation.Stamp
	// marked: MySQL's outcome was answered without Redis.
	marked bool
	// lost: MySQL's record is of an epoch before Redis's last restore, so that Redis may have lost it.
	lost bool
	// yielded: Redis gave this one's key to another id, and MySQL has not heard of that one yet.
	yielded bool
}

func (v view) facts() facts {
	f := facts{stamp: v.fence.Stamp}
	if v.redis != nil {
		f.redis, f.epoch = v.redis.State, v.redis.Epoch
	}
	if v.mysql != nil {
		f.mysql, f.epoch = v.mysql.State, max(f.epoch, v.mysql.Epoch)
		f.marked, f.lost = v.mysql.Marked, v.mysql.Epoch < v.fence.IncarnationEpoch
		f.yielded = v.redis != nil && v.redis.Key == "" && v.mysql.Key != ""
	}
	return f
}

func (f facts) present() bool {
	return f.stamp.Stage == reservation.Handover && f.epoch >= f.stamp.Epoch
}

// adopts tells whether this MySQL hold was promised to somebody, and Redis does not hold it. A marked one goes over
// Redis's rejection too, and over its half of a grant in handover: the mark says what was answered.
func (f facts) adopts() bool {
	switch f.redis {
	case 0:
		return f.mysql.Live() && (f.marked || f.lost)
	case reservation.Provisional, reservation.Rejected:
		return f.mysql.Live() && f.marked
	default:
		return false
	}
}

// settled gives the states that a reservation should have in both stores, from what was seen of it. At most one of the
// two is another than what was seen. These are the rules that internal/protocolmodel explores.
func (f facts) settled() (redis, mysql reservation.State) {
	r, q := f.redis, f.mysql
	switch decides := f.stamp.Stage.Truth(); {
	case f.present() && q.Live() && (r == reservation.Expired || r == reservation.Released):
		return r, r // Redis has ended it, and nothing of it is under way
	case !f.stamp.Stage.DualWrite(), f.present():
		return r, q
	case f.adopts():
		return q, q
	case r == reservation.Provisional:
		return r, q // the next to meet it decides it, or its expiry
	case r == 0 && q.Live() && decides == reservation.Redis,
		q == 0 && r.Live() && decides == reservation.MySQL,
		r == 0 && q == reservation.Rejected && !f.marked && !f.lost:
		return r, q // nobody was answered
	case r == reservation.Claiming && q.Rank() < reservation.Refused.Rank():
		return r, q // a pin is rolled forward, never undone
	}
	want := reservation.Merge(r, q)
	if f.stamp.Stage.Truth() == reservation.MySQL {
		want = reservation.Merge(q, r)
	}
	switch {
	case want != r:
		return want, q
	case want != q && want != reservation.Claimed: // the ledger is not catch-up's
		return r, want
	default:
		return r, q
	}
}

// drains tells whether Redis has what a mark stands for: the marked state, or a higher one. While another id has its key
// in Redis alone the mark stays: it is what keeps a hold alive in MySQL when that one takes the key there too.
func (f facts) drains() bool {
	return f.marked && !f.yielded && f.redis != reservation.Provisional && f.redis.Rank() >= f.mysql.Rank() && !f.adopts()
}

// step is what catch-up does about one reservation.
type step struct {
	to reservation.Truth // the store that is written; zero: none
	op reservation.MirrorOp
	// was says what was wrong there: lost, leaked, missing, state, adopted.
	was string
	// left is a difference that is not catch-up's to mend.
	left string
	// skipped: too young, or under way; young: only too young. unconfirmed: nobody was answered, it waits for its retry or
	// its expiry.
	skipped, young, unconfirmed bool
}

// plan says what to do about one reservation now.
func (c *CatchUp) plan(v view, now time.Time) step {
	f := v.facts()
	redis, mysql := f.settled()
	switch {
	case v.purged(now):
		return step{skipped: true}
	case f.redis == f.mysql && v.decidedAnew() == 0:
		return step{left: differs(v.redis, v.mysql)}
	case !f.marked && v.lastStep().After(now.Add(-c.opt.Settle)):
		return step{skipped: true, young: true}
	case v.decidedAnew() != 0:
		return rewrite(v.decidedAnew(), v)
	case redis != f.redis:
		return write(reservation.Redis, v.mysql, f, now)
	case mysql != f.mysql:
		return write(reservation.MySQL, v.redis, f, now)
	default:
		return c.leave(v, f, now)
	}
}

// decidedAnew: the truth has decided in a later epoch what the other store had decided and told nobody, and stamped
// another expiry. It gives the store that lacks those terms; zero: neither.
func (v view) decidedAnew() reservation.Truth {
	r, q := v.redis, v.mysql
	if r == nil || q == nil || r.State != q.State || q.Marked || r.ExpiresAt.Equal(q.ExpiresAt) || !v.fence.Stage.DualWrite() {
		return 0
	}
	switch truth := v.fence.Stage.Truth(); {
	case truth == reservation.Redis && r.Epoch > q.Epoch:
		return reservation.MySQL
	case truth == reservation.MySQL && q.Epoch > r.Epoch && r.State != reservation.Claimed:
		return reservation.Redis
	default:
		return 0
	}
}

// rewrite is the step that gives a store the terms of the truth's later decision.
func rewrite(to reservation.Truth, v view) step {
	from := v.redis
	if to == reservation.Redis {
		from = v.mysql
	}
	s := step{to: to, op: reservation.OpTo(*from), was: WasState}
	expect := from.State
	s.op.Expect = &expect
	return s
}

// write is the step that brings one store to what the other has. What is due is not restored as a hold: the sweeper
// ends it where it is, and its end is then what is restored.
func write(to reservation.Truth, from *reservation.Record, f facts, now time.Time) step {
	s := step{to: to, op: reservation.OpTo(*from)}
	expect := f.redis
	if to == reservation.MySQL {
		expect = f.mysql
	}
	s.op.Expect = &expect
	switch {
	case to == reservation.Redis && f.adopts():
		s.op.Adopt, s.was = true, WasAdopted
	case from.State.Live() && !from.ExpiresAt.After(now):
		return step{skipped: true}
	case from.State.Live():
		s.was = WasLost
	case expect == 0:
		s.was = WasMissing
	case expect.Live():
		s.was = WasLeaked
	default:
		s.was = WasState
	}
	return s
}

// What was wrong in the store that was written.
const (
	WasLost    = "lost"    // a live hold that it lacked
	WasLeaked  = "leaked"  // a hold that it still had
	WasMissing = "missing" // an ended one that it lacked
	WasState   = "state"   // another state
	WasAdopted = "adopted" // a promised hold that Redis lacked, stored by force
)

// leave says why a difference is left, and ends a hold of the mirror that the truth does not know once it is past its
// expiry and the grace.
func (c *CatchUp) leave(v view, f facts, now time.Time) step {
	switch {
	case f.present(), f.redis == reservation.Provisional, f.redis == reservation.Claiming:
		return step{skipped: true}
	case f.redis == 0 && f.mysql.Live():
		return c.unconfirmed(reservation.MySQL, v.mysql, now)
	case f.mysql == 0 && f.redis.Live():
		return c.unconfirmed(reservation.Redis, v.redis, now)
	case f.redis == 0 && f.mysql == reservation.Rejected:
		return step{unconfirmed: true}
	case f.redis == reservation.Claimed:
		return step{left: fmt.Sprintf("%s: claimed in Redis, %s in MySQL: the ledger may lack its entry", v.redis.ID, stateName(f.mysql))}
	default:
		return step{}
	}
}

func (c *CatchUp) unconfirmed(in reservation.Truth, rec *reservation.Record, now time.Time) step {
	if !now.After(rec.ExpiresAt.Add(c.opt.Grace)) {
		return step{unconfirmed: true}
	}
	ended := *rec
	ended.State, ended.ExpiredAt = reservation.Expired, now.UTC().Truncate(time.Microsecond)
	expect := rec.State
	s := step{to: in, op: reservation.OpTo(ended), was: WasLeaked}
	s.op.Expect = &expect
	return s
}

// differs compares two records of the same state; what it finds is for a person. A key that one of them has lost to a
// newer record is no difference.
func differs(r, q *reservation.Record) string {
	switch {
	case r == nil || q == nil:
		return ""
	case r.Key != q.Key && r.Key != "" && q.Key != "", r.Hash != q.Hash, r.Shop != q.Shop:
		return fmt.Sprintf("%s: the two records differ in key, hash or shop", r.ID)
	case len(r.Lines) != len(q.Lines):
		return fmt.Sprintf("%s: the two records differ in their lines", r.ID)
	case !r.ExpiresAt.Equal(q.ExpiresAt):
		return fmt.Sprintf("%s: expires %s in Redis, %s in MySQL", r.ID, r.ExpiresAt, q.ExpiresAt)
	}
	for i := range r.Lines {
		if r.Lines[i] != q.Lines[i] {
			return fmt.Sprintf("%s: the two records differ in their lines", r.ID)
		}
	}
	return ""
}

func (v view) any() *reservation.Record {
	if v.redis != nil {
		return v.redis
	}
	return v.mysql
}

// purged: past its retention a reservation is unknown, whether or not the purge has run. A pin stays until it has ended.
func (v view) purged(now time.Time) bool {
	return !v.any().PurgeAt.After(now) && (v.redis == nil || v.redis.State != reservation.Claiming)
}

func (v view) lastStep() time.Time {
	var last time.Time
	for _, r := range []*reservation.Record{v.redis, v.mysql} {
		if r == nil {
			continue
		}
		for _, t := range []time.Time{r.CreatedAt, r.PinnedAt, r.ReleasedAt, r.ExpiredAt, r.ClaimedAt} {
			if t.After(last) {
				last = t
			}
		}
	}
	return last
}

// withheld: MySQL holds units for it in a handover, since an older epoch, and Redis has ended it or never had it.
func (v view) withheld() bool {
	f := v.facts()
	return v.fence.Stage == reservation.Handover && f.mysql.Live() && v.mysql.Epoch < v.fence.Epoch &&
		!f.redis.Live() && f.redis != reservation.Provisional
}

func stateName(s reservation.State) string {
	if s == 0 {
		return "nothing"
	}
	return s.String()
}
