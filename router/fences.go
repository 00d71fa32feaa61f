package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// ErrNoFence: one store has no fence and cannot be given one, since reservations are there already.
var ErrNoFence = errors.New("the pod's fence is gone")

// FencedStore is a store whose fence can be read and set up.
type FencedStore interface {
	reservation.Fencer
	reservation.Walker
}

// fenceWait bounds the wait for MySQL's fence: a router whose Redis decides starts without it.
const fenceWait = 3 * time.Second

// EnsureFences gives the stamp that the fences of a pod hold. A pod that neither store knows starts in the declared
// stage, at epoch 1: MySQL's fence first, so that an interrupted start is completed by the next.
func EnsureFences(ctx context.Context, pod string, declared reservation.Stage, redis, mysql FencedStore) (reservation.Stamp, error) {
	rf, err := redis.ReadFence(ctx)
	if err != nil {
		return reservation.Stamp{}, fmt.Errorf("read the fence of pod %s in Redis: %w", pod, err)
	}
	bounded, cancel := context.WithTimeout(ctx, fenceWait)
	defer cancel()
	mf, err := mysql.ReadFence(bounded)
	if err != nil {
		if rf.Epoch != 0 && rf.Stage.Truth() == reservation.Redis {
			return rf.Stamp, nil // Redis decides: a router starts without MySQL, claims wait for it
		}
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
