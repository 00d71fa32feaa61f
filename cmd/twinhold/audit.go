package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

func newAuditCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "audit [POD]",
		Short: "Every change of stage, kill, rearm, waiver, freeze, forced step",
		Long: "Shows who changed what, when and why, oldest first, as both stores wrote it down. What both have is shown once.\n" +
			"A store that does not answer is named on stderr, and the other's records are shown. Exit 1: neither answers.",
		Example: "  twinhold audit\n  twinhold audit pod-7 --format json",
		Args:    optionalPod,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPods(cmd.Context(), firstArg(args), func(pods []*killswitch.Control) error {
				return a.audit(cmd.Context(), pods)
			})
		},
	}
}

type auditAnswer struct {
	Records []auditRecord `json:"records"`
}

type auditRecord struct {
	At     string            `json:"at"`
	Pod    string            `json:"pod"`
	Action string            `json:"action"`
	By     string            `json:"by"`
	Reason string            `json:"reason,omitempty"`
	Ticket string            `json:"ticket,omitempty"`
	Before auditStamp        `json:"before"`
	After  auditStamp        `json:"after"`
	Waived []string          `json:"waived,omitempty"`
	Debt   *reservation.Debt `json:"debt,omitempty"`
	Detail string            `json:"detail,omitempty"`
	Store  string            `json:"store"`
}

type auditStamp struct {
	Epoch uint64 `json:"epoch"`
	Stage string `json:"stage"`
}

func auditStampOf(st reservation.Stamp) auditStamp {
	if !st.Stage.Valid() {
		return auditStamp{Epoch: st.Epoch, Stage: "none"}
	}
	return auditStamp{st.Epoch, st.Stage.String()}
}

func (a *app) audit(ctx context.Context, pods []*killswitch.Control) error {
	var recs []reservation.AuditRecord
	var errs []error
	gots, failed := make([][]reservation.AuditRecord, len(pods)), make([]error, len(pods))
	var all sync.WaitGroup
	for i, c := range pods {
		all.Go(func() { gots[i], failed[i] = c.Audit(ctx) })
	}
	all.Wait()
	answered := false
	for i, c := range pods {
		got, err := gots[i], failed[i]
		answered = answered || !killswitch.BothFailed(err)
		if err != nil {
			errs = append(errs, err)
			a.warn("pod %s: not all of the audit can be read: %v", c.Pod(), err)
		}
		recs = append(recs, got...)
	}
	if len(pods) > 0 && !answered {
		return fmt.Errorf("no audit could be read: %w", errors.Join(errs...))
	}
	slices.SortStableFunc(recs, func(a, b reservation.AuditRecord) int { return a.At.Compare(b.At) })
	ans := auditAnswer{Records: []auditRecord{}}
	for _, r := range recs {
		ans.Records = append(ans.Records, auditRecord{
			At: instant(r.At), Pod: r.Pod, Action: r.Action, By: r.By, Reason: r.Reason, Ticket: r.Ticket,
			Before: auditStampOf(r.Before), After: auditStampOf(r.After), Waived: r.Waived, Debt: r.Debt, Detail: r.Detail, Store: r.Store,
		})
	}
	return a.show(ans)
}

func (a auditAnswer) text(w io.Writer) error {
	if len(a.Records) == 0 {
		return writef(w, "nothing was changed yet\n")
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "AT\tPOD\tACTION\tBEFORE\tAFTER\tBY\tREASON")
	for _, r := range a.Records {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%d %s\t%d %s\t%s\t%s\n", r.At, r.Pod, r.Action,
			r.Before.Epoch, r.Before.Stage, r.After.Epoch, r.After.Stage, r.By, r.why())
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// why puts together what a person should know of a record, in one line.
func (r auditRecord) why() string {
	var parts []string
	for _, p := range []string{r.Reason, r.Ticket, r.Detail} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if r.Debt != nil && r.Debt.Reservations > 0 {
		parts = append(parts, "debt "+debtText(*r.Debt))
	}
	return strings.Join(parts, "; ")
}
