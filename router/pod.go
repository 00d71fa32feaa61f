package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// Reader is a store as reads see it.
type Reader interface {
	Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error)
	Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error)
}

// PodOptions configure a Pod.
type PodOptions struct {
	ID    string
	Shops []ShopRange
	// Stamp is the epoch and stage of the pod's fences.
	Stamp  reservation.Stamp
	Limits reservation.Limits
	// Truth decides; Mirror and Other are the store that follows, both nil where the stage has none.
	Truth  reservation.Store
	Mirror reservation.Mirror
	Other  Reader
	// Queue and Diff tune the mirror and the comparison; pod, stores, logger and registerer are filled in.
	Queue shadow.Options
	Diff  diff.Options
	// SweepEvery is the pause between sweeps. Default 200 ms. SweepBatch is how many records one takes. Default 500.
	SweepEvery time.Duration
	SweepBatch int
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o *PodOptions) defaults() {
	if o.SweepEvery == 0 {
		o.SweepEvery = 200 * time.Millisecond
	}
	if o.SweepBatch == 0 {
		o.SweepBatch = 500
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
}

func (o *PodOptions) validate() error {
	switch {
	case o.ID == "":
		return errors.New("router: PodOptions.ID is empty")
	case o.Truth == nil:
		return fmt.Errorf("router: pod %s has no store that decides", o.ID)
	case !Serves(o.Stamp.Stage):
		return notServed(o.ID, o.Stamp.Stage)
	case o.Stamp.Stage.DualWrite() && (o.Mirror == nil || o.Other == nil):
		return fmt.Errorf("router: pod %s is in stage %s and has no mirror", o.ID, o.Stamp.Stage)
	default:
		return nil
	}
}

// ErrNotServed: this version cannot carry operations in the pod's stage.
var ErrNotServed = errors.New("this version serves the stages legacy and shadow")

// Serves tells whether this version carries operations in a stage.
func Serves(s reservation.Stage) bool { return s == reservation.Legacy || s == reservation.Shadow }

func notServed(pod string, s reservation.Stage) error {
	return fmt.Errorf("pod %s is in stage %s: %w", pod, s, ErrNotServed)
}

// Pod is one pod as a router serves it.
type Pod struct {
	opt    PodOptions
	queue  *shadow.Queue // nil where the stage has no mirror
	engine *diff.Engine  // nil where nothing is compared

	cancel     context.CancelFunc
	background sync.WaitGroup
}

// NewPod makes a pod. Start starts its sweeps and comparisons.
func NewPod(opt PodOptions) (*Pod, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	p := &Pod{opt: opt}
	if !opt.Stamp.Stage.DualWrite() {
		return p, nil
	}
	d := opt.Diff
	d.Pod, d.Stores, d.Logger, d.Registerer = opt.ID, both{opt.Truth, opt.Other}, opt.Logger, opt.Registerer
	engine, err := diff.New(d)
	if err != nil {
		return nil, err
	}
	q := opt.Queue
	q.Pod, q.Mirror, q.Logger, q.Registerer = opt.ID, opt.Mirror, opt.Logger, opt.Registerer
	queue, err := shadow.New(q)
	if err != nil {
		return nil, err
	}
	p.engine, p.queue = engine, queue
	return p, nil
}

// both reads the two stores for the comparison.
type both struct{ truth, mirror Reader }

func (l both) Lines(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Line, error) {
	rec, err := l.truth.Get(ctx, shop, id)
	return rec.Lines, err
}

func (l both) Levels(ctx context.Context, b reservation.Bucket) (truth, mirror int64, err error) {
	t, err := l.truth.Availability(ctx, b)
	if err != nil {
		return 0, 0, err
	}
	m, err := l.mirror.Availability(ctx, b)
	if err != nil {
		return 0, 0, err
	}
	return t.Available, m.Available, nil
}

// ID is the pod's id.
func (p *Pod) ID() string { return p.opt.ID }

// Stamp is the epoch and stage that the pod's writes carry.
func (p *Pod) Stamp() reservation.Stamp { return p.opt.Stamp }

// Queue is the mirror's queue; nil where the stage has no mirror.
func (p *Pod) Queue() *shadow.Queue { return p.queue }

// Engine is the comparison; nil where nothing is compared.
func (p *Pod) Engine() *diff.Engine { return p.engine }

// Start starts the pod's sweeps and comparisons.
func (p *Pod) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.background.Go(func() { p.sweepLoop(ctx) })
	if p.engine != nil {
		p.background.Go(func() { p.engine.Run(ctx) })
	}
}

// Close stops the sweeps, carries the queue to the mirror until the context ends, and stops the comparisons.
func (p *Pod) Close(ctx context.Context) error {
	if p.cancel != nil {
		p.cancel()
	}
	p.background.Wait()
	if p.queue == nil {
		return nil
	}
	err := p.queue.Close(ctx)
	flush, cancel := context.WithTimeout(ctx, lastFlush)
	defer cancel()
	return errors.Join(err, p.engine.Flush(flush))
}

// lastFlush bounds the last flush of the tallies: a MySQL that hangs must not hold up the end of the process.
const lastFlush = 2 * time.Second
