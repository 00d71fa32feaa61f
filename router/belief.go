package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// State is what a router believes of a pod, and how it stands with the two stores.
type State struct {
	reservation.Stamp
	// Cut: it goes on with MySQL because Redis is out of reach, for Why.
	Cut bool
	Why string
	// Suspect: Redis has lost writes, and is being restored.
	Suspect          bool
	RedisOK, MySQLOK bool
	Frozen, Killed   bool
	Latch            string
}

// believe gives what the router believes now. Treat it as read-only.
func (p *Pod) believe() *reservation.Fence { return p.fence.Load() }

// Stamp is the epoch and stage that the pod's writes carry now.
func (p *Pod) Stamp() reservation.Stamp { return p.believe().Stamp }

// State tells how the pod stands, as this router sees it. It asks nobody.
func (p *Pod) State() State {
	f := p.believe()
	s := State{
		Stamp: f.Stamp, Suspect: p.suspect.Load(), RedisOK: p.redisOK.Load(), MySQLOK: p.mysqlOK.Load(),
		Frozen: f.Frozen || p.braked(0, nil), Killed: f.Killed, Latch: f.Latch,
	}
	if why := p.cut.Load(); why != nil {
		s.Cut, s.Why = true, *why
	}
	return s
}

// adopt takes a fence over if it is newer than what is believed, or the same with other brakes.
func (p *Pod) adopt(f reservation.Fence) {
	p.believing.Lock()
	defer p.believing.Unlock()
	old := p.believe()
	if f.Epoch < old.Epoch || (f.Epoch == old.Epoch && f.Stage != old.Stage) {
		return
	}
	p.fence.Store(&f)
	if f.Killed && !old.Killed {
		p.opt.Logger.Warn("the pod is killed", "pod", p.opt.ID, "reason", f.Latch, "stage", f.Stage.String(), "epoch", f.Epoch)
	}
	if f.Stamp == old.Stamp {
		return
	}
	p.metrics.epoch.Set(float64(f.Epoch))
	p.metrics.stage.Set(float64(f.Stage))
	p.engine.StageChanged(time.Now(), old.Stamp, f.Stamp)
	p.tellChange(old, &f)
	if f.Stage.Truth() != reservation.MySQL || f.Stage == reservation.Complete {
		p.healed()
	}
	p.wake(p.raise)
}

func (p *Pod) tellChange(old, now *reservation.Fence) {
	if old.Stage == now.Stage {
		p.opt.Logger.Info("the pod has a new epoch", "pod", p.opt.ID, "stage", now.Stage.String(), "epoch", now.Epoch)
		return
	}
	p.opt.Logger.Info("the pod has changed its stage", "pod", p.opt.ID, "from", old.Stage.String(), "to", now.Stage.String(), "epoch", now.Epoch)
}

// Refresh reads the fence now, for callers that write to the stores past the router.
func (p *Pod) Refresh(ctx context.Context) error { return p.load(ctx) }

// load reads the fence from Redis, which acknowledges it: a heartbeat. Where Redis does not answer MySQL's fence is
// read, since it may carry what Redis said before.
func (p *Pod) load(ctx context.Context) error {
	err := p.beat(ctx)
	if err == nil {
		return nil
	}
	if mysqlErr := p.readMySQLFence(ctx); mysqlErr != nil {
		return errors.Join(err, mysqlErr)
	}
	return nil
}

// beat writes the heartbeat and takes over the fence that Redis has.
func (p *Pod) beat(ctx context.Context) error {
	believed := p.believe()
	p.known.Store(true)
	f, err := p.opt.Redis.Beat(ctx, p.heartbeat(believed.Stamp))
	p.redisOK.Store(err == nil)
	if err != nil {
		p.outOfReach(fmt.Sprintf("Redis does not answer: %v", err))
		return err
	}
	switch {
	case f.Epoch == 0:
		p.lost("Redis has no fence of this pod: it was flushed, or is another server")
		return &reservation.FenceError{Store: reservation.Redis, Verdict: reservation.NoFence, Caller: believed.Stamp}
	case f.Suspect:
		p.lost("Redis was restarted or replaced")
	case f.Epoch < believed.Epoch, f.Epoch == believed.Epoch && f.Stage != believed.Stage:
		p.lost(fmt.Sprintf("Redis is at epoch %d, %s: it has lost writes", f.Epoch, f.Stage))
	default:
		p.suspect.Store(false)
		p.saw(reservation.Redis, f)
		p.adopt(f)
		if f.Stamp != believed.Stamp {
			// A second heartbeat acknowledges what was just learned. That it fails changes nothing: the next one does.
			_, _ = p.opt.Redis.Beat(ctx, p.heartbeat(f.Stamp))
		}
		p.healed()
		return nil
	}
	return &reservation.FenceError{Store: reservation.Redis, Verdict: reservation.Regressed, Caller: believed.Stamp, Fence: f}
}

