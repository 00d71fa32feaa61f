package mysqlstore

import (
	"context"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// Deduct is the MySQL half of a claim that Redis has pinned. MySQL's own held, rejected, expired or unknown record
// is claimed all the same, by force if need be; only its released, its refused, or an entry that is there already
// count. Where on_hand does not cover the lines the claim is refused.
func (s *Store) Deduct(ctx context.Context, st reservation.Stamp, pin reservation.Pin) (reservation.Deduction, error) {
	if err := validateRecord(pin.Record); err != nil {
		return reservation.Deduction{}, err
	}
	d := &deducting{s: s, st: st, pin: pin}
	var done reservation.Deduction // by an earlier run of the body, whose COMMIT was not confirmed
	w := work{path: "deduct", op: reservation.OpClaim, stamp: st, id: pin.Record.ID, lines: len(pin.Record.Lines)}
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
	if pin.Late && !d.res.Replayed {
		s.metrics.late.WithLabelValues(d.res.State.String()).Inc()
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
		d.figures(nil)
		return nil
	}
	if p.cur == nil {
		return d.unknown(ctx)
	}
	return d.known(ctx, p.cur)
}

func (d *deducting) figures(deducted map[reservation.Bucket]int64) {
	rec := d.pin.Record
	d.res.Figures = figuresOf(d.p.ls, bucketsOf(rec.Shop, rec.Lines), deducted)
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
		d.figures(nil)
		return nil
	case reservation.Released:
		d.res = reservation.Deduction{State: reservation.Released, At: cur.ReleasedAt, Judgement: j}
		d.figures(nil)
		return nil
	default: // it holds, or held once, or was rejected: claimed all the same
	}
	mergeTruth(cur, d.pin.Record)
	cur.Late = d.pin.Late
	if d.pin.Refuse || !covered(cur.Lines, cur.Shop, d.p.ls) {
		err = d.s.refuseRow(ctx, d.t, cur)
	} else {
		err = d.take(ctx, cur)
	}
	if err != nil {
		return err
	}
	j.State = cur.State
	d.res = reservation.Deduction{State: cur.State, At: cur.ClaimedAt, Late: cur.Late, Judgement: j}
	d.done(cur.State)
	return nil
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
	var judged *verdict
	if d.st.Stage.DualWrite() {
		judged = judgeReserve(rec, levels, d.p.holder)
	}
	if err := d.s.freeKey(ctx, d.t, d.p.holder); err != nil {
		return err
	}
	rec.Late = d.pin.Late
	rec.State, rec.ClaimedAt = reservation.Claimed, d.t.now
	if d.pin.Refuse || !covered(rec.Lines, rec.Shop, d.p.ls) {
		rec.State = reservation.Refused
	}
	if err := d.insert(ctx, rec, judged); err != nil {
		return err
	}
	// The reserve's own difference is told when it arrives; the claim of what was stored here is one decision.
	j := reservation.Judgement{Decision: reservation.ClaimedOK, State: rec.State}
	if rec.State == reservation.Refused {
		j.Decision = reservation.RefundRequired
	}
	d.res = reservation.Deduction{State: rec.State, At: rec.ClaimedAt, Late: rec.Late, Judgement: j}
	d.done(rec.State)
	return nil
}

func (d *deducting) insert(ctx context.Context, rec reservation.Record, judged *verdict) error {
	if rec.State == reservation.Refused {
		return d.s.insertRecord(ctx, d.t, rec, judged)
	}
	takes, units, _, err := lockQuantity(ctx, d.t, lockWait, rec.Shop, rec.Lines, d.p.ls)
	if err != nil {
		return err
	}
	d.s.metrics.forced.WithLabelValues("deduct").Add(float64(beyond(takes)))
	if err := d.s.deductLedgers(ctx, d.t, rec.Shop, rec.Lines, takes, units); err != nil {
		return err
	}
	if err := d.s.insertRecord(ctx, d.t, rec, judged); err != nil {
		return err
	}
	return d.s.insertEntries(ctx, d.t, &row{Record: rec}, d.p.ls)
}

func (d *deducting) done(state reservation.State) {
	if state != reservation.Claimed {
		d.figures(nil)
		return
	}
	deducted := map[reservation.Bucket]int64{}
	for _, l := range d.pin.Record.Lines {
		deducted[l.Bucket(d.pin.Record.Shop)] = l.Quantity
	}
	d.res.Changes = claimChanges(d.p.ls, d.pin.Record)
	d.figures(deducted)
}

// judge says what MySQL's own record would have made of the claim.
func (d *deducting) judge(ctx context.Context, cur *row) (reservation.Judgement, error) {
	j := reservation.Judgement{State: cur.State}
	levels, err := countLevels(ctx, d.t.conn, cur.buckets())
	if err != nil {
		return j, err
	}
	switch cur.State {
	case reservation.Held, reservation.Claimed:
		j.Decision = reservation.ClaimedOK
		twice := slices.ContainsFunc(levels, func(l level) bool { return l.available() < 0 })
		late := d.pin.Late && twice && d.s.opts.LatePolicy == reservation.RefuseLate
		if cur.State == reservation.Held && (late || !covered(cur.Lines, cur.Shop, d.p.ls)) {
			j.Decision = reservation.RefundRequired
		}
	case reservation.Refused:
		j.Decision = reservation.RefundRequired
	case reservation.Expired:
		j.Decision = reservation.ClaimedOK
		short := len(shortagesOf(cur.Lines, levels)) > 0
		if !covered(cur.Lines, cur.Shop, d.p.ls) || (short && d.s.opts.LatePolicy == reservation.RefuseLate) {
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
