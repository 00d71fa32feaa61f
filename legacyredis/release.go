package legacyredis

import (
	"context"
	"errors"
	"strconv"

	"github.com/twinhold/twinhold/reservation"
)

// Release gives a hold up: its units go back once, whatever is repeated. The quantities are the record's.
func (s *Store) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	c := call{script: s.scripts.release, op: reservation.OpRelease, stamp: st, args: []any{
		id.String(), strconv.FormatInt(shop, 10), token(),
	}}
	s.fail(FailReleaseBegun)
	r, err := s.run(ctx, c)
	if errors.Is(err, reservation.ErrBusy) {
		return reservation.ReleaseResult{}, s.pinned(ctx, shop, id)
	}
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	s.fail(FailReleaseDone)
	if r.status != "RELEASED" && r.status != "REPLAY" {
		return reservation.ReleaseResult{}, strange(c, r)
	}
	rec, err := s.recordOf(id, r, 0)
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	return reservation.ReleaseResult{Record: rec.Record, Replayed: r.status == "REPLAY", WasExpired: r.text(1) == "1"}, nil
}

// pinned is the error of a release that met a pin: busy, unless the ledger has already settled the claim.
func (s *Store) pinned(ctx context.Context, shop int64, id reservation.ID) error {
	known, err := s.ledger.Lookup(ctx, shop, id)
	if err == nil && (known.State == reservation.Claimed || known.State == reservation.Refused) {
		return &reservation.ConflictError{Op: reservation.OpRelease, State: known.State}
	}
	return reservation.ErrBusy
}
