package legacyredis

import (
	"context"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

const figuresBatch = 200

// ApplyFigures gives Redis what the ledger says of some buckets: absolutely, and only where it is newer than what
// Redis has. With create a bucket that Redis does not have is created, with nothing held; without it, that is an
// *reservation.UnknownBucketError and nothing of its batch is applied. It reports how many were applied.
func (s *Store) ApplyFigures(ctx context.Context, st reservation.Stamp, figs []reservation.Figures, create bool) (int, error) {
	applied := 0
	for batch := range slices.Chunk(figs, figuresBatch) {
		c := call{script: s.scripts.ledger, op: reservation.OpAdjust, stamp: st, args: []any{flag(create), packFigures(batch)}}
		r, err := s.run(ctx, c)
		if err != nil {
			return applied, err
		}
		n, err := r.number(0)
		if err != nil {
			return applied, err
		}
		applied += int(n)
	}
	return applied, nil
}
