package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// settings are a fleet's.
type settings struct {
	routers, pods int
	// cuttable routers, by index, reach Redis through a proxy of their own.
	cuttable map[int]bool
	// between puts a proxy between each router and its MySQL and its Redis.
	between bool
	// clockOff is by how many seconds the clock of the first router is off.
	clockOff int
	poll     time.Duration
	cooldown time.Duration
	// cutBudget is after how long without Redis a router takes itself for cut in cutover.
	cutBudget time.Duration
	minTTL    time.Duration // the payment bounds: a TTL is longer
	maxTTL    time.Duration
}

func (s *settings) defaults() {
	if s.poll == 0 {
		s.poll = 100 * time.Millisecond
	}
	if s.cooldown == 0 {
		s.cooldown = time.Second
	}
	if s.cutBudget == 0 {
		s.cutBudget = 500 * time.Millisecond
	}
	if s.minTTL == 0 {
		s.minTTL = 1500 * time.Millisecond
	}
	if s.maxTTL == 0 {
		s.maxTTL = 10 * time.Minute
	}
}

// fleet is the product at work: servers, routers, commands, and what was seen of them.
type fleet struct {
	tb      testing.TB
	set     settings
	stack   *devstack.Stack
	pods    []config.Pod
	dir     string
	bin     string
	config  string // of the commands
	routers []*router
	proxies map[int]*faultproxy.Proxy // to Redis
	mysqls  map[int]*faultproxy.Proxy
	http    *http.Client
	redis   *redis.Client
	history *history
	stores  []*podset.Pod // to look at what is stored
}

// newFleet starts everything. At the end of the test it is gone, and a failure shows the routers' complaints.
func newFleet(tb testing.TB, set settings) *fleet {
	tb.Helper()
	set.defaults()
	f := &fleet{tb: tb, set: set, bin: program.binary(tb, "twinhold"), dir: tb.TempDir(), proxies: map[int]*faultproxy.Proxy{}, mysqls: map[int]*faultproxy.Proxy{}, history: newHistory()}
	f.stack = devtest.Private(tb, devstack.Options{MySQL: true, Redis: true})
	pods, err := devpods.Start(tb.Context(), devpods.Options{Pods: set.pods, Stack: f.stack})
	if err != nil {
		tb.Fatal(err)
	}
	f.pods = pods.Config.Pods
	f.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	f.redis = redis.NewClient(&redis.Options{Addr: f.stack.Redis.Addr(), MaxRetries: -1, PoolSize: 4})
	tb.Cleanup(func() {
		f.http.CloseIdleConnections()
		_ = f.redis.Close()
	})
	f.config = f.write("operator", f.stack.Redis.Addr(), f.stack.MySQL.Addr(), 100*time.Millisecond)
	f.open(pods.Config)
	f.startRouters()
	return f
}

// open opens both stores of every pod, for looking at them.
func (f *fleet) open(cfg *config.Config) {
	f.tb.Helper()
	for _, pc := range f.pods {
		p, err := podset.OpenStores(f.tb.Context(), cfg, pc)
		if err != nil {
			f.tb.Fatal(err)
		}
		f.stores = append(f.stores, p)
		f.tb.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = p.Close(ctx) // its servers may be gone already
		})
	}
}

func (f *fleet) startRouters() {
	f.tb.Helper()
	launch := newLauncher(f.tb)
	for i := range f.set.routers {
		redisAddr, mysqlAddr := f.stack.Redis.Addr(), f.stack.MySQL.Addr()
		if f.set.cuttable[i] || f.set.between {
			f.proxies[i] = f.proxy(redisAddr, faultproxy.Redis)
			redisAddr = f.proxies[i].Addr()
		}
		if f.set.between {
			f.mysqls[i] = f.proxy(mysqlAddr, faultproxy.MySQL)
			mysqlAddr = f.mysqls[i].Addr()
		}
		name := "router-" + strconv.Itoa(i+1)
		bin, env := f.bin, []string(nil)
		if i == 0 && f.set.clockOff != 0 {
			bin, env = skewedBinary(f.tb), append(os.Environ(), clockVariable+"="+strconv.Itoa(f.set.clockOff))
		}
		f.routers = append(f.routers, &router{
			name: name, bin: bin, env: env, config: f.write(name, redisAddr, mysqlAddr, f.set.poll), log: filepath.Join(f.tb.ArtifactDir(), name+".log"), launch: launch,
		})
	}
	f.tb.Cleanup(f.stop)
	for _, r := range f.routers {
		if err := r.start(); err != nil { // one after the other: the first creates the fences
			f.tb.Fatal(err)
		}
	}
}

func (f *fleet) proxy(addr string, protocol faultproxy.Protocol) *faultproxy.Proxy {
	f.tb.Helper()
	p, err := faultproxy.Start(addr, protocol)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = p.Close() })
	return p
}

