package podset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
	"github.com/twinhold/twinhold/shadow"
)

// catchUp makes the pod's catch-up. Settle: younger records are left alone. atRest: nothing is under way.
func (p *Pod) catchUp(settle time.Duration, atRest bool) (*shadow.CatchUp, error) {
	return shadow.NewCatchUp(shadow.CatchUpOptions{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Settle: settle, Grace: p.grace, AtRest: atRest, Logger: p.log,
	})
}

// CatchUp runs one full round of catch-up, both ways, and tells the comparison what it found: a repair without a gap
// of this process is a difference. Records younger than settle are left alone.
func (p *Pod) CatchUp(ctx context.Context, settle time.Duration) (shadow.Round, error) {
	// One at a time: what a round found is told before another one's end forgets the gaps that account for it.
	p.rounds.Lock()
	defer p.rounds.Unlock()
	round, st, err := p.round(ctx, settle)
	if err == nil {
		p.found(round, st)
	}
	return round, err
}

// Backlog is CatchUp at the start of a process: what a store lacks then is what earlier ones left behind.
func (p *Pod) Backlog(ctx context.Context, settle time.Duration) (shadow.Round, error) {
	round, _, err := p.round(ctx, settle)
	return round, err
}

// round runs one full round, and gives the stamp under which it ran.
func (p *Pod) round(ctx context.Context, settle time.Duration) (shadow.Round, reservation.Stamp, error) {
	c, err := p.catchUp(settle, settle == 0)
	if err != nil {
		return shadow.Round{}, reservation.Stamp{}, err
	}
	fence, err := p.Redis.ReadFence(ctx)
	if err != nil {
		return shadow.Round{}, reservation.Stamp{}, err
	}
	round, err := c.Run(ctx, fence)
	return round, fence.Stamp, err
}

// found tells the comparison what a round of catch-up repaired.
func (p *Pod) found(round shadow.Round, st reservation.Stamp) {
	e := p.Router.Engine()
	for _, r := range round.Repairs {
		e.Found(diff.Find{
			Shop: r.Shop, ID: r.ID, Verdict: verdictOf(r.Was), Truth: r.Truth, Mirror: r.Mirror, Epoch: r.Epoch,
			Marked: r.Was == shadow.WasAdopted, Stamp: st,
		})
	}
	e.Converged(round.Began, round.Ended, round.LeftAlone...)
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

// catchUpKey is the lease of the pod's catch-up: one router at a time runs the full rounds. Two at once do no harm.
func (p *Pod) catchUpKey() string { return "{" + p.Config.ID + "}:catchup" }

// catchUpTurn runs a full round, unless another router has run one within the pause between two.
func (p *Pod) catchUpTurn(ctx context.Context) error {
	lease := p.cfg.Load().Tuning.CatchUp
	if p.Router.Stamp().Stage == reservation.Handover {
		lease = min(lease, router.HandoverCatchUp)
	}
	mine, err := p.client.SetNX(ctx, p.catchUpKey(), p.name, lease).Result()
	if err != nil || !mine {
		return err
	}
	p.rounds.Lock()
	defer p.rounds.Unlock()
	fence, err := p.Redis.ReadFence(ctx)
	if err != nil {
		return err
	}
	round, err := p.steady.Run(ctx, fence)
	if err == nil {
		p.found(round, fence.Stamp)
	}
	return err
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
