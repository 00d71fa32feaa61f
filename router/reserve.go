package router

import (
	"context"
	"errors"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
)

// Reserve places a hold in one of the pod's shops.
func (p *Pod) Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error) {
	req, err := reservation.NewRequest(shop, key, lines, ttl, p.tune().Limits)
	if err != nil {
		return reservation.Result{}, err
	}
	id, err := reservation.NewID()
	if err != nil {
		return reservation.Result{}, err
	}
	span := p.begin(reservation.OpReserve)
	r := &reserving{p: p, id: id, req: req, span: span}
	err = p.routed(ctx, reservation.OpReserve, r.carryOut)
	if err != nil {
		asked := reservation.Record{ID: r.id, Shop: shop, Key: req.Key, Hash: req.Hash, Lines: req.Lines}
		p.failed(span, reservation.OpReserve, r.st, err, asked)
		return reservation.Result{}, err
	}
	p.account(span, r.ans)
	return r.res, nil
}

// reserving is one reserve on its way through the stages. Its id is that of the first store that stored it.
type reserving struct {
	p    *Pod
	id   reservation.ID
	req  reservation.Request
	span *diff.Span
	st   reservation.Stamp
	from time.Time // when the store that decides was asked
	res  reservation.Result
	ans  answer
}

func (r *reserving) carryOut(ctx context.Context, st reservation.Stamp) error {
	r.ans.routedAgain(r.span)
	r.st, r.ans, r.from = st, answer{}, time.Now()
	r.req.Frozen = r.p.braked(r.req.Shop, r.req.Lines)
	route := st.Stage.Route(reservation.OpReserve)
	switch {
	case route.Both:
		return r.both(ctx)
	case route.Decides == reservation.Redis:
		return r.byRedis(ctx)
	case route.Mirror == reservation.BeforeAnswer:
		return r.byMySQL(ctx)
	default:
		return r.byMySQLAlone(ctx)
	}
}

// decided notes the truth's answer.
func (r *reserving) decided(res reservation.Result) {
	r.res = res
	r.id = res.Record.ID
	out := outcome(r.st, res.Record)
	out.Decision, out.Replayed, out.Levels = res.Record.Outcome, res.Replayed, res.Levels
	out.Moved = !res.Replayed && res.Record.Outcome == reservation.Granted
	out.Asked = r.from
	r.ans = answer{out: out}
}

func (r *reserving) op() reservation.MirrorOp {
	return reservation.MirrorOp{
		Op: reservation.OpReserve, Decision: r.res.Record.Outcome, Replayed: r.res.Replayed, Record: r.res.Record,
	}
}

// askRedis has Redis decide. What MySQL alone knows of the key is given to Redis before, where that may matter.
func (r *reserving) askRedis(ctx context.Context) error {
	known, err := r.p.lookUp(ctx, r.st, func(ctx context.Context) (reservation.Record, error) {
		return r.p.opt.MySQL.ByKey(ctx, r.req.Shop, r.req.Key)
	})
	if err != nil {
		return err
	}
	if known != nil {
		r.id = known.ID // nobody was answered: the truth decides it under the same id
	}
	r.from = time.Now()
	res, err := r.p.opt.Redis.Reserve(ctx, r.st, r.id, r.req)
	if err != nil {
		return err
	}
	r.decided(res)
	return nil
}

// byRedis: legacy and shadow.
func (r *reserving) byRedis(ctx context.Context) error {
	if err := r.askRedis(ctx); err != nil {
		return err
	}
	op := r.op()
	r.ans.follow = &op
	return nil
}

// byMySQLAlone: complete.
func (r *reserving) byMySQLAlone(ctx context.Context) error {
	res, err := r.p.opt.MySQL.Reserve(ctx, r.st, r.id, r.req)
	if err != nil {
		return err
	}
	r.decided(res)
	return nil
}

// byMySQL: cutover. Redis has what MySQL decided before the caller has it, or it is marked.
func (r *reserving) byMySQL(ctx context.Context) error {
	if r.p.isCut() {
		return r.byMySQLCut(ctx)
	}
	if err := r.byMySQLAlone(ctx); err != nil {
		return err
	}
	op := r.op()
	if op.Record.State == reservation.Claimed { // a replay of what was paid meanwhile: Redis may not have heard of that yet
		var err error
		if op.Changes, err = r.p.opt.MySQL.ChangesOf(ctx, op.Record.Shop, op.Record.ID); err != nil {
			return err
		}
	}
	r.ans.asked = time.Now()
	writing, cancel := inBudget(ctx, r.p.tune().CutBudget, len(r.req.Lines))
	defer cancel()
	j, err := r.p.opt.Mirrors.Redis.Mirror(writing, r.st, op)
	switch {
	case err == nil:
		r.ans.judged = &j
		return nil
	case stale(err):
		return err // the new truth is asked, under the same id
	}
	r.ans.gap = diff.GapCut
	return r.p.withoutRedis(ctx, r.st, r.id, err)
}

// withoutRedis goes on where Redis could not be given what MySQL decided: it is marked, and then it may be answered.
func (p *Pod) withoutRedis(ctx context.Context, st reservation.Stamp, id reservation.ID, err error) error {
	if ctx.Err() != nil { // the caller is gone, and that says nothing of Redis: its retry goes on from here
		return &reservation.UnavailableError{Store: reservation.Redis, Cause: err}
	}
	if !p.redisOut(err) {
		p.opt.Logger.Error("Redis could not store an outcome: marked", "pod", p.opt.ID, "id", id, "err", err)
	}
	return p.mark(ctx, st, id)
}

