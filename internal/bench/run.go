package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// site is a scheme of this run, with its place.
type site struct {
	scheme scheme
	place  place
	told   told
	seed   uint64 // of the last holds
}

// entrant is a scheme with so many callers in so many processes: a row of the table.
type entrant struct {
	*site
	callers, processes int
	samples            []sample
	rate               float64 // of claims, as seen so far
	exact              bool
}

// Run measures. The result holds what was measured before an error, too.
func Run(ctx context.Context, o Options) (res Result, err error) {
	o = o.withDefaults()
	if err := o.Validate(); err != nil {
		return res, err
	}
	b, _ := benchOf(o.Bench)
	r := &run{o: o, bench: b, scratch: newScratch(o.Servers)}
	defer func() { err = errors.Join(err, r.scratch.clean(ctx)) }()
	if err := r.setUp(ctx); err != nil {
		return r.result(), err
	}
	others := newOthers(o.Servers.MySQLPID, o.Servers.RedisPID)
	defer func() { res.OthersCPU = others.share() }()
	switch o.Bench {
	case Neighbours:
		err = r.neighbours(ctx)
	case Mirror:
		err = r.mirror(ctx)
	default:
		err = r.alternate(ctx)
	}
	return r.result(), err
}

type run struct {
	o        Options
	bench    bench
	scratch  *scratch
	entrants []*entrant
}

// setUp makes the sites, and the table's rows: what is compared stands together.
func (r *run) setUp(ctx context.Context) error {
	sites, err := r.sites(ctx)
	if err != nil {
		return err
	}
	for _, part := range append(r.bench.parts(), "") {
		for _, processes := range r.o.Processes {
			for _, callers := range r.o.Callers {
				for _, s := range sites {
					if s.scheme.size.part == part && callers >= processes*r.o.perProcess() && (callers == 1 || !s.scheme.size.alone) {
						r.entrants = append(r.entrants, &entrant{site: s, callers: callers, processes: processes, exact: true})
					}
				}
			}
		}
	}
	return nil
}

func (r *run) sites(ctx context.Context) (sites []*site, err error) {
	for _, s := range r.bench.schemes {
		if !slices.Contains(r.o.Schemes, s.name) {
			continue
		}
		p, err := r.scratch.add(ctx, max(r.o.Buckets, s.size.lines))
		if err != nil {
			return nil, err
		}
		r.o.Progress("setting up " + s.name)
		laid, err := s.setUp(ctx, p, r.bench.stockOf(s))
		if err != nil {
			return nil, err
		}
		sites = append(sites, &site{scheme: s, place: p, told: told{laid: laid}})
	}
	return sites, nil
}

// alternate lets the schemes take turns, every other round in reverse, so that none always follows the same one.
func (r *run) alternate(ctx context.Context) error {
	for round := range r.o.Rounds {
		order := slices.Clone(r.entrants)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, e := range order {
			r.o.Progress(fmt.Sprintf("round %d of %d: %s, %s", round+1, r.o.Rounds, e.scheme.name, count(e.callers, "caller", "callers")))
			m, err := r.measure(ctx, e, r.bench.loads(e.callers, r.o.Rate))
			if err != nil {
				return err
			}
			e.samples = append(e.samples, sampleOf(m))
		}
	}
	return nil
}

func (r *run) job(e *entrant, loads []Load) Job {
	j := Job{
		Bench: r.o.Bench, Scheme: e.scheme.name, DSN: e.place.DSN, Redis: e.place.Redis, Prefix: e.place.Prefix,
		RTT: r.o.RTT, Hold: r.o.Hold, Buckets: r.o.Buckets, Lines: e.scheme.size.lines, Skew: r.o.Skew, Retries: r.o.Retries,
		Warmup: r.o.warmup(), Measure: r.o.Measure, Loads: loads,
	}
	pids := []int{r.o.Servers.MySQLPID}
	switch {
	case e.scheme.both:
		pids = append(pids, r.o.Servers.RedisPID)
	case e.scheme.redis:
		pids[0] = r.o.Servers.RedisPID
	}
	if !slices.Contains(pids, 0) {
		j.PIDs = pids
	}
	return j
}

// measure runs a scheme once and balances its books.
func (r *run) measure(ctx context.Context, e *entrant, loads []Load) (measured, error) {
	j := r.job(e, loads)
	if err := r.probe(ctx, e, j); err != nil {
		return measured{}, err
	}
	for try := 1; ; try++ {
		if err := r.layHolds(ctx, e, j); err != nil {
			return measured{}, err
		}
		m, err := r.runOnce(ctx, e, j)
		if err != nil {
			return m, err
		}
		switch none := slices.ContainsFunc(m.loads, func(l loadResult) bool { return l.Ops == 0 && !l.RanOut }); {
		case none && try == maxTries:
			return m, fmt.Errorf("scheme %s answered no call in %v", e.scheme.name, j.Measure)
		case none:
			j.Measure *= 4 // a machine that others keep busy may stand still for a short time
		case !cutShort(m, j.Measure) || try == maxTries:
			return m, nil
		}
	}
}

