package killswitch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true, Redis: true}) }

// rig is one pod on real servers, and its kill switch.
type rig struct {
	t     *testing.T
	pod   string
	redis *legacyredis.Store
	mysql *mysqlstore.Store
	raw   *redis.Client
	opt   killswitch.Options
	*killswitch.Control

	mu       sync.Mutex
	evidence killswitch.Evidence
	short    []reservation.Bucket
}

// servers are where a rig's stores are.
type servers struct{ redis, mysql string }

func shared(t *testing.T) servers { return servers{devtest.RedisURL(t), devtest.Schema(t)} }

func private(t *testing.T) (servers, *devstack.Stack) {
	t.Helper()
	s := devtest.Private(t, devstack.Options{MySQL: true, Redis: true})
	if err := s.MySQL.CreateSchema(t.Context(), "pod"); err != nil {
		t.Fatal(err)
	}
	return servers{s.Redis.URL(0), s.MySQL.DSN("pod")}, s
}

// newRig makes a pod whose fences are both at epoch 1 of the stage, with evidence that opens every gate it can.
func newRig(t *testing.T, stage reservation.Stage) *rig {
	t.Helper()
	return newRigOn(t, shared(t), devtest.Pod(t), stage)
}

func newRigOn(t *testing.T, on servers, pod string, stage reservation.Stage) *rig {
	t.Helper()
	r := &rig{t: t, pod: pod}
	ctx := t.Context()
	if err := mysqlstore.Migrate(ctx, on.mysql); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.mysql, err = mysqlstore.Open(ctx, mysqlstore.Options{DSN: on.mysql, Pod: pod, Lazy: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.mysql.Close() })
	client, err := legacyredis.NewClient(on.redis, pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	r.raw = client.Client
	if r.redis, err = legacyredis.New(legacyredis.Options{Pod: pod, Client: client, Ledger: r.mysql}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = r.redis.Close(ctx)
	})
	first := reservation.Stamp{Epoch: 1, Stage: stage}
	if _, err := r.mysql.InitFence(ctx, first); err != nil {
		t.Fatal(err)
	}
	if _, err := r.redis.InitFence(ctx, first); err != nil {
		t.Fatal(err)
	}
	r.evidence = killswitch.Evidence{
		Compared: 5000, Redis: killswitch.Latency{P50: 1, P99: 4}, MySQL: killswitch.Latency{P50: 2, P99: 9},
	}
	r.opt = r.options()
	r.Control = r.control()
	return r
}

func (r *rig) options() killswitch.Options {
	catchUp, err := shadow.NewCatchUp(shadow.CatchUpOptions{Pod: r.pod, Redis: r.redis, MySQL: r.mysql, Settle: 50 * time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	return killswitch.Options{
		Pod: r.pod, Redis: r.redis, MySQL: r.mysql, MaxStage: reservation.Complete, Declared: reservation.Shadow,
		Cooldown: time.Hour, LongestTTL: time.Minute, Poll: 20 * time.Millisecond, By: "tester", Version: "v1",
		CatchUp: func(ctx context.Context) error {
			f, err := r.redis.ReadFence(ctx)
			if err == nil {
				_, err = catchUp.Run(ctx, f)
			}
			return err
		},
		Survey: func(ctx context.Context, redis, mysql reservation.Fence) (killswitch.Survey, error) {
			s, err := catchUp.Survey(ctx, redis, mysql)
			return killswitch.SurveyOf(s), err
		},
		Evidence: func(context.Context) (killswitch.Evidence, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.evidence, nil
		},
		Pool: func(context.Context) (killswitch.PoolDepth, error) {
			return killswitch.PoolDepth{Buckets: 3, ShortBuckets: int64(len(r.short)), Short: r.short}, nil
		},
		Reseed: func(ctx context.Context, to reservation.Stamp, a reservation.AuditRecord) (string, error) {
			res, err := shadow.Restore(ctx, shadow.RestoreOptions{
				Pod: r.pod, Redis: r.redis, MySQL: r.mysql, Wipe: true, To: to, By: a.By, Reason: a.Reason, Ticket: a.Ticket,
			})
			return fmt.Sprintf("%d records", res.Records), err
		},
	}
}

// control makes a further kill switch of the pod, as another process would have it.
func (r *rig) control(change ...func(*killswitch.Options)) *killswitch.Control {
	r.t.Helper()
	o := r.opt
	for _, f := range change {
		f(&o)
	}
	c, err := killswitch.New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) key(name string) string { return "{" + r.pod + "}:" + name }

// beat is a router's heartbeat.
func (r *rig) beat(hb reservation.Heartbeat) reservation.Fence {
	r.t.Helper()
	if hb.Breaker == "" {
		hb.Breaker = "closed"
	}
	f, err := r.redis.Beat(r.t.Context(), hb)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// router beats as a router does until the test ends: it acknowledges what it read the last time.
func (r *rig) router(name string) {
	r.t.Helper()
	st := r.beat(reservation.Heartbeat{Router: name, Stamp: reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}}).Stamp
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if f, err := r.redis.Beat(ctx, reservation.Heartbeat{Router: name, Stamp: st, Breaker: "closed"}); err == nil && f.Epoch > 0 {
				st = f.Stamp
			}
		}
	})
	r.t.Cleanup(func() { cancel(); done.Wait() })
}

