package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// margin is what two clocks and a sweep may differ by: nearer to an expiry than that nothing is judged.
const margin = 400 * time.Millisecond

// violation is one breach of an invariant, with the reservation (or the bucket) that it is about.
type violation struct {
	invariant string
	id        string // of a reservation; empty where it is about more than one
	key       string
	what      string
}

// purchase is all that was seen of one reservation: by key, and by the id that was answered.
type purchase struct {
	key      string
	shop     int64
	id       string
	reserves []call
	ends     []call // claims and releases
	gets     []call

	redis, mysql *reservation.Record
	entries      []reservation.Entry
}

// judge holds what the buyers were told against itself, and against both stores at rest.
type judge struct {
	h     *history
	calls []call
	byKey map[string]*purchase
	byID  map[string]*purchase
	read  bool // the stores were read
	// excused are the units, by pod, that were promised twice and that a kill had told as debt.
	excused map[int]int64
	// refunds are claims that were refused for that.
	refunds    int
	violations []violation
}

// newJudge sorts a history. The snapshots are of both stores of every pod, at rest; none: only the answers are judged.
func newJudge(h *history, redis, mysql []reservation.Snapshot) *judge {
	j := &judge{h: h, calls: h.snapshot(), byKey: map[string]*purchase{}, byID: map[string]*purchase{}, read: len(redis) > 0, excused: map[int]int64{}}
	for _, c := range j.calls {
		if c.Op == "reserve" {
			j.addReserve(c)
		}
	}
	for _, c := range j.calls {
		switch p := j.byID[c.ID]; {
		case c.Op == "reserve" || p == nil:
		case c.Op == "get":
			p.gets = append(p.gets, c)
		default:
			p.ends = append(p.ends, c)
		}
	}
	for i := range redis {
		j.addRecords(redis[i].Records, func(p *purchase, r *reservation.Record) { p.redis = r })
		j.addRecords(mysql[i].Records, func(p *purchase, r *reservation.Record) { p.mysql = r })
		for _, e := range mysql[i].Entries {
			if p := j.byID[e.Reservation.String()]; p != nil && e.Kind == reservation.EntryClaim {
				p.entries = append(p.entries, e)
			}
		}
	}
	return j
}

func (j *judge) addReserve(c call) {
	at := fmt.Sprintf("%d/%s", c.Shop, c.Key)
	p := j.byKey[at]
	if p == nil {
		p = &purchase{key: c.Key, shop: c.Shop}
		j.byKey[at] = p
	}
	p.reserves = append(p.reserves, c)
	if c.ID != "" {
		j.byID[c.ID] = p
		if p.id == "" {
			p.id = c.ID
		}
	}
}

func (j *judge) addRecords(recs []reservation.Record, set func(*purchase, *reservation.Record)) {
	for i := range recs {
		if p := j.byID[recs[i].ID.String()]; p != nil {
			set(p, &recs[i])
		}
	}
}

func (j *judge) found(invariant string, p *purchase, format string, args ...any) {
	v := violation{invariant: invariant, what: fmt.Sprintf(format, args...)}
	if p != nil {
		v.id, v.key = p.id, p.key
	}
	j.violations = append(j.violations, v)
}

// all judges everything.
func (j *judge) all() []violation {
	j.noOversell()
	for _, at := range slices.Sorted(maps.Keys(j.byKey)) {
		p := j.byKey[at]
		j.sameAnswer(p)
		j.oneEnd(p)
		j.neverBack(p)
		j.claimable(p)
		if j.read {
			j.finalState(p)
		}
	}
	j.nothingAfterAck()
	j.byTheTruth()
	return j.violations
}

// reserved gives the first answer that decided; nil if none came.
func (p *purchase) reserved() *call {
	for i := range p.reserves {
		if p.reserves[i].Code == "ok" {
			return &p.reserves[i]
		}
	}
	return nil
}

// sameAnswer is I9: the same key with the same request gives the same answer.
func (j *judge) sameAnswer(p *purchase) {
	first := p.reserved()
	for i := range p.reserves {
		c := &p.reserves[i]
		switch {
		case c.undecided():
		case c.Code != "ok":
			j.found("I9", p, "the reserve at %.4f was answered %s: %s", c.Begin.Seconds(), c.Code, c.Message)
		case c.ID != first.ID:
			j.found("I9", p, "key %q has two reservations: %s and %s", p.key, first.ID, c.ID)
		case c.Outcome != first.Outcome:
			j.found("I9", p, "key %q was answered %s at %.4f and %s at %.4f", p.key, first.Outcome, first.End.Seconds(), c.Outcome, c.End.Seconds())
		}
	}
}

