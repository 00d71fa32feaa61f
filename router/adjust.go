package router

import (
	"context"
	"errors"

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
	cut := route.Mirror != reservation.Never && a.p.isCut()
	switch {
	case cut && a.adj.Delta < 0: // nobody could keep Redis from promising it meanwhile
		return &reservation.UnavailableError{Store: reservation.Redis, Cause: errors.New("stock is not taken away while the router is cut from Redis")}
	case cut, route.Decides == reservation.MySQL && route.Mirror == reservation.Never:
		a.res, err = a.p.opt.MySQL.Adjust(ctx, st, a.adj)
	default:
		// Redis's store carries the protocol: pin there, the ledger's transaction in MySQL, finish there. While MySQL
		// decides, what is taken away must be there in both.
		a.res, err = a.p.opt.Redis.Adjust(ctx, st, a.adj)
		if err != nil {
			a.p.redisOut(err)
		}
	}
	if err != nil {
		return err
	}
	a.ans = answer{out: adjusted(st, a.adj, reservation.Adjusted, a.res.Replayed)}
	if cut { // Redis is given the ledger's change by catch-up
		a.ans.gap = diff.GapCut
		return nil
	}
	j := reservation.Judgement{Decision: reservation.Adjusted} // the ledger's transaction is MySQL's own outcome
	if a.res.Mirror != nil {
		j = *a.res.Mirror
	}
	a.ans.judged = &j
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
	if d == reservation.KeyConflict { // the ledger has the ids of all adjustments, for both paths: it has judged for both
		p.account(span, answer{out: out, judged: &reservation.Judgement{Decision: d}})
		return
	}
	p.account(span, answer{out: out, follow: &reservation.MirrorOp{
		Op: reservation.OpAdjust, Decision: d, Adjustment: &adj, Record: reservation.Record{Shop: adj.Bucket.Shop},
	}})
}
