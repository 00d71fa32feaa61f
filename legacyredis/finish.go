package legacyredis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

const (
	// finishQueue is how many claims may wait for their last step. Beyond it they are left to Sweep, and counted:
	// that happens only while Redis does not answer.
	finishQueue = 8192
	finishBatch = 64
	// finishTimeout bounds one batch; what it does not get done is left to Sweep.
	finishTimeout = 3 * time.Second
)

// finish is step 3 of one claim.
type finish struct {
	stamp     reservation.Stamp
	id        reservation.ID
	deduction reservation.Deduction
}

var errClosed = errors.New("the store is closed")

// finisher carries out finishes in the background, in batches. Its goroutine runs from the first finish to Close.
type finisher struct {
	store  *Store
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	queue   []finish
	added   uint64        // finishes taken into the queue, ever
	done    uint64        // finishes that were tried, ever
	changed chan struct{} // closed and replaced whenever done moves
	wake    chan struct{}
	started bool
	closed  bool
	ended   chan struct{}
}

func newFinisher(s *Store) *finisher {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &finisher{
		store: s, ctx: ctx, cancel: cancel,
		changed: make(chan struct{}), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// add never waits.
func (f *finisher) add(job finish) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		f.store.metrics.unfinished.WithLabelValues("closed").Inc()
		return
	case len(f.queue) >= finishQueue:
		f.store.metrics.unfinished.WithLabelValues("queue_full").Inc()
		return
	}
	f.queue = append(f.queue, job)
	f.added++
	if !f.started {
		f.started = true
		go f.loop()
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *finisher) loop() {
	defer close(f.ended)
	for {
		batch, closed := f.next()
		if len(batch) > 0 {
			f.carryOut(batch)
			continue
		}
		if closed {
			return
		}
		<-f.wake
	}
}

func (f *finisher) next() (batch []finish, closed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(finishBatch, len(f.queue))
	batch = f.queue[:n:n]
	f.queue = f.queue[n:]
	if len(f.queue) == 0 {
		f.queue = nil
	}
	return batch, f.closed
}

func (f *finisher) carryOut(batch []finish) {
	ctx, cancel := context.WithTimeout(f.ctx, finishTimeout)
	defer cancel()
	f.store.finishAll(ctx, batch)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done += uint64(len(batch))
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *finisher) flush(ctx context.Context) error {
	f.mu.Lock()
	target := f.added
	f.mu.Unlock()
	for {
		f.mu.Lock()
		done, changed := f.done, f.changed
		f.mu.Unlock()
		if done >= target {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

func (f *finisher) close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	if !f.started {
		f.started = true
		close(f.ended)
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
	defer f.cancel(errClosed)
	select {
	case <-f.ended:
		return nil
	case <-ctx.Done():
		f.cancel(errClosed)
		<-f.ended
		return context.Cause(ctx)
	}
}

// finishAll is step 3 of some claims. What fails is counted and left to Sweep: the answer stands either way.
func (s *Store) finishAll(ctx context.Context, batch []finish) {
	calls := make([]call, len(batch))
	for i, f := range batch {
		calls[i] = s.finishCall(f)
	}
	for i, o := range s.runAll(ctx, calls) {
		if stamp, moved := movedTo(o.err); moved {
			calls[i].stamp = stamp
			_, o.err = s.runLast(ctx, calls[i])
		}
		if o.err != nil {
			s.metrics.unfinished.WithLabelValues(endClass(o.err)).Inc()
			s.log.Warn("claim is in the ledger but not finished in Redis: left to the sweeper", "id", batch[i].id, "error", o.err)
			continue
		}
		s.fail(FailClaimFinished)
	}
}

func (s *Store) finishCall(f finish) call {
	return call{script: s.scripts.finish, op: reservation.OpClaim, stamp: f.stamp, args: []any{
		f.id.String(), f.deduction.State.String(), stamp(f.deduction.At), flag(f.deduction.Late), packChanges(f.deduction.Changes),
	}}
}

// maxMoves bounds how many changes of the fence one last step follows.
const maxMoves = 4

// runLast runs the last step of something whose answer was given: its caller's stamp may be old by now, and it is
// right in the present epoch as well. In complete there is no Redis to finish in.
func (s *Store) runLast(ctx context.Context, c call) (reply, error) {
	for n := 1; ; n++ {
		r, err := s.run(ctx, c)
		stamp, moved := movedTo(err)
		if !moved || n == maxMoves {
			return r, err
		}
		c.stamp = stamp
	}
}

// movedTo gives the fence that refused a stamp as stale, if there is a Redis to finish in.
func movedTo(err error) (reservation.Stamp, bool) {
	var fence *reservation.FenceError
	if !errors.As(err, &fence) || fence.Verdict != reservation.Stale {
		return reservation.Stamp{}, false
	}
	return fence.Fence.Stamp, fence.Fence.Stage != reservation.Complete
}

// endClass is a metric label for why a last step was left undone.
func endClass(err error) string {
	var fence *reservation.FenceError
	var corrupt *reservation.CorruptError
	switch {
	case errors.As(err, &fence):
		return "fence"
	case errors.As(err, &corrupt):
		return "corrupt"
	default:
		return className(err)
	}
}
