package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/mysqlerr"
	"github.com/twinhold/twinhold/mysqlstore"
)

type connsFlags struct {
	server bool
	admin  string
}

// adminToken in the environment is the token for an admin listener that wants one.
const adminToken = "TWINHOLD_ADMIN_TOKEN" //nolint:gosec // the variable's name

func newConnsCmd(a *app) *cobra.Command {
	f := connsFlags{}
	cmd := &cobra.Command{
		Use:   "conns [POD]",
		Short: "Connection-seconds by conn_tag: who holds the pool of connections to MySQL",
		Long: "Asks a running router's admin listener for how long connections to MySQL were out of its pool, by the conn_tag of\n" +
			"the statement that kept them: from a connection's checkout to its return, idle time inside a transaction included.\n" +
			"Without POD all pods of the configuration, summed. With --server also what MySQL's own statement tables say of\n" +
			"the same tags, over all clients of the pod's schema; that works without a router too. The pod's user needs for it\n" +
			"GRANT " + conntag.ServerRight + " (twinhold doctor tells). What could be read is printed in any case.\n" +
			"Exit 0: all that was asked for. Exit 1: an error, or a half of it is missing that --server asked for.\n" +
			"An admin listener with tokens wants one of them in the environment: " + adminToken + ".",
		Example: "  twinhold conns pod-7\n  twinhold conns pod-7 --server\n  twinhold conns --admin 10.0.0.7:7071 --format json",
		Args:    optionalPod,
		RunE:    func(cmd *cobra.Command, args []string) error { return a.conns(cmd.Context(), firstArg(args), f) },
	}
	cmd.Flags().BoolVar(&f.server, "server", false, "also what the pod's MySQL counts by tag")
	cmd.Flags().StringVar(&f.admin, "admin", "", "another router's admin listener, `HOST:PORT` or its URL; else the configuration's")
	return cmd
}

// connsAnswer is the JSON of conns.
type connsAnswer struct {
	// Pod is "all" where several are summed; each is then in Pods.
	Pod  string   `json:"pod"`
	Tags []tagUse `json:"tags"`
	// Untagged is how many statements of the router had no tag.
	Untagged int64       `json:"untagged"`
	Server   []serverUse `json:"server,omitempty"`
	// ServerError is why MySQL's half is missing.
	ServerError string `json:"server_error,omitempty"`
	// ServerLost is how many statements of the whole server stand under no digest, since its table is full.
	ServerLost int64         `json:"server_lost,omitempty"`
	Pods       []connsAnswer `json:"pods,omitempty"`

	alone bool // no router told anything of this pod
}

type tagUse struct {
	Tag        string  `json:"tag"`
	Statements int64   `json:"statements"`
	HeldS      float64 `json:"held_s"`
	LongestMS  float64 `json:"longest_ms"`
	InUse      int64   `json:"in_use"`
	LockWaits  int64   `json:"lock_waits"`
	Deadlocks  int64   `json:"deadlocks"`
	Errors     int64   `json:"errors"`
}

type serverUse struct {
	Tag        string  `json:"tag"`
	Statements int64   `json:"statements"`
	TotalS     float64 `json:"total_s"`
	LongestMS  float64 `json:"longest_ms"`
	LockedS    float64 `json:"locked_s"`
	Errors     int64   `json:"errors"`
	Running    int     `json:"running"`
	IdleInTrx  int     `json:"idle_in_trx"`
}

// allPods names the sum.
const allPods = "all"

// conns prints whatever could be read, and then fails if MySQL's half was asked for and is missing.
func (a *app) conns(ctx context.Context, only string, f connsFlags) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	pods, err := a.podsOf(cfg, only)
	if err != nil {
		return err
	}
	metrics, err := a.routerMetrics(ctx, cfg, f)
	if err != nil {
		if !f.server {
			return err
		}
		a.warn("the router's half is missing: %v", err)
	}
	each := make([]connsAnswer, 0, len(pods))
	var missing []error
	read := 0
	for _, pc := range pods {
		ans, err := a.connsOf(pc.ID, metrics, f)
		if err != nil {
			return err
		}
		if f.server {
			if err := ans.askServer(ctx, pc); err != nil {
				missing = append(missing, err)
			}
		}
		if !ans.alone || ans.Server != nil {
			read++
		}
		each = append(each, ans)
	}
	if read > 0 {
		if err := a.showConns(each); err != nil {
			return err
		}
	}
	return connsMissing(missing)
}

