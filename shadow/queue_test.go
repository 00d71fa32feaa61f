package shadow

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true, Redis: true}) }

// mirrorFunc is a mirror made of a function: these tests are about the queue, not about a store.
type mirrorFunc func(ctx context.Context, op reservation.MirrorOp) (reservation.Judgement, error)

func (f mirrorFunc) Mirror(ctx context.Context, _ reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	return f(ctx, op)
}

func newQueue(t *testing.T, opt Options, f mirrorFunc) *Queue {
	t.Helper()
	opt.Pod, opt.Mirror = "pod-1", f
	q, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := q.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return q
}

// results gathers what became of jobs.
type results struct {
	mu   sync.Mutex
	errs []error
	wg   sync.WaitGroup
}

func (r *results) job(id reservation.ID) Job {
	r.wg.Add(1)
	return Job{Op: reservation.MirrorOp{Op: reservation.OpReserve, Record: reservation.Record{ID: id}}, Done: func(_ reservation.Judgement, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
		r.wg.Done()
	}}
}

func (r *results) count(target error) int {
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, err := range r.errs {
		if errors.Is(err, target) {
			n++
		}
	}
	return n
}

func newID(t *testing.T) reservation.ID {
	t.Helper()
	id, err := reservation.NewID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestI11FullQueueHandsEveryJobBack(t *testing.T) {
	gate := make(chan struct{})
	q := newQueue(t, Options{Capacity: 4, Workers: 1}, func(context.Context, reservation.MirrorOp) (reservation.Judgement, error) {
		<-gate
		return reservation.Judgement{Decision: reservation.Granted}, nil
	})
	var r results
	for range 20 {
		q.Offer(r.job(newID(t)))
	}
	close(gate)
	full := r.count(ErrQueueFull)
	if len(r.errs) != 20 || full < 15 || full > 16 {
		t.Errorf("%d jobs ended, %d of them as queue full: want 20, 15 or 16", len(r.errs), full)
	}
}

func TestI10HungMirrorHoldsOnlyItsBudget(t *testing.T) {
	var inside, most atomic.Int64
	q := newQueue(t, Options{Capacity: 64, Workers: 3, Deadline: 20 * time.Millisecond, BreakerFailures: 4, BreakerInterval: time.Hour},
		func(ctx context.Context, _ reservation.MirrorOp) (reservation.Judgement, error) {
			n := inside.Add(1)
			defer inside.Add(-1)
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			<-ctx.Done()
			return reservation.Judgement{}, &reservation.UnknownOutcomeError{Store: reservation.MySQL, Cause: ctx.Err()}
		})
	var r results
	for range 60 {
		began := time.Now()
		q.Offer(r.job(newID(t)))
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("Offer took %v: it must never wait", took)
		}
	}
	timeouts, open, full := r.count(context.DeadlineExceeded), r.count(ErrBreakerOpen), r.count(ErrQueueFull)
	if timeouts < 4 || timeouts > 6 || timeouts+open+full != 60 {
		t.Errorf("timeouts %d, breaker open %d, queue full %d: want 4 to 6 time-outs before the breaker opens, 60 in all", timeouts, open, full)
	}
	if most.Load() > 3 {
		t.Errorf("%d operations in the mirror at once, the budget is 3", most.Load())
	}
	if q.Breaker() != "open" {
		t.Errorf("the breaker is %s", q.Breaker())
	}
}

func TestBreakerCountsNoBusinessAnswer(t *testing.T) {
	answers := []error{
		reservation.ErrBusy, reservation.ErrKeyConflict, reservation.ErrNotFound,
		&reservation.FenceError{Store: reservation.MySQL, Verdict: reservation.Stale},
		&reservation.ConflictError{Op: reservation.OpClaim, State: reservation.Released},
	}
	var n atomic.Int64
	q := newQueue(t, Options{Workers: 1, BreakerFailures: 2}, func(context.Context, reservation.MirrorOp) (reservation.Judgement, error) {
		return reservation.Judgement{}, answers[int(n.Add(1))%len(answers)]
	})
	var r results
	for range 50 {
		q.Offer(r.job(newID(t)))
	}
	if open := r.count(ErrBreakerOpen); open != 0 || q.Breaker() != "closed" {
		t.Errorf("%d jobs met an open breaker, it is %s: answers are no failures", open, q.Breaker())
	}
}

