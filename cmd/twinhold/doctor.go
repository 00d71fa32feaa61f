package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/doctor"
	"github.com/twinhold/twinhold/internal/mysqlerr"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/reservation"
)

func newDoctorCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check each store against what the design assumes",
		Long: "Asks every pod's MySQL and Redis how they are set up. MySQL: version, SKIP LOCKED, binary log, clock, schema, fence,\n" +
			"what our connections get (lock wait, isolation, packet), limits, redo and binary log flushing and what it means for\n" +
			"promises, read-only, purge lag and old read views, the account's rights, and how far a replica is behind. Redis:\n" +
			"noeviction, appendonly, clock, fence; on Sentinel and Cluster of every server that has the pod's data, and the sentinels\n" +
			"or the cluster. It changes nothing. Exit 0: all is well, warnings at most. Exit 2: something has to be mended, and it\n" +
			"says how.",
		Example: "  twinhold doctor --config twinhold.yaml",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

type doctorFinding struct {
	Pod   string `json:"pod"`
	Store string `json:"store"`
	Check string `json:"check"`
	// Result is ok, warning or failure.
	Result string `json:"result"`
	Found  string `json:"found"`
	Fix    string `json:"fix,omitempty"`
}

type doctorAnswer struct {
	OK       bool            `json:"ok"`
	Findings []doctorFinding `json:"findings"`
}

const (
	resultOK      = "ok"
	resultWarning = "warning"
	resultFailure = "failure"
)

func (a *app) doctor(ctx context.Context) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	ans := doctorAnswer{OK: true, Findings: []doctorFinding{}}
	found := make([][]doctorFinding, len(cfg.Pods))
	var pods sync.WaitGroup
	for i, pc := range cfg.Pods {
		pods.Go(func() { found[i] = examinePod(ctx, cfg, pc) })
	}
	pods.Wait()
	ans.Findings = slices.Concat(found...)
	failures := 0
	for _, f := range ans.Findings {
		if f.Result == resultFailure {
			failures++
		}
	}
	ans.OK = failures == 0
	if err := a.show(ans); err != nil {
		return err
	}
	if !ans.OK {
		return &exitError{code: exitRefused, err: fmt.Errorf("%s", plural(failures, "failure")), hint: "mend what is listed, then run doctor again"}
	}
	return nil
}

// examinePod asks both stores of a pod. A store that cannot be asked is a finding.
func examinePod(ctx context.Context, cfg *config.Config, pc config.Pod) []doctorFinding {
	p, err := podset.OpenStores(ctx, cfg, pc)
	if err != nil {
		return []doctorFinding{{Pod: pc.ID, Store: "both", Check: "open", Result: resultFailure, Found: oneLine(err), Fix: "see twinhold config check"}}
	}
	defer closeLooked(ctx, p)
	var inMySQL, inReplica, inRedis []doctorFinding
	var stage doctorFinding
	var all sync.WaitGroup // at the same time: one that hangs does not hold up the others
	all.Go(func() { inMySQL = examineMySQL(ctx, p) })
	all.Go(func() { inReplica = examineReplica(ctx, p) })
	all.Go(func() { inRedis = examineRedis(ctx, p) })
	all.Go(func() { stage = examineStage(ctx, p) })
	all.Wait()
	return append(slices.Concat(inMySQL, inReplica, inRedis), stage)
}

// examineStage compares the two fences with each other and with the configuration.
func examineStage(ctx context.Context, p *podset.Pod) doctorFinding {
	d := doctorFinding{Pod: p.Config.ID, Store: "both", Check: "stage", Result: resultOK}
	declared := p.Config.DeclaredStage()
	rs, ms := askBoth(ctx, p.Redis.ReadFence, p.MySQL.ReadFence)
	if rs.err != nil || ms.err != nil {
		d.Result, d.Found, d.Fix = resultFailure, fenceOf("redis", rs)+"; "+fenceOf("mysql", ms), unreadHint(ms.err)
		return d
	}
	rf, mf := rs.value, ms.value
	stage := rf.Stage
	if rf.Epoch == 0 {
		stage = declared
	}
	d.Found = fmt.Sprintf("%s, epoch %d", stage, rf.Epoch)
	switch {
	case rf.Stamp != mf.Stamp:
		d.Result = resultFailure
		d.Found = fmt.Sprintf("the fences differ: Redis %s, MySQL %s", fenceText(rf), fenceText(mf))
		d.Fix = "does the pod name the Redis and the MySQL schema that belong together? A new pod needs an empty schema and an unused Redis"
	case rf.Epoch == 0:
		d.Found = fmt.Sprintf("a new pod: it starts in %s, as declared", declared)
	case stage != declared:
		d.Result = resultWarning
		d.Found += fmt.Sprintf("; the configuration declares %s", declared)
		d.Fix = "the fences are what is true; make the file say the same"
	}
	return d
}

