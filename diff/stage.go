package diff

import (
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// stageChange is a change of the pod's fence, as this process learned of it.
type stageChange struct {
	at       time.Time
	from, to reservation.Stamp
}

// maxChanges bounds the changes that are remembered: a pair is judged at most MaxSettle after it.
const maxChanges = 32

// StageChanged tells the engine that the pod's epoch changed. at is when this process learned of it, or any better
// knowledge of that instant.
func (e *Engine) StageChanged(at time.Time, from, to reservation.Stamp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.changes) == maxChanges {
		e.changes = append(e.changes[:0], e.changes[1:]...)
	}
	e.changes = append(e.changes, stageChange{at, from, to})
}

// split is the evidence that a pair's two sides were decided in two epochs.
type split struct {
	one, two uint64
	from, to time.Time // of the two decisions
}

// splitOf tells whether the two sides of a pair were decided in two epochs: the operation was decided, routed again and
// decided anew, or the two stores keep records of two epochs.
func splitOf(s *Span) (split, bool) {
	p := &s.pair
	if f := s.first; f != nil && f.stamp.Epoch != p.Stamp.Epoch {
		return split{f.stamp.Epoch, p.Stamp.Epoch, s.began, p.Truth.Ended}, true
	}
	t, m := p.Truth.Record, p.Mirror.Record
	if t == nil || m == nil || t.Epoch == m.Epoch {
		return split{}, false
	}
	from := s.began
	for _, at := range []time.Time{t.CreatedAt, m.CreatedAt} {
		if !at.IsZero() && at.Before(from) {
			from = at
		}
	}
	return split{m.Epoch, t.Epoch, from, p.Truth.Ended}, true
}

// acrossChange explains a pair whose yes was given without a figure, in another epoch than the no. Where both figures
// are known a change of stage explains nothing: units are counted in every stage, and examine has counted them. The
// side that said no must have seen too little by its own figures, and the buckets must agree once settled like any
// race's. The caller holds the lock.
func (e *Engine) acrossChange(s *Span) (Explanation, []reservation.Bucket, bool) {
	cut, ok := splitOf(s)
	if !ok {
		return Explanation{}, nil, false
	}
	change, ok := e.changeWithin(cut.from, cut.to)
	if !ok {
		return Explanation{}, nil, false
	}
	p := &s.pair
	refuser, granter, unknown := &p.Truth, &p.Mirror, "mirror"
	if yes(p.Truth.Decision) {
		refuser, granter, unknown = granter, refuser, "truth"
	}
	ex := Explanation{Kind: Gap, Note: fmt.Sprintf("stage change: one store decided in epoch %d, the other in epoch %d (%s to %s)",
		cut.one, cut.two, change.from.Stage, change.to.Stage)}
	var buckets []reservation.Bucket
	for _, l := range p.Lines {
		b := l.Bucket(p.Shop)
		saw, known := refuser.level(b)
		if _, both := granter.level(b); both || !known || saw >= l.Quantity {
			continue
		}
		ev := BucketEvidence{Bucket: b.String(), Requested: l.Quantity, Unknown: unknown}
		if unknown == "truth" {
			ev.MirrorSaw = saw
		} else {
			ev.TruthSaw = saw
		}
		ex.Buckets, buckets = append(ex.Buckets, ev), append(buckets, b)
	}
	return ex, buckets, len(buckets) > 0
}

// changeWithin finds a change of stage within a time. This process learned of it after it happened, by Settle at most.
func (e *Engine) changeWithin(from, to time.Time) (stageChange, bool) {
	to = to.Add(e.opt.Settle)
	for _, c := range e.changes {
		if !c.at.Before(from) && !c.at.After(to) {
			return c, true
		}
	}
	return stageChange{}, false
}
