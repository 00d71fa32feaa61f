package killswitch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// How long a flip tries.
const (
	raiseWait  = 10 * time.Second // to raise MySQL's fence after a move
	reseedWait = 30 * time.Minute
	waitMargin = time.Minute // beyond the longest TTL, for the gate complete
	awaitEvery = time.Second // between two rounds of catch-up
	debtWait   = 5 * time.Second
	maxRounds  = 16 // of one flip: more than any walk has steps
)

// place is where a pod stands, derived from its fences.
type place struct {
	view
	stamp reservation.Stamp
	// leaving: the way out of complete was begun: MySQL's fence is in cutover, Redis is not rebuilt yet.
	leaving bool
}

// locate reads the fences and says where the pod stands. Where that cannot be said, the flip is refused.
func (c *Control) locate(ctx context.Context) (place, error) {
	v := c.look(ctx, lookWait)
	p := place{view: v, stamp: v.redis.Stamp}
	refused := func(hint, format string, args ...any) error {
		return &RefusedError{Pod: c.opt.Pod, Action: reservation.ActionFlip, Reason: fmt.Sprintf(format, args...), Hint: hint}
	}
	switch {
	case v.mysqlErr == nil && v.mysql.Stage == reservation.Complete && v.redisErr == nil && !v.behind():
		// In complete nobody keeps Redis: whatever its fence says, MySQL's counts.
		p.stamp = v.mysql.Stamp
	case v.mysqlErr == nil && v.mysql.Stage == reservation.Cutover && v.redisErr == nil && v.left():
		p.stamp, p.leaving = v.mysql.Stamp, true
	case v.redisErr != nil:
		return p, fmt.Errorf("the fence of pod %s in Redis cannot be read: %w", c.opt.Pod, v.redisErr)
	case v.redis.Epoch == 0 && v.mysqlErr == nil && v.mysql.Epoch == 0:
		return p, refused("start a router: twinhold serve creates the fences in the declared stage", "neither store has a fence yet")
	case v.redis.Epoch == 0 || v.lost():
		return p, refused("the routers restore Redis by themselves (see twinhold status); else: twinhold reseed "+c.opt.Pod,
			"Redis has lost writes: it is at %s, MySQL at %s", stampText(v.redis.Stamp), fenceFigure(v.mysql, v.mysqlErr))
	}
	return p, nil
}

// left tells whether MySQL's fence has left complete and Redis's has not followed: it stands as it was, or was wiped by
// a rebuild that ended half-way.
func (v view) left() bool {
	return v.redis.Epoch == 0 || v.redis.Stage == reservation.Complete && v.redis.Epoch < v.mysql.Epoch
}

// Plan says what a flip would do, gate by gate. It changes nothing. Gates of later steps show what they would say now;
// the one that the flip waits for is marked as awaited.
func (c *Control) Plan(ctx context.Context, o Order) (Plan, error) {
	p := Plan{Pod: c.opt.Pod, To: o.To.String(), Steps: []Step{}}
	if err := c.checkOrder(o, reservation.ActionFlip); err != nil {
		return p, err
	}
	at, err := c.locate(ctx)
	p.Epoch, p.From = at.stamp.Epoch, stageText(at.stamp.Stage)
	if err != nil {
		return p, planRefused(&p, err)
	}
	p.Unfinished = unfinished(at)
	f := &facts{c: c, v: at.view}
	stage := at.stamp.Stage
	for first := true; stage != o.To || first && at.leaving; first = false {
		next, refusal := c.nextStage(at, stage, o.To)
		if refusal != nil {
			return p, planRefused(&p, refusal)
		}
		s := c.step(ctx, f, at, stage, next, o)
		if stage == reservation.Handover && next == reservation.Cutover {
			await(s.Gates)
		}
		p.Steps = append(p.Steps, s)
		stage = next
	}
	return p, nil
}

// await marks the gates that a flip waits for in handover.
func await(gates []Gate) {
	for i := range gates {
		if passesByItself(gates[i]) && gates[i].Verdict != Pass {
			gates[i].Awaited = true
		}
	}
}

