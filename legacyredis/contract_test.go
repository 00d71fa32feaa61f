package legacyredis_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/storetest"
)

// contractStamp: in legacy MySQL holds the ledger alone, and Redis decides by itself.
func contractStamp() reservation.Stamp {
	return reservation.Stamp{Epoch: 7, Stage: reservation.Legacy}
}

// contractLease is short, so that the suite sees pins rolled forward; one that is joined by it does no harm.
const contractLease = 200 * time.Millisecond

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, openContract)
}

// contractRedis is where the suite's Redis is.
type contractRedis struct {
	url string
	// server is the one that holds the pod's keys.
	server func(t *testing.T, pod string) *devstack.Redis
	// script is a script as it is sent there.
	script func(name string) (string, error)
}

func openContract(t *testing.T, cfg storetest.Config) *storetest.Harness {
	t.Helper()
	return openContractOn(t, cfg, contractRedis{
		url: devtest.RedisURL(t), script: legacyredis.ScriptText,
		server: func(t *testing.T, _ string) *devstack.Redis { t.Helper(); return devtest.Redis(t) },
	})
}

func openContractOn(t *testing.T, cfg storetest.Config, on contractRedis) *storetest.Harness {
	t.Helper()
	url, pod, dsn := on.url, devtest.Pod(t), devtest.Schema(t)
	server := on.server(t, pod)
	sql := openLedgerAt(t, dsn, pod, contractStamp(), func(o *mysqlstore.Options) {
		o.LatePolicy, o.Retention = cfg.Late, cfg.Retention
	})
	r := &rig{tb: t, pod: pod, url: url, raw: plainClient(t, server)}
	set := func(o *legacyredis.Options) {
		o.Ledger, o.LatePolicy, o.Retention, o.PinLease = sql, cfg.Late, cfg.Retention, contractLease
	}
	r.store = r.open(t, url, set)
	if _, err := r.store.InitFence(t.Context(), contractStamp()); err != nil {
		t.Fatal(err)
	}
	return &storetest.Harness{
		Store: r.store, Stamp: contractStamp(), Truth: reservation.Redis, LedgerOnly: true,
		Settle: r.store.Flush,
		Now:    func(ctx context.Context) (time.Time, error) { return r.raw.Time(ctx).Result() },
		Stock: func(ctx context.Context, stock []reservation.Stocking) error {
			figs, _, err := sql.Stock(ctx, contractStamp(), stock)
			if err == nil {
				_, err = r.store.ApplyFigures(ctx, contractStamp(), figs, true)
			}
			return err
		},
		Inspect: func(ctx context.Context) (*reservation.Snapshot, *reservation.Snapshot, error) {
			red, err := r.store.Inspect(ctx)
			if err != nil {
				return nil, nil, err
			}
			if len(red.Orphans) > 0 {
				return nil, nil, fmt.Errorf("orphans in Redis: %q", red.Orphans)
			}
			my, err := sql.Inspect(ctx)
			return &red, &my, err
		},
		SetFence: func(ctx context.Context, f reservation.Fence) error { return setFence(ctx, r, f) },
		Lossy:    func(t *testing.T) *storetest.Lossy { return openLossy(t, r, on, server, set) },
		Crash: &storetest.Crash{
			Points: map[reservation.Op][]string{
				reservation.OpReserve: {legacyredis.FailReserveBegun, legacyredis.FailReserveDone},
				reservation.OpClaim:   {legacyredis.FailClaimPinned, legacyredis.FailClaimDeducted, legacyredis.FailClaimFinished},
				reservation.OpRelease: {legacyredis.FailReleaseBegun, legacyredis.FailReleaseDone},
				reservation.OpAdjust:  {legacyredis.FailAdjustPinned, legacyredis.FailAdjustApplied, legacyredis.FailAdjustFinished},
				reservation.OpExpire:  {legacyredis.FailSweepBegun, legacyredis.FailSweepDone},
			},
			Attach: map[string]string{"url": url, "dsn": dsn, "pod": pod, "late": cfg.Late.String(), "retention": cfg.Retention.String()},
		},
	}
}

func setFence(ctx context.Context, r *rig, f reservation.Fence) error {
	if f.Epoch == 0 {
		return r.raw.Del(ctx, r.key("fence")).Err()
	}
	frozen := "0"
	if f.Frozen {
		frozen = "1"
	}
	if f.Server == "" { // the fence of the server that is there
		f.Server = infoField(r.tb, r.raw, "server", "run_id")
	}
	return r.raw.HSet(ctx, r.key("fence"), "epoch", f.Epoch, "stage", f.Stage.String(), "incarnation", f.Incarnation,
		"incarnation_epoch", f.IncarnationEpoch, "server", f.Server, "frozen", frozen).Err()
}

// openLossy opens a second store behind a proxy. The scripts are loaded before, so that what is lost is an answer
// of one, and not the word that Redis does not have it.
func openLossy(t *testing.T, r *rig, on contractRedis, server *devstack.Redis, set func(*legacyredis.Options)) *storetest.Lossy {
	t.Helper()
	loadScripts(t, r.raw, on.script)
	p, err := faultproxy.Start(server.Addr(), faultproxy.Redis)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	arm := func(op reservation.Op, loss storetest.Loss) (func() int, error) {
		rule := faultproxy.Rule{When: faultproxy.Before, Times: 1, Func: func(m []byte) bool { return isWrite(m, op) }}
		if loss.Committed {
			rule.When = faultproxy.After
		}
		if loss.Swallow {
			return p.Swallow(rule).Fired, nil
		}
		return p.Cut(rule).Fired, nil
	}
	return &storetest.Lossy{Store: r.through(t, p, set), Arm: arm}
}

// isWrite tells the script that takes or gives back units: the first of an operation, but for an adjustment, which
// asks the fence before.
func isWrite(m []byte, op reservation.Op) bool {
	if !bytes.Contains(bytes.ToLower(m), []byte("evalsha")) {
		return false
	}
	fenceCheck := bytes.HasPrefix(m, []byte("*6\r\n")) // EVALSHA, sha, 1, fence, epoch, stage
	return op != reservation.OpAdjust || !fenceCheck
}

func loadScripts(t *testing.T, c redis.UniversalClient, script func(string) (string, error)) {
	t.Helper()
	files, err := os.ReadDir("lua")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := script(strings.TrimSuffix(f.Name(), ".lua"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.ScriptLoad(t.Context(), text).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// contractChild is the store as a child process of the suite opens it.
type contractChild struct{ *legacyredis.Store }

// Settle lets what runs in the background come to its step.
func (c contractChild) Settle(ctx context.Context) error { return c.Flush(ctx) }

func openContractChild(ctx context.Context, attach map[string]string, reached func(string)) (reservation.Store, error) {
	retention, err := time.ParseDuration(attach["retention"])
	if err != nil {
		return nil, err
	}
	late := reservation.ForceLate
	if attach["late"] == reservation.RefuseLate.String() {
		late = reservation.RefuseLate
	}
	sql, err := mysqlstore.Open(ctx, mysqlstore.Options{DSN: attach["dsn"], Pod: attach["pod"], LatePolicy: late, Retention: retention, MaxOpenConns: 4})
	if err != nil {
		return nil, err
	}
	client, err := legacyredis.NewClient(attach["url"], attach["pod"])
	if err != nil {
		return nil, err
	}
	s, err := legacyredis.New(legacyredis.Options{
		Pod: attach["pod"], Client: client, Ledger: sql, LatePolicy: late,
		Retention: retention, PinLease: contractLease, Failpoint: reached,
	})
	return contractChild{s}, err
}
