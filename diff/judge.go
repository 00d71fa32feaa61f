package diff

import (
	"context"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// waiting is an unequal pair that waits until it has settled.
type waiting struct {
	span          *Span
	verdict       Verdict
	due, deadline time.Time
	// reads holds the levels read once settled; they are judged when every operation that began before the end of
	// the reading is known.
	reads []reading
	ex    Explanation
	// near is what other routers did around the pair; nil until it was looked up.
	near *neighbourhood
}

// reading is one look at a bucket in both stores.
type reading struct {
	bucket       reservation.Bucket
	redis, mysql int64
	from, to     time.Time
}

// judgeDue moves every due pair on by one step. force judges pairs before they are due.
func (e *Engine) judgeDue(ctx context.Context, now time.Time, force bool) {
	e.judging.Lock()
	defer e.judging.Unlock()
	e.mu.Lock()
	due := make([]*waiting, 0, len(e.pending))
	for _, w := range e.pending {
		if force || !now.Before(w.due) {
			due = append(due, w)
		}
	}
	e.mu.Unlock()
	done := map[*waiting]Explanation{}
	for _, w := range due {
		if ex, ok := e.judge(ctx, w, now); ok {
			done[w] = ex
		}
	}
	if len(done) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := e.pending[:0]
	for _, w := range e.pending {
		if ex, ok := done[w]; ok {
			e.conclude(w.span, w.verdict, ex)
		} else {
			kept = append(kept, w)
		}
	}
	clear(e.pending[len(kept):])
	e.pending = kept
}

// judge explains one pair, or says that it must wait.
func (e *Engine) judge(ctx context.Context, w *waiting, now time.Time) (Explanation, bool) {
	if !w.verdict.availability() {
		return Explanation{Kind: None, Note: "a difference of this kind has no explanation"}, true
	}
	p := &w.span.pair
	if w.reads == nil {
		e.resolveBlind(ctx)
		if e.mustWait(p.Mirror.Ended) || !e.noticed(p) && now.Before(w.deadline) {
			return Explanation{}, false
		}
		ex, buckets := e.explain(ctx, w)
		if ex.Kind == None {
			return ex, true
		}
		w.ex = ex
		reads, err := e.read(ctx, buckets)
		if err != nil {
			if now.After(w.deadline) {
				return none("the stores could not be read once settled: %v", err), true
			}
			return Explanation{}, false
		}
		w.reads = reads
	}
	ex, ok := e.agreement(w, now)
	if ok && ex.Kind == None && e.behind(ctx, w) {
		ex.Kind = Unseen
		ex.Note += "; another router has counted gaps, which may account for it until catch-up has closed them"
	}
	return ex, ok
}

// mustWait tells whether an operation that began before t is still on its way to its decision.
func (e *Engine) mustWait(t time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live.undecidedBefore(t)
}

// readTimeout bounds one look at the stores: a store that hangs must not hold up the judging of other pairs for long.
const readTimeout = 2 * time.Second

// read looks at every bucket in both stores.
func (e *Engine) read(ctx context.Context, buckets []reservation.Bucket) ([]reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	reads := make([]reading, 0, len(buckets))
	for _, b := range buckets {
		from := e.now()
		redis, mysql, err := e.opt.Stores.Levels(ctx, b)
		if err != nil {
			return nil, err
		}
		reads = append(reads, reading{b, redis, mysql, from, e.now()})
	}
	return reads, nil
}

// agreement checks the settled readings. Quiet buckets must agree to the unit. Until the deadline a busy one is
// read again; after it, the difference must be what the operations under way account for. Where other routers are
// alive, a bucket that does not agree may be busy with theirs, and is read again too.
func (e *Engine) agreement(w *waiting, now time.Time) (Explanation, bool) {
	if e.mustWait(w.reads[len(w.reads)-1].to) {
		return Explanation{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	late, busy := !now.Before(w.deadline), false
	for i, r := range w.reads {
		ev := &w.ex.Buckets[i]
		ev.SettledTruth, ev.SettledMirror = w.span.pair.sides(r.redis, r.mysql)
		lo, hi, moving := e.underWay(w, r)
		if d := r.redis - r.mysql; lo <= d && d <= hi {
			busy = busy || moving
			continue
		}
		if !late && e.others.within(r.from.Add(-e.lookback()), r.to) {
			busy = true
			continue
		}
		w.ex.Kind = None
		w.ex.Note = fmt.Sprintf("bucket %s: once settled the truth has %d and the mirror %d", r.bucket, ev.SettledTruth, ev.SettledMirror)
		return w.ex, true
	}
	if busy && !late {
		w.reads = nil // look again when it is quieter
		return Explanation{}, false
	}
	return w.ex, true
}

// underWay bounds what the operations under way add to a reading's difference, and tells whether waiting would end it.
// A gap is not ended by waiting but by catch-up. The caller holds the lock.
func (e *Engine) underWay(w *waiting, r reading) (lo, hi int64, moving bool) {
	look := window{r.from, r.to}
	for _, en := range e.entries(r.bucket) {
		l, h := contribution(en, stores[window]{look, look})
		lo, hi = lo+l, hi+h
		switch {
		case l == h:
		case !en.span.gap:
			moving = true
		case w.ex.Kind == Race:
			w.ex.Kind = Gap
		}
	}
	return lo, hi, moving
}
