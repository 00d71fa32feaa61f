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

// FenceOfRedis gives the stamp of Redis's fence alone, for a router that starts while its MySQL does not answer. It is
// an error unless Redis decides in that stage.
func FenceOfRedis(ctx context.Context, pod string, redis FencedStore) (reservation.Stamp, error) {
	f, err := redis.ReadFence(ctx)
	switch {
	case err != nil:
		return reservation.Stamp{}, fmt.Errorf("read the fence of pod %s in Redis: %w", pod, err)
	case f.Epoch == 0 || f.Stage.Truth() != reservation.Redis:
		return reservation.Stamp{}, fmt.Errorf("pod %s needs its MySQL to start, and that does not answer", pod)
	default:
		return f.Stamp, nil
	}
}

// EnsureFences gives the stamp that the fences of a pod hold. A pod that neither store knows starts in the declared
// stage, at epoch 1: MySQL's fence first, so that an interrupted start is completed by the next.
func EnsureFences(ctx context.Context, pod string, declared reservation.Stage, redis, mysql FencedStore) (reservation.Stamp, error) {
	rf, err := redis.ReadFence(ctx)
	if err != nil {
		return reservation.Stamp{}, fmt.Errorf("read the fence of pod %s in Redis: %w", pod, err)
	}
	mf, err := mysql.ReadFence(ctx)
	if err != nil {
		return reservation.Stamp{}, fmt.Errorf("read the fence of pod %s in MySQL: %w", pod, err)
	}
	switch {
	case rf.Epoch != 0 && rf.Stamp == mf.Stamp:
		return rf.Stamp, nil
	case rf.Epoch != 0:
		return reservation.Stamp{}, fmt.Errorf("pod %s: the fences differ: Redis epoch %d, %s; MySQL epoch %d, %s",
			pod, rf.Epoch, rf.Stage, mf.Epoch, mf.Stage)
	}
	return startFences(ctx, pod, reservation.Stamp{Epoch: 1, Stage: declared}, mf, redis, mysql)
}

func startFences(ctx context.Context, pod string, first reservation.Stamp, mf reservation.Fence, redis, mysql FencedStore) (reservation.Stamp, error) {
	if !Serves(first.Stage) {
		return reservation.Stamp{}, notServed(pod, first.Stage)
	}
	empty, err := redis.Empty(ctx)
	if err != nil {
		return reservation.Stamp{}, fmt.Errorf("look for reservations of pod %s in Redis: %w", pod, err)
	}
	recs, err := mysql.Walk(ctx, reservation.ID{}, 1)
	if err != nil {
		return reservation.Stamp{}, fmt.Errorf("look for reservations of pod %s in MySQL: %w", pod, err)
	}
	if !empty || len(recs) > 0 || (mf.Epoch != 0 && mf.Stamp != first) {
		return reservation.Stamp{}, fmt.Errorf("pod %s: %w: Redis has none (flushed, or another server?), but reservations or a fence (MySQL epoch %d) are there", pod, ErrNoFence, mf.Epoch)
	}
	if _, err := mysql.InitFence(ctx, first); err != nil {
		return reservation.Stamp{}, fmt.Errorf("create the fence of pod %s in MySQL: %w", pod, err)
	}
	f, err := redis.InitFence(ctx, first)
	if err != nil {
		return reservation.Stamp{}, fmt.Errorf("create the fence of pod %s in Redis: %w", pod, err)
	}
	if f.Stamp != first {
		return reservation.Stamp{}, fmt.Errorf("pod %s: another process started it in %s at the same time: run it again", pod, f.Stage)
	}
	return first, nil
}
