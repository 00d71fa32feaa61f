package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Options say what is measured, where and for how long. Bench and Servers are required; a zero value elsewhere takes
// the default.
type Options struct {
	// Bench is one of Benches.
	Bench   string
	Servers Servers
	// Schemes are measured; default: all of the bench. Base is what ratios are to; it is always measured.
	Schemes []string
	Base    string

	// Only limits Cost to one of its parts.
	Only string

	// Callers call at once, over all processes: each number is measured. Default 64; 32 for neighbours, half of them
	// claimers; 1 and 64 for cost; 16 for mirror.
	Callers []int
	// Measure is how long each scheme is measured in each round, after a warm-up. Default 5s.
	Measure time.Duration
	// Rounds is how often the schemes alternate. Default 3; 5 for mirror.
	Rounds int
	// Processes carry the callers, each with connections of its own: each number is measured, with every number of
	// callers that is enough for it. Default 1: this process.
	Processes []int
	// RTT is added to each round trip between callers and both servers.
	RTT time.Duration
	// Hold is waited before each COMMIT.
	Hold time.Duration
	// Buckets spread the load, by Skew: 0 is evenly, else Zipf's exponent. Default 1 bucket; 100 for mirror.
	Buckets int
	Skew    float64
	// Retries is the fraction of calls that repeat the caller's last one, with the same key.
	Retries float64
	// Rate, if not 0, makes it an open loop: calls are due at this rate in all, come what may.
	Rate float64

	// Worker makes a command that runs Work on its stdin and stdout. It is needed for more than one process.
	Worker   func(ctx context.Context) (*exec.Cmd, error)
	Progress func(string)

	tamper func(ctx context.Context, e *entrant) error // tests lose or double a unit, before the books are checked
}

// Bounds of what can be asked for.
const (
	maxCallers   = 4096
	maxProcesses = 64
	maxBuckets   = 100_000
	maxRounds    = 100
	maxSkew      = 10
	maxRate      = 1e6
	maxMeasure   = time.Hour
	maxDelay     = time.Second

	defaultMeasure = 5 * time.Second
	defaultRounds  = 3
)

// DefaultCallers are how many call at once where nobody says so.
func DefaultCallers(bench string) []int {
	switch bench {
	case Neighbours:
		return []int{32}
	case Cost:
		return []int{1, 64}
	case Mirror:
		return []int{16}
	}
	return []int{64}
}

// DefaultRounds is how many there are where nobody says so.
func DefaultRounds(bench string) int {
	if bench == Mirror {
		return mirrorRounds
	}
	return defaultRounds
}

// DefaultBuckets is how many share the load where nobody says so.
func DefaultBuckets(bench string) int {
	if bench == Mirror {
		return mirrorBuckets
	}
	return 1
}

func (o Options) withDefaults() Options {
	if len(o.Callers) == 0 {
		o.Callers = DefaultCallers(o.Bench)
	}
	if o.Measure == 0 {
		o.Measure = defaultMeasure
	}
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds(o.Bench)
	}
	if len(o.Processes) == 0 {
		o.Processes = []int{1}
	}
	if o.Buckets == 0 {
		o.Buckets = DefaultBuckets(o.Bench)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	b, ok := benchOf(o.Bench)
	if !ok {
		return o
	}
	if len(o.Schemes) == 0 {
		o.Schemes = b.names(o.Only)
	}
	if o.Base == "" {
		o.Base = b.schemes[0].name
		if len(o.Schemes) > 0 {
			o.Base = b.base(o.Schemes[0], o.Base)
		}
	}
	for _, name := range slices.Clone(o.Schemes) {
		if base := b.base(name, o.Base); !slices.Contains(o.Schemes, base) {
			o.Schemes = append([]string{base}, o.Schemes...)
		}
	}
	return o
}

// perProcess is how many callers a process needs at least.
func (o Options) perProcess() int {
	if o.Bench == Neighbours {
		return 2
	}
	return 1
}

