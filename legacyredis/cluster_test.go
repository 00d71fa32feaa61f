package legacyredis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// onCluster is a rig on a cluster; it looks on by the node that serves the pod at the start.
func onCluster(t *testing.T, c *devstack.RedisCluster) (r *rig, from, to *devstack.Redis, slot int64) {
	t.Helper()
	r = &rig{tb: t, pod: devtest.Pod(t), url: c.URL()}
	from, slot = owner(t, c, r.pod)
	for _, to = range c.Nodes {
		if to != from {
			break
		}
	}
	r.raw = plainClient(t, from)
	r.store = r.open(t, r.url)
	if _, err := r.store.InitFence(t.Context(), stamp()); err != nil {
		t.Fatal(err)
	}
	return r, from, to, slot
}

// everywhere is a go-redis client of the whole cluster, as people use one.
func everywhere(t *testing.T, c *devstack.RedisCluster, change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o, err := redis.ParseClusterURL(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(o)
	}
	all := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = all.Close() })
	return all
}

const count = "return redis.call('INCR', KEYS[1])"

// A script whose reply is lost is not sent again by our client, alone or in a pipeline. By go-redis's own client of a
// cluster it is, whatever MaxRetries says: this is why it is not used.
func TestI1NoClientOfAClusterSendsAScriptAgain(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	pod := devtest.Pod(t)
	srv, _ := owner(t, c, pod)
	p, err := faultproxy.Start(srv.Addr(), faultproxy.Redis)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	ours := podClient(t, c.URL(), pod)
	ours.DialThrough(p.Addr())
	theirs := everywhere(t, c, func(o *redis.ClusterOptions) {
		o.MaxRetries = -1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == srv.Addr() {
				addr = p.Addr()
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
	})
	for name, do := range map[string]struct {
		by    redis.UniversalClient
		piped bool
		again bool
	}{
		"ours": {ours, false, false}, "ours, piped": {ours, true, false},
		"theirs": {theirs, false, true}, "theirs, piped": {theirs, true, true},
	} {
		key := fmt.Sprintf("{%s}:count:%s", pod, strings.ReplaceAll(name, ", ", "-"))
		f := p.Cut(faultproxy.Rule{Match: []byte(key), When: faultproxy.After, Times: 1})
		var err error
		if do.piped {
			_, err = do.by.Pipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Eval(t.Context(), count, []string{key}).Err() })
		} else {
			err = do.by.Eval(t.Context(), count, []string{key}).Err()
		}
		n, _ := plainClient(t, srv).Get(t.Context(), key).Int()
		if f.Fired() != 1 || (n == 2) != do.again || (err == nil) != do.again {
			t.Errorf("%s: run %d times, fired %d, %v", name, n, f.Fired(), err)
		}
	}
}

// A slot that goes and comes back: the connections from before are not used again, so the doubt is noticed.
func TestConnectionsOfAnOldReignAreNotUsedAgain(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r, from, to, slot := onCluster(t, c)
	r.stock(10)
	id := r.reserve("k", line(1, 3)).Record.ID
	if err := c.MoveSlot(t.Context(), slot, to, nil); err != nil {
		t.Fatal(err)
	}
	r.refusals(stamp(), id, reservation.Regressed)
	st := r.restoreByHand()
	if _, err := r.store.Release(t.Context(), st, 1, id); err != nil {
		t.Fatal(err)
	}
	if err := c.MoveSlot(t.Context(), slot, from, nil); err != nil {
		t.Fatal(err)
	}
	r.refusals(st, id, reservation.Regressed)
	r.restoreByHand()
	r.figures(1, 10, 0, 10)
}

// A walk over a pod's keys sees all of them, and no other pod's, on the node that has them.
func TestScanOnACluster(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r, from, _, _ := onCluster(t, c)
	r.stock(10)
	r.reserve("k", line(1, 3))
	others := 0
	for range 20 {
		other, srv, _, _ := onCluster(t, c)
		other.stock(5)
		if srv == from {
			others++
		}
	}
	snap, err := r.store.Inspect(t.Context())
	if err != nil || len(snap.Records) != 1 || len(snap.Buckets) != 1 || others == 0 {
		t.Fatalf("%+v, %v (%d pods beside it)", snap, err, others)
	}
	fresh, err := legacyredis.New(legacyredis.Options{Pod: "fresh", Client: podClient(t, c.URL(), "fresh"), Ledger: noLedger{}})
	if err != nil {
		t.Fatal(err)
	}
	if empty, err := fresh.Empty(t.Context()); err != nil || !empty {
		t.Fatalf("%v, %v", empty, err)
	}
}

