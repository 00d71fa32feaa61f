package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

func newFlipCmd(a *app) *cobra.Command {
	f := orderFlags{}
	var to string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "flip POD --to STAGE [--execute]",
		Short: "Move a pod to another stage, through its gates",
		Long: "Moves a pod one step forward (legacy, shadow, handover, cutover, complete), back to shadow from handover or cutover,\n" +
			"or from complete back to cutover, which rebuilds Redis. --to cutover from shadow walks both steps.\n" +
			"Without --execute it changes nothing and prints the gates. Killed at any step, the same command finishes it.\n" +
			"Exit 0: done, or it would go. Exit 2: refused, or it would be. docs/killswitch.md explains the gates.",
		Example: "  twinhold flip pod-7 --to cutover\n" +
			"  twinhold flip pod-7 --to cutover --execute --reason 'wave 2' --ticket OPS-9\n" +
			"  twinhold flip pod-7 --to shadow --execute --reason 'back for the sale'",
		Args: exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usageError(cmd, errors.New("say where: --to STAGE"))
			}
			stage, err := reservation.ParseStage(to)
			if err != nil {
				return usageError(cmd, fmt.Errorf("--to: %w", err))
			}
			o := killswitch.Order{To: stage, Waive: f.waive, Reason: f.reason, Ticket: f.ticket, Wait: wait, Progress: a.say}
			return a.onPods(cmd.Context(), args[0], func(pods []*killswitch.Control) error {
				if f.execute {
					return a.flip(cmd.Context(), pods[0], o)
				}
				return a.planFlip(cmd.Context(), pods[0], o)
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the stage: `legacy|shadow|handover|cutover|complete`")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait in handover for the gate complete; 0 is the longest TTL and a minute")
	f.gated(cmd, "do it; without, it only says what would happen")
	return cmd
}

// say tells a person how it goes, on stderr. There is nobody left to tell if that fails.
func (a *app) say(line string) { _, _ = fmt.Fprintln(a.err, line) }

type planAnswer struct {
	killswitch.Plan
	Go bool `json:"go"`
}

func (a *app) planFlip(ctx context.Context, c *killswitch.Control, o killswitch.Order) error {
	plan, err := c.Plan(ctx, o)
	if err != nil {
		return err
	}
	if err := a.show(planAnswer{plan, plan.Go()}); err != nil {
		return err
	}
	if plan.Go() {
		return nil
	}
	return &exitError{
		code: exitRefused, err: errors.New("the flip would be refused: " + strings.Join(append(plan.Refused, shutNames(plan.Shut())...), "; ")),
		hint: "mend what stands above" + plan.WaiveHint() + "; nothing was changed",
	}
}

func shutNames(gates []killswitch.Gate) []string {
	if len(gates) == 0 {
		return nil
	}
	seen, names := map[string]bool{}, []string{}
	for _, g := range gates {
		if !seen[g.Name] {
			seen[g.Name] = true
			names = append(names, g.Name)
		}
	}
	return []string{"shut: " + strings.Join(names, ", ")}
}

type flipAnswer struct {
	killswitch.FlipResult
	Refused string            `json:"refused,omitempty"`
	Gates   []killswitch.Gate `json:"gates,omitempty"` // that refused it
}

// flip shows what was done, also where the rest of it was refused.
func (a *app) flip(ctx context.Context, c *killswitch.Control, o killswitch.Order) error {
	res, err := c.Execute(ctx, o)
	ans := flipAnswer{FlipResult: res}
	var refused *killswitch.RefusedError
	if errors.As(err, &refused) {
		ans.Refused, ans.Gates = refused.Reason, refused.Gates
	}
	if err == nil || len(ans.Gates) > 0 || len(res.Moves) > 0 {
		if showErr := a.show(ans); showErr != nil {
			return errors.Join(err, showErr)
		}
	}
	return err
}

func (p planAnswer) text(w io.Writer) error {
	errs := []error{writef(w, "%s: %s (epoch %d) -> %s\n", p.Pod, p.From, p.Epoch, p.To)}
	for _, u := range p.Unfinished {
		errs = append(errs, writef(w, "  first: %s\n", u))
	}
	for _, s := range p.Steps {
		errs = append(errs, writef(w, "  %s -> %s\n", s.From, s.To))
		for _, d := range s.Does {
			errs = append(errs, writef(w, "    does: %s\n", d))
		}
		errs = append(errs, gatesText(w, "    ", s.Gates))
	}
	for _, r := range p.Refused {
		errs = append(errs, writef(w, "  refused: %s\n", r))
	}
	switch {
	case p.Go && len(p.Steps) == 0 && len(p.Unfinished) == 0:
		errs = append(errs, writef(w, "  it is there already\n"))
	case p.Go:
		errs = append(errs, writef(w, "  it would go: add --execute\n"))
	}
	return errors.Join(errs...)
}

// gatesText prints gates as a table, what is shut in capitals.
func gatesText(w io.Writer, indent string, gates []killswitch.Gate) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, g := range gates {
		verdict := string(g.Verdict)
		switch {
		case g.Waived:
			verdict += ", waived"
		case g.Awaited:
			verdict = "awaited"
		case !g.Open():
			verdict = strings.ToUpper(verdict)
		}
		_, _ = fmt.Fprintf(tw, "%s%s\t%s\t%s\n", indent, g.Name, verdict, g.Figure)
		if g.Verdict != killswitch.Pass && g.Reason != "" {
			_, _ = fmt.Fprintf(tw, "%s\t\t-> %s\n", indent, g.Reason)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func (f flipAnswer) text(w io.Writer) error {
	var errs []error
	for _, m := range f.Moves {
		errs = append(errs, writef(w, "%s: %s -> %s, epoch %d; %d of %d routers acknowledged%s\n", f.Pod, m.From, m.To, m.Epoch, m.Acks, m.Routers, laggardsText(m.Laggards)))
		if len(m.Waived) > 0 {
			errs = append(errs, writef(w, "  waived: %s\n", strings.Join(m.Waived, ", ")))
		}
		if m.Replicas.Connected > 0 {
			errs = append(errs, writef(w, "  replicas: %d of %d have it\n", m.Replicas.Reached, m.Replicas.Connected))
		}
	}
	for _, n := range f.Notes {
		errs = append(errs, writef(w, "  note: %s\n", n))
	}
	errs = append(errs, gatesText(w, "  ", f.Gates), writef(w, "%s is in %s, epoch %d\n", f.Pod, f.Stage, f.Epoch))
	return errors.Join(errs...)
}

func laggardsText(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; not yet: " + strings.Join(names, ", ")
}
