package replay

import (
	"fmt"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/podset"
)

// Result is what a replay came to. Its JSON is an interface: keys stay.
type Result struct {
	Pod        string                `json:"pod"`
	Stage      string                `json:"stage"`
	Operations int64                 `json:"operations"`
	Reserve    loadgen.ReserveCounts `json:"reserve"`
	Claim      loadgen.ClaimCounts   `json:"claim"`
	Release    loadgen.ReleaseCounts `json:"release"`
	Adjust     loadgen.AdjustCounts  `json:"adjust"`
	Expired    int64                 `json:"expired"`
	// ByOp splits Operations.
	ByOp map[string]int64 `json:"by_op"`
	// Carts counts each cart once, retries left out; Ended says how the granted ones ended, from the store's records.
	Carts       loadgen.ReserveCounts   `json:"carts"`
	Ended       map[string]int64        `json:"ended"`
	Compared    int64                   `json:"compared"`
	Gaps        Gaps                    `json:"gaps"`
	Verdicts    map[string]int64        `json:"verdicts"`
	Explained   map[string]int64        `json:"explained"`
	Unexplained int64                   `json:"unexplained"`
	Invariants  map[string]string       `json:"invariants"`
	LatencyMS   map[string]diff.Latency `json:"latency_ms"`
	// CallerMS is what callers saw, by operation.
	CallerMS map[string]loadgen.Quantiles `json:"caller_ms"`
	// Backlog is what earlier runs had left for the mirror, CatchUp what this one did.
	Backlog CatchUp `json:"backlog"`
	CatchUp CatchUp `json:"catch_up"`
	// Recorded says what became of the recording's rows.
	Recorded loadgen.Recorded `json:"recorded"`
	Retries  int              `json:"retries"`
	// HeldStill counts holds that will expire later than the replay waited.
	HeldStill      int           `json:"held_still"`
	Samples        []diff.Sample `json:"samples"`
	SamplesDropped int64         `json:"samples_dropped"`
	// Map says which id stands for which code and country, where it was asked for.
	Map *loadgen.Map `json:"map,omitempty"`
	// Problems says why ok is false.
	Problems []string `json:"problems"`
	TookS    float64  `json:"took_s"`
	OK       bool     `json:"ok"`
}

// Gaps counts operations that were not compared.
type Gaps struct {
	Total    int64            `json:"total"`
	ByReason map[string]int64 `json:"by_reason"`
}

// CatchUp is the catch-up round at the end.
type CatchUp struct {
	Walked   int            `json:"walked"`
	Repaired map[string]int `json:"repaired"`
	Figures  int            `json:"figures"`
	Skipped  int            `json:"skipped"`
	Left     []string       `json:"left"`
}

func newResult(pod *podset.Pod, plan loadgen.Plan, s loadgen.Stats, took time.Duration) Result {
	r := Result{
		Pod: pod.Config.ID, Stage: pod.Router.Stamp().Stage.String(), Reserve: s.Reserve, Claim: s.Claim,
		Release: s.Release, Adjust: s.Adjust, Carts: s.Carts, CallerMS: s.Latency, Recorded: plan.Recorded,
		Retries: s.Retries, TookS: took.Seconds(), Problems: []string{}, Samples: []diff.Sample{},
		LatencyMS: map[string]diff.Latency{}, Invariants: map[string]string{},
	}
	for _, e := range s.Errors {
		r.Problems = append(r.Problems, "error: "+e)
	}
	for _, d := range s.Disagreements {
		r.Problems = append(r.Problems, "I9: a retry was answered differently: "+d)
	}
	r.Operations = int64(s.Operations)
	if e := pod.Router.Engine(); pod.Router.Stamp().Stage.DualWrite() {
		t := e.Tally()
		r.LatencyMS["redis"], r.LatencyMS["mysql"] = t.RedisMS, t.MySQLMS
		if samples, dropped := e.Samples(); len(samples) > 0 {
			r.Samples, r.SamplesDropped = samples, dropped
		}
	}
	return r
}

// judge fills in what the stores themselves say, and whether all is well.
func (r *Result) judge(pod *podset.Pod, before, after books) {
	report := pod.Check(&after.redis, &after.mysql, true)
	r.Invariants = report.Map()
	r.Problems = append(r.Problems, report.Violations()...)
	if !report.OK() {
		r.problem("the invariants do not hold")
	}
	r.Expired = after.steps()["expired"] - before.steps()["expired"]
	r.Ended = minus(after.states(), before.states())
	r.compareBooks(pod, before, after)
	for _, left := range r.CatchUp.Left {
		r.problem("catch-up could not mend %s", left)
	}
	if r.Unexplained > 0 {
		r.problem("%d differences are unexplained: see samples", r.Unexplained)
	}
	r.OK = len(r.Problems) == 0
}

func (r *Result) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// compareBooks fills in the comparison from the tallies in MySQL.
func (r *Result) compareBooks(pod *podset.Pod, before, after books) {
	a, b := after.tally, before.tally
	r.Verdicts, r.Explained = minus(a.Verdicts, b.Verdicts), minus(a.Explained, b.Explained)
	r.Gaps = Gaps{Total: a.GapTotal() - b.GapTotal(), ByReason: minus(a.Gaps, b.Gaps)}
	r.Compared, r.Unexplained = a.Compared-b.Compared, a.Unexplained-b.Unexplained
	if !pod.Router.Stamp().Stage.DualWrite() {
		return
	}
	r.Operations, r.ByOp = a.Operations-b.Operations, minus(a.ByOp, b.ByOp)
	wrong := accounted(before, after)
	for _, w := range wrong {
		r.problem("I11: %s", w)
	}
	r.Invariants["I11"] = "ok"
	if len(wrong) > 0 {
		r.Invariants["I11"] = "violated"
	}
}

func minus(a, b map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for k, v := range a {
		if d := v - b[k]; d != 0 {
			out[k] = d
		}
	}
	return out
}
