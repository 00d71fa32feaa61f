package shadow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"github.com/twinhold/twinhold/reservation"
)

// Why an operation was not delivered. A store's own errors come as they are.
var (
	ErrQueueFull   = errors.New("the mirror's queue is full")
	ErrBreakerOpen = errors.New("the mirror's breaker is open")
	ErrShutdown    = errors.New("the router is stopping")
	ErrPanic       = errors.New("the mirror's code panicked")
)

// Job is one operation on its way to the mirror.
type Job struct {
	Stamp reservation.Stamp
	Op    reservation.MirrorOp
	// Begin is called when the mirror starts on the operation. It may be nil.
	Begin func()
	// Done is called exactly once, with the judgement or with the reason why there is none.
	Done func(reservation.Judgement, error)
}

// Options configure a Queue.
type Options struct {
	Pod    string
	Mirror reservation.Mirror
	// Capacity bounds the operations that wait, over all workers. Default 8192.
	Capacity int
	// Workers is the mirror's budget of goroutines. Default 64: operations that wait share their transactions.
	Workers int
	// Deadline is how long the mirror may take over one operation, and as long again for every 250 lines of its
	// cart. Default 2 s.
	Deadline time.Duration
	// BreakerFailures in a row open the breaker. Default 5.
	BreakerFailures uint32
	// BreakerInterval is how long an open breaker waits before it lets a probe through. Default 1 s.
	BreakerInterval time.Duration
	// BreakerProbes is how many probes a half-open breaker lets through. Default 1.
	BreakerProbes uint32
	Logger        *slog.Logger
	Registerer    prometheus.Registerer
}

func (o *Options) defaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Capacity, 8192)
	def(&o.Workers, 64)
	if o.Deadline == 0 {
		o.Deadline = 2 * time.Second
	}
	if o.BreakerFailures == 0 {
		o.BreakerFailures = 5
	}
	if o.BreakerInterval == 0 {
		o.BreakerInterval = time.Second
	}
	if o.BreakerProbes == 0 {
		o.BreakerProbes = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
}

func (o *Options) validate() error {
	if o.Pod == "" || o.Mirror == nil {
		return errors.New("shadow: Options.Pod and Options.Mirror are needed")
	}
	if o.Workers < 1 || o.Capacity < o.Workers || o.Deadline < 0 || o.BreakerInterval < 0 {
		return errors.New("shadow: Options: Workers at least 1, Capacity at least Workers, times not negative")
	}
	return nil
}

// Queue is one pod's way to its mirror. Make it with New, end it with Close.
type Queue struct {
	opt     Options
	metrics *metrics
	breaker *gobreaker.CircuitBreaker[reservation.Judgement]
	shards  []chan Job
	depth   atomic.Int64
	workers sync.WaitGroup
	// base ends the mirror's work for good: Close cancels it once its own context ends.
	base   context.Context
	cancel context.CancelCauseFunc

	mu      sync.RWMutex // guards closed against Offer's send
	closed  bool
	lost    undelivered
	drained *signal
}

// New makes a queue and starts its workers.
func New(opt Options) (*Queue, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	q := &Queue{opt: opt, metrics: newMetrics(opt.Registerer, opt.Pod), shards: make([]chan Job, opt.Workers), drained: newSignal()}
	q.base, q.cancel = context.WithCancelCause(context.Background())
	q.breaker = newBreaker(opt, q.metrics)
	for i := range q.shards {
		// The bound is the product's: what does not fit is counted as a gap, by reason.
		q.shards[i] = make(chan Job, opt.Capacity/opt.Workers)
		q.workers.Go(func() { q.work(q.shards[i]) })
	}
	return q, nil
}

func newBreaker(opt Options, m *metrics) *gobreaker.CircuitBreaker[reservation.Judgement] {
	return gobreaker.NewCircuitBreaker[reservation.Judgement](gobreaker.Settings{
		Name:        opt.Pod,
		MaxRequests: opt.BreakerProbes,
		Timeout:     opt.BreakerInterval,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= opt.BreakerFailures },
		// A store that answered is well, whatever it said: a stale fence, a busy bucket and a refusal are answers.
		IsSuccessful:  func(err error) bool { return err == nil || answered(err) },
		IsExcluded:    func(err error) bool { return errors.Is(err, ErrShutdown) || errors.Is(err, context.Canceled) },
		OnStateChange: func(_ string, _, to gobreaker.State) { m.breaker.Set(float64(to)) },
	})
}

func answered(err error) bool {
	switch reservation.CodeOf(err) {
	case reservation.CodeUnavailable:
		var fence *reservation.FenceError
		return errors.Is(err, reservation.ErrBusy) || errors.Is(err, reservation.ErrFrozen) || errors.As(err, &fence)
	case reservation.CodeInternal:
		return false
	default:
		return true
	}
}

