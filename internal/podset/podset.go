// Package podset opens every pod of a configuration: stores, fences, mirror, comparison, router. It is the one place
// where the parts are wired together, for commands and tests alike.
//
// It never decides anything and never writes to a store but to create a fence that neither store has.
package podset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/invariant"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
	"github.com/twinhold/twinhold/shadow"
)

// Options go with a configuration.
type Options struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Only opens just this pod; empty opens all.
	Only string
	// Router is this router's name in heartbeats; empty: the configuration's, or the host's and the process's.
	Router string
	// Wrap, if not nil, stands between the router and a pod's mirror. Tests plant faults there.
	Wrap func(reservation.Mirror) reservation.Mirror
}

// Set is every open pod of a configuration.
type Set struct {
	Router *router.Router
	Pods   []*Pod

	opt     Options
	started bool
}

// Pod is one pod with its parts.
type Pod struct {
	Config  config.Pod
	Redis   *legacyredis.Store
	MySQL   *mysqlstore.Store
	Tallies *diff.TallyTable
	Router  *router.Pod

	// Notes say what a person should know of a pod that opened all the same.
	Notes []string

	cfg          atomic.Pointer[config.Config] // as it was last taken
	name         string                        // this router's, among those of the pod
	grace, lease time.Duration
	log          *slog.Logger
	registerer   prometheus.Registerer
	client       *legacyredis.Client
	meter        *conntag.Meter // who holds the connections to MySQL
	turns                       // of catch-up
	reconcile    background
}

// nearbyLimit bounds the reservations that are read to account for what other routers did around one difference.
const nearbyLimit = 5000

// tallyConnections is the budget of the tallies' own pool: a flush never waits behind operations.
const tallyConnections = 2

// Open opens the stores of every pod and makes the router over them. The schema must be there (mysqlstore.Migrate).
// Start the router to run sweeps and comparisons, and Close the set.
func Open(ctx context.Context, cfg *config.Config, opt Options) (*Set, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Registerer == nil {
		opt.Registerer = prometheus.NewRegistry()
	}
	s := &Set{opt: opt}
	var pods []*router.Pod
	for _, pc := range cfg.Pods {
		if opt.Only != "" && pc.ID != opt.Only {
			continue
		}
		p, err := openPod(ctx, cfg, pc, opt)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open pod %s: %w", pc.ID, err), s.Close(ctx))
		}
		s.Pods = append(s.Pods, p)
		pods = append(pods, p.Router)
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("the configuration has no pod %q", opt.Only)
	}
	r, err := router.New(pods...)
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	s.Router = r
	return s, nil
}

// OpenStores makes the two stores of a pod without a router, and without asking them anything. Close the pod.
func OpenStores(ctx context.Context, cfg *config.Config, pc config.Pod) (*Pod, error) {
	opt := Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
	p := newPod(cfg, pc, opt)
	if err := p.openStores(ctx, cfg, opt); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	return p, nil
}

func newPod(cfg *config.Config, pc config.Pod, opt Options) *Pod {
	p := &Pod{
		Config: pc, name: opt.routerName(cfg), grace: cfg.Tuning.Sweep.Grace, lease: cfg.Tuning.PinLease, log: opt.Logger, registerer: opt.Registerer,
	}
	p.cfg.Store(cfg)
	return p
}

// routerName is how this router is called among those of a pod.
func (o Options) routerName(cfg *config.Config) string {
	if o.Router != "" {
		return o.Router
	}
	return cfg.Admin.RouterName()
}

func openPod(ctx context.Context, cfg *config.Config, pc config.Pod, opt Options) (*Pod, error) {
	p := newPod(cfg, pc, opt)
	if err := p.openStores(ctx, cfg, opt); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	down, whyDown, err := p.checkSchema(ctx)
	if err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	fence, inMySQL, err := router.Fences(ctx, pc.ID, pc.DeclaredStage(), p.Redis, p.MySQL)
	if err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	if down {
		p.noteMySQLDown(fence.Stage, whyDown)
	}
	if declared := pc.DeclaredStage(); declared != fence.Stage {
		p.note("the configuration declares %s, but the pod is in %s: what the fences say is true, the file only says where a new pod starts", declared, fence.Stage)
	}
	if err := p.openCatchUp(cfg.Tuning.Settle, opt); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	if err := p.openReconcile(opt); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	p.Router, err = router.NewPod(p.routerOptions(cfg, fence, inMySQL, opt))
	if err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	p.MySQL.OnEnded(p.Router.Expired)
	return p, nil
}

// startWait bounds how long a start waits for a MySQL that does not answer.
const startWait = 2 * time.Second

