package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// ErrNoFence: one store has no fence and cannot be given one, since reservations are there already.
var ErrNoFence = errors.New("the pod's fence is gone")

// FencedStore is a store whose fence can be read and set up.
type FencedStore interface {
	reservation.Fencer
	reservation.Walker
}

// Fences gives the fence that a router of this pod believes at its start: the one of the higher epoch, where Redis's
// wins a draw. A pod that neither store knows starts in the declared stage, at epoch 1: MySQL's fence first, so that
// an interrupted start is completed by the next. A store that does not answer is left out, if the other one's fence
// says that the pod can do without it: Redis where Redis decides, MySQL where MySQL does. It gives MySQL's fence too, the
// zero fence where it was not read.
func Fences(ctx context.Context, pod string, declared reservation.Stage, redis, mysql FencedStore) (believe, inMySQL reservation.Fence, err error) {
	rf, redisErr := redis.ReadFence(ctx)
	mf, mysqlErr := mysql.ReadFence(ctx)
	switch {
	case redisErr != nil && mysqlErr != nil:
		return rf, mf, fmt.Errorf("read the fences of pod %s: %w", pod, errors.Join(redisErr, mysqlErr))
	case redisErr != nil:
		believe, err = alone(pod, reservation.MySQL, mf, redisErr)
		return believe, mf, err
	case mysqlErr != nil:
		believe, err = alone(pod, reservation.Redis, rf, mysqlErr)
		return believe, mf, err
	case rf.Epoch == 0 && mf.Epoch == 0, rf.Epoch == 0 && mf.Stamp == reservation.Stamp{Epoch: 1, Stage: declared}:
		believe, err = start(ctx, pod, reservation.Stamp{Epoch: 1, Stage: declared}, mf, redis, mysql)
		return believe, mf, err
	case rf.Epoch >= mf.Epoch:
		return rf, mf, nil
	default: // Redis has lost its fence, or the flip that raised it: the router meets that, and restores
		return mf, mf, nil
	}
}

// alone judges the fence of the one store that answers.
func alone(pod string, store reservation.Truth, f reservation.Fence, other error) (reservation.Fence, error) {
	if f.Epoch == 0 || f.Stage.Truth() != store {
		return reservation.Fence{}, fmt.Errorf("pod %s: %s alone cannot say who decides, and the other store does not answer: %w", pod, store, other)
	}
	return f, nil
}

func start(ctx context.Context, pod string, first reservation.Stamp, mf reservation.Fence, redis, mysql FencedStore) (reservation.Fence, error) {
	none := reservation.Fence{}
	empty, err := redis.Empty(ctx)
	if err != nil {
		return none, fmt.Errorf("look for reservations of pod %s in Redis: %w", pod, err)
	}
	recs, err := mysql.Walk(ctx, reservation.ID{}, 1)
	if err != nil {
		return none, fmt.Errorf("look for reservations of pod %s in MySQL: %w", pod, err)
	}
	switch {
	case mf.Epoch != 0 && (!empty || len(recs) > 0): // it has run before: Redis was flushed, and is restored
		return mf, nil
	case !empty || len(recs) > 0:
		return none, fmt.Errorf("pod %s: %w: neither store has one (flushed, or another server?), but reservations are there", pod, ErrNoFence)
	}
	if _, err := mysql.InitFence(ctx, first); err != nil {
		return none, fmt.Errorf("create the fence of pod %s in MySQL: %w", pod, err)
	}
	f, err := redis.InitFence(ctx, first)
	if err != nil {
		return none, fmt.Errorf("create the fence of pod %s in Redis: %w", pod, err)
	}
	return f, nil
}
