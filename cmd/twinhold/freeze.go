package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

func newFreezeCmd(a *app) *cobra.Command {
	return a.brakeCmd("freeze", true, "No new reservations: the brake of a pod or a bucket",
		"Stops new reservations of a pod, or of one bucket. Claims, releases and reads go on. It is set in Redis first, then in\n"+
			"MySQL; either alone is enough for what that store decides, and it says which it reached: it is the brake for the\n"+
			"night on which Redis is in doubt too. Exit 0: at least one was reached. Exit 1: none.")
}

func newUnfreezeCmd(a *app) *cobra.Command {
	return a.brakeCmd("unfreeze", false, "Let reservations in again",
		"Lifts what freeze has set. A brake that is left in one store still holds there: it says which it reached.\n"+
			"Exit 0: at least one was reached. Exit 1: none.")
}

func (a *app) brakeCmd(use string, on bool, short, long string) *cobra.Command {
	f := orderFlags{}
	var bucket string
	cmd := &cobra.Command{
		Use:     use + " POD [--bucket SHOP:ITEM:GROUP] --reason R",
		Short:   short,
		Long:    long,
		Example: "  twinhold " + use + " pod-7 --reason 'INC-12'\n  twinhold " + use + " pod-7 --bucket 1:1001:1 --reason 'counting'",
		Args:    exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := parseBucket(bucket)
			if err != nil {
				return err
			}
			return a.onPods(cmd.Context(), args[0], func(pods []*killswitch.Control) error {
				res, err := pods[0].Freeze(cmd.Context(), b, on, f.reason, f.ticket)
				if err != nil {
					return err
				}
				return a.show(freezeAnswer{res})
			})
		},
	}
	cmd.Flags().StringVar(&bucket, "bucket", "", "one bucket, `SHOP:ITEM:GROUP`, in place of the whole pod")
	f.why(cmd)
	return cmd
}

// parseBucket reads SHOP:ITEM:GROUP; empty is the whole pod.
func parseBucket(s string) (reservation.Bucket, error) {
	if s == "" {
		return reservation.Bucket{}, nil
	}
	bad := &exitError{code: exitFailed, err: fmt.Errorf("--bucket %q is not SHOP:ITEM:GROUP", s), hint: "three whole numbers from 1, such as --bucket 1:1001:1"}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return reservation.Bucket{}, bad
	}
	var n [3]int64
	for i, p := range parts {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return reservation.Bucket{}, bad
		}
		n[i] = v
	}
	b := reservation.Bucket{Shop: n[0], Item: n[1], Group: n[2]}
	if b.Validate() != nil {
		return reservation.Bucket{}, bad
	}
	return b, nil
}

type freezeAnswer struct{ killswitch.FreezeResult }

func (f freezeAnswer) text(w io.Writer) error {
	what, done := f.Pod, "unfrozen"
	if f.Bucket != "" {
		what = "bucket " + f.Bucket + " of " + f.Pod
	}
	if f.Frozen {
		done = "FROZEN"
	}
	if err := writef(w, "%s is %s in %s\n", what, done, strings.Join(f.Reached, " and ")); err != nil {
		return err
	}
	for _, n := range f.Notes {
		if err := writef(w, "  note: %s\n", n); err != nil {
			return err
		}
	}
	for _, m := range f.Missed {
		if err := writef(w, "  not in %s: %s\n", m.Store, m.Error); err != nil {
			return err
		}
	}
	return nil
}
