package killswitch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// reseedDrain bounds how long a reseed waits for the routers' queues: what is in them MySQL does not know yet.
const reseedDrain = 10 * time.Second

// Reseed wipes the pod's Redis and rebuilds it from MySQL, then a new epoch and incarnation. Without execute it only
// says what it would do. What Redis knew and MySQL does not is lost: it waits for the routers' queues, runs a round of
// catch-up where Redis answers, and says what may be lost all the same.
//
// It is refused in legacy, where MySQL has no reservation at all, and in complete, where the flip to cutover does it.
func (c *Control) Reseed(ctx context.Context, reason, ticket string, execute bool) (ReseedResult, error) {
	res := ReseedResult{Pod: c.opt.Pod, MayBeLost: []string{}}
	v := c.look(ctx, lookWait)
	to, err := c.reseedTo(v)
	res.Epoch, res.Stage = to.Epoch, stageText(to.Stage)
	if err != nil {
		return res, err
	}
	if execute {
		v = c.beforeReseed(ctx, v)
		if to, err = c.reseedTo(v); err != nil {
			return res, err
		}
	}
	res.MayBeLost = mayBeLost(v)
	if !execute {
		if to.Stage.Truth() == reservation.Redis {
			res.Detail = "in " + to.Stage.String() + " Redis decides: reserves are refused while it is rebuilt"
		}
		return res, nil
	}
	c.opt.Failpoint("before_reseed")
	ctx, cancel := context.WithTimeout(ctx, reseedWait)
	defer cancel()
	res.Detail, err = c.opt.Reseed(ctx, to, c.audit(reservation.ActionReseed, reason, ticket))
	if err != nil {
		return res, &IncompleteError{
			Pod: c.opt.Pod, Did: "the reseed of Redis was begun", Left: "it is not done: run the same command again", Cause: err,
		}
	}
	c.opt.Failpoint("reseeded")
	res.Epoch, res.Stage, res.Done = to.Epoch, to.Stage.String(), true
	c.raiseQuietly(ctx, to)
	return res, nil
}

// reseedTo is the fence that a reseed ends with: above every epoch seen, in the stage of the highest; shadow where a
// kill stands.
func (c *Control) reseedTo(v view) (reservation.Stamp, error) {
	refused := func(reason, hint string) error {
		return &RefusedError{Pod: c.opt.Pod, Action: reservation.ActionReseed, Reason: reason, Hint: hint}
	}
	highest := v.mysql.Stamp
	if v.redisErr == nil && v.redis.Epoch > highest.Epoch {
		highest = v.redis.Stamp
	}
	to := reservation.Stamp{Epoch: highest.Epoch + 1, Stage: highest.Stage}
	if v.redis.Killed && to.Stage > reservation.Shadow {
		to.Stage = reservation.Shadow
	}
	switch {
	case v.mysqlErr != nil:
		return reservation.Stamp{}, fmt.Errorf("MySQL does not answer, and Redis is rebuilt from it: %w", v.mysqlErr)
	case v.redisErr != nil:
		return reservation.Stamp{}, fmt.Errorf("the Redis of pod %s cannot be reached: %w", c.opt.Pod, v.redisErr)
	case v.mysql.Epoch == 0:
		return to, refused("MySQL has no fence", "is it the pod's schema? twinhold doctor says how the stores are")
	case highest.Stage == reservation.Legacy:
		return to, refused("in legacy MySQL has no reservations: every hold would be lost", "restore Redis from its own backup")
	case highest.Stage == reservation.Complete:
		return to, refused("in complete Redis is not used", "flip to cutover: that rebuilds it")
	case c.opt.Reseed == nil:
		return to, refused("this process cannot rebuild Redis", "run it as a command: twinhold reseed "+c.opt.Pod)
	}
	return to, nil
}

// beforeReseed gives MySQL what Redis knows, as far as Redis can still be asked.
func (c *Control) beforeReseed(ctx context.Context, v view) view {
	if v.redis.Suspect || v.redis.Epoch == 0 || v.lost() {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, reseedDrain)
	defer cancel()
	if c.opt.CatchUp != nil {
		if err := c.opt.CatchUp(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			c.log.Warn("the round of catch-up before the reseed failed", "err", err)
		}
	}
	for {
		v = c.look(ctx, lookWait)
		waiting := 0
		for _, hb := range v.fresh() {
			waiting += hb.Queue
		}
		if waiting == 0 || !c.pause(ctx, c.opt.Poll) {
			return v
		}
	}
}

// mayBeLost says what Redis might know and MySQL not.
func mayBeLost(v view) []string {
	out := []string{}
	if v.redis.Suspect || v.redis.Epoch == 0 || v.lost() {
		return append(out, "Redis is in doubt already: what it knew and MySQL does not cannot be told")
	}
	for _, hb := range v.routers {
		if hb.Queue > 0 {
			out = append(out, fmt.Sprintf("router %s has %d operations that MySQL does not know yet", hb.Router, hb.Queue))
		}
	}
	if v.redis.Stage.Truth() == reservation.Redis && len(v.fresh()) > 0 {
		out = append(out, "Redis decides, and routers are running: what they grant between the last round of catch-up and the reseed (freeze the pod first to exclude it)")
	}
	return out
}
