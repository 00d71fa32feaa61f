package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
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
