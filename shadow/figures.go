package shadow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// lag is Redis's version of a bucket, and since when it has been seen there behind the ledger.
type lag struct {
	version int64
	since   time.Time
}

// unknownVersion is that of a bucket that Redis does not have.
const unknownVersion = -1

// figures gives Redis the ledger's figures of the buckets in which a change was lost. Redis applies each change by
// itself, as the claim or adjustment finishes, so a bucket that is merely behind is left alone: lost is what has not
// moved since an earlier look.
func (c *CatchUp) figures(ctx context.Context, st reservation.Stamp, pace *pacer, r *Round, show func(reservation.Figures, reservation.Availability)) error {
	return c.ledger(ctx, func(figs []reservation.Figures) error {
		if err := pace.read(ctx, len(figs)); err != nil {
			return err
		}
		if !c.opt.AtRest {
			var err error
			if figs, err = c.stuck(ctx, figs, show); err != nil || len(figs) == 0 {
				return err
			}
		}
		n, err := c.opt.Redis.ApplyFigures(ctx, st, figs, true)
		if err != nil {
			return fmt.Errorf("catch-up of pod %s gives Redis the ledger's figures: %w", c.opt.Pod, err)
		}
		r.Figures += n
		c.metrics.figures.Add(float64(n))
		return nil
	})
}

// Figures gives Redis the figures of the ledger in which a change was lost, reading at most rate buckets a second. It is
// the end of a round that is walked in parts.
// Every bucket that Redis has is shown.
func (c *CatchUp) Figures(ctx context.Context, fence reservation.Fence, rate int, show func(reservation.Figures, reservation.Availability)) (Round, error) {
	r := newRound(c.opt.Now())
	if !fence.Stage.DualWrite() {
		return r, nil
	}
	err := c.figures(ctx, fence.Stamp, newPacer(rate), &r, show)
	r.Ended = c.opt.Now()
	return r, err
}

// ledger pages through the ledger.
func (c *CatchUp) ledger(ctx context.Context, page func([]reservation.Figures) error) error {
	for after := (reservation.Bucket{}); ; {
		figs, err := c.opt.MySQL.Figures(ctx, after, c.opt.Page)
		if err != nil {
			return c.reading(reservation.MySQL, err)
		}
		if len(figs) == 0 {
			return nil
		}
		if err := page(figs); err != nil {
			return err
		}
		after = figs[len(figs)-1].Bucket
	}
}

// stuck keeps the buckets in which Redis is behind and has not moved for the settle time.
func (c *CatchUp) stuck(ctx context.Context, figs []reservation.Figures, show func(reservation.Figures, reservation.Availability)) ([]reservation.Figures, error) {
	var out []reservation.Figures
	for _, f := range figs {
		a, err := c.redisFigures(ctx, f.Bucket)
		if err != nil {
			return nil, err
		}
		if a.Version != unknownVersion && show != nil {
			show(f, a)
		}
		if c.stands(f, a.Version, c.opt.Now()) {
			out = append(out, f)
		}
	}
	return out, nil
}

// stands notes how far Redis is, and tells whether it was just there at an earlier look.
func (c *CatchUp) stands(f reservation.Figures, version int64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version >= f.Version {
		delete(c.lags, f.Bucket)
		return false
	}
	seen, ok := c.lags[f.Bucket]
	if !ok || seen.version != version {
		c.lags[f.Bucket] = lag{version: version, since: now}
		return false
	}
	return !now.Before(seen.since.Add(c.opt.Settle))
}

func (c *CatchUp) redisVersion(ctx context.Context, b reservation.Bucket) (int64, error) {
	a, err := c.redisFigures(ctx, b)
	return a.Version, err
}

// redisFigures reads a bucket's figures; their version says where Redis does not have it.
func (c *CatchUp) redisFigures(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	a, err := c.opt.Redis.Availability(ctx, b)
	var unknown *reservation.UnknownBucketError
	switch {
	case errors.As(err, &unknown):
		return reservation.Availability{Bucket: b, Version: unknownVersion}, nil
	case err != nil:
		return a, c.reading(reservation.Redis, err)
	default:
		return a, nil
	}
}
