package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/reservation"
)

// mendFlags say what is mended, and from where.
type mendFlags struct {
	orderFlags
	id, bucket, from string
}

func newMendCmd(a *app) *cobra.Command {
	f := mendFlags{}
	cmd := &cobra.Command{
		Use:   "mend POD (--id ID | --bucket SHOP:ITEM:GROUP) --from redis|mysql [--execute --reason R]",
		Short: "Mend a difference between the stores that has no known cause",
		Long: "Catch-up mends what it knows the cause of. What it may not mend, and lasts, freezes its bucket (twinhold status says\n" +
			"so, twinhold audit has the evidence). This command shows what both stores have now, and what would be written so that\n" +
			"the other store is like the one that --from names. With --execute it writes exactly that, if all is still as it was\n" +
			"shown, writes down who and why, and lets the bucket in again that was frozen for it, if no difference remains.\n" +
			"A bucket is mended from mysql only: its counters in Redis get the ledger's stock and what its reservations hold.\n" +
			"What is promised twice stays promised twice: it says where it takes units that are not there.\n" +
			"Exit 0: done, or nothing is to be mended. Exit 2: not done: refused, changed since, or not executed.",
		Example: "  twinhold mend pod-7 --id 01a22fa5-1587-780b-bab6-d8658820503e --from redis\n" +
			"  twinhold mend pod-7 --bucket 1:1001:1 --from mysql --execute --reason 'INC-12: counter set by hand'",
		Args: exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.order()
			if err != nil {
				return usageError(cmd, err)
			}
			return a.mend(cmd.Context(), args[0], o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.id, "id", "", "the reservation, `ID`")
	fl.StringVar(&f.bucket, "bucket", "", "the bucket, `SHOP:ITEM:GROUP`")
	fl.StringVar(&f.from, "from", "", "the store that is right, `redis or mysql`: the other one is written")
	fl.BoolVar(&f.execute, "execute", false, "write it; without, it is only shown")
	f.why(cmd)
	return cmd
}

// order reads the flags.
func (f mendFlags) order() (o podset.MendOrder, err error) {
	o = podset.MendOrder{Execute: f.execute, Reason: f.reason, Ticket: f.ticket}
	if (f.id == "") == (f.bucket == "") {
		return o, errors.New("give --id or --bucket, one of them")
	}
	switch f.from {
	case reservation.Redis.String():
		o.From = reservation.Redis
	case reservation.MySQL.String():
		o.From = reservation.MySQL
	default:
		return o, fmt.Errorf("--from %q is no store: say which one is right, redis or mysql", f.from)
	}
	if f.execute && f.reason == "" {
		return o, errors.New("--execute needs --reason: it stands in the audit")
	}
	if f.id != "" {
		if o.ID, err = reservation.ParseID(f.id); err != nil {
			return o, fmt.Errorf("--id %q is no reservation's: %w", f.id, err)
		}
		return o, nil
	}
	o.Bucket, err = parseBucket(f.bucket)
	return o, err
}

func (a *app) mend(ctx context.Context, id string, o podset.MendOrder) error {
	p, err := a.openStores(ctx, id)
	if err != nil {
		return err
	}
	defer closeLooked(ctx, p)
	res, err := p.Mend(ctx, o, "")
	switch {
	case errors.Is(err, reservation.ErrNotFound):
		return &exitError{code: exitFailed, err: fmt.Errorf("pod %s: neither store has reservation %s", id, o.ID), hint: "twinhold audit " + id + " has the ids of differences that froze a bucket"}
	case err != nil:
		return controlHint(err)
	}
	ans := mendAnswer{res}
	if err := a.show(ans); err != nil {
		return err
	}
	return ans.refused(o)
}

type mendAnswer struct{ podset.MendResult }

// refused is the error of a mend that did not do what was asked.
func (m mendAnswer) refused(o podset.MendOrder) error {
	switch {
	case m.Refused != "":
		return &exitError{code: exitRefused, err: fmt.Errorf("%s: %s", m.Of, m.Refused), hint: "docs/differences.md says what each kind means"}
	case !o.Execute && len(m.Would)+len(m.Frozen) > 0:
		return &exitError{code: exitRefused, err: fmt.Errorf("%s: shown, not mended", m.Of), hint: "the same with --execute --reason R does it"}
	case m.Left != "":
		return &exitError{code: exitRefused, err: fmt.Errorf("%s: a difference remains: %s", m.Of, m.Left), hint: "run it again to see what is there now"}
	default:
		return nil
	}
}

func (m mendAnswer) text(w io.Writer) error {
	errs := []error{writef(w, "%s of %s, from %s to %s\n", m.Of, m.Pod, m.From, m.To)}
	if m.Evidence.What != "" {
		errs = append(errs, writef(w, "  differs  %s\n", m.Evidence.What))
	}
	errs = append(errs, recordText(w, "redis", m.Evidence.Redis), recordText(w, "mysql", m.Evidence.MySQL))
	for _, b := range m.Evidence.Buckets {
		errs = append(errs, writef(w, "  bucket   %s: redis %s; mysql %s\n", b.Bucket, figuresText(b.Redis), figuresText(b.MySQL)))
	}
	return errors.Join(append(errs, m.done(w))...)
}

// done says what would be, or was, written.
func (m mendAnswer) done(w io.Writer) error {
	what := "would be written"
	if m.Done {
		what = "WRITTEN"
	}
	var errs []error
	if len(m.Would) == 0 && m.Refused == "" {
		errs = append(errs, writef(w, "  nothing is to be mended\n"))
	}
	for _, s := range m.Would {
		errs = append(errs, writef(w, "  %s: %s\n", what, s))
	}
	for _, s := range m.Warnings {
		errs = append(errs, writef(w, "  WARNING  %s\n", s))
	}
	if m.Forced > 0 {
		errs = append(errs, writef(w, "  FORCED   %s that were not there\n", plural(int(m.Forced), "unit")))
	}
	for _, b := range m.Frozen {
		errs = append(errs, writef(w, "  frozen   bucket %s, for this difference\n", b))
	}
	for _, b := range m.Unfrozen {
		errs = append(errs, writef(w, "  let in   bucket %s takes reservations again\n", b))
	}
	return errors.Join(errs...)
}

// recordText shows one store's record.
func recordText(w io.Writer, store string, r *podset.RecordView) error {
	if r == nil {
		return nil
	}
	errs := []error{writef(w, "  %s    %s, epoch %d, decided by %s, key %q, lines %v\n", store, r.State, r.Epoch, r.DecidedBy, r.Key, r.Lines)}
	for _, at := range []string{"created", "pinned", "claimed", "released", "expired", "expires", "purge"} {
		if t, ok := r.Times[at]; ok {
			errs = append(errs, writef(w, "           %-8s %s\n", at, t.Format("2006-01-02T15:04:05.000000Z07:00")))
		}
	}
	return errors.Join(errs...)
}

func figuresText(f *podset.FiguresView) string {
	if f == nil {
		return unknown
	}
	return fmt.Sprintf("available %d, held %d, on hand %d, version %d", f.Available, f.Held, f.OnHand, f.Version)
}
