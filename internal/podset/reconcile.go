package podset

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/reconcile"
	"github.com/twinhold/twinhold/mysqlstore"
)

// reconcileConnections is the budget of each server: one page at a time, and the end of the one before.
const reconcileConnections = 2

// leaseTimeout bounds the look at who runs the rounds. leaseMargin is for a first round, which nobody has timed yet.
const (
	leaseTimeout = time.Second
	leaseMargin  = time.Minute
)

// Rounds are a pod's rounds of reconcile, over connections of their own. Close them.
type Rounds struct {
	*reconcile.Reconciler
	dbs []*sql.DB
}

// overdueAfter is how long past its expiry and the sweeper's grace a hold may still be held.
const overdueAfter = 10 * time.Minute

// Reconcile makes the pod's rounds. It asks no server anything. needed is how many of them a fault has to be there for
// before it lasts; 0: three.
func (p *Pod) Reconcile(r prometheus.Registerer, needed int) (*Rounds, error) {
	o := reconcile.Options{Pod: p.Config.ID, Rounds: needed, HoldGrace: overdueAfter + p.grace + p.lease, Logger: p.log, Registerer: r}
	rounds := &Rounds{}
	open := func(dsn string) (db *sql.DB, err error) {
		db, err = mysqlstore.OpenDB(dsn, mysqlstore.Options{MaxOpenConns: reconcileConnections, Wrap: p.meter.Wrap})
		if err == nil {
			rounds.dbs = append(rounds.dbs, db)
		}
		return db, err
	}
	var err error
	if o.Primary, err = open(p.Config.MySQL.Reveal()); err != nil {
		return nil, err
	}
	if !p.Config.MySQLReplica.IsZero() {
		if o.Replica, err = open(p.Config.MySQLReplica.Reveal()); err != nil {
			return nil, errors.Join(fmt.Errorf("mysql_replica: %w", err), rounds.Close())
		}
	}
	if rounds.Reconciler, err = reconcile.New(o); err != nil {
		return nil, errors.Join(err, rounds.Close())
	}
	return rounds, nil
}

// Close closes the connections.
func (r *Rounds) Close() error {
	errs := make([]error, 0, len(r.dbs))
	for _, db := range r.dbs {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// background is a pod's loop of rounds in a router.
type background struct {
	rounds *Rounds
	took   time.Duration // the last round
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Start starts what a router runs beside its calls: sweeps, comparisons, catch-up, and rounds of reconcile.
func (s *Set) Start() {
	s.Router.Start()
	s.started = true
	for _, p := range s.Pods {
		p.startReconcile(p.cfg.Load().Tuning.Reconcile)
	}
}

// openReconcile makes the rounds that a router runs all the time. They begin with startReconcile.
func (p *Pod) openReconcile(opt Options) (err error) {
	p.reconcile.rounds, err = p.Reconcile(opt.Registerer, 0)
	return err
}

func (p *Pod) startReconcile(every time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	p.reconcile.cancel = cancel
	p.reconcile.done.Go(func() {
		t := time.NewTimer(every) // a start is busy enough
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			p.reconcileTurn(ctx, every)
			t.Reset(every)
		}
	})
}

// endReconcile lets another router begin at once.
func (p *Pod) endReconcile() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	if holder, err := p.client.Get(ctx, p.reconcileKey()).Result(); err == nil && holder == p.name {
		_ = p.client.Del(ctx, p.reconcileKey()).Err() // it runs out by itself too
	}
}

// stopReconcile ends the loop and waits for it.
func (p *Pod) stopReconcile() error {
	if p.reconcile.cancel != nil {
		p.reconcile.cancel()
		p.reconcile.done.Wait()
		p.endReconcile()
		p.reconcile.cancel = nil
	}
	if p.reconcile.rounds == nil {
		return nil
	}
	return p.reconcile.rounds.Close()
}

// reconcileKey is the lease of the pod's rounds. It stays with one router, since what lasts is counted over its rounds.
func (p *Pod) reconcileKey() string { return "{" + p.Config.ID + "}:reconcile" }

// reconcileTurn runs a round, unless another router does.
func (p *Pod) reconcileTurn(ctx context.Context, every time.Duration) {
	if !p.runsReconcile(ctx, every) {
		p.reconcile.rounds.Forget()
		return
	}
	round, err := p.reconcile.rounds.Round(ctx)
	p.reconcile.took = round.Took
	if err != nil && ctx.Err() == nil {
		p.log.Warn("a round of reconcile could not be read to its end: the next one begins anew", "pod", p.Config.ID, "err", err)
	}
}

// runsReconcile takes the lease or renews it. A Redis that does not answer is no reason to leave MySQL unchecked: two at
// once do no harm.
func (p *Pod) runsReconcile(ctx context.Context, every time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	// A round that takes longer than ever and two turns that fail are not enough for another router to begin to count.
	lease := 3*every + 2*p.reconcile.took + leaseMargin
	mine, err := p.client.SetNX(ctx, p.reconcileKey(), p.name, lease).Result()
	if err != nil || mine {
		return true
	}
	holder, err := p.client.Get(ctx, p.reconcileKey()).Result()
	if err != nil || holder != p.name {
		return err != nil
	}
	_ = p.client.PExpire(ctx, p.reconcileKey(), lease).Err() // one that was not renewed is taken anew at a later turn
	return true
}