// byMySQLCut: cutover without Redis.
func (r *reserving) byMySQLCut(ctx context.Context) error {
	res, err := r.p.opt.MySQL.Cut().Reserve(ctx, r.st, r.id, r.req)
	if err != nil {
		return r.p.cutError(ctx, err)
	}
	r.decided(res)
	r.ans.gap = diff.GapCut
	r.p.marks.Store(true)
	return nil
}

// mark notes in MySQL that an outcome is answered without Redis.
func (p *Pod) mark(ctx context.Context, st reservation.Stamp, id reservation.ID) error {
	p.marks.Store(true)
	if err := p.opt.MySQL.Mark(ctx, st, id); err != nil {
		return p.cutError(ctx, err)
	}
	return nil
}

// cutError is the error of a write that a router without Redis made: where MySQL's fence refuses it, the router learns
// why from that fence, since it cannot ask Redis.
func (p *Pod) cutError(ctx context.Context, err error) error {
	if stale(err) {
		_ = p.readMySQLFence(ctx) // what is not learned now is learned by the next poll
	}
	return err
}

// both: handover. Redis has taken the units, as provisional; MySQL must agree, and Redis confirms.
func (r *reserving) both(ctx context.Context) error {
	if err := r.askRedis(ctx); err != nil {
		return err
	}
	switch r.res.Record.State {
	case reservation.Provisional:
		return r.agree(ctx)
	case reservation.Rejected:
		return r.store(ctx, r.op())
	default:
		op := r.op()
		op.Adopt = r.res.Record.State.Live() // answered before: MySQL takes it, over any no of its own
		return r.store(ctx, op)
	}
}

// store writes Redis's outcome into MySQL before it is answered.
func (r *reserving) store(ctx context.Context, op reservation.MirrorOp) error {
	r.ans.asked = time.Now()
	writing, cancel := inBudget(ctx, r.p.tune().AgreeBudget, len(r.req.Lines))
	defer cancel()
	j, err := r.p.opt.Mirrors.MySQL.Mirror(writing, r.st, op)
	if silent(err) {
		return r.p.abortHandover(ctx, r.st, err)
	}
	if err != nil {
		return err
	}
	r.ans.judged = &j
	return nil
}

// agree asks MySQL for its half of the grant.
func (r *reserving) agree(ctx context.Context) error {
	rec := r.res.Record
	r.ans.asked = time.Now()
	j, err := r.askMySQL(ctx, rec)
	if err != nil {
		return err
	}
	r.ans.judged, r.ans.judgedAt = &j, time.Now()
	if j.Decision == reservation.Granted && j.State != reservation.Rejected {
		return r.confirm(ctx)
	}
	return r.turnDown(ctx, j)
}

// askMySQL gets MySQL's word on a provisional hold. A reply that is lost is looked up once; where that settles nothing
// the handover is aborted.
func (r *reserving) askMySQL(ctx context.Context, rec reservation.Record) (reservation.Judgement, error) {
	asking, cancel := inBudget(ctx, r.p.tune().AgreeBudget, len(rec.Lines))
	defer cancel()
	j, err := r.p.opt.MySQL.Agree(asking, r.st, rec)
	if !silent(err) {
		return j, err
	}
	if ctx.Err() != nil {
		return j, err // the caller is gone: its retry goes on from here
	}
	looking, done := inBudget(ctx, r.p.tune().AgreeBudget/2, 0)
	defer done()
	found, lookErr := r.p.opt.MySQL.Get(looking, rec.Shop, rec.ID)
	if lookErr != nil {
		return j, r.p.abortHandover(ctx, r.st, errors.Join(err, lookErr))
	}
	return reservation.Judgement{Decision: found.Outcome, State: found.State, Shortages: found.Shortages, Record: &found}, nil
}

// confirm: both have granted it.
func (r *reserving) confirm(ctx context.Context) error {
	rec, err := r.p.opt.Redis.Confirm(ctx, r.st, r.id)
	if err != nil {
		return err
	}
	r.res.Record, r.ans.out.Record = rec, &rec
	if rec.State == reservation.Rejected { // turned down meanwhile: then that is the answer, and MySQL's too
		r.res.Record.Outcome, r.ans.out.Decision, r.ans.out.Moved = rec.Outcome, rec.Outcome, false
		return r.store(ctx, reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.RejectedShort, Record: rec})
	}
	return nil
}

// turnDown: MySQL has said no, and stored it.
func (r *reserving) turnDown(ctx context.Context, j reservation.Judgement) error {
	rec, err := r.p.opt.Redis.TurnDown(ctx, r.st, r.id, j.Shortages)
	switch {
	case err != nil:
		return err
	case rec.State != reservation.Rejected:
		return errAgain // it is no longer provisional: somebody was first
	}
	r.res.Record = rec
	if j.Decision != reservation.RejectedShort { // MySQL stored nothing: it does not know the bucket, or the key is another's
		return r.store(ctx, reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.RejectedShort, Record: rec})
	}
	return nil
}
