package legacyredis

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// Inspect reads everything that Redis holds of the pod, raw. It is exact only where nothing is in flight.
func (s *Store) Inspect(ctx context.Context) (reservation.Snapshot, error) {
	snap := reservation.Snapshot{Store: reservation.Redis}
	var err error
	if snap.Fence, err = s.ReadFence(ctx); err != nil {
		return snap, err
	}
	v := inspection{store: s, buckets: map[reservation.Bucket]map[string]string{}, ids: map[string]bool{}, index: map[string]string{}, adj: map[string]bool{}, done: map[string]bool{}}
	if err := s.scan(ctx, func(keys []string) (bool, error) { return true, v.page(ctx, keys) }); err != nil {
		return snap, err
	}
	if err := v.members(ctx); err != nil {
		return snap, err
	}
	v.judge()
	slices.SortFunc(v.records, func(a, b reservation.Record) int { return slices.Compare(a.ID[:], b.ID[:]) })
	snap.Records, snap.Buckets = v.records, v.states()
	slices.Sort(v.orphans)
	snap.Orphans = slices.Compact(v.orphans)
	return snap, nil
}

// inspection gathers what the pages of a scan hold.
type inspection struct {
	store   *Store
	buckets map[reservation.Bucket]map[string]string // bucket -> kind of counter -> value
	ids     map[string]bool                          // records seen
	records []reservation.Record
	index   map[string]string // key index -> id
	adj     map[string]bool   // members of pinned adjustments
	done    map[string]bool   // buckets with changes that were applied before their turn
	created map[string]bool
	exp     map[string]bool
	orphans []string
}

func (v *inspection) orphan(format string, args ...any) {
	v.orphans = append(v.orphans, fmt.Sprintf(format, args...))
}

// page reads the keys of one page, by kind.
func (v *inspection) page(ctx context.Context, keys []string) error {
	var ids, plain []string
	for _, key := range keys {
		kind, rest := v.store.keys.split(key)
		switch kind {
		case "res":
			if !v.ids[rest] {
				v.ids[rest] = true
				ids = append(ids, rest)
			}
		case "key", "avail", "held", "onhand", "ver":
			plain = append(plain, key)
		case "adj":
			v.adj[adjMember+rest] = true
		case "done":
			v.done[rest] = true
		case "fence", "exp", "created", "kill", "routers", "audit", "restore", "replay", "catchup":
		default:
			v.orphan("%s is no key of ours", key)
		}
	}
	if err := v.readRecords(ctx, ids); err != nil {
		return err
	}
	return v.readPlain(ctx, plain)
}

// readRecords keeps the records that can be read, and names the others.
func (v *inspection) readRecords(ctx context.Context, ids []string) error {
	s := v.store
	return s.ask(ctx, "inspect", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.MapStringStringCmd, len(ids))
		for i, id := range ids {
			cmds[i] = pipe.HGetAll(ctx, s.keys.reservation(id))
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		for i, id := range ids {
			m, err := cmds[i].Result()
			switch {
			case redis.HasErrorPrefix(err, "WRONGTYPE"):
				v.orphan("%s is no hash", s.keys.reservation(id))
				continue
			case err != nil:
				return err
			case len(m) == 0: // it ended since the scan
				delete(v.ids, id)
				continue
			}
			v.keep(id, m)
		}
		return nil
	})
}

func (v *inspection) keep(id string, m map[string]string) {
	parsed, err := reservation.ParseID(id)
	if err != nil {
		v.orphan("%s has no id in its name", v.store.keys.reservation(id))
		return
	}
	rec, err := v.store.keys.decodeRecord(parsed, m)
	if err != nil {
		v.orphan("%s: %v", v.store.keys.reservation(id), err)
		return
	}
	v.records = append(v.records, rec.Record)
}

// readPlain reads strings: counters and key indexes.
func (v *inspection) readPlain(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	s := v.store
	return s.ask(ctx, "inspect", func(ctx context.Context) error {
		vals, err := s.client.MGet(ctx, keys...).Result()
		if err != nil {
			return err
		}
		for i, key := range keys {
			text, ok := vals[i].(string)
			if !ok {
				v.orphan("%s is no string", key)
				continue
			}
			kind, rest := s.keys.split(key)
			if kind == "key" {
				v.index[key] = text
				continue
			}
			b, ok := parseBucket(rest)
			if !ok {
				v.orphan("%s names no bucket", key)
				continue
			}
			if v.buckets[b] == nil {
				v.buckets[b] = map[string]string{}
			}
			v.buckets[b][kind] = text
		}
		return nil
	})
}

// members reads the two sorted sets.
func (v *inspection) members(ctx context.Context) error {
	v.created, v.exp = map[string]bool{}, map[string]bool{}
	for key, to := range map[string]map[string]bool{v.store.keys.created(): v.created, v.store.keys.exp(): v.exp} {
		var cursor uint64
		for {
			err := v.store.ask(ctx, "inspect", func(ctx context.Context) error {
				pairs, next, err := v.store.client.ZScan(ctx, key, cursor, "", scanPage).Result()
				if err != nil {
					return v.store.wrongType(err, key)
				}
				for i := 0; i < len(pairs); i += 2 {
					to[pairs[i]] = true
				}
				cursor = next
				return nil
			})
			if err != nil {
				return err
			}
			if cursor == 0 {
				break
			}
		}
	}
	return nil
}

// judge names what belongs to nothing.
func (v *inspection) judge() {
	k := v.store.keys
	for key, id := range v.index {
		if !v.ids[id] {
			v.orphan("%s points to %s, which is not there", key, id)
		}
	}
	for id := range v.created {
		if !v.ids[id] {
			v.orphan("%s holds %s, which is not there", k.created(), id)
		}
	}
	for member := range v.exp {
		if !v.ids[member] && !v.adj[member] {
			v.orphan("%s holds %s, which is not there", k.exp(), member)
		}
	}
	for id := range v.ids {
		if !v.created[id] || !v.exp[id] {
			v.orphan("%s is in no index by creation or by time", k.reservation(id))
		}
	}
	for name := range v.done {
		if b, ok := parseBucket(name); !ok || v.buckets[b] == nil {
			v.orphan("%sdone:%s is of no bucket that is there", k.prefix, name)
		}
	}
	for member := range v.adj {
		if !v.exp[member] {
			v.orphan("%s%s is in no index by time", k.prefix, member)
		}
	}
	for _, r := range v.records {
		if index := fmt.Sprintf("%skey:%d:%s", k.prefix, r.Shop, r.Key); r.Key != "" && v.index[index] != r.ID.String() {
			v.orphan("%s: its key does not lead to it", k.reservation(r.ID.String()))
		}
	}
}

// states gives the buckets in order, and names halves and what is no number.
func (v *inspection) states() []reservation.BucketState {
	out := make([]reservation.BucketState, 0, len(v.buckets))
	for b, vals := range v.buckets {
		st := reservation.BucketState{Bucket: b}
		for i, to := range []*int64{&st.Available, &st.Held, &st.OnHand, &st.Version} {
			kind := counterKinds()[i]
			text, ok := vals[kind]
			if !ok {
				v.orphan("%s is missing beside its siblings", v.store.keys.counter(kind, b))
				continue
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				v.orphan("%s holds %q, not a whole number", v.store.keys.counter(kind, b), text)
			}
			*to = n
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b reservation.BucketState) int { return a.Bucket.Compare(b.Bucket) })
	return out
}
