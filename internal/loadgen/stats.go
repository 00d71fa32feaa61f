package loadgen

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/twinhold/twinhold/reservation"
)

// Answer is what one event of the plan was answered.
type Answer struct {
	Op      reservation.Op
	Attempt int // 2: the retry of an answered call
	Shop    int64
	Key     string // the cart's key, or the adjustment's id
	ID      reservation.ID
	// Sent is false where the cart had not been granted, or the run ended before.
	Sent bool
	// Decision is Undecided where the outcome is unknown, and after an error that is no decision.
	Decision  reservation.Decision
	State     reservation.State
	Late      bool
	Replayed  bool
	ExpiresAt time.Time // of a reserve
	Err       error     // of the last try
	Tries     int
	At        time.Time // when it was due
	Took      time.Duration
}

// unknown tells whether nobody can say what became of the call.
func (a Answer) unknown() bool {
	if a.Decision != reservation.Undecided || errors.Is(a.Err, reservation.ErrFrozen) {
		return false
	}
	return reservation.CodeOf(a.Err) == reservation.CodeUnavailable ||
		errors.Is(a.Err, context.DeadlineExceeded) || errors.Is(a.Err, context.Canceled)
}

// Stats is what became of a plan.
type Stats struct {
	// Operations counts the calls that were sent; tries of one call count once.
	Operations int           `json:"operations"`
	Reserve    ReserveCounts `json:"reserve"`
	Claim      ClaimCounts   `json:"claim"`
	Release    ReleaseCounts `json:"release"`
	Adjust     AdjustCounts  `json:"adjust"`
	// Carts counts each cart once, by its first decided answer.
	Carts ReserveCounts `json:"carts"`
	// Retries counts calls that were sent a second time after their answer; Retried further tries of unanswered ones.
	Retries int `json:"retries"`
	Retried int `json:"tried_again"`
	// NotSent counts claims and releases of carts that were not granted.
	NotSent int `json:"not_sent"`
	// Disagreements lists retries whose answer was another than the first (I9), Errors samples of the errors that
	// were no decision; both are empty in a healthy run. The counts of each are whole.
	Disagreements []string             `json:"disagreements,omitempty"`
	Errors        []string             `json:"errors,omitempty"`
	Latency       map[string]Quantiles `json:"latency_ms"`
	Took          time.Duration        `json:"took_ns"`
	// Answers holds one answer per event of the plan, in its order.
	Answers []Answer `json:"-"`
}

// ReserveCounts counts answers to reserve. Failed counts errors that are neither a decision nor an unknown outcome,
// and conflicts of keys.
type ReserveCounts struct {
	Granted  int `json:"granted"`
	Rejected int `json:"rejected"`
	Unknown  int `json:"unknown"`
	Failed   int `json:"failed,omitempty"`
}

// ClaimCounts counts answers to claim. Late ones are claimed or refund_required too.
type ClaimCounts struct {
	Claimed        int `json:"claimed"`
	RefundRequired int `json:"refund_required"`
	Late           int `json:"late"`
	Conflict       int `json:"conflict"`
	Unknown        int `json:"unknown"`
	Failed         int `json:"failed,omitempty"`
}

// ReleaseCounts counts answers to release.
type ReleaseCounts struct {
	Released int `json:"released"`
	Conflict int `json:"conflict"`
	Unknown  int `json:"unknown"`
	Failed   int `json:"failed,omitempty"`
}

// AdjustCounts counts answers to adjustments. Refused ones would have gone below what is promised.
type AdjustCounts struct {
	Adjusted int `json:"adjusted"`
	Refused  int `json:"refused"`
	Unknown  int `json:"unknown"`
	Failed   int `json:"failed,omitempty"`
}

// Quantiles are latencies in milliseconds, from the moment a call was due to its answer, tries included.
type Quantiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// maxSamples bounds each list of samples.
const maxSamples = 20

// stats sums the answers up. It is only called once every client has ended.
func (r *runner) stats(took time.Duration) Stats {
	s := Stats{Took: took, Answers: r.answers, Latency: make(map[string]Quantiles)}
	hist := make(map[reservation.Op]*hdrhistogram.Histogram)
	type call struct {
		cart int
		op   reservation.Op
	}
	first := make(map[call]*Answer, len(r.answers)) // to which retries are held
	for i := range r.answers {
		a := &r.answers[i]
		switch {
		case a.Op == 0: // the run ended before
			continue
		case !a.Sent:
			s.NotSent++
			continue
		}
		s.count(a)
		record(hist, a)
		if e := r.plan.Events[i]; e.Attempt > 1 && e.Cart >= 0 {
			s.compare(first[call{e.Cart, a.Op}], a)
		} else if e.Cart >= 0 && first[call{e.Cart, a.Op}] == nil {
			first[call{e.Cart, a.Op}] = a
		}
	}
	for op, h := range hist {
		s.Latency[op.String()] = quantiles(h)
	}
	s.countCarts(r.plan)
	return s
}

