package killswitch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// How long stores are waited for.
const (
	lookWait    = 2 * time.Second // for one store's fence, before something is decided
	changeWait  = 3 * time.Second // for Redis to take a change
	replicaWait = 200 * time.Millisecond
	// keepRouters is how long a router counts as one of the pod's after its last heartbeat, freshRouter how long it
	// counts as alive.
	keepRouters = time.Minute
	freshRouter = 5 * time.Second
)

// view is what both stores say at one time. Each part has its own error.
type view struct {
	redis, mysql         reservation.Fence
	redisErr, mysqlErr   error
	routers              []reservation.Heartbeat
	routersErr, marksErr error
	marksDebt            reservation.Debt
	marks                int64
	rounds               *CatchUpStatus
	why                  map[string]BucketFreeze // of frozen buckets, by name
}

// look asks both stores at once, each with its own deadline.
func (c *Control) look(ctx context.Context, wait time.Duration) view {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var v view
	var all sync.WaitGroup
	all.Go(func() { v.redis, v.redisErr = c.opt.Redis.ReadFence(ctx) })
	all.Go(func() { v.routers, v.routersErr = c.opt.Redis.Routers(ctx, keepRouters) })
	all.Go(func() { v.mysql, v.mysqlErr = c.opt.MySQL.ReadFence(ctx) })
	all.Go(func() { v.marksDebt, v.marks, v.marksErr = c.opt.MySQL.MarksDebt(ctx) })
	if c.opt.Rounds != nil {
		all.Go(func() {
			if r, err := c.opt.Rounds(ctx); err == nil {
				v.rounds = &r
			}
		})
	}
	all.Wait()
	return v
}

// fresh are the routers that are alive.
func (v view) fresh() []reservation.Heartbeat {
	var out []reservation.Heartbeat
	for _, hb := range v.routers {
		if hb.Ago <= freshRouter {
			out = append(out, hb)
		}
	}
	return out
}

// acked splits the routers into those that know the epoch and the names of the others.
func acked(routers []reservation.Heartbeat, epoch uint64) (acks int, laggards []string) {
	laggards = []string{}
	for _, hb := range routers {
		if hb.Epoch >= epoch {
			acks++
		} else {
			laggards = append(laggards, hb.Router)
		}
	}
	return acks, laggards
}

// lost tells whether Redis lacks writes that MySQL's fence knows of, or stands without a fence where MySQL has one.
func (v view) lost() bool {
	switch {
	case v.mysqlErr != nil || v.mysql.Epoch == 0:
		return false
	case v.redis.Epoch != v.mysql.Epoch:
		return v.redis.Epoch < v.mysql.Epoch
	default:
		return v.redis.Stage != v.mysql.Stage
	}
}

// behind tells whether MySQL's fence is still to be raised.
func (v view) behind() bool { return v.mysqlErr == nil && v.mysql.Epoch < v.redis.Epoch }

// stageText is a stage in words; none where there is no fence.
func stageText(s reservation.Stage) string {
	if !s.Valid() {
		return "none"
	}
	return s.String()
}

func stampText(st reservation.Stamp) string {
	if st.Epoch == 0 {
		return "none"
	}
	return fmt.Sprintf("epoch %d, %s", st.Epoch, st.Stage)
}

// audit makes a record of what this process does.
func (c *Control) audit(action, reason, ticket string) reservation.AuditRecord {
	return reservation.AuditRecord{Pod: c.opt.Pod, Action: action, By: c.opt.By, Reason: reason, Ticket: ticket}
}

// replicas waits a moment for a replica, where there is one. That none has it is no failure.
func (c *Control) replicas(ctx context.Context) Replicas {
	wait, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	reached, connected, err := c.opt.Redis.WaitReplica(wait, replicaWait)
	if err != nil {
		c.log.Warn("the replicas of Redis could not be asked", "err", err)
	}
	return Replicas{Reached: reached, Connected: connected}
}

// raise brings MySQL's fence to the stamp, and tries again while the context lives.
func (c *Control) raise(ctx context.Context, st reservation.Stamp, a *reservation.AuditRecord) error {
	for {
		f, err := c.opt.MySQL.Raise(ctx, st, a)
		switch {
		case err == nil && f.Epoch < st.Epoch:
			return fmt.Errorf("MySQL's fence is at %s after it was raised to %s", stampText(f.Stamp), stampText(st))
		case err == nil || !passing(err) || ctx.Err() != nil:
			return err
		}
		if !c.pause(ctx, c.opt.Poll) {
			return err
		}
	}
}

// passing tells whether an error may go away by itself.
func passing(err error) bool {
	var unavailable *reservation.UnavailableError
	var unknown *reservation.UnknownOutcomeError
	return errors.Is(err, reservation.ErrBusy) || errors.As(err, &unavailable) || errors.As(err, &unknown)
}

// pause waits, and tells whether the context still lives.
func (c *Control) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