// oneEnd is I5 of the answers: nobody is told claimed and another released.
func (j *judge) oneEnd(p *purchase) {
	told := map[reservation.State]*call{}
	for i := range p.ends {
		c := &p.ends[i]
		if c.Code == "ok" {
			told[c.State] = c
		} else if !c.undecided() && c.Code != "failed_precondition" && c.Code != "not_found" {
			j.found("I5", p, "the %s at %.4f was answered %s: %s", c.Op, c.Begin.Seconds(), c.Code, c.Message)
		}
	}
	ends := []reservation.State{reservation.Claimed, reservation.Released, reservation.Refused}
	for i, a := range ends {
		for _, b := range ends[i+1:] {
			if told[a] != nil && told[b] != nil {
				j.found("I5", p, "it was answered %s at %.4f and %s at %.4f", a, told[a].End.Seconds(), b, told[b].End.Seconds())
			}
		}
	}
}

// neverBack is I5 too: a state that was told is never taken back by an answer that was asked for later.
func (j *judge) neverBack(p *purchase) {
	var told []call
	for _, list := range [][]call{p.reserves, p.ends, p.gets} {
		for _, c := range list {
			if c.Code == "ok" && c.State != 0 {
				told = append(told, c)
			}
		}
	}
	slices.SortStableFunc(told, func(a, b call) int { return cmp.Compare(a.End, b.End) })
	for i, later := range told {
		for _, earlier := range told[:i] {
			if earlier.End < later.Begin && later.State.Rank() < earlier.State.Rank() {
				j.found("I5", p, "it was %s at %.4f, and %s for a call of %.4f", earlier.State, earlier.End.Seconds(), later.State, later.Begin.Seconds())
				return
			}
		}
	}
}

// claimable is I7: a granted reservation can be claimed until it expires.
func (j *judge) claimable(p *purchase) {
	granted := p.reserved()
	if granted == nil || granted.Outcome != "GRANTED" {
		return
	}
	firstRelease := never
	for _, c := range p.ends {
		if c.Op == "release" {
			firstRelease = min(firstRelease, c.Begin)
		}
	}
	for _, c := range p.ends {
		if c.undecided() {
			continue
		}
		released := firstRelease < c.End // somebody gave it up meanwhile
		late := c.End > granted.ExpiresAt-margin
		switch {
		case c.Code == "not_found":
			j.found("I7", p, "granted, and the %s at %.4f does not find it", c.Op, c.Begin.Seconds())
		case c.Op == "claim" && c.Code == "failed_precondition" && !released:
			j.found("I7", p, "granted, and the claim at %.4f was refused (%s), although nobody released it", c.Begin.Seconds(), c.Message)
		case c.Op == "claim" && c.Code == "ok" && c.State != reservation.Claimed && !late && j.excused[j.podOf(p)] > 0:
			j.refunds++ // of a unit that was promised twice, on record
		case c.Op == "claim" && c.Code == "ok" && c.State != reservation.Claimed && !late:
			j.found("I7", p, "granted until %.4f, and the claim at %.4f was answered %s", granted.ExpiresAt.Seconds(), c.Begin.Seconds(), c.State)
		}
	}
}

// finalState is I5 of the stores: one final state, the same in both, and the one that was told.
func (j *judge) finalState(p *purchase) {
	first := p.reserved()
	if first == nil {
		return // nobody was told anything; that both stores agree is judged for all records
	}
	if p.redis == nil || p.mysql == nil {
		j.found("I5", p, "it was answered %s and is missing: in Redis %t, in MySQL %t", first.Outcome, p.redis == nil, p.mysql == nil)
		return
	}
	if p.redis.State != p.mysql.State {
		j.found("I5", p, "at rest it is %s in Redis and %s in MySQL", p.redis.State, p.mysql.State)
		return
	}
	if !p.redis.ExpiresAt.Equal(p.mysql.ExpiresAt) {
		j.found("I5", p, "it expires at %.4f in Redis and at %.4f in MySQL", j.h.since(p.redis.ExpiresAt).Seconds(), j.h.since(p.mysql.ExpiresAt).Seconds())
	}
	if want := p.allowed(first, j.h.now()); !slices.Contains(want, p.mysql.State) {
		j.found("I5", p, "at rest it is %s, but the answers allow %v", p.mysql.State, want)
	}
	if p.mysql.State == reservation.Claimed && len(p.entries) != len(p.mysql.Lines) {
		j.found("I6", p, "claimed, with %d lines and %d entries in the ledger", len(p.mysql.Lines), len(p.entries))
	}
}

