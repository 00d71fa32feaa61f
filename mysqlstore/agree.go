package mysqlstore

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

// Agree is MySQL's half of a grant in handover. The record is Redis's provisional hold: it is decided as a reserve
// would be, under its own id, key and expiry, and the decision is stored with the caller's epoch. Nothing is forced,
// no brake is asked (Redis has), and no due hold is ended here, since in handover Redis's expiry wins.
//
// Too few units are a rejection only once the pod is whole in this epoch (see Whole): before, Redis may have given back
// what MySQL still holds, since what was on its way from an older epoch is refused here, and a buyer would be told "sold
// out" of what is there. Until then it waits for units, and is ErrBusy at the deadline.
//
// A record that is there already decides: rejected is RejectedShort with its shortages, anything else is Granted with
// its State. A hold past its expires_at is stored as expired, takes no units, and is Granted with State Expired: it was
// answered to nobody, and the caller has to ask again. The key goes to this id, as a mirror gives it: a hold under
// another id that carries no mark becomes rejected, anything else keeps its state; but if that other one was another
// request's and was answered, it is KeyConflict.
//
// KeyConflict, UnknownBucket and NotFound (past the retention) store nothing. The error is ErrBusy (others hold the
// units until the deadline), *FenceError, *UnavailableError, *UnknownOutcomeError, or *InvalidError for a stage in
// which a grant does not need both stores.
func (s *Store) Agree(ctx context.Context, st reservation.Stamp, rec reservation.Record) (reservation.Judgement, error) {
	if !st.Stage.Valid() || !st.Stage.Route(reservation.OpReserve).Both {
		return reservation.Judgement{}, &reservation.InvalidError{Field: "stamp", Reason: "is of stage " + st.Stage.String() + ": there a grant does not need both stores"}
	}
	if err := validateRecord(rec); err != nil {
		return reservation.Judgement{}, err
	}
	rec.Outcome, rec.State, rec.Shortages = reservation.Granted, reservation.Held, nil
	rec.Epoch, rec.Marked, rec.Late = st.Epoch, false, false
	if rec.DecidedBy == 0 {
		rec.DecidedBy = reservation.Redis
	}
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	return (&agreeing{s: s, st: st, rec: rec}).settle(ctx)
}

// agreeing is one Agree through its attempts.
type agreeing struct {
	s      *Store
	st     reservation.Stamp
	rec    reservation.Record
	locked bool    // somebody else has the key, which takes the ledgers' locks
	ledger bool    // take from unpooled first
	levels []level // not nil: sold out, as read without locks
	res    reservation.Judgement

	told   word                   // by its lane; with a prior COMMIT it does not go there again
	stored *reservation.Judgement // by an earlier transaction, whose COMMIT was not confirmed
}

func (a *agreeing) settle(ctx context.Context) (reservation.Judgement, error) {
	waited := false
	for n := 1; ; n++ {
		err := a.attempt(ctx)
		switch {
		case err == nil:
			return a.res, nil
		case errors.Is(err, errNeedsLocks):
			a.locked = true
			continue
		case errors.Is(err, errNotWhole):
			a.levels, waited = nil, true
			if !pause(ctx, n) {
				return reservation.Judgement{}, reservation.ErrBusy
			}
			continue
		case !errors.Is(err, errShort):
			return a.refused(busyAtLast(ctx, waited, err))
		}
		next, err := a.s.makeRoom(ctx, room{st: a.st, shop: a.rec.Shop, lines: a.rec.Lines, large: a.locked || a.ledger || a.s.large(a.rec.Lines)})
		switch {
		case err != nil:
			return a.refused(busyAtLast(ctx, waited, err))
		case next.soldOut != nil:
			a.levels = next.soldOut
		case next.ledger:
			a.ledger = true
		case next.busy:
			waited = true
			a.s.metrics.busy.WithLabelValues("agree").Inc()
			if !pause(ctx, n) {
				return reservation.Judgement{}, reservation.ErrBusy
			}
		}
	}
}

// errNotWhole: MySQL has too few units, but may still hold back what Redis has ended.
var errNotWhole = errors.New("the pod is not whole yet in this handover")

// refused turns the errors that are decisions into judgements.
func (a *agreeing) refused(err error) (reservation.Judgement, error) {
	var ub *reservation.UnknownBucketError
	if errors.As(err, &ub) {
		return reservation.Judgement{Decision: reservation.UnknownBucket}, nil
	}
	return reservation.Judgement{}, err
}

// attempt is one try: in the lane of its first bucket, or by itself where more than free units may be needed.
func (a *agreeing) attempt(ctx context.Context) error {
	if a.s.opts.NoLanes || a.locked || a.ledger || a.told.prior != nil || a.s.large(a.rec.Lines) || !untouched(a.rec) {
		return a.try(ctx)
	}
	in := &arrival{rec: a.rec, agree: true, levels: a.levels}
	key := laneKey{agreeLane, a.rec.Lines[0].Bucket(a.rec.Shop)}
	if a.told = a.s.join(key, reservation.OpReserve, in.member(ctx, a.st)); a.told.answered() {
		a.res = a.told.judged
		return a.told.err
	}
	defer a.told.turn.end()
	if a.told.prior != nil && a.told.judged.Stored {
		a.stored = &a.told.judged
	}
	return a.try(ctx)
}

