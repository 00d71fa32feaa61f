package router

import (
	"context"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
)

// Adjust changes a bucket's stock. Its own protocol writes both stores.
func (p *Pod) Adjust(ctx context.Context, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	if err := adj.Validate(); err != nil {
		return reservation.AdjustResult{}, err
	}
	span := p.begin(reservation.OpAdjust)
	a := &adjusting{p: p, adj: adj}
	if err := p.routed(ctx, reservation.OpAdjust, a.carryOut); err != nil {
		p.failedAdjust(span, a.st, err, adj)
		return reservation.AdjustResult{}, err
	}
	p.account(span, a.ans)
	return a.res, nil
}

// adjusting is one adjustment on its way through the stages.
type adjusting struct {
	p   *Pod
	adj reservation.Adjustment
	st  reservation.Stamp
	res reservation.AdjustResult
	ans answer
}

func (a *adjusting) carryOut(ctx context.Context, st reservation.Stamp) (err error) {
	a.st = st
	route := st.Stage.Route(reservation.OpAdjust)
	if route.Decides == reservation.Redis {
		a.res, err = a.p.opt.Redis.Adjust(ctx, st, a.adj)
	} else {
		a.res, err = a.p.opt.MySQL.Adjust(ctx, st, a.adj)
	}
	if err != nil {
		return err
	}
	a.ans = answer{out: adjusted(st, a.adj, reservation.Adjusted, a.res.Replayed)}
	if route.Decides == reservation.Redis || route.Mirror == reservation.Never {
		j := reservation.Judgement{Decision: reservation.Adjusted} // the ledger's transaction is MySQL's own outcome
		if a.res.Mirror != nil {
			j = *a.res.Mirror
		}
		a.ans.judged = &j
		return nil
	}
	// Redis is given the ledger's change. What it does not get now it gets by catch-up, since the ledger has it.
	a.ans.follow = &reservation.MirrorOp{
		Op: reservation.OpAdjust, Decision: reservation.Adjusted, Adjustment: &a.adj, Replayed: a.res.Replayed,
		Changes: []reservation.Change{a.res.Change}, Record: reservation.Record{Shop: a.adj.Bucket.Shop},
	}
	if a.p.isCut() {
		a.ans.gap, a.ans.follow = diff.GapCut, nil
	}
	return nil
}

func adjusted(st reservation.Stamp, adj reservation.Adjustment, d reservation.Decision, replayed bool) diff.Outcome {
	return diff.Outcome{
		Decision: d, Shop: adj.Bucket.Shop, Stamp: st, Replayed: replayed, Adjustment: &adj,
		Lines: []reservation.Line{{Item: adj.Bucket.Item, Group: adj.Bucket.Group, Quantity: max(adj.Delta, -adj.Delta)}},
	}
}

func (p *Pod) failedAdjust(span *diff.Span, st reservation.Stamp, err error, adj reservation.Adjustment) {
	if span == nil {
		return
	}
	d := reservation.DecisionOf(err)
	out := adjusted(st, adj, d, false)
	if d == reservation.Undecided {
		span.Undecided(gapOf(err), out)
		return
	}
	out.Adjustment = nil // nothing moved
	out.Levels = levelsOf(err)
	p.account(span, answer{out: out, follow: &reservation.MirrorOp{
		Op: reservation.OpAdjust, Decision: d, Adjustment: &adj, Record: reservation.Record{Shop: adj.Bucket.Shop},
	}})
}
