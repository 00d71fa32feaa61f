package legacyredis

import (
	"context"
	"errors"
	"strconv"

	"github.com/twinhold/twinhold/reservation"
)

// Claim makes a reservation permanent, since its payment has succeeded: pin here, deduct from the ledger, finish
// here. Once the ledger has committed, that is the answer; the finish follows in the background (see Flush).
// If the ledger gives an error, its fence's too, the pin stays: a later claim or Sweep joins and completes it.
//
// It is the claim of every stage but complete. While MySQL decides, the pin only keeps Redis from ending the hold: late
// or not, and whether it has ended, is the ledger's to say, and the pin is undone to what it says.
func (s *Store) Claim(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	rec, r, err := s.pin(ctx, st, shop, id, nil)
	if err == nil && r.status == "UNKNOWN" {
		return s.claimUnknown(ctx, st, shop, id)
	}
	return s.claimPinned(ctx, st, rec, r, err)
}

// pin is step 1. A record that Redis does not know can be brought along.
func (s *Store) pin(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID, adopt *reservation.Record) (stored, reply, error) {
	c := call{script: s.scripts.pin, op: reservation.OpClaim, stamp: st, args: []any{
		id.String(), strconv.FormatInt(shop, 10), s.late.String(), micros(s.lease), token(),
	}}
	if adopt != nil {
		c.args = append(c.args, encodeRecord(*adopt)...)
	}
	r, err := s.run(ctx, c)
	if err != nil {
		return stored{}, r, err
	}
	switch r.status {
	case "UNKNOWN":
		return stored{}, r, nil
	case "OTHERSHOP":
		return stored{}, r, reservation.ErrNotFound
	case "PINNED", "JOINED", "REPLAY":
		rec, err := s.recordOf(id, r, 0)
		if err == nil && r.status == "PINNED" {
			s.noteLate(rec)
		}
		return rec, r, err
	}
	return stored{}, r, strange(c, r)
}

// noteLate counts and logs a late claim, once: at its pin, or where its lateness was judged by the ledger.
func (s *Store) noteLate(rec stored) {
	how := "available"
	switch {
	case rec.refuse:
		how = "refused"
	case !rec.Late && rec.forced:
		how = "adopted"
	case !rec.Late:
		return
	case rec.forced:
		how = "forced"
	}
	s.metrics.late.WithLabelValues(how).Inc()
	if how == "adopted" { // in time, but beyond what is available here: another was promised it too
		s.log.Warn("a claim in time took units that were not available in Redis", "shop", rec.Shop, "id", rec.ID)
		return
	}
	s.log.Warn("late claim: the TTL is too tight", "how", how, "shop", rec.Shop, "id", rec.ID, "expired_at", rec.ExpiresAt)
}

// claimPinned goes on from what the pin said.
func (s *Store) claimPinned(ctx context.Context, st reservation.Stamp, rec stored, r reply, err error) (reservation.ClaimResult, error) {
	var conflict *reservation.ConflictError
	switch {
	case errors.As(err, &conflict):
		s.metrics.paidConflicts.WithLabelValues(conflict.State.String()).Inc()
		return reservation.ClaimResult{}, err
	case err != nil:
		return reservation.ClaimResult{}, err
	case r.status == "REPLAY":
		return reservation.ClaimResult{Record: rec.Record, Late: rec.Late, Replayed: true}, nil
	}
	s.fail(FailClaimPinned)
	d, err := s.deduct(ctx, st, rec)
	if err != nil {
		return reservation.ClaimResult{}, err
	}
	s.fail(FailClaimDeducted)
	s.finisher.add(finish{stamp: st, id: rec.ID, deduction: d})
	return s.deducted(rec, d)
}

// deduct is step 2.
func (s *Store) deduct(ctx context.Context, st reservation.Stamp, rec stored) (reservation.Deduction, error) {
	d, err := s.ledger.Deduct(ctx, st, reservation.Pin{
		Record: rec.Record, Late: rec.Late, Refuse: rec.refuse, Unjudged: rec.unjudged,
	})
	if err != nil {
		return d, unsure(reservation.OpClaim, err)
	}
	if rec.unjudged && d.Late && !d.Replayed {
		rec.Late, rec.refuse = true, d.State == reservation.Refused
		s.noteLate(rec)
	}
	return d, nil
}

// deducted is the answer that a deduction stands for.
func (s *Store) deducted(rec stored, d reservation.Deduction) (reservation.ClaimResult, error) {
	if d.State == reservation.Released || d.State == reservation.Rejected {
		s.metrics.paidConflicts.WithLabelValues(d.State.String()).Inc()
		return reservation.ClaimResult{}, &reservation.ConflictError{Op: reservation.OpClaim, State: d.State}
	}
	out := rec.Record
	out.State, out.ClaimedAt, out.Late = d.State, d.At, out.Late || d.Late
	judged := d.Judgement
	return reservation.ClaimResult{Record: out, Late: out.Late, Replayed: d.Replayed, Mirror: &judged}, nil
}

// claimUnknown claims an id that Redis does not know: by what the ledger's side knows of it.
func (s *Store) claimUnknown(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	known, err := s.ledger.Lookup(ctx, shop, id)
	if errors.Is(err, reservation.ErrNotFound) {
		return reservation.ClaimResult{}, s.paidForNothing(shop, id)
	}
	if err != nil {
		return reservation.ClaimResult{}, unsure(reservation.OpClaim, err)
	}
	switch known.State {
	case reservation.Claimed, reservation.Refused:
		return reservation.ClaimResult{Record: known, Late: known.Late, Replayed: true}, nil
	case reservation.Released, reservation.Rejected:
		s.metrics.paidConflicts.WithLabelValues(known.State.String()).Inc()
		return reservation.ClaimResult{}, &reservation.ConflictError{Op: reservation.OpClaim, State: known.State}
	case reservation.Provisional, reservation.Held, reservation.Claiming, reservation.Expired:
	}
	rec, r, err := s.pin(ctx, st, shop, id, &known)
	if err == nil && r.status == "UNKNOWN" {
		return reservation.ClaimResult{}, s.paidForNothing(shop, id)
	}
	if err == nil && r.status == "PINNED" {
		s.metrics.unknown.WithLabelValues("adopted").Inc()
		s.log.Error("claim of a reservation that only the ledger's side knew: Redis has lost a write", "shop", shop, "id", id)
	}
	return s.claimPinned(ctx, st, rec, r, err)
}

// paidForNothing: a claim means that somebody has paid, so an id that nobody knows is worth an alert.
func (s *Store) paidForNothing(shop int64, id reservation.ID) error {
	s.metrics.unknown.WithLabelValues("not_found").Inc()
	s.log.Error("claim of a reservation that nobody knows: somebody has paid for it", "shop", shop, "id", id)
	return reservation.ErrNotFound
}

// unsure keeps the ledger's own errors and makes an unknown outcome of any that it did not sort.
func unsure(op reservation.Op, err error) error {
	if reservation.CodeOf(err) != reservation.CodeInternal {
		return err
	}
	var corrupt *reservation.CorruptError
	if errors.As(err, &corrupt) {
		return err
	}
	return &reservation.UnknownOutcomeError{Store: reservation.MySQL, Op: op, Cause: err}
}