// allowed gives the states in which a reservation may be at rest, after what its buyer asked and was told.
func (p *purchase) allowed(first *call, now time.Duration) []reservation.State {
	if first.Outcome != "GRANTED" {
		return []reservation.State{reservation.Rejected}
	}
	var can []reservation.State
	for _, c := range p.ends {
		if c.Code == "ok" {
			return []reservation.State{c.State}
		}
		if c.Op == "claim" && c.undecided() {
			can = append(can, reservation.Claimed, reservation.Refused)
		}
		if c.Op == "release" && c.undecided() {
			can = append(can, reservation.Released)
		}
	}
	if first.ExpiresAt > now-5*time.Second {
		can = append(can, reservation.Held)
	}
	return append(can, reservation.Expired)
}

// never is past the end of every history.
const never = time.Duration(1<<63 - 1)

// span is a time in which a reservation certainly takes its units.
type span struct{ from, to time.Duration }

// certain are the times in which a granted reservation takes its units whatever is not known: from the answer to its
// end, which is its expiry or the first attempt to release it; and for good once it was answered claimed.
func (p *purchase) certain() []span {
	granted := p.reserved()
	if granted == nil || granted.Outcome != "GRANTED" {
		return nil
	}
	end := granted.ExpiresAt - margin
	var claimed *call
	for i := range p.ends {
		c := &p.ends[i]
		if c.Op == "release" {
			end = min(end, c.Begin)
		}
		if c.Op == "claim" && c.Code == "ok" && c.State == reservation.Claimed && (claimed == nil || c.End < claimed.End) {
			claimed = c
		}
	}
	switch {
	case claimed == nil:
		return []span{{granted.End, end}}
	case claimed.Late || claimed.Begin > end:
		return []span{{granted.End, end}, {claimed.End, never}}
	default:
		return []span{{granted.End, never}}
	}
}

// step is a change of what is certainly taken, or of what was stocked.
type step struct {
	at         time.Duration
	taken, had int64
	p          *purchase
}

// noOversell is I1, at every moment at which it can be decided from outside: the units of reservations that are
// certainly live or claimed never exceed what may have been stocked by then.
func (j *judge) noOversell() {
	steps := map[reservation.Bucket][]step{}
	for b, list := range j.h.stock {
		for _, s := range list {
			steps[b] = append(steps[b], step{at: s.at, had: s.qty})
		}
	}
	for _, p := range j.byKey {
		for _, s := range p.certain() {
			if s.to <= s.from {
				continue
			}
			for _, l := range p.reserves[0].Lines {
				b := l.Bucket(p.shop)
				steps[b] = append(steps[b], step{at: s.from, taken: l.Quantity, p: p}, step{at: s.to, taken: -l.Quantity})
			}
		}
	}
	for _, b := range slices.SortedFunc(maps.Keys(steps), reservation.Bucket.Compare) {
		j.sweep(b, steps[b])
	}
}

// sweep finds the first moment at which a bucket is promised too often, and by how much it ever is.
func (j *judge) sweep(b reservation.Bucket, steps []step) {
	slices.SortStableFunc(steps, func(x, y step) int { // at one instant what gives comes before what takes
		return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.taken-x.had, y.taken-y.had))
	})
	var taken, had, worst int64
	var first *step
	for i, s := range steps {
		taken, had = taken+s.taken, had+s.had
		if taken > had && s.p != nil && first == nil {
			first = &steps[i]
		}
		worst = max(worst, taken-had)
	}
	if first == nil || j.onRecord(first.p, first.at, worst) {
		return
	}
	j.found("I1", first.p, "bucket %s: from %.4f on up to %d units more are certainly promised or claimed than were stocked", b, first.at.Seconds(), worst)
}

// onRecord: the design lets what cut routers granted be granted again after a kill, if the kill told that debt: once for
// each unit. What is let through is counted.
func (j *judge) onRecord(p *purchase, at time.Duration, units int64) bool {
	pod := j.podOf(p)
	var told int64
	for _, k := range j.h.kills {
		if k.pod != pod || k.began > at {
			continue
		}
		if k.debt == nil {
			told = 1 << 40 // MySQL did not say
		} else {
			told += k.debt.Units
		}
	}
	if j.excused[pod]+units > told {
		return false
	}
	j.excused[pod] += units
	return true
}

