package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/podset"
)

// ErrTaken: another replay is writing to the pod, and each would take the other's operations for its own.
var ErrTaken = errors.New("another replay runs on this pod")

// leaseTime is how long a replay that died keeps others out.
const leaseTime = 15 * time.Second

// lease keeps a second replay off a pod. It says nothing to other writers.
type lease struct {
	client redis.UniversalClient
	key    string
	token  string
	stop   context.CancelFunc
	done   sync.WaitGroup
}

func takeLease(ctx context.Context, pod *podset.Pod) (*lease, error) {
	l := &lease{client: pod.Client(), key: "{" + pod.Config.ID + "}:replay", token: uuid.NewString()}
	_, err := l.client.SetArgs(ctx, l.key, l.token, redis.SetArgs{Mode: "NX", TTL: leaseTime}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, fmt.Errorf("pod %s: %w: wait for it (one that was killed lets go after %v)", pod.Config.ID, ErrTaken, leaseTime)
	case err != nil:
		return nil, fmt.Errorf("take the replay's lease on pod %s: %w", pod.Config.ID, err)
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.done.Go(func() { l.renew(renewing) })
	return l, nil
}

func (l *lease) renew(ctx context.Context) {
	tick := time.NewTicker(leaseTime / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// One that fails is made up for by the next; the lease lasts three of them.
			_ = l.client.PExpire(ctx, l.key, leaseTime).Err()
		}
	}
}

// release lets others in. A lease that cannot be given back ends by itself.
func (l *lease) release() {
	l.stop()
	l.done.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if held, err := l.client.Get(ctx, l.key).Result(); err == nil && held == l.token {
		_ = l.client.Del(ctx, l.key).Err()
	}
}
