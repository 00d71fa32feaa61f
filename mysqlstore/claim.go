package mysqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// Claim deducts a paid reservation from the ledger, where MySQL decides. Late is judged by MySQL's clock once the
// reservation's lock is had. A rejected or released one is a *ConflictError; a claim that is there already, also of
// a record that was purged since, answers the same again.
func (s *Store) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	return s.claim(ctx, st, shop, id, false)
}

// claim is Claim; with mark, the outcome is answered without Redis.
func (s *Store) claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID, mark bool) (reservation.ClaimResult, error) {
	var res reservation.ClaimResult
	seen, err := s.lookForEnding(ctx, shop, id)
	if err != nil {
		return res, err
	}
	if seen == nil {
		rec, err := s.claimFromEntries(ctx, s.reads, shop, id)
		if err != nil {
			return res, err
		}
		return reservation.ClaimResult{Record: rec, Replayed: true}, nil
	}
	told := s.endInLane(ctx, st, reservation.OpClaim, seen, mark)
	if res, err = told.claim, told.err; !told.answered() {
		res, err = s.claimAlone(ctx, st, seen, mark, told)
	}
	if errors.Is(err, errGone) {
		return s.claim(ctx, st, shop, id, mark) // it is not looked for in memory any more
	}
	return res, err
}

// claimAlone is a claim in a transaction of its own, after what its lane told it.
func (s *Store) claimAlone(ctx context.Context, st reservation.Stamp, seen *row, mark bool, told word) (reservation.ClaimResult, error) {
	var res reservation.ClaimResult
	id := seen.ID
	done := told.done // by an earlier transaction, whose COMMIT was not confirmed
	w := told.work(work{path: "claim", op: reservation.OpClaim, stamp: st, id: id, lines: len(seen.Lines)})
	err := s.write(ctx, w, func(ctx context.Context, t *tx) error {
		ls, cur, err := lockReservation(ctx, t, seen)
		if err != nil {
			return err
		}
		fresh := mark && !cur.Marked
		cur.Marked = cur.Marked || mark
		c := &claiming{s: s, t: t, cur: cur, ls: ls, path: "claim"}
		if res, err = c.decide(ctx); err == nil && fresh {
			err = s.markOutcome(ctx, t, id, res.Replayed)
		}
		if res.Replayed && res.Record.ClaimedAt.Equal(done) {
			res.Replayed = false // it was committed after all
		}
		done = res.Record.ClaimedAt
		return err
	})
	if err != nil {
		return reservation.ClaimResult{}, err
	}
	if res.Late && !res.Replayed {
		s.toldLate(ctx, res.Record, res.Record.State)
	}
	return res, nil
}

// toldLate: no late claim is silent.
func (s *Store) toldLate(ctx context.Context, rec reservation.Record, state reservation.State) {
	s.metrics.late.WithLabelValues(state.String()).Inc()
	s.opts.Logger.WarnContext(ctx, "late claim: the time to live is too short",
		"reservation", rec.ID, "shop", rec.Shop, "state", state.String(), "expires_at", rec.ExpiresAt)
}

// lookForClaim reads the record without locks; nil if the shop does not know it (any more).
func (s *Store) lookForClaim(ctx context.Context, shop int64, id reservation.ID) (*row, error) {
	return s.lookBy(ctx, shop, id, func(ctx context.Context, id reservation.ID) (*row, error) {
		return rowByID(ctx, s.reads, qRecord, id)
	})
}

// lookForEnding is lookForClaim for those who want to know its buckets: from memory, or together with others who do.
func (s *Store) lookForEnding(ctx context.Context, shop int64, id reservation.ID) (*row, error) {
	if r := s.recent.take(shop, id); r != nil && !s.opts.NoLanes {
		return r, nil
	}
	return s.lookBy(ctx, shop, id, s.rowShared)
}

func (s *Store) lookBy(ctx context.Context, shop int64, id reservation.ID, look func(context.Context, reservation.ID) (*row, error)) (*row, error) {
	var r *row
	err := s.read(ctx, "look", func(ctx context.Context) (err error) {
		r, err = look(ctx, id)
		return err
	})
	if err != nil || r == nil || r.Shop != shop || r.purged() {
		return nil, err
	}
	return r, nil
}

// lockReservation locks a reservation's ledger rows, then its row.
func lockReservation(ctx context.Context, t *tx, seen *row) (ledgers, *row, error) {
	ls, err := lockLedgers(ctx, t, qLedgerLock, seen.buckets())
	if err != nil {
		return nil, nil, err
	}
	if err := ls.unknown(); err != nil {
		return nil, nil, err
	}
	cur, err := rowByID(ctx, t.conn, qRecordLock, seen.ID)
	if err == nil && (cur == nil || cur.purged()) {
		err = errGone
	}
	return ls, cur, err
}

// errGone: the record was there when its buckets were looked for, and is past its retention now.
var errGone = fmt.Errorf("%w any more", reservation.ErrNotFound)

// claiming is a claim under its locks.
type claiming struct {
	s   *Store
	t   *tx
	cur *row
	ls  ledgers

	path string // in metrics
}

