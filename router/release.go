package router

import (
	"context"
	"errors"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
)

// Release gives a reservation up.
func (p *Pod) Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	span := p.begin(reservation.OpRelease)
	r := &releasing{p: p, shop: shop, id: id, span: span}
	if err := p.routed(ctx, reservation.OpRelease, r.carryOut); err != nil {
		p.failed(span, reservation.OpRelease, r.st, err, reservation.Record{ID: id, Shop: shop})
		return reservation.ReleaseResult{}, err
	}
	p.account(span, r.ans)
	return r.res, nil
}

// releasing is one release on its way through the stages.
type releasing struct {
	p    *Pod
	shop int64
	id   reservation.ID
	span *diff.Span
	st   reservation.Stamp
	from time.Time // when the store that decides was asked
	res  reservation.ReleaseResult
	ans  answer
}

func (r *releasing) carryOut(ctx context.Context, st reservation.Stamp) error {
	r.ans.routedAgain(r.span)
	r.st, r.ans, r.from = st, answer{}, time.Now()
	route := st.Stage.Route(reservation.OpRelease)
	switch {
	case route.Decides == reservation.MySQL && route.Mirror == reservation.Never:
		return r.with(r.p.opt.MySQL.Release(ctx, st, r.shop, r.id))
	case route.Decides == reservation.MySQL && r.p.isCut():
		return r.cut(ctx)
	case route.Decides == reservation.MySQL:
		return r.byMySQL(ctx)
	case route.Mirror == reservation.BeforeAnswer:
		return r.both(ctx)
	default:
		return r.byRedis(ctx)
	}
}

func (r *releasing) with(res reservation.ReleaseResult, err error) error {
	if err != nil {
		return err
	}
	r.res = res
	out := outcome(r.st, res.Record)
	out.Decision, out.Replayed, out.Moved = reservation.ReleasedOK, res.Replayed, !res.Replayed && !res.WasExpired
	out.Asked = r.from
	r.ans = answer{out: out}
	return nil
}

func (r *releasing) op() reservation.MirrorOp {
	return reservation.MirrorOp{
		Op: reservation.OpRelease, Decision: reservation.ReleasedOK, Replayed: r.res.Replayed, Record: r.res.Record,
	}
}

// byRedis: legacy and shadow.
func (r *releasing) byRedis(ctx context.Context) error {
	if err := r.askRedis(ctx); err != nil {
		return err
	}
	op := r.op()
	r.ans.follow = &op
	return nil
}

// askRedis releases in Redis. A hold that only MySQL knows, since it was answered without Redis, is given to Redis first.
func (r *releasing) askRedis(ctx context.Context) error {
	res, err := r.p.opt.Redis.Release(ctx, r.st, r.shop, r.id)
	if errors.Is(err, reservation.ErrNotFound) && r.p.marksMayMatter(r.st) {
		if err := r.p.bring(ctx, r.st, r.shop, r.id); err != nil {
			return err
		}
		res, err = r.p.opt.Redis.Release(ctx, r.st, r.shop, r.id)
	}
	return r.with(res, err)
}

// bring gives Redis what MySQL knows of an id. Who names an id was told it: so it is adopted, marked or not.
func (p *Pod) bring(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) error {
	rec, err := p.lookUp(ctx, st, func(ctx context.Context) (reservation.Record, error) { return p.opt.MySQL.Get(ctx, shop, id) })
	if err != nil || rec == nil {
		return err
	}
	return p.giveToRedis(ctx, st, *rec)
}

// both: handover. MySQL has it before the caller is answered.
func (r *releasing) both(ctx context.Context) error {
	if err := r.askRedis(ctx); err != nil {
		return err
	}
	r.ans.asked = time.Now()
	writing, cancel := inBudget(ctx, r.p.tune().AgreeBudget, len(r.res.Record.Lines))
	defer cancel()
	j, err := r.p.opt.Mirrors.MySQL.Mirror(writing, r.st, r.op())
	switch {
	case err == nil:
		r.ans.judged = &j
		return nil
	case silent(err):
		return r.p.abortHandover(ctx, r.st, err)
	default:
		return err
	}
}

// byMySQL: cutover. Redis has it before the caller has it, or it is marked.
func (r *releasing) byMySQL(ctx context.Context) error {
	if err := r.with(r.p.opt.MySQL.Release(ctx, r.st, r.shop, r.id)); err != nil {
		return err
	}
	r.ans.asked = time.Now()
	writing, cancel := inBudget(ctx, r.p.tune().CutBudget, len(r.res.Record.Lines))
	defer cancel()
	j, err := r.p.opt.Mirrors.Redis.Mirror(writing, r.st, r.op())
	switch {
	case err == nil:
		r.ans.judged = &j
		return nil
	case stale(err):
		return err
	}
	r.ans.gap = diff.GapCut
	return r.p.withoutRedis(ctx, r.st, r.id, err)
}

// cut: cutover without Redis.
func (r *releasing) cut(ctx context.Context) error {
	res, err := r.p.opt.MySQL.Cut().Release(ctx, r.st, r.shop, r.id)
	if err != nil {
		return r.p.cutError(ctx, err)
	}
	r.p.marks.Store(true)
	if err := r.with(res, nil); err != nil {
		return err
	}
	r.ans.gap = diff.GapCut
	return nil
}
