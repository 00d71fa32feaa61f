// Package rehearsal takes a pod to cutover and back under load, as a person would: a drill, a flip, a kill, the claims
// of holds from before. Two routers serve the pod meanwhile, and buyers retry through either.
//
// It promises that what it reports was counted by the buyers or read from the stores, and that the invariants are
// checked from both stores at rest. It never writes to a store but through the routers and the kill switch.
package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// Options say how a rehearsal is run.
type Options struct {
	Config *config.Config
	Pod    string
	// First is the first router, started; the rehearsal opens the second, and closes only that one.
	First *podset.Set
	// Clients buy at once. Default 4. Hold is how long the pod stays in cutover under load. Default 3 s.
	Clients int
	Hold    time.Duration
	// Phase is told what is going on. It may be nil.
	Phase  func(string)
	Logger *slog.Logger
}

func (o *Options) defaults() {
	if o.Clients == 0 {
		o.Clients = 4
	}
	if o.Hold == 0 {
		o.Hold = 3 * time.Second
	}
	if o.Phase == nil {
		o.Phase = func(string) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// routers is how many serve the pod.
const routers = 2

// why is what the audit says of it all, and why the gate of latency is waived.
const why = "a rehearsal: routers, buyers and both stores share one small machine"

// Run takes the pod to cutover and back. The pod must be in shadow, and nobody else may write to it meanwhile.
func Run(ctx context.Context, opt Options) (Result, error) {
	opt.defaults()
	r := &run{opt: opt, result: Result{Pod: opt.Pod, Problems: []string{}, Invariants: map[string]string{}}}
	defer r.close(ctx)
	if err := r.open(ctx); err != nil {
		return r.result, err
	}
	buyers, stop := r.startBuyers(ctx)
	err := r.act(ctx, buyers)
	stop()
	if err == nil {
		err = r.atRest(ctx, buyers)
	}
	r.result.OK = err == nil && len(r.result.Problems) == 0
	return r.result, err
}

type run struct {
	opt     Options
	sets    []*podset.Set
	pod     *podset.Pod // the first router's
	control *killswitch.Control
	result  Result
}

func (r *run) open(ctx context.Context) error {
	second, err := podset.Open(ctx, r.opt.Config, podset.Options{Logger: r.opt.Logger, Only: r.opt.Pod, Router: "router-2"})
	if err != nil {
		return err
	}
	r.sets = []*podset.Set{r.opt.First, second}
	second.Router.Start()
	r.pod = r.opt.First.Pods[0]
	if st := r.pod.Router.Stamp(); st.Stage != reservation.Shadow {
		return fmt.Errorf("pod %s is in %s: a rehearsal begins in shadow", r.opt.Pod, st.Stage)
	}
	r.control, err = r.pod.Control(podset.ControlOptions{By: "rehearsal"})
	if err != nil {
		return err
	}
	return r.stock(ctx)
}

func (r *run) close(ctx context.Context) {
	if len(r.sets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, s := range r.sets[1:] {
		if err := s.Close(ctx); err != nil {
			r.opt.Logger.Warn("a router did not close in time", "err", err)
		}
	}
}

const closeTimeout = 15 * time.Second

// act is what the person does while buyers buy.
func (r *run) act(ctx context.Context, b *buyers) error {
	if err := b.await(ctx, reservation.Redis, warmUp); err != nil {
		return err
	}
	r.opt.Phase("drill: killing and rearming the pod on purpose, under load")
	drill, err := r.control.Drill(ctx, why, "")
	if err != nil {
		return fmt.Errorf("drill: %w", err)
	}
	r.result.Drill = drill
	held := b.keep(ctx, keepEach)
	for _, s := range r.sets { // the gates read what the routers have written down
		if err := s.Pods[0].Router.Engine().Flush(ctx); err != nil {
			return fmt.Errorf("write the tallies: %w", err)
		}
	}
	r.opt.Phase("flip: shadow, handover, cutover, under load")
	began := time.Now()
	flip, err := r.control.Execute(ctx, killswitch.Order{
		To: reservation.Cutover, Waive: []string{killswitch.GateLatency}, Reason: why, Wait: flipWait, Progress: r.opt.Phase,
	})
	if err != nil {
		return fmt.Errorf("flip: %w", err)
	}
	r.result.Flip, r.result.FlipS = flip, time.Since(began).Seconds()
	if err := b.await(ctx, reservation.MySQL, warmUp); err != nil {
		return err
	}
	wait(ctx, r.opt.Hold)
	held = append(held, b.keep(ctx, keepEach)...)
	r.opt.Phase("kill: back to Redis")
	kill, err := r.control.Kill(ctx, "rehearsal", "")
	if err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	r.result.Kill = kill
	if err := b.await(ctx, reservation.Redis, warmUp); err != nil {
		return err
	}
	r.opt.Phase(fmt.Sprintf("claiming %d holds from before the flip and the kill", len(held)))
	r.result.Kept = b.claimKept(ctx, held)
	return ctx.Err()
}

const (
	warmUp   = 20 // grants of the store that decides
	keepEach = 20
	flipWait = 40 * time.Second
)

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// atRest brings the pod to rest and checks both stores, and what the buyers were told.
func (r *run) atRest(ctx context.Context, b *buyers) error {
	r.opt.Phase("at rest: catching up, reading both stores whole, computing the invariants")
	for _, s := range r.sets {
		if _, err := s.Pods[0].Quiesce(ctx); err != nil {
			return fmt.Errorf("bring the pod to rest: %w", err)
		}
	}
	rs, ms, err := r.pod.Inspect(ctx)
	if err != nil {
		return err
	}
	report := r.pod.Check(&rs, &ms, true)
	r.result.Invariants = report.Map()
	r.result.Problems = append(r.result.Problems, report.Violations()...)
	r.result.Buyers = b.count()
	r.result.Problems = append(r.result.Problems, b.complaints(&ms)...)
	for _, s := range r.sets {
		if n := s.Pods[0].Router.Engine().Tally().Unexplained; n > 0 {
			r.result.Problems = append(r.result.Problems, fmt.Sprintf("%d differences are unexplained", n))
		}
	}
	return nil
}

// ErrNotOK says that a rehearsal ran to its end and something in its result is wrong.
var ErrNotOK = errors.New("the rehearsal is not ok")