func (c *claiming) decide(ctx context.Context) (reservation.ClaimResult, error) {
	cur := c.cur
	switch cur.State {
	case reservation.Claimed, reservation.Refused:
		return reservation.ClaimResult{Record: cur.Record, Late: cur.Late, Replayed: true}, nil
	case reservation.Held, reservation.Expired:
	default:
		return reservation.ClaimResult{}, &reservation.ConflictError{Op: reservation.OpClaim, State: cur.State}
	}
	late := !cur.at.Before(cur.ExpiresAt)
	cur.Late = late
	deducted, err := c.try(ctx, late)
	if err != nil {
		return reservation.ClaimResult{}, err
	}
	if !deducted {
		if err := c.s.refuseRow(ctx, c.t, cur); err != nil {
			return reservation.ClaimResult{}, err
		}
	}
	return reservation.ClaimResult{Record: cur.Record, Late: late}, nil
}

// try deducts, if the ledger and, for a late one, the policy allow it; false means refund_required, with nothing
// written yet. What holds no units takes those that are available, else by force.
func (c *claiming) try(ctx context.Context, late bool) (bool, error) {
	cur := c.cur
	if !covered(cur.Lines, cur.Shop, c.ls) {
		return false, nil
	}
	if cur.State == reservation.Held {
		if late && c.s.opts.LatePolicy == reservation.RefuseLate {
			ok, err := c.promisedOnce(ctx)
			if err != nil || !ok {
				return false, err
			}
		}
		return true, c.s.deductHeld(ctx, c.t, cur, c.ls)
	}
	takes, units, had, err := lockQuantity(ctx, c.t, lockSkip, cur.Shop, cur.Lines, c.ls)
	if err != nil {
		return false, err
	}
	if !had {
		if late && c.s.opts.LatePolicy == reservation.RefuseLate {
			return false, nil
		}
		if takes, units, _, err = lockQuantity(ctx, c.t, lockWait, cur.Shop, cur.Lines, c.ls); err != nil {
			return false, err
		}
		c.s.metrics.forced.WithLabelValues(c.path).Add(float64(beyond(takes)))
	}
	return true, c.s.deductTaken(ctx, c.t, cur, c.ls, takes, units)
}

// promisedOnce tells whether the units that a late claim still holds are its own alone: given back, they would be
// available. They are not where unpooled is negative, since somebody else was promised them too.
func (c *claiming) promisedOnce(ctx context.Context) (bool, error) {
	ls, err := countLevels(ctx, c.t.conn, c.cur.buckets())
	for _, l := range ls {
		if l.available() < 0 {
			return false, err
		}
	}
	return true, err
}

// covered tells whether on_hand covers every line.
func covered(lines []reservation.Line, shop int64, ls ledgers) bool {
	for _, l := range lines {
		if ls.find(l.Bucket(shop)).onHand < l.Quantity {
			return false
		}
	}
	return true
}

// deductHeld makes a hold permanent: its own lines are what is deducted.
func (s *Store) deductHeld(ctx context.Context, t *tx, r *row, ls ledgers) error {
	moves := make([]move, len(r.Lines))
	for n, l := range r.Lines {
		moves[n] = move{bucket: l.Bucket(r.Shop), onHand: -l.Quantity, version: 1}
	}
	if err := s.moveLedgers(ctx, t, moves); err != nil {
		return err
	}
	s.claimed(t, r)
	if err := s.updateRecord(ctx, t, r); err != nil {
		return err
	}
	if err := s.deleteLines(ctx, t, r); err != nil {
		return err
	}
	return s.insertEntries(ctx, t, r, ls)
}

// deductTaken makes permanent what was taken for a reservation that holds nothing (any more), and whose row exists.
func (s *Store) deductTaken(ctx context.Context, t *tx, r *row, ls ledgers, takes []take, units [][]int64) error {
	if err := s.deductLedgers(ctx, t, r.Shop, r.Lines, takes, units); err != nil {
		return err
	}
	s.claimed(t, r)
	if err := s.updateRecord(ctx, t, r); err != nil {
		return err
	}
	return s.insertEntries(ctx, t, r, ls)
}

// deductLedgers lowers on_hand by quantities that were taken from unpooled and from the pool.
func (s *Store) deductLedgers(ctx context.Context, t *tx, shop int64, lines []reservation.Line, takes []take, units [][]int64) error {
	moves := make([]move, len(lines))
	for n, l := range lines {
		moves[n] = move{bucket: l.Bucket(shop), onHand: -l.Quantity, unpooled: -takes[n].unpooled, version: 1}
	}
	if err := s.moveLedgers(ctx, t, moves); err != nil {
		return err
	}
	return s.deleteUnits(ctx, t, units)
}

func (s *Store) claimed(t *tx, r *row) {
	r.State = reservation.Claimed
	r.ClaimedAt = later(t.now, r.at)
}

// insertEntries journals a claim: ls are the ledger rows as they were locked, before on_hand was lowered.
func (s *Store) insertEntries(ctx context.Context, t *tx, r *row, ls ledgers) error {
	_, err := exec(ctx, t.conn, qEntriesClaim, r.ID[:], r.ClaimedAt, jsonChanges(claimChanges(ls, r.Record)))
	s.step(t, "entries")
	return err
}

// refuseRow records refund_required: lines dropped, units back.
func (s *Store) refuseRow(ctx context.Context, t *tx, r *row) error {
	held := r.State.TakesUnits()
	if held {
		if err := s.giveBack(ctx, t, r.Shop, r.Lines); err != nil {
			return err
		}
	}
	r.State = reservation.Refused
	r.ClaimedAt = later(t.now, r.at)
	if err := s.updateRecord(ctx, t, r); err != nil || !held {
		return err
	}
	return s.deleteLines(ctx, t, r)
}
