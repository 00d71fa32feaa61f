package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

func (c connsAnswer) text(w io.Writer) error {
	var errs []error
	if !c.alone {
		errs = append(errs, writef(w, "%s, by this router:\n", c.Pod), tagsText(w, c.Tags))
	}
	if c.Untagged > 0 {
		errs = append(errs, writef(w, "  ! %s without a conn_tag\n", plural(int(c.Untagged), "statement")))
	}
	if c.Server != nil {
		errs = append(errs, writef(w, "%s, by its MySQL, all clients:\n", c.Pod), serverText(w, c.Server))
	}
	if c.ServerError != "" {
		errs = append(errs, writef(w, "%s, by its MySQL: not known, %s\n", c.Pod, c.ServerError))
	}
	if c.ServerLost > 0 {
		errs = append(errs, writef(w, "  ! %s of this server stand under no digest: performance_schema_digests_size is too small, or TRUNCATE the table\n", plural(int(c.ServerLost), "statement")))
	}
	for _, p := range c.Pods {
		errs = append(errs, writef(w, "\n"), p.text(w))
	}
	return errors.Join(errs...)
}

func tagsText(w io.Writer, tags []tagUse) error {
	if len(tags) == 0 {
		return writef(w, "  nothing is counted\n")
	}
	var held float64
	for _, u := range tags {
		held += u.HeldS
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(tw, "held, s\tshare\tstatements\tlongest, ms\tin use\t1205\t1213\tother errors\t\ttag")
	for _, u := range tags {
		_, _ = fmt.Fprintf(tw, "%.3f\t%s\t%d\t%.1f\t%d\t%d\t%d\t%d\t\t%s\n", u.HeldS, percent(u.HeldS, held), u.Statements, u.LongestMS, u.InUse, u.LockWaits, u.Deadlocks, u.Errors, u.Tag)
	}
	return flushed(tw)
}

func serverText(w io.Writer, uses []serverUse) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(tw, "total, s\tof it locked\tstatements\tlongest, ms\trunning\tidle in trx\terrors\t\ttag")
	for _, u := range uses {
		_, _ = fmt.Fprintf(tw, "%.3f\t%.3f\t%d\t%.1f\t%d\t%d\t%d\t\t%s\n", u.TotalS, u.LockedS, u.Statements, u.LongestMS, u.Running, u.IdleInTrx, u.Errors, u.Tag)
	}
	return flushed(tw)
}

func percent(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*part/whole)
}

// flushed reports what a table could not write.
func flushed(tw *tabwriter.Writer) error {
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