// passesByItself: what is lacking comes by catch-up, or by expiry.
func passesByItself(g Gate) bool { return g.Name == GateComplete || g.Name == GateDebt }

func planRefused(p *Plan, err error) error {
	var r *RefusedError
	if !errors.As(err, &r) {
		return err
	}
	p.Refused = append(p.Refused, r.Reason+": "+r.Hint)
	return nil
}

func unfinished(at place) []string {
	var out []string
	if at.leaving {
		out = append(out, fmt.Sprintf("the way out of complete: Redis is still to be rebuilt (MySQL is at %s)", stampText(at.mysql.Stamp)))
	} else if at.behind() && at.stamp == at.redis.Stamp {
		out = append(out, fmt.Sprintf("MySQL's fence is still to be raised from %s to %s", stampText(at.mysql.Stamp), stampText(at.redis.Stamp)))
	}
	return out
}

// checkOrder looks at what a person wrote.
func (c *Control) checkOrder(o Order, action string) error {
	refused := func(hint, format string, args ...any) error {
		return &RefusedError{Pod: c.opt.Pod, Action: action, Reason: fmt.Sprintf(format, args...), Hint: hint}
	}
	if !o.To.Valid() {
		return &reservation.InvalidError{Field: "to", Reason: "is no stage"}
	}
	for _, g := range o.Waive {
		switch {
		case !slices.Contains(gateNames(), g):
			return &reservation.InvalidError{Field: "waive", Reason: fmt.Sprintf("names %q: the gates are %s", g, strings.Join(gateNames(), ", "))}
		case !waivable(g):
			return refused("mend what it says: see twinhold status "+c.opt.Pod, "the gate %s is never waived", g)
		case o.Reason == "":
			return refused("say why: --reason R", "a waiver needs a reason")
		}
	}
	return nil
}

// nextStage is the next step on the way, or why there is none.
func (c *Control) nextStage(at place, stage, to reservation.Stage) (reservation.Stage, error) {
	refused := func(hint, format string, args ...any) error {
		return &RefusedError{Pod: c.opt.Pod, Action: reservation.ActionFlip, Reason: fmt.Sprintf(format, args...), Hint: hint}
	}
	switch {
	case at.leaving && to != reservation.Cutover:
		return 0, refused("finish it first: twinhold flip "+c.opt.Pod+" --to cutover --execute", "Redis is still to be rebuilt")
	case at.leaving:
		return reservation.Cutover, nil
	}
	next := to
	if stage == reservation.Shadow && to == reservation.Cutover {
		next = reservation.Handover
	}
	switch {
	case to > stage && to > c.opt.MaxStage:
		return 0, refused("raise the pod's max_stage in the configuration, if that is meant", "max_stage is %s", c.opt.MaxStage)
	case !stage.CanMoveTo(next) && to > stage:
		first := stage + 1
		if stage == reservation.Shadow {
			first = reservation.Cutover // a flip walks both steps
		}
		return 0, refused(fmt.Sprintf("first: twinhold flip %s --to %s", c.opt.Pod, first), "from %s to %s is more than one step", stage, to)
	case !stage.CanMoveTo(next) && stage == reservation.Complete:
		return 0, refused("flip to cutover first: that rebuilds Redis", "complete leads only back to cutover")
	case !stage.CanMoveTo(next):
		return 0, refused("back leads to shadow, from handover or cutover", "there is no move from %s to %s", stage, to)
	case to > stage && next != reservation.Shadow && at.redis.Killed:
		return 0, refused("look why, then: twinhold rearm "+c.opt.Pod+" --execute", "the pod is killed: %s", at.redis.Latch)
	}
	return next, nil
}

