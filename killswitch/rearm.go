package killswitch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Rearm undoes a kill, the careful way: the epoch goes up, the latch goes, the pod stays in shadow and may be flipped
// again. Without execute it only says what it would do.
//
// Its gates: cooldown, since the kill (waivable); health: MySQL's fence has the kill's epoch; debt: nothing is left that
// was answered without Redis. *RefusedError where one is shut, or there is no kill.
func (c *Control) Rearm(ctx context.Context, o Order, execute bool) (RearmResult, error) {
	o.To = reservation.Shadow
	res := RearmResult{Pod: c.opt.Pod, Gates: []Gate{}}
	if err := c.checkOrder(o, reservation.ActionRearm); err != nil {
		return res, err
	}
	v, err := c.killed(ctx, execute)
	res.Epoch, res.Stage, res.Killed, res.Latch = v.redis.Epoch, stageText(v.redis.Stage), v.redis.Killed, v.redis.Latch
	if err != nil {
		return res, err
	}
	if execute && v.behind() {
		c.raiseQuietly(ctx, v.redis.Stamp)
		v = c.look(ctx, lookWait)
	}
	res.Gates = c.rearmGates(ctx, v, o.Waive)
	if shut := (Plan{Steps: []Step{{Gates: res.Gates}}}).Shut(); len(shut) > 0 {
		return res, &RefusedError{
			Pod: c.opt.Pod, Action: reservation.ActionRearm, Reason: reasons(shut), Gates: shut,
			Hint: rearmHint(shut),
		}
	}
	if !execute {
		return res, nil
	}
	a := c.audit(reservation.ActionRearm, o.Reason, o.Ticket)
	for _, g := range res.Gates {
		if g.Waived {
			a.Waived = append(a.Waived, g.Name)
			a.Detail = fmt.Sprintf("waived: %s (%s: %s)", g.Name, g.Verdict, g.Figure)
		}
	}
	f, err := c.takeLatchAway(ctx, v.redis.Stamp, a, nil)
	if err != nil {
		return res, err
	}
	res.Epoch, res.Stage, res.Killed, res.Latch, res.Done = f.Epoch, f.Stage.String(), f.Killed, f.Latch, true
	return res, nil
}

// rearmHint says what opens the gates that are shut.
func rearmHint(shut []Gate) string {
	hint := "the pod is safe as it is, in shadow"
	for _, g := range shut {
		switch {
		case g.Name == GateHealth:
			hint += "; waiting does not help with health, mend it: " + g.Reason
		case g.Name == GateCooldown && g.Verdict == Inconclusive:
			hint += "; the cool-down cannot be told, waive it: --waive cooldown --reason R"
		case g.Name == GateCooldown:
			hint += "; wait for the cool-down, or waive it: --waive cooldown --reason R"
		default:
			hint += "; wait until catch-up has brought Redis what it lacks"
		}
	}
	return hint
}

// killed looks at a pod that should be killed. A latch that was set by hand, and that no script has met yet, is folded
// first if execute says that something may be changed.
func (c *Control) killed(ctx context.Context, execute bool) (view, error) {
	v := c.look(ctx, lookWait)
	folds := v.redis.Stage == reservation.Handover || v.redis.Stage == reservation.Cutover
	if v.redisErr == nil && v.redis.Killed && folds && execute {
		if _, err := c.setLatch(ctx, c.audit(reservation.ActionKill, v.redis.Latch, "")); err != nil {
			return v, err
		}
		v = c.look(ctx, lookWait)
	}
	refused := func(reason, hint string) error {
		return &RefusedError{Pod: c.opt.Pod, Action: reservation.ActionRearm, Reason: reason, Hint: hint}
	}
	switch {
	case v.redisErr != nil:
		return v, fmt.Errorf("the fence of pod %s in Redis cannot be read: %w", c.opt.Pod, v.redisErr)
	case v.redis.Epoch == 0 || v.redis.Suspect || v.lost():
		return v, refused("Redis has lost writes", "it is restored first: see twinhold status "+c.opt.Pod)
	case !v.redis.Killed:
		return v, refused("it is not killed", "there is nothing to do")
	case v.redis.Stage == reservation.Legacy || v.redis.Stage == reservation.Complete:
		return v, refused("in "+v.redis.Stage.String()+" a latch does nothing", "take it away by hand: redis-cli DEL '{"+c.opt.Pod+"}:kill'")
	}
	return v, nil
}

func (c *Control) rearmGates(ctx context.Context, v view, waive []string) []Gate {
	gates := []Gate{c.fenceGate(v), marksGate(v), c.rearmCooldown(ctx)}
	for i, name := range []string{GateHealth, GateDebt, GateCooldown} {
		g := &gates[i]
		g.Name, g.Waivable = name, waivable(name)
		g.Waived = g.Verdict != Pass && g.Waivable && slices.Contains(waive, name)
	}
	return gates
}

