package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many a cluster has.
const slots = 16384

var errNotYet = errors.New("not yet")

// RedisCluster is a Redis Cluster of primaries. They have no replicas but for
// those of AddReplica.
type RedisCluster struct{ Nodes []*Redis }

// AddCluster starts that many primaries, shares the slots among them, and
// returns when each of them says that the cluster is ok.
func (s *Stack) AddCluster(ctx context.Context, primaries int, args ...string) (*RedisCluster, error) {
	c := &RedisCluster{}
	for range primaries {
		r, err := s.addNode(ctx, args...)
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, r)
	}
	for i, n := range c.Nodes {
		first, last := i*slots/primaries, (i+1)*slots/primaries-1
		err := n.do(ctx,
			[]any{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
			[]any{"CLUSTER", "ADDSLOTSRANGE", first, last})
		if err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes[1:] {
		if err := c.introduce(ctx, n); err != nil {
			return nil, err
		}
	}
	return c, await(ctx, "the cluster to be ok", func() bool { return c.ok(ctx) })
}

func (s *Stack) addNode(ctx context.Context, args ...string) (*Redis, error) {
	bus, err := freePort()
	if err != nil {
		return nil, err
	}
	own := []string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", "5000", "--cluster-port", strconv.Itoa(bus),
		"--repl-diskless-sync-delay", "0",
	}
	return s.AddRedis(ctx, append(own, args...)...)
}

// introduce makes a node known to the first one; the others hear of it.
func (c *RedisCluster) introduce(ctx context.Context, n *Redis) error {
	host, port, err := net.SplitHostPort(n.Addr())
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	var bus string
	err = withRedis(n.Addr(), func(r *redis.Client) error {
		m, err := r.ConfigGet(ctx, "cluster-port").Result()
		bus = m["cluster-port"]
		return err
	})
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	return c.Nodes[0].do(ctx, []any{"CLUSTER", "MEET", host, port, bus})
}

func (c *RedisCluster) ok(ctx context.Context) bool {
	for _, n := range c.Nodes {
		err := withRedis(n.Addr(), func(r *redis.Client) error {
			info, err := r.ClusterInfo(ctx).Result()
			if err == nil && (infoField(info, "cluster_state") != "ok" || infoField(info, "cluster_size") != strconv.Itoa(len(c.Nodes))) {
				err = errNotYet
			}
			return err
		})
		if err != nil {
			return false
		}
	}
	return true
}

// URL is the cluster's address: all of its nodes.
func (c *RedisCluster) URL() string {
	q := url.Values{}
	for _, n := range c.Nodes[1:] {
		q.Add("addr", n.Addr())
	}
	return "redis://" + c.Nodes[0].Addr() + "?" + q.Encode()
}

// Slot is the slot of a key.
func (c *RedisCluster) Slot(ctx context.Context, key string) (slot int64, err error) {
	err = withRedis(c.Nodes[0].Addr(), func(r *redis.Client) error {
		slot, err = r.ClusterKeySlot(ctx, key).Result()
		return err
	})
	return slot, err
}

