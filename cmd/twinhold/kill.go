package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/killswitch"
)

func newKillCmd(a *app) *cobra.Command {
	f := orderFlags{}
	var all bool
	cmd := &cobra.Command{
		Use:   "kill POD | --all --reason R",
		Short: "Send a pod back to Redis, at once",
		Long: "Sends a pod back to stage shadow, where Redis decides, and keeps it there until it is rearmed. It asks nothing and\n" +
			"needs the pod's Redis alone. Once the kill stands it tells how many routers have acknowledged it, who has not, and\n" +
			"what MySQL has promised that Redis lacks. It may be run again. Without Twinhold: redis-cli SET '{POD}:kill' 'why'.\n" +
			"Exit 0: killed, now or before. Exit 1: Redis cannot take it (see freeze). Exit 2: legacy or complete, nothing to flee to.\n" +
			"With --all every pod is tried; pods in legacy or complete do not count as failed.",
		Example: "  twinhold kill pod-7 --reason 'oversell alert, INC-12'\n  twinhold kill --all --reason 'MySQL is on fire'",
		Args: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) || len(args) > 1 {
				return usageError(cmd, errors.New("name one POD, or --all"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPods(cmd.Context(), firstArg(args), func(pods []*killswitch.Control) error {
				if all {
					return a.killAll(cmd.Context(), pods, f)
				}
				res, err := pods[0].Kill(cmd.Context(), f.reason, f.ticket)
				if err != nil {
					return err
				}
				return a.show(killAnswer{res})
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every pod of the configuration")
	f.why(cmd)
	return cmd
}

// The outcomes of one pod of kill --all.
const (
	outcomeKilled        = "killed"
	outcomeNotApplicable = "not applicable"
	outcomeFailed        = "failed"
)

type killedPod struct {
	*killswitch.KillResult
	Pod     string `json:"pod"`
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

type killAllAnswer struct {
	Pods []killedPod `json:"pods"`
}

// killAll kills every pod at once: one that hangs holds up no other.
func (a *app) killAll(ctx context.Context, pods []*killswitch.Control, f orderFlags) error {
	ans := killAllAnswer{Pods: make([]killedPod, len(pods))}
	var all sync.WaitGroup
	for i, c := range pods {
		all.Go(func() {
			res, err := c.Kill(ctx, f.reason, f.ticket)
			switch {
			case err == nil:
				ans.Pods[i] = killedPod{KillResult: &res, Pod: res.Pod, Outcome: outcomeKilled}
			case killswitch.IsRefused(err):
				ans.Pods[i] = killedPod{Pod: c.Pod(), Outcome: outcomeNotApplicable, Error: err.Error()}
			default:
				ans.Pods[i] = killedPod{Pod: c.Pod(), Outcome: outcomeFailed, Error: err.Error()}
			}
		})
	}
	all.Wait()
	if err := a.show(ans); err != nil {
		return err
	}
	var failed []string
	for _, p := range ans.Pods {
		if p.Outcome == outcomeFailed {
			failed = append(failed, p.Pod)
		}
	}
	if len(failed) > 0 {
		return &exitError{
			code: exitFailed, err: fmt.Errorf("%s not killed: %s", plural(len(failed), "pod"), strings.Join(failed, ", ")),
			hint: "run it again when their Redis answers; if they must stop at once: twinhold freeze POD --reason R",
		}
	}
	return nil
}

func (k killAllAnswer) text(w io.Writer) error {
	for _, p := range k.Pods {
		var err error
		if p.KillResult != nil {
			err = killAnswer{*p.KillResult}.text(w)
		} else {
			err = writef(w, "%s: %s: %s\n", p.Pod, strings.ToUpper(p.Outcome), p.Error)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type killAnswer struct{ killswitch.KillResult }

func (k killAnswer) text(w io.Writer) error {
	lines := []string{
		fmt.Sprintf("%s KILLED: %s, epoch %d%s, in %.1f ms", k.Pod, k.Stage, k.Epoch, k.before(), k.TookMS),
		"  reason:   " + k.Reason,
		"  routers:  " + k.acks(),
		"  MySQL:    " + k.mysql(),
		"  debt:     " + k.debt(),
	}
	if k.Before == "shadow" && !k.Already {
		lines = append(lines, "  note:     it was in shadow, where Redis decides: the kill only forbids moves forward, and the cool-down starts")
	}
	if k.Replicas.Connected > 0 {
		lines = append(lines, fmt.Sprintf("  replicas: %d of %d have it", k.Replicas.Reached, k.Replicas.Connected))
	}
	lines = append(lines, fmt.Sprintf("  back:     twinhold rearm %s --execute", k.Pod))
	return writef(w, "%s\n", strings.Join(lines, "\n"))
}

func (k killAnswer) before() string {
	switch {
	case k.Already:
		return " (it was killed before)"
	case k.Before != k.Stage:
		return " (it was in " + k.Before + ")"
	default:
		return ""
	}
}

func (k killAnswer) acks() string {
	switch {
	case k.Routers == 0 && k.AckedMS == nil:
		return "their heartbeats could not be read"
	case k.Routers == 0:
		return "none was heard of in the last minute"
	case k.AckedMS != nil:
		return fmt.Sprintf("%d of %d acknowledged, after %.0f ms", k.Acks, k.Routers, *k.AckedMS)
	default:
		return fmt.Sprintf("%d of %d acknowledged; NOT YET: %s (each does with its next write or poll, if it lives)", k.Acks, k.Routers, strings.Join(k.Laggards, ", "))
	}
}

func (k killAnswer) mysql() string {
	if k.MySQL {
		return "its fence has the epoch"
	}
	return "its fence did not confirm the epoch in 200 ms; the first write of a router raises it"
}

func (k killAnswer) debt() string {
	switch {
	case k.Debt == nil:
		return "unknown: MySQL did not answer in 200 ms"
	case k.Debt.Reservations == 0:
		return "none"
	default:
		return debtText(*k.Debt)
	}
}
