package router

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// every calls f at once and then with a pause of d() between two calls, earlier when it is signalled, until the context
// ends. A nil signal never comes.
func every(ctx context.Context, d func() time.Duration, signal <-chan struct{}, f func(context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-signal:
		}
		f(ctx)
		timer.Reset(d())
	}
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// HandoverCatchUp is the longest pause between two rounds of catch-up in handover: until MySQL has all of Redis, buyers
// wait for it. Elsewhere it is that between two looks whether a round is due.
const HandoverCatchUp = time.Second

func (p *Pod) poll() time.Duration { return p.tune().Poll }

// catchUpPause is the pause between two looks whether there is a round of catch-up to run.
func (p *Pod) catchUpPause() time.Duration {
	if d := p.tune().CatchUpEvery; d > 0 {
		return min(d, HandoverCatchUp)
	}
	return othersPause
}

// quickPause is the pause between two quick turns, or between two looks whether there are any.
func (p *Pod) quickPause() time.Duration {
	if d := p.tune().CatchUpTurn; d > 0 {
		return d
	}
	return othersPause
}

// The bounds of one turn of a loop.
const (
	beatTimeout    = 2 * time.Second
	raiseTimeout   = 5 * time.Second
	restoreTimeout = 10 * time.Minute
	drainTimeout   = 10 * time.Second
	restorePause   = time.Second
	purgePause     = 5 * time.Second
)

// beatLoop sends heartbeats, and so learns of every change of the fence in Redis.
func (p *Pod) beatLoop(ctx context.Context) {
	every(ctx, p.poll, nil, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, max(beatTimeout, p.tune().Poll))
		defer cancel()
		if err := p.beat(ctx); err != nil && ctx.Err() == nil {
			p.opt.Logger.Debug("no heartbeat", "pod", p.opt.ID, "err", err)
		}
	})
}

// othersPause is the pause between two looks at the pod's other routers. One that was silent for othersSilent does
// nothing that matters; its heartbeat is kept for othersKeep, so that a kill names it as a laggard.
const (
	othersPause  = time.Second
	othersSilent = 10 * time.Second
	othersKeep   = time.Minute
)

// othersLoop tells the comparison how many other routers there are: what they do, it does not see.
func (p *Pod) othersLoop(ctx context.Context) {
	every(ctx, always(othersPause), nil, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, beatTimeout)
		defer cancel()
		hbs, err := p.opt.Redis.Routers(ctx, othersKeep)
		if err != nil {
			return
		}
		others := 0
		for _, hb := range hbs {
			if hb.Router != p.opt.Name && hb.Ago < othersSilent {
				others++
			}
		}
		p.engine.Others(others)
	})
}

// mysqlLoop brings MySQL's fence up to Redis's, and learns what it carries.
func (p *Pod) mysqlLoop(ctx context.Context) {
	every(ctx, p.poll, p.raise, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
		defer cancel()
		err := p.readMySQLFence(ctx)
		if err == nil {
			err = p.raiseMySQL(ctx)
		}
		if err != nil && ctx.Err() == nil {
			p.opt.Logger.Debug("MySQL's fence cannot be read or raised", "pod", p.opt.ID, "err", err)
		}
	})
}

// restoreLoop has Redis restored when it has lost writes.
func (p *Pod) restoreLoop(ctx context.Context) {
	if p.opt.Restore == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.restoring:
		}
		p.restore(ctx)
		pause(ctx, restorePause) // a second cause is a new one
	}
}

func (p *Pod) restore(ctx context.Context) {
	if !p.suspect.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if err := p.opt.Restore(ctx, []reservation.Stamp{p.Stamp()}); err != nil && ctx.Err() == nil {
		p.opt.Logger.Warn("Redis is not restored yet", "pod", p.opt.ID, "err", err)
	}
	if err := p.beat(ctx); err != nil && ctx.Err() == nil {
		p.opt.Logger.Warn("Redis cannot be used yet", "pod", p.opt.ID, "err", err)
	}
}

// sweepLoop ends due reservations, also without traffic.
func (p *Pod) sweepLoop(ctx context.Context) {
	every(ctx, func() time.Duration { return p.tune().SweepEvery }, nil, func(ctx context.Context) {
		if _, err := p.Sweep(ctx); err != nil && ctx.Err() == nil {
			p.opt.Logger.Warn("sweep failed, it will be tried again", "pod", p.opt.ID, "err", err)
		}
	})
}

// purgeLoop has the store that follows remove what is past its retention, and complete claims under way.
func (p *Pod) purgeLoop(ctx context.Context) {
	every(ctx, always(purgePause), nil, func(ctx context.Context) {
		st := p.Stamp()
		if !st.Stage.DualWrite() || p.isCut() {
			return
		}
		other := reservation.Store(p.opt.MySQL)
		if st.Stage.Truth() == reservation.MySQL {
			other = p.opt.Redis
		}
		if _, err := other.Sweep(ctx, st, p.tune().SweepBatch); err != nil && ctx.Err() == nil && !stale(err) {
			p.opt.Logger.Debug("the store that follows was not swept", "pod", p.opt.ID, "err", err)
		}
	})
}

// drainLoop gives Redis what is marked, as soon as it can be reached.
func (p *Pod) drainLoop(ctx context.Context) {
	if p.opt.DrainMarks == nil {
		return
	}
	every(ctx, p.poll, nil, func(ctx context.Context) {
		if !p.marks.Load() || p.isCut() || p.suspect.Load() || !p.Stamp().Stage.DualWrite() {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		if err := p.opt.DrainMarks(ctx); err != nil && ctx.Err() == nil && !stale(err) {
			p.opt.Logger.Warn("marked reservations could not be given to Redis yet", "pod", p.opt.ID, "err", err)
		}
	})
}

// catchUpLoop brings the stores together, round after round.
func (p *Pod) catchUpLoop(ctx context.Context) {
	if p.opt.CatchUp == nil {
		return
	}
	again, failing := make(chan struct{}, 1), false
	every(ctx, p.catchUpPause, again, func(ctx context.Context) {
		if p.tune().CatchUpEvery <= 0 || !p.canCatchUp() {
			return
		}
		more, err := p.opt.CatchUp(ctx)
		if err != nil && ctx.Err() == nil && !stale(err) && !failing { // once, and not each second of an outage
			p.opt.Logger.Warn("a round of catch-up cannot go on: it is tried again and again", "pod", p.opt.ID, "err", err)
		}
		failing = err != nil
		if more {
			p.wake(again)
		}
	})
}

// quickLoop brings over what is known to be missing. While the breaker is open the mirror does not answer.
func (p *Pod) quickLoop(ctx context.Context) {
	if p.opt.QuickTurn == nil {
		return
	}
	every(ctx, p.quickPause, nil, func(ctx context.Context) {
		if p.tune().CatchUpTurn <= 0 || !p.canCatchUp() || p.queue.Breaker() == "open" {
			return
		}
		if err := p.opt.QuickTurn(ctx); err != nil && ctx.Err() == nil && !stale(err) {
			p.opt.Logger.Debug("a quick turn of catch-up was given up", "pod", p.opt.ID, "err", err)
		}
	})
}

// canCatchUp tells whether there are two stores that can be brought together.
func (p *Pod) canCatchUp() bool {
	return p.Stamp().Stage.DualWrite() && !p.isCut() && !p.suspect.Load()
}

// pause waits; false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