func (a *agreeing) try(ctx context.Context) error {
	w := a.told.work(work{path: "agree", op: reservation.OpReserve, stamp: a.st, id: a.rec.ID, lines: len(a.rec.Lines)})
	return a.s.write(ctx, w, func(ctx context.Context, t *tx) error {
		a.res = reservation.Judgement{}
		p, err := a.look(ctx, t)
		if err != nil {
			return err
		}
		if p.cur != nil {
			a.known(p.cur)
			if a.stored != nil && a.stored.State == a.res.State {
				a.res = *a.stored // it was committed after all
			}
			return nil
		}
		if err := a.decide(ctx, t, p); err != nil {
			return err
		}
		if a.res.Stored {
			kept := a.res
			a.stored = &kept
		}
		return nil
	})
}

func (a *agreeing) look(ctx context.Context, t *tx) (*pair, error) {
	var p *pair
	var err error
	if a.locked {
		p, err = lockPair(ctx, t, a.rec)
	} else {
		p, err = lookPair(ctx, t.conn, a.rec)
	}
	if err != nil {
		return nil, err
	}
	if p.cur != nil && p.cur.Shop != a.rec.Shop {
		return nil, corrupt("reservation %s is shop %d's here and shop %d's in Redis", a.rec.ID, p.cur.Shop, a.rec.Shop)
	}
	return p, nil
}

// known answers with the record that is there.
func (a *agreeing) known(cur *row) {
	rec := cur.Record
	a.res = reservation.Judgement{Decision: reservation.Granted, State: rec.State, Record: &rec}
	switch {
	case cur.purged():
		a.res = reservation.Judgement{Decision: reservation.NotFound}
	case rec.Hash != a.rec.Hash:
		a.res.Decision = reservation.KeyConflict
	case rec.State == reservation.Rejected:
		a.res.Decision, a.res.Shortages = reservation.RejectedShort, rec.Shortages
		for _, s := range rec.Shortages {
			b := reservation.Bucket{Shop: rec.Shop, Item: s.Item, Group: s.Group}
			a.res.Levels = append(a.res.Levels, reservation.Level{Bucket: b, Available: s.Available})
		}
	}
}

// decide decides and stores.
func (a *agreeing) decide(ctx context.Context, t *tx, p *pair) error {
	rec, holder := a.rec, p.holder
	switch {
	case !rec.PurgeAt.After(t.now):
		a.res.Decision = reservation.NotFound // past its retention it is unknown everywhere
		return nil
	case holder != nil && !holder.purged() && holder.Hash != rec.Hash && (holder.Marked || !holder.State.TakesUnits()):
		a.res.Decision, a.res.State = reservation.KeyConflict, holder.State
		return nil
	case holder != nil && !a.locked:
		return errNeedsLocks
	case a.levels != nil && t.fence.Whole != a.st.Epoch && rec.ExpiresAt.After(t.now):
		return errNotWhole
	}
	// Before anything is taken: what an unanswered hold under the same key gives back can be had at once.
	if holder != nil && holder.State.TakesUnits() && !holder.Marked {
		for _, l := range holder.Lines {
			if led := p.ls.find(l.Bucket(holder.Shop)); led != nil {
				led.unpooled += l.Quantity
			}
		}
	}
	if err := a.s.freeKey(ctx, t, holder); err != nil {
		return err
	}
	var judged *verdict
	a.res.Decision = reservation.Granted
	switch {
	case !rec.ExpiresAt.After(t.now):
		rec.State, rec.ExpiredAt = reservation.Expired, rec.ExpiresAt
	case a.levels != nil:
		rec, a.res = soldOutHere(rec, a.levels)
	default:
		judged = &verdict{Decision: reservation.Granted}
		if err := a.take(ctx, t, rec, p); err != nil {
			return err
		}
	}
	if err := a.s.insertRecord(ctx, t, rec, judged); err != nil {
		return err
	}
	a.res.State, a.res.Record, a.res.Stored = rec.State, &rec, true
	return nil
}

// soldOutHere is the rejection of a grant for which MySQL has too few units.
func soldOutHere(rec reservation.Record, levels []level) (reservation.Record, reservation.Judgement) {
	rec.State, rec.Outcome, rec.DecidedBy = reservation.Rejected, reservation.RejectedShort, reservation.MySQL
	rec.Shortages = shortagesOf(rec.Lines, levels)
	return rec, reservation.Judgement{Decision: reservation.RejectedShort, Shortages: rec.Shortages, Levels: levelsOf(levels)}
}

func (a *agreeing) take(ctx context.Context, t *tx, rec reservation.Record, p *pair) error {
	if a.locked {
		return a.s.takeUnderLocks(ctx, t, rec, p)
	}
	return a.s.takeGranted(ctx, t, rec.Shop, rec.Lines, a.ledger)
}
