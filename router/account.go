package router

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// begin counts a validated operation; nil where nothing is compared.
func (p *Pod) begin(op reservation.Op) *diff.Span {
	if p.engine == nil {
		return nil
	}
	return p.engine.Begin(op)
}

func (p *Pod) outcome(rec reservation.Record) diff.Outcome {
	return diff.Outcome{
		Record: &rec, Lines: rec.Lines, Shop: rec.Shop, ID: rec.ID, KeyHash: rec.Hash, Stamp: p.opt.Stamp,
	}
}

// follow notes the truth's answer and hands the operation to the mirror, without waiting.
func (p *Pod) follow(span *diff.Span, out diff.Outcome, op reservation.MirrorOp) {
	if span == nil {
		return
	}
	span.Decided(out)
	p.queue.Offer(shadow.Job{
		Stamp: p.opt.Stamp, Op: op, Begin: span.MirrorBegins,
		Done: func(j reservation.Judgement, err error) {
			if err != nil {
				p.gap(span, op, err)
				return
			}
			span.Compare(j)
		},
	})
}

// settled notes both answers of an operation whose own protocol wrote both stores.
func (p *Pod) settled(span *diff.Span, out diff.Outcome, j reservation.Judgement) {
	if span == nil {
		return
	}
	span.Decided(out)
	span.Compare(j)
}

// failed accounts for an operation that ended in an error: some errors are decisions, and are compared.
func (p *Pod) failed(span *diff.Span, op reservation.Op, err error, asked reservation.Record) {
	if span == nil {
		return
	}
	d := reservation.DecisionOf(err)
	if d == reservation.Undecided {
		span.Undecided(gapOf(err), diff.Outcome{Lines: asked.Lines, Shop: asked.Shop, ID: asked.ID, Stamp: p.opt.Stamp})
		return
	}
	out := diff.Outcome{
		Decision: d, Lines: asked.Lines, Shop: asked.Shop, ID: asked.ID, KeyHash: asked.Hash, Stamp: p.opt.Stamp,
	}
	p.follow(span, out, reservation.MirrorOp{Op: op, Decision: d, Record: asked})
}

func levelsOf(err error) []reservation.Level {
	var short *reservation.ShortError
	if errors.As(err, &short) {
		return []reservation.Level{{Bucket: short.Bucket, Available: short.Available}}
	}
	return nil
}

func (p *Pod) gap(span *diff.Span, op reservation.MirrorOp, err error) {
	reason := mirrorGapOf(err)
	p.opt.Logger.Debug("the mirror missed an operation", "pod", p.opt.ID, "op", op.Op.String(), "id", op.Record.ID, "reason", string(reason), "err", err)
	if reason == diff.GapError {
		p.opt.Logger.Warn("the mirror failed", "pod", p.opt.ID, "op", op.Op.String(), "id", op.Record.ID, "err", err)
	}
	span.Gap(reason)
}

// gapOf says why the truth gave no decision.
func gapOf(err error) diff.GapReason {
	var unknown *reservation.UnknownOutcomeError
	switch {
	case errors.As(err, &unknown):
		return diff.GapUnknown
	case errors.Is(err, reservation.ErrFrozen):
		return diff.GapRefused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return diff.GapUnknown
	default:
		return diff.GapUnavailable
	}
}

// mirrorGapOf says why the mirror gave no judgement.
func mirrorGapOf(err error) diff.GapReason {
	var fence *reservation.FenceError
	switch {
	case errors.Is(err, shadow.ErrQueueFull):
		return diff.GapQueueFull
	case errors.Is(err, shadow.ErrBreakerOpen):
		return diff.GapBreakerOpen
	case errors.Is(err, shadow.ErrShutdown):
		return diff.GapShutdown
	case errors.Is(err, shadow.ErrPanic):
		return diff.GapPanic
	case errors.As(err, &fence):
		return diff.GapStale
	case errors.Is(err, context.DeadlineExceeded):
		return diff.GapTimeout
	default:
		return diff.GapError
	}
}