// checkSchema refuses a schema that is not this program's. A MySQL that does not answer is no reason to refuse a pod
// whose Redis decides: that is judged by the fences.
func (p *Pod) checkSchema(ctx context.Context) (down bool, why, err error) {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	err = p.MySQL.CheckSchema(ctx)
	if reservation.CodeOf(err) == reservation.CodeUnavailable {
		return true, err, nil
	}
	return false, nil, err
}

func (p *Pod) noteMySQLDown(stage reservation.Stage, why error) {
	works := "reserve and release work, claims and stock changes fail until it does"
	if stage == reservation.Handover {
		works = "the first reserve takes the pod back to shadow; claims and stock changes fail until MySQL answers"
	}
	p.note("MySQL does not answer (%v): %s", why, works)
}

func (p *Pod) note(format string, args ...any) {
	n := fmt.Sprintf(format, args...)
	p.Notes = append(p.Notes, n)
	p.log.Warn(n, "pod", p.Config.ID)
}

func (p *Pod) openStores(ctx context.Context, cfg *config.Config, opt Options) error {
	t, pc := cfg.Tuning, p.Config
	meter, err := conntag.New(conntag.Options{Registerer: ofPod(pc.ID, opt.Registerer)})
	if err != nil {
		return err
	}
	p.meter = meter
	mirror, refill, background := t.MySQL.Shares()
	p.MySQL, err = mysqlstore.Open(ctx, mysqlstore.Options{
		DSN: pc.MySQL.Reveal(), Pod: pc.ID, PoolSize: cfg.Defaults.PoolSize, LargeCart: int64(t.LargeCart),
		Retention: cfg.Defaults.Retention, LatePolicy: cfg.Defaults.LateClaim, WriteTimeout: t.MySQL.TransactionLimit,
		Deadline: t.MySQL.Deadline, Attempts: t.MySQL.Attempts, NoMultiStatements: !t.MySQL.MultiStatements,
		LockWait: t.MySQL.LockWait, MaxOpenConns: t.MySQL.Connections, LowWater: lowWater(cfg.Defaults.LowWater),
		Budgets:   mysqlstore.Budgets{Mirror: mirror, Refill: refill, Background: background},
		SweepRate: sweepRate(t.Sweep.Rate), Logger: opt.Logger, Registerer: opt.Registerer,
		Lazy: true, Wrap: meter.Wrap,
	})
	if err != nil {
		return err
	}
	db, err := mysqlstore.OpenDB(pc.MySQL.Reveal(), mysqlstore.Options{MaxOpenConns: tallyConnections, Wrap: meter.Wrap})
	if err != nil {
		return err
	}
	p.Tallies = &diff.TallyTable{DB: db, Pod: pc.ID, Router: uuid.NewString()}
	p.client, err = legacyredis.NewClient(pc.Redis.Reveal(), pc.ID, legacyredis.ClientLimits{Connections: t.Redis.Connections, Deadline: t.Redis.Deadline})
	if err != nil {
		return err
	}
	p.Redis, err = legacyredis.New(legacyredis.Options{
		Pod: pc.ID, Client: p.client, Ledger: p.MySQL, Retention: cfg.Defaults.Retention,
		LatePolicy: cfg.Defaults.LateClaim, PinLease: t.PinLease, Logger: opt.Logger, Registerer: opt.Registerer,
	})
	return err
}

// lowWater is the store's option for the configuration's part, where 0 means that no pool is refilled in the background.
func lowWater(part float64) float64 {
	if part == 0 {
		return -1
	}
	return part
}

// sweepRate is the store's option for the configuration's rows a second, where 0 means no limit.
func sweepRate(rows int) float64 {
	if rows == 0 {
		return -1
	}
	return float64(rows)
}

