package legacyredis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// askTrust asks, in the same trip as a read, whether this Redis may be believed at all.
func (s *Store) askTrust(ctx context.Context, pipe redis.Pipeliner) *redis.SliceCmd {
	return pipe.HMGet(ctx, s.keys.fence(), "epoch", "suspect")
}

// trusted gives nil, or the *reservation.FenceError of a read: a suspect Redis may have lost writes, and one without
// a fence has lost everything, so that "not found" there would mean nothing.
func (s *Store) trusted(ctx context.Context, asked *redis.SliceCmd) error {
	vals, err := asked.Result()
	if err != nil {
		return s.wrongType(err, s.keys.fence())
	}
	f := texts(vals)
	if f[0] != "" && f[1] != "1" {
		return nil
	}
	now, err := s.ReadFence(ctx)
	if err != nil {
		return err
	}
	e := &reservation.FenceError{Store: reservation.Redis, Verdict: reservation.Regressed, Fence: now}
	if now.Epoch == 0 {
		e.Verdict = reservation.NoFence
	}
	return e
}
