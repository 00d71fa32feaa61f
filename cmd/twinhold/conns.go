package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/conntag"
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
			"the same tags, over all clients of the pod's schema; that works without a router too.\n" +
			"An admin listener with tokens wants one of them in the environment: " + adminToken + ".",
		Example: "  twinhold conns pod-7\n  twinhold conns pod-7 --server\n  twinhold conns --admin 10.0.0.7:7071 --format json",
		Args:    optionalPod,
		RunE:    func(cmd *cobra.Command, args []string) error { return a.conns(cmd.Context(), firstArg(args), f) },
	}
	cmd.Flags().BoolVar(&f.server, "server", false, "also what the pod's MySQL counts by tag")
	cmd.Flags().StringVar(&f.admin, "admin", "", "another router's admin listener, `HOST:PORT`; else the configuration's")
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
	// ServerLost is how many statements of the whole server stand under no digest, since its table is full.
	ServerLost int64         `json:"server_lost,omitempty"`
	Pods       []connsAnswer `json:"pods,omitempty"`
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

func (a *app) conns(ctx context.Context, only string, f connsFlags) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	pods, err := connsPods(cfg, only)
	if err != nil {
		return err
	}
	metrics, err := a.routerMetrics(ctx, cfg, f)
	switch {
	case err != nil && f.server:
		a.warn("only the server is asked: %v", err)
	case err != nil:
		return err
	}
	each := make([]connsAnswer, 0, len(pods))
	for _, pc := range pods {
		ans := podConns(pc.ID, metrics)
		if err := counted(ans, metrics); err != nil && !f.server {
			return err
		} else if err != nil {
			a.warn("only the server is asked: %v", err)
		}
		if f.server {
			if err := ans.askServer(ctx, pc); err != nil {
				return err
			}
		}
		each = append(each, ans)
	}
	if len(each) == 1 {
		return a.show(each[0])
	}
	return a.show(sumConns(each))
}

// counted refuses an answer that would look like a pod at rest: a router that serves a pod uses connections all the time.
func counted(ans connsAnswer, found families) error {
	if found == nil || len(ans.Tags) > 0 {
		return nil
	}
	return &exitError{code: exitFailed, err: fmt.Errorf("that router counts no connection of %s", ans.Pod), hint: "does it serve this pod, and is it of this version? --server asks MySQL"}
}

func connsPods(cfg *config.Config, only string) ([]config.Pod, error) {
	if only == "" {
		return cfg.Pods, nil
	}
	pc, ok := cfg.Pod(only)
	if !ok {
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("the configuration has no pod %q", only), hint: "its pods are " + podIDs(cfg)}
	}
	return []config.Pod{*pc}, nil
}

// families are what a router's admin listener says of itself.
type families map[string]*dto.MetricFamily

// maxMetrics bounds an answer that is read whole.
const maxMetrics = 64 << 20

// routerMetrics asks the admin listener of a running router.
func (a *app) routerMetrics(ctx context.Context, cfg *config.Config, f connsFlags) (found families, err error) {
	listen := cmp.Or(f.admin, cfg.Admin.Listen)
	addr, ok := dialable(listen)
	if !ok {
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("the admin listener %q cannot be found", listen), hint: "name it: --admin HOST:PORT"}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, scheme, err := adminClient(cfg)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the router: %w", err)
	}
	if token, ok := a.getenv(adminToken); ok {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("no router answers at the admin listener: %w", err), hint: "start one with twinhold serve, name another with --admin, or ask MySQL alone with --server"}
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	return readMetrics(res)
}

// adminClient reaches the admin listener under its own certificate.
func adminClient(cfg *config.Config) (*http.Client, string, error) {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: findTimeout}
	scheme := "http"
	if cfg.Admin.TLS.On() {
		trust, err := trusting(cfg.Admin.TLS)
		if err != nil {
			return nil, "", &exitError{code: exitFailed, err: err, hint: "admin.tls names the certificate"}
		}
		transport.TLSClientConfig, scheme = trust, "https"
	}
	return &http.Client{Transport: transport}, scheme, nil
}

func readMetrics(res *http.Response) (families, error) {
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, &exitError{code: exitFailed, err: fmt.Errorf("the admin listener wants a token (%s)", res.Status), hint: "put one of admin.tokens_file into " + adminToken}
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
		return err
	}
	defer db.Close()
	found, lost, err := conntag.OnServer(ctx, db)
	if err != nil {
		return &exitError{code: exitFailed, err: fmt.Errorf("%s: %w", pc.ID, err), hint: "the pod's user needs GRANT SELECT ON performance_schema.*, and the server performance_schema=ON"}
	}
	c.ServerLost = lost
	for _, u := range found {
		c.Server = append(c.Server, serverUse{
			Tag: u.Tag, Statements: u.Statements, TotalS: u.Total.Seconds(), LongestMS: float64(u.Longest) / float64(time.Millisecond),
			LockedS: u.Locked.Seconds(), Errors: u.Errors, Running: u.Running, IdleInTrx: u.IdleInTransaction,
		})
	}
	return nil
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
