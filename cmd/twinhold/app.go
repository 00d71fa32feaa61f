package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
)

// streams are where a command writes: results to out, progress and logs to err.
type streams struct {
	out, err io.Writer
}

// app is what every command shares: where it writes, and the global flags.
type app struct {
	streams
	getenv func(string) (string, bool)

	configPath string
	format     format
}

// run carries out one command line and gives the exit code.
func run(ctx context.Context, args []string, s streams, getenv func(string) (string, bool)) int {
	a := &app{streams: s, getenv: getenv, format: formatText}
	root := newRootCmd(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var e *exitError
	switch {
	case ctx.Err() != nil:
		e = &exitError{code: exitFailed, err: errors.New("interrupted"), hint: "what was started is stopped; what was sent to a pod is in its stores"}
	case errors.Is(err, syscall.EPIPE):
		return exitFailed // nobody reads any more
	case !errors.As(err, &e):
		e = &exitError{code: exitFailed, err: err}
	}
	e.print(s.err)
	return e.code
}

func newRootCmd(a *app) *cobra.Command {
	root := newGroupCmd(a, "twinhold", "Move a live reservation service from Redis counters to a MySQL unit pool, without a cut-over day")
	root.Example = "  twinhold demo\n  twinhold devstack --write twinhold.yaml\n  twinhold config check --config twinhold.yaml"
	root.Version = version()
	root.SetVersionTemplate("twinhold {{.Version}}\n")
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, plainFlagError(err)) })
	root.PersistentFlags().StringVar(&a.configPath, "config", "twinhold.yaml", "the configuration `FILE`")
	root.PersistentFlags().Var(&a.format, "format", "how results are printed: `text|json`")
	root.AddCommand(
		newDemoCmd(a), newReplayCmd(a), newDevstackCmd(a),
		newConfigCmd(a), newMigrateCmd(a), newDoctorCmd(a),
		newReserveCmd(a), newClaimCmd(a), newReleaseCmd(a), newGetCmd(a), newStockCmd(a), newServeCmd(a),
		newStatusCmd(a), newFlipCmd(a), newKillCmd(a), newRearmCmd(a), newDrillCmd(a),
		newFreezeCmd(a), newUnfreezeCmd(a), newMendCmd(a), newAuditCmd(a), newReseedCmd(a),
		newBenchCmd(a), newLabCmd(a), newConnsCmd(a),
		newReconcileCmd(a),
	)
	return root
}

// version is the module's, or the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v
}

// newGroupCmd makes a command that only holds others: alone it shows its help, with a word that it does not know
// it is an error.
func newGroupCmd(_ *app, use, short string) *cobra.Command {
	return &cobra.Command{
		Use:           use,
		Short:         short,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,

		SuggestionsMinimumDistance: 2, // two typing mistakes apart
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return &exitError{code: exitFailed, err: err, hint: fmt.Sprintf("did you mean %q?", cmd.CommandPath()+" "+near[0])}
			}
			return usageError(cmd, err)
		},
	}
}

// noArgs refuses arguments, with our kind of error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(cmd, fmt.Errorf("%q takes no argument, and got %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

// exactArgs wants these arguments, by name.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usageError(cmd, fmt.Errorf("%q takes %s, and got %d arguments", cmd.CommandPath(), strings.Join(names, " "), len(args)))
	}
}

// loadConfig reads the configuration of a command that needs one.
func (a *app) loadConfig() (*config.Config, error) {
	c, err := config.LoadEnv(a.configPath, a.getenv)
	if err != nil {
		return nil, &exitError{code: exitFailed, err: err, hint: "mend it, then run: twinhold config check --config " + a.configPath}
	}
	return c, nil
}

// printJSON writes one result.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// format is the value of --format.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

// String gives the value.
func (f *format) String() string { return string(*f) }

// Type names the values in the help.
func (f *format) Type() string { return "text|json" }

// Set refuses everything else.
func (f *format) Set(s string) error {
	switch v := format(s); v {
	case formatText, formatJSON:
		*f = v
		return nil
	default:
		return errors.New("use text or json")
	}
}
