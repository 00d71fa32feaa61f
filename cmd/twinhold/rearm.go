package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/killswitch"
)

func newRearmCmd(a *app) *cobra.Command {
	f := orderFlags{}
	cmd := &cobra.Command{
		Use:   "rearm POD [--execute]",
		Short: "Undo a kill, the careful way: the pod stays in shadow",
		Long: "Takes a kill away, so that the pod may be flipped forward again. It stays in shadow. Its gates: cooldown since the\n" +
			"kill (can be waived), health: MySQL has confirmed the kill's epoch, debt: nothing is left that Redis lacks.\n" +
			"Without --execute it changes nothing. Exit 0: done, or it would be. Exit 2: refused, or it would be.",
		Example: "  twinhold rearm pod-7\n  twinhold rearm pod-7 --execute --reason 'INC-12 is closed'\n" +
			"  twinhold rearm pod-7 --execute --waive cooldown --reason 'the alert was a mistake'",
		Args: exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := killswitch.Order{Waive: f.waive, Reason: f.reason, Ticket: f.ticket}
			return a.onPods(cmd.Context(), args[0], func(pods []*killswitch.Control) error {
				return a.rearm(cmd.Context(), pods[0], o, f.execute)
			})
		},
	}
	f.gated(cmd, "do it; without, it only says what would happen")
	return cmd
}

type rearmAnswer struct{ killswitch.RearmResult }

func (a *app) rearm(ctx context.Context, c *killswitch.Control, o killswitch.Order, execute bool) error {
	res, err := c.Rearm(ctx, o, execute)
	if err == nil || len(res.Gates) > 0 {
		if showErr := a.show(rearmAnswer{res}); showErr != nil {
			return errors.Join(err, showErr)
		}
	}
	return err
}

func (r rearmAnswer) text(w io.Writer) error {
	head := fmt.Sprintf("%s is killed: %s", r.Pod, r.Latch)
	if r.Done {
		head = fmt.Sprintf("%s is rearmed: %s, epoch %d", r.Pod, r.Stage, r.Epoch)
	}
	errs := []error{writef(w, "%s\n", head), gatesText(w, "  ", r.Gates)}
	if !r.Done && !shut(r.Gates) {
		errs = append(errs, writef(w, "  it would be rearmed: add --execute\n"))
	}
	return errors.Join(errs...)
}

func shut(gates []killswitch.Gate) bool {
	for _, g := range gates {
		if !g.Open() {
			return true
		}
	}
	return false
}

func newDrillCmd(a *app) *cobra.Command {
	f := orderFlags{}
	cmd := &cobra.Command{
		Use:   "drill POD",
		Short: "Kill and rearm a pod on purpose, under load, and measure it",
		Long: "Kills a pod and rearms it, and measures how long it takes until every router has acknowledged. The pod ends in shadow,\n" +
			"whatever stage it was in. The gate drill of a flip to cutover wants one since the last release.\n" +
			"Exit 0: done, everybody acknowledged. Exit 2: refused (no router, killed, legacy, complete), or somebody did not.",
		Example: "  twinhold drill pod-7 --reason 'release 1.4'",
		Args:    exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPods(cmd.Context(), args[0], func(pods []*killswitch.Control) error {
				return a.drill(cmd.Context(), pods[0], f)
			})
		},
	}
	f.why(cmd)
	return cmd
}

type drillAnswer struct{ killswitch.DrillResult }

func (a *app) drill(ctx context.Context, c *killswitch.Control, f orderFlags) error {
	res, err := c.Drill(ctx, f.reason, f.ticket)
	if err != nil && res.KillMS == 0 {
		return err
	}
	if showErr := a.show(drillAnswer{res}); showErr != nil || err != nil {
		return errors.Join(err, showErr)
	}
	if len(res.Laggards) > 0 {
		return &exitError{
			code: exitRefused, err: fmt.Errorf("%s did not acknowledge within 10 s%s", plural(len(res.Laggards), "router"), laggardsText(res.Laggards)),
			hint: "one that is gone is forgotten after a minute; one that lives must acknowledge: look at its log",
		}
	}
	return nil
}

// acked is what the routers have acknowledged: in shadow the kill changes no epoch, and the rearm's is the one.
func (d drillAnswer) acked() string {
	if d.KillEpoch != d.Epoch && d.Before == d.Stage {
		return "rearm"
	}
	return "kill"
}

func (d drillAnswer) text(w io.Writer) error {
	errs := []error{
		writef(w, "%s: drilled in %s: the kill stood %.1f ms after the command; %d of %d routers acknowledged %.0f ms after the %s%s; rearmed %.0f ms after the command\n",
			d.Pod, d.Before, d.KillMS, d.Acks, d.Routers, d.AckedMS, d.acked(), laggardsText(d.Laggards), d.RearmMS),
	}
	for _, n := range d.Notes {
		errs = append(errs, writef(w, "  note: %s\n", n))
	}
	return errors.Join(append(errs, writef(w, "%s is in %s, epoch %d\n", d.Pod, d.Stage, d.Epoch))...)
}
