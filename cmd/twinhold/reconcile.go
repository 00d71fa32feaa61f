package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/reconcile"
	"github.com/twinhold/twinhold/reservation"
)

// reconcileFlags are how the rounds are run.
type reconcileFlags struct {
	once   bool
	rounds int
	pause  time.Duration
}

func newReconcileCmd(a *app) *cobra.Command {
	f := reconcileFlags{}
	cmd := &cobra.Command{
		Use:   "reconcile POD",
		Short: "Check a pod's MySQL now: do the figures add up, and does every row belong to one",
		Long: "Reads a pod's MySQL in consistent snapshots, a page at a time, and checks per bucket that pool + reserved + unpooled\n" +
			"= on_hand (I2) and that on_hand is the sum of its entries (I3); that no line, unit row, entry or mark is without the\n" +
			"row that it belongs to; that no hold is without lines or held long past its expiry, and no mark old. Where the pod\n" +
			"has a mysql_replica it reads that, and asks the primary about what it finds there.\n" +
			"A fault counts when it is there in 3 rounds in a row (--rounds); one round without any is enough to be well. It\n" +
			"changes nothing: each finding says how to mend it. A router that serves runs the same rounds all the time.\n" +
			"Exit 0: all is well. Exit 2: something lasts (with --once: something was found).",
		Example: "  twinhold reconcile pod-1\n  twinhold reconcile pod-1 --once --format json",
		Args:    exactArgs("POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if fl := cmd.Flags(); f.once && (fl.Changed("rounds") || fl.Changed("pause")) {
				return usageError(cmd, errors.New("--once is a single round: leave out --rounds and --pause"))
			}
			return a.reconcile(cmd.Context(), args[0], f)
		},
	}
	cmd.Flags().BoolVar(&f.once, "once", false, "a single round: what it finds may be gone in the next")
	cmd.Flags().IntVar(&f.rounds, "rounds", 3, "in how many rounds in a row a fault has to be there, `N`")
	cmd.Flags().DurationVar(&f.pause, "pause", 5*time.Second, "the pause between two rounds, `D`")
	return cmd
}

type reconcileAnswer struct {
	Pod string `json:"pod"`
	OK  bool   `json:"ok"`
	// Rounds is how many were run. Once says that one was all that was asked for: nothing can last in it.
	Rounds int  `json:"rounds"`
	Once   bool `json:"once"`
	// Source is where the last round read: primary or replica.
	Source      string             `json:"source"`
	LagS        float64            `json:"replica_lag_s"`
	Unconfirmed int                `json:"replica_only"`
	Notes       []string           `json:"notes"`
	Findings    []reconcileFinding `json:"findings"`
	Read        reconcileRead      `json:"read"`
	TookMS      float64            `json:"took_ms"`
}

type reconcileFinding struct {
	Check       string `json:"check"`
	Bucket      string `json:"bucket,omitempty"`
	Reservation string `json:"reservation,omitempty"`
	Found       string `json:"found"`
	Fix         string `json:"fix"`
	Rounds      int    `json:"rounds"`
	Lasting     bool   `json:"lasting"`
}

type reconcileRead struct {
	Buckets int `json:"buckets"`
	Lines   int `json:"lines"`
	Holds   int `json:"holds"`
	Marks   int `json:"marks"`
}

func (a *app) reconcile(ctx context.Context, id string, f reconcileFlags) error {
	if f.rounds < 1 || f.pause < 0 {
		return &exitError{code: exitFailed, err: fmt.Errorf("--rounds %d --pause %v make no sense", f.rounds, f.pause), hint: "use 1 round or more, and a pause of 0 or more"}
	}
	p, err := a.openStores(ctx, id)
	if err != nil {
		return err
	}
	defer closeLooked(ctx, p)
	rounds, err := p.Reconcile(nil, f.rounds)
	if err != nil {
		return err
	}
	defer rounds.Close()
	ans, err := a.runRounds(ctx, id, rounds, f)
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: reconcileHint(err)}
	}
	if err := a.show(ans); err != nil {
		return err
	}
	if !ans.OK {
		return &exitError{code: exitRefused, err: fmt.Errorf("pod %s: %s", id, ans.wrong()), hint: "each finding says how it is mended; then run reconcile again"}
	}
	return nil
}

