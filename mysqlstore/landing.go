package mysqlstore

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// landing is a mirror operation inside its transaction. Without the ledgers' locks it may insert a record that
// takes free units or none; whatever else it finds to do is errNeedsLocks.
type landing struct {
	m      *mirroring
	t      *tx
	p      *pair
	locked bool
}

func (l *landing) run(ctx context.Context) error {
	op := l.m.op
	var have reservation.State
	if l.p.cur != nil {
		have = l.p.cur.State
	}
	if op.Expect != nil && *op.Expect != have {
		l.found(l.p.cur)
		return nil
	}
	if l.p.cur != nil {
		return l.existing(ctx, l.p.cur)
	}
	if !op.Record.PurgeAt.After(l.t.now) {
		l.m.res.Decision = reservation.NotFound // past its retention it is unknown everywhere
		return nil
	}
	if l.p.holder != nil && !l.locked {
		return errNeedsLocks
	}
	return l.absent(ctx)
}

// settled gives the state that the record should end in. Held against rejected goes to the store that decides, but
// what somebody was promised stays: what is adopted, and what is marked here.
func (l *landing) settled(cur *row) reservation.State {
	theirs, ours := l.m.op.Record.State, cur.State
	switch {
	case l.m.op.Adopt && theirs == reservation.Held && ours == reservation.Rejected:
		return theirs
	case cur.Marked && ours == reservation.Held && theirs == reservation.Rejected:
		return ours
	case l.m.decides():
		return reservation.Merge(ours, theirs)
	default:
		return reservation.Merge(theirs, ours)
	}
}

// found puts the record that is there into the judgement.
func (l *landing) found(cur *row) {
	if cur == nil {
		return
	}
	rec := cur.Record
	l.m.res.State, l.m.res.Record = rec.State, &rec
	if l.m.res.Decision == 0 {
		l.m.res.Decision = cur.Outcome
	}
}

// pastExpiry: a hold that has run out takes no stock any more.
func (l *landing) pastExpiry() bool { return !l.m.op.Record.ExpiresAt.After(l.t.now) }

// existing judges, and moves the record up to what both stores say of it.
func (l *landing) existing(ctx context.Context, cur *row) error {
	op := l.m.op
	l.m.res = judgeExisting(op, cur)
	want := l.settled(cur)
	if want == reservation.Held && cur.State == reservation.Rejected && l.pastExpiry() {
		want = reservation.Expired
	}
	anew := l.decidedAnew(cur)
	if (want == cur.State && !anew) || l.looksUp() {
		l.found(cur)
		return nil
	}
	if !l.locked {
		return errNeedsLocks
	}
	if want == cur.State {
		return l.takeOver(ctx, cur)
	}
	before := cur.State
	own := l.m.decides() || cur.Marked
	if !own || before == reservation.Rejected {
		mergeTruth(cur, op.Record)
	}
	mergeSteps(cur, op.Record)
	if want == reservation.Expired && cur.ExpiredAt.IsZero() {
		cur.ExpiredAt = cur.ExpiresAt
	}
	cur.State = want
	if err := l.transit(ctx, cur, before); err != nil {
		return err
	}
	l.m.res.Stored = true
	l.found(cur)
	return nil
}

// looksUp: a replay that was answered already is compared and not stored; its reserve is on its own way. Where the
// answer waits for this store, what is answered has to be here.
func (l *landing) looksUp() bool {
	op := l.m.op
	after := l.m.st.Stage.Route(reservation.OpReserve).Mirror == reservation.AfterAnswer
	return op.Op == reservation.OpReserve && op.Replayed && after && op.Expect == nil && !op.Adopt
}

// decidedAnew: the truth has decided in a later epoch what this store had granted to nobody, and stamped another expiry.
func (l *landing) decidedAnew(cur *row) bool {
	rec := l.m.op.Record
	return cur.State == rec.State && rec.Epoch > cur.Epoch &&
		!l.m.decides() && !cur.Marked && !rec.ExpiresAt.Equal(cur.ExpiresAt)
}

// takeOver writes the truth's terms of a hold that stays one.
func (l *landing) takeOver(ctx context.Context, cur *row) error {
	mergeTruth(cur, l.m.op.Record)
	if err := l.m.s.updateRecord(ctx, l.t, cur); err != nil {
		return err
	}
	l.m.res.Stored = true
	l.found(cur)
	return nil
}

