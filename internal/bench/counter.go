package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// counterScheme is the Redis counter: no transaction, no record, appendonly with a flush a second.
func counterScheme() scheme {
	return scheme{
		name: "redis", what: "a counter in Redis: check and DECRBY in one script, no record, flushed once a second", redis: true,
		setUp: setUpCounters, open: openCounter, read: readCounters,
	}
}

// KEYS: the counter. ARGV: the quantity. 1: taken, 0: too few left, -1: no such counter.
const counterLua = `local left = redis.call('GET', KEYS[1])
if not left then return -1 end
if tonumber(left) < tonumber(ARGV[1]) then return 0 end
redis.call('DECRBY', KEYS[1], ARGV[1])
return 1`

// KEYS: the counter, the idempotency key. ARGV: the quantity, for how long the key is kept in seconds. It answers as
// counterLua does, and 2 for a key that was granted before. It is used only where calls are sent again.
const counterKeyLua = `if redis.call('EXISTS', KEYS[2]) == 1 then return 2 end
local left = redis.call('GET', KEYS[1])
if not left then return -1 end
if tonumber(left) < tonumber(ARGV[1]) then return 0 end
redis.call('DECRBY', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], '', 'EX', ARGV[2])
return 1`

func (p place) counter(bucket int) string {
	return counterKey(p.Prefix, bucket)
}

func counterKey(prefix string, bucket int) string { return prefix + ":avail:" + strconv.Itoa(bucket+1) }

func setUpCounters(ctx context.Context, p place, stock int64) (int64, error) {
	return 0, withRedis(p.Redis, func(c *redis.Client) error {
		pipe := c.Pipeline()
		for n := range p.Buckets {
			pipe.Set(ctx, p.counter(n), stock, 0)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("stock the counters: %w", err)
		}
		return nil
	})
}

func readCounters(ctx context.Context, p place, stock int64) (books, error) {
	b := books{stock: stock * int64(p.Buckets), granted: -1, rejected: -1}
	err := withRedis(p.Redis, func(c *redis.Client) error {
		for n := range p.Buckets {
			left, err := c.Get(ctx, p.counter(n)).Int64()
			if err != nil {
				return fmt.Errorf("read the counters: %w", err)
			}
			b.left += left
		}
		return nil
	})
	b.held = b.stock - b.left // there is no record of them
	return b, err
}

func withRedis(url string, do func(*redis.Client) error) error {
	o, err := redisOptions(url)
	if err != nil {
		return err
	}
	c := redis.NewClient(o)
	defer c.Close()
	return do(c)
}

type counter struct {
	client *redis.Client
	prefix string
	plain  *redis.Script
	keyed  *redis.Script
	keys   bool
}

func openCounter(ctx context.Context, j Job) (session, error) {
	o, err := redisOptions(j.Redis)
	if err != nil {
		return nil, err
	}
	o.PoolSize = j.callers()
	o.PoolTimeout = time.Minute
	c := &counter{
		client: redis.NewClient(o), prefix: j.Prefix, keys: j.Retries > 0,
		plain: redis.NewScript(counterLua), keyed: redis.NewScript(counterKeyLua),
	}
	script := c.plain
	if c.keys {
		script = c.keyed
	}
	if err := script.Load(ctx, c.client).Err(); err != nil {
		_ = c.client.Close()
		return nil, fmt.Errorf("load the counter's script: %w", err)
	}
	return c, nil
}

func (c *counter) close() error { return c.client.Close() }

func (c *counter) reserve(ctx context.Context, call call) (reply, error) {
	key := counterKey(c.prefix, call.bucket)
	var n int
	var err error
	if c.keys {
		n, err = c.keyed.EvalSha(ctx, c.client, []string{key, c.prefix + ":key:" + call.key}, 1, int(ttl.Seconds())).Int()
	} else {
		n, err = c.plain.EvalSha(ctx, c.client, []string{key}, 1).Int()
	}
	switch {
	case err != nil:
		return reply{}, err
	case n == 0:
		return reply{answer: rejected}, nil
	case n == 1 || n == 2:
		return reply{answer: granted, replayed: n == 2}, nil
	}
	return reply{}, fmt.Errorf("the counter %s is gone", key)
}