// connsOf is a pod's half that the router tells. With --server a router that does not serve the pod is only a warning.
func (a *app) connsOf(pod string, metrics families, f connsFlags) (connsAnswer, error) {
	ans := podConns(pod, metrics)
	ans.alone = len(ans.Tags) == 0
	if metrics == nil || !ans.alone { // a router that serves a pod uses connections all the time
		return ans, nil
	}
	err := fmt.Errorf("that router counts no connection of %s", pod)
	if f.server {
		a.warn("the router's half is missing: %v", err)
		return ans, nil
	}
	return ans, &exitError{code: exitFailed, err: err, hint: "does it serve this pod, and is it of this version? --server asks MySQL"}
}

func (a *app) showConns(each []connsAnswer) error {
	if len(each) == 1 {
		return a.show(each[0])
	}
	return a.show(sumConns(each))
}

// connsMissing is one error of what several servers did not tell, with all their hints.
func connsMissing(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	var hints []string
	for _, err := range errs {
		if e, ok := errors.AsType[*exitError](err); ok && !slices.Contains(hints, e.hint) {
			hints = append(hints, e.hint)
		}
	}
	return &exitError{code: exitFailed, err: fmt.Errorf("MySQL's half is missing: %w", errors.Join(errs...)), hint: strings.Join(hints, "; ")}
}

// families are what a router's admin listener says of itself.
type families map[string]*dto.MetricFamily

// maxMetrics bounds an answer that is read whole.
const maxMetrics = 64 << 20

// routerMetrics asks the admin listener of a running router.
func (a *app) routerMetrics(ctx context.Context, cfg *config.Config, f connsFlags) (found families, err error) {
	url, err := metricsURL(cfg, f.admin)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := adminClient(cfg)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the router: %w", err)
	}
	if token, ok := a.getenv(adminToken); ok {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, unheard(err)
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	return readMetrics(res)
}

// metricsURL is where a router tells its metrics: at the address asked for, with http:// or https:// or as the
// configuration has it; else at the configuration's.
func metricsURL(cfg *config.Config, asked string) (string, error) {
	scheme := "http"
	if cfg.Admin.TLS.On() {
		scheme = "https"
	}
	listen := cmp.Or(asked, cfg.Admin.Listen)
	if s, rest, ok := strings.Cut(asked, "://"); ok {
		scheme, listen = strings.ToLower(s), strings.TrimSuffix(strings.TrimSuffix(rest, "/"), "/metrics")
	}
	addr, ok := dialable(listen)
	if !ok || scheme != "http" && scheme != "https" || strings.ContainsAny(addr, "/@?#") {
		return "", &exitError{
			code: exitFailed, err: fmt.Errorf("the admin listener %q cannot be found", cmp.Or(asked, cfg.Admin.Listen)),
			hint: "name it with its port, as in --admin 10.0.0.7:7071 or --admin http://10.0.0.7:7071",
		}
	}
	return scheme + "://" + addr + "/metrics", nil
}

// unheard says why an admin listener gave no answer.
func unheard(err error) error {
	hint := "is one running there (twinhold serve)? --admin HOST:PORT names another, --server asks MySQL"
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		hint = "admin.tls names the certificate that is trusted: is it that router's?"
	} else if errors.Is(err, http.ErrSchemeMismatch) {
		hint = "it speaks no TLS: write --admin http://HOST:PORT"
	}
	return &exitError{code: exitFailed, err: fmt.Errorf("no router answers at the admin listener: %w", err), hint: hint}
}

// adminClient trusts the configured certificate of the admin listener, and no other; without one those that this
// machine trusts.
func adminClient(cfg *config.Config) (*http.Client, error) {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: findTimeout}
	if cfg.Admin.TLS.On() {
		trust, err := trusting(cfg.Admin.TLS)
		if err != nil {
			return nil, &exitError{code: exitFailed, err: err, hint: "admin.tls names the certificate"}
		}
		transport.TLSClientConfig = trust
	}
	return &http.Client{Transport: transport}, nil
}

func readMetrics(res *http.Response) (families, error) {
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("the admin listener wants a token (%s)", res.Status), hint: "put one of admin.tokens_file into " + adminToken}
	case http.StatusBadRequest: // what Go's server says to cleartext where it speaks TLS
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("the admin listener answers %s", res.Status), hint: "does it speak TLS? Write --admin https://HOST:PORT"}
	default:
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("the admin listener answers %s", res.Status), hint: "is it a router's? admin.listen and --admin name it"}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(io.LimitReader(res.Body, maxMetrics))
	if err != nil {
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("what the admin listener says are no metrics: %w", err), hint: "is it a router's? admin.listen and --admin name it"}
	}
	return found, nil
}