// stop ends the routers, and shows their logs if the test has failed.
func (f *fleet) stop() {
	for _, r := range f.routers {
		if r.crashed() {
			f.tb.Errorf("router %s ended although nobody ended it", r.name)
		}
		r.end()
		if err := r.broken(); err != nil {
			f.tb.Error(err)
		}
	}
	if !f.tb.Failed() {
		return
	}
	f.tb.Logf("what was done:\n%s", f.history.moves())
	for _, r := range f.routers {
		f.tb.Logf("log of %s (warnings and worse):\n%s", r.name, r.complaints())
	}
}

// page is a router's configuration, with everything that waits made short.
const page = `version: 1
data:  {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0", router: {{.Name}}}
defaults: {ttl: {{.TTL}}, max_ttl: {{.MaxTTL}}, retention: 48h, late_claim: refuse, poll: {{.Poll}}, cooldown: {{.Cooldown}}}
payment:  {timeout: {{.MinTTL}}, callback_window: 0s, clock_skew: 0s}
tuning:
  settle: 300ms
  catch_up: 1s
  pin_lease: 2s
  cut_budget: {{.CutBudget}}
  handover_budget: 2s
  look_up: 50ms
  mirror: {deadline: 4s, breaker: {open_for: 1s}}
  redis: {deadline: 1s}
  sweep: {interval: 100ms, grace: 5s}
gates: {min_compared: 1, max_latency_ratio: 1000, max_queue: 1000, evidence_window: 1m}
pods:
{{- range .Pods}}
  - id: {{.ID}}
    shops: [{{range $i, $s := .Shops}}{{if $i}}, {{end}}"{{$s}}"{{end}}]
    redis: "redis://{{$.Redis}}/0"
    mysql: "{{call $.MySQL .MySQL.Reveal}}"
    source_of_truth: redis
    mirror: true
    max_stage: complete
{{- end}}
`

// write writes the configuration of a router, or of the operator's commands.
func (f *fleet) write(name, redisAddr, mysqlAddr string, poll time.Duration) string {
	f.tb.Helper()
	var b bytes.Buffer
	err := template.Must(template.New("page").Parse(page)).Execute(&b, map[string]any{
		"Name": name, "Redis": redisAddr, "Pods": f.pods,
		"MySQL": func(dsn string) string { return strings.Replace(dsn, f.stack.MySQL.Addr(), mysqlAddr, 1) },
		"TTL":   f.set.minTTL + time.Second, "MaxTTL": f.set.maxTTL, "MinTTL": f.set.minTTL,
		"Poll": poll, "CutBudget": f.set.cutBudget, "Cooldown": f.set.cooldown,
	})
	if err != nil {
		f.tb.Fatal(err)
	}
	file := filepath.Join(f.dir, name+".yaml")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		f.tb.Fatal(err)
	}
	return file
}

// result is what a command said.
type result struct {
	code        int
	out, err    string
	began, took time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("exit %d after %s\n%s%s", r.code, r.took.Round(time.Millisecond), r.out, r.err)
}

// commandWithin bounds one command.
const commandWithin = 120 * time.Second

// run runs a command of the product, as a person does, and notes it in the history.
func (f *fleet) run(ctx context.Context, args ...string) result {
	ctx, cancel := context.WithTimeout(ctx, commandWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.bin, append(args, "--config", f.config)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &errs, f.dir
	began := f.history.now()
	slow := time.AfterFunc(slowCommand, func() { f.tb.Logf("twinhold %s takes long; MySQL:\n%s", strings.Join(args, " "), f.lookAtMySQL()) })
	err := cmd.Run()
	slow.Stop()
	res := result{out: out.String(), err: errs.String(), began: began, took: f.history.now() - began}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		res.code = exit.ExitCode()
	case err != nil:
		res.code, res.err = -1, res.err+err.Error()
	}
	f.history.event("twinhold "+strings.Join(args, " "), began, fmt.Sprintf("exit %d", res.code))
	return res
}

// slowCommand is after how long somebody should know what a command waits for.
const slowCommand = 20 * time.Second

// lookAtMySQL shows the transactions that are open, and what each waits for.
func (f *fleet) lookAtMySQL() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	db, err := mysqlstore.OpenDB(f.stack.MySQL.DSN("information_schema"), mysqlstore.Options{MaxOpenConns: 1})
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, `SELECT p.id, COALESCE(p.db, ''), p.command, p.time, COALESCE(p.state, ''), COALESCE(LEFT(CONVERT(p.info USING utf8mb4), 160), ''),
COALESCE(t.trx_state, ''), COALESCE(TIMESTAMPDIFF(SECOND, t.trx_started, NOW()), -1), COALESCE(t.trx_rows_locked, 0),
COALESCE((SELECT MIN(b.trx_mysql_thread_id) FROM performance_schema.data_lock_waits w JOIN innodb_trx b ON b.trx_id = w.blocking_engine_transaction_id
  WHERE w.requesting_engine_transaction_id = t.trx_id), 0)
FROM performance_schema.processlist p LEFT JOIN innodb_trx t ON t.trx_mysql_thread_id = p.id
WHERE p.command <> 'Sleep' OR t.trx_id IS NOT NULL ORDER BY p.time DESC LIMIT 60`)
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var id, secs, age, locked, blocker int64
		var schema, command, state, info, trx string
		if err := rows.Scan(&id, &schema, &command, &secs, &state, &info, &trx, &age, &locked, &blocker); err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "  %d %s %s %d s %q trx %s %d s, %d rows locked, waits for %d: %s\n", id, schema, command, secs, state, trx, age, locked, blocker, strings.Join(strings.Fields(info), " "))
	}
	if err := rows.Err(); err != nil {
		b.WriteString(err.Error())
	}
	return b.String()
}

