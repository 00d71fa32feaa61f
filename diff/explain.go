package diff

import (
	"context"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// ExplanationKind says why two outcomes differ.
type ExplanationKind string

// The kinds. Only None counts against a pod.
const (
	None ExplanationKind = "none"
	// Race: overlapping operations near a bucket's end, and the stores agree once settled.
	Race ExplanationKind = "race"
	// Gap: an operation that the mirror had missed accounts for it, or the two sides were decided in two epochs.
	Gap ExplanationKind = "gap"
	// Unseen: a race by all that could be looked at, but other routers were alive, and what would account for it was not
	// found: it may be an operation of theirs. Never where this is the pod's only router.
	Unseen ExplanationKind = "unseen"
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
	// Other is true where another router did it, by the records of the stores.
	Other bool `json:"other,omitempty"`
}

// BucketEvidence is what both stores saw in a bucket, then and once settled.
type BucketEvidence struct {
	Bucket        string `json:"bucket"`
	Requested     int64  `json:"requested"`
	TruthSaw      int64  `json:"truth_saw"`
	MirrorSaw     int64  `json:"mirror_saw"`
	SettledTruth  int64  `json:"settled_truth"`
	SettledMirror int64  `json:"settled_mirror"`
	// Unknown names the side that gave no figure of its own: truth or mirror.
	Unknown string `json:"unknown,omitempty"`
}

// MaxNamed bounds the overlapping operations that an explanation names.
const MaxNamed = 10

func none(format string, args ...any) Explanation {
	return Explanation{Kind: None, Note: fmt.Sprintf(format, args...)}
}

// explain looks for what accounts for an unequal pair, and gives the buckets that must agree once settled. Where this
// process cannot account for it and others are alive, it asks the stores what they did.
func (e *Engine) explain(ctx context.Context, w *waiting) (Explanation, []reservation.Bucket) {
	ex, buckets, found := e.examine(w.span, nil)
	switch {
	case found == accounted:
		return ex, buckets
	case found == contradicted || !e.othersAround(w.span):
		ex.Kind = None
		return ex, nil
	}
	if w.near == nil {
		w.near = e.neighbours(ctx, w.span)
	}
	if again, buckets, found := e.examine(w.span, w.near.steps); found == accounted {
		again.Note = "operations of other routers, read from the stores, account for it"
		return again, buckets
	}
	ex.Kind = Unseen
	ex.Note += "; other routers were alive, and what they did to older reservations is not seen"
	if !w.near.whole {
		ex.Note += ", nor all of the new ones"
	}
	return ex, buckets
}

// noticed tells whether this process has looked for other routers since a pair ended, if it does so at all.
func (e *Engine) noticed(p *Pair) bool {
	looks := p.looks()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.others.told.IsZero() || !e.others.told.Before(later(looks.redis.to, looks.mysql.to))
}

// othersAround tells whether another router may have had a part in what a pair's sides saw.
func (e *Engine) othersAround(s *Span) bool {
	looks := s.pair.looks()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.others.within(earlier(looks.redis.from, looks.mysql.from).Add(-e.lookback()), later(looks.redis.to, looks.mysql.to))
}

// finding is what the examination of a pair came to.
type finding uint8

const (
	// accounted: what is known accounts for the difference.
	accounted finding = iota + 1
	// unaccounted: the figures differ by more.
	unaccounted
	// contradicted: a store decided against its own figures. Nothing excuses that.
	contradicted
)

// examine checks each store's decision against what it saw, and what they saw against the operations in between: those
// of this process, and those near it of others.
func (e *Engine) examine(s *Span, near map[reservation.Bucket][]entry) (Explanation, []reservation.Bucket, finding) {
	p := &s.pair
	ex, found := Explanation{Kind: Race}, accounted
	var buckets []reservation.Bucket
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range p.Lines {
		b := l.Bucket(p.Shop)
		t, tok := p.Truth.level(b)
		m, mok := p.Mirror.level(b)
		if !tok || !mok || (t < l.Quantity) == (m < l.Quantity) {
			continue
		}
		ex.Buckets = append(ex.Buckets, BucketEvidence{Bucket: b.String(), Requested: l.Quantity, TruthSaw: t, MirrorSaw: m})
		buckets = append(buckets, b)
		switch e.account(&ex, s, b, near[b]) {
		case None:
			found = unaccounted
			ex.Note = fmt.Sprintf("bucket %s: the truth saw %d, the mirror %d, and no overlapping operations account for it", b, t, m)
		case Gap:
			ex.Kind = Gap
		case Race, Unseen:
		}
	}
	if len(buckets) == 0 {
		if ex, buckets, ok := e.acrossChange(s); ok {
			return ex, buckets, accounted
		}
		return none("no bucket in which the two stores saw different sides of what was asked: one decided against its own figures"), nil, contradicted
	}
	if err := coherent(p); err != nil {
		ex.Kind, ex.Note = None, err.Error()
		return ex, nil, contradicted
	}
	return ex, buckets, found
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

// account tells whether the operations that overlap the pair on a bucket can account for the difference of the two
// levels, and names them. Each contributes its effect where one store had it before the pair and the other had it
// after; where the times do not say, both are possible. The caller holds the lock.
func (e *Engine) account(ex *Explanation, s *Span, b reservation.Bucket, near []entry) ExplanationKind {
	looks := s.pair.looks()
	saw := &ex.Buckets[len(ex.Buckets)-1]
	redis, mysql := s.pair.sides(saw.TruthSaw, saw.MirrorSaw)
	difference := redis - mysql
	lo, hi, gapLo, gapHi := int64(0), int64(0), int64(0), int64(0)
	add := func(en entry) {
		l, h := contribution(en, looks)
		if en.span == s || (l == 0 && h == 0) {
			return
		}
		ex.name(en, b)
		if en.span.gap {
			gapLo, gapHi = gapLo+l, gapHi+h
		} else {
			lo, hi = lo+l, hi+h
		}
	}
	for _, en := range e.entries(b) {
		add(en)
	}
	for _, en := range near {
		add(en)
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
		Op: en.span.pair.Op.String(), ID: en.span.pair.ID.String(), Bucket: b.String(), Delta: en.delta, Gap: en.span.gap, Other: en.others,
	})
}