// Owner is the node that serves a slot.
func (c *RedisCluster) Owner(ctx context.Context, slot int64) (*Redis, error) {
	for _, n := range c.Nodes {
		mine := false
		err := withRedis(n.Addr(), func(r *redis.Client) error {
			id, err := r.ClusterMyID(ctx).Result()
			if err != nil {
				return err
			}
			shards, err := r.ClusterShards(ctx).Result()
			for _, s := range shards {
				mine = mine || hasSlot(s, slot) && slices.ContainsFunc(s.Nodes, func(n redis.Node) bool { return n.ID == id && n.Role == "master" })
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("devstack: %w", err)
		}
		if mine {
			return n, nil
		}
	}
	return nil, fmt.Errorf("devstack: nobody serves slot %d", slot)
}

func hasSlot(s redis.ClusterShard, slot int64) bool {
	return slices.ContainsFunc(s.Slots, func(r redis.SlotRange) bool { return r.Start <= slot && slot <= r.End })
}

// MoveSlot moves a slot with its keys to another node, as Redis's own tools
// do, some keys at a time; each is called before every step, and may be nil.
func (c *RedisCluster) MoveSlot(ctx context.Context, slot int64, to *Redis, each func()) error {
	from, err := c.Owner(ctx, slot)
	if err != nil || from == to {
		return err
	}
	source, err := from.nodeID(ctx)
	if err != nil {
		return err
	}
	target, err := to.nodeID(ctx)
	if err != nil {
		return err
	}
	if err := to.do(ctx, []any{"CLUSTER", "SETSLOT", slot, "IMPORTING", source}); err != nil {
		return err
	}
	if err := from.do(ctx, []any{"CLUSTER", "SETSLOT", slot, "MIGRATING", target}); err != nil {
		return err
	}
	if err := from.moveKeys(ctx, slot, to, each); err != nil {
		return err
	}
	for _, n := range append([]*Redis{to, from}, c.Nodes...) {
		if err := n.do(ctx, []any{"CLUSTER", "SETSLOT", slot, "NODE", target}); err != nil {
			return err
		}
	}
	return nil
}

// keysAtOnce is how many keys move in one step.
const keysAtOnce = 10

func (r *Redis) moveKeys(ctx context.Context, slot int64, to *Redis, each func()) error {
	host, port, err := net.SplitHostPort(to.Addr())
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	for {
		if each != nil {
			each()
		}
		var keys []string
		err := withRedis(r.Addr(), func(c *redis.Client) error {
			var err error
			keys, err = c.ClusterGetKeysInSlot(ctx, int(slot), keysAtOnce).Result()
			return err
		})
		if err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
		if len(keys) == 0 {
			return nil
		}
		migrate := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, k := range keys {
			migrate = append(migrate, k)
		}
		if err := r.do(ctx, migrate); err != nil {
			return err
		}
	}
}

func (r *Redis) nodeID(ctx context.Context) (id string, err error) {
	err = withRedis(r.Addr(), func(c *redis.Client) error {
		id, err = c.ClusterMyID(ctx).Result()
		return err
	})
	return id, err
}

// do runs commands on the server, one after the other.
func (r *Redis) do(ctx context.Context, commands ...[]any) error {
	return withRedis(r.Addr(), func(c *redis.Client) error {
		for _, args := range commands {
			if err := c.Do(ctx, args...).Err(); err != nil {
				return fmt.Errorf("devstack: %v %v on %s: %w", args[0], args[1], r.Addr(), err)
			}
		}
		return nil
	})
}

// await polls a condition that sends no signal, within the time of a start.
func await(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it took more than "+startTimeout.String()))
	defer cancel()
	for !cond() {
		if !wait(ctx, 20*time.Millisecond) {
			return fmt.Errorf("devstack: waiting for %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}

// AddReplica starts a replica of one of the primaries, and returns when it
// follows.
func (c *RedisCluster) AddReplica(ctx context.Context, s *Stack, of *Redis) (*Redis, error) {
	r, err := s.addNode(ctx)
	if err != nil {
		return nil, err
	}
	id, err := of.nodeID(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.introduce(ctx, r); err != nil {
		return nil, err
	}
	err = await(ctx, "the replica to know its primary", func() bool { return r.do(ctx, []any{"CLUSTER", "REPLICATE", id}) == nil })
	if err != nil {
		return nil, err
	}
	if err := awaitReplicas(ctx, []*Redis{r}); err != nil {
		return nil, err
	}
	// Until all know it, they do not listen to it: it could not take over.
	self, err := r.nodeID(ctx)
	if err != nil {
		return nil, err
	}
	return r, await(ctx, "the cluster to know the replica", func() bool {
		for _, n := range c.Nodes {
			if !n.knowsReplica(ctx, self) {
				return false
			}
		}
		return true
	})
}

func (r *Redis) knowsReplica(ctx context.Context, id string) bool {
	known := false
	err := withRedis(r.Addr(), func(c *redis.Client) error {
		text, err := c.ClusterNodes(ctx).Result()
		for line := range strings.Lines(text) {
			f := strings.Fields(line) // id address flags primary ping pong epoch link
			known = known || len(f) > 7 && f[0] == id && f[2] == "slave" && f[7] == "connected"
		}
		return err
	})
	return err == nil && known
}
