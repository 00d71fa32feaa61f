package shadow

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// Either is the mirror of a pod whose truth moves: it writes to the store that does not decide in the stamp's stage.
type Either struct {
	Redis, MySQL reservation.Mirror
}

var _ reservation.Mirror = Either{}

// Mirror hands the operation to the store that follows in this stage.
func (e Either) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	if st.Stage.Valid() && st.Stage.Truth() == reservation.MySQL {
		return e.Redis.Mirror(ctx, st, op)
	}
	return e.MySQL.Mirror(ctx, st, op)
}
