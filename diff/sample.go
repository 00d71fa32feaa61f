package diff

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/twinhold/twinhold/reservation"
)

// Sample is one unequal pair, kept whole for the reviewer.
type Sample struct {
	Pod         string      `json:"pod"`
	Op          string      `json:"op"`
	Shop        int64       `json:"shop"`
	ID          string      `json:"id"`
	Epoch       uint64      `json:"epoch"`
	Stage       string      `json:"stage"`
	Verdict     string      `json:"verdict"`
	Truth       SampleSide  `json:"truth"`
	Mirror      SampleSide  `json:"mirror"`
	Explanation Explanation `json:"explanation"`
	// Diff is the difference of the two records, truth against mirror, where both gave one.
	Diff string `json:"diff,omitempty"`
}

// SampleSide is one side of a sample.
type SampleSide struct {
	Decision string    `json:"decision,omitempty"`
	State    string    `json:"state,omitempty"`
	Began    time.Time `json:"began,omitzero"`
	TookMS   float64   `json:"took_ms"`
}

func sideOf(s Side) SampleSide {
	out := SampleSide{}
	if s.Decision != 0 { // catch-up finds records, not decisions
		out = SampleSide{Decision: s.Decision.String(), Began: s.Began.UTC(), TookMS: float64(s.Took().Microseconds()) / 1000}
	}
	if s.State.Valid() {
		out.State = s.State.String()
	}
	return out
}

// keep stores a sample unless its class is full. The caller holds the lock.
func (e *Engine) keep(s *Span, v Verdict, ex Explanation) {
	class := func(sample Sample) bool {
		return sample.Verdict == v.String() && (sample.Explanation.Kind == None) == (ex.Kind == None)
	}
	held := 0
	for i := range e.samples {
		if class(e.samples[i]) {
			held++
		}
	}
	if held >= e.opt.MaxSamples {
		e.tally.add(s.pair.Op, kindSampleDropped, v.String(), 1)
		return
	}
	p := &s.pair
	sample := Sample{
		Pod: p.Pod, Op: p.Op.String(), Shop: p.Shop, ID: p.ID.String(), Epoch: p.Stamp.Epoch,
		Stage: p.Stamp.Stage.String(), Verdict: v.String(), Truth: sideOf(p.Truth), Mirror: sideOf(p.Mirror), Explanation: ex,
	}
	if p.Truth.Record != nil && p.Mirror.Record != nil {
		sample.Diff = cmp.Diff(*p.Truth.Record, *p.Mirror.Record, cmpopts.EquateEmpty(), cmp.Comparer(sameHash))
	}
	e.samples = append(e.samples, sample)
}

func sameHash(a, b reservation.Hash) bool { return a == b }

// Samples gives the samples kept so far, and how many were left out because their class was full.
func (e *Engine) Samples() (samples []Sample, dropped int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c, n := range e.tally.n {
		if c.kind == kindSampleDropped {
			dropped += n
		}
	}
	return slices.Clone(e.samples), dropped
}

// String gives a sample in one line.
func (s Sample) String() string {
	return fmt.Sprintf("%s %s: truth %s, mirror %s: %s (%s) %s", s.Op, s.ID, s.Truth.Decision, s.Mirror.Decision,
		s.Verdict, s.Explanation.Kind, s.Explanation.Note)
}

// sideName names a side by its decision, or by its record's state where there was none to make.
func sideName(s Side) string {
	switch {
	case s.Decision != 0:
		return s.Decision.String()
	case s.State != 0:
		return s.State.String()
	default:
		return "unknown there"
	}
}
