package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Row is one scheme's figures: medians over the rounds.
type Row struct {
	Scheme  string `json:"scheme"`
	Callers int    `json:"callers"`
	// Processes share the callers.
	Processes int `json:"processes"`

	OpsS float64 `json:"ops_s"`
	// Base is the scheme that ratios are to, with as many callers and processes. Ratio is the median of the rounds'
	// ratios: of the rates; in neighbours, of p99; in mirror, of p50.
	Base  string  `json:"base"`
	Ratio float64 `json:"ratio"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`

	// P50Ratio and P99Ratio are the latencies' to the base's in the same round. Ratios are Ratio's, by round.
	P50Ratio float64   `json:"p50_ratio"`
	P99Ratio float64   `json:"p99_ratio"`
	Ratios   []float64 `json:"ratios"`
	// ServerUS and ClientUS are microseconds of CPU per call: the server's process (nil where it cannot be seen), and
	// that of the callers, their delay line included.
	ServerUS *float64 `json:"server_us_op"`
	ClientUS float64  `json:"client_us_op"`
	// ServerUSLine is ServerUS by line of the cart, where a scheme is about lines.
	ServerUSLine *float64 `json:"server_us_line,omitempty"`
	// Rejected is the fraction of the calls that were told that too little is left.
	Rejected float64 `json:"rejected"`
	// SentAgain counts calls that were repeated because the store was busy or the outcome unknown.
	SentAgain int64 `json:"sent_again"`
	// Exact: after each round, what callers were told was what the store had.
	Exact bool   `json:"exact"`
	What  string `json:"what"`
}

// Result is a whole run.
type Result struct {
	Bench string `json:"bench"`
	Base  string `json:"base"`
	Rows  []Row  `json:"rows"`

	RatioOf string  `json:"ratio_of"` // ops_s, p50_ms or p99_ms
	Seconds float64 `json:"seconds"`
	Runs    int     `json:"runs"`
	Buckets int     `json:"buckets"`
	Skew    float64 `json:"skew"`
	Retries float64 `json:"retries"`
	Rate    float64 `json:"rate"` // 0: a closed loop
	RTTMS   float64 `json:"rtt_ms"`
	HoldMS  float64 `json:"hold_ms"`
	Servers string  `json:"servers"`
	// OthersCPU is the part of this machine's cores that was used by other processes meanwhile; nil where it is not known.
	OthersCPU *float64 `json:"others_cpu"`
}

// sample is one scheme in one round.
type sample struct {
	opsS, p50, p99 float64
	rejected       float64 // fraction of the calls
	server, client float64 // microseconds a call; server -1: not known
	again          int64
}

func sampleOf(m measured) sample {
	l := m.loads[0]
	ops := int64(0)
	for _, l := range m.loads {
		ops += l.Ops
	}
	s := sample{opsS: l.opsS, p50: quantileMS(l.hist, 50), p99: quantileMS(l.hist, 99), server: -1}
	for _, l := range m.loads {
		s.again += l.Again
	}
	if l.All > 0 {
		s.rejected = float64(l.Rejected) / float64(l.All)
	}
	if ops > 0 {
		s.client = perCall(m.client, ops)
		if m.server >= 0 {
			s.server = perCall(m.server, ops)
		}
	}
	return s
}

func perCall(d time.Duration, n int64) float64 {
	return float64(d) / float64(time.Microsecond) / float64(n)
}

// rowOf takes medians over the rounds; base has the samples of the same rounds.
func rowOf(own, base []sample, ratioOf string) Row {
	pick := func(f func(sample) float64) float64 {
		vs := make([]float64, len(own))
		for n, s := range own {
			vs[n] = f(s)
		}
		return median(vs)
	}
	ratios := func(f func(sample) float64) []float64 {
		vs := make([]float64, 0, len(own))
		for n := range min(len(own), len(base)) {
			vs = append(vs, ratio(f(own[n]), f(base[n])))
		}
		return vs
	}
	opsS, p50, p99 := func(s sample) float64 { return s.opsS }, func(s sample) float64 { return s.p50 }, func(s sample) float64 { return s.p99 }
	r := Row{OpsS: pick(opsS), P50: pick(p50), P99: pick(p99), Ratios: ratios(opsS), ClientUS: pick(func(s sample) float64 { return s.client })}
	r.Rejected = pick(func(s sample) float64 { return s.rejected })
	r.P50Ratio, r.P99Ratio = median(ratios(p50)), median(ratios(p99))
	switch ratioOf {
	case "p50_ms":
		r.Ratios = ratios(p50)
	case "p99_ms":
		r.Ratios = ratios(p99)
	}
	r.Ratio = median(r.Ratios)
	if us := pick(func(s sample) float64 { return s.server }); us >= 0 {
		r.ServerUS = &us
	}
	for _, s := range own {
		r.SentAgain += s.again
	}
	return r
}

