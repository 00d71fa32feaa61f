package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Round is what one round found.
type Round struct {
	Began time.Time
	Took  time.Duration
	// Source is where it read. Lag is how far the replica was behind, also where it was too far to be read.
	Source Source
	Lag    time.Duration
	// Findings are all faults of this round, lasting or not yet, in a fixed order.
	Findings []Finding
	// Notes say what a person should know of the round: a replica that was not read, more faults than are listed.
	Notes []string
	// Unconfirmed is how many faults only the replica had: lag, or a replica that is not the primary's copy.
	Unconfirmed int
	Read        Counts
}

// Lasting gives the findings that have been there for enough rounds.
func (round Round) Lasting() []Finding {
	return slices.DeleteFunc(slices.Clone(round.Findings), func(f Finding) bool { return !f.Lasting })
}

// Reconciler runs rounds and remembers what the last ones found. It is safe for concurrent use; rounds run one by one.
type Reconciler struct {
	opts    Options
	metrics *metrics

	mu     sync.Mutex
	streak map[key]Finding
	noted  string // what the last round noted, so that a log says it once
}

// New makes a Reconciler. It asks no server anything.
func New(o Options) (*Reconciler, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Reconciler{opts: o, metrics: newMetrics(o.Registerer, o.Pod), streak: map[key]Finding{}}, nil
}

// Round reads everything once. An error says that it could not be read whole: then nothing is judged, and what earlier
// rounds found neither grows older nor goes away.
func (r *Reconciler) Round(ctx context.Context) (Round, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := time.Now()
	round := Round{Began: began, Source: Primary}
	seen, err := r.look(ctx, &round)
	round.Took = time.Since(began)
	if err != nil {
		r.metrics.rounds.WithLabelValues(string(round.Source), "failed").Inc()
		return round, fmt.Errorf("reconcile pod %s: %w", r.opts.Pod, err)
	}
	r.judge(ctx, &round, seen)
	r.metrics.rounds.WithLabelValues(string(round.Source), "ok").Inc()
	r.metrics.seconds.Observe(round.Took.Seconds())
	r.metrics.lag.Set(round.Lag.Seconds())
	r.metrics.last.SetToCurrentTime()
	return round, nil
}

// look reads the replica where it can, else the primary.
func (r *Reconciler) look(ctx context.Context, round *Round) (map[key]Finding, error) {
	if r.opts.Replica == nil {
		return r.lookAt(ctx, r.primary(), round)
	}
	b, err := r.lagOf(ctx)
	round.Lag = b.Lag
	if err == nil && b.Stopped {
		round.note("the replica has stopped following: see SHOW REPLICA STATUS on it")
	}
	switch {
	case err == nil && b.Lag > r.opts.MaxLag:
		round.note("the replica is %s behind, more than %s: the primary was read", b.Lag.Round(time.Second), r.opts.MaxLag)
	case err == nil:
		var seen map[key]Finding
		src := &source{db: r.opts.Replica, name: Replica, lag: b.Lag, timeout: r.opts.PageTimeout}
		if seen, err = r.lookAt(ctx, src, round); err == nil {
			return seen, nil
		}
	}
	var pe *primaryError
	if err != nil && (ctx.Err() != nil || errors.As(err, &pe)) {
		return nil, err
	}
	if err != nil {
		round.note("the replica could not be read (%v): the primary was read", err)
	}
	return r.lookAt(ctx, r.primary(), round)
}

func (r *Reconciler) primary() *source {
	return &source{db: r.opts.Primary, name: Primary, timeout: r.opts.PageTimeout}
}

func (round *Round) note(format string, args ...any) {
	round.Notes = append(round.Notes, fmt.Sprintf(format, args...))
}

// lookAt reads one source. What a replica shows is asked of the primary as well.
func (r *Reconciler) lookAt(ctx context.Context, src *source, round *Round) (map[key]Finding, error) {
	round.Source, round.Read, round.Unconfirmed = src.name, Counts{}, 0
	seen, more := map[key]Finding{}, map[Check]int{}
	of := map[Check]int{}
	type doubt struct {
		walk    walk
		suspect suspect
	}
	var doubts []doubt
	err := r.walkAll(ctx, src, &round.Read, func(w walk, s suspect) {
		if of[s.Check]++; of[s.Check] > r.opts.MaxFindings {
			more[s.Check]++
			return
		}
		if src.name == Primary {
			seen[s.key()] = s.Finding
			return
		}
		doubts = append(doubts, doubt{w, s})
	})
	if err != nil {
		return nil, err
	}
	for _, d := range doubts {
		f, there, err := r.confirm(ctx, d.walk, d.suspect, &round.Read)
		if err != nil {
			return nil, &primaryError{err}
		}
		if !there {
			round.Unconfirmed++
			continue
		}
		seen[f.key()] = f
	}
	if round.Unconfirmed > 0 {
		round.note("%d faults are on the replica only, and do not count: it is behind, or it is not the primary's copy", round.Unconfirmed)
	}
	for _, c := range slices.Sorted(maps.Keys(more)) {
		round.note("%s: %d more are not listed", c, more[c])
	}
	return seen, nil
}

