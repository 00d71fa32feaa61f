package podset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// CatchUp runs one full round of catch-up towards the mirror and tells the comparison what it found: a repair without
// a gap of this process is a difference. Records younger than settle are left alone.
func (p *Pod) CatchUp(ctx context.Context, settle time.Duration) (shadow.Round, error) {
	round, err := p.Backlog(ctx, settle)
	if e := p.Router.Engine(); err == nil && e != nil {
		for _, r := range round.Repairs {
			e.Found(diff.Find{
				Shop: r.Shop, ID: r.ID, Verdict: verdictOf(r.Was), Truth: r.Truth, Mirror: r.Mirror, Stamp: p.Router.Stamp(),
			})
		}
		e.Converged(round.Began, round.Ended)
	}
	return round, err
}

func verdictOf(was string) diff.Verdict {
	switch was {
	case "leaked":
		return diff.Leaked
	case "state":
		return diff.State
	default:
		return diff.Lost
	}
}

// Backlog is CatchUp at the start of a process: what the mirror lacks then is what earlier ones left behind.
func (p *Pod) Backlog(ctx context.Context, settle time.Duration) (shadow.Round, error) {
	c, err := shadow.NewCatchUp(shadow.CatchUpOptions{
		Pod: p.Config.ID, Redis: leading{p.Redis}, MySQL: unmarked{p.MySQL},
		Settle: settle, AtRest: settle == 0, Grace: p.grace, Logger: p.log,
	})
	if err != nil {
		return shadow.Round{}, err
	}
	return c.Run(ctx, reservation.Fence{Stamp: p.Router.Stamp()})
}

// leading is a Redis that follows nobody yet.
type leading struct{ *legacyredis.Store }

func (leading) Mirror(context.Context, reservation.Stamp, reservation.MirrorOp) (reservation.Judgement, error) {
	return reservation.Judgement{}, errors.New("redis does not follow MySQL yet")
}

// unmarked is a MySQL without marks: nothing is answered without Redis yet.
type unmarked struct{ *mysqlstore.Store }

func (unmarked) Mark(context.Context, reservation.Stamp, reservation.ID) error { return nil }

func (unmarked) Marked(context.Context, reservation.ID, int) ([]reservation.Record, error) {
	return nil, nil
}

func (unmarked) Unmark(context.Context, reservation.Stamp, reservation.ID, reservation.State) (bool, error) {
	return false, nil
}

func (unmarked) MarksDebt(context.Context) (reservation.Debt, int64, error) {
	return reservation.Debt{}, 0, nil
}

// Quiesce brings the pod to rest once no caller is there any more: due holds ended, claims finished, the queue
// delivered, the mirror caught up, every unequal pair judged, the tallies written.
func (p *Pod) Quiesce(ctx context.Context) (shadow.Round, error) { return p.rest(ctx, p.CatchUp) }

// Prepare is Quiesce for what earlier processes left behind: their claims are rolled forward and what the mirror lacks
// is brought over before anything of this process is compared.
func (p *Pod) Prepare(ctx context.Context) (shadow.Round, error) { return p.rest(ctx, p.Backlog) }

func (p *Pod) rest(ctx context.Context, catchUp func(context.Context, time.Duration) (shadow.Round, error)) (shadow.Round, error) {
	if err := p.awaitPins(ctx); err != nil {
		return shadow.Round{}, err
	}
	if q := p.Router.Queue(); q != nil {
		if err := q.Drain(ctx); err != nil {
			return shadow.Round{}, fmt.Errorf("drain the mirror's queue of pod %s: %w", p.Config.ID, err)
		}
	}
	e := p.Router.Engine()
	if e == nil {
		return shadow.Round{}, nil
	}
	round, err := catchUp(ctx, 0)
	if err != nil {
		return round, err
	}
	if err := e.Settle(ctx); err != nil {
		return round, fmt.Errorf("settle the comparison of pod %s: %w", p.Config.ID, err)
	}
	return round, e.Flush(ctx)
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
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d claims or adjustments of pod %s are still under way after their lease", pins, p.Config.ID)
		case <-tick.C:
		}
	}
}

// pinGrace is how long a roll-forward may take once a lease is over.
const pinGrace = 10 * time.Second