// Pages of one walk are never of two servers, nor of a server that has given some of the keys away: a restore counts
// what is held by such a walk.
func TestI4NoWalkGoesOverTwoServers(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	r, from, to, slot := onCluster(t, c)
	r.stock(make([]int64, 400)...) // 1600 keys: two pages
	pages, moved := 0, false
	walk := func(on func()) error {
		pages = 0
		return r.store.Scan(t.Context(), func([]string) (bool, error) {
			if pages++; pages == 1 {
				on()
			}
			return true, nil
		})
	}
	if err := walk(func() {}); err != nil || pages < 2 {
		t.Fatalf("%d pages, %v", pages, err)
	}
	err := walk(func() {
		if err := c.MoveSlot(t.Context(), slot, to, nil); err != nil {
			t.Error(err)
		}
		moved = true
	})
	if reservation.CodeOf(err) != reservation.CodeUnavailable || !moved {
		t.Fatalf("the slot went away on the way: %v, %d pages", err, pages)
	}
	steps, ctx := 0, t.Context()
	half := make(chan error, 1)
	err = c.MoveSlot(ctx, slot, from, func() {
		if steps++; steps == 20 {
			half <- walk(func() {})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-half; reservation.CodeOf(err) != reservation.CodeUnavailable {
		t.Fatalf("half-way: %v", err)
	}
	if err := walk(func() {}); err != nil {
		t.Fatal(err)
	}
}

// The doctor says of which node each finding is, and what is wrong with the cluster.
func TestCheckOfACluster(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r, from, to, slot := onCluster(t, c)
	if err := r.raw.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	found := r.check()
	wantFinding(t, found, "maxmemory-policy", reservation.Failure)
	wantFinding(t, found, "replicas", reservation.Warning)
	wantFine(t, found, "fence", "cluster", "appendonly", "role")
	for _, f := range found {
		if !strings.Contains(f.Found, from.Addr()) {
			t.Errorf("%s does not say of whom: %s", f.Check, f.Found)
		}
	}
	if err := c.MoveSlot(t.Context(), slot, to, nil); err != nil {
		t.Fatal(err)
	}
	found = r.check()
	wantFine(t, found, "maxmemory-policy", "cluster")
	wantFinding(t, found, "fence", reservation.Failure)
	for _, f := range found {
		if !strings.Contains(f.Found, to.Addr()) {
			t.Errorf("%s does not say of whom: %s", f.Check, f.Found)
		}
	}
}

func wantFine(t *testing.T, found []reservation.Finding, names ...string) {
	t.Helper()
	for _, name := range names {
		i := slices.IndexFunc(found, func(f reservation.Finding) bool { return f.Check == name })
		if i < 0 || found[i].Severity != reservation.Fine {
			t.Errorf("%s is not fine: %+v", name, found)
		}
	}
}

func (r *rig) check() []reservation.Finding {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), 10*time.Second)
	defer cancel()
	found, err := r.store.Check(ctx)
	if err != nil {
		r.tb.Fatal(err)
	}
	return found
}

// A node of a cluster dies, and its replica takes over with all it had, and without what it lacked. The client knew one
// other node only.
func TestI1FailoverInAClusterIsNoticed(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{})
	c, err := stack.AddCluster(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	r, from, known, _ := onCluster(t, c)
	replica, err := c.AddReplica(t.Context(), stack, from)
	if err != nil {
		t.Fatal(err)
	}
	r.url = "redis://" + known.Addr() + "?addr=" + known.Addr()
	r.store = r.open(t, r.url)
	r.stock(10)
	kept := r.reserve("kept", line(1, 3)).Record.ID
	if n, _, err := r.store.WaitReplica(t.Context(), 5*time.Second); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	wantFine(t, r.check(), "role", "cluster", "fence")
	if err := replica.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := r.raw.Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	lost := r.reserve("lost", line(1, 7)).Record.ID
	if err := from.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := replica.Resume(); err != nil {
		t.Fatal(err)
	}
	there := plainClient(t, replica)
	if err := there.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err(); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the first script is refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.store.Reserve(ctx, stamp(), newID(t), request(t, "first", time.Hour, line(1, 7)))
		var fence *reservation.FenceError
		if err == nil || !errors.As(err, &fence) && reservation.CodeOf(err) != reservation.CodeUnavailable {
			t.Fatalf("the first script: %v", err)
		}
		return errors.As(err, &fence) && fence.Verdict == reservation.Regressed
	})
	if n := there.Exists(t.Context(), r.key("res:%s", lost)).Val(); n != 0 {
		t.Fatal("the replica has what it was not to see: nothing is tried")
	}
	r.refusals(stamp(), kept, reservation.Regressed)
	r.restoreByHand()
	r.figures(1, 7, 3, 10)
}
