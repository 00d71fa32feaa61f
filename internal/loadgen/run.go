package loadgen

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Target is what a plan is sent to: a router, or a client of one.
type Target interface {
	Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error)
	Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error)
	Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error)
	Adjust(ctx context.Context, adj reservation.Adjustment) (reservation.AdjustResult, error)
}

// Options say how a plan is sent.
type Options struct {
	// Clients is the number of callers. Default 16.
	Clients int
	// Speed is in calls a second, come what may: latency is then counted from the moment at which a call was due.
	// 0 is as fast as the clients and Pace allow.
	Speed float64
	// Pace, if given, is asked before each call at Speed 0 and blocks while the target should be left to catch up.
	Pace func(ctx context.Context) error
	// Progress, if given, is called from one goroutine, some times a second and once at the end.
	Progress func(done, total int)
	// CallTimeout is the deadline of one try. Default 5s.
	CallTimeout time.Duration
	// Tries is how often a call without a decision is made in all, with the same key. Default 8.
	Tries int
	// Backoff is the wait before the second try; it doubles up to 50 times itself. Default 5ms.
	Backoff time.Duration
}

func (o Options) withDefaults() Options {
	if o.Clients == 0 {
		o.Clients = 16
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 5 * time.Second
	}
	if o.Tries == 0 {
		o.Tries = 8
	}
	if o.Backoff == 0 {
		o.Backoff = 5 * time.Millisecond
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Clients < 1 || o.Clients > 100_000:
		return fmt.Errorf("%d clients are out of range: use 1 to 100000", o.Clients)
	case !(o.Speed >= 0 && o.Speed <= 1e7): // the negation also refuses NaN
		return fmt.Errorf("speed %v is out of range: use 0 (as fast as can be) to 10000000 calls a second", o.Speed)
	case o.CallTimeout < 0 || o.Tries < 1 || o.Backoff < 0:
		return errors.New("call timeout, tries and backoff must be positive")
	default:
		return nil
	}
}

// Run sends a plan and waits for every answer. Calls start in the order of the plan; those of one cart wait for
// each other, all others run side by side. A rejection, a conflict or an unknown outcome is an answer, and counted;
// Run's own error means that it was stopped before the end, and what was answered until then is in the Stats.
func Run(ctx context.Context, p Plan, t Target, o Options) (Stats, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Stats{}, err
	}
	r := &runner{plan: p, target: t, opts: o, answers: make([]Answer, len(p.Events)), carts: make([]cartState, len(p.Carts))}
	r.awaited = awaited(p.Events)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	begun := time.Now()
	work := make(chan call)
	var clients sync.WaitGroup
	for range o.Clients {
		clients.Go(func() {
			for c := range work {
				r.carryOut(ctx, c)
				r.done.Add(1)
			}
		})
	}
	finished := make(chan struct{})
	var reporter sync.WaitGroup
	if o.Progress != nil {
		reporter.Go(func() { r.report(finished) })
	}
	err := r.dispatch(ctx, work)
	if err != nil {
		stop(err) // whoever waits for a call that is never made must not wait on
	}
	close(work)
	clients.Wait()
	close(finished)
	reporter.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r.stats(time.Since(begun)), err
}

// call is one event on its way to a client.
type call struct {
	event int
	due   time.Time // zero: once a client has taken it
}

// cartState is what a cart's reserve was answered. The cart's events follow each other, so nobody else writes it.
type cartState struct {
	id      reservation.ID
	outcome reservation.Decision // 0: not decided
}

type runner struct {
	plan    Plan
	target  Target
	opts    Options
	answers []Answer
	carts   []cartState
	awaited map[int]chan struct{} // closed once that event was answered
	done    atomic.Int64
}

// awaited makes a channel for each event that another one waits for.
func awaited(events []Event) map[int]chan struct{} {
	m := make(map[int]chan struct{})
	for _, e := range events {
		if e.After >= 0 {
			m[e.After] = make(chan struct{})
		}
	}
	return m
}

