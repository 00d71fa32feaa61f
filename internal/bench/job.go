package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Kinds of load.
const (
	reserveLoad = "reserve"
	claimLoad   = "claim"
	pairLoad    = "reserve and release" // what is granted is given back within the call
)

// Job is what one process does for one scheme in one round. It travels as JSON to processes of their own.
type Job struct {
	Bench, Scheme      string
	DSN, Redis, Prefix string
	Process            int
	RTT, Hold          time.Duration
	Buckets            int
	Lines              int // of each cart
	Skew, Retries      float64
	Warmup, Measure    time.Duration
	Loads              []Load
	// PIDs are the servers' whose CPU is counted.
	PIDs []int
}

// Load is callers that do the same.
type Load struct {
	Kind    string
	Callers int
	// Rate is of all these callers together; 0: each calls again as soon as it was answered.
	Rate float64
	// The holds that claims take: numbers First to Last, without Last.
	Seed, First, Last uint64
}

// callers is how many call at once.
func (j Job) callers() int {
	n := 0
	for _, l := range j.Loads {
		n += l.Callers
	}
	return n
}

// Report is what a process saw.
type Report struct {
	Tallies []Tally // by load
	// ClientCPU and ServerCPU were used while it was measured; ServerCPU is -1 where it is not known.
	ClientCPU, ServerCPU time.Duration
}

// Tally is what became of one load's calls.
type Tally struct {
	// Ops were answered while it was measured, in Elapsed, each with its latency.
	Ops     int64
	Elapsed time.Duration
	Latency []byte // a histogram of microseconds
	// These count the whole job, since the books must balance: answers that were given for the first time.
	Granted, Rejected, Claimed, Released int64

	Replayed int64 // calls that repeated one, and were answered as it was
	Again    int64 // calls that were sent again because their outcome was unknown or the store was busy
	// All are the calls of the whole job, and Span how long that took.
	All    int64
	Span   time.Duration
	RanOut bool // the holds were used up
}

// Work carries a job out in this process. start waits until it may begin, once everything is connected.
func Work(ctx context.Context, j Job, start func(context.Context) error) (rep Report, err error) {
	b, ok := benchOf(j.Bench)
	sch := b.scheme(j.Scheme)
	if !ok || sch.open == nil {
		return rep, fmt.Errorf("no scheme %s of bench %s", j.Scheme, j.Bench)
	}
	stop, err := j.delay()
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	s, err := sch.open(ctx, j)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := start(ctx); err != nil {
		return rep, err
	}
	return j.run(ctx, s)
}

// delay puts delay lines before both servers, if a round trip is to take longer.
func (j *Job) delay() (stop func() error, err error) {
	var lines []*delayLine
	stop = func() error {
		var errs []error
		for _, l := range lines {
			errs = append(errs, l.close())
		}
		return errors.Join(errs...)
	}
	if j.RTT == 0 {
		return stop, nil
	}
	cfg, err := mysql.ParseDSN(j.DSN)
	if err != nil {
		return stop, fmt.Errorf("MySQL DSN: %w", err)
	}
	o, err := redisOptions(j.Redis)
	if err != nil {
		return stop, err
	}
	db, err := newDelayLine(cfg.Net, cfg.Addr, j.RTT)
	if err != nil {
		return stop, err
	}
	lines = append(lines, db)
	counters, err := newDelayLine(o.Network, o.Addr, j.RTT)
	if err != nil {
		return stop, errors.Join(err, stop())
	}
	lines = append(lines, counters)
	cfg.Net, cfg.Addr = "tcp", db.addr()
	j.DSN, j.Redis = cfg.FormatDSN(), withAddr(j.Redis, counters.addr())
	return stop, nil
}

// run lets all loads run at once: warm-up, then what is measured.
func (j Job) run(ctx context.Context, s session) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := window{start: time.Now()}
	w.begin = w.start.Add(j.Warmup)
	w.end = w.begin.Add(j.Measure)

	loops := make([]*loop, len(j.Loads))
	var wg sync.WaitGroup
	for n, l := range j.Loads {
		loops[n] = newLoop(j, l, s, w)
		wg.Go(func() {
			if err := loops[n].run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	var cpu meter
	wg.Go(func() { cpu.watch(ctx, j.PIDs, w) })
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return Report{}, err
	}
	rep := Report{ClientCPU: cpu.client, ServerCPU: cpu.server}
	for _, l := range loops {
		t, err := l.tally()
		if err != nil {
			return rep, err
		}
		rep.Tallies = append(rep.Tallies, t)
	}
	return rep, nil
}

// window is when a job starts, when it begins to be measured, and when it ends.
type window struct{ start, begin, end time.Time }

// meter sums CPU time between the two ends of the window.
type meter struct{ client, server time.Duration }

func (m *meter) watch(ctx context.Context, pids []int, w window) {
	if wait(ctx, time.Until(w.begin)) != nil {
		return
	}
	known := true
	sum := func() (all time.Duration) {
		for _, pid := range pids {
			d, ok := processCPU(pid)
			known = known && ok
			all += d
		}
		return all
	}
	client, server := ownCPU(), sum()
	if wait(ctx, time.Until(w.end)) != nil {
		return
	}
	m.client, m.server = ownCPU()-client, sum()-server
	if !known || len(pids) == 0 {
		m.server = -1
	}
}

// wait lets time pass, or gives why the context has ended.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
