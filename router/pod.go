package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// Pod is one pod as a router serves it.
type Pod struct {
	opt     PodOptions
	tuning  atomic.Pointer[Tuning]
	queue   *shadow.Queue
	engine  *diff.Engine
	metrics *metrics

	believing sync.Mutex // one change of belief at a time
	fence     atomic.Pointer[reservation.Fence]

	cut atomic.Pointer[string] // why the router goes on without Redis; nil: it does not
	// The two fences as they were last read, for their brakes: one that only the store which does not decide carries
	// counts too.
	seen             [2]atomic.Pointer[reservation.Fence]
	suspect          atomic.Bool // Redis has to be restored
	redisOK, mysqlOK atomic.Bool
	mysqlEpoch       atomic.Uint64 // the highest epoch that MySQL's fence is known to carry
	marks            atomic.Bool   // marks are outstanding, as far as is known
	clear            atomic.Uint64 // the epoch in which MySQL was seen without marks
	skipped          atomic.Int64  // look-ups of marks that were not had
	known            atomic.Bool   // it has sent a heartbeat

	// Signals, 1 deep: the loop that they wake looks at the state itself.
	raise, restoring chan struct{}

	cancel     context.CancelFunc
	background sync.WaitGroup
}

// NewPod makes a pod. Start starts its heartbeats, sweeps and comparisons.
func NewPod(opt PodOptions) (*Pod, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	p := &Pod{opt: opt, metrics: newMetrics(opt.Registerer, opt.ID), raise: make(chan struct{}, 1), restoring: make(chan struct{}, 1)}
	p.fence.Store(&opt.Fence)
	p.Tune(opt.Tuning)
	p.redisOK.Store(true)
	p.mysqlOK.Store(true)
	p.metrics.epoch.Set(float64(opt.Fence.Epoch))
	p.metrics.stage.Set(float64(opt.Fence.Stage))
	d := opt.Diff
	d.Pod, d.Stores, d.Logger, d.Registerer = opt.ID, both{p}, opt.Logger, opt.Registerer
	engine, err := diff.New(d)
	if err != nil {
		return nil, err
	}
	q := opt.Queue
	q.Pod, q.Mirror, q.Logger, q.Registerer = opt.ID, opt.Mirrors, opt.Logger, opt.Registerer
	queue, err := shadow.New(q)
	if err != nil {
		return nil, err
	}
	p.engine, p.queue = engine, queue
	if opt.MySQLFence.Epoch != 0 {
		p.heardMySQL(opt.MySQLFence)
	}
	return p, nil
}

// Tune changes what may change while the pod serves.
func (p *Pod) Tune(t Tuning) {
	t = t.withDefaults()
	p.tuning.Store(&t)
}

// tune is the tuning of now. Treat it as read-only.
func (p *Pod) tune() *Tuning { return p.tuning.Load() }

// ID is the pod's id.
func (p *Pod) ID() string { return p.opt.ID }

// Queue is the way to the store that follows.
func (p *Pod) Queue() *shadow.Queue { return p.queue }

// Engine is the comparison.
func (p *Pod) Engine() *diff.Engine { return p.engine }

// wake signals a loop without waiting for it.
func (p *Pod) wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// Start starts the pod's heartbeats, sweeps, catch-up and comparisons.
func (p *Pod) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	for _, loop := range []func(context.Context){p.beatLoop, p.othersLoop, p.mysqlLoop, p.restoreLoop, p.sweepLoop, p.purgeLoop, p.drainLoop, p.catchUpLoop, p.quickLoop, p.engine.Run} {
		p.background.Go(func() { loop(ctx) })
	}
}

// leaveTimeout bounds the last word to Redis.
const leaveTimeout = 500 * time.Millisecond

// Close stops the background work, carries the queue to the mirror until the context ends, stops the comparisons, and
// takes the router's heartbeat away.
func (p *Pod) Close(ctx context.Context) error {
	if p.cancel != nil {
		p.cancel()
	}
	p.background.Wait()
	err := p.queue.Close(ctx)
	flush, cancel := context.WithTimeout(ctx, lastFlush)
	defer cancel()
	err = errors.Join(err, p.engine.Flush(flush))
	if p.known.Load() {
		leave, done := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer done()
		_ = p.opt.Redis.Leave(leave, p.opt.Name) // else it is a laggard until its last heartbeat is forgotten
	}
	return err
}

// lastFlush bounds the last flush of the tallies: a MySQL that hangs must not hold up the end of the process.
const lastFlush = 2 * time.Second

// both reads the two stores for the comparison.
type both struct{ p *Pod }

// Lines reads a reservation's lines from the truth, or else from the other store.
func (b both) Lines(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Line, error) {
	rec, err := b.p.truth().Get(ctx, shop, id)
	if err == nil {
		return rec.Lines, nil
	}
	other := Reader(b.p.opt.MySQL)
	if b.p.Stamp().Stage.Truth() == reservation.MySQL {
		other = b.p.opt.Redis
	}
	if rec, otherErr := other.Get(ctx, shop, id); otherErr == nil {
		return rec.Lines, nil
	}
	return nil, err
}

// Levels reads what both stores have available in a bucket.
func (b both) Levels(ctx context.Context, bucket reservation.Bucket) (redis, mysql int64, err error) {
	t, err := b.p.opt.Redis.Availability(ctx, bucket)
	if err != nil {
		return 0, 0, err
	}
	m, err := b.p.opt.MySQL.Availability(ctx, bucket)
	if err != nil {
		return 0, 0, err
	}
	return t.Available, m.Available, nil
}

// truth is the store that reads are answered from.
func (p *Pod) truth() Reader {
	if p.Stamp().Stage.Truth() == reservation.MySQL {
		return p.opt.MySQL
	}
	return p.opt.Redis
}

// Tuning gives what may change while the pod serves, as it is now.
func (p *Pod) Tuning() Tuning { return *p.tune() }