// dispatch hands the events out in order. An event is always handed out after the one that it waits for, so a
// client that waits never keeps the other from being carried out.
func (r *runner) dispatch(ctx context.Context, work chan<- call) error {
	begun := time.Now()
	for i := range r.plan.Events {
		var due time.Time // zero: from when a client takes it, since waiting for a free one is no latency
		switch {
		case r.opts.Speed > 0:
			due = begun.Add(time.Duration(float64(i) / r.opts.Speed * float64(time.Second)))
			if err := sleepUntil(ctx, due); err != nil {
				return err
			}
		case r.opts.Pace != nil:
			if err := r.opts.Pace(ctx); err != nil {
				return fmt.Errorf("wait for the target to catch up: %w", err)
			}
		}
		select {
		case work <- call{event: i, due: due}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func sleepUntil(ctx context.Context, at time.Time) error {
	d := time.Until(at)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// report shows progress until the run is over.
func (r *runner) report(finished <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.opts.Progress(int(r.done.Load()), len(r.plan.Events))
		case <-finished:
			r.opts.Progress(int(r.done.Load()), len(r.plan.Events))
			return
		}
	}
}

// carryOut makes one call, once the one before it was answered.
func (r *runner) carryOut(ctx context.Context, c call) {
	e := r.plan.Events[c.event]
	if ch, ok := r.awaited[c.event]; ok {
		defer close(ch)
	}
	if e.After >= 0 {
		select {
		case <-r.awaited[e.After]:
		case <-ctx.Done():
			return
		}
	}
	// A call cannot be due before the one that it follows was answered.
	begun := time.Now()
	if c.due.IsZero() || e.After >= 0 && r.answers[e.After].At.Add(r.answers[e.After].Took).After(c.due) {
		c.due = begun
	}
	a := r.prepare(e)
	if !a.Sent {
		r.answers[c.event] = a
		return
	}
	for try := 1; ; try++ {
		a.Tries = try
		retry := r.try(ctx, e, &a)
		if !retry || try >= r.opts.Tries || sleepUntil(ctx, time.Now().Add(r.backoff(c.event, try))) != nil {
			break
		}
	}
	a.At, a.Took = c.due, time.Since(c.due)
	if e.Op == reservation.OpReserve && (a.Decision == reservation.Granted || a.Decision == reservation.RejectedShort) {
		r.carts[e.Cart] = cartState{id: a.ID, outcome: a.Decision}
	}
	r.answers[c.event] = a
}

// backoff doubles up to a bound, and differs between calls so that they do not come back together.
func (r *runner) backoff(event, try int) time.Duration {
	d := r.opts.Backoff << min(try-1, 6)
	d = min(d, 50*r.opts.Backoff)
	return d/2 + d/2*time.Duration(drawn(1000, "backoff", fmt.Sprint(event), fmt.Sprint(try)))/1000
}

// prepare fills in what is asked. The end of a cart that was not granted is not sent.
func (r *runner) prepare(e Event) Answer {
	a := Answer{Op: e.Op, Attempt: e.Attempt, Sent: true}
	if e.Cart < 0 {
		a.Shop, a.Key = e.Adjust.Bucket.Shop, e.Adjust.ID
		return a
	}
	a.Shop, a.Key = r.plan.Carts[e.Cart].Shop, r.plan.Carts[e.Cart].Key
	if e.Op != reservation.OpReserve {
		a.ID = r.carts[e.Cart].id
		a.Sent = r.carts[e.Cart].outcome == reservation.Granted
	}
	return a
}

// try makes the call once and tells whether it is worth another try.
func (r *runner) try(ctx context.Context, e Event, a *Answer) bool {
	callCtx, cancel := context.WithTimeout(ctx, r.opts.CallTimeout)
	defer cancel()
	err := r.send(callCtx, e, a)
	if err == nil {
		a.Err = nil
		return false
	}
	a.Err, a.Decision = err, reservation.DecisionOf(err)
	if a.Decision != reservation.Undecided || ctx.Err() != nil {
		return false
	}
	return reservation.CodeOf(err) == reservation.CodeUnavailable ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func (r *runner) send(ctx context.Context, e Event, a *Answer) error {
	switch e.Op {
	case reservation.OpReserve:
		c := r.plan.Carts[e.Cart]
		res, err := r.target.Reserve(ctx, c.Shop, c.Key, c.Lines, c.TTL)
		if err != nil {
			return err
		}
		a.ID, a.Decision, a.State, a.Replayed = res.Record.ID, res.Record.Outcome, res.Record.State, res.Replayed
		a.ExpiresAt = res.Record.ExpiresAt
	case reservation.OpClaim:
		res, err := r.target.Claim(ctx, a.Shop, a.ID)
		if err != nil {
			return err
		}
		a.Decision, a.State, a.Replayed, a.Late = claimDecision(res.Record.State), res.Record.State, res.Replayed, res.Late
	case reservation.OpRelease:
		res, err := r.target.Release(ctx, a.Shop, a.ID)
		if err != nil {
			return err
		}
		a.Decision, a.State, a.Replayed = reservation.ReleasedOK, res.Record.State, res.Replayed
	case reservation.OpAdjust:
		res, err := r.target.Adjust(ctx, e.Adjust)
		if err != nil {
			return err
		}
		a.Decision, a.Replayed = reservation.Adjusted, res.Replayed
	default:
		return fmt.Errorf("a plan cannot hold the operation %s", e.Op)
	}
	return nil
}

func claimDecision(s reservation.State) reservation.Decision {
	switch s {
	case reservation.Claimed:
		return reservation.ClaimedOK
	case reservation.Refused:
		return reservation.RefundRequired
	default:
		return reservation.Undecided
	}
}