// step judges one move and says in words what it does.
func (c *Control) step(ctx context.Context, f *facts, at place, from, next reservation.Stage, o Order) Step {
	if at.leaving {
		from = reservation.Complete
	}
	f.from, f.to = from, next
	names := gatesOf(from, next)
	if next == reservation.Handover && o.To == reservation.Cutover {
		names = append(slices.Clone(names), GateDrill) // no use in going half-way
	}
	s := Step{From: from.String(), To: next.String()}
	if from == reservation.Complete {
		s.Does = []string{"MySQL's fence to cutover, epoch + 1", "Redis is wiped and rebuilt from MySQL; routers act as cut from it meanwhile", "Redis's fence to the same"}
	} else {
		s.Does = []string{fmt.Sprintf("Redis's fence to %s, epoch + 1: from then on %s", next, decides(next)), "MySQL's fence to the same"}
	}
	s.Gates = f.judge(ctx, names, o.Waive)
	return s
}

func decides(s reservation.Stage) string {
	if s.Route(reservation.OpReserve).Both {
		return "a grant needs both stores"
	}
	if s.Truth() == reservation.Redis {
		return "Redis decides"
	}
	return "MySQL decides"
}

// flip is one Execute under way.
type flip struct {
	c   *Control
	o   Order
	res FlipResult
	// expect is the stamp that this flip left the pod at, nil before its first move: a pod that is found elsewhere was
	// moved by somebody else, and is not moved on.
	expect *reservation.Stamp
}

// Execute flips the pod. Each step is derived from the fences as they are, so a flip that was killed at any step is
// finished by running it again. A flip that finds that somebody else has moved the pod meanwhile (a kill, an abort)
// stops and says so.
//
// The result tells what was done, with an error too. *RefusedError: a gate is shut, or there is no such move.
// *IncompleteError: a move stands in one store and not yet in the other.
func (c *Control) Execute(ctx context.Context, o Order) (FlipResult, error) {
	f := &flip{c: c, o: o, res: FlipResult{Pod: c.opt.Pod, Moves: []Moved{}}}
	if f.o.Progress == nil {
		f.o.Progress = func(string) {}
	}
	if err := c.checkOrder(o, reservation.ActionFlip); err != nil {
		return f.res, err
	}
	for range maxRounds {
		done, err := f.round(ctx)
		if done || err != nil {
			return f.res, err
		}
	}
	return f.res, fmt.Errorf("pod %s is moved by somebody else all the time: look at twinhold audit %s", c.opt.Pod, c.opt.Pod)
}

// round makes the next step, and tells whether the pod is where it was to go.
func (f *flip) round(ctx context.Context) (done bool, err error) {
	at, err := f.c.locate(ctx)
	if f.res.From == "" && at.stamp.Stage.Valid() {
		f.res.From = at.stamp.Stage.String()
	}
	if err != nil {
		return false, err
	}
	f.res.Stage, f.res.Epoch = at.stamp.Stage.String(), at.stamp.Epoch
	if err := f.unmoved(at); err != nil {
		return false, err
	}
	if err := f.settle(ctx, &at); err != nil {
		return false, err
	}
	if at.stamp.Stage == f.o.To && !at.leaving {
		return true, nil
	}
	next, err := f.c.nextStage(at, at.stamp.Stage, f.o.To)
	if err != nil {
		return false, err
	}
	if at.leaving || at.stamp.Stage == reservation.Complete {
		return false, f.leave(ctx, at)
	}
	return false, f.move(ctx, at, next)
}

func (f *flip) unmoved(at place) error {
	arrived := f.o.To == reservation.Shadow && at.stamp.Stage == reservation.Shadow // by a kill or an abort, for all we care
	if f.expect == nil || at.stamp == *f.expect || arrived {
		return nil
	}
	reason := fmt.Sprintf("somebody else has moved it meanwhile: it was left at %s, and is at %s", stampText(*f.expect), stampText(at.stamp))
	if at.redis.Killed {
		reason = "it was killed meanwhile: " + at.redis.Latch
	}
	return &RefusedError{Pod: f.c.opt.Pod, Action: reservation.ActionFlip, Reason: reason, Hint: "see twinhold audit " + f.c.opt.Pod}
}