// ratio is 0 where there is nothing to compare with.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// median of an even number is the mean of the two in the middle.
func median(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	s := slices.Clone(vs)
	slices.Sort(s)
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// WriteText writes one table, ratios first.
func (r Result) WriteText(w io.Writer) error {
	var b strings.Builder
	buckets := count(r.Buckets, "bucket", "buckets")
	if r.Bench == Cost { // where carts have many lines, each is of a bucket of its own
		buckets = "buckets as each scheme says"
	}
	fmt.Fprintf(&b, "bench %s: %s, %s of %gs; median of the rounds\n", r.Bench, buckets, count(r.Runs, "round", "rounds"), r.Seconds)
	for _, extra := range []struct {
		on   bool
		text string
	}{
		{r.RTTMS > 0, fmt.Sprintf("%g ms added to each round trip", r.RTTMS)},
		{r.HoldMS > 0, fmt.Sprintf("%g ms held before each COMMIT", r.HoldMS)},
		{r.Rate > 0, fmt.Sprintf("open loop at %.0f calls a second; latency from when a call was due", r.Rate)},
		{r.Skew > 0, fmt.Sprintf("buckets by Zipf, exponent %g", r.Skew)},
		{r.Retries > 0, fmt.Sprintf("%g of the calls repeat the one before, with its key", r.Retries)},
		{r.Servers != "", r.Servers},
		{r.OthersCPU != nil, fmt.Sprintf("other processes used %.0f%% of the cores meanwhile", 100*deref(r.OthersCPU))},
	} {
		if extra.on {
			fmt.Fprintln(&b, extra.text)
		}
	}
	fmt.Fprintln(&b)
	r.table(&b)
	fmt.Fprintln(&b)
	told := map[string]bool{}
	for _, row := range r.Rows {
		if !told[row.Scheme] {
			fmt.Fprintf(&b, "%s: %s%s\n", row.Scheme, row.What, base(row.Scheme == row.Base))
			told[row.Scheme] = true
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// table writes the rows; an empty line stands before each group that has a base of its own.
func (r Result) table(b *strings.Builder) {
	head := "ratio"
	if q, ok := strings.CutSuffix(r.RatioOf, "_ms"); ok {
		head = q + " ratio"
	}
	const line = "%9s  %-21s %7s %9s %9s %9s %9s %12s %12s  %s%s\n"
	fmt.Fprintf(b, line, head, "scheme", "callers", "processes", "ops/s", "p50 ms", "p99 ms", "server us/op", "client us/op", "exact", "")
	for n, row := range r.Rows {
		if before := r.Rows[max(n-1, 0)]; before.Base != row.Base || before.Callers != row.Callers || before.Processes != row.Processes {
			fmt.Fprintln(b)
		}
		fmt.Fprintf(b, line, fixed(row.Ratio, 2), row.Scheme, strconv.Itoa(row.Callers), strconv.Itoa(row.Processes), fixed(row.OpsS, 0),
			fixed(row.P50, 2), fixed(row.P99, 2), orDash(row.ServerUS), fixed(row.ClientUS, 0), yes(row.Exact), r.remark(row))
	}
}

// remark tells what only Cost and Mirror have to tell of a row.
func (r Result) remark(row Row) string {
	switch {
	case r.Bench == Mirror:
		return "  p99 ratio " + fixed(row.P99Ratio, 2)
	case r.Bench != Cost:
		return ""
	case row.ServerUSLine != nil:
		return fmt.Sprintf("  %s us of the server a line", fixed(*row.ServerUSLine, 0))
	case row.Rejected >= 0.005:
		return fmt.Sprintf("  %.0f%% of the calls were rejected", 100*row.Rejected)
	}
	return ""
}

func deref(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func orDash(v *float64) string {
	if v == nil {
		return "-"
	}
	return fixed(*v, 0)
}

func fixed(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func base(is bool) string {
	if is {
		return " (the base: 1.00)"
	}
	return ""
}