// Offer hands a job over without ever waiting. What cannot be taken is done at once, with the reason.
func (q *Queue) Offer(j Job) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		j.Done(reservation.Judgement{}, ErrShutdown)
		return
	}
	q.depth.Add(1)
	select {
	case q.shards[shardOf(j.Op.Record.ID, len(q.shards))] <- j:
		q.metrics.depth.Set(float64(q.depth.Load()))
	default:
		q.left()
		j.Done(reservation.Judgement{}, ErrQueueFull)
	}
}

// shardOf keeps the operations of one reservation in order. The id's last bytes are random.
func shardOf(id reservation.ID, n int) int {
	return int(binary.BigEndian.Uint32(id[12:]) % uint32(n)) //nolint:gosec // n is a small positive number of workers
}

func (q *Queue) left() {
	q.metrics.depth.Set(float64(q.depth.Add(-1)))
	q.drained.raise()
}

func (q *Queue) work(jobs <-chan Job) {
	for j := range jobs {
		q.carry(j)
		q.left()
	}
}

func (q *Queue) carry(j Job) {
	if q.base.Err() != nil {
		q.lost.note(j)
		j.Done(reservation.Judgement{}, ErrShutdown)
		return
	}
	began := time.Now()
	judgement, err := q.breaker.Execute(func() (reservation.Judgement, error) {
		if j.Begin != nil {
			j.Begin()
		}
		return q.mirror(j)
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		err = ErrBreakerOpen
	}
	q.metrics.seconds.WithLabelValues(resultOf(err)).Observe(time.Since(began).Seconds())
	j.Done(judgement, err)
}

func resultOf(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// mirror calls the store with a deadline of its own. A panic there is this operation's failure and nobody else's.
func (q *Queue) mirror(j Job) (judgement reservation.Judgement, err error) {
	defer func() {
		if p := recover(); p != nil {
			q.metrics.panics.Inc()
			q.opt.Logger.Error("the mirror panicked", "pod", q.opt.Pod, "op", j.Op.Op.String(), "id", j.Op.Record.ID, "panic", p)
			err = fmt.Errorf("%w: %v", ErrPanic, p)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(q.base, q.deadline(j.Op), context.DeadlineExceeded)
	defer cancel()
	judgement, err = q.opt.Mirror.Mirror(ctx, j.Stamp, j.Op)
	if err != nil && q.base.Err() != nil {
		q.lost.note(j)
		return judgement, ErrShutdown
	}
	if err != nil && ctx.Err() != nil {
		return judgement, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return judgement, err
}

// linesPerDeadline is how many lines a cart may have before it gets a second deadline's time, and so on: the work
// grows with the lines, and a wholesale cart has hundreds.
const linesPerDeadline = 250

func (q *Queue) deadline(op reservation.MirrorOp) time.Duration {
	return q.opt.Deadline * time.Duration(1+len(op.Record.Lines)/linesPerDeadline)
}

// Depth is the number of operations that wait or are under way.
func (q *Queue) Depth() int { return int(q.depth.Load()) }

// Capacity is the bound on Depth.
func (q *Queue) Capacity() int { return q.opt.Capacity }

// Breaker gives the breaker's state: closed, half-open or open.
func (q *Queue) Breaker() string { return q.breaker.State().String() }

// WaitBelow returns once fewer than n operations wait or are under way, or the context ends.
func (q *Queue) WaitBelow(ctx context.Context, n int) error {
	for {
		raised := q.drained.wait()
		if q.Depth() < n {
			return nil
		}
		select {
		case <-raised:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Drain returns once nothing waits or is under way.
func (q *Queue) Drain(ctx context.Context) error { return q.WaitBelow(ctx, 1) }

// Undelivered counts the operations that Close handed back as ErrShutdown, and names some of their reservations:
// catch-up has to bring them over.
func (q *Queue) Undelivered() (n int, ids []reservation.ID) { return q.lost.read() }

// Close takes no more jobs, carries out what it has until the context ends, and hands the rest back as ErrShutdown.
// It returns once every worker has ended, and puts what it handed back on record in the log.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	for _, s := range q.shards {
		close(s)
	}
	q.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { q.cancel(ErrShutdown) })
	defer stop()
	q.workers.Wait()
	q.cancel(ErrShutdown)
	if n, ids := q.lost.read(); n > 0 {
		q.opt.Logger.Warn("operations did not reach the mirror: catch-up has to bring them over", "pod", q.opt.Pod, "operations", n, "ids", ids)
	}
	return nil
}

// maxUndelivered bounds the ids that are kept of what could not be delivered.
const maxUndelivered = 100

// undelivered is what a queue had to give up when it closed.
type undelivered struct {
	mu  sync.Mutex
	n   int
	ids []reservation.ID
}

func (u *undelivered) note(j Job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n++; len(u.ids) < maxUndelivered {
		u.ids = append(u.ids, j.Op.Record.ID)
	}
}

func (u *undelivered) read() (n int, ids []reservation.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n, slices.Clone(u.ids)
}
