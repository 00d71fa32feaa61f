package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// redisReserveScheme is package legacyredis as it stands: what a reserve costs in Redis where it is kept as ours are, with
// its record, its key for retries, the indexes and the fence, all in one script. The server is the counter's.
func redisReserveScheme() scheme {
	return scheme{
		name: "redis_reserve", what: "a reservation in Redis as ours are kept there: record, key, indexes, fence, flushed once a second", redis: true,
		setUp: setUpRedis, open: openRedisReserve, read: readRedis,
	}
}

// redisStamp is of the stage in which Redis decides alone.
func redisStamp() reservation.Stamp { return reservation.Stamp{Epoch: 1, Stage: reservation.Legacy} }

// noLedger is for a store that only reserves: nothing reaches it.
type noLedger struct{ reservation.Ledger }

// redisReserve is a store and its client. A place's prefix is its name as a hash tag, so the name is the pod's.
type redisReserve struct {
	store  *legacyredis.Store
	client *legacyredis.Client
}

func newRedisReserve(url, prefix string, conns int) (*redisReserve, error) {
	name := strings.Trim(prefix, "{}")
	client, err := legacyredis.NewClient(url, name, legacyredis.ClientLimits{Connections: conns})
	if err != nil {
		return nil, err
	}
	s, err := legacyredis.New(legacyredis.Options{Pod: name, Client: client, Ledger: noLedger{}})
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return &redisReserve{store: s, client: client}, nil
}

func setUpRedis(ctx context.Context, p place, stock int64) (laid int64, err error) {
	r, err := newRedisReserve(p.Redis, p.Prefix, 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := r.store.InitFence(ctx, redisStamp()); err != nil {
		return 0, fmt.Errorf("set the fence in Redis: %w", err)
	}
	figures := make([]reservation.Figures, p.Buckets)
	for n := range figures {
		figures[n] = reservation.Figures{Bucket: bucketOf(n), OnHand: stock, Version: 1}
	}
	if _, err := r.store.ApplyFigures(ctx, redisStamp(), figures, true); err != nil {
		return 0, fmt.Errorf("stock Redis: %w", err)
	}
	return 0, nil
}

// openRedisReserve gives each caller a connection, as the counter does.
func openRedisReserve(ctx context.Context, j Job) (session, error) {
	r, err := newRedisReserve(j.Redis, j.Prefix, j.callers())
	if err != nil {
		return nil, err
	}
	if _, err := r.store.ReadFence(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("read the fence in Redis: %w", err), r.close())
	}
	return r, nil
}

func (r *redisReserve) reserve(ctx context.Context, c call) (reply, error) {
	req, err := cartOf(c, 1)
	if err != nil {
		return reply{}, err
	}
	res, err := r.store.Reserve(ctx, redisStamp(), c.id, req)
	if err != nil {
		return reply{}, err
	}
	return replyOf(res), nil
}

func (r *redisReserve) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	return errors.Join(r.store.Close(ctx), r.client.Close())
}

// readRedis sums the counters of all buckets and all records, past the store, and compares the sums (I4).
func readRedis(ctx context.Context, p place, stock int64) (books, error) {
	b := books{stock: stock * int64(p.Buckets)}
	err := withRedis(p.Redis, func(c *redis.Client) error {
		if err := sumCounters(ctx, c, p, &b); err != nil {
			return fmt.Errorf("read the counters: %w", err)
		}
		if err := sumRecords(ctx, c, p, &b); err != nil {
			return fmt.Errorf("read the records: %w", err)
		}
		return nil
	})
	return b, err
}

// redisPage is how many buckets or records are asked for at once.
const redisPage = 1000

func sumCounters(ctx context.Context, c *redis.Client, p place, b *books) error {
	kinds := []string{"avail", "held", "onhand"}
	var buckets []int
	for n := range p.Buckets {
		buckets = append(buckets, n)
	}
	for page := range slices.Chunk(buckets, redisPage) {
		var keys []string
		for _, n := range page {
			for _, kind := range kinds {
				keys = append(keys, p.Prefix+":"+kind+":"+bucketOf(n).String())
			}
		}
		values, err := c.MGet(ctx, keys...).Result()
		if err != nil {
			return err
		}
		for bucket := range slices.Chunk(values, len(kinds)) {
			var n [3]int64 // by kind
			for i, v := range bucket {
				text, _ := v.(string)
				if n[i], err = strconv.ParseInt(text, 10, 64); err != nil {
					return err
				}
			}
			b.left += n[0]
			if n[0] != n[2]-n[1] {
				b.broken = fmt.Sprintf("I4: %d available in a bucket is not %d on hand - %d held", n[0], n[2], n[1])
			}
		}
	}
	return nil
}

func sumRecords(ctx context.Context, c *redis.Client, p place, b *books) error {
	for first := int64(0); ; first += redisPage {
		ids, err := c.ZRange(ctx, p.Prefix+":created", first, first+redisPage-1).Result()
		if err != nil || len(ids) == 0 {
			return err
		}
		records := make([]*redis.SliceCmd, len(ids))
		pipe := c.Pipeline()
		for n, id := range ids {
			records[n] = pipe.HMGet(ctx, p.Prefix+":res:"+id, "state", "lines")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		for n, id := range ids {
			if err := b.addRecord(id, records[n].Val()); err != nil {
				return err
			}
		}
	}
}

// addRecord counts a record by its state and its one line, item:group:quantity.
func (b *books) addRecord(id string, fields []any) error {
	state, _ := fields[0].(string)
	lines, _ := fields[1].(string)
	switch state {
	case "held":
		units, err := strconv.ParseInt(lines[strings.LastIndexByte(lines, ':')+1:], 10, 64)
		if err != nil {
			return fmt.Errorf("reservation %s has the lines %q: %w", id, lines, err)
		}
		b.granted++
		b.held += units
	case "rejected":
		b.rejected++
	default:
		b.broken = fmt.Sprintf("reservation %s is in the index and of state %q", id, state)
	}
	return nil
}
