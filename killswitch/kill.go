package killswitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// mysqlWait is how long a kill that stands waits for MySQL: for the raise of its fence, and for the debt.
const mysqlWait = 200 * time.Millisecond

// ackPolls is how many times a kill looks for acknowledgements, one poll of the routers apart.
const ackPolls = 3

// noReason stands in the latch where a person gave none: at 3 a.m. a kill is not refused for that.
const noReason = "no reason given"

// Kill sends the pod back to Redis and keeps it there until it is rearmed. It asks Redis alone, in one script; what it
// tells beyond that (acknowledgements, replicas, MySQL's fence, debt) is found out once the kill stands, each within a
// bound. It may be repeated: a killed pod stays as it is, without an error.
//
// *RefusedError: in legacy and complete there is nothing that a kill could do. *NoRefugeError: Redis cannot take it.
func (c *Control) Kill(ctx context.Context, reason, ticket string) (KillResult, error) {
	if reason == "" {
		reason = noReason
	}
	a := c.audit(reservation.ActionKill, reason, ticket)
	a.Detail = whereFrom()
	began := time.Now()
	f, err := c.setLatch(ctx, a)
	if err != nil {
		return KillResult{}, err
	}
	res := KillResult{
		Pod: c.opt.Pod, Epoch: f.Epoch, Stage: f.Stage.String(), Reason: f.Latch, Laggards: []string{},
		TookMS: millis(time.Since(began)),
	}
	c.opt.Failpoint("killed")
	c.log.Warn("killed", "epoch", f.Epoch, "reason", f.Latch, "by", a.By)
	c.afterKill(ctx, f, a, began, &res)
	return res, nil
}

// whereFrom says on which machine, and in which process, something was ordered.
func whereFrom() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("on %s, pid %d", host, os.Getpid())
}

// setLatch is the kill itself.
func (c *Control) setLatch(ctx context.Context, a reservation.AuditRecord) (reservation.Fence, error) {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	c.opt.Failpoint("before_kill")
	f, err := c.opt.Redis.Kill(ctx, a)
	var invalid *reservation.InvalidError
	switch {
	case err == nil:
		return f, nil
	case errors.As(err, &invalid):
		return f, &RefusedError{
			Pod: c.opt.Pod, Action: "kill", Reason: invalid.Error(),
			Hint: "in legacy Redis decides already; in complete Redis is not kept, so freeze is the brake, and flip --to cutover --execute is the way back. Nothing was changed",
		}
	default:
		var doubt *reservation.FenceError
		return f, &NoRefugeError{Pod: c.opt.Pod, Latched: errors.As(err, &doubt) && doubt.Fence.Killed, Cause: plain("kill", err)}
	}
}

// afterKill finds out what became of a kill that stands. Nothing in here can undo it.
func (c *Control) afterKill(ctx context.Context, f reservation.Fence, a reservation.AuditRecord, began time.Time, res *KillResult) {
	var all sync.WaitGroup
	all.Go(func() {
		acks := c.awaitAcks(ctx, f.Epoch, ackPolls*c.opt.Poll)
		res.Acks, res.Routers, res.Laggards = acks.acks, acks.routers, acks.laggards
		if acks.all() {
			took := millis(acks.at.Sub(began))
			res.AckedMS = &took
		}
	})
	all.Go(func() { res.Replicas = c.replicas(ctx) })
	all.Go(func() { res.Before, res.Already = c.killRecord(ctx, f, a) })
	all.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, mysqlWait)
		defer cancel()
		raised, err := c.opt.MySQL.Raise(ctx, f.Stamp, &a)
		res.MySQL = err == nil && raised.Epoch >= f.Epoch
	})
	all.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, mysqlWait)
		defer cancel()
		if debt, marks, err := c.opt.MySQL.MarksDebt(ctx); err == nil {
			res.Debt, res.Marks = &debt, &marks
		}
	})
	all.Wait()
}

// killRecord finds the audit record of the kill that stands: what was before it, and whether it is somebody else's.
func (c *Control) killRecord(ctx context.Context, f reservation.Fence, mine reservation.AuditRecord) (before string, already bool) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	recs, err := c.opt.Redis.Audit(ctx)
	if err != nil {
		c.log.Warn("the audit in Redis could not be read", "err", err)
		return f.Stage.String(), false
	}
	if kill := standingKill(recs); kill != nil && kill.After == f.Stamp {
		return kill.Before.Stage.String(), kill.By != mine.By || kill.Reason != mine.Reason || kill.Detail != mine.Detail
	}
	// A latch that was set by hand in shadow has no record of its own.
	return f.Stage.String(), true
}

// acks is who has acknowledged an epoch.
type acks struct {
	acks, routers int
	laggards      []string
	at            time.Time // when it was seen
	err           error
}

func (a acks) all() bool { return a.err == nil && len(a.laggards) == 0 }

// awaitAcks looks until every router of the last minute has acknowledged the epoch, a poll apart, and no longer than
// the bound.
func (c *Control) awaitAcks(ctx context.Context, epoch uint64, bound time.Duration) acks {
	end := time.Now().Add(bound)
	for {
		got := c.readAcks(ctx, epoch)
		if got.all() || !time.Now().Before(end) {
			return got
		}
		if !c.pause(ctx, min(c.opt.Poll/4, time.Until(end))) {
			return got
		}
	}
}

func (c *Control) readAcks(ctx context.Context, epoch uint64) acks {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	routers, err := c.opt.Redis.Routers(ctx, keepRouters)
	if err != nil {
		c.log.Warn("the routers' heartbeats could not be read", "err", err)
		return acks{laggards: []string{}, at: time.Now(), err: err}
	}
	n, laggards := acked(routers, epoch)
	return acks{acks: n, routers: len(routers), laggards: laggards, at: time.Now()}
}