func (s *Stats) count(a *Answer) {
	s.Operations++
	s.Retried += a.Tries - 1
	if a.Attempt > 1 {
		s.Retries++
	}
	switch a.Op {
	case reservation.OpReserve:
		s.Reserve.add(a)
	case reservation.OpClaim:
		s.Claim.add(a)
	case reservation.OpRelease:
		s.Release.add(a)
	case reservation.OpAdjust:
		s.Adjust.add(a)
	default: // no plan holds another
	}
	if a.Err != nil && !expected(a) && len(s.Errors) < maxSamples {
		s.Errors = append(s.Errors, fmt.Sprintf("%s %s: %v", a.Op, a.Key, a.Err))
	}
}

// expected errors are decisions that a replay may meet.
func expected(a *Answer) bool {
	return a.Decision == reservation.StateConflict || a.Decision == reservation.AdjustRefused
}

// undecided counts an answer that is none of an operation's decisions.
func (a *Answer) undecided(unknown, failed *int) {
	if a.unknown() {
		*unknown++
	} else {
		*failed++
	}
}

func (c *ReserveCounts) add(a *Answer) {
	switch a.Decision {
	case reservation.Granted:
		c.Granted++
	case reservation.RejectedShort:
		c.Rejected++
	default:
		a.undecided(&c.Unknown, &c.Failed)
	}
}

func (c *ClaimCounts) add(a *Answer) {
	switch a.Decision {
	case reservation.ClaimedOK:
		c.Claimed++
	case reservation.RefundRequired:
		c.RefundRequired++
	case reservation.StateConflict:
		c.Conflict++
	default:
		a.undecided(&c.Unknown, &c.Failed)
	}
	if a.Late {
		c.Late++
	}
}

func (c *ReleaseCounts) add(a *Answer) {
	switch a.Decision {
	case reservation.ReleasedOK:
		c.Released++
	case reservation.StateConflict:
		c.Conflict++
	default:
		a.undecided(&c.Unknown, &c.Failed)
	}
}

func (c *AdjustCounts) add(a *Answer) {
	switch a.Decision {
	case reservation.Adjusted:
		c.Adjusted++
	case reservation.AdjustRefused:
		c.Refused++
	default:
		a.undecided(&c.Unknown, &c.Failed)
	}
}

// countCarts counts each cart by its first reserve that is not unknown.
func (s *Stats) countCarts(p Plan) {
	last := make([]*Answer, len(p.Carts))
	for i, e := range p.Events {
		if a := &s.Answers[i]; e.Op == reservation.OpReserve && a.Sent && (last[e.Cart] == nil || last[e.Cart].unknown()) {
			last[e.Cart] = a
		}
	}
	for _, a := range last {
		if a != nil {
			s.Carts.add(a)
		}
	}
}

// compare holds a retry to the first answer. Where one of the two is unknown there is nothing to compare.
func (s *Stats) compare(first, again *Answer) {
	if first == nil || first.Decision == reservation.Undecided || again.Decision == reservation.Undecided {
		return
	}
	if first.Decision == again.Decision && first.ID == again.ID || len(s.Disagreements) >= maxSamples {
		return
	}
	s.Disagreements = append(s.Disagreements, fmt.Sprintf("%s %s: first %s (%s), then %s (%s)",
		again.Op, again.Key, first.Decision, first.ID, again.Decision, again.ID))
}

// Latencies are kept from 1 microsecond to 10 minutes, with three digits.
const (
	lowestLatency  = 1
	highestLatency = int64(10 * time.Minute / time.Microsecond)
	latencyDigits  = 3
)

func record(hist map[reservation.Op]*hdrhistogram.Histogram, a *Answer) {
	h := hist[a.Op]
	if h == nil {
		h = hdrhistogram.New(lowestLatency, highestLatency, latencyDigits)
		hist[a.Op] = h
	}
	us := min(max(a.Took.Microseconds(), lowestLatency), highestLatency)
	if err := h.RecordValue(us); err != nil {
		panic(fmt.Sprintf("loadgen: a latency of %d us does not fit: %v", us, err)) // it was clamped just above
	}
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Quantiles{
		Count: h.TotalCount(), P50: ms(h.ValueAtQuantile(50)), P95: ms(h.ValueAtQuantile(95)),
		P99: ms(h.ValueAtQuantile(99)), Max: ms(h.Max()),
	}
}