// fenceGate: no transaction of the time before the kill can commit in MySQL any more.
func (c *Control) fenceGate(v view) Gate {
	figure := fmt.Sprintf("Redis %s; MySQL %s", fenceFigure(v.redis, v.redisErr), fenceFigure(v.mysql, v.mysqlErr))
	switch {
	case v.mysqlErr != nil:
		return fail(figure, "MySQL does not answer, so it cannot confirm the kill's epoch: %v", v.mysqlErr)
	case v.mysql.Stamp != v.redis.Stamp:
		return fail(figure, "MySQL has not confirmed the kill's epoch")
	default:
		return pass("%s", figure)
	}
}

// marksGate: Redis has everything that was answered without it.
func marksGate(v view) Gate {
	if v.marksErr != nil {
		return unsure("unknown", "MySQL could not say what it answered without Redis: %v", v.marksErr)
	}
	figure := fmt.Sprintf("%s, %s, %s", count(v.marks, "mark"), count(v.marksDebt.Reservations, "reservation"), count(v.marksDebt.Units, "unit"))
	if v.marks > 0 {
		return fail(figure, "catch-up has not brought Redis all that was answered without it (holds alone end by themselves in %s)", seconds(v.marksDebt.DrainsInS))
	}
	return pass("%s", figure)
}

// rearmCooldown counts from the kill that stands.
func (c *Control) rearmCooldown(ctx context.Context) Gate {
	recs, err := c.Audit(ctx)
	if err != nil {
		return unsure("unknown", "%v", err)
	}
	kill := standingKill(recs)
	if kill == nil {
		return unsure("unknown", "nobody has written down when it was killed (SET by hand in shadow leaves no record): --waive cooldown --reason R")
	}
	return c.cooled(kill.At, kill.By)
}

// raiseQuietly tries to bring MySQL's fence up; the gates say what is missing if it did not work.
func (c *Control) raiseQuietly(ctx context.Context, st reservation.Stamp) {
	wait, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	if err := c.raise(wait, st, nil); err != nil {
		c.log.Warn("MySQL's fence could not be raised", "to", stampText(st), "err", err)
	}
}

// takeLatchAway is the rearm itself: one script, then MySQL's fence. between, if not nil, runs between the two, and gives
// the record that MySQL writes down.
func (c *Control) takeLatchAway(ctx context.Context, from reservation.Stamp, a reservation.AuditRecord, between func(reservation.Fence) reservation.AuditRecord) (reservation.Fence, error) {
	f, err := func() (reservation.Fence, error) {
		ctx, cancel := context.WithTimeout(ctx, changeWait)
		defer cancel()
		c.opt.Failpoint("before_rearm")
		return c.opt.Redis.Rearm(ctx, from, a)
	}()
	switch {
	case errors.Is(err, reservation.ErrNotLatched):
		return f, &RefusedError{Pod: c.opt.Pod, Action: reservation.ActionRearm, Reason: "somebody else has rearmed it meanwhile", Hint: "see twinhold audit " + c.opt.Pod}
	case err != nil:
		return f, fmt.Errorf("rearm pod %s in Redis: %w", c.opt.Pod, plain("rearm", err))
	}
	c.opt.Failpoint("rearmed")
	c.log.Warn("rearmed", "epoch", f.Epoch, "by", a.By)
	c.replicas(ctx)
	if between != nil {
		a = between(f)
	}
	wait, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	if err := c.raise(wait, f.Stamp, &a); err != nil {
		return f, &IncompleteError{
			Pod: c.opt.Pod, Did: "it is rearmed, at " + stampText(f.Stamp),
			Left: "MySQL's fence (the first write of a router raises it)", Cause: err,
		}
	}
	c.opt.Failpoint("raised")
	return f, nil
}

// drillUncounted stands in the record of a drill in shadow, which is written by the rearm that the routers acknowledge.
const drillUncounted = ", whose acknowledgements of the rearm follow"

func drillDetail(res DrillResult, version string) string {
	return fmt.Sprintf("%s, in %s, %d of %s acknowledged in %.0f ms%s%s", drillDone, res.Before, res.Acks, count(res.Routers, "router"), res.AckedMS, drillVersion, version)
}

// drillAckWait bounds how long a drill waits for the routers, drillDrainWait how long for what was answered without
// Redis to come over.
const (
	drillAckWait   = 10 * time.Second
	drillDrainWait = time.Minute
)

