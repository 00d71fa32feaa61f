package devstack

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/redis/go-redis/v9"
)

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