// transit writes a change of state with its effect on stock: a hold that ended gives its units back, and a hold
// that the truth granted after all is taken by force. The ledger's on_hand is the claim's own business.
func (l *landing) transit(ctx context.Context, cur *row, before reservation.State) error {
	s := l.m.s
	if cur.State == reservation.Claimed {
		if err := l.entryThere(ctx); err != nil {
			return err
		}
	}
	switch {
	case before.TakesUnits():
		if err := l.p.unknown(cur.Record); err != nil {
			return err
		}
		if err := s.giveBack(ctx, l.t, cur.Shop, cur.Lines); err != nil {
			return err
		}
		if err := s.updateRecord(ctx, l.t, cur); err != nil {
			return err
		}
		return s.deleteLines(ctx, l.t, cur)
	case cur.State.TakesUnits():
		if _, err := l.force(ctx, cur.Record); err != nil {
			return err
		}
		if err := s.updateRecord(ctx, l.t, cur); err != nil {
			return err
		}
		return s.insertLines(ctx, l.t, cur.Shop, cur.ID, cur.Lines)
	default:
		return s.updateRecord(ctx, l.t, cur)
	}
}

func (l *landing) entryThere(ctx context.Context) error {
	rec := l.m.op.Record
	old, err := entriesOf(ctx, l.t.conn, rec.Shop, rec.ID)
	if err == nil && len(old.changes) == 0 {
		err = ErrEntryMissing
	}
	return err
}

// force takes the units of all lines under the ledgers' locks, also those that are not there.
func (l *landing) force(ctx context.Context, rec reservation.Record) (int64, error) {
	if err := l.p.unknown(rec); err != nil {
		return 0, err
	}
	takes, units, _, err := lockQuantity(ctx, l.t, lockWait, rec.Shop, rec.Lines, l.p.ls)
	if err != nil {
		return 0, err
	}
	forced := beyond(takes)
	l.m.res.Forced = forced
	l.m.s.metrics.forced.WithLabelValues("mirror").Add(float64(forced))
	return forced, l.m.s.takeLocked(ctx, l.t, rec.Shop, rec.Lines, takes, units)
}

// absent stores a reservation that is not here yet.
func (l *landing) absent(ctx context.Context) error {
	op := l.m.op
	rec := op.Record
	rec.Marked = false
	l.m.res.Backfilled = op.Op != reservation.OpReserve || op.Replayed
	if l.m.res.Backfilled {
		l.m.res.Decision = reservation.NotFound
	}
	if rec.State == reservation.Held && l.pastExpiry() {
		rec.State, rec.ExpiredAt = reservation.Expired, rec.ExpiresAt
	}
	if rec.State == reservation.Claimed {
		if err := l.entryThere(ctx); err != nil {
			return err
		}
	}
	holder := l.p.holder
	if l.m.decides() && holder != nil && !holder.purged() {
		// The truth's id keeps the key, and the truth is here. Who holds without it was answered to nobody.
		holder, rec.Key = nil, ""
		if rec.State == reservation.Held && !op.Adopt {
			rec.State, rec.Outcome = reservation.Rejected, reservation.RejectedShort
		}
	}
	judged, err := l.judge(ctx, rec)
	if err != nil {
		return err
	}
	if rec.State == reservation.Held && judged != nil && judged.Decision == reservation.UnknownBucket {
		l.m.res.Decision = reservation.UnknownBucket
		return nil
	}
	if rec.State == reservation.Held {
		if err := l.take(ctx, rec, judged); err != nil {
			return err
		}
	}
	if err := l.m.s.freeKey(ctx, l.t, holder); err != nil {
		return err
	}
	if err := l.m.s.insertRecord(ctx, l.t, rec, judged); err != nil {
		return err
	}
	if judged != nil {
		l.m.res = judged.judgement()
	}
	l.m.res.Stored = true
	l.m.res.State, l.m.res.Record = rec.State, &rec
	return nil
}

// judge says what MySQL would have answered to this reserve; nil where it is not judged. Without the ledgers' locks
// a hold is judged by the taking of its units.
func (l *landing) judge(ctx context.Context, rec reservation.Record) (*verdict, error) {
	switch {
	case l.m.res.Backfilled:
		return nil, nil
	case rec.State == reservation.Rejected, l.m.op.Decision == reservation.RejectedShort:
		return judgeRejected(rec, l.p.holder, func(buckets []reservation.Bucket) ([]level, error) {
			return countLevels(ctx, l.t.conn, buckets)
		})
	case rec.State == reservation.Held && !l.locked:
		return &verdict{Decision: reservation.Granted}, nil
	}
	ls, err := countLevels(ctx, l.t.conn, bucketsOf(rec.Shop, rec.Lines))
	if err != nil {
		return nil, err
	}
	return judgeReserve(rec, ls, l.p.holder), nil
}

// take takes the units of a hold: free ones, or under the ledgers' locks by force. A hold that nobody was promised
// is never forced.
func (l *landing) take(ctx context.Context, rec reservation.Record, judged *verdict) error {
	if !l.locked {
		return l.m.s.takeGranted(ctx, l.t, rec.Shop, rec.Lines, l.m.ledger)
	}
	if l.m.unpromised() {
		return l.m.s.takeUnderLocks(ctx, l.t, rec, l.p)
	}
	forced, err := l.force(ctx, rec)
	if judged != nil {
		judged.Forced = forced
	}
	return err
}