// Drill kills and rearms the pod on purpose, under load, and measures how long it takes until every router has
// acknowledged. The pod ends in shadow, whatever stage it was in. No cool-down applies. It needs a router: a drill that
// nobody takes part in shows nothing, and is refused.
//
// If it cannot rearm, the pod stays killed, which the error says.
func (c *Control) Drill(ctx context.Context, reason, ticket string) (DrillResult, error) {
	res := DrillResult{Pod: c.opt.Pod, Laggards: []string{}}
	v := c.look(ctx, lookWait)
	res.Before, res.Stage = stageText(v.redis.Stage), stageText(v.redis.Stage)
	if err := c.drillable(v); err != nil {
		return res, err
	}
	a := c.audit(reservation.ActionDrill, reason, ticket)
	if a.Reason == "" {
		a.Reason = "a drill"
	}
	a.Detail = drillKilled + " in " + res.Before + drillVersion + c.opt.Version
	began := time.Now()
	f, err := c.setLatch(ctx, a)
	if err != nil {
		return res, err
	}
	res.KillMS = millis(time.Since(began))
	res.KillEpoch, res.Epoch, res.Stage = f.Epoch, f.Epoch, f.Stage.String()
	c.opt.Failpoint("killed")
	moved := f.Stamp != v.redis.Stamp
	if moved {
		c.drillAcks(ctx, f.Epoch, began, &res)
		res.Notes = append(res.Notes, fmt.Sprintf("it was in %s and is in shadow now: flip it forward again", res.Before))
	}
	c.raiseQuietly(ctx, f.Stamp)
	if err := c.drain(ctx); err != nil {
		return res, c.stillKilled(err)
	}
	return c.endDrill(ctx, f.Stamp, a, began, moved, res)
}

// endDrill rearms. Where the kill itself changed no epoch (in shadow), it is the rearm's that is acknowledged: Redis's
// record is then older than the figures, and MySQL's, written when they are known, has them.
func (c *Control) endDrill(ctx context.Context, from reservation.Stamp, a reservation.AuditRecord, began time.Time, moved bool, res DrillResult) (DrillResult, error) {
	a.Detail = drillDetail(res, c.opt.Version)
	if !moved {
		res.Routers = len(c.look(ctx, lookWait).fresh())
		a.Detail = fmt.Sprintf("%s, in %s, %s%s%s", drillDone, res.Before, count(res.Routers, "router"), drillUncounted, drillVersion+c.opt.Version)
	}
	rearming := time.Now()
	f, err := c.takeLatchAway(ctx, from, a, func(f reservation.Fence) reservation.AuditRecord {
		res.RearmMS = millis(time.Since(began))
		if !moved {
			c.drillAcks(ctx, f.Epoch, rearming, &res)
			a.Detail = drillDetail(res, c.opt.Version)
		}
		return a
	})
	var half *IncompleteError
	switch {
	case errors.As(err, &half):
		res.Notes = append(res.Notes, half.Error())
	case err != nil:
		return res, c.stillKilled(err)
	}
	res.Epoch, res.Stage = f.Epoch, f.Stage.String()
	return res, nil
}

func (c *Control) drillAcks(ctx context.Context, epoch uint64, since time.Time, res *DrillResult) {
	got := c.awaitAcks(ctx, epoch, drillAckWait)
	res.Acks, res.Routers, res.Laggards, res.AckedMS = got.acks, got.routers, got.laggards, millis(got.at.Sub(since))
}

func (c *Control) stillKilled(err error) error {
	return &IncompleteError{
		Pod: c.opt.Pod, Did: "the drill has killed it, and it is safe in shadow",
		Left: "the rearm (twinhold rearm " + c.opt.Pod + " --execute)", Cause: err,
	}
}

func (c *Control) drillable(v view) error {
	refused := func(reason, hint string) error {
		return &RefusedError{Pod: c.opt.Pod, Action: reservation.ActionDrill, Reason: reason, Hint: hint}
	}
	switch {
	case v.redisErr != nil:
		return fmt.Errorf("the fence of pod %s in Redis cannot be read: %w", c.opt.Pod, v.redisErr)
	case v.redis.Epoch == 0 || v.redis.Suspect || v.lost():
		return refused("Redis has lost writes", "it is restored first: see twinhold status "+c.opt.Pod)
	case v.redis.Killed:
		return refused("it is killed already: "+v.redis.Latch, "that is no drill: twinhold rearm "+c.opt.Pod+" --execute")
	case v.redis.Stage == reservation.Legacy || v.redis.Stage == reservation.Complete:
		return refused("in "+v.redis.Stage.String()+" a kill does nothing", "drill it in shadow, handover or cutover")
	case v.mysqlErr != nil:
		return refused(fmt.Sprintf("MySQL does not answer, and the rearm needs it: %v", v.mysqlErr), "mend it first: twinhold doctor")
	case len(v.fresh()) == 0:
		return refused(fmt.Sprintf("no router was heard of in the last %s: a drill that nobody takes part in shows nothing", freshRouter), "start one: twinhold serve")
	}
	return nil
}

// drain waits until Redis has all that was answered without it.
func (c *Control) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drillDrainWait)
	defer cancel()
	for {
		_, marks, err := c.opt.MySQL.MarksDebt(ctx)
		if err == nil && marks == 0 {
			return nil
		}
		if c.opt.CatchUp != nil {
			err = errors.Join(err, c.opt.CatchUp(ctx))
		}
		if !c.pause(ctx, c.opt.Poll) {
			return fmt.Errorf("%s outstanding after %s: %w", count(marks, "mark"), drillDrainWait, errors.Join(err, ctx.Err()))
		}
	}
}
