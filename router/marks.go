package router

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

// marksMayMatter tells whether MySQL may know outcomes that were answered without Redis, in a stage in which Redis
// decides: until MySQL's fence was read with this very epoch and without marks.
func (p *Pod) marksMayMatter(st reservation.Stamp) bool {
	return st.Stage.DualWrite() && st.Stage.Truth() == reservation.Redis && p.clear.Load() != st.Epoch
}

// lookUp finds what MySQL knows under a key or an id, and if somebody was promised it gives it to Redis. It raises
// MySQL's fence first, so that no router that is cut off can answer anything under the old one afterwards. It gives
// the record that MySQL has without anybody having been answered: the truth decides that one under its id. What
// cannot be had in time is skipped, and counted: Redis decides without it.
func (p *Pod) lookUp(ctx context.Context, st reservation.Stamp, find func(context.Context) (reservation.Record, error)) (*reservation.Record, error) {
	if !p.marksMayMatter(st) {
		return nil, nil //nolint:nilnil // nothing to find is the normal case
	}
	if p.queue.Breaker() == "open" {
		p.skip("breaker_open")
		return nil, nil //nolint:nilnil // as above
	}
	looking, cancel := context.WithTimeout(ctx, p.tune().LookUp)
	defer cancel()
	err := p.raiseMySQL(looking)
	if err == nil && p.Stamp() != st {
		return nil, errAgain
	}
	var rec reservation.Record
	if err == nil {
		rec, err = find(looking)
	}
	switch {
	case errors.Is(err, reservation.ErrNotFound):
		p.metrics.lookUps.WithLabelValues("nothing").Inc()
		return nil, nil //nolint:nilnil // as above
	case err != nil:
		p.skip("no_answer")
		return nil, nil //nolint:nilnil // as above
	}
	if !rec.Marked && rec.Epoch >= p.believe().IncarnationEpoch {
		if _, err := p.opt.Redis.Get(ctx, rec.Shop, rec.ID); err == nil {
			return nil, nil //nolint:nilnil // Redis has it too: it is no news
		}
		p.metrics.lookUps.WithLabelValues("unanswered").Inc()
		return &rec, nil
	}
	p.metrics.lookUps.WithLabelValues("adopted").Inc()
	return nil, p.giveToRedis(ctx, st, rec)
}

func (p *Pod) skip(why string) {
	p.skipped.Add(1)
	p.metrics.lookUps.WithLabelValues("skipped_" + why).Inc()
}

// giveToRedis writes what MySQL has of a reservation that somebody was promised into Redis, by force.
func (p *Pod) giveToRedis(ctx context.Context, st reservation.Stamp, rec reservation.Record) error {
	op := reservation.OpTo(rec)
	op.Adopt = true
	if rec.State == reservation.Claimed {
		var err error
		if op.Changes, err = p.opt.MySQL.ChangesOf(ctx, rec.Shop, rec.ID); err != nil {
			return err
		}
	}
	_, err := p.opt.Redis.Mirror(ctx, st, op)
	return err
}
