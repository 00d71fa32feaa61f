package mysqlstore

import (
	"context"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// Deduct is the MySQL half of a claim that Redis has pinned. While Redis decides, MySQL's own held, rejected, expired
// or unknown record is claimed all the same, by force if need be; only its released, its refused, or an entry that is
// there already count. While MySQL decides, its rejected counts too, and late is judged here, by MySQL's clock once
// the locks are had; so it is for a pin that is unjudged, whatever the stage. What is late takes what is available,
// else the policy decides. Where on_hand does not cover the lines the claim is refused.
func (s *Store) Deduct(ctx context.Context, st reservation.Stamp, pin reservation.Pin) (reservation.Deduction, error) {
	if err := validateRecord(pin.Record); err != nil {
		return reservation.Deduction{}, err
	}
	told := s.deductInLane(ctx, st, pin)
	if told.answered() {
		return told.deduct, told.err
	}
	d := &deducting{s: s, st: st, pin: pin}
	done := told.deduct // by an earlier transaction, whose COMMIT was not confirmed
	w := told.work(work{path: "deduct", op: reservation.OpClaim, stamp: st, id: pin.Record.ID, lines: len(pin.Record.Lines)})
	err := s.write(ctx, w, func(ctx context.Context, t *tx) error {
		d.t, d.res = t, reservation.Deduction{}
		err := d.run(ctx)
		if d.res.Replayed && !done.At.IsZero() && d.res.At.Equal(done.At) {
			d.res.Replayed, d.res.Judgement = false, done.Judgement // it was committed after all
		}
		done = d.res
		return err
	})
	if err != nil {
		return reservation.Deduction{}, err
	}
	if d.res.Late && !d.res.Replayed {
		s.toldLate(ctx, pin.Record, d.res.State)
	}
	return d.res, nil
}

// validateRecord refuses a record that could not be stored.
func validateRecord(rec reservation.Record) error {
	bad := func(field, reason string) error { return &reservation.InvalidError{Field: field, Reason: reason} }
	switch {
	case rec.ID == (reservation.ID{}):
		return bad("record.id", "is empty")
	case rec.Shop <= 0:
		return bad("record.shop", "is not a shop id")
	case len(rec.Lines) == 0:
		return bad("record.lines", "is empty: a record travels whole")
	case rec.ExpiresAt.IsZero() || rec.PurgeAt.IsZero() || rec.CreatedAt.IsZero():
		return bad("record", "lacks its times: created, expires and purge travel with it")
	}
	for n, l := range rec.Lines {
		if err := l.Bucket(rec.Shop).Validate(); err != nil {
			return err
		}
		if l.Quantity < 1 {
			return bad("record.lines", "has a quantity below 1")
		}
		if n > 0 && rec.Lines[n-1].Bucket(rec.Shop).Compare(l.Bucket(rec.Shop)) >= 0 {
			return bad("record.lines", "are not normalised: sort them by item, then group, one line a bucket")
		}
	}
	return nil
}

// deducting is one Deduct under its locks.
type deducting struct {
	s   *Store
	st  reservation.Stamp
	pin reservation.Pin
	t   *tx
	p   *pair
	res reservation.Deduction
}

// decides tells whether MySQL is the truth in the caller's stage.
func (d *deducting) decides() bool { return d.st.Stage.Truth() == reservation.MySQL }

// judges tells whether late is judged here, and not by the pin.
func (d *deducting) judges() bool { return d.decides() || d.pin.Unjudged }

func (d *deducting) run(ctx context.Context) error {
	rec := d.pin.Record
	p, err := lockPair(ctx, d.t, rec)
	if err != nil {
		return err
	}
	if err := p.unknown(rec); err != nil {
		return err
	}
	d.p = p
	old, err := entriesOf(ctx, d.t.conn, rec.Shop, rec.ID)
	if err != nil {
		return err
	}
	if len(old.changes) > 0 {
		d.res = reservation.Deduction{
			State: reservation.Claimed, Replayed: true, At: old.at, Late: d.pin.Late, Changes: old.changes,
		}
		if p.cur != nil {
			d.res.Late = p.cur.Late
		}
		d.res.Judgement = reservation.Judgement{Decision: reservation.ClaimedOK, State: reservation.Claimed}
		return nil
	}
	if p.cur == nil {
		return d.unknown(ctx)
	}
	return d.known(ctx, p.cur)
}

// known claims a reservation that MySQL has a record of.
func (d *deducting) known(ctx context.Context, cur *row) error {
	j, err := d.judge(ctx, cur)
	if err != nil {
		return err
	}
	switch cur.State {
	case reservation.Claimed:
		return corrupt("reservation %s is claimed and the ledger has no entry of it", cur.ID)
	case reservation.Refused:
		d.res = reservation.Deduction{State: reservation.Refused, Replayed: true, At: cur.ClaimedAt, Late: cur.Late, Judgement: j}
		return nil
	case reservation.Released:
		d.res = reservation.Deduction{State: reservation.Released, At: cur.ReleasedAt, Judgement: j}
		return nil
	case reservation.Rejected:
		if d.decides() {
			d.res = reservation.Deduction{State: reservation.Rejected, Judgement: j}
			return nil
		}
	default: // it holds, or held once
	}
	if err := d.claim(ctx, cur); err != nil {
		return err
	}
	j.State = cur.State
	d.res = reservation.Deduction{State: cur.State, At: cur.ClaimedAt, Late: cur.Late, Judgement: j}
	d.tell()
	return nil
}

// claim deducts or refuses what MySQL holds, held once, or had rejected.
func (d *deducting) claim(ctx context.Context, cur *row) error {
	own := d.decides() || cur.Marked
	if !own || cur.State == reservation.Rejected {
		mergeTruth(cur, d.pin.Record)
	}
	mergeSteps(cur, d.pin.Record)
	if d.judges() {
		cur.Late = !cur.at.Before(cur.ExpiresAt)
		c := &claiming{s: d.s, t: d.t, cur: cur, ls: d.p.ls, path: "deduct"}
		if done, err := c.try(ctx, cur.Late); done || err != nil {
			return err
		}
		return d.s.refuseRow(ctx, d.t, cur)
	}
	cur.Late = d.pin.Late
	if d.pin.Refuse || !covered(cur.Lines, cur.Shop, d.p.ls) {
		return d.s.refuseRow(ctx, d.t, cur)
	}
	return d.take(ctx, cur)
}

func (d *deducting) take(ctx context.Context, cur *row) error {
	if cur.State.TakesUnits() {
		return d.s.deductHeld(ctx, d.t, cur, d.p.ls)
	}
	takes, units, _, err := lockQuantity(ctx, d.t, lockWait, cur.Shop, cur.Lines, d.p.ls)
	if err != nil {
		return err
	}
	d.s.metrics.forced.WithLabelValues("deduct").Add(float64(beyond(takes)))
	return d.s.deductTaken(ctx, d.t, cur, d.p.ls, takes, units)
}

// unknown claims a reservation whose mirrored reserve has not arrived: it is judged and stored here, in the same
// transaction, and the verdict is kept for the reserve that comes later.
func (d *deducting) unknown(ctx context.Context) error {
	rec := d.pin.Record
	levels, err := countLevels(ctx, d.t.conn, bucketsOf(rec.Shop, rec.Lines))
	if err != nil {
		return err
	}
	rec.Marked = false
	var judged *verdict
	if d.st.Stage.DualWrite() && !d.decides() {
		judged = judgeReserve(rec, levels, d.p.holder)
	}
	holder := d.p.holder
	if d.decides() && holder != nil && !holder.purged() {
		holder, rec.Key = nil, "" // the truth's id keeps the key, and the truth is here
	}
	if err := d.s.freeKey(ctx, d.t, holder); err != nil {
		return err
	}
	clause, err := d.judgeUnknown(ctx, &rec)
	if err != nil {
		return err
	}
	if err := d.insert(ctx, &rec, clause, judged); err != nil {
		return err
	}
	// The reserve's own difference is told when it arrives; the claim of what was stored here is one decision.
	j := reservation.Judgement{Decision: reservation.ClaimedOK, State: rec.State}
	if rec.State == reservation.Refused {
		j.Decision = reservation.RefundRequired
	}
	d.res = reservation.Deduction{State: rec.State, At: rec.ClaimedAt, Late: rec.Late, Judgement: j}
	d.tell()
	return nil
}

// judgeUnknown says how a claim ends whose reservation is stored here, and how its units are taken: by force, or,
// where it is late and the policy is refuse, only if they are available.
func (d *deducting) judgeUnknown(ctx context.Context, rec *reservation.Record) (clause string, err error) {
	clause, rec.Late = lockWait, d.pin.Late
	rec.State, rec.ClaimedAt = reservation.Claimed, d.t.now
	refuse := d.pin.Refuse
	if d.judges() {
		if err := one(ctx, d.t.conn, []any{&rec.ClaimedAt}, qNow); err != nil { // after the locks
			return "", err
		}
		refuse = false
		if rec.Late = !rec.ClaimedAt.Before(rec.ExpiresAt); rec.Late && d.s.opts.LatePolicy == reservation.RefuseLate {
			clause = lockSkip
		}
	}
	if refuse || !covered(rec.Lines, rec.Shop, d.p.ls) {
		rec.State = reservation.Refused
	}
	return clause, nil
}

func (d *deducting) insert(ctx context.Context, rec *reservation.Record, clause string, judged *verdict) error {
	if rec.State == reservation.Refused {
		return d.s.insertRecord(ctx, d.t, *rec, judged)
	}
	takes, units, had, err := lockQuantity(ctx, d.t, clause, rec.Shop, rec.Lines, d.p.ls)
	if err != nil {
		return err
	}
	if !had && clause == lockSkip {
		rec.State = reservation.Refused
		return d.s.insertRecord(ctx, d.t, *rec, judged)
	}
	d.s.metrics.forced.WithLabelValues("deduct").Add(float64(beyond(takes)))
	if err := d.s.deductLedgers(ctx, d.t, rec.Shop, rec.Lines, takes, units); err != nil {
		return err
	}
	if err := d.s.insertRecord(ctx, d.t, *rec, judged); err != nil {
		return err
	}
	return d.s.insertEntries(ctx, d.t, &row{Record: *rec}, d.p.ls)
}

// tell adds the changes of a claim that was deducted just now.
func (d *deducting) tell() {
	if d.res.State == reservation.Claimed {
		d.res.Changes = claimChanges(d.p.ls, d.pin.Record)
	}
}

// judge says what MySQL's own record would have made of the claim.
func (d *deducting) judge(ctx context.Context, cur *row) (reservation.Judgement, error) {
	j := reservation.Judgement{State: cur.State}
	overdue := !cur.at.Before(cur.ExpiresAt)
	levels, err := countLevels(ctx, d.t.conn, cur.buckets())
	if err != nil {
		return j, err
	}
	switch cur.State {
	case reservation.Held, reservation.Claimed:
		j.Decision = reservation.ClaimedOK
		twice := slices.ContainsFunc(levels, func(l level) bool { return l.available() < 0 })
		late := (d.pin.Late && !d.judges() || overdue && d.judges()) && twice && d.s.opts.LatePolicy == reservation.RefuseLate
		if cur.State == reservation.Held && (late || !covered(cur.Lines, cur.Shop, d.p.ls)) {
			j.Decision = reservation.RefundRequired
		}
	case reservation.Refused:
		j.Decision = reservation.RefundRequired
	case reservation.Expired:
		j.Decision = reservation.ClaimedOK
		short := len(shortagesOf(cur.Lines, levels)) > 0
		if !covered(cur.Lines, cur.Shop, d.p.ls) || (short && overdue && d.s.opts.LatePolicy == reservation.RefuseLate) {
			j.Decision = reservation.RefundRequired
		}
	default:
		j.Decision = reservation.StateConflict
	}
	if j.Decision != reservation.ClaimedOK {
		j.Levels = levelsOf(levels)
	}
	return j, nil
}
