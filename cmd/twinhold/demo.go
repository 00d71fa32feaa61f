package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/rehearsal"
	"github.com/twinhold/twinhold/internal/replay"
	"github.com/twinhold/twinhold/testdata/traffic"
)

func newDemoCmd(a *app) *cobra.Command {
	var orders []string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch two real days of orders go through the router into a real Redis and a real MySQL",
		Long: "Starts a private MySQL and a private Redis under .dev/, sends two recorded days of orders through the router in\n" +
			"stage shadow, compares each outcome and checks each invariant in both stores. Then it takes the pod to cutover under\n" +
			"load with two routers, kills it back, claims the holds from before, checks again, and removes everything.\n" +
			"The last line is \"demo: ok\" and the exit code 0, or neither.",
		Example: "  twinhold demo\n  twinhold demo --orders my-orders.csv --format json",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), orders) },
	}
	cmd.Flags().StringArrayVar(&orders, "orders", nil, "other recorded orders, a `FILE`; more than once for several days")
	return cmd
}

func (a *app) demo(ctx context.Context, orders []string) error {
	res, err := a.demoRun(ctx, orders)
	if err != nil {
		return err
	}
	if err := a.printDemo(res); err != nil {
		return err
	}
	out := a.out
	if a.format == formatJSON {
		out = a.err // stdout is the JSON alone
	}
	if _, err := fmt.Fprintln(out, "\ndemo: ok"); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// demoResult is the replay's result, with what the rehearsal saw beside it.
type demoResult struct {
	replay.Result
	Rehearsal *rehearsal.Result `json:"rehearsal,omitempty"`
}

// printDemo shows both halves, and gives the error that they amount to.
func (a *app) printDemo(res demoResult) error {
	if a.format == formatJSON {
		if err := a.printJSON(res); err != nil {
			return err
		}
	} else if err := errors.Join(res.WriteText(a.out), res.Rehearsal.WriteText(a.out)); err != nil {
		return err
	}
	if err := errors.Join(res.Err(), res.Rehearsal.Err()); err != nil {
		return &exitError{code: exitFailed, err: err, hint: "this should not happen: please report it, with the output above"}
	}
	return nil
}

func (a *app) demoRun(ctx context.Context, orders []string) (res demoResult, err error) {
	recs, err := demoOrders(orders)
	if err != nil {
		return res, err
	}
	progress := newProgress(a.err)
	defer progress.end()
	set, cfg, closeAll, err := a.openPods(ctx, true, devpods.Options{Short: true, Progress: progress.phase}, progress.logger(), "")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	pod := set.Pods[0]
	plan, err := loadgen.NewPlan(planOptions(cfg, pod, replayFlags{repeat: 1}, loadgen.Scarce()), recs...)
	if err != nil {
		return res, err
	}
	set.Router.Start()
	if res.Result, err = replay.Run(ctx, set, pod, plan, replay.Options{Phase: progress.phase, Progress: progress.bar}); err != nil {
		return res, err
	}
	rehearsed, err := rehearsal.Run(ctx, rehearsal.Options{Config: cfg, Pod: pod.Config.ID, First: set, Phase: progress.phase, Logger: progress.logger()})
	res.Rehearsal = &rehearsed
	res.OK = res.OK && rehearsed.OK
	return res, err
}

// demoOrders reads the given files, or the recorded days that the binary carries.
func demoOrders(files []string) ([]loadgen.Recording, error) {
	var recs []loadgen.Recording
	for _, name := range files {
		rec, err := loadgen.ReadFile(name)
		if err != nil {
			return nil, &exitError{code: exitFailed, err: err, hint: "docs/orders.md says what a file of orders holds"}
		}
		recs = append(recs, rec)
	}
	if len(files) > 0 {
		return recs, nil
	}
	names, err := fs.Glob(traffic.Days, "*.csv")
	if err != nil {
		return nil, fmt.Errorf("read the recorded days: %w", err)
	}
	for _, name := range names {
		rec, err := readDay(name)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func readDay(name string) (rec loadgen.Recording, err error) {
	f, err := traffic.Days.Open(name)
	if err != nil {
		return rec, fmt.Errorf("read the recorded days: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return loadgen.Read(name, f)
}
