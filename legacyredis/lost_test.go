package legacyredis_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// proxied is a rig whose second store talks through a proxy that loses things.
func proxied(t *testing.T) (*rig, *legacyredis.Store, *faultproxy.Proxy) {
	t.Helper()
	r := newRig(t)
	p, err := faultproxy.Start(devtest.Redis(t).Addr(), faultproxy.Redis)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, r.open(t, "redis://"+p.Addr()+"/0"), p
}

// scriptFor matches a script that is sent for a reservation, by either way of sending one.
func scriptFor(id reservation.ID, when faultproxy.When, times int) faultproxy.Rule {
	return faultproxy.Rule{Match: []byte(id.String()), When: when, Times: times, Func: func(m []byte) bool {
		return bytes.Contains(bytes.ToLower(m), []byte("eval"))
	}}
}

// I6's and I1's ground: whatever is lost, a write has exactly one effect, and no client runs it again by itself.
func TestLostReplyOfReserve(t *testing.T) {
	t.Parallel()
	type fault func(*faultproxy.Proxy, faultproxy.Rule) *faultproxy.Fault
	cut, swallow := (*faultproxy.Proxy).Cut, (*faultproxy.Proxy).Swallow
	for name, c := range map[string]struct {
		do      fault
		when    faultproxy.When
		times   int
		unknown bool
		effect  int64
	}{
		"cut once before":      {cut, faultproxy.Before, 1, false, 1},
		"cut once after":       {cut, faultproxy.After, 1, false, 1},
		"cut twice after":      {cut, faultproxy.After, 2, false, 1},
		"cut always before":    {cut, faultproxy.Before, 0, true, 0},
		"cut always after":     {cut, faultproxy.After, 0, true, 1},
		"swallow once before":  {swallow, faultproxy.Before, 1, false, 1},
		"swallow once after":   {swallow, faultproxy.After, 1, false, 1},
		"swallow always after": {swallow, faultproxy.After, 0, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s, p := proxied(t)
			r.stock(10)
			id := newID(t)
			f := c.do(p, scriptFor(id, c.when, c.times))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			res, err := s.Reserve(ctx, stamp(), id, request(t, "k", time.Hour, line(1, 1)))
			if f.Fired() == 0 {
				t.Fatal("the fault did not fire")
			}
			if c.unknown {
				wantAs[*reservation.UnknownOutcomeError](t, err)
			} else if err != nil || res.Replayed || res.Record.ID != id || len(res.Levels) != 1 || res.Levels[0].Available != 10 {
				t.Fatalf("not told as if the first reply had come: %+v, %v", res, err)
			}
			r.figures(1, 10-c.effect, c.effect, 10)
			f.Remove()
			again, err := s.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 1)))
			if err != nil || again.Replayed != (c.effect == 1) {
				t.Fatalf("with the same key later: %+v, %v", again, err)
			}
			r.figures(1, 9, 1, 10)
		})
	}
}

func TestLostReplyOfRelease(t *testing.T) {
	t.Parallel()
	for _, when := range []faultproxy.When{faultproxy.Before, faultproxy.After} {
		r, s, p := proxied(t)
		r.stock(10)
		id := r.reserve("k", line(1, 3)).Record.ID
		f := p.Cut(scriptFor(id, when, 1))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		res, err := s.Release(ctx, stamp(), 1, id)
		if err != nil || res.Replayed || f.Fired() != 1 {
			t.Fatalf("%v: %+v, %v, fired %d", when, res, err, f.Fired())
		}
		r.figures(1, 10, 0, 10)
	}
}

// An expiry whose reply was lost is reported once all the same.
func TestLostReplyOfSweep(t *testing.T) {
	t.Parallel()
	r, s, p := proxied(t)
	r.stock(10)
	first, second := r.reserve("a", line(1, 3)).Record.ID, r.reserve("b", line(1, 3)).Record.ID
	r.expireNow(first)
	r.expireNow(second)
	f := p.Cut(scriptFor(first, faultproxy.After, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	res, err := s.Sweep(ctx, stamp(), 10)
	if err != nil || len(res.Expired) != 2 || f.Fired() != 1 {
		t.Fatalf("%+v, %v, fired %d", res, err, f.Fired())
	}
	r.figures(1, 10, 0, 10)
}

// A client with go-redis's defaults would take the stock twice, and one without the look at its server would go on
// with a server that has lost writes: the store refuses both.
func TestClientsOfAnotherMakeAreRefused(t *testing.T) {
	t.Parallel()
	url := devtest.RedisURL(t)
	refused := func(why string, c *legacyredis.Client) {
		t.Helper()
		t.Cleanup(func() { _ = c.Close() })
		if _, err := legacyredis.New(legacyredis.Options{Pod: "p", Client: c, Ledger: noLedger{}}); err == nil {
			t.Errorf("a client that %s was taken", why)
		}
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	refused("does not check its server", &legacyredis.Client{Client: redis.NewClient(o)})
	refused("checks the server for another pod", podClient(t, url, "q"))

	spoilt := podClient(t, url, "p")
	spoilt.Options().MaxRetries = 3
	refused("runs scripts again", spoilt)
	deaf := podClient(t, url, "p")
	deaf.Options().ContextTimeoutEnabled = false
	refused("ignores deadlines", deaf)
	if _, err := legacyredis.NewClient("http://nowhere", "p"); err == nil {
		t.Fatal("a URL of something else was taken")
	}
	if _, err := legacyredis.NewClient(url, "a{b}"); err == nil {
		t.Fatal("a pod that is no hash tag was taken")
	}
}
