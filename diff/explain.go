package diff

import (
	"context"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// ExplanationKind says why two outcomes differ.
type ExplanationKind string

// The kinds. Only None counts against a pod.
const (
	None ExplanationKind = "none"
	// Race: overlapping operations near a bucket's end, and the stores agree once settled.
	Race ExplanationKind = "race"
	// Gap: an operation that the mirror had missed accounts for it.
	Gap ExplanationKind = "gap"
)

// Explanation is why two outcomes differ, with its evidence.
type Explanation struct {
	Kind ExplanationKind `json:"kind"`
	Note string          `json:"note,omitempty"`
	// Overlapping names the operations that overlapped the pair on the buckets that differ, MaxNamed at most.
	Overlapping []Overlap `json:"overlapping,omitempty"`
	// MoreOverlapping counts those that were left out of Overlapping.
	MoreOverlapping int `json:"more_overlapping,omitempty"`
	// Buckets holds the figures of each bucket that differs.
	Buckets []BucketEvidence `json:"buckets,omitempty"`
}

// Overlap names one overlapping operation.
type Overlap struct {
	Op     string `json:"op"`
	ID     string `json:"id"`
	Bucket string `json:"bucket"`
	Delta  int64  `json:"delta"`
	Gap    bool   `json:"gap,omitempty"`
}

// BucketEvidence is what both stores saw in a bucket, then and once settled.
type BucketEvidence struct {
	Bucket        string `json:"bucket"`
	Requested     int64  `json:"requested"`
	TruthSaw      int64  `json:"truth_saw"`
	MirrorSaw     int64  `json:"mirror_saw"`
	SettledTruth  int64  `json:"settled_truth"`
	SettledMirror int64  `json:"settled_mirror"`
}

// MaxNamed bounds the overlapping operations that an explanation names.
const MaxNamed = 10

// waiting is an unequal pair that waits until it has settled.
type waiting struct {
	span          *Span
	verdict       Verdict
	due, deadline time.Time
	// reads holds the levels read once settled; they are judged when every operation that began before the end of
	// the reading is known.
	reads []reading
	ex    Explanation
}

// reading is one look at a bucket in both stores.
type reading struct {
	bucket        reservation.Bucket
	truth, mirror int64
	from, to      time.Time
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
		if e.mustWait(p.Mirror.Ended) {
			return Explanation{}, false
		}
		ex, buckets := e.examine(w)
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
	return e.agreement(w, now)
}

// mustWait tells whether an operation that began before t is still on its way to its decision.
func (e *Engine) mustWait(t time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live.undecidedBefore(t)
}

func none(format string, args ...any) Explanation {
	return Explanation{Kind: None, Note: fmt.Sprintf(format, args...)}
}

// examine checks each store's decision against what it saw, and what they saw against the operations in between.
func (e *Engine) examine(w *waiting) (Explanation, []reservation.Bucket) {
	p := &w.span.pair
	lines := p.Lines
	ex := Explanation{Kind: Race}
	var buckets []reservation.Bucket
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range lines {
		b := l.Bucket(p.Shop)
		t, tok := p.Truth.level(b)
		m, mok := p.Mirror.level(b)
		if !tok || !mok {
			continue
		}
		if (t < l.Quantity) == (m < l.Quantity) {
			continue
		}
		ev := BucketEvidence{Bucket: b.String(), Requested: l.Quantity, TruthSaw: t, MirrorSaw: m}
		ex.Buckets = append(ex.Buckets, ev)
		buckets = append(buckets, b)
		kind := e.account(&ex, w.span, b, t-m)
		if kind == None {
			ex.Kind, ex.Note = None, fmt.Sprintf("bucket %s: the truth saw %d, the mirror %d, and no overlapping operations account for it", b, t, m)
			return ex, nil
		}
		if kind == Gap {
			ex.Kind = Gap
		}
	}
	if len(buckets) == 0 {
		return none("no bucket in which the two stores saw different sides of what was asked: one decided against its own figures"), nil
	}
	if err := coherent(p); err != nil {
		ex.Kind, ex.Note = None, err.Error()
		return ex, nil
	}
	return ex, buckets
}

// coherent checks that each store decided by what it saw: it granted only if it saw enough of every line.
func coherent(p *Pair) error {
	for _, side := range []struct {
		name string
		Side
	}{{"truth", p.Truth}, {"mirror", p.Mirror}} {
		short, known := false, 0
		for _, l := range p.Lines {
			have, ok := side.level(l.Bucket(p.Shop))
			if !ok {
				continue
			}
			known++
			short = short || have < l.Quantity
		}
		if known > 0 && short == yes(side.Decision) {
			return fmt.Errorf("the %s decided %s against its own figures", side.name, side.Decision)
		}
	}
	return nil
}

// account tells whether the operations that overlap the pair on a bucket can account for a difference of levels,
// and names them. Each contributes its effect where one store had it before the pair and the other had it after;
// where the times do not say, both are possible. The caller holds the lock.
func (e *Engine) account(ex *Explanation, s *Span, b reservation.Bucket, difference int64) ExplanationKind {
	p := &s.pair
	lo, hi, gapLo, gapHi := int64(0), int64(0), int64(0), int64(0)
	for _, en := range e.entries(b) {
		if en.span == s {
			continue
		}
		l, h := contribution(en, p.Truth.Began, p.Truth.Ended, p.Mirror.Began, p.Mirror.Ended)
		if l == 0 && h == 0 {
			continue
		}
		ex.name(en, b)
		if en.span.gap {
			gapLo, gapHi = gapLo+l, gapHi+h
		} else {
			lo, hi = lo+l, hi+h
		}
	}
	switch {
	case lo <= difference && difference <= hi:
		return Race
	case lo+gapLo <= difference && difference <= hi+gapHi:
		return Gap
	default:
		return None
	}
}

func (e *Engine) entries(b reservation.Bucket) []entry {
	if log := e.buckets[b]; log != nil {
		return log.entries
	}
	return nil
}

func (ex *Explanation) name(en entry, b reservation.Bucket) {
	if len(ex.Overlapping) >= MaxNamed {
		ex.MoreOverlapping++
		return
	}
	ex.Overlapping = append(ex.Overlapping, Overlap{
		Op: en.span.pair.Op.String(), ID: en.span.pair.ID.String(), Bucket: b.String(), Delta: en.delta, Gap: en.span.gap,
	})
}

// contribution bounds what an operation adds to (truth's level - mirror's level), as they were seen by a reader who
// looked at the truth within [t0, t1] and at the mirror within [m0, m1].
func contribution(en entry, t0, t1, m0, m1 time.Time) (lo, hi int64) {
	if en.passing {
		return passing(en, t0, t1)
	}
	truth := seen(en.span.pair.Truth.Began, en.span.pair.Truth.Ended, t0, t1)
	mirror := seen(en.span.mirrorFrom, en.span.mirrorTo, m0, m1)
	diffLo, diffHi := truth.lo-mirror.hi, truth.hi-mirror.lo
	a, b := en.delta*diffLo, en.delta*diffHi
	lo, hi = min(a, b), max(a, b)
	if en.maybe {
		lo, hi = min(lo, 0), max(hi, 0)
	}
	return lo, hi
}

// finishTail is how long after a claim's answer its last step in Redis may follow.
const finishTail = 3 * time.Second

// passing bounds what a claim that was under way may have kept from a reader of the truth: its units or nothing.
func passing(en entry, t0, t1 time.Time) (lo, hi int64) {
	p := &en.span.pair
	if p.Truth.Began.After(t1) || p.Truth.Ended.Add(finishTail).Before(t0) {
		return 0, 0
	}
	return min(en.delta, 0), max(en.delta, 0)
}

type bounds struct{ lo, hi int64 }

// seen tells whether a reader within [r0, r1] saw an effect that came within [from, to]: surely (1, 1), surely not
// (0, 0), or perhaps (0, 1). A zero to is "not yet".
func seen(from, to, r0, r1 time.Time) bounds {
	switch {
	case !to.IsZero() && to.Before(r0):
		return bounds{1, 1}
	case from.After(r1):
		return bounds{0, 0}
	default:
		return bounds{0, 1}
	}
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
		truth, mirror, err := e.opt.Stores.Levels(ctx, b)
		if err != nil {
			return nil, err
		}
		reads = append(reads, reading{b, truth, mirror, from, e.now()})
	}
	return reads, nil
}

