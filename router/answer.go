package router

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// answer is what became of one operation in both stores: how it is accounted for.
type answer struct {
	out diff.Outcome
	// asked and judgedAt bound the other store's work, where it was written before the answer. A zero judgedAt is the end.
	asked, judgedAt time.Time
	// judged is the other store's judgement; nil where it has not given one yet.
	judged *reservation.Judgement
	// gap says why there will be none. follow is what the other store has still to be told.
	gap    diff.GapReason
	follow *reservation.MirrorOp
}

// routedAgain tells the comparison what was decided before the operation has to be routed again: the next decision
// replaces it.
func (a answer) routedAgain(span *diff.Span) {
	if span != nil && a.out.Decision != 0 {
		span.Decided(a.out)
	}
}

// begin counts a validated operation; nil where nothing is compared.
func (p *Pod) begin(op reservation.Op) *diff.Span {
	if !p.Stamp().Stage.DualWrite() {
		return nil
	}
	return p.engine.Begin(op)
}

// outcome is the truth's answer, as of now.
func outcome(st reservation.Stamp, rec reservation.Record) diff.Outcome {
	return diff.Outcome{
		Record: &rec, Lines: rec.Lines, Shop: rec.Shop, ID: rec.ID, KeyHash: rec.Hash, Stamp: st, Ended: time.Now(),
	}
}

// account ends an operation that was decided: compared, a gap, or handed to the store that follows.
func (p *Pod) account(span *diff.Span, a answer) {
	st := a.out.Stamp
	if span == nil {
		if a.follow != nil && st.Stage.DualWrite() {
			p.offer(nil, st, *a.follow)
		}
		return
	}
	span.Decided(a.out)
	switch {
	case a.judged != nil:
		if !a.asked.IsZero() {
			span.MirrorBeganAt(a.asked)
		}
		if !a.judgedAt.IsZero() {
			span.MirrorEndedAt(a.judgedAt)
		}
		span.Compare(*a.judged)
	case a.gap != "":
		span.Gap(a.gap)
	case a.follow != nil && st.Stage.DualWrite():
		p.offer(span, st, *a.follow)
		return
	default: // it ended in a stage without a mirror
		span.Gap(diff.GapNoMirror)
	}
	if a.follow != nil && st.Stage.DualWrite() {
		p.offer(nil, st, *a.follow)
	}
}

// offer hands an operation to the store that follows, without waiting.
func (p *Pod) offer(span *diff.Span, st reservation.Stamp, op reservation.MirrorOp) {
	job := shadow.Job{Stamp: st, Op: op, Done: func(_ reservation.Judgement, err error) {
		if err != nil {
			p.opt.Missed(op.Record.ID)
		}
	}}
	if span != nil {
		job.Begin = span.MirrorBegins
		job.Done = func(j reservation.Judgement, err error) {
			if err != nil {
				p.gap(span, op, err)
				return
			}
			span.Compare(j)
		}
	}
	p.queue.Offer(job)
}

// failed accounts for an operation that ended in an error: some errors are decisions, and are compared.
func (p *Pod) failed(span *diff.Span, op reservation.Op, st reservation.Stamp, err error, asked reservation.Record) {
	if span == nil {
		return
	}
	out := diff.Outcome{
		Decision: reservation.DecisionOf(err), Lines: asked.Lines, Shop: asked.Shop, ID: asked.ID, KeyHash: asked.Hash, Stamp: st,
	}
	if out.Decision == reservation.Undecided {
		reason := gapOf(err)
		span.Undecided(reason, out)
		if reason == diff.GapUnknown { // the truth may have carried it out
			p.opt.Missed(asked.ID)
		}
		return
	}
	p.account(span, answer{out: out, follow: &reservation.MirrorOp{Op: op, Decision: out.Decision, Record: asked}})
}

// inBudget gives a write to the other store that the caller waits for its own bound.
func inBudget(ctx context.Context, d time.Duration, lines int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d*time.Duration(1+lines/linesPerBudget))
}

// linesPerBudget is how many lines a cart may have before it gets a second budget's time: the work grows with them.
const linesPerBudget = 250
