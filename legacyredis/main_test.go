package legacyredis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/storetest"
)

func TestMain(m *testing.M) {
	storetest.Child(openContractChild)
	if order := os.Getenv(childEnv); order != "" {
		os.Exit(child(order)) // a process of a crash test: see crash_test.go
	}
	if point := os.Getenv(pinChildEnv); point != "" {
		os.Exit(pinChild(point))
	}
	devtest.Main(m, devtest.Needs{MySQL: true, Redis: true})
}

// epoch and stage of every fence in these tests, unless a test moves it.
func stamp() reservation.Stamp { return reservation.Stamp{Epoch: 7, Stage: reservation.Shadow} }

func limits() reservation.Limits {
	return reservation.Limits{DefaultTTL: time.Minute, MaxTTL: 2 * time.Hour}
}

// rig is a store on a real Redis with words to speak with.
type rig struct {
	tb    testing.TB
	pod   string
	url   string
	raw   redis.UniversalClient // for looking and for breaking things
	store *legacyredis.Store
}

// noLedger is the ledger of tests in which nothing reaches it.
type noLedger struct{ reservation.Ledger }

func newRig(t *testing.T, change ...func(*legacyredis.Options)) *rig {
	t.Helper()
	return newRigOn(t, devtest.RedisURL(t), devtest.Pod(t), change...)
}

func newRigOn(t *testing.T, url, pod string, change ...func(*legacyredis.Options)) *rig {
	t.Helper()
	r := &rig{tb: t, pod: pod, url: url, raw: newClient(t, url)}
	r.store = r.open(t, url, change...)
	if _, err := r.store.InitFence(t.Context(), stamp()); err != nil {
		t.Fatal(err)
	}
	return r
}

// newClient is a client that looks on: it belongs to no pod.
func newClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	return podClient(t, url, "looking-on")
}

// plainClient reaches one server, whatever it is part of.
func plainClient(t *testing.T, srv *devstack.Redis) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func podClient(t *testing.T, url, pod string) *legacyredis.Client {
	t.Helper()
	c, err := legacyredis.NewClient(url, pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// through opens a further store of the rig's pod, whose connections go through a proxy of the server that holds it.
func (r *rig) through(t *testing.T, p *faultproxy.Proxy, change ...func(*legacyredis.Options)) *legacyredis.Store {
	t.Helper()
	c := podClient(t, r.url, r.pod)
	if !c.DialThrough(p.Addr()) {
		return r.open(t, "redis://"+p.Addr()+"/0", change...)
	}
	return r.open(t, r.url, append(change, func(o *legacyredis.Options) { o.Client = c })...)
}

// open makes a further store of the rig's pod.
func (r *rig) open(t *testing.T, url string, change ...func(*legacyredis.Options)) *legacyredis.Store {
	t.Helper()
	o := legacyredis.Options{Pod: r.pod, Client: podClient(t, url, r.pod), Ledger: noLedger{}}
	for _, f := range change {
		f(&o)
	}
	s, err := legacyredis.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func (r *rig) key(format string, args ...any) string {
	return "{" + r.pod + "}:" + fmt.Sprintf(format, args...)
}

func bucket(item int64) reservation.Bucket { return reservation.Bucket{Shop: 1, Item: item, Group: 1} }

func line(item, quantity int64) reservation.Line {
	return reservation.Line{Item: item, Group: 1, Quantity: quantity}
}

func lines(l ...reservation.Line) []reservation.Line { return l }

// stock gives items 1, 2, 3... their first stock, in Redis only.
func (r *rig) stock(quantities ...int64) {
	r.tb.Helper()
	var figs []reservation.Figures
	for i, q := range quantities {
		figs = append(figs, reservation.Figures{Bucket: bucket(int64(i + 1)), OnHand: q, Version: 1})
	}
	n, err := r.store.ApplyFigures(r.tb.Context(), stamp(), figs, true)
	if err != nil || n != len(figs) {
		r.tb.Fatalf("stock: %d applied, %v", n, err)
	}
}

func newID(tb testing.TB) reservation.ID {
	tb.Helper()
	id, err := reservation.NewID()
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

func request(tb testing.TB, key string, ttl time.Duration, l ...reservation.Line) reservation.Request {
	tb.Helper()
	req, err := reservation.NewRequest(1, key, l, ttl, limits())
	if err != nil {
		tb.Fatal(err)
	}
	return req
}

func (r *rig) reserve(key string, l ...reservation.Line) reservation.Result {
	r.tb.Helper()
	return r.reserveFor(time.Hour, key, l...)
}

func (r *rig) reserveFor(ttl time.Duration, key string, l ...reservation.Line) reservation.Result {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), 10*time.Second)
	defer cancel()
	res, err := r.store.Reserve(ctx, stamp(), newID(r.tb), request(r.tb, key, ttl, l...))
	if err != nil {
		r.tb.Fatalf("reserve %s: %v", key, err)
	}
	return res
}

// figures wants a bucket's exact figures.
func (r *rig) figures(item, available, held, onHand int64) {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), 10*time.Second)
	defer cancel()
	if err := r.store.Flush(ctx); err != nil {
		r.tb.Fatal(err)
	}
	a, err := r.store.Availability(ctx, bucket(item))
	if err != nil {
		r.tb.Fatal(err)
	}
	if a.Available != available || a.Held != held || a.OnHand != onHand {
		r.tb.Fatalf("item %d: available %d, held %d, on hand %d; want %d, %d, %d", item, a.Available, a.Held, a.OnHand, available, held, onHand)
	}
}

// expireNow moves a reservation's expiry into the past, as Redis's clock will see it.
func (r *rig) expireNow(id reservation.ID) {
	r.tb.Helper()
	r.setTime(id, "expires_at", -time.Second)
}

// setTime sets one of the instants of a reservation, relative to Redis's clock.
func (r *rig) setTime(id reservation.ID, field string, from time.Duration) {
	r.tb.Helper()
	ctx := r.tb.Context()
	now, err := r.raw.Time(ctx).Result()
	if err != nil {
		r.tb.Fatal(err)
	}
	at := now.Add(from).UnixMicro()
	if err := r.raw.HSet(ctx, r.key("res:%s", id), field, at).Err(); err != nil {
		r.tb.Fatal(err)
	}
	if err := r.raw.ZAdd(ctx, r.key("exp"), redis.Z{Score: float64(at), Member: id.String()}).Err(); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) sweep() reservation.SweepResult {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), 10*time.Second)
	defer cancel()
	res, err := r.store.Sweep(ctx, stamp(), 1000)
	if err != nil {
		r.tb.Fatalf("sweep: %v", err)
	}
	return res
}

func (r *rig) release(id reservation.ID) (reservation.ReleaseResult, error) {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), 10*time.Second)
	defer cancel()
	return r.store.Release(ctx, stamp(), 1, id)
}

// wantAs wants an error of type E and gives it.
func wantAs[E error](tb testing.TB, err error) E {
	tb.Helper()
	var e E
	if !errors.As(err, &e) {
		tb.Fatalf("got error %T: %v; want a %T", err, err, e)
	}
	return e
}

func wantIs(tb testing.TB, err, target error) {
	tb.Helper()
	if !errors.Is(err, target) {
		tb.Fatalf("got error %v; want %v", err, target)
	}
}
