package legacyredis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// Get reads a reservation. One whose claim is under way shows as claimed once the ledger has its entry.
func (s *Store) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	var rec stored
	err := s.ask(ctx, "get", func(ctx context.Context) error {
		recs, now, err := s.read(ctx, []string{id.String()}, believe)
		if err != nil {
			return err
		}
		if len(recs) == 0 || recs[0].Shop != shop || gone(recs[0], now) {
			return reservation.ErrNotFound
		}
		rec = recs[0]
		return nil
	})
	if err != nil {
		return reservation.Record{}, err
	}
	return s.asSettled(ctx, rec.Record), nil
}

// asSettled shows a pinned record as what the ledger has made of it, where its last step here is still under way.
// If the ledger does not answer, claiming is what is known.
func (s *Store) asSettled(ctx context.Context, rec reservation.Record) reservation.Record {
	if rec.State != reservation.Claiming {
		return rec
	}
	known, err := s.ledger.Lookup(ctx, rec.Shop, rec.ID)
	if err == nil && known.State.Rank() > reservation.Expired.Rank() {
		rec.State, rec.ClaimedAt, rec.ReleasedAt = known.State, known.ClaimedAt, known.ReleasedAt
	}
	return rec
}

// gone: past its retention a record is unknown, whether or not the purge has run; but a pin stays until it has ended.
func gone(r stored, now time.Time) bool {
	return !r.PurgeAt.After(now) && r.State != reservation.Claiming
}

// trust says what a read does on a Redis that may have lost writes.
type trust uint8

const (
	// believe: it is refused there.
	believe trust = iota + 1
	// lookOn: it reads what is there: a restore.
	lookOn
)

// read fetches records that are there, with Redis's time.
func (s *Store) read(ctx context.Context, ids []string, how trust) ([]stored, time.Time, error) {
	pipe := s.client.Pipeline()
	asked := s.askTrust(ctx, pipe)
	clock := pipe.Time(ctx)
	cmds := make([]*redis.MapStringStringCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.HGetAll(ctx, s.keys.reservation(id))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	now, err := clock.Result()
	if err != nil {
		return nil, now, err
	}
	if how == believe {
		if err := s.trusted(ctx, asked); err != nil {
			return nil, now, err
		}
	}
	out := make([]stored, 0, len(ids))
	for i, id := range ids {
		m, err := cmds[i].Result()
		if err != nil {
			return nil, now, s.wrongType(err, s.keys.reservation(id))
		}
		if len(m) == 0 {
			continue
		}
		parsed, err := reservation.ParseID(id)
		if err != nil {
			return nil, now, &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("%q is no reservation id", id)}
		}
		rec, err := s.keys.decodeRecord(parsed, m)
		if err != nil {
			return nil, now, err
		}
		out = append(out, rec)
	}
	return out, now, nil
}

func (s *Store) wrongType(err error, key string) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return &reservation.CorruptError{Store: reservation.Redis, What: key + " is of the wrong type"}
	}
	return err
}

// Availability reads a bucket's figures in one atomic step.
func (s *Store) Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	if err := b.Validate(); err != nil {
		return reservation.Availability{}, err
	}
	a := reservation.Availability{Bucket: b, Truth: reservation.Redis}
	known := false
	err := s.ask(ctx, "availability", func(ctx context.Context) error {
		var err error
		known, err = s.counters(ctx, b, &a.Available, &a.Held, &a.OnHand, &a.Version)
		return err
	})
	if err != nil {
		return reservation.Availability{}, err
	}
	if !known {
		return reservation.Availability{}, &reservation.UnknownBucketError{Bucket: b}
	}
	return a, nil
}

// counters reads a bucket's counters in the order of counterKinds.
func (s *Store) counters(ctx context.Context, b reservation.Bucket, to ...*int64) (known bool, err error) {
	names := make([]string, 0, len(to))
	for _, kind := range counterKinds() {
		names = append(names, s.keys.counter(kind, b))
	}
	pipe := s.client.Pipeline()
	asked, read := s.askTrust(ctx, pipe), pipe.MGet(ctx, names...)
	_, _ = pipe.Exec(ctx) // each command has its own error
	vals, err := read.Result()
	if err == nil {
		err = s.trusted(ctx, asked)
	}
	if err != nil {
		return false, err
	}
	for i, v := range vals {
		text, ok := v.(string)
		if !ok {
			return false, s.absent(ctx, names[i], i == 0)
		}
		if *to[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return false, &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("%s holds %q, not a whole number", names[i], text)}
		}
	}
	return true, nil
}

// absent explains why a counter gave no value: nil where it may be missing and is.
func (s *Store) absent(ctx context.Context, key string, mayBeMissing bool) error {
	kind, err := s.client.Type(ctx, key).Result()
	switch {
	case err != nil:
		return err
	case kind == "none" && mayBeMissing:
		return nil
	case kind == "none":
		return &reservation.CorruptError{Store: reservation.Redis, What: key + " is missing beside its counter of available stock"}
	default:
		return &reservation.CorruptError{Store: reservation.Redis, What: key + " is a " + kind + ", not a string"}
	}
}

// Walk pages through the reservations in order of id. Records past their retention are left out.
func (s *Store) Walk(ctx context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	return s.walk(ctx, after, limit, believe)
}

func (s *Store) walk(ctx context.Context, after reservation.ID, limit int, how trust) ([]reservation.Record, error) {
	out := make([]reservation.Record, 0, max(limit, 0))
	from := after.String()
	for len(out) < limit {
		ids, err := s.idsAfter(ctx, from, limit-len(out))
		if err != nil {
			return nil, err
		}
		// Without ids too: that there are none has to be believed as well.
		err = s.ask(ctx, "walk", func(ctx context.Context) error {
			recs, now, err := s.read(ctx, ids, how)
			if err != nil {
				return err
			}
			for _, r := range recs {
				if !gone(r, now) {
					out = append(out, r.Record)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			break
		}
		from = ids[len(ids)-1]
	}
	return out, nil
}

// idsAfter gives the next ids in order of creation.
func (s *Store) idsAfter(ctx context.Context, from string, limit int) ([]string, error) {
	var ids []string
	err := s.ask(ctx, "walk", func(ctx context.Context) error {
		var err error
		ids, err = s.client.ZRangeArgs(ctx, redis.ZRangeArgs{
			Key: s.keys.created(), ByLex: true, Start: "(" + from, Stop: "+", Count: int64(limit),
		}).Result()
		if err != nil {
			return s.wrongType(err, s.keys.created())
		}
		return nil
	})
	return ids, err
}
