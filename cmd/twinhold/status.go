package main

import (
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

func newStatusCmd(a *app) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "status [POD]",
		Short: "Stage, epoch, truth, latch, debt, routers, and why anything is held",
		Long: "Shows each pod as it is now. It changes nothing, and works with a store that hangs: what could not be found out in\n" +
			"about two seconds is unknown, and it says so. Debt and completeness come from a survey of both stores, which gets\n" +
			"one second, or with --full as long as it needs. Exit 0, also if something is held.",
		Example: "  twinhold status\n  twinhold status pod-7 --full --format json",
		Args:    optionalPod,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPods(cmd.Context(), firstArg(args), func(pods []*killswitch.Control) error {
				return a.show(statusAnswer{killswitch.StatusAll(cmd.Context(), pods, full)})
			})
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "survey both stores, however long it takes (ten minutes at most)")
	return cmd
}

type statusAnswer struct {
	Pods []killswitch.Status `json:"pods"`
}

// text gives one line a pod first, then what is behind it.
func (s statusAnswer) text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "POD\tSTAGE\tEPOCH\tTRUTH\tKILLED\tDEBT\tVIEW\tROUTERS\tHELD")
	for _, p := range s.Pods {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Pod, p.Stage, p.Epoch, p.Truth, yes(p.Killed, "KILLED"), shortDebt(p.Debt),
			view(p.ViewComplete), routersText(p), plural(len(p.HeldBecause), "reason"))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	for _, p := range s.Pods {
		if err := podText(w, p); err != nil {
			return err
		}
	}
	return nil
}

func podText(w io.Writer, p killswitch.Status) error {
	errs := []error{writef(w, "\n%s\n", p.Pod)}
	for _, h := range p.HeldBecause {
		errs = append(errs, writef(w, "  ! %s\n", h))
	}
	if p.Declared != "" && p.Declared != p.Stage && p.Epoch != 0 {
		errs = append(errs, writef(w, "  the configuration declares %s: the pod is in %s, and flip is how that is closed\n", p.Declared, p.Stage))
	}
	errs = append(errs,
		writef(w, "  fences   Redis %s; MySQL %s; max_stage %s\n", storeText(p.Redis), storeText(p.MySQL), p.MaxStage),
		writef(w, "  debt     %s; marks %s; view %s\n", shortDebt(p.Debt), marksText(p.Marks), view(p.ViewComplete)),
		writef(w, "  mirror   %d waiting, breaker %s\n", p.Queue, p.Breaker),
	)
	if p.Incarnation > 0 {
		errs = append(errs, writef(w, "  restored incarnation %d, at epoch %d\n", p.Incarnation, p.IncarnationEpoch))
	}
	for _, r := range p.Routers {
		cut := ""
		if r.Cut {
			cut = ", CUT from Redis"
		}
		errs = append(errs, writef(w, "  router   %s: epoch %d, %s, heard of %.1f s ago, %d waiting, breaker %s%s\n", r.ID, r.Epoch, r.Stage, r.SeenSAgo, r.Queue, r.Breaker, cut))
	}
	return errors.Join(errs...)
}

func storeText(s killswitch.StoreStatus) string {
	switch {
	case s.Error != "":
		return "does not answer"
	case s.Epoch == 0:
		return "none"
	default:
		return fmt.Sprintf("epoch %d, %s", s.Epoch, s.Stage)
	}
}

func routersText(p killswitch.Status) string {
	if len(p.Laggards) > 0 {
		return fmt.Sprintf("%d, %d behind", len(p.Routers), len(p.Laggards))
	}
	return fmt.Sprint(len(p.Routers))
}

func marksText(n *int64) string {
	if n == nil {
		return unknown
	}
	return fmt.Sprint(*n)
}

const unknown = "unknown"

func view(complete *bool) string {
	switch {
	case complete == nil:
		return unknown
	case *complete:
		return "complete"
	default:
		return "INCOMPLETE"
	}
}

func yes(is bool, word string) string {
	if is {
		return word
	}
	return "no"
}

func shortDebt(d *reservation.Debt) string {
	switch {
	case d == nil:
		return unknown
	case d.Reservations == 0:
		return "none"
	default:
		return debtText(*d)
	}
}

// debtText says a debt in words.
func debtText(d reservation.Debt) string {
	drains := time.Duration(d.DrainsInS * float64(time.Second)).Round(time.Second)
	return strings.Join([]string{plural(int(d.Reservations), "reservation"), plural(int(d.Units), "unit"), "drains in " + drains.String()}, ", ")
}