// settle finishes what an interrupted change left: MySQL's fence is raised to Redis's. A move back does not wait for it.
func (f *flip) settle(ctx context.Context, at *place) error {
	back := f.o.To == reservation.Shadow && at.stamp.Stage > reservation.Shadow
	if !at.behind() || at.leaving || back || at.stamp != at.redis.Stamp {
		return nil
	}
	err := f.raise(ctx, at.stamp, nil)
	if err == nil {
		at.mysql.Stamp = at.stamp
		f.c.opt.Failpoint("settled")
	}
	return err
}

// raise brings MySQL's fence to the stamp. Where Redis decides a pod is whole without it; else it is an error.
func (f *flip) raise(ctx context.Context, st reservation.Stamp, a *reservation.AuditRecord) error {
	wait, cancel := context.WithTimeout(ctx, raiseWait)
	defer cancel()
	f.c.opt.Failpoint("before_raise")
	err := f.c.raise(wait, st, a)
	if err == nil {
		f.c.opt.Failpoint("raised")
		return nil
	}
	if f.o.To == reservation.Shadow && st.Stage == reservation.Shadow {
		f.note("MySQL's fence has not taken epoch %d (%v): the first write of a router raises it", st.Epoch, err)
		return nil
	}
	return &IncompleteError{
		Pod: f.c.opt.Pod, Did: fmt.Sprintf("it is at %s in Redis", stampText(st)), Left: "MySQL's fence", Cause: err,
	}
}

func (f *flip) note(format string, args ...any) {
	n := fmt.Sprintf(format, args...)
	f.res.Notes = append(f.res.Notes, n)
	f.o.Progress(n)
}

// move makes one move: gates, Redis, MySQL.
func (f *flip) move(ctx context.Context, at place, next reservation.Stage) error {
	s, fs, err := f.gates(ctx, at, next)
	if err != nil {
		return err
	}
	f.c.opt.Failpoint("gate_passed")
	a := f.record(s, fs)
	f.o.Progress(fmt.Sprintf("%s -> %s", s.From, s.To))
	f.c.opt.Failpoint("before_move")
	f.expect = &at.stamp
	fence, err := f.inRedis(ctx, at, next, a)
	if err != nil || fence.Epoch == 0 {
		return err
	}
	f.c.opt.Failpoint("moved")
	f.c.log.Warn("flipped", "from", s.From, "to", s.To, "epoch", fence.Epoch, "by", a.By, "waived", a.Waived)
	f.expect = &fence.Stamp
	f.res.Stage, f.res.Epoch = fence.Stage.String(), fence.Epoch
	m := Moved{Step: s, Epoch: fence.Epoch, Waived: a.Waived, Replicas: f.c.replicas(ctx)}
	f.c.opt.Failpoint("waited")
	err = f.raise(ctx, fence.Stamp, &a)
	got := f.c.awaitAcks(ctx, fence.Epoch, ackPolls*f.c.opt.Poll)
	m.Acks, m.Routers, m.Laggards = got.acks, got.routers, got.laggards
	f.res.Moves = append(f.res.Moves, m)
	return err
}

// inRedis asks Redis for the move. A fence without an epoch means that the pod has moved meanwhile: look again.
func (f *flip) inRedis(ctx context.Context, at place, next reservation.Stage, a reservation.AuditRecord) (reservation.Fence, error) {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	fence, err := f.c.opt.Redis.Move(ctx, reservation.FenceMove{From: at.stamp, To: next, Audit: a})
	var refused *reservation.FenceError
	switch {
	case err == nil:
		return fence, nil
	case errors.As(err, &refused) && refused.Verdict == reservation.Stale, errors.Is(err, reservation.ErrLatched):
		return reservation.Fence{}, nil
	default:
		return reservation.Fence{}, fmt.Errorf("move pod %s to %s in Redis: %w", f.c.opt.Pod, next, plain("move", err))
	}
}

