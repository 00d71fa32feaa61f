package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/bench"
	"github.com/twinhold/twinhold/internal/devstack"
)

type benchFlags struct {
	opt      bench.Options
	seconds  float64
	devstack bool
	pod      string
}

func newBenchCmd(a *app) *cobra.Command {
	cmd := newGroupCmd(a, "bench", "Measure ways to reserve, claim and reject side by side in one run, ratios first")
	cmd.Long = "Measures several ways to do the same, in turns, on the same servers, and prints their ratios.\n" +
		"What callers were told is compared with what the store has, after every round: a lost or doubled unit is an error."
	cmd.Example = "  twinhold bench pool --devstack --callers 64\n  twinhold bench claim --devstack --rtt 500us"
	cmd.AddCommand(
		newBenchKindCmd(a, bench.Pool, "Reserves of hot buckets: single row, optimistic row, pool, Redis counter, Redis with records",
			"  twinhold bench pool --devstack --callers 64 --rtt 500us\n"+
				"  twinhold bench pool --devstack --callers 1 --schemes pool,pool_combined --base pool --runs 10"),
		newBenchKindCmd(a, bench.Claim, "Claims of holds: each alone, and combined", "  twinhold bench claim --devstack --callers 64"),
		newBenchKindCmd(a, bench.SoldOut, "Rejections where nothing is left: one stored each, and ours", "  twinhold bench soldout --devstack --callers 64"),
		newBenchKindCmd(a, bench.Neighbours, "Reserves with and without claims beside them, at a third of their maximum",
			"  twinhold bench neighbours --devstack --callers 32"),
		newBenchKindCmd(a, bench.Cost, "What a reserve and its release cost as stock, live holds and the lines of a cart grow",
			"  twinhold bench cost --devstack\n  twinhold bench cost --devstack --only lines"),
		newBenchKindCmd(a, bench.Mirror, "What the mirror costs callers: a router in stage legacy and in shadow, in alternating pairs",
			"  twinhold bench mirror --devstack"),
		newBenchWorkerCmd(a),
	)
	return cmd
}

func newBenchKindCmd(a *app, kind, short, example string) *cobra.Command {
	f := benchFlags{opt: bench.Options{Bench: kind}}
	cmd := &cobra.Command{
		Use:   kind,
		Short: short,
		Long: short + ".\n\n" +
			"With --devstack, or where there is no configuration, private servers are started for it and removed.\n" +
			"Else it runs on the servers of a configured pod, in schemas and keys of its own that are removed at the end;\n" +
			"the pod's tables and keys are never touched, but its servers are put under full load.\n" +
			"Exit 0: measured, and every scheme exact. Exit 1: an error, or a scheme lost or doubled a unit. Exit 2: refused, since\n" +
			"the account may not create schemas of its own there, or the server takes no writes.",
		Example: example,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.devstack && f.pod != "" {
				return usageError(cmd, errors.New("--devstack starts servers of its own: leave out --pod"))
			}
			ctx, stop := untilHangup(cmd.Context())
			defer stop()
			return a.bench(ctx, f, cmd.Flags().Changed("config"))
		},
	}
	fl := cmd.Flags()
	callers, processes := "how many call at once, over all processes; several `NUMBERS` by comma make one table", "processes that share the callers; several `NUMBERS` by comma make one table"
	switch kind {
	case bench.Neighbours:
		callers, processes = "how many call at once, over all processes; half of them claim", "processes that share the callers"
	case bench.Cost:
		callers += "; lines are measured with 1"
	}
	fl.IntSliceVar(&f.opt.Callers, "callers", bench.DefaultCallers(kind), callers)
	fl.IntSliceVar(&f.opt.Processes, "processes", []int{1}, processes)
	fl.Float64Var(&f.seconds, "seconds", 5, "how long each scheme is measured in each round")
	fl.IntVar(&f.opt.Rounds, "runs", bench.DefaultRounds(kind), "rounds; a ratio is the median of theirs")
	fl.DurationVar(&f.opt.RTT, "rtt", 0, "added to every round trip to both servers, as in 500us")
	fl.StringVar(&f.pod, "pod", "", "the pod whose servers are used; default: the first of the configuration")
	fl.BoolVar(&f.devstack, "devstack", false, "on private servers that are stopped at the end")
	if kind == bench.Cost {
		fl.StringVar(&f.opt.Only, "only", "", "only this `PART`: stock, holds or lines")
		return cmd
	}
	fl.IntVar(&f.opt.Buckets, "buckets", bench.DefaultBuckets(kind), "buckets that share the load")
	fl.Float64Var(&f.opt.Skew, "skew", 0, "how unevenly they do: Zipf's exponent; 0 is evenly")
	if kind == bench.Mirror {
		return cmd
	}
	fl.DurationVar(&f.opt.Hold, "hold", 0, "waited before each COMMIT, as in 5ms")
	fl.Float64Var(&f.opt.Retries, "retries", 0, "fraction of calls that repeat the one before, with its key")
	if kind != bench.Neighbours {
		fl.Float64Var(&f.opt.Rate, "rate", 0, "calls a second in all, due come what may, latency counted from then; 0: each caller waits for its answer")
	}
	fl.StringSliceVar(&f.opt.Schemes, "schemes", nil, "only these `SCHEMES`, by comma")
	fl.StringVar(&f.opt.Base, "base", "", "the `SCHEME` that ratios are to; default: the first")
	return cmd
}

