package mysqlstore_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/storetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, contractHarness)
}

// contractHarness is a store in stage complete: MySQL alone decides.
func contractHarness(t *testing.T, cfg storetest.Config) *storetest.Harness {
	t.Helper()
	b := open(t, complete, func(o *mysqlstore.Options) { o.LatePolicy, o.Retention = cfg.Late, cfg.Retention })
	return &storetest.Harness{
		Store: b.Store, Stamp: b.st, Truth: reservation.MySQL, FenceRises: true,
		Stock: func(ctx context.Context, stock []reservation.Stocking) error {
			_, _, err := b.Stock(ctx, b.st, stock)
			return err
		},
		Inspect: func(ctx context.Context) (*reservation.Snapshot, *reservation.Snapshot, error) {
			snap, err := b.Inspect(ctx)
			return nil, &snap, err
		},
		Now: func(ctx context.Context) (now time.Time, err error) {
			return now, b.DB().QueryRowContext(ctx, "SELECT UTC_TIMESTAMP(6)").Scan(&now)
		},
		SetFence: func(ctx context.Context, f reservation.Fence) error { return setFence(ctx, b.DB(), b.opts.Pod, f) },
		Lossy:    func(t *testing.T) *storetest.Lossy { return lossy(t, b) },
		Crash: &storetest.Crash{
			Points: map[reservation.Op][]string{
				reservation.OpReserve: {
					"refill.ledger", "refill.units", "refill.commit", "reserve.units", "reserve.record", "reserve.lines",
					"reserve.commit", "reserve.committed",
				},
				reservation.OpClaim:   {"claim.ledger", "claim.record", "claim.entries", "claim.commit", "claim.committed"},
				reservation.OpRelease: {"release.ledger", "release.record", "release.lines", "release.commit", "release.committed"},
				reservation.OpAdjust:  {"adjust.ledger", "adjust.entries", "adjust.commit", "adjust.committed"},
				reservation.OpExpire:  {"expire.ledger", "expire.record", "expire.lines", "expire.commit", "expire.committed"},
			},
			Attach: map[string]string{"dsn": b.dsn, "pod": b.opts.Pod},
		},
	}
}

// openAgain opens a harness's store in a child process.
func openAgain(ctx context.Context, attach map[string]string, reached func(string)) (reservation.Store, error) {
	return mysqlstore.Open(ctx, mysqlstore.Options{
		DSN: attach["dsn"], Pod: attach["pod"], Retention: time.Hour, WriteTimeout: 3 * time.Second, Failpoint: reached,
		NoMultiStatements: true, // a packet has no steps
	})
}

func setFence(ctx context.Context, db *sql.DB, pod string, f reservation.Fence) error {
	if f.Epoch == 0 {
		_, err := db.ExecContext(ctx, "DELETE FROM pod_fence WHERE pod = ?", []byte(pod))
		return err
	}
	_, err := db.ExecContext(ctx, `REPLACE INTO pod_fence (pod, epoch, stage, frozen, updated_at)
VALUES (?, ?, ?, ?, UTC_TIMESTAMP(6))`, []byte(pod), f.Epoch, f.Stage.String(), f.Frozen)
	return err
}

// behind opens a second store on the same schema, behind a proxy.
func (b *bench) behind(t *testing.T, tune ...func(*mysqlstore.Options)) (*bench, *faultproxy.Proxy) {
	t.Helper()
	cfg, err := mysql.ParseDSN(b.dsn)
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.Start(cfg.Addr, faultproxy.MySQL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.Addr = p.Addr()
	o := b.opts
	o.DSN, o.WriteTimeout = cfg.FormatDSN(), time.Second
	for _, f := range tune {
		f(&o)
	}
	s, err := mysqlstore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &bench{Store: s, t: t, dsn: o.DSN, opts: o, st: b.st}, p
}

func lossy(t *testing.T, b *bench) *storetest.Lossy {
	far, p := b.behind(t)
	return &storetest.Lossy{
		Store: far,
		Arm: func(_ reservation.Op, loss storetest.Loss) (func() int, error) {
			rule := faultproxy.Rule{Match: []byte("conn_tag:commit "), When: faultproxy.Before, Times: 1}
			if loss.Committed {
				rule.When = faultproxy.After
			}
			f := p.Cut
			if loss.Swallow {
				f = p.Swallow
			}
			return f(rule).Fired, nil
		},
	}
}

// commitLoss is every way in which the word of a COMMIT is lost.
func commitLoss() map[string]func(*faultproxy.Proxy) *faultproxy.Fault {
	rule := func(w faultproxy.When) faultproxy.Rule {
		return faultproxy.Rule{Match: []byte("conn_tag:commit "), When: w, Times: 1}
	}
	return map[string]func(*faultproxy.Proxy) *faultproxy.Fault{
		"cut before":     func(p *faultproxy.Proxy) *faultproxy.Fault { return p.Cut(rule(faultproxy.Before)) },
		"cut after":      func(p *faultproxy.Proxy) *faultproxy.Fault { return p.Cut(rule(faultproxy.After)) },
		"swallow before": func(p *faultproxy.Proxy) *faultproxy.Fault { return p.Swallow(rule(faultproxy.Before)) },
		"swallow after":  func(p *faultproxy.Proxy) *faultproxy.Fault { return p.Swallow(rule(faultproxy.After)) },
	}
}

// everyCommit matches each COMMIT, and lets it be carried out.
func everyCommit() faultproxy.Rule {
	return faultproxy.Rule{Match: []byte("conn_tag:commit "), When: faultproxy.After}
}