func reconcileHint(err error) string {
	if isSchemaTrouble(err) {
		return mysqlHint(err, "")
	}
	return "nothing was judged, since not all could be read: does MySQL answer (twinhold doctor)?"
}

// runRounds runs what was asked for, and tells of each round on stderr.
func (a *app) runRounds(ctx context.Context, id string, rounds *podset.Rounds, f reconcileFlags) (reconcileAnswer, error) {
	began := time.Now()
	if f.once {
		round, err := rounds.Round(ctx)
		return answerOf(id, reconcile.Verdict{Last: round, Rounds: 1}, true, time.Since(began)), err
	}
	show := newProgress(a.err)
	defer show.end()
	n := 0
	v, err := rounds.Judge(ctx, f.pause, func(r reconcile.Round) {
		n++
		show.phase(fmt.Sprintf("round %d: %s, %s found, in %v", n, plural(r.Read.Buckets, "bucket"), plural(len(r.Findings), "fault"), r.Took.Round(time.Millisecond)))
	})
	return answerOf(id, v, false, time.Since(began)), err
}

func answerOf(id string, v reconcile.Verdict, once bool, took time.Duration) reconcileAnswer {
	r := v.Last
	ans := reconcileAnswer{
		Pod: id, OK: v.OK() && (!once || len(r.Findings) == 0), Rounds: v.Rounds, Once: once, Source: string(r.Source), LagS: r.Lag.Seconds(),
		Unconfirmed: r.Unconfirmed, Notes: append([]string{}, r.Notes...), Findings: []reconcileFinding{},
		Read:   reconcileRead{Buckets: r.Read.Buckets, Lines: r.Read.Lines, Holds: r.Read.Holds, Marks: r.Read.Marks},
		TookMS: float64(took.Microseconds()) / 1000,
	}
	for _, f := range r.Findings {
		d := reconcileFinding{Check: string(f.Check), Found: f.Found, Fix: f.Fix, Rounds: f.Rounds, Lasting: f.Lasting}
		if f.Bucket != (reservation.Bucket{}) {
			d.Bucket = f.Bucket.String()
		}
		if f.Reservation != (reservation.ID{}) {
			d.Reservation = f.Reservation.String()
		}
		ans.Findings = append(ans.Findings, d)
	}
	return ans
}

// wrong says in a few words what is the matter.
func (r reconcileAnswer) wrong() string {
	if r.Once {
		return plural(len(r.Findings), "fault") + " in a single round"
	}
	lasting := 0
	for _, f := range r.Findings {
		if f.Lasting {
			lasting++
		}
	}
	return plural(lasting, "fault") + " last"
}

func (r reconcileAnswer) text(w io.Writer) error {
	head := "ok"
	if !r.OK {
		head = r.wrong()
	}
	errs := []error{writef(w, "%s: %s (%s, %s, %s, %s, read from the %s)\n", r.Pod, head, plural(r.Rounds, "round"), plural(r.Read.Buckets, "bucket"),
		plural(r.Read.Holds, "hold"), plural(r.Read.Lines, "line"), r.Source)}
	if r.Once {
		errs = append(errs, writef(w, "  this is one round: what lasts is known after several (leave out --once)\n"))
	}
	if r.LagS >= 1 {
		errs = append(errs, writef(w, "  the replica is %v behind\n", time.Duration(r.LagS*float64(time.Second)).Round(time.Second)))
	}
	for _, n := range r.Notes {
		errs = append(errs, writef(w, "  note: %s\n", n))
	}
	for _, f := range r.Findings {
		errs = append(errs, writef(w, "%s", f.text()))
	}
	return errors.Join(errs...)
}

func (f reconcileFinding) text() string {
	s := "\n" + f.Check
	if f.Bucket != "" {
		s += "  bucket " + f.Bucket
	}
	if f.Reservation != "" {
		s += "  reservation " + f.Reservation
	}
	how := "seen in " + plural(f.Rounds, "round")
	if f.Lasting {
		how += ", it lasts"
	}
	return fmt.Sprintf("%s  (%s)\n  %s\n  -> %s\n", s, how, f.Found, f.Fix)
}
