package diff

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/twinhold/twinhold/reservation"
)

// kind is what a count counts.
type kind uint8

const (
	kindOperations kind = iota + 1
	kindVerdict
	kindGap
	kindExplained
	kindUnexplained
	kindSampleDropped
	kindFound // by catch-up
	kindFirst // decisions of operations that were no replays: what the stores' own records must add up to
)

// String gives the kind's name as the tally table stores it.
func (k kind) String() string {
	names := [...]string{
		kindOperations: "operations", kindVerdict: "verdict", kindGap: "gap", kindExplained: "explained",
		kindUnexplained: "unexplained", kindSampleDropped: "sample_dropped", kindFound: "found", kindFirst: "first",
	}
	return names[k]
}

type cell struct {
	op   reservation.Op
	kind kind
	name string
}

// counts is the engine's tally. The engine's lock guards it.
type counts struct {
	n map[cell]int64
	// flushed is what the sink has of n; base is n at the start of the hour that is being written.
	flushed, base map[cell]int64
	hour          time.Time
	truth         *hdrhistogram.Histogram
	mirror        *hdrhistogram.Histogram
}

func newCounts() *counts {
	return &counts{
		n:       map[cell]int64{},
		flushed: map[cell]int64{},
		base:    map[cell]int64{},
		truth:   hdrhistogram.New(1, time.Minute.Microseconds(), 3),
		mirror:  hdrhistogram.New(1, time.Minute.Microseconds(), 3),
	}
}

func (c *counts) add(op reservation.Op, k kind, name string, n int64) { c.n[cell{op, k, name}] += n }

// latency notes both sides' times of a first reserve, the one operation that both carry out whole.
func (c *counts) latency(s *Span) {
	p := &s.pair
	if p.Op != reservation.OpReserve || p.Replayed || s.overtaken {
		return
	}
	top := time.Minute.Microseconds()
	// RecordValue fails only above the histogram's range, which min excludes.
	_ = c.truth.RecordValue(min(p.Truth.Took().Microseconds(), top))
	_ = c.mirror.RecordValue(min(p.Mirror.Took().Microseconds(), top))
}

// Tally is what the engine has counted.
type Tally struct {
	Operations  int64                               `json:"operations"`
	ByOp        map[string]int64                    `json:"by_op"`
	Compared    int64                               `json:"compared"`
	Verdicts    map[string]int64                    `json:"verdicts"`
	Gaps        map[string]int64                    `json:"gaps"`
	Explained   map[string]int64                    `json:"explained"`
	Unexplained int64                               `json:"unexplained"`
	First       map[string]int64                    `json:"first"`
	Found       map[string]int64                    `json:"found"`
	TruthMS     Latency                             `json:"truth_ms"`
	MirrorMS    Latency                             `json:"mirror_ms"`
	Pending     int                                 `json:"pending"`
	unexplained map[reservation.Op]map[string]int64 // by verdict, for the report
}

// Latency is a distribution's two figures, in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Tally gives the counts so far.
func (e *Engine) Tally() Tally {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := tallyOf(e.tally.n)
	t.Pending = len(e.pending)
	t.TruthMS, t.MirrorMS = latencyOf(e.tally.truth), latencyOf(e.tally.mirror)
	return t
}

func tallyOf(n map[cell]int64) Tally {
	t := Tally{
		ByOp: map[string]int64{}, Verdicts: map[string]int64{}, Gaps: map[string]int64{}, Explained: map[string]int64{},
		First: map[string]int64{}, Found: map[string]int64{}, unexplained: map[reservation.Op]map[string]int64{},
	}
	for c, v := range n {
		switch c.kind {
		case kindOperations:
			t.Operations += v
			t.ByOp[c.op.String()] += v
		case kindVerdict:
			t.Compared += v
			t.Verdicts[c.name] += v
		case kindGap:
			t.Gaps[c.name] += v
		case kindExplained:
			t.Explained[c.name] += v
		case kindUnexplained:
			t.Unexplained += v
			if t.unexplained[c.op] == nil {
				t.unexplained[c.op] = map[string]int64{}
			}
			t.unexplained[c.op][c.name] += v
		case kindFirst:
			t.First[c.name] += v
		case kindFound:
			t.Found[c.name] += v
		case kindSampleDropped:
			// told with the samples
		}
	}
	return t
}

// GapTotal is the number of gaps.
func (t Tally) GapTotal() int64 {
	var n int64
	for _, v := range t.Gaps {
		n += v
	}
	return n
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	ms := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	return Latency{P50: ms(50), P99: ms(99)}
}
