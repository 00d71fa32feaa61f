package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/killswitch"
)

func newReseedCmd(a *app) *cobra.Command {
	f := orderFlags{}
	cmd := &cobra.Command{
		Use:   "reseed POD [--execute]",
		Short: "Wipe a pod's Redis and rebuild it from MySQL",
		Long: "Removes all of the pod's data from Redis and rebuilds it from MySQL, with a new epoch and incarnation. What Redis\n" +
			"knew and MySQL does not is lost: it waits for the routers' queues first, and says what may be lost all the same.\n" +
			"A Redis that has lost writes is restored by the routers, without it. Refused in legacy, where MySQL has no\n" +
			"reservations, and in complete, where flip --to cutover does it. Without --execute it changes nothing.\n" +
			"Exit 0: done, or it would be. Exit 2: refused. Killed half-way, run it again.",
		Example: "  twinhold reseed pod-7\n  twinhold reseed pod-7 --execute --reason 'keys were deleted by hand'",
		Args:    exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onPods(cmd.Context(), args[0], func(pods []*killswitch.Control) error {
				return a.reseedPod(cmd.Context(), pods[0], f)
			})
		},
	}
	f.why(cmd)
	cmd.Flags().BoolVar(&f.execute, "execute", false, "do it; without, it only says what would happen")
	return cmd
}

type reseedAnswer struct{ killswitch.ReseedResult }

func (a *app) reseedPod(ctx context.Context, c *killswitch.Control, f orderFlags) error {
	res, err := c.Reseed(ctx, f.reason, f.ticket, f.execute)
	if err != nil {
		return err
	}
	return a.show(reseedAnswer{res})
}

func (r reseedAnswer) text(w io.Writer) error {
	head, lost := "%s would be rebuilt, and be at epoch %d, %s\n", "  may be lost: %s\n"
	if r.Done {
		head = "%s is rebuilt: epoch %d, %s\n"
	}
	errs := []error{writef(w, head, r.Pod, r.Epoch, r.Stage)}
	if r.Detail != "" {
		errs = append(errs, writef(w, "  %s\n", r.Detail))
	}
	for _, l := range r.MayBeLost {
		errs = append(errs, writef(w, lost, l))
	}
	if !r.Done {
		errs = append(errs, writef(w, "  to do it: add --execute\n"))
	}
	return errors.Join(errs...)
}
