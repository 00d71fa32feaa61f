package podset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// catchUp makes the pod's catch-up. Settle: younger records are left alone. atRest: nothing is under way.
func (p *Pod) catchUp(settle time.Duration, atRest bool) (*shadow.CatchUp, error) {
	return shadow.NewCatchUp(shadow.CatchUpOptions{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Settle: settle, Grace: p.grace, AtRest: atRest, Logger: p.log, StoreNow: p.storeNow,
	})
}

// CatchUp runs one full round of catch-up, both ways, and tells the comparison what it found: a repair without a gap
// of this process is a difference. Records younger than settle are left alone.
func (p *Pod) CatchUp(ctx context.Context, settle time.Duration) (shadow.Round, error) {
	// One at a time: what a round found is told before another one's end forgets the gaps that account for it.
	p.rounds.Lock()
	defer p.rounds.Unlock()
	return p.round(ctx, settle, p.found)
}

// Backlog is CatchUp at the start of a process: what a store lacks then is what earlier ones left behind.
func (p *Pod) Backlog(ctx context.Context, settle time.Duration) (shadow.Round, error) {
	return p.round(ctx, settle, func(shadow.Part, reservation.Stamp, error) {})
}

// round runs one full round; told hears of each part of it, and the stamp under which it ran.
func (p *Pod) round(ctx context.Context, settle time.Duration, told func(shadow.Part, reservation.Stamp, error)) (shadow.Round, error) {
	c, err := p.catchUp(settle, settle == 0)
	if err != nil {
		return shadow.Round{}, err
	}
	fence, err := p.Redis.ReadFence(ctx)
	if err != nil {
		return shadow.Round{}, err
	}
	round, err := c.RunTold(ctx, fence, func(part shadow.Part, err error) { told(part, fence.Stamp, err) })
	if err == nil {
		told(ledgerOf(round), fence.Stamp, nil)
	}
	return round, err
}

// ledgerOf is the end of a round: the ledger's figures, and no reservation.
func ledgerOf(r shadow.Round) shadow.Part {
	return shadow.Part{Round: shadow.Round{Began: r.Began, Ended: r.Ended}, After: shadow.Last(), UpTo: shadow.Last()}
}

// found tells the comparison what a part of catch-up repaired, and what it covered if it came to its end.
func (p *Pod) found(part shadow.Part, st reservation.Stamp, err error) {
	e := p.Router.Engine()
	if n := len(part.Repairs); n > 0 {
		p.log.Info("catch-up repaired records", "pod", p.Config.ID, "records", n, "by_what_was_wrong", part.Repaired, "walked", part.Walked)
	}
	for _, r := range part.Repairs {
		e.Found(diff.Find{
			Shop: r.Shop, ID: r.ID, Verdict: verdictOf(r.Was), Truth: r.Truth, Mirror: r.Mirror, Epoch: r.Epoch,
			Marked: r.Was == shadow.WasAdopted, Stamp: st,
		})
	}
	if err == nil {
		e.Covered(diff.Cover{
			Began: part.Began, Ended: part.Ended, IDs: part.IDs, After: part.After, UpTo: part.UpTo, LeftAlone: part.LeftAlone,
			Ledger: part.IDs == nil && part.After == shadow.Last(),
		})
	}
}

func verdictOf(was string) diff.Verdict {
	switch was {
	case shadow.WasLeaked:
		return diff.Leaked
	case shadow.WasState:
		return diff.State
	default:
		return diff.Lost
	}
}

// drainMarks gives Redis what MySQL has marked.
func (p *Pod) drainMarks(ctx context.Context) error {
	fence, err := p.Redis.ReadFence(ctx)
	if err != nil {
		return err
	}
	round, err := p.steady.DrainMarks(ctx, fence)
	if round.Drained > 0 {
		p.log.Info("marked reservations were given to Redis", "pod", p.Config.ID, "drained", round.Drained, "left", len(round.Left))
	}
	return err
}

