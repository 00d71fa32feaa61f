package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/twinhold/twinhold/reservation"
)

// loop is one load at work. Closed, each caller calls again once it was answered. Open, calls are due at a fixed rate
// whatever the answers, the next free caller takes the next that is due, and its latency counts from then.
type loop struct {
	job  Job
	load Load
	s    session
	w    window

	next atomic.Uint64 // hold to be claimed
	due  chan time.Time

	mu      sync.Mutex
	all     Tally
	hist    *hdrhistogram.Histogram
	lastOut time.Time // when the holds ran out
}

func newLoop(j Job, l Load, s session, w window) *loop {
	p := &loop{job: j, load: l, s: s, w: w, hist: newHistogram()}
	p.next.Store(l.First)
	if l.Rate > 0 {
		p.due = make(chan time.Time, int(l.Rate*w.end.Sub(w.start).Seconds())+1) // the pacer never waits
	}
	return p
}

func (p *loop) run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make(chan error, p.load.Callers)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if p.due != nil {
		wg.Go(func() { p.pace(ctx) })
	}
	for n := range p.load.Callers {
		c := p.newCaller(n)
		wg.Go(func() {
			if err := c.run(ctx); err != nil {
				errs <- err
				cancel(err) // one that fails ends the others
			}
			p.add(c)
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// pace says when each call is due, and ends with the window.
func (p *loop) pace(ctx context.Context) {
	defer close(p.due)
	gap := time.Duration(float64(time.Second) / p.load.Rate)
	for at := p.w.start; at.Before(p.w.end) && ctx.Err() == nil; at = at.Add(gap) {
		sleepUntil(at)
		select {
		case p.due <- at:
		default:
			return // more than the window can hold
		}
	}
}

// tally gives what all callers saw. Calls that were due and that nobody came to take are counted in with the time that
// they have waited: else an overload would look the better the worse it is.
func (p *loop) tally() (Tally, error) {
	if p.due != nil {
		for at := range p.due {
			if !at.Before(p.w.begin) {
				record(p.hist, p.w.end.Sub(at))
			}
		}
	}
	t := p.all
	ended := p.w.end
	if !p.lastOut.IsZero() && p.lastOut.Before(ended) {
		ended, t.RanOut = p.lastOut, true
	}
	t.Elapsed, t.Span = max(ended.Sub(p.w.begin), 0), ended.Sub(p.w.start)
	var err error
	t.Latency, err = encodeHistogram(p.hist)
	return t, err
}

func (p *loop) add(c *caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.Ops += c.t.Ops
	p.all.Granted += c.t.Granted
	p.all.Rejected += c.t.Rejected
	p.all.Claimed += c.t.Claimed
	p.all.Released += c.t.Released
	p.all.Replayed += c.t.Replayed
	p.all.Again += c.t.Again
	p.all.All += c.t.All
	for _, d := range c.latencies {
		record(p.hist, d)
	}
	if c.out.After(p.lastOut) {
		p.lastOut = c.out
	}
}

// caller is one of a load's.
type caller struct {
	p    *loop
	rnd  *rand.Rand
	pick *picker

	last      call
	lastReply reply
	t         Tally
	latencies []time.Duration
	out       time.Time
}

func (p *loop) newCaller(n int) *caller {
	seed := rand.Uint64()
	return &caller{
		p: p, rnd: rand.New(rand.NewPCG(seed, uint64(n))), pick: newPicker(p.job.Buckets, p.job.Skew, seed),
		latencies: make([]time.Duration, 0, 4096),
	}
}

// errRanOut: there is no hold left to claim.
var errRanOut = errors.New("no hold is left to claim")

func (c *caller) run(ctx context.Context) error {
	for {
		due, more := c.nextDue()
		if !more {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := c.one(ctx)
		if errors.Is(err, errRanOut) {
			c.out = time.Now()
			return nil
		}
		if err != nil {
			return err
		}
		c.count(due, time.Now())
	}
}

// nextDue is now in a closed loop, and when the next call is due in an open one.
func (c *caller) nextDue() (time.Time, bool) {
	if c.p.due != nil {
		at, more := <-c.p.due
		return at, more && time.Now().Before(c.p.w.end)
	}
	now := time.Now()
	return now, now.Before(c.p.w.end)
}

// count counts a call that was answered inside the window.
func (c *caller) count(due, done time.Time) {
	c.t.All++
	w := c.p.w
	if done.Before(w.begin) || done.After(w.end) {
		return
	}
	c.t.Ops++
	if c.p.due == nil || !due.Before(w.begin) {
		c.latencies = append(c.latencies, done.Sub(due))
	}
}

// one carries out one call: a new one, or the last one again.
func (c *caller) one(ctx context.Context) error {
	repeat := c.p.job.Retries > 0 && c.last.key != "" && c.rnd.Float64() < c.p.job.Retries
	cl := c.last
	if !repeat {
		var err error
		if cl, err = c.fresh(); err != nil {
			return err
		}
	} else if c.p.load.Kind != claimLoad {
		id, err := reservation.NewID() // a retry reaches the store under an id of its own
		if err != nil {
			return err
		}
		cl.id = id
	}
	r, err := c.send(ctx, func() (reply, error) { return c.sendOnce(ctx, cl) })
	switch {
	case err != nil:
		return err
	case repeat && (!r.replayed || r.answer != c.lastReply.answer):
		return fmt.Errorf("key %s was sent again and carried out again", cl.key)
	case repeat:
		c.t.Replayed++
		return nil
	}
	c.last, c.lastReply = cl, r
	c.told(r.answer)
	if c.p.load.Kind == pairLoad && r.answer == granted {
		return c.giveBack(ctx, cl)
	}
	return nil
}

// giveBack is the second half of a pair.
func (c *caller) giveBack(ctx context.Context, cl call) error {
	s, ok := c.p.s.(releaser)
	if !ok {
		return errors.New("this scheme has no releases")
	}
	r, err := c.send(ctx, func() (reply, error) { return s.release(ctx, cl.id) })
	if err != nil {
		return err
	}
	c.told(r.answer)
	return nil
}

func (c *caller) told(a answer) {
	switch a {
	case granted:
		c.t.Granted++
	case rejected:
		c.t.Rejected++
	case claimed:
		c.t.Claimed++
	case released:
		c.t.Released++
	}
}

func (c *caller) fresh() (call, error) {
	if c.p.load.Kind == claimLoad {
		n := c.p.next.Add(1) - 1
		if n >= c.p.load.Last {
			return call{}, errRanOut
		}
		id := holdID(c.p.load.Seed, n)
		return call{id: id, key: "hold"}, nil
	}
	id, err := reservation.NewID()
	if err != nil {
		return call{}, err
	}
	return call{id: id, key: id.String(), bucket: c.pick.next()}, nil
}

// patience is how long a caller sends one call again.
const patience = 20 * time.Second

// send sends a call, again with the same key while its outcome is unknown, as a caller of the service would.
func (c *caller) send(ctx context.Context, once func() (reply, error)) (reply, error) {
	began := time.Now()
	for {
		r, err := once()
		if err == nil || reservation.CodeOf(err) != reservation.CodeUnavailable || time.Since(began) > patience {
			return r, err
		}
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		c.t.Again++
		if err := wait(ctx, time.Millisecond); err != nil {
			return r, err
		}
	}
}

func (c *caller) sendOnce(ctx context.Context, cl call) (reply, error) {
	if c.p.load.Kind == claimLoad {
		s, ok := c.p.s.(claimer)
		if !ok {
			return reply{}, errors.New("this scheme has no claims")
		}
		return s.claim(ctx, cl.id)
	}
	return c.p.s.reserve(ctx, cl)
}
