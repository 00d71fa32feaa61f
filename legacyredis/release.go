package legacyredis

import (
	"context"
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