// fenceOf tells what one store says of the stage, where the other or this one says nothing.
func fenceOf(store string, s side[reservation.Fence]) string {
	if s.err != nil {
		return store + " does not tell: " + oneLine(s.err)
	}
	return store + " says " + fenceText(s.value)
}

// unreadHint is about the schema only where that is the trouble.
func unreadHint(fromMySQL error) string {
	if isSchemaTrouble(fromMySQL) {
		return mysqlHint(fromMySQL, "")
	}
	return "mend the store that does not answer"
}

func isSchemaTrouble(err error) bool { return mysqlerr.Of(err) == mysqlerr.NoTable }

func fenceText(f reservation.Fence) string {
	if f.Epoch == 0 {
		return "none"
	}
	return fmt.Sprintf("epoch %d, %s", f.Epoch, f.Stage)
}

// askedWhere is what to do about a store that could not be asked.
const askedWhere = "is it running, and are address, user and password right?"

func examineMySQL(ctx context.Context, p *podset.Pod) []doctorFinding {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := p.MySQL.Check(ctx)
	if err == nil {
		var asked []reservation.Finding
		asked, err = doctor.Examine(ctx, p.MySQL.DB(), doctor.Options{})
		found = append(found, asked...)
	}
	if err != nil {
		return []doctorFinding{{Pod: p.Config.ID, Store: "mysql", Check: "answers", Result: resultFailure, Found: oneLine(err), Fix: mysqlHint(err, askedWhere)}}
	}
	return ofStore(p.Config.ID, "mysql", found)
}

// ofStore is what a store's checks found, as doctor tells it.
func ofStore(pod, store string, found []reservation.Finding) []doctorFinding {
	out := make([]doctorFinding, 0, len(found))
	for _, f := range found {
		out = append(out, doctorFinding{Pod: pod, Store: store, Check: f.Check, Result: f.Severity.String(), Found: f.Found, Fix: f.Fix})
	}
	return out
}

// replicaLag is how far a replica may be behind without a word: reconcile reads the primary from ten minutes on.
const replicaLag = time.Minute

// examineReplica asks how far the replica is behind, if there is one. No promise hangs on it, so nothing fails.
func examineReplica(ctx context.Context, p *podset.Pod) []doctorFinding {
	if p.Config.MySQLReplica.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	d := doctorFinding{Pod: p.Config.ID, Store: "mysql_replica", Check: "follows", Result: resultWarning}
	rounds, err := p.Reconcile(nil, 0)
	if err != nil {
		d.Found, d.Fix = oneLine(err), "see twinhold config check"
		return []doctorFinding{d}
	}
	defer rounds.Close()
	b, err := rounds.Behind(ctx)
	switch {
	case err != nil:
		d.Found, d.Fix = oneLine(err), askedWhere+" Until then reconcile reads the primary"
	case b.Stopped:
		d.Found, d.Fix = "it does not follow its primary any more", "see SHOW REPLICA STATUS on it, then START REPLICA"
	case b.Lag > replicaLag:
		d.Found, d.Fix = fmt.Sprintf("%v behind", b.Lag.Round(time.Second)), "can it keep up (replica_parallel_workers, its disk)? reconcile finds a fault that much later"
	default:
		d.Result, d.Found = resultOK, fmt.Sprintf("%v behind", b.Lag.Round(time.Second))
	}
	return []doctorFinding{d}
}

func examineRedis(ctx context.Context, p *podset.Pod) []doctorFinding {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := p.Redis.Check(ctx)
	if err != nil {
		return []doctorFinding{{Pod: p.Config.ID, Store: "redis", Check: "answers", Result: resultFailure, Found: oneLine(err), Fix: askedWhere}}
	}
	return ofStore(p.Config.ID, "redis", found)
}

func (d doctorAnswer) text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var errs []error
	for _, f := range d.Findings {
		_, err := fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", f.Result, f.Pod, f.Store, f.Check, f.Found)
		errs = append(errs, err)
		if f.Fix != "" && f.Result != resultOK {
			_, err := fmt.Fprintf(tw, "\t\t\t\t-> %s\n", f.Fix)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(append(errs, tw.Flush())...); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
