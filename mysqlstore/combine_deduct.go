package mysqlstore

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// deductInLane carries a deduction out together with claims and releases of its first bucket, where MySQL decides: what
// it answered there does not depend on the pin, but for the steps that go on the record. While Redis decides the record
// takes over what the truth says of it, and each is carried out alone.
func (s *Store) deductInLane(ctx context.Context, st reservation.Stamp, pin reservation.Pin) word {
	rec := pin.Record
	steps := rec.Late || !rec.ReleasedAt.IsZero() || !rec.ExpiredAt.IsZero() || !rec.ClaimedAt.IsZero()
	if s.opts.NoLanes || !st.Stage.Valid() || st.Stage.Truth() != reservation.MySQL || steps || len(rec.Lines) > laneLines {
		return word{why: "case"}
	}
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	return s.join(laneKey{ledgerLane, rec.Lines[0].Bucket(rec.Shop)}, reservation.OpClaim, &member{
		ctx: ctx, stamp: st, id: rec.ID, shop: rec.Shop, lines: len(rec.Lines),
		ending: &ending{op: reservation.OpClaim, seen: &row{Record: rec}, pin: &pin},
	})
}

// deduct is a deduction of a hold as MySQL has it. Any other state is looked at alone: with it goes what the ledger's
// entries say.
func (b *endings) deduct(cur *row, pinned reservation.Record) word {
	if cur.State != reservation.Held || cur.Shop != pinned.Shop {
		return word{why: "case"}
	}
	if !pinned.PinnedAt.IsZero() {
		cur.PinnedAt = pinned.PinnedAt
	}
	changes := b.take(cur, false)
	if changes == nil {
		return word{why: "case"}
	}
	return word{deduct: reservation.Deduction{
		State: reservation.Claimed, At: cur.ClaimedAt, Late: cur.Late, Changes: changes,
		Judgement: reservation.Judgement{Decision: reservation.ClaimedOK, State: reservation.Claimed},
	}}
}