func (p *Pod) heartbeat(st reservation.Stamp) reservation.Heartbeat {
	return reservation.Heartbeat{
		Router: p.opt.Name, Stamp: st, Cut: p.cut.Load() != nil, Queue: p.queue.Depth(), Breaker: p.queue.Breaker(),
		Skipped: p.skipped.Load(),
	}
}

// outOfReach notes that Redis cannot be used. Where MySQL decides the router goes on with it, as cut.
func (p *Pod) outOfReach(why string) {
	if r := p.Stamp().Stage.Route(reservation.OpReserve); r.Decides != reservation.MySQL || r.Mirror == reservation.Never {
		return
	}
	if p.cut.Swap(&why) == nil {
		p.metrics.cut.Set(1)
		p.opt.Logger.Error("cut from Redis: going on with MySQL, outcomes are marked", "pod", p.opt.ID, "why", why)
	}
}

// lost notes that Redis has lost writes, and has it restored.
func (p *Pod) lost(why string) {
	if p.Stamp().Stage == reservation.Complete {
		return // nothing is asked of it
	}
	if !p.suspect.Swap(true) {
		p.opt.Logger.Error("Redis is not what it was: it is restored before it is used", "pod", p.opt.ID, "why", why)
	}
	p.outOfReach(why)
	p.wake(p.restoring)
}

// healed: Redis can be used again, or is not needed.
func (p *Pod) healed() {
	if p.cut.Swap(nil) != nil {
		p.metrics.cut.Set(0)
		p.opt.Logger.Info("no longer cut from Redis", "pod", p.opt.ID)
		p.marks.Store(true)
		p.wake(p.raise)
	}
}

func (p *Pod) isCut() bool { return p.cut.Load() != nil }

// redisOut tells whether an error means that Redis could not be used, and notes why.
func (p *Pod) redisOut(err error) bool {
	var (
		fence   *reservation.FenceError
		una     *reservation.UnavailableError
		unknown *reservation.UnknownOutcomeError
	)
	switch {
	case errors.As(err, &fence) && fence.Store == reservation.Redis && fence.Verdict != reservation.Stale:
		p.lost(fence.Error())
		return true
	case errors.As(err, &una) && una.Store == reservation.Redis, errors.As(err, &unknown) && unknown.Store == reservation.Redis:
		p.outOfReach(err.Error())
		return true
	default:
		return false
	}
}

// stale tells whether a store refused the router's belief as old.
func stale(err error) bool {
	var fence *reservation.FenceError
	return errors.As(err, &fence) && fence.Verdict == reservation.Stale
}

// readMySQLFence takes over MySQL's fence where it is ahead of what is believed.
func (p *Pod) readMySQLFence(ctx context.Context) error {
	f, err := p.opt.MySQL.ReadFence(ctx)
	p.mysqlOK.Store(err == nil)
	if err != nil {
		return err
	}
	p.heardMySQL(f)
	return nil
}

// heardMySQL notes what MySQL's fence says: a newer epoch, and whether marks are outstanding.
func (p *Pod) heardMySQL(f reservation.Fence) {
	p.mysqlEpoch.Store(f.Epoch)
	p.saw(reservation.MySQL, f)
	believed := p.believe()
	if f.Epoch > believed.Epoch {
		f.Incarnation, f.IncarnationEpoch = believed.Incarnation, believed.IncarnationEpoch
		f.Killed, f.Latch = believed.Killed, believed.Latch
		p.adopt(f)
		return
	}
	p.marks.Store(f.Marks > 0)
	if f.Stamp == believed.Stamp && f.Marks == 0 {
		p.clear.Store(f.Epoch)
	}
}

// raiseMySQL brings MySQL's fence up to what is believed, where it is behind.
func (p *Pod) raiseMySQL(ctx context.Context) error {
	if p.mysqlEpoch.Load() >= p.Stamp().Epoch {
		return nil
	}
	f, err := p.opt.MySQL.Raise(ctx, p.Stamp(), nil)
	p.mysqlOK.Store(err == nil)
	if err != nil {
		return err
	}
	p.heardMySQL(f)
	return nil
}