// fences reads both.
func (r *rig) fences() (inRedis, inMySQL reservation.Fence) {
	r.t.Helper()
	inRedis, err := r.redis.ReadFence(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if inMySQL, err = r.mysql.ReadFence(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return inRedis, inMySQL
}

// at fails the test unless both fences are there.
func (r *rig) at(epoch uint64, stage reservation.Stage) {
	r.t.Helper()
	want := reservation.Stamp{Epoch: epoch, Stage: stage}
	inRedis, inMySQL := r.fences()
	if inRedis.Stamp != want || inMySQL.Stamp != want {
		r.t.Errorf("the fences are at Redis %v, MySQL %v; want both at %v", inRedis.Stamp, inMySQL.Stamp, want)
	}
}

// actions are the audit's records, as action, epochs and who.
func (r *rig) actions() []string {
	r.t.Helper()
	recs, err := r.Audit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, a := range recs {
		out = append(out, fmt.Sprintf("%s %d %s -> %d %s", a.Action, a.Before.Epoch, a.Before.Stage, a.After.Epoch, a.After.Stage))
	}
	return out
}

func (r *rig) record(action string) reservation.AuditRecord {
	r.t.Helper()
	recs, err := r.Audit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(recs, func(a reservation.AuditRecord) bool { return a.Action == action })
	if i < 0 {
		r.t.Fatalf("no record of a %s in %v", action, recs)
	}
	return recs[i]
}

func (r *rig) stock(n int64) {
	r.t.Helper()
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	f, _ := r.fences()
	figs, _, err := r.mysql.Stock(r.t.Context(), f.Stamp, []reservation.Stocking{{Bucket: b, Quantity: n}})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.redis.ApplyFigures(r.t.Context(), f.Stamp, figs, true); err != nil {
		r.t.Fatal(err)
	}
}

// reserve grants one unit in one store alone.
func (r *rig) reserve(s reservation.Store, key string, ttl time.Duration) reservation.ID {
	r.t.Helper()
	f, _ := r.fences()
	req, err := reservation.NewRequest(1, key, []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, ttl,
		reservation.Limits{DefaultTTL: time.Minute, MaxTTL: time.Hour})
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := s.Reserve(r.t.Context(), f.Stamp, id, req)
	if err != nil || res.Record.Outcome != reservation.Granted {
		r.t.Fatalf("reserve: %v, %v", res.Record.Outcome, err)
	}
	return res.Record.ID
}

// refused fails the test unless the error is a refusal with these words.
func refused(t *testing.T, err error, words ...string) *killswitch.RefusedError {
	t.Helper()
	var r *killswitch.RefusedError
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want a refusal", err)
	}
	if r.Hint == "" {
		t.Errorf("the refusal %q says nothing of what to do", r.Error())
	}
	for _, w := range words {
		if !contains(r.Error()+": "+r.Hint, w) {
			t.Errorf("the refusal %q (%s) does not say %q", r.Error(), r.Hint, w)
		}
	}
	return r
}

// gate finds a gate by its name.
func gate(t *testing.T, gates []killswitch.Gate, name string) killswitch.Gate {
	t.Helper()
	for _, g := range gates {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no gate %s in %v", name, gates)
	return killswitch.Gate{}
}

// pings gives the time of one round trip to Redis: the median of some.
func (r *rig) ping() time.Duration {
	r.t.Helper()
	var took []time.Duration
	for range 31 {
		began := time.Now()
		if err := r.raw.Ping(r.t.Context()).Err(); err != nil {
			r.t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// reopenMySQL goes on with another address, as a router whose MySQL refuses connections.
func (r *rig) reopenMySQL(dsn string) {
	r.t.Helper()
	s, err := mysqlstore.Open(r.t.Context(), mysqlstore.Options{DSN: dsn, Pod: r.pod, Lazy: true})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	r.opt.MySQL = s
	r.Control = r.control()
}
