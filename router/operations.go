package router

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
)

// Reserve places a hold in one of the pod's shops.
func (p *Pod) Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error) {
	req, err := reservation.NewRequest(shop, key, lines, ttl, p.opt.Limits)
	if err != nil {
		return reservation.Result{}, err
	}
	id, err := reservation.NewID()
	if err != nil {
		return reservation.Result{}, err
	}
	span := p.begin(reservation.OpReserve)
	res, err := p.opt.Truth.Reserve(ctx, p.opt.Stamp, id, req)
	asked := reservation.Record{ID: id, Shop: shop, Key: req.Key, Hash: req.Hash, Lines: req.Lines}
	if err != nil {
		p.failed(span, reservation.OpReserve, err, asked)
		return res, err
	}
	out := p.outcome(res.Record)
	out.Decision, out.Replayed, out.Levels = res.Record.Outcome, res.Replayed, res.Levels
	out.Moved = !res.Replayed && res.Record.Outcome == reservation.Granted
	p.follow(span, out, reservation.MirrorOp{
		Op: reservation.OpReserve, Decision: res.Record.Outcome, Replayed: res.Replayed, Record: res.Record,
	})
	return res, nil
}

// Claim makes a reservation's deduction permanent. Its own protocol writes both stores.
func (p *Pod) Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	span := p.begin(reservation.OpClaim)
	res, err := p.opt.Truth.Claim(ctx, p.opt.Stamp, shop, id)
	if err != nil {
		p.failed(span, reservation.OpClaim, err, reservation.Record{ID: id, Shop: shop})
		return res, err
	}
	out := p.outcome(res.Record)
	out.Decision, out.Replayed = reservation.ClaimedOK, res.Replayed
	if res.Record.State == reservation.Refused {
		out.Decision = reservation.RefundRequired
	}
	out.Moved = !res.Replayed && (res.Late || out.Decision == reservation.RefundRequired)
	if res.Mirror != nil {
		p.settled(span, out, *res.Mirror)
		return res, nil
	}
	p.follow(span, out, reservation.MirrorOp{Op: reservation.OpClaim, Decision: out.Decision, Replayed: res.Replayed, Record: res.Record})
	return res, nil
}

// Release gives a reservation up.
func (p *Pod) Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	span := p.begin(reservation.OpRelease)
	res, err := p.opt.Truth.Release(ctx, p.opt.Stamp, shop, id)
	if err != nil {
		p.failed(span, reservation.OpRelease, err, reservation.Record{ID: id, Shop: shop})
		return res, err
	}
	out := p.outcome(res.Record)
	out.Decision, out.Replayed, out.Moved = reservation.ReleasedOK, res.Replayed, !res.Replayed && !res.WasExpired
	p.follow(span, out, reservation.MirrorOp{
		Op: reservation.OpRelease, Decision: reservation.ReleasedOK, Replayed: res.Replayed, Record: res.Record,
	})
	return res, nil
}

// Adjust changes a bucket's stock. Its own protocol writes both stores.
func (p *Pod) Adjust(ctx context.Context, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	if err := adj.Validate(); err != nil {
		return reservation.AdjustResult{}, err
	}
	span := p.begin(reservation.OpAdjust)
	res, err := p.opt.Truth.Adjust(ctx, p.opt.Stamp, adj)
	if err != nil {
		p.failedAdjust(span, err, adj)
		return res, err
	}
	j := reservation.Judgement{Decision: reservation.Adjusted} // the ledger's transaction is MySQL's own outcome
	if res.Mirror != nil {
		j = *res.Mirror
	}
	p.settled(span, p.adjusted(adj, reservation.Adjusted, res.Replayed), j)
	return res, nil
}

func (p *Pod) adjusted(adj reservation.Adjustment, d reservation.Decision, replayed bool) diff.Outcome {
	return diff.Outcome{
		Decision: d, Shop: adj.Bucket.Shop, Stamp: p.opt.Stamp, Replayed: replayed, Adjustment: &adj,
		Lines: []reservation.Line{{Item: adj.Bucket.Item, Group: adj.Bucket.Group, Quantity: max(adj.Delta, -adj.Delta)}},
	}
}

func (p *Pod) failedAdjust(span *diff.Span, err error, adj reservation.Adjustment) {
	if span == nil {
		return
	}
	d := reservation.DecisionOf(err)
	if d == reservation.Undecided {
		span.Undecided(gapOf(err), p.adjusted(adj, d, false))
		return
	}
	out := p.adjusted(adj, d, false)
	out.Adjustment = nil // nothing moved
	out.Levels = levelsOf(err)
	p.follow(span, out, reservation.MirrorOp{Op: reservation.OpAdjust, Decision: d, Adjustment: &adj, Record: reservation.Record{Shop: adj.Bucket.Shop}})
}

// sweepLoop ends due reservations, also without traffic.
func (p *Pod) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(p.opt.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, err := p.Sweep(ctx); err != nil && ctx.Err() == nil {
				p.opt.Logger.Warn("sweep failed, it will be tried again", "pod", p.opt.ID, "err", err)
			}
		}
	}
}

// Sweep ends every reservation that is due now, in batches, and tells the mirror. It returns how many expired.
func (p *Pod) Sweep(ctx context.Context) (int, error) {
	expired := 0
	for {
		began := time.Now()
		res, err := p.opt.Truth.Sweep(ctx, p.opt.Stamp, p.opt.SweepBatch)
		for i := range res.Expired {
			p.expired(res.Expired[i], began)
		}
		expired += len(res.Expired)
		if err != nil || !res.More {
			return expired, err
		}
	}
}

func (p *Pod) expired(rec reservation.Record, began time.Time) {
	if p.engine == nil {
		return
	}
	span := p.engine.BeginAt(reservation.OpExpire, began)
	out := p.outcome(rec)
	out.Decision, out.Moved = reservation.ExpiredOK, true
	p.follow(span, out, reservation.MirrorOp{Op: reservation.OpExpire, Decision: reservation.ExpiredOK, Record: rec})
}
