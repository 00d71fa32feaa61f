package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// controlOf makes the kill switch of a pod whose stores are open. It asks neither store anything.
func controlOf(p *podset.Pod, by string) (*killswitch.Control, error) {
	return p.Control(podset.ControlOptions{
		By: by, Version: version(),
		Health: func(ctx context.Context) ([]string, error) { return failures(ctx, p), nil },
	})
}

// failures are what the doctor would fail the two stores for.
func failures(ctx context.Context, p *podset.Pod) []string {
	var out []string
	for _, f := range append(examineMySQL(ctx, p), examineRedis(ctx, p)...) {
		if f.Result == resultFailure {
			out = append(out, fmt.Sprintf("%s %s: %s", f.Store, f.Check, f.Found))
		}
	}
	return out
}

// onPods opens the stores of the named pod (all if the name is empty), without asking them anything, and calls f with
// their kill switches.
func (a *app) onPods(ctx context.Context, id string, f func([]*killswitch.Control) error) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	pods, err := a.podsOf(cfg, id)
	if err != nil {
		return err
	}
	var controls []*killswitch.Control
	for _, pc := range pods {
		c, done, err := a.control(ctx, cfg, pc)
		if err != nil {
			return &exitError{code: exitFailed, err: err, hint: "run: twinhold config check --config " + a.configPath}
		}
		defer done()
		controls = append(controls, c)
	}
	return controlHint(f(controls))
}

// control makes one pod's kill switch. done closes its stores.
func (a *app) control(ctx context.Context, cfg *config.Config, pc config.Pod) (c *killswitch.Control, done func(), err error) {
	p, err := podset.OpenStores(ctx, cfg, pc)
	if err != nil {
		return nil, nil, fmt.Errorf("open pod %s: %w", pc.ID, err)
	}
	done = func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlClose)
		defer cancel()
		// All that was done is in the stores, and told: a connection that does not close is no failure of the command.
		_ = p.Close(closing)
	}
	if c, err = controlOf(p, ""); err != nil {
		done()
		return nil, nil, err
	}
	return c, done, nil
}

// controlClose bounds how long the end of a command waits for connections to close.
const controlClose = time.Second

// controlHint gives an error of the kill switch its exit code, and says what to do now.
func controlHint(err error) error {
	var (
		already    *exitError
		refused    *killswitch.RefusedError
		noRefuge   *killswitch.NoRefugeError
		incomplete *killswitch.IncompleteError
	)
	switch {
	case err == nil || errors.As(err, &already):
		return err
	case errors.As(err, &refused):
		return &exitError{code: exitRefused, err: err, hint: refused.Hint}
	case errors.As(err, &noRefuge) && noRefuge.Latched:
		return &exitError{code: exitFailed, err: err, hint: "the routers restore Redis by themselves (twinhold status " + noRefuge.Pod + "); if it must stop at once: twinhold freeze " + noRefuge.Pod + " --reason R"}
	case errors.As(err, &noRefuge):
		return &exitError{code: exitFailed, err: err, hint: "run it again when Redis answers; if the pod must stop at once: twinhold freeze " + noRefuge.Pod + " --reason R (it reaches MySQL too)"}
	case errors.As(err, &incomplete):
		return &exitError{code: exitFailed, err: err, hint: "run the same command again: it goes on where it was"}
	default:
		return again(hinted(err))
	}
}

// again puts the hint of a change of the fences, which has neither key nor id, in the place of that of the data path.
func again(err error) error {
	var e *exitError
	if errors.As(err, &e) && codeOf(e.err) == reservation.CodeUnavailable {
		e.hint = "run the same command again; twinhold doctor says how the stores are"
	}
	return err
}

// orderFlags are what a person answers for.
type orderFlags struct {
	reason, ticket string
	waive          []string
	execute        bool
}

func (o *orderFlags) why(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for the audit")
	cmd.Flags().StringVar(&o.ticket, "ticket", "", "a ticket, for the audit")
}

func (o *orderFlags) gated(cmd *cobra.Command, what string) {
	o.why(cmd)
	cmd.Flags().BoolVar(&o.execute, "execute", false, what)
	cmd.Flags().StringSliceVar(&o.waive, "waive", nil, "waive gates by name, `GATE,...`: needs --reason, and stands in the audit (debt, complete and health are never waived)")
}

// optionalPod takes one pod, or none.
func optionalPod(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError(cmd, fmt.Errorf("%q takes one POD at most, and got %d arguments", cmd.CommandPath(), len(args)))
	}
	return nil
}

func firstArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