// restore rebuilds Redis from MySQL, since it has lost writes.
func (p *Pod) restore(ctx context.Context, known []reservation.Stamp) error {
	res, err := shadow.Restore(ctx, shadow.RestoreOptions{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Known: known, Latch: p.Router.State().Latch,
		By: p.name, Reason: "Redis had lost writes", Logger: p.log, Registerer: p.registerer,
	})
	if errors.Is(err, reservation.ErrRestoring) || errors.Is(err, reservation.ErrHealthy) {
		return nil // another router is at it, or has done it
	}
	if err == nil {
		p.log.Warn("Redis was restored from MySQL", "pod", p.Config.ID, "epoch", res.After.Epoch, "stage", res.After.Stage.String(),
			"records", res.Records, "adopted", res.Adopted, "units", res.Units, "unknown", res.Unknown, "took", res.Took)
	}
	return err
}

// Quiesce brings the pod to rest once no caller is there any more: due holds ended, claims finished, the queue
// delivered, both stores caught up, every unequal pair judged, the tallies written.
func (p *Pod) Quiesce(ctx context.Context) (shadow.Round, error) { return p.rest(ctx, p.CatchUp) }

// Prepare is Quiesce for what earlier processes left behind: their claims are rolled forward and what a store lacks
// is brought over before anything of this process is compared.
func (p *Pod) Prepare(ctx context.Context) (shadow.Round, error) { return p.rest(ctx, p.Backlog) }

func (p *Pod) rest(ctx context.Context, catchUp func(context.Context, time.Duration) (shadow.Round, error)) (shadow.Round, error) {
	if err := p.awaitPins(ctx); err != nil {
		return shadow.Round{}, err
	}
	if err := p.Router.Queue().Drain(ctx); err != nil {
		return shadow.Round{}, fmt.Errorf("drain the mirror's queue of pod %s: %w", p.Config.ID, err)
	}
	if !p.Router.Stamp().Stage.DualWrite() {
		return shadow.Round{}, nil
	}
	round, err := catchUp(ctx, 0)
	if err != nil {
		return round, err
	}
	if err := p.Router.Engine().Settle(ctx); err != nil {
		return round, fmt.Errorf("settle the comparison of pod %s: %w", p.Config.ID, err)
	}
	return round, p.Router.Engine().Flush(ctx)
}

// awaitPins ends what is due and waits until no claim or adjustment is under way. A pin whose process has died is
// rolled forward once its lease is over, so the wait is the lease and a little more.
func (p *Pod) awaitPins(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.lease+pinGrace)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := p.Router.Sweep(ctx); err != nil {
			return fmt.Errorf("sweep pod %s: %w", p.Config.ID, err)
		}
		if p.Router.Stamp().Stage == reservation.Complete {
			return nil
		}
		if err := p.Redis.Flush(ctx); err != nil {
			return fmt.Errorf("finish the claims of pod %s: %w", p.Config.ID, err)
		}
		pins, err := p.Redis.Pins(ctx)
		if err != nil {
			return fmt.Errorf("count the claims under way of pod %s: %w", p.Config.ID, err)
		}
		if pins == 0 {
			return nil
		}
		if err := p.rollForward(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d claims or adjustments of pod %s are still under way after their lease", pins, p.Config.ID)
		case <-tick.C:
		}
	}
}

// rollForward sweeps Redis where MySQL decides: the claims under way are in Redis's index.
func (p *Pod) rollForward(ctx context.Context) error {
	st := p.Router.Stamp()
	if st.Stage.Truth() != reservation.MySQL {
		return nil // the router's sweep has done it
	}
	if _, err := p.Redis.Sweep(ctx, st, 0); err != nil {
		return fmt.Errorf("sweep Redis of pod %s: %w", p.Config.ID, err)
	}
	return nil
}

// pinGrace is how long a roll-forward may take once a lease is over.
const pinGrace = 10 * time.Second