// must runs a command that has to work.
func (f *fleet) must(args ...string) result {
	f.tb.Helper()
	res := f.run(f.tb.Context(), args...)
	if res.code != 0 {
		f.tb.Fatalf("twinhold %s: %s", strings.Join(args, " "), res)
	}
	return res
}

// asked runs a command until it works, within a limit: gates open when catch-up and cool-down let them.
func (f *fleet) asked(ctx context.Context, within time.Duration, args ...string) error {
	deadline := time.Now().Add(within)
	for {
		res := f.run(ctx, args...)
		if res.code == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("twinhold %s does not work within %s; the last time: %s", strings.Join(args, " "), within, res)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// decode reads a command's JSON.
func decode[T any](tb testing.TB, res result) T {
	tb.Helper()
	var v T
	if err := json.Unmarshal([]byte(res.out), &v); err != nil {
		tb.Fatalf("the result is no JSON: %v\n%s", err, res)
	}
	return v
}

// status is what the status command tells.
type status struct {
	Pods []podStatus `json:"pods"`
}

type podStatus struct {
	Pod          string            `json:"pod"`
	Stage        string            `json:"stage"`
	Epoch        uint64            `json:"epoch"`
	Truth        string            `json:"truth"`
	Killed       bool              `json:"killed"`
	Debt         *reservation.Debt `json:"debt"`
	ViewComplete *bool             `json:"view_complete"`
	Queue        int               `json:"queue"`
	Routers      []routerStatus    `json:"routers"`
	HeldBecause  []string          `json:"held_because"`
}

type routerStatus struct {
	ID    string  `json:"id"`
	Epoch uint64  `json:"epoch"`
	Cut   bool    `json:"cut"`
	Seen  float64 `json:"seen_s_ago"`
}

func (f *fleet) status(pod string) podStatus {
	f.tb.Helper()
	st := decode[status](f.tb, f.run(f.tb.Context(), "status", pod, "--format", "json"))
	if len(st.Pods) != 1 {
		f.tb.Fatalf("status %s shows %d pods", pod, len(st.Pods))
	}
	return st.Pods[0]
}

// killed is what the kill command tells.
type killed struct {
	Pod      string            `json:"pod"`
	Epoch    uint64            `json:"epoch"`
	Acks     int               `json:"acks"`
	Routers  int               `json:"routers"`
	Laggards []string          `json:"laggards"`
	Debt     *reservation.Debt `json:"debt"`
	TookMS   float64           `json:"took_ms"`
	AckedMS  *float64          `json:"acked_ms"`
	MySQL    bool              `json:"mysql"` // its fence is raised
}

// fence reads a pod's fence in Redis as it is stored.
func (f *fleet) fence(ctx context.Context, pod string) (epoch uint64, stage string, err error) {
	m, err := f.redis.HGetAll(ctx, "{"+pod+"}:fence").Result()
	if err != nil {
		return 0, "", err
	}
	epoch, err = strconv.ParseUint(m["epoch"], 10, 64)
	return epoch, m["stage"], err
}

// shopOf is a shop of a pod.
func (f *fleet) shopOf(pod int) int64 { return f.pods[pod].Shops[0].First }

// podOf is the index of the pod that serves a shop.
func (f *fleet) podOf(shop int64) int {
	for i, p := range f.pods {
		for _, s := range p.Shops {
			if s.First <= shop && shop <= s.Last {
				return i
			}
		}
	}
	return -1
}

// stock gives buckets their first stock by the command.
func (f *fleet) stock(items map[reservation.Bucket]int64) {
	f.tb.Helper()
	var b strings.Builder
	b.WriteString("shop,item,group,quantity\n")
	for k, q := range items {
		fmt.Fprintf(&b, "%d,%d,%d,%d\n", k.Shop, k.Item, k.Group, q)
	}
	file := filepath.Join(f.dir, "stock.csv")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		f.tb.Fatal(err)
	}
	began := f.history.now()
	f.must("stock", "import", file)
	for k, q := range items {
		f.history.stocked(k, q, began)
	}
}

// running are the routers that a buyer can reach: their processes are there (stopped ones too).
func (f *fleet) running() []*router {
	var up []*router
	for _, r := range f.routers {
		if r.running() {
			up = append(up, r)
		}
	}
	return up
}

// urlOf is where a router's data API is.
func urlOf(r *router, method string) string {
	addr := r.data.Load()
	if addr == nil {
		return ""
	}
	return (&url.URL{Scheme: "http", Host: *addr, Path: "/twinhold.v1.ReservationService/" + method}).String()
}

// each calls fn for every pod at once, and waits.
func (f *fleet) each(fn func(pod int)) {
	var wg sync.WaitGroup
	for i := range f.pods {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}
