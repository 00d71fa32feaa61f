package devstack_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

// A primary that is killed is replaced by its replica, and comes back as a replica of that one.
func TestSentinelsPromoteTheReplica(t *testing.T) {
	t.Parallel()
	s := devtest.Private(t, devstack.Options{})
	set, err := s.AddSentinelSet(t.Context(), devstack.SentinelOptions{DownAfter: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if at, err := set.PrimaryAddr(t.Context()); err != nil || at != set.Primary.Addr() {
		t.Fatalf("%s, %v", at, err)
	}
	if o, err := redis.ParseFailoverURL(set.URL(3)); err != nil || o.MasterName != set.Name || o.DB != 3 || len(o.SentinelAddrs) != 3 {
		t.Fatalf("%s: %+v, %v", set.URL(3), o, err)
	}
	err = set.FailOver(t.Context(), func() {
		if err := client(t, set.Primary).Set(t.Context(), "unseen", "1", 0).Err(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	promoted := client(t, set.Replicas[0])
	if at, err := set.PrimaryAddr(t.Context()); err != nil || at != set.Replicas[0].Addr() {
		t.Fatalf("%s, %v", at, err)
	}
	if n := promoted.Exists(t.Context(), "unseen").Val(); n != 0 {
		t.Error("the replica has what it was not to see")
	}
	if err := promoted.Set(t.Context(), "a", "b", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if !devtest.Soak() {
		return // the sentinels take ten seconds over it
	}
	if err := set.Primary.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	devtest.UntilWithin(t, 90*time.Second, "the old primary follows", func() bool {
		return client(t, set.Primary).Get(t.Context(), "a").Val() == "b"
	})
}

// A cluster serves keys on every node, and a slot moves with all of its keys.
func TestClusterServesAndMovesASlot(t *testing.T) {
	t.Parallel()
	s := devtest.Private(t, devstack.Options{})
	c, err := s.AddCluster(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	o, err := redis.ParseClusterURL(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	all := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = all.Close() })
	owners := map[*devstack.Redis]bool{}
	for i := range 20 {
		key := fmt.Sprintf("{a}:%d", i)
		if err := all.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		slot, err := c.Slot(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		owner, err := c.Owner(t.Context(), slot)
		if err != nil {
			t.Fatal(err)
		}
		owners[owner] = true
	}
	if len(owners) != 3 {
		t.Fatalf("%d nodes serve the keys", len(owners))
	}
	slot, _ := c.Slot(t.Context(), "{a}")
	from, _ := c.Owner(t.Context(), slot)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	steps := 0
	if err := c.MoveSlot(t.Context(), slot, to, func() { steps++ }); err != nil {
		t.Fatal(err)
	}
	if owner, err := c.Owner(t.Context(), slot); owner != to || steps != 3 {
		t.Fatalf("%v, %v, %d steps", owner, err, steps)
	}
	for i := range 20 {
		if got := client(t, to).Get(t.Context(), fmt.Sprintf("{a}:%d", i)).Val(); got != fmt.Sprint(i) {
			t.Fatalf("key %d is %q on its new node", i, got)
		}
	}
}

// The tools that were fetched with a server start from the dev folder's bin.
func TestStarterOfRedisCLI(t *testing.T) {
	t.Parallel()
	if path, err := exec.LookPath("redis-server"); err == nil {
		t.Skipf("%s is used: nothing was fetched", path)
	}
	r := devtest.Redis(t)
	dev := filepath.Dir(filepath.Dir(devtest.Stack(t).Dir()))
	_, port, _ := strings.Cut(r.Addr(), ":")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dev, "bin", "redis-cli"), "-p", port, "PING").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "PONG" {
		t.Fatalf("%v\n%s", err, out)
	}
}