// bench runs one bench. named: the person named a configuration.
func (a *app) bench(ctx context.Context, f benchFlags, named bool) (err error) {
	o := f.opt
	if err := f.check(); err != nil {
		return err
	}
	o.Measure = time.Duration(f.seconds * float64(time.Second))
	if err := o.Validate(); err != nil {
		return &exitError{code: exitFailed, err: err, hint: fmt.Sprintf("see twinhold bench %s --help; nothing was started", o.Bench)}
	}
	progress := newProgress(a.err)
	defer progress.end()
	o.Progress, o.Worker = progress.phase, benchWorker
	servers, stop, err := a.benchServers(ctx, f, named, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	o.Servers = servers
	res, err := bench.Run(ctx, o)
	progress.end()
	var inexact *bench.InexactError
	if err != nil && !errors.As(err, &inexact) {
		return benchError(err)
	}
	if err := a.printBench(res); err != nil {
		return err
	}
	return benchError(err)
}

// check refuses what a zero value would turn into a default.
func (f benchFlags) check() error {
	var errs []error
	if !(f.seconds > 0 && f.seconds <= time.Hour.Seconds()) {
		errs = append(errs, fmt.Errorf("seconds %v is out of range: use 0.1 to 3600", f.seconds))
	}
	if f.opt.Rounds == 0 {
		errs = append(errs, errors.New("runs 0 is out of range: use 1 or more"))
	}
	if f.opt.Buckets == 0 && f.opt.Bench != bench.Cost {
		errs = append(errs, errors.New("buckets 0 is out of range: use 1 or more"))
	}
	if len(errs) == 0 {
		return nil
	}
	return &exitError{code: exitFailed, err: errors.Join(errs...), hint: fmt.Sprintf("see twinhold bench %s --help; nothing was started", f.opt.Bench)}
}

// benchGrant is what a bench on a pod's servers needs.
const benchGrant = "GRANT ALL ON `twinhold\\_bench\\_%`.*"

// benchError says what to do about an error of a run.
func benchError(err error) error {
	var (
		inexact  *bench.InexactError
		noSchema *bench.NoSchemaError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &inexact):
		return &exitError{code: exitFailed, err: err, hint: "the figures above do not count: please report it, with the command"}
	case errors.As(err, &noSchema):
		return scratchError(err, benchGrant, mysqlHint(err, "use --devstack, with private servers; nothing was changed"))
	default:
		return scratchError(err, benchGrant, "fewer --callers or a shorter --seconds may be what this machine carries; what was made for the run is removed")
	}
}

func (a *app) printBench(res bench.Result) error {
	if a.format == formatJSON {
		return a.printJSON(res)
	}
	return res.WriteText(a.out)
}

// benchServers are private ones, or those of a configured pod.
func (a *app) benchServers(ctx context.Context, f benchFlags, named bool, p *progress) (bench.Servers, func() error, error) {
	if f.devstack || (!named && !fileExists(a.configPath)) {
		return benchDevstack(ctx, p)
	}
	stop := func() error { return nil }
	cfg, err := a.loadConfig()
	if err != nil {
		return bench.Servers{}, stop, err
	}
	pod, err := a.podOrFirst(cfg, f.pod)
	if err != nil {
		return bench.Servers{}, stop, err
	}
	return bench.Servers{MySQL: pod.MySQL.Reveal(), Redis: pod.Redis.Reveal(), Versions: "servers of " + pod.ID}, stop, nil
}

func benchDevstack(ctx context.Context, p *progress) (bench.Servers, func() error, error) {
	stack, err := devstack.Start(ctx, devstack.Options{MySQL: true, Redis: true, Progress: p.phase})
	if err != nil {
		return bench.Servers{}, nil, err
	}
	return bench.Servers{
		MySQL: stack.MySQL.DSN(""), Redis: stack.Redis.URL(0), MySQLPID: stack.MySQL.PID(), RedisPID: stack.Redis.PID(),
		Versions: fmt.Sprintf("MySQL %s, Redis %s, private, on this machine", stack.MySQL.Version, stack.Redis.Version),
	}, stack.Close, nil
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// benchWorker is this binary as a process of callers.
func benchWorker(ctx context.Context) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, self, "bench", benchWorkerUse), nil //nolint:gosec // this binary itself
}

const benchWorkerUse = "worker"

func newBenchWorkerCmd(*app) *cobra.Command {
	return &cobra.Command{
		Use:    benchWorkerUse,
		Short:  "One process of callers; bench starts it by itself",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bench.Serve(cmd.Context(), os.Stdin, os.Stdout); err != nil {
				return &exitError{code: exitFailed, err: err, hint: "run: twinhold bench pool --processes 2"}
			}
			return nil
		},
	}
}
