package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// measured is a job's outcome over all its processes.
type measured struct {
	loads  []loadResult
	client time.Duration
	server time.Duration // -1: not known
}

// loadResult is one load, summed.
type loadResult struct {
	Tally
	opsS float64
	hist *hdrhistogram.Histogram
}

// split gives each process its share of the callers, the rate and the holds.
func split(j Job, processes int) []Job {
	jobs := make([]Job, processes)
	for p := range jobs {
		jobs[p] = j
		jobs[p].Process = p
		jobs[p].Loads = make([]Load, len(j.Loads))
		for n, l := range j.Loads {
			share := l
			share.Callers = (l.Callers + processes - 1 - p) / processes
			share.Rate = l.Rate * float64(share.Callers) / float64(l.Callers)
			all := l.Last - l.First
			share.First = l.First + all*uint64(p)/uint64(processes)
			share.Last = l.First + all*uint64(p+1)/uint64(processes)
			jobs[p].Loads[n] = share
		}
	}
	return jobs
}

// runJob carries a job out, in this process or in several, and sums.
func runJob(ctx context.Context, o Options, j Job, processes int) (measured, error) {
	if processes == 1 {
		rep, err := Work(ctx, j, func(context.Context) error { return nil })
		if err != nil {
			return measured{}, err
		}
		return sum([]Report{rep})
	}
	if o.Worker == nil {
		return measured{}, errors.New("bench: more than one process needs Options.Worker")
	}
	jobs := split(j, processes)
	reports := make([]Report, len(jobs))
	errs := make([]error, len(jobs))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg, ready sync.WaitGroup
	ready.Add(len(jobs))
	for n := range jobs {
		wg.Go(func() {
			reports[n], errs[n] = runChild(ctx, o, jobs[n], sync.OnceFunc(ready.Done), ready.Wait)
			if errs[n] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	if err := firstCause(errs); err != nil {
		return measured{}, err
	}
	return sum(reports)
}

// firstCause prefers an error that is not just the end of the others.
func firstCause(errs []error) error {
	var last error
	for _, err := range errs {
		if err == nil {
			continue
		}
		last = err
		if !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return last
}

// sum adds up what the processes saw. Rates add; so do CPU times of the callers; each process saw the whole server.
func sum(reports []Report) (measured, error) {
	m := measured{server: -1, loads: make([]loadResult, len(reports[0].Tallies))}
	for n := range m.loads {
		m.loads[n].hist = newHistogram()
	}
	for _, rep := range reports {
		m.client += rep.ClientCPU
		m.server = max(m.server, rep.ServerCPU)
		for n, t := range rep.Tallies {
			h, err := decodeHistogram(t.Latency)
			if err != nil {
				return m, err
			}
			l := &m.loads[n]
			l.hist.Merge(h)
			l.Ops += t.Ops
			l.Granted += t.Granted
			l.Rejected += t.Rejected
			l.Claimed += t.Claimed
			l.Released += t.Released
			l.Replayed += t.Replayed
			l.Again += t.Again
			l.All += t.All
			l.Span = max(l.Span, t.Span)
			l.Elapsed = max(l.Elapsed, t.Elapsed)
			l.RanOut = l.RanOut || t.RanOut
			if t.Elapsed > 0 {
				l.opsS += float64(t.Ops) / t.Elapsed.Seconds()
			}
		}
	}
	return m, nil
}

// runChild runs a job in a process of its own: the job goes in, "ready" comes out, "go" goes in once all are ready, the
// report comes out.
func runChild(ctx context.Context, o Options, j Job, ready func(), allReady func()) (rep Report, err error) {
	defer ready() // one that fails does not hold up the others
	cmd, err := o.Worker(ctx)
	if err != nil {
		return rep, fmt.Errorf("start a process of callers: %w", err)
	}
	in, out, said, err := start(cmd)
	if err != nil {
		return rep, err
	}
	defer func() {
		_ = in.Close() // the process ends with its stdin
		ended := cmd.Wait()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case ended != nil:
			err = fmt.Errorf("a process of callers failed: %w: %s", ended, strings.TrimSpace(said.String()))
		}
	}()
	enc, dec := json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))
	if err := enc.Encode(j); err != nil {
		return rep, fmt.Errorf("send a job to a process of callers: %w", err)
	}
	var word string
	if err := dec.Decode(&word); err != nil {
		return rep, fmt.Errorf("wait for a process of callers: %w", err)
	}
	ready()
	allReady()
	if err := enc.Encode("go"); err != nil {
		return rep, fmt.Errorf("start a process of callers: %w", err)
	}
	if err := dec.Decode(&rep); err != nil {
		return rep, fmt.Errorf("read the report of a process of callers: %w", err)
	}
	if len(rep.Tallies) != len(j.Loads) {
		return rep, fmt.Errorf("a process of callers reported %d loads, not %d", len(rep.Tallies), len(j.Loads))
	}
	return rep, nil
}

func start(cmd *exec.Cmd) (in io.WriteCloser, out io.Reader, said *strings.Builder, err error) {
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, nil, nil, fmt.Errorf("start a process of callers: %w", err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, nil, fmt.Errorf("start a process of callers: %w", err)
	}
	said = new(strings.Builder)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("start a process of callers: %w", err)
	}
	return in, out, said, nil
}

// Serve is what a process of callers does: it reads one job, says that it is ready, waits for the word, and reports.
// It ends when its stdin does, since then whoever started it is gone.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	var j Job
	if err := dec.Decode(&j); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	rep, err := Work(ctx, j, func(context.Context) error {
		if err := enc.Encode("ready"); err != nil {
			return fmt.Errorf("say ready: %w", err)
		}
		var word string
		if err := dec.Decode(&word); err != nil {
			return fmt.Errorf("wait for the word: %w", err)
		}
		go func() {
			_ = dec.Decode(&word) // returns at the end of stdin
			cancel(errors.New("the process that started this one is gone"))
		}()
		return nil
	})
	if err != nil {
		return err
	}
	if err := enc.Encode(rep); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
