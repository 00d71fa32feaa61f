package router

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

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
	p.opt.Missed(op.Record.ID) // after the gap is known, which explains what catch-up will find
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
