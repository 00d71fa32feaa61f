package podset

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
	"github.com/twinhold/twinhold/shadow"
)

// turns is a router's part in the pod's catch-up. Each router looks at what its own mirror has missed; what is new, and
// the full rounds, are for the one that holds the lease. Two that hold it do no harm.
type turns struct {
	steady  *shadow.CatchUp
	missed  *shadow.Missed
	metrics *turnMetrics
	rounds  sync.Mutex // one part of catch-up at a time in this process
	first   sync.Once
	started time.Time // at the first look whether a round is due
	told    time.Time // the round whose end the comparison has heard of, by another router
	holds   atomic.Bool
	lasting lasting // differences over rounds
}

// openCatchUp makes the catch-up that runs all the time.
func (p *Pod) openCatchUp(settle time.Duration, opt Options) (err error) {
	if p.missed, err = shadow.NewMissed(p.Config.ID, opt.Registerer); err != nil {
		return err
	}
	p.metrics = newTurnMetrics(p.Config.ID, opt.Registerer)
	p.steady, err = shadow.NewCatchUp(shadow.CatchUpOptions{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Settle: settle, Grace: p.grace,
		InFlight: func(id reservation.ID) bool { return p.Router.Engine().InFlight(id) },
		Logger:   opt.Logger, Registerer: opt.Registerer, StoreNow: p.storeNow,
	})
	return err
}

// miss notes a reservation of which the mirror has missed something.
func (p *Pod) miss(id reservation.ID) { p.missed.Note(id, time.Now()) }

// quickTurn brings over what is known to be missing, and what is new.
func (p *Pod) quickTurn(ctx context.Context) error {
	fence, err := p.dualFence(ctx)
	if err != nil || fence.Epoch == 0 {
		return err
	}
	if err := p.metrics.turn("missed", p.lookMissed(ctx, fence)); err != nil || fence.Stage == reservation.Handover {
		return err // in handover whole rounds run all the time
	}
	mine, err := p.holdsCatchUp(ctx)
	if err != nil || !mine {
		return err
	}
	return p.metrics.turn("new", p.follow(ctx, fence))
}

// dualFence reads Redis's fence; the zero fence where there are no two stores to bring together now.
func (p *Pod) dualFence(ctx context.Context) (reservation.Fence, error) {
	fence, err := p.Redis.ReadFence(ctx)
	if err != nil || !fence.Stage.DualWrite() || fence.Suspect {
		return reservation.Fence{}, err
	}
	return fence, nil
}

// looksAtOnce is how many of those that were missed are looked at before another part of catch-up has its turn.
const looksAtOnce = 2000

// lookMissed looks at what the mirror has missed, once it is older than the settle time. What could not be settled stays.
func (p *Pod) lookMissed(ctx context.Context, fence reservation.Fence) error {
	before := time.Now().Add(-p.cfg.Load().Tuning.Settle)
	for {
		ids := p.missed.Take(before, looksAtOnce)
		if len(ids) == 0 {
			return nil
		}
		part, err := p.part(fence, func() (shadow.Part, error) { return p.steady.Look(ctx, fence, ids) })
		again := part.LeftAlone
		if err != nil {
			again = ids
		}
		p.missed.Done(ids, again, time.Now())
		if err != nil {
			return err
		}
	}
}

// part runs a part of catch-up and tells the comparison of it, before any other part runs.
func (p *Pod) part(fence reservation.Fence, run func() (shadow.Part, error)) (shadow.Part, error) {
	p.rounds.Lock()
	defer p.rounds.Unlock()
	part, err := run()
	p.found(part, fence.Stamp, err)
	return part, err
}

// follow walks what is new and settled, in order of creation. What of it is too young, since it has changed, is looked at
// again; what changes later is for the gaps, or the full round.
func (p *Pod) follow(ctx context.Context, fence reservation.Fence) error {
	t := p.cfg.Load().Tuning
	began, now := time.Now(), p.storeNow()
	upTo := shadow.Before(now.Add(-t.Settle))
	at, err := p.cursor(ctx)
	if err != nil {
		return err
	}
	if at == (reservation.ID{}) || shadow.Created(at).After(now) {
		return p.keepCursor(ctx, shadow.Before(now)) // what was there before is for the full round
	}
	for at != upTo && time.Since(began) < max(t.CatchUpTurn, time.Second) && shadow.Created(at).Before(shadow.Created(upTo)) {
		part, err := p.part(fence, func() (shadow.Part, error) {
			return p.steady.Walk(ctx, fence, shadow.Span{After: at, UpTo: upTo, Limit: partRecords})
		})
		if err != nil {
			return err
		}
		for _, id := range part.Young {
			p.miss(id)
		}
		at = part.UpTo
	}
	p.metrics.behind.Set(max(0, p.storeNow().Sub(shadow.Created(at)).Seconds()))
	return p.keepCursor(ctx, at)
}