// record is the audit record of a move.
func (f *flip) record(s Step, fs *facts) reservation.AuditRecord {
	a := f.c.audit(reservation.ActionFlip, f.o.Reason, f.o.Ticket)
	var waived []string
	for _, g := range s.Gates {
		if g.Waived {
			a.Waived = append(a.Waived, g.Name)
			waived = append(waived, fmt.Sprintf("%s (%s: %s)", g.Name, g.Verdict, g.Figure))
		}
	}
	if len(waived) > 0 {
		a.Detail = "waived: " + strings.Join(waived, ", ")
	}
	if fs.survey.asked && fs.survey.err == nil {
		debt := fs.survey.value.Debt
		a.Debt = &debt
	}
	return a
}

// gates judges the next move, after a round of catch-up where it matters, and waits for the gate complete.
func (f *flip) gates(ctx context.Context, at place, next reservation.Stage) (Step, *facts, error) {
	names := gatesOf(at.stamp.Stage, next)
	end := time.Now().Add(f.wait(at.stamp.Stage))
	told := ""
	for {
		if slices.Contains(names, GateDebt) {
			f.catchUp(ctx)
			v := f.c.look(ctx, lookWait)
			if v.redisErr == nil && v.redis.Stamp != at.stamp {
				f.expect = &at.stamp
				return Step{}, nil, f.unmoved(place{view: v, stamp: v.redis.Stamp})
			}
			at.view = v
		}
		fs := &facts{c: f.c, v: at.view}
		s := f.c.step(ctx, fs, at, at.stamp.Stage, next, f.o)
		shut := Plan{Steps: []Step{s}}.Shut()
		if len(shut) == 0 {
			return s, fs, nil
		}
		if slices.ContainsFunc(shut, func(g Gate) bool { return !passesByItself(g) }) || !time.Now().Before(end) {
			return s, fs, f.shut(at, next, shut)
		}
		if line := "waiting: " + reasons(shut); line != told {
			told = line
			f.o.Progress(line)
		}
		if !f.c.pause(ctx, min(awaitEvery, 5*f.c.opt.Poll)) {
			return s, fs, ctx.Err()
		}
	}
}

// wait is how long a flip waits for what passes by itself: in handover for the last hold of an older epoch to end,
// elsewhere for what was only just too young for catch-up.
func (f *flip) wait(from reservation.Stage) time.Duration {
	switch {
	case from != reservation.Handover:
		return debtWait
	case f.o.Wait != 0:
		return f.o.Wait
	default:
		return f.c.opt.LongestTTL + waitMargin
	}
}

func (f *flip) catchUp(ctx context.Context) {
	if f.c.opt.CatchUp == nil {
		return
	}
	if err := f.c.opt.CatchUp(ctx); err != nil && ctx.Err() == nil {
		f.o.Progress(fmt.Sprintf("a round of catch-up failed, the gates say what is missing: %v", err))
	}
}

func (f *flip) shut(at place, next reservation.Stage, shut []Gate) error {
	hint := "mend what the gates say; twinhold flip " + f.c.opt.Pod + " without --execute shows them again"
	if at.stamp.Stage == reservation.Handover {
		hint = "the pod stays in handover, where a grant needs both stores: run the same command again, or flip --to shadow --execute to go back"
	}
	hint += waiveHint(shut)
	return &RefusedError{
		Pod: f.c.opt.Pod, Action: fmt.Sprintf("flip from %s to %s", at.stamp.Stage, next),
		Reason: reasons(shut), Hint: hint, Gates: shut,
	}
}

// waiveHint says how those shut gates are waived that can be.
func waiveHint(shut []Gate) string {
	var names []string
	for _, g := range shut {
		if g.Waivable && !slices.Contains(names, g.Name) {
			names = append(names, g.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; a person may waive: --waive " + strings.Join(names, ",") + " --reason R"
}

// WaiveHint says how the plan's shut gates are waived, where they can be; empty: none can.
func (p Plan) WaiveHint() string { return waiveHint(p.Shut()) }

func reasons(gates []Gate) string {
	parts := make([]string, 0, len(gates))
	for _, g := range gates {
		parts = append(parts, fmt.Sprintf("%s: %s (%s)", g.Name, g.Reason, g.Figure))
	}
	return strings.Join(parts, "; ")
}
