package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
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
			"one second, or with --full as long as it needs. Exit 0, also if something is held.\n" +
			"Exit 1: neither store of a pod could be asked.",
		Example: "  twinhold status\n  twinhold status pod-7 --full --format json",
		Args:    optionalPod,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPods(cmd.Context(), firstArg(args), func(pods []*killswitch.Control) error {
				ans := statusAnswer{killswitch.StatusAll(cmd.Context(), pods, full)}
				if err := a.show(ans); err != nil {
					return err
				}
				return ans.unknown()
			})
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "survey both stores, however long it takes (ten minutes at most)")
	return cmd
}

type statusAnswer struct {
	Pods []killswitch.Status `json:"pods"`
}

// unknown is the error of a pod of which nothing could be found out.
func (s statusAnswer) unknown() error {
	var pods []string
	for _, p := range s.Pods {
		if p.Unknown() {
			pods = append(pods, p.Pod)
		}
	}
	if len(pods) == 0 {
		return nil
	}
	return &exitError{
		code: exitFailed, err: fmt.Errorf("neither store could be asked: %s", strings.Join(pods, ", ")),
		hint: "the routers see what you see: run: twinhold doctor",
	}
}

// text gives one line a pod first, then what is behind it.
func (s statusAnswer) text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "POD\tSTAGE\tEPOCH\tTRUTH\tKILLED\tDEBT\tVIEW\tROUTERS\tHELD")
	for _, p := range s.Pods {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Pod, p.Stage, known(p.Epoch), p.Truth, yes(p.Killed, "KILLED"), shortDebt(p.Debt),
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
	if p.Declared != "" && p.Declared != p.Stage && p.Epoch != nil && *p.Epoch != 0 {
		errs = append(errs, writef(w, "  the file declares %s, which only says where a new pod starts; the pod is in %s\n", p.Declared, p.Stage))
	}
	errs = append(errs,
		writef(w, "  fences   Redis %s; MySQL %s; max_stage %s\n", storeText(p.Redis), storeText(p.MySQL), p.MaxStage),
		writef(w, "  debt     %s; marks %s; view %s\n", shortDebt(p.Debt), known(p.Marks), view(p.ViewComplete)),
		debtByText(w, p.DebtBy),
		writef(w, "  mirror   %s waiting, breaker %s\n", known(p.Queue), p.Breaker),
	)
	if p.CatchUp != nil {
		errs = append(errs, writef(w, "  catch-up %s\n", roundsText(*p.CatchUp, time.Now())))
	}
	if p.Incarnation != nil && *p.Incarnation > 0 {
		errs = append(errs, writef(w, "  restored incarnation %d, at epoch %s\n", *p.Incarnation, known(p.IncarnationEpoch)))
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

// debtByText says for which reasons a store lacks something.
func debtByText(w io.Writer, by map[string]reservation.Debt) error {
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		if d := by[reason]; d.Reservations > 0 {
			if err := writef(w, "           %s: %s\n", reason, debtText(d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// roundsText says how far the full rounds are.
func roundsText(c killswitch.CatchUpStatus, now time.Time) string {
	var is string
	switch {
	case c.Began != nil && c.Router == "":
		is = fmt.Sprintf("stands at %d of about %d reservations: no router goes on with the round", c.Walked, c.Of)
	case c.Began != nil:
		is = fmt.Sprintf("%d of about %d reservations, by %s", c.Walked, c.Of, c.Router)
	case c.Router == "":
		is = "no router runs rounds"
	default:
		is = "no round is under way"
	}
	if c.LastEnded == nil {
		return is + "; none has come to its end yet"
	}
	return fmt.Sprintf("%s; the last ended %s ago: %s, %s repaired, in %s", is, now.Sub(*c.LastEnded).Round(time.Second),
		plural(int(c.LastWalked), "reservation"), plural(int(c.LastRepaired), "record"), time.Duration(c.LastTookS*float64(time.Second)).Round(10*time.Millisecond))
}

func storeText(s killswitch.StoreStatus) string {
	switch {
	case s.Epoch == nil:
		return unknown
	case s.Stage == nil:
		return "none"
	default:
		return fmt.Sprintf("epoch %d, %s", *s.Epoch, *s.Stage)
	}
}

func routersText(p killswitch.Status) string {
	if p.Routers == nil {
		return unknown
	}
	if len(p.Laggards) > 0 {
		return fmt.Sprintf("%d, %d behind", len(p.Routers), len(p.Laggards))
	}
	return fmt.Sprint(len(p.Routers))
}

// known is a figure, or that it is not known.
func known[N int | int64 | uint64](n *N) string {
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

func yes(is *bool, word string) string {
	switch {
	case is == nil:
		return unknown
	case *is:
		return word
	default:
		return "no"
	}
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
