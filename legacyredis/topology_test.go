package legacyredis_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation/storetest"
)

func sentinels(t *testing.T, o devstack.SentinelOptions) *devstack.SentinelSet {
	t.Helper()
	set, err := devtest.Private(t, devstack.Options{}).AddSentinelSet(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func cluster(t *testing.T) *devstack.RedisCluster {
	t.Helper()
	c, err := devtest.Private(t, devstack.Options{}).AddCluster(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shared are servers of the tests that break nothing of them, each in a pod of its own.
var shared struct {
	mu      sync.Mutex
	cluster *devstack.RedisCluster
	set     *devstack.SentinelSet
}

func sharedCluster(t *testing.T) *devstack.RedisCluster {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cluster == nil {
		c, err := devtest.Stack(t).AddCluster(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		shared.cluster = c
	}
	return shared.cluster
}

func sharedSentinels(t *testing.T) *devstack.SentinelSet {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.set == nil {
		set, err := devtest.Stack(t).AddSentinelSet(t.Context(), devstack.SentinelOptions{DownAfter: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		shared.set = set
	}
	return shared.set
}

// owner is the node that serves a pod, with the pod's slot.
func owner(t *testing.T, c *devstack.RedisCluster, pod string) (*devstack.Redis, int64) {
	t.Helper()
	slot, err := c.Slot(t.Context(), "{"+pod+"}")
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Owner(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	return n, slot
}

// inShort leaves the longest groups of the contract to make soak, where the suite runs against a topology: what they
// try is the scripts, which the run against one server tries too.
func inShort(t *testing.T) {
	t.Helper()
	_, group, _ := strings.Cut(t.Name(), "/")
	if slices.Contains([]string{"I1", "I5", "I9", "I1-I6", "I1-I6_refuse"}, group) && !devtest.Soak() {
		t.Skip("make soak runs this group against a topology")
	}
}

func TestContractOnCluster(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	storetest.Run(t, func(t *testing.T, cfg storetest.Config) *storetest.Harness {
		t.Helper()
		inShort(t)
		return openContractOn(t, cfg, contractRedis{
			url: c.URL(), script: legacyredis.ClusterScriptText,
			server: func(t *testing.T, pod string) *devstack.Redis { t.Helper(); n, _ := owner(t, c, pod); return n },
		})
	})
}

func TestContractOnSentinel(t *testing.T) {
	t.Parallel()
	set := sharedSentinels(t)
	storetest.Run(t, func(t *testing.T, cfg storetest.Config) *storetest.Harness {
		t.Helper()
		inShort(t)
		return openContractOn(t, cfg, contractRedis{
			url: set.URL(0), script: legacyredis.ScriptText,
			server: func(t *testing.T, _ string) *devstack.Redis { t.Helper(); return set.Primary },
		})
	})
}
