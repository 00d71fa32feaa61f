package router

import (
	"context"
	"errors"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// maxRoutes bounds how often one operation is carried out again because the stage changed under it.
const maxRoutes = 32

// errAgain: the operation has to be routed again.
var errAgain = errors.New("the pod has changed its stage")

// routed carries an operation out in the stage that is believed, and again when a fence refuses that belief.
func (p *Pod) routed(ctx context.Context, op reservation.Op, f func(ctx context.Context, st reservation.Stamp) error) error {
	for n := 1; ; n++ {
		st := p.Stamp()
		err := p.said(ctx, st, f(ctx, st))
		if !stale(err) && !errors.Is(err, errAgain) {
			return p.unrouted(err)
		}
		p.metrics.routedAgain.WithLabelValues(op.String()).Inc()
		if n == maxRoutes {
			return &reservation.UnavailableError{Store: st.Stage.Truth(), Cause: err}
		}
		if p.Stamp() == st {
			if loadErr := p.load(ctx); loadErr != nil {
				return &reservation.UnavailableError{Store: reservation.Redis, Cause: errors.Join(loadErr, err)}
			}
		}
		if p.Stamp() == st && !pause(ctx, time.Duration(n)*time.Millisecond) {
			return &reservation.UnavailableError{Store: st.Stage.Truth(), Cause: err}
		}
	}
}

// said makes sure of a no that MySQL gave in cutover. A yes passes Redis before it is answered, and so cannot be given by
// a router whose belief is old; a no passes nothing, so the fence is read before it is believed. A router that cannot
// reach Redis does not say that something is not there.
func (p *Pod) said(ctx context.Context, st reservation.Stamp, err error) error {
	if st.Stage.Truth() != reservation.MySQL || !st.Stage.DualWrite() || reservation.DecisionOf(err) == reservation.Undecided {
		return err
	}
	if !p.isCut() {
		loadErr := p.load(ctx)
		switch {
		case p.Stamp() != st:
			return errAgain
		case loadErr != nil:
			return &reservation.UnavailableError{Store: reservation.Redis, Cause: errors.Join(loadErr, err)}
		}
	}
	if p.isCut() && errors.Is(err, reservation.ErrNotFound) {
		return &reservation.UnavailableError{Store: reservation.Redis, Cause: errors.New("cut from Redis, which may know it")}
	}
	return err
}

// unrouted notes what an error says of Redis, where that is why there is no answer.
func (p *Pod) unrouted(err error) error {
	var fence *reservation.FenceError
	if errors.As(err, &fence) && fence.Store == reservation.Redis {
		p.lost(fence.Error())
	}
	return err
}

// abortHandover takes the pod back to shadow, since MySQL does not answer and no grant can be had: a compare-and-set on
// the epoch. The operation is then routed again, and decided afresh by Redis.
func (p *Pod) abortHandover(ctx context.Context, st reservation.Stamp, cause error) error {
	f, err := p.opt.Redis.Move(ctx, reservation.FenceMove{
		From: st, To: reservation.Shadow,
		Audit: reservation.AuditRecord{
			Pod: p.opt.ID, Action: reservation.ActionAbort, By: p.opt.Name,
			Reason: "MySQL did not answer in handover: " + cause.Error(),
		},
	})
	switch {
	case err == nil:
		p.metrics.aborts.Inc()
		p.opt.Logger.Error("handover was aborted: back to shadow, since MySQL did not answer", "pod", p.opt.ID, "epoch", f.Epoch, "cause", cause)
		p.adopt(f)
		return errAgain
	case stale(err):
		return err // somebody else has moved it
	default:
		return errors.Join(cause, err)
	}
}

// silent tells whether MySQL gave no answer: what became of the write is open.
func silent(err error) bool {
	var (
		una     *reservation.UnavailableError
		unknown *reservation.UnknownOutcomeError
	)
	return errors.As(err, &una) || errors.As(err, &unknown) ||
		errors.Is(err, context.DeadlineExceeded)
}