// partRecords is how many reservations are walked before another part of catch-up has its turn.
const partRecords = 5000

// catchUpTurn carries the full round on by about a second's worth of reading, or begins one that is due.
func (p *Pod) catchUpTurn(ctx context.Context) (more bool, err error) {
	p.first.Do(func() { p.started = p.storeNow() })
	if p.Router.Stamp().Stage == reservation.Handover {
		return false, p.handoverRound(ctx)
	}
	mine, err := p.holdsCatchUp(ctx)
	if err != nil {
		return false, err
	}
	at, err := p.progress(ctx)
	if err != nil {
		return false, err
	}
	if !mine {
		p.follower(at)
		return false, nil
	}
	every := p.cfg.Load().Tuning.CatchUp
	now := p.storeNow()
	due := later(at.LastEnded, p.started).Add(every)
	switch {
	case !at.Began.IsZero():
	case now.Before(due) && !at.LastEnded.After(now): // that would be a clock that was set back
		return false, nil
	default:
		if err := p.begin(ctx, &at); err != nil {
			return false, err
		}
		p.lasting.begin(at.Began)
	}
	if err := p.metrics.turn("round", p.carryOn(ctx, &at)); err != nil {
		return false, err
	}
	return !at.Began.IsZero(), nil
}

// carryOn walks the next part of the round.
func (p *Pod) carryOn(ctx context.Context, at *Progress) error {
	rate := p.cfg.Load().Tuning.CatchUpRate
	limit := partRecords
	if rate > 0 {
		limit = max(rate/2, 1) // of both stores, in a second
	}
	fence, err := p.dualFence(ctx)
	if err != nil || fence.Epoch == 0 {
		return err
	}
	part, err := p.part(fence, func() (shadow.Part, error) {
		return p.steady.Walk(ctx, fence, shadow.Span{After: at.After, UpTo: shadow.Last(), Limit: limit, Rate: rate})
	})
	at.Repaired += int64(part.Total())
	if err == nil {
		at.After = part.UpTo
		at.Walked += int64(part.Walked)
	}
	p.lasting.add(at.Began, part)
	if err == nil && part.UpTo == shadow.Last() {
		err = p.endRound(ctx, fence, at, rate)
	}
	p.metrics.show(*at)
	return errors.Join(err, p.keepProgress(ctx, *at))
}

// endRound brings the ledger's figures over, which is the end of a round.
func (p *Pod) endRound(ctx context.Context, fence reservation.Fence, at *Progress, rate int) error {
	ledger, err := p.steady.Figures(ctx, fence, rate, p.lasting.bucket)
	if err == nil {
		err = p.short(ctx)
	}
	if err != nil {
		return err
	}
	p.judge(ctx, at.Began)
	at.Repaired += int64(ledger.Total())
	_, err = p.part(fence, func() (shadow.Part, error) { return ledgerOf(ledger), nil })
	at.end(p.storeNow())
	return err
}

// handoverRound runs a whole round at once, unless another router has just done so: buyers wait for it.
func (p *Pod) handoverRound(ctx context.Context) error {
	lease := min(p.cfg.Load().Tuning.CatchUp, router.HandoverCatchUp)
	mine, err := p.client.SetNX(ctx, p.handoverKey(), p.name, lease).Result()
	if err != nil || !mine {
		return err
	}
	p.rounds.Lock()
	defer p.rounds.Unlock()
	fence, err := p.dualFence(ctx)
	if err != nil || fence.Epoch == 0 {
		return err
	}
	round, err := p.steady.RunTold(ctx, fence, func(part shadow.Part, err error) { p.found(part, fence.Stamp, err) })
	if err == nil {
		p.found(ledgerOf(round), fence.Stamp, nil)
	}
	return p.metrics.turn("handover", err)
}

// follower tells the comparison that another router has ended a round: what this one noted and has looked at since, or
// has no room to note, is covered. The round's times are MySQL's, the comparison's are this process's.
func (p *Pod) follower(at Progress) {
	p.metrics.show(Progress{})
	if !at.LastBegan.After(p.told) {
		return
	}
	p.told = at.LastBegan
	settle := p.cfg.Load().Tuning.Settle
	p.rounds.Lock()
	defer p.rounds.Unlock()
	off := time.Since(p.storeNow())
	p.Router.Engine().Covered(diff.Everything(at.LastBegan.Add(off-settle), at.LastEnded.Add(off), p.missed.Waiting()...))
}

// storeNow is MySQL's clock, as the fence was last read with it; this process's while MySQL does not answer.
func (p *Pod) storeNow() time.Time {
	if now, ok := p.MySQL.ServerTime(); ok {
		return now
	}
	return time.Now()
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