// ofPod labels metrics with their pod.
func ofPod(pod string, r prometheus.Registerer) prometheus.Registerer {
	if r == nil {
		return nil
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
}

// tuningOf is what of a router's pod may change while it serves.
func tuningOf(cfg *config.Config) router.Tuning {
	t := cfg.Tuning
	return router.Tuning{
		Limits: cfg.Limits(), Poll: cfg.Defaults.Poll, CutBudget: t.CutBudget, AgreeBudget: t.HandoverBudget, LookUp: t.LookUp,
		SweepEvery: t.Sweep.Interval, SweepBatch: t.Sweep.Batch, CatchUpEvery: t.CatchUp,
		CatchUpTurn: t.CatchUpTurn,
	}
}

func (p *Pod) routerOptions(cfg *config.Config, fence, inMySQL reservation.Fence, opt Options) router.PodOptions {
	t := cfg.Tuning
	o := router.PodOptions{
		ID: p.Config.ID, Name: p.name, Fence: fence, MySQLFence: inMySQL, Tuning: tuningOf(cfg), Redis: p.Redis, MySQL: p.MySQL,
		Queue: shadow.Options{
			Capacity: t.Mirror.Queue, Workers: t.Mirror.Workers, Deadline: t.Mirror.Deadline,
			BreakerFailures: uint32(t.Mirror.Breaker.Failures), //nolint:gosec // config bounds it
			BreakerInterval: t.Mirror.Breaker.OpenFor,
			BreakerProbes:   uint32(t.Mirror.Breaker.Probes), //nolint:gosec // config bounds it
		},
		Diff:    diff.Options{Settle: t.Settle, Sink: p.Tallies, Nearby: diff.Nearby(p.MySQL, nearbyLimit)},
		Restore: p.restore, DrainMarks: p.drainMarks, CatchUp: p.catchUpTurn, QuickTurn: p.quickTurn, Missed: p.miss,
		Logger: opt.Logger, Registerer: opt.Registerer,
	}
	for _, r := range p.Config.Shops {
		o.Shops = append(o.Shops, router.ShopRange{From: r.First, To: r.Last})
	}
	if opt.Wrap != nil {
		o.Mirrors = shadow.Either{Redis: opt.Wrap(p.Redis), MySQL: opt.Wrap(p.MySQL)}
	}
	return o
}

// Close stops the router and closes the stores. What the mirrors' queues hold is delivered until the context ends.
func (s *Set) Close(ctx context.Context) error {
	errs := make([]error, 0, len(s.Pods))
	for _, p := range s.Pods {
		errs = append(errs, p.Close(ctx))
	}
	return errors.Join(errs...)
}

// Close stops the pod's router and closes its stores.
func (p *Pod) Close(ctx context.Context) error {
	errs := []error{p.stopReconcile()}
	if p.Router != nil {
		errs = append(errs, p.Router.Close(ctx))
		p.endCatchUp()
	}
	if p.Redis != nil {
		errs = append(errs, p.Redis.Close(ctx))
	}
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.Tallies != nil {
		errs = append(errs, p.Tallies.DB.Close())
	}
	if p.MySQL != nil {
		errs = append(errs, p.MySQL.Close())
	}
	return errors.Join(errs...)
}

// Stock gives buckets their first stock in both stores. Buckets that are there already are left alone and returned.
func (p *Pod) Stock(ctx context.Context, stock []reservation.Stocking) (created []reservation.Figures, existing []reservation.Bucket, err error) {
	if err := p.Router.Refresh(ctx); err != nil {
		return nil, nil, err
	}
	st := p.Router.Stamp()
	created, existing, err = p.MySQL.Stock(ctx, st, stock)
	if err != nil {
		return created, existing, fmt.Errorf("stock %d buckets in MySQL: %w", len(stock), err)
	}
	// A bucket that is there may be one whose first stocking never reached Redis: the ledger's figures mend that.
	figures := created
	for _, b := range existing {
		f, err := p.MySQL.Availability(ctx, b)
		if err != nil {
			return created, existing, fmt.Errorf("read bucket %s: %w", b, err)
		}
		figures = append(figures, reservation.Figures{Bucket: b, OnHand: f.OnHand, Version: f.Version})
	}
	if st.Stage == reservation.Complete {
		return created, existing, nil // Redis has no part any more
	}
	if _, err := p.Redis.ApplyFigures(ctx, st, figures, true); err != nil {
		return created, existing, fmt.Errorf("stock %d buckets in Redis: %w", len(figures), err)
	}
	return created, existing, nil
}

// Client is the pod's connection to Redis, for keys of others than the store.
func (p *Pod) Client() redis.UniversalClient { return p.client }

// Inspect reads both stores whole.
func (p *Pod) Inspect(ctx context.Context) (rs, ms reservation.Snapshot, err error) {
	if rs, err = p.Redis.Inspect(ctx); err != nil {
		return rs, ms, fmt.Errorf("read Redis of pod %s: %w", p.Config.ID, err)
	}
	if ms, err = p.MySQL.Inspect(ctx); err != nil {
		return rs, ms, fmt.Errorf("read MySQL of pod %s: %w", p.Config.ID, err)
	}
	return rs, ms, nil
}

// Check computes I1 to I6 from both stores. settled says that the pod was brought to rest.
func (p *Pod) Check(rs, ms *reservation.Snapshot, settled bool) invariant.Report {
	return invariant.Check(rs, ms, invariant.Options{
		Settled: settled, LedgerOnly: !p.Router.Stamp().Stage.DualWrite(), Now: time.Now(),
	})
}
