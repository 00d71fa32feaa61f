package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// Options say how a plan is sent.
type Options struct {
	Clients int
	// Speed is in operations a second; 0 goes as fast as the mirror keeps up.
	Speed float64
	// KeyPrefix is the one that the plan was made with: it also names the stockings of buckets that were there.
	KeyPrefix string
	// WaitExpiry bounds the wait for holds that are left to expire. Default 30 s; what expires later is reported.
	WaitExpiry time.Duration
	// Phase is told what is going on, Progress how far the sending has come. Both may be nil.
	Phase    func(string)
	Progress func(done, total int)
}

func (o *Options) defaults() {
	if o.WaitExpiry == 0 {
		o.WaitExpiry = 30 * time.Second
	}
	if o.Phase == nil {
		o.Phase = func(string) {}
	}
}

// Run stocks the pod, sends the plan, brings the pod to rest and judges what it finds. The set must be started, and
// nobody else may write to the pod meanwhile.
func Run(ctx context.Context, set *podset.Set, pod *podset.Pod, plan loadgen.Plan, opt Options) (Result, error) {
	opt.defaults()
	l, err := takeLease(ctx, pod)
	if err != nil {
		return Result{}, err
	}
	defer l.release()
	backlog, err := pod.Prepare(ctx)
	if err != nil {
		return Result{}, err
	}
	opt.Phase(fmt.Sprintf("stocking %d buckets", len(plan.Stock)))
	if err := stock(ctx, pod, plan, opt.KeyPrefix); err != nil {
		return Result{}, err
	}
	before, err := readBooks(ctx, pod)
	if err != nil {
		return Result{}, err
	}
	opt.Phase(fmt.Sprintf("sending %d carts (%d requests, fewer where a cart is rejected)", len(plan.Carts), len(plan.Events)))
	began := time.Now()
	stats, err := loadgen.Run(ctx, plan, set.Router, loadgen.Options{
		Clients: opt.Clients, Speed: opt.Speed, Pace: pace(pod), Progress: opt.Progress,
	})
	if err != nil {
		return Result{}, fmt.Errorf("the replay was stopped after %d operations: %w", stats.Operations, err)
	}
	took := time.Since(began)
	later, err := awaitExpiry(ctx, plan, stats, opt)
	if err != nil {
		return Result{}, err
	}
	opt.Phase("waiting for the mirror, catching up, settling the comparison")
	round, unrest := pod.Quiesce(ctx)
	if ctx.Err() != nil {
		return Result{}, unrest
	}
	opt.Phase("reading both stores whole, computing the invariants")
	after, err := readBooks(ctx, pod)
	if err != nil {
		return Result{}, err
	}
	r := newResult(pod, plan, stats, took)
	r.HeldStill = later
	r.Backlog, r.CatchUp = catchUpOf(backlog), catchUpOf(round)
	if unrest != nil { // what can be said is said all the same
		r.problem("the pod did not come to rest: %v", unrest)
	}
	r.judge(pod, before, after)
	return r, nil
}

// paceDepth is how many operations may be on their way to the mirror when the next one is sent.
const paceDepth = 128

// pace waits while the mirror's queue is deep, so that it never overflows.
func pace(pod *podset.Pod) func(context.Context) error {
	q := pod.Router.Queue()
	if !pod.Router.Stamp().Stage.DualWrite() {
		return nil
	}
	// Deep enough to keep every worker busy, and no deeper: what waits in the queue is how far the mirror is behind.
	return func(ctx context.Context) error { return q.WaitBelow(ctx, min(paceDepth, q.Capacity()/2)) }
}

// stock gives every bucket of the plan its stock: a first stocking, or more of it where the bucket was there already.
func stock(ctx context.Context, pod *podset.Pod, plan loadgen.Plan, prefix string) error {
	_, existing, err := pod.Stock(ctx, plan.Stock)
	if err != nil {
		return err
	}
	if len(existing) > 0 && prefix == "" {
		return fmt.Errorf("bucket %s is %w", existing[0], ErrStocked)
	}
	there := map[reservation.Bucket]bool{}
	for _, b := range existing {
		there[b] = true
	}
	for _, s := range plan.Stock {
		if !there[s.Bucket] || s.Quantity == 0 {
			continue
		}
		adj := reservation.Adjustment{ID: prefix + "stock:" + s.Bucket.String(), Bucket: s.Bucket, Delta: s.Quantity}
		if _, err := pod.Redis.Adjust(ctx, pod.Router.Stamp(), adj); err != nil { // no caller's operation: not counted
			return fmt.Errorf("add %d to bucket %s: %w", s.Quantity, s.Bucket, err)
		}
	}
	return nil
}

// awaitExpiry waits until the holds that nobody ended have expired, within bounds, and counts those that have not.
func awaitExpiry(ctx context.Context, plan loadgen.Plan, stats loadgen.Stats, opt Options) (later int, err error) {
	now := time.Now()
	last := now
	seen := map[reservation.ID]bool{}
	for i, a := range stats.Answers {
		if a.Op != reservation.OpReserve || a.Decision != reservation.Granted || plan.Carts[plan.Events[i].Cart].Fate != loadgen.FateExpire || seen[a.ID] {
			continue
		}
		seen[a.ID] = true
		switch {
		case a.ExpiresAt.Sub(now) > opt.WaitExpiry:
			later++
		case a.ExpiresAt.After(last):
			last = a.ExpiresAt
		}
	}
	wait := time.Until(last) + 50*time.Millisecond
	if last.Equal(now) || wait <= 0 {
		return later, nil
	}
	opt.Phase(fmt.Sprintf("waiting %v for the last abandoned holds to expire", wait.Round(100*time.Millisecond)))
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return later, nil
	case <-ctx.Done():
		return later, context.Cause(ctx)
	}
}

func catchUpOf(r shadow.Round) CatchUp {
	c := CatchUp{Walked: r.Walked, Repaired: r.Repaired, Figures: r.Figures, Skipped: r.Skipped, Left: append([]string{}, r.Left...)}
	if c.Repaired == nil {
		c.Repaired = map[string]int{}
	}
	return c
}

// ErrStocked: the pod was stocked before, so keys of this replay may have been used before.
var ErrStocked = errors.New("stocked already: give this replay a key prefix of its own, so that its orders and stock are added to what is there")

// ErrNotOK says that a replay ran to its end and something in its result is wrong.
var ErrNotOK = errors.New("the replay is not ok")

// Err gives nil, or ErrNotOK with the reasons.
func (r Result) Err() error {
	if r.OK {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNotOK, strings.Join(r.Problems, "; "))
}