// Validate tells every mistake that does not need a server.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	b, ok := benchOf(o.Bench)
	if !ok {
		return fmt.Errorf("there is no bench %q: use %s", o.Bench, strings.Join(Benches(), ", "))
	}
	if o.Only != "" && !slices.Contains(b.parts(), o.Only) {
		bad("bench %s has no part %q: it has %s", o.Bench, o.Only, cmp.Or(strings.Join(b.parts(), ", "), "none"))
	}
	for n, name := range append(slices.Clone(o.Schemes), o.Base) {
		if n == len(o.Schemes) && slices.Contains(o.Schemes, name) {
			continue // it has been looked at
		}
		if !slices.Contains(b.names(""), name) {
			bad("bench %s has no scheme %q: it has %s", o.Bench, name, strings.Join(b.names(""), ", "))
		}
	}
	errs = append(errs, o.validateCallers()...)
	if o.Measure < 100*time.Millisecond || o.Measure > maxMeasure {
		bad("%v for each scheme is out of range: use 0.1 to %.0f seconds", o.Measure, maxMeasure.Seconds())
	}
	if o.Rounds < 1 || o.Rounds > maxRounds {
		bad("runs %d is out of range: use 1 to %d", o.Rounds, maxRounds)
	}
	if o.Buckets < 1 || o.Buckets > maxBuckets {
		bad("buckets %d is out of range: use 1 to %d", o.Buckets, maxBuckets)
	}
	for name, d := range map[string]time.Duration{"rtt": o.RTT, "hold": o.Hold} {
		if d < 0 || d > maxDelay {
			bad("%s %v is out of range: use 0 to %v, as in 500us", name, d, maxDelay)
		}
	}
	if !(o.Skew >= 0 && o.Skew <= maxSkew) {
		bad("skew %v is out of range: use 0 (evenly) to %d", o.Skew, maxSkew)
	}
	if !(o.Retries >= 0 && o.Retries <= 0.9) {
		bad("retries %v is out of range: use a fraction from 0 to 0.9", o.Retries)
	}
	if math.IsNaN(o.Rate) || o.Rate < 0 || o.Rate > maxRate {
		bad("rate %v is out of range: use 1 to %.0f calls a second, or 0 for a closed loop", o.Rate, float64(maxRate))
	}
	if o.Rate > 0 && findsRate(o.Bench) {
		bad("%s finds its rate by itself: leave the rate out", o.Bench)
	}
	if o.Bench == Mirror && (o.Hold > 0 || o.Retries > 0 || slices.Max(o.Processes) > 1) {
		bad("mirror measures one router as it is: leave out hold, retries and processes")
	}
	return errors.Join(errs...)
}

// validateCallers wants every number to be in range, and to be of use with one of the others.
func (o Options) validateCallers() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, n := range o.Callers {
		if n < 1 || n > maxCallers {
			bad("callers %d is out of range: use 1 to %d", n, maxCallers)
		}
	}
	for _, n := range o.Processes {
		if n < 1 || n > maxProcesses {
			bad("processes %d is out of range: use 1 to %d", n, maxProcesses)
		}
	}
	least, most := slices.Min(o.Processes), slices.Max(o.Processes)
	switch {
	case len(errs) > 0: // which says what there is to say
	case slices.Min(o.Callers) < least*o.perProcess():
		bad("%d callers are too few for %d processes: use %d or more", slices.Min(o.Callers), least, least*o.perProcess())
	case slices.Max(o.Callers) < most*o.perProcess():
		bad("%d callers are too few for %d processes: use %d or more", slices.Max(o.Callers), most, most*o.perProcess())
	}
	if o.Only == partLines && !slices.Contains(o.Callers, 1) {
		bad("lines are measured with 1 caller: leave the callers out")
	}
	if findsRate(o.Bench) && len(o.Callers)*len(o.Processes) > 1 {
		bad("%s finds its rate for one number of callers and processes: run it once for each", o.Bench)
	}
	return errs
}

// warmup is how long a scheme runs before it is measured: connections, caches, a filled pool.
func (o Options) warmup() time.Duration {
	return min(max(o.Measure/4, min(o.Measure, 300*time.Millisecond)), 2*time.Second)
}