// confirm looks whether the primary has the fault too, and gives it with the primary's figures.
func (r *Reconciler) confirm(ctx context.Context, w walk, s suspect, counts *Counts) (Finding, bool, error) {
	began := time.Now()
	p, err := r.page(ctx, r.primary(), w, s.before, 1, counts)
	if err != nil {
		return Finding{}, false, err
	}
	if err := r.rest(ctx, time.Since(began)); err != nil {
		return Finding{}, false, err
	}
	for _, have := range p.suspects {
		if have.key() == s.key() {
			return have.Finding, true, nil
		}
	}
	return Finding{}, false, nil
}

// judge counts in how many rounds in a row each fault was there, and tells of those that have just begun to last and of
// those that are gone.
func (r *Reconciler) judge(ctx context.Context, round *Round, seen map[key]Finding) {
	lasting := map[Check]int{}
	suspects := 0
	for k, f := range seen {
		was := r.streak[k]
		f.Rounds = was.Rounds + 1
		f.Lasting = f.Rounds >= r.opts.Rounds
		seen[k] = f
		round.Findings = append(round.Findings, f)
		if !f.Lasting {
			suspects++
			continue
		}
		lasting[f.Check]++
		if !was.Lasting {
			r.opts.Logger.ErrorContext(ctx, "MySQL has a fault that lasts", "pod", r.opts.Pod, "check", string(f.Check), "at", f.where(), "found", f.Found, "fix", f.Fix)
		}
	}
	slices.SortFunc(round.Findings, Finding.compare)
	for k, f := range r.streak {
		if _, still := seen[k]; !still && f.Lasting {
			r.opts.Logger.InfoContext(ctx, "a fault in MySQL is gone", "pod", r.opts.Pod, "check", string(f.Check), "at", f.where())
		}
	}
	r.streak = seen
	for _, c := range Checks() {
		r.metrics.findings.WithLabelValues(string(c)).Set(float64(lasting[c]))
	}
	r.metrics.suspects.Set(float64(suspects))
	r.tellNotes(ctx, *round)
}

// Forget drops what earlier rounds found: others run them now.
func (r *Reconciler) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streak = map[key]Finding{}
	for _, c := range Checks() {
		r.metrics.findings.WithLabelValues(string(c)).Set(0)
	}
	r.metrics.suspects.Set(0)
}

// tellNotes logs what there is to know of a round, unless the last one's was of the same kind.
func (r *Reconciler) tellNotes(ctx context.Context, round Round) {
	kind := fmt.Sprint(round.Source, len(round.Notes))
	if len(round.Notes) > 0 && kind != r.noted {
		r.opts.Logger.WarnContext(ctx, "reconcile", "pod", r.opts.Pod, "notes", round.Notes)
	}
	r.noted = kind
}

// Verdict is what several rounds say together.
type Verdict struct {
	// Last is the last round, and Rounds how many there were.
	Last   Round
	Rounds int
}

// OK tells that nothing lasts.
func (v Verdict) OK() bool { return len(v.Last.Lasting()) == 0 }

// Judge runs rounds with a pause between them until each fault lasts or is gone: one where nothing is found. told, if not
// nil, hears of each. A fault that comes and goes is given up after twice the rounds.
func (r *Reconciler) Judge(ctx context.Context, pause time.Duration, told func(Round)) (Verdict, error) {
	var v Verdict
	for {
		round, err := r.Round(ctx)
		if err != nil {
			return v, err
		}
		v.Last, v.Rounds = round, v.Rounds+1
		if told != nil {
			told(round)
		}
		settled := !slices.ContainsFunc(round.Findings, func(f Finding) bool { return !f.Lasting })
		if settled || v.Rounds >= 2*r.opts.Rounds {
			return v, nil
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return v, context.Cause(ctx)
		case <-t.C:
		}
	}
}