func TestBreakerRecoversWithinOneInterval(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	q := newQueue(t, Options{Workers: 1, BreakerFailures: 2, BreakerInterval: 50 * time.Millisecond},
		func(context.Context, reservation.MirrorOp) (reservation.Judgement, error) {
			if broken.Load() {
				return reservation.Judgement{}, errors.New("connection refused")
			}
			return reservation.Judgement{Decision: reservation.Granted}, nil
		})
	try := func() error {
		done := make(chan error, 1)
		q.Offer(Job{Op: reservation.MirrorOp{Record: reservation.Record{ID: newID(t)}}, Done: func(_ reservation.Judgement, err error) { done <- err }})
		return <-done
	}
	for q.Breaker() != "open" {
		if err := try(); err == nil {
			t.Fatal("a broken mirror answered")
		}
	}
	broken.Store(false)
	deadline := time.Now().Add(5 * time.Second)
	for try() != nil {
		if time.Now().After(deadline) {
			t.Fatalf("the breaker is still %s", q.Breaker())
		}
	}
}

func TestPanicIsOneOperationsFailure(t *testing.T) {
	first := true
	q := newQueue(t, Options{Workers: 1}, func(context.Context, reservation.MirrorOp) (reservation.Judgement, error) {
		if first {
			first = false
			panic("planted")
		}
		return reservation.Judgement{Decision: reservation.Granted}, nil
	})
	var r results
	q.Offer(r.job(newID(t)))
	q.Offer(r.job(newID(t)))
	if got := r.count(ErrPanic); got != 1 || len(r.errs) != 2 {
		t.Errorf("%d of %d jobs ended as a panic, want 1 of 2", got, len(r.errs))
	}
}

func TestOneReservationStaysInOrder(t *testing.T) {
	var mu sync.Mutex
	seen := map[reservation.ID][]reservation.Op{}
	q := newQueue(t, Options{Workers: 8}, func(_ context.Context, op reservation.MirrorOp) (reservation.Judgement, error) {
		mu.Lock()
		defer mu.Unlock()
		seen[op.Record.ID] = append(seen[op.Record.ID], op.Op)
		return reservation.Judgement{Decision: reservation.Granted}, nil
	})
	var r results
	want := reservation.Ops()
	for range 200 {
		id := newID(t)
		for _, op := range want {
			j := r.job(id)
			j.Op.Op = op
			q.Offer(j)
		}
	}
	r.wg.Wait()
	for id, ops := range seen {
		for i := range want {
			if ops[i] != want[i] {
				t.Fatalf("%s: operations came as %v", id, ops)
			}
		}
	}
}

func TestCloseHandsBackWhatItCannotDeliver(t *testing.T) {
	q, err := New(Options{Pod: "pod-1", Capacity: 32, Workers: 1, Deadline: time.Hour, Mirror: mirrorFunc(
		func(ctx context.Context, _ reservation.MirrorOp) (reservation.Judgement, error) {
			<-ctx.Done()
			return reservation.Judgement{}, ctx.Err()
		})})
	if err != nil {
		t.Fatal(err)
	}
	var r results
	for range 10 {
		q.Offer(r.job(newID(t)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if n, ids := q.Undelivered(); n != 10 || len(ids) != 10 {
		t.Errorf("%d operations are on record as undelivered, %d by id: want 10", n, len(ids))
	}
	q.Offer(r.job(newID(t)))
	if got := r.count(ErrShutdown); got != 11 {
		t.Errorf("%d jobs ended as shutdown, want 11", got)
	}
}
