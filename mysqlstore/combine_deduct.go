package mysqlstore

import (
	"context"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// deductInLane carries a deduction out together with claims and releases of its first bucket, if it is a plain one. Where
// MySQL decides, what it answered does not depend on the pin, but for the steps that go on the record. While Redis
// decides, the pin's word on late counts, and what is late is carried out alone.
func (s *Store) deductInLane(ctx context.Context, st reservation.Stamp, pin reservation.Pin) word {
	rec := pin.Record
	steps := rec.Late || !rec.ReleasedAt.IsZero() || !rec.ExpiredAt.IsZero() || !rec.ClaimedAt.IsZero()
	told := st.Stage.Truth() != reservation.MySQL && (pin.Unjudged || pin.Late || pin.Refuse)
	if s.opts.NoLanes || !st.Stage.Valid() || steps || told || len(rec.Lines) > laneLines {
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
// entries say. So is a hold of other terms than the truth's while Redis decides, since it takes those over.
func (b *endings) deduct(st reservation.Stamp, cur *row, pinned reservation.Record) word {
	if cur.State != reservation.Held || cur.Shop != pinned.Shop {
		return word{why: "case"}
	}
	late := !cur.at.Before(cur.ExpiresAt)
	if st.Stage.Truth() != reservation.MySQL {
		if cur.Marked || !sameTerms(cur.Record, pinned) {
			return word{why: "case"}
		}
		late = false // the pin says so
	}
	if !pinned.PinnedAt.IsZero() {
		cur.PinnedAt = pinned.PinnedAt
	}
	changes := b.take(cur, late, false)
	if changes == nil {
		return word{why: "case"}
	}
	return word{deduct: reservation.Deduction{
		State: reservation.Claimed, At: cur.ClaimedAt, Late: cur.Late, Changes: changes,
		Judgement: reservation.Judgement{Decision: reservation.ClaimedOK, State: reservation.Claimed},
	}}
}

// sameTerms tells whether a record is of the same cart as the truth's, and says the same of its reserve.
func sameTerms(cur, rec reservation.Record) bool {
	return cur.Outcome == rec.Outcome && cur.DecidedBy == rec.DecidedBy && cur.Epoch == rec.Epoch &&
		cur.CreatedAt.Equal(rec.CreatedAt) && cur.ExpiresAt.Equal(rec.ExpiresAt) && cur.PurgeAt.Equal(rec.PurgeAt) &&
		slices.Equal(cur.Lines, rec.Lines) && slices.Equal(cur.Shortages, rec.Shortages)
}
