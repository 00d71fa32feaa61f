package router

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
)

// Claim makes a reservation's deduction permanent. Its own protocol writes both stores.
func (p *Pod) Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	span := p.begin(reservation.OpClaim)
	c := &claiming{p: p, shop: shop, id: id, span: span}
	if err := p.routed(ctx, reservation.OpClaim, c.carryOut); err != nil {
		p.failed(span, reservation.OpClaim, c.st, err, reservation.Record{ID: id, Shop: shop})
		return reservation.ClaimResult{}, err
	}
	p.account(span, c.ans)
	return c.res, nil
}

// claiming is one claim on its way through the stages.
type claiming struct {
	p    *Pod
	shop int64
	id   reservation.ID
	span *diff.Span
	st   reservation.Stamp
	from time.Time // when the store that decides was asked
	res  reservation.ClaimResult
	ans  answer
}

func (c *claiming) carryOut(ctx context.Context, st reservation.Stamp) error {
	c.ans.routedAgain(c.span)
	c.st, c.ans, c.from = st, answer{}, time.Now()
	route := st.Stage.Route(reservation.OpClaim)
	if route.Mirror == reservation.Never && route.Decides == reservation.MySQL {
		return c.with(c.p.opt.MySQL.Claim(ctx, st, c.shop, c.id))
	}
	if c.p.isCut() {
		return c.cut(ctx)
	}
	// Redis's store carries the protocol: pin there, the ledger's transaction in MySQL, finish there.
	res, err := c.p.opt.Redis.Claim(ctx, st, c.shop, c.id)
	if err != nil && ctx.Err() == nil && route.Decides == reservation.MySQL && c.p.redisOut(err) {
		return c.cut(ctx)
	}
	return c.with(res, err)
}

// cut claims without Redis, where MySQL decides: the ledger's transaction alone, marked.
func (c *claiming) cut(ctx context.Context) error {
	res, err := c.p.opt.MySQL.Cut().Claim(ctx, c.st, c.shop, c.id)
	if err != nil {
		return c.p.cutError(ctx, err)
	}
	c.p.marks.Store(true)
	if err := c.with(res, nil); err != nil {
		return err
	}
	c.ans.judged, c.ans.gap, c.ans.follow = nil, diff.GapCut, nil
	return nil
}

func (c *claiming) with(res reservation.ClaimResult, err error) error {
	if err != nil {
		return err
	}
	c.res = res
	out := outcome(c.st, res.Record)
	out.Decision, out.Replayed = reservation.ClaimedOK, res.Replayed
	if res.Record.State == reservation.Refused {
		out.Decision = reservation.RefundRequired
	}
	out.Moved = !res.Replayed && (res.Late || out.Decision == reservation.RefundRequired)
	out.Asked = c.from
	c.ans = answer{out: out, judged: res.Mirror}
	switch {
	case res.Mirror != nil:
	case c.st.Stage.Truth() == reservation.MySQL: // Redis's own record said so: nothing is left to tell it
		c.ans.judged = &reservation.Judgement{Decision: out.Decision, State: res.Record.State}
	default:
		c.ans.follow = &reservation.MirrorOp{Op: reservation.OpClaim, Decision: out.Decision, Replayed: res.Replayed, Record: res.Record}
	}
	return nil
}