// podConns picks a pod's figures out of a router's metrics.
func podConns(pod string, found families) connsAnswer {
	byTag := map[string]*tagUse{}
	each := func(name string, f func(u *tagUse, m *dto.Metric)) {
		for _, m := range found[name].GetMetric() {
			if label(m, "pod") != pod {
				continue
			}
			tag := label(m, conntag.LabelTag)
			if byTag[tag] == nil {
				byTag[tag] = &tagUse{Tag: tag}
			}
			f(byTag[tag], m)
		}
	}
	each(conntag.MetricStatements, func(u *tagUse, m *dto.Metric) { u.Statements = int64(m.GetHistogram().GetSampleCount()) }) //nolint:gosec // a count
	each(conntag.MetricHeld, func(u *tagUse, m *dto.Metric) { u.HeldS = m.GetCounter().GetValue() })
	each(conntag.MetricLongest, func(u *tagUse, m *dto.Metric) { u.LongestMS = m.GetGauge().GetValue() * 1000 })
	each(conntag.MetricInUse, func(u *tagUse, m *dto.Metric) { u.InUse = int64(m.GetGauge().GetValue()) })
	each(conntag.MetricErrors, func(u *tagUse, m *dto.Metric) {
		n := int64(m.GetCounter().GetValue())
		switch label(m, conntag.LabelClass) {
		case conntag.ClassLockWait:
			u.LockWaits += n
		case conntag.ClassDeadlock:
			u.Deadlocks += n
		default:
			u.Errors += n
		}
	})
	ans := connsAnswer{Pod: pod, Tags: []tagUse{}}
	for _, u := range byTag {
		if u.Statements > 0 || u.HeldS > 0 || u.InUse > 0 {
			ans.Tags = append(ans.Tags, *u)
		}
		if u.Tag == conntag.Untagged {
			ans.Untagged = u.Statements
		}
	}
	sortUses(ans.Tags)
	return ans
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// sortUses puts who holds the most first.
func sortUses(uses []tagUse) {
	slices.SortFunc(uses, func(a, b tagUse) int { return cmp.Or(cmp.Compare(b.HeldS, a.HeldS), cmp.Compare(a.Tag, b.Tag)) })
}

// askServer adds what the pod's MySQL counts.
func (c *connsAnswer) askServer(ctx context.Context, pc config.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	db, err := mysqlstore.OpenDB(pc.MySQL.Reveal(), mysqlstore.Options{MaxOpenConns: 1})
	if err != nil {
		c.ServerError = oneLine(err)
		return &exitError{code: exitFailed, err: fmt.Errorf("%s: %w", pc.ID, err), hint: "see twinhold config check"}
	}
	defer db.Close()
	found, lost, err := conntag.OnServer(ctx, db)
	if err != nil {
		c.ServerError = oneLine(err)
		return &exitError{code: exitFailed, err: fmt.Errorf("%s: %s", pc.ID, c.ServerError), hint: serverHint(ctx, db, err)}
	}
	c.ServerLost, c.Server = lost, []serverUse{}
	for _, u := range found {
		c.Server = append(c.Server, serverUse{
			Tag: u.Tag, Statements: u.Statements, TotalS: u.Total.Seconds(), LongestMS: float64(u.Longest) / float64(time.Millisecond),
			LockedS: u.Locked.Seconds(), Errors: u.Errors, Running: u.Running, IdleInTrx: u.IdleInTransaction,
		})
	}
	return nil
}

// serverHint says what lets a server tell.
func serverHint(ctx context.Context, db *sql.DB, err error) string {
	switch {
	case errors.Is(err, conntag.ErrBlind):
		return startSeeing
	case mysqlerr.Of(err) == mysqlerr.Denied:
		if grant, err := conntag.GrantForServer(ctx, db); err == nil {
			return "as an administrator: " + grant
		}
	}
	return mysqlHint(err, "run: twinhold doctor")
}

// sumConns is the router's tags over all pods. What the servers say stays with each pod: they may be one server.
func sumConns(each []connsAnswer) connsAnswer {
	byTag := map[string]*tagUse{}
	all := connsAnswer{Pod: allPods, Tags: []tagUse{}, Pods: each}
	for _, pod := range each {
		all.Untagged += pod.Untagged
		for _, u := range pod.Tags {
			sum := byTag[u.Tag]
			if sum == nil {
				sum = &tagUse{Tag: u.Tag}
				byTag[u.Tag] = sum
			}
			sum.Statements += u.Statements
			sum.HeldS += u.HeldS
			sum.LongestMS = max(sum.LongestMS, u.LongestMS)
			sum.InUse += u.InUse
			sum.LockWaits += u.LockWaits
			sum.Deadlocks += u.Deadlocks
			sum.Errors += u.Errors
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(byTag)) {
		all.Tags = append(all.Tags, *byTag[tag])
	}
	sortUses(all.Tags)
	return all
}
