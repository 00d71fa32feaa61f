package diff

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// Stores reads both stores, in the background only.
type Stores interface {
	// Levels reads what both have available in a bucket, for the check that they agree once settled.
	Levels(ctx context.Context, b reservation.Bucket) (redis, mysql int64, err error)
	// Lines reads a reservation's lines, of an operation that never heard from its truth: from the store that decides
	// now, or else from the other.
	Lines(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Line, error)
}

// Options configure an Engine.
type Options struct {
	// Pod is the pod's id, in records, tallies and metrics.
	Pod string
	// Stores reads both stores.
	Stores Stores
	// Settle is how long an unequal pair waits before it is judged again. Default 1 s.
	Settle time.Duration
	// MaxSettle is how long it waits at most for its buckets to fall quiet. Default 30 s.
	MaxSettle time.Duration
	// MaxPending bounds the unequal pairs that wait; more count as unexplained at once. Default 4096.
	MaxPending int
	// MaxSamples bounds the samples kept per verdict; what is left out is counted. Default 20.
	MaxSamples int
	// Nearby finds what the pod's other routers did; nil: nothing of theirs can be looked at. See Nearby.
	Nearby NearbyFunc
	// Sink takes the tallies every FlushEvery (default 1 s); nil keeps them in memory only.
	Sink       TallySink
	FlushEvery time.Duration
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o *Options) defaults() {
	if o.Settle == 0 {
		o.Settle = time.Second
	}
	if o.MaxSettle == 0 {
		o.MaxSettle = 30 * time.Second
	}
	if o.MaxPending == 0 {
		o.MaxPending = 4096
	}
	if o.MaxSamples == 0 {
		o.MaxSamples = 20
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

func (o *Options) validate() error {
	if o.Pod == "" {
		return errors.New("diff: Options.Pod is empty")
	}
	if o.Stores == nil {
		return errors.New("diff: Options.Stores is nil")
	}
	if o.Settle < 0 || o.MaxSettle < o.Settle || o.MaxPending < 0 || o.MaxSamples < 0 {
		return errors.New("diff: Options: Settle, MaxSettle, MaxPending and MaxSamples must be positive, MaxSettle at least Settle")
	}
	return nil
}

// Engine compares one pod's operations. Start its Run in a goroutine of the owner's; Settle judges all that waits.
type Engine struct {
	opt     Options
	metrics *metrics

	flushing sync.Mutex // one flush at a time
	judging  sync.Mutex // one round of judging at a time: it owns what waiting pairs gather

	mu      sync.Mutex
	tally   *counts
	live    spanList // begun, not finished or waiting to be judged; in order of Begin
	buckets map[reservation.Bucket]*bucketLog
	voids   map[reservation.ID]*Span // void holds whose end has not come yet
	blind   []*Span                  // operations without an answer whose lines are not known yet
	gaps    map[reservation.ID]time.Time
	lastGap time.Time // when the last one began that no cover has closed for sure; zero: none is open
	pending []*waiting
	samples []Sample
	changes []stageChange // of the pod's stage, the last ones
	others  others        // the pod's other routers
}

// New makes an engine.
func New(opt Options) (*Engine, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	return &Engine{
		opt:     opt,
		metrics: newMetrics(opt.Registerer, opt.Pod),
		tally:   newCounts(),
		buckets: map[reservation.Bucket]*bucketLog{},
		voids:   map[reservation.ID]*Span{},
		gaps:    map[reservation.ID]time.Time{},
	}, nil
}

func (e *Engine) now() time.Time { return e.opt.Now() }

// Begin counts a validated operation and starts to follow it.
func (e *Engine) Begin(op reservation.Op) *Span { return e.BeginAt(op, e.now()) }

// BeginAt is Begin for an operation that started earlier, such as one of a sweep.
func (e *Engine) BeginAt(op reservation.Op, at time.Time) *Span {
	s := &Span{engine: e, began: at}
	s.pair.Pod, s.pair.Op = e.opt.Pod, op
	e.metrics.operations.WithLabelValues(op.String()).Inc()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tally.add(op, kindOperations, "", 1)
	e.live.push(s)
	return s
}

// register files a decided operation under the buckets whose availability it moves. The caller holds the lock.
func (e *Engine) register(s *Span, effects []effect) {
	s.effects, s.decided = effects, true
	if len(effects) == 0 {
		return
	}
	oldest := e.oldest()
	for _, ef := range effects {
		log := e.buckets[ef.bucket]
		if log == nil {
			log = &bucketLog{}
			e.buckets[ef.bucket] = log
		}
		log.add(entry{span: s, delta: ef.delta, maybe: ef.maybe}, oldest)
	}
}

func (e *Engine) compared(s *Span, at time.Time) {
	s.replayed()
	if err := s.pair.validate(); err != nil {
		e.opt.Logger.Error("a pair could not be compared", "pod", e.opt.Pod, "op", s.pair.Op.String(), "err", err)
		e.gapped(s, GapIncoherent)
		return
	}
	verdict := Compare(&s.pair)
	e.metrics.compared.WithLabelValues(s.pair.Op.String(), verdict.String()).Inc()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.finish(s, at) {
		return
	}
	e.tally.add(s.pair.Op, kindVerdict, verdict.String(), 1)
	if !s.pair.Replayed {
		e.tally.add(s.pair.Op, kindFirst, s.answer().String(), 1)
	}
	e.tally.latency(s)
	if verdict == Match {
		e.live.remove(s)
		return
	}
	if len(e.pending) >= e.opt.MaxPending {
		e.conclude(s, verdict, Explanation{Kind: None, Note: "too many differences at once to examine this one"})
		return
	}
	e.pending = append(e.pending, &waiting{span: s, verdict: verdict, due: at.Add(e.opt.Settle), deadline: at.Add(e.opt.MaxSettle)})
}

func (e *Engine) gapped(s *Span, reason GapReason) {
	e.metrics.gaps.WithLabelValues(s.pair.Op.String(), string(reason)).Inc()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.gap, s.gapAt = true, e.now()
	if !e.finish(s, time.Time{}) {
		return
	}
	e.lastGap = later(e.lastGap, s.gapAt)
	if s.pair.ID != (reservation.ID{}) && len(e.gaps) < maxGaps {
		e.gaps[s.pair.ID] = s.gapAt
	}
	e.tally.add(s.pair.Op, kindGap, string(reason), 1)
	if !s.pair.Replayed && s.pair.Truth.Decision != 0 {
		e.tally.add(s.pair.Op, kindFirst, s.pair.Truth.Decision.String(), 1)
	}
	e.live.remove(s)
}

// maxGaps bounds the reservations with a gap that are remembered until catch-up has closed them. What is beyond it is
// found by catch-up without a known cause, and counts: such an outage is worth a look.
const maxGaps = 1 << 20

// finish closes a span once; at is when its last step was over, zero for a gap. A second end would count the operation
// twice, so it is reported and ignored. The caller holds the lock.
func (e *Engine) finish(s *Span, at time.Time) bool {
	if s.finished {
		e.opt.Logger.Error("an operation ended twice", "pod", e.opt.Pod, "op", s.pair.Op.String(), "id", s.pair.ID)
		return false
	}
	s.finished, s.decided = true, true
	if !at.IsZero() {
		s.mirrored(at)
		e.closeVoid(s, at)
		e.carried(s)
	}
	return true
}

// closeVoid keeps the account of holds that reached the mirror past their expiry. Such a hold takes nothing there, and
// its end gives nothing back; if it is claimed in time all the same, the claim takes it. So until its end is known the
// mirror's half is open, and then both halves came somewhere between the two.
func (e *Engine) closeVoid(s *Span, at time.Time) {
	mirror := other(s.pair.truth())
	if s.void {
		e.voids[s.pair.ID] = s
		s.traces.of(mirror).take.to = time.Time{}
		return
	}
	hold, ok := e.voids[s.pair.ID]
	if !ok || s.pair.Op == reservation.OpReserve {
		return
	}
	delete(e.voids, s.pair.ID)
	its := other(hold.pair.truth())
	hold.traces.of(its).end(at)
	if its == mirror {
		s.traces.of(mirror).take.from = hold.traces.of(its).take.from
	}
}

// conclude counts an unequal pair's explanation. The caller holds the lock.
func (e *Engine) conclude(s *Span, v Verdict, ex Explanation) {
	e.live.remove(s)
	if ex.Kind == None {
		e.tally.add(s.pair.Op, kindUnexplained, v.String(), 1)
		e.opt.Logger.Warn("unexplained difference", "pod", e.opt.Pod, "op", s.pair.Op.String(), "id", s.pair.ID,
			"verdict", v.String(), "truth", sideName(s.pair.Truth), "mirror", sideName(s.pair.Mirror), "note", ex.Note)
	} else {
		e.tally.add(s.pair.Op, kindExplained, string(ex.Kind), 1)
	}
	e.metrics.explained.WithLabelValues(s.pair.Op.String(), v.String(), string(ex.Kind)).Inc()
	e.keep(s, v, ex)
}

// Run judges settled pairs and flushes the tallies until the context ends. The owner flushes once more at the end.
func (e *Engine) Run(ctx context.Context) {
	judge := time.NewTicker(max(e.opt.Settle/4, time.Millisecond))
	defer judge.Stop()
	flush := time.NewTicker(e.opt.FlushEvery)
	defer flush.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-judge.C:
			e.judgeDue(ctx, e.now(), false)
		case <-flush.C:
			bounded, cancel := context.WithTimeout(ctx, e.opt.FlushEvery)
			if err := e.Flush(bounded); err != nil && ctx.Err() == nil {
				e.opt.Logger.Warn("tallies could not be flushed, they are kept", "pod", e.opt.Pod, "err", err)
			}
			cancel()
		}
	}
}

// Settle judges every pair that waits, as soon as the operations that overlap it have ended, and returns once none
// waits. It is meant for the end of a run, after the mirror's queue has been drained.
func (e *Engine) Settle(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		e.judgeDue(ctx, e.now(), true)
		if e.Pending() == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Pending is the number of unequal pairs that wait to be judged.
func (e *Engine) Pending() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pending)
}
