package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// call is one attempt of a buyer, and what he was told. Times are since the history's start.
type call struct {
	Op     string // reserve, claim, release, get
	Shop   int64
	Key    string
	ID     string // of claim, release, get: the asked one; of reserve: the answered one
	Lines  []reservation.Line
	Router string
	Begin  time.Duration
	End    time.Duration
	// Code is ok, a code of the API, or none: no answer came.
	Code    string
	Message string

	Outcome   string // GRANTED, REJECTED
	State     reservation.State
	DecidedBy string
	Epoch     uint64
	Replayed  bool
	Late      bool
	ExpiresAt time.Duration // since the history's start too
}

// undecided tells whether the caller knows no more than before.
func (c call) undecided() bool {
	return c.Code == "none" || c.Code == "unavailable" || c.Code == "resource_exhausted"
}

// String is one line of a story.
func (c call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10.4f to %10.4f  %-7s by %s: %s", c.Begin.Seconds(), c.End.Seconds(), c.Op, c.Router, c.Code)
	if c.Outcome != "" {
		fmt.Fprintf(&b, " %s", c.Outcome)
	}
	if c.State != 0 {
		fmt.Fprintf(&b, " %s", c.State)
	}
	if c.DecidedBy != "" {
		fmt.Fprintf(&b, " decided by %s in epoch %d", c.DecidedBy, c.Epoch)
	}
	if c.ExpiresAt != 0 {
		fmt.Fprintf(&b, " expires %.4f", c.ExpiresAt.Seconds())
	}
	for flag, on := range map[string]bool{" replayed": c.Replayed, " late": c.Late} {
		if on {
			b.WriteString(flag)
		}
	}
	if c.Op == "reserve" {
		fmt.Fprintf(&b, " id %s %v", c.ID, c.Lines)
	}
	if c.Message != "" {
		fmt.Fprintf(&b, " (%s)", c.Message)
	}
	return b.String()
}

// happening is something that was done to the fleet.
type happening struct {
	what, came string
	begin, end time.Duration
}

// stocking is stock that a bucket was given. It may count from the call's begin.
type stocking struct {
	at  time.Duration
	qty int64
}

// kill is a kill that has returned: what it promises of the routers that acknowledged it.
type killDone struct {
	pod      int
	epoch    uint64
	began    time.Duration
	returned time.Duration
	laggards map[string]bool
	// debt is what the kill told that Redis lacks; nil: MySQL did not say in time.
	debt *reservation.Debt
}

// history is everything that was seen. It is safe for concurrent use.
type history struct {
	start time.Time

	mu     sync.Mutex
	calls  []call
	events []happening
	stock  map[reservation.Bucket][]stocking
	kills  []killDone
	stages map[podEpoch]reservation.Stage // from the audits
}

// podEpoch names an epoch of a pod.
type podEpoch struct {
	pod   int
	epoch uint64
}

func newHistory() *history {
	return &history{start: time.Now(), stock: map[reservation.Bucket][]stocking{}, stages: map[podEpoch]reservation.Stage{}}
}

func (h *history) now() time.Duration { return time.Since(h.start) }

// since gives a store's clock in the history's time: everything runs on one machine.
func (h *history) since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return t.Sub(h.start.Round(0)) // without the monotonic reading, which a store's time does not have
}

func (h *history) add(c call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

func (h *history) event(what string, began time.Duration, came string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, happening{what, came, began, h.now()})
}

func (h *history) stocked(b reservation.Bucket, qty int64, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stock[b] = append(h.stock[b], stocking{at, qty})
}

func (h *history) kill(k killDone) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kills = append(h.kills, k)
}

// audit takes what a store wrote down of a pod's moves.
func (h *history) audit(pod int, store string, recs []reservation.AuditRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range recs {
		at := h.since(r.At)
		h.events = append(h.events, happening{
			what:  fmt.Sprintf("audit in %s, pod %d: %s by %s (%s)", store, pod+1, r.Action, r.By, r.Reason),
			came:  fmt.Sprintf("epoch %d %s -> epoch %d %s", r.Before.Epoch, r.Before.Stage, r.After.Epoch, r.After.Stage),
			begin: at, end: at,
		})
		for _, st := range []reservation.Stamp{r.Before, r.After} {
			if st.Epoch > 0 && st.Stage.Valid() {
				h.stages[podEpoch{pod, st.Epoch}] = st.Stage
			}
		}
	}
}

// snapshot gives the calls so far, in order of their begin.
func (h *history) snapshot() []call {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := slices.Clone(h.calls)
	slices.SortStableFunc(calls, func(a, b call) int { return cmp.Compare(a.Begin, b.Begin) })
	return calls
}

// summary counts what the buyers were told.
func (h *history) summary() string {
	counts := map[string]int{}
	for _, c := range h.snapshot() {
		told := c.Code
		switch {
		case c.Code != "ok":
		case c.Op == "reserve":
			told = strings.ToLower(c.Outcome) + " by " + c.DecidedBy
		default:
			told = c.State.String()
		}
		counts[c.Op+" "+told]++
	}
	keys := make([]string, 0, len(counts))
	for k := range counts {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s %d, ", k, counts[k])
	}
	return strings.TrimSuffix(b.String(), ", ")
}

// waits tells how long buyers waited for a decision, all attempts together.
func (h *history) waits() string {
	type thing struct{ op, of string }
	began, waited := map[thing]time.Duration{}, map[string][]time.Duration{}
	undecided := 0
	for _, c := range h.snapshot() {
		th := thing{c.Op, c.Key}
		if _, ok := began[th]; !ok {
			began[th] = c.Begin
		}
		if !c.undecided() && began[th] != never {
			waited[c.Op] = append(waited[c.Op], c.End-began[th])
			began[th] = never // what comes later is another question
		}
	}
	for _, b := range began {
		if b != never {
			undecided++
		}
	}
	var b strings.Builder
	for _, op := range []string{"reserve", "claim", "release"} {
		if w := waited[op]; len(w) > 0 {
			slices.Sort(w)
			fmt.Fprintf(&b, "%s p50 %s, p99 %s, longest %s; ", op, short(w[len(w)/2]), short(w[len(w)*99/100]), short(w[len(w)-1]))
		}
	}
	fmt.Fprintf(&b, "%d without a decision", undecided)
	return b.String()
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// moves lists everything that happened to the fleet.
func (h *history) moves() string {
	var b strings.Builder
	for _, e := range h.around(0, h.now()) {
		fmt.Fprintf(&b, "  %10.4f to %10.4f  %s: %s\n", e.begin.Seconds(), e.end.Seconds(), e.what, e.came)
	}
	return b.String()
}

// around gives what happened to the fleet between two times, a moment before and after too.
func (h *history) around(from, to time.Duration) []happening {
	const moment = 2 * time.Second
	h.mu.Lock()
	defer h.mu.Unlock()
	var near []happening
	for _, e := range h.events {
		if e.end >= from-moment && e.begin <= to+moment {
			near = append(near, e)
		}
	}
	slices.SortStableFunc(near, func(a, b happening) int { return cmp.Compare(a.begin, b.begin) })
	return near
}
