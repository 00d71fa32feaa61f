package mysqlstore

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

// judgeAdjust says what MySQL would have answered to an adjustment that the truth refused, with plain reads.
func (m *mirroring) judgeAdjust(ctx context.Context, t *tx) (reservation.Judgement, error) {
	adj := m.op.Adjustment
	if adj == nil {
		return reservation.Judgement{}, errors.New("mysqlstore: a mirrored adjustment lacks its Adjustment")
	}
	ls, err := countLevels(ctx, t.conn, []reservation.Bucket{adj.Bucket})
	if err != nil {
		return reservation.Judgement{}, err
	}
	l := ls[0]
	switch {
	case !l.known:
		return reservation.Judgement{Decision: reservation.UnknownBucket}, nil
	case adj.Delta < 0 && !adj.Force && l.available() < -adj.Delta:
		return reservation.Judgement{Decision: reservation.AdjustRefused, Levels: levelsOf(ls)}, nil
	default:
		return reservation.Judgement{Decision: reservation.Adjusted, Levels: levelsOf(ls)}, nil
	}
}