// agreement checks the settled readings. Quiet buckets must agree to the unit. Until the deadline a busy one is
// read again; after it, the difference must be what the operations under way account for.
func (e *Engine) agreement(w *waiting, now time.Time) (Explanation, bool) {
	if e.mustWait(w.reads[len(w.reads)-1].to) {
		return Explanation{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := false
	for i, r := range w.reads {
		w.ex.Buckets[i].SettledTruth, w.ex.Buckets[i].SettledMirror = r.truth, r.mirror
		var lo, hi int64
		for _, en := range e.entries(r.bucket) {
			l, h := contribution(en, r.from, r.to, r.from, r.to)
			lo, hi = lo+l, hi+h
			switch {
			case l == h:
			case en.span.gap: // waiting does not end it, catch-up does
				w.ex.Kind = Gap
			default:
				busy = true
			}
		}
		d := r.truth - r.mirror
		if d < lo || d > hi {
			w.ex.Kind = None
			w.ex.Note = fmt.Sprintf("bucket %s: once settled the truth has %d and the mirror %d", r.bucket, r.truth, r.mirror)
			return w.ex, true
		}
	}
	if busy && now.Before(w.deadline) {
		w.reads = nil // look again when it is quieter
		return Explanation{}, false
	}
	return w.ex, true
}
