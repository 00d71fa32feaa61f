package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/lab"
)

type labFlags struct {
	step     int
	pod      string
	devstack bool
	// named says that a person named the configuration, so that it must be there.
	named, only bool
}

func newLabCmd(a *app) *cobra.Command {
	f := labFlags{}
	cmd := &cobra.Command{
		Use:   "lab [--step N]",
		Short: "Watch the locking facts of the design on a real MySQL, in eight short steps",
		Long: "Shows, live, why stock is a pool of rows and what each rule of it is for: who waits for whom, what SKIP LOCKED\n" +
			"passes by, what a look into an empty bucket locks, how a refill ends in error 1205, where a UNION's clauses go,\n" +
			"what check-then-act loses, and what a claim loses that is killed between its two steps. Each step prints the\n" +
			"statements, what the server says of its locks, and what it means for the design.\n" +
			"Works in a scratch schema (twinhold_lab_...) and under Redis keys of its own, and removes both; a pod's tables and\n" +
			"keys are never touched. Without a configuration file, or with --devstack, on private servers.\n" +
			"Exit 0: all is as the design says. Exit 1: an error. Exit 2: the server shows something else, and it says what; or\n" +
			"refused, since the account may not create a schema or look at locks there, or the server takes no writes.",
		Example: "  twinhold lab\n  twinhold lab --step 6\n  twinhold lab --devstack --format json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.named, f.only = cmd.Flag("config").Changed, cmd.Flag("step").Changed
			ctx, stop := untilHangup(cmd.Context())
			defer stop()
			return a.lab(ctx, f)
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.step, "step", 0, fmt.Sprintf("one step, `N` from 1 to %d; else all", lab.Steps))
	fl.StringVar(&f.pod, "pod", "", "the `POD` whose servers are used; else the first")
	fl.BoolVar(&f.devstack, "devstack", false, "on private servers, in place of the configured ones")
	return cmd
}

func (a *app) lab(ctx context.Context, f labFlags) (err error) {
	if f.only && (f.step < 1 || f.step > lab.Steps) {
		return &exitError{code: exitFailed, err: fmt.Errorf("there is no step %d", f.step), hint: fmt.Sprintf("use --step 1 to %d, or leave it out for all", lab.Steps)}
	}
	opt, closeServers, err := a.labServers(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeServers()) }()
	if f.only {
		opt.Only = []int{f.step}
	}
	if a.format == formatText {
		opt.Each = func(s lab.Step) error { return s.WriteText(a.out) } // live: a person reads along
	}
	l, err := lab.New(opt)
	if err != nil {
		return err
	}
	res, err := l.Run(ctx)
	if err != nil {
		return labError(err)
	}
	if a.format == formatJSON {
		if err := a.printJSON(res); err != nil {
			return err
		}
	}
	if failed := res.Failed(); len(failed) > 0 {
		return &exitError{code: exitRefused, err: fmt.Errorf("this server shows something else in step %v", failed), hint: "each problem is named there; run: twinhold doctor, and compare with: twinhold lab --devstack"}
	}
	return nil
}

// labServers are the configured servers of a pod, or private ones.
func (a *app) labServers(ctx context.Context, f labFlags) (lab.Options, func() error, error) {
	_, err := os.Stat(a.configPath)
	if f.devstack || !f.named && f.pod == "" && errors.Is(err, fs.ErrNotExist) {
		progress := newProgress(a.err)
		stack, err := devstack.Start(ctx, devstack.Options{MySQL: true, Redis: true, Progress: progress.phase})
		if err != nil {
			return lab.Options{}, nil, err
		}
		return lab.Options{DSN: stack.MySQL.DSN(""), Redis: stack.Redis.URL(0)}, stack.Close, nil
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return lab.Options{}, nil, err
	}
	pod, err := a.podOrFirst(cfg, f.pod)
	if err != nil {
		return lab.Options{}, nil, err
	}
	return lab.Options{DSN: pod.MySQL.Reveal(), Redis: pod.Redis.Reveal()}, func() error { return nil }, nil
}

// labError says what to do about an error of a run: the lab needs more rights than a pod's own user has.
func labError(err error) error {
	if errors.Is(err, lab.ErrBlind) {
		return &exitError{code: exitRefused, err: err, hint: startSeeing + ", or run: twinhold lab --devstack"}
	}
	return scratchError(err, "GRANT ALL ON `twinhold\\_lab\\_%`.* and GRANT "+conntag.ServerRight+" (PROCESS too, for INNODB STATUS)",
		"run: twinhold doctor, or: twinhold lab --devstack")
}