// nothingAfterAck is I8: after a kill was acknowledged, what the router decides it does not decide by MySQL, until
// somebody moves the pod forward again (to an epoch above the kill's).
func (j *judge) nothingAfterAck() {
	for _, p := range j.byKey {
		first := p.reserved()
		if first == nil || first.Outcome != "GRANTED" || first.DecidedBy != "mysql" {
			continue
		}
		for _, k := range j.h.kills {
			if first.Epoch < k.epoch && p.reserves[0].Begin > k.returned && !k.laggards[first.Router] && j.podOf(p) == k.pod {
				j.found("I8", p, "it was first asked for at %.4f, after the kill of epoch %d (acknowledged at %.4f), and granted by MySQL in epoch %d",
					p.reserves[0].Begin.Seconds(), k.epoch, k.returned.Seconds(), first.Epoch)
			}
			if first.Epoch == k.epoch && j.podOf(p) == k.pod {
				j.found("I8", p, "it was granted by MySQL in epoch %d, which is a kill's", k.epoch)
			}
		}
	}
}

// byTheTruth: whoever decided is the source of truth of the stage that the audit tells for the decision's epoch. In
// handover both decide.
func (j *judge) byTheTruth() {
	for _, p := range j.byKey {
		first := p.reserved()
		if first == nil {
			continue
		}
		st, ok := j.h.stages[podEpoch{j.podOf(p), first.Epoch}]
		if ok && st != reservation.Handover && first.DecidedBy != st.Truth().String() {
			j.found("I8", p, "it was decided by %s in epoch %d, which was a %s", first.DecidedBy, first.Epoch, st)
		}
	}
}

// podOf: a fleet's pods have 1,000 shops each.
func (j *judge) podOf(p *purchase) int { return int((p.shop - 1) / 1000) }

// story is everything that is known of a reservation.
func (j *judge) story(v violation) string {
	var p *purchase
	for _, q := range j.byKey {
		if q.key == v.key && (v.id == "" || q.id == v.id) {
			p = q
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", v.invariant, v.what)
	if p == nil {
		return b.String()
	}
	fmt.Fprintf(&b, "  reservation %s, shop %d, key %q\n", p.id, p.shop, p.key)
	calls := slices.Concat(p.reserves, p.ends, p.gets)
	slices.SortStableFunc(calls, func(a, b call) int { return cmp.Compare(a.Begin, b.Begin) })
	for _, c := range calls {
		fmt.Fprintf(&b, "  %s\n", c)
	}
	for store, r := range map[string]*reservation.Record{"Redis": p.redis, "MySQL": p.mysql} {
		fmt.Fprintf(&b, "  in %s: %s\n", store, j.show(r))
	}
	for _, e := range p.entries {
		fmt.Fprintf(&b, "  entry: %d of bucket %s at %.4f\n", e.Delta, e.Bucket, j.h.since(e.At).Seconds())
	}
	if len(calls) > 0 {
		b.WriteString("  meanwhile:\n")
		for _, e := range j.h.around(calls[0].Begin, calls[len(calls)-1].End) {
			fmt.Fprintf(&b, "    %10.4f to %10.4f  %s: %s\n", e.begin.Seconds(), e.end.Seconds(), e.what, e.came)
		}
	}
	return b.String()
}

func (j *judge) show(r *reservation.Record) string {
	if r == nil {
		return "not there"
	}
	at := func(name string, t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return fmt.Sprintf(", %s %.4f", name, j.h.since(t).Seconds())
	}
	return fmt.Sprintf("%s (outcome %s, decided by %s in epoch %d, late %t, marked %t%s%s%s%s%s%s)", r.State, r.Outcome, r.DecidedBy, r.Epoch,
		r.Late, r.Marked, at("created", r.CreatedAt), at("expires", r.ExpiresAt), at("pinned", r.PinnedAt), at("released", r.ReleasedAt),
		at("expired", r.ExpiredAt), at("claimed", r.ClaimedAt))
}

// shown is how many violations are told with their stories.
const shown = 8

// report fails the test for every violation.
func (j *judge) report(tb testing.TB) {
	tb.Helper()
	found := j.all()
	counts := map[string]int{}
	for i, v := range found {
		counts[v.invariant]++
		if i < shown {
			tb.Errorf("%s", j.story(v))
		}
	}
	if len(found) > shown {
		tb.Errorf("and %d more; by invariant: %v", len(found)-shown, counts)
	}
	tb.Logf("%d calls of %d reservations judged, %d violations", len(j.calls), len(j.byKey), len(found))
	if len(j.excused) > 0 {
		tb.Logf("exceptions on record: debt of kills let units be promised twice, by pod %v, and %d claims were refunded", j.excused, j.refunds)
	}
}