// runOnce runs a job and balances the books.
func (r *run) runOnce(ctx context.Context, e *entrant, j Job) (measured, error) {
	m, err := runJob(ctx, r.o, j, e.processes)
	if err != nil {
		return m, fmt.Errorf("scheme %s: %w", e.scheme.name, err)
	}
	e.told.add(m)
	for n, l := range j.Loads {
		if l.Kind == claimLoad && m.loads[n].Span > 0 {
			e.rate = max(e.rate, float64(m.loads[n].All)/m.loads[n].Span.Seconds())
		}
	}
	if r.o.tamper != nil {
		if err := r.o.tamper(ctx, e); err != nil {
			return m, err
		}
	}
	b, err := e.scheme.read(ctx, e.place, r.bench.stockOf(e.scheme))
	if err != nil {
		return m, err
	}
	if err := b.check(e.scheme.name, e.told); err != nil {
		e.exact = false
		return m, err
	}
	return m, nil
}

const (
	probeHolds   = 3000
	probeTime    = 500 * time.Millisecond
	maxHolds     = 1_000_000
	maxTries     = 3
	spareOfHolds = 1.5
)

// probe learns how fast claims are, so that enough holds can be laid.
func (r *run) probe(ctx context.Context, e *entrant, j Job) error {
	if e.rate > 0 || !slices.ContainsFunc(j.Loads, func(l Load) bool { return l.Kind == claimLoad }) {
		return nil
	}
	j.Warmup, j.Measure = 0, probeTime
	loads := slices.Clone(j.Loads)
	j.Loads = loads
	if err := r.lay(ctx, e, j.Loads, probeHolds); err != nil {
		return err
	}
	_, err := r.runOnce(ctx, e, j)
	return err
}

// layHolds lays as many holds as the claims of a job will take, and some to spare.
func (r *run) layHolds(ctx context.Context, e *entrant, j Job) error {
	span := (j.Warmup + j.Measure).Seconds()
	for _, l := range j.Loads {
		if l.Kind != claimLoad {
			continue
		}
		rate := e.rate
		if l.Rate > 0 {
			rate = min(rate, l.Rate)
		}
		n := min(max(uint64(rate*span*spareOfHolds), probeHolds), maxHolds)
		if err := r.lay(ctx, e, j.Loads, n); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) lay(ctx context.Context, e *entrant, loads []Load, n uint64) error {
	e.seed = max(e.seed+1, uint64(time.Now().UnixMilli()))
	for i := range loads {
		if loads[i].Kind != claimLoad {
			continue
		}
		loads[i].Seed, loads[i].First, loads[i].Last = e.seed, 0, n
		h := holds{seed: e.seed, first: 0, last: n}
		if err := h.lay(ctx, e.place, newPicker(r.o.Buckets, r.o.Skew, e.seed)); err != nil {
			return err
		}
		e.told.laid += int64(n)
	}
	return nil
}

// cutShort tells whether the holds were used up before half of the time was over.
func cutShort(m measured, asked time.Duration) bool {
	return slices.ContainsFunc(m.loads, func(l loadResult) bool { return l.RanOut && l.Elapsed < asked/2 })
}

func (r *run) result() Result {
	o := r.o
	res := Result{
		Bench: o.Bench, Base: o.Base, Rows: []Row{}, RatioOf: "ops_s", Seconds: o.Measure.Seconds(), Runs: o.Rounds,
		Buckets: o.Buckets, Skew: o.Skew, Retries: o.Retries, Rate: o.Rate,
		RTTMS: ms(o.RTT), HoldMS: ms(o.Hold), Servers: o.Servers.Versions,
	}
	switch o.Bench {
	case Neighbours:
		res.RatioOf = "p99_ms"
	case Mirror:
		res.RatioOf = "p50_ms"
	}
	for _, e := range r.entrants {
		if len(e.samples) == 0 && e.exact {
			continue
		}
		base := r.bench.base(e.scheme.name, o.Base)
		row := rowOf(e.samples, r.samples(base, e), res.RatioOf)
		row.Scheme, row.Callers, row.Processes, row.Exact, row.What = e.scheme.name, e.callers, e.processes, e.exact, e.scheme.what
		row.Base = base
		if lines := e.scheme.size.lines; lines > 0 && row.ServerUS != nil {
			us := *row.ServerUS / float64(lines)
			row.ServerUSLine = &us
		}
		res.Rows = append(res.Rows, row)
	}
	return res
}

// samples are those of the scheme with as many callers and processes as e.
func (r *run) samples(scheme string, e *entrant) []sample {
	for _, b := range r.entrants {
		if b.scheme.name == scheme && b.callers == e.callers && b.processes == e.processes {
			return b.samples
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
