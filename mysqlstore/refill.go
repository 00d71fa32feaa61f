package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"golang.org/x/sync/singleflight"

	"github.com/twinhold/twinhold/reservation"
)

// maxRefills is how many pools one cart refills: each is a transaction of some milliseconds. A cart that finds more
// of them low is served from unpooled.
const maxRefills = 8

// room is a cart that found too few free units.
type room struct {
	st     reservation.Stamp
	shop   int64
	lines  []reservation.Line
	large  bool
	expire bool // MySQL decides, so due holds may be ended here
}

// roomResult says what to do now: with neither field set, try again at once.
type roomResult struct {
	soldOut []level // not nil: the ledger says so, and this is what was seen, by line
	seen    *sighting
	busy    bool // there is enough, and others hold it for the moment
	ledger  bool // many pools are low: take from unpooled, as a large cart does
}

// makeRoom looks without locks why a cart found too few units. Enough visible ones are busy. Too few are refilled;
// before that, and before sold out is said, the bucket's due holds are expired.
func (s *Store) makeRoom(ctx context.Context, r room) (roomResult, error) {
	ls, seen, err := s.lookFor(ctx, r)
	if err != nil {
		return roomResult{}, err
	}
	var short, low []reservation.Bucket
	for n, l := range ls {
		q := r.lines[n].Quantity
		switch {
		case !l.known:
			return roomResult{}, &reservation.UnknownBucketError{Bucket: l.bucket}
		case l.available() < q:
			short = append(short, l.bucket)
		case !r.large && l.pool < q:
			low = append(low, l.bucket)
		}
	}
	if len(short) > 0 {
		freed, err := s.expireOf(ctx, r, short)
		if err != nil || freed {
			return roomResult{}, err
		}
		if seen != nil {
			s.soldOut.remember(*seen)
		}
		return roomResult{soldOut: ls, seen: seen}, nil
	}
	if len(low) == 0 {
		return roomResult{busy: true}, nil
	}
	if len(low) > maxRefills {
		return roomResult{ledger: true}, nil
	}
	return roomResult{}, s.refillAll(ctx, r, low)
}

// lookFor counts the buckets of a cart without locks. Those who want one and the same bucket look together.
func (s *Store) lookFor(ctx context.Context, r room) ([]level, *sighting, error) {
	if len(r.lines) == 1 && !s.opts.NoLanes {
		g, err := s.look(ctx, r.lines[0].Bucket(r.shop))
		return []level{g.level}, &g, err
	}
	var ls []level
	err := s.read(ctx, "count", func(ctx context.Context) (err error) {
		ls, err = countLevels(ctx, s.reads, bucketsOf(r.shop, r.lines))
		return err
	})
	return ls, nil, err
}

// expireOf expires the due holds of these buckets, if MySQL decides, and tells whether there were any.
func (s *Store) expireOf(ctx context.Context, r room, buckets []reservation.Bucket) (bool, error) {
	freed := false
	for _, b := range buckets {
		if !r.expire {
			return false, nil
		}
		n, err := s.expireBucket(ctx, r.st, b)
		if err != nil {
			return false, err
		}
		freed = freed || n > 0
	}
	return freed, nil
}

// refillAll refills buckets one by one, in primary-key order.
func (s *Store) refillAll(ctx context.Context, r room, buckets []reservation.Bucket) error {
	if _, err := s.expireOf(ctx, r, buckets); err != nil {
		return err
	}
	for _, b := range buckets {
		if err := s.refill(ctx, r.st, b); err != nil {
			return err
		}
	}
	return nil
}

// refill fills one bucket's pool from unpooled, because somebody waits for it.
func (s *Store) refill(ctx context.Context, st reservation.Stamp, b reservation.Bucket) error {
	_, err := s.shared(ctx, "refill "+b.String(), st, func(ctx context.Context) (int, error) {
		added, err := s.fill(ctx, st, b, int64(s.opts.PoolSize))
		if err == nil && added > 0 {
			s.metrics.refills.WithLabelValues("inline").Inc()
		}
		return int(added), err
	})
	return err
}

// shared runs upkeep once for all callers of this process that want it at the same time and with the same stamp.
func (s *Store) shared(ctx context.Context, what string, st reservation.Stamp, do func(context.Context) (int, error)) (int, error) {
	return coalesce(ctx, s, &s.upkeep, fmt.Sprintf("%s %d %s", what, st.Epoch, st.Stage), do)
}

// coalesce does something once for all callers that want it at the same time. It runs under a context of its own, so
// that the first one's giving up does not fail the others.
func coalesce[T any](ctx context.Context, s *Store, group *singleflight.Group, key string, do func(context.Context) (T, error)) (T, error) {
	var none T
	ch := group.DoChan(key, func() (any, error) {
		if !s.enter() {
			return none, unavailable(errClosed)
		}
		defer s.running.Done()
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.WriteTimeout+s.opts.LockWait)
		defer cancel()
		defer context.AfterFunc(s.life, cancel)()
		return do(own)
	})
	select {
	case res := <-ch:
		v, _ := res.Val.(T)
		return v, res.Err
	case <-ctx.Done():
		return none, unavailable(context.Cause(ctx))
	}
}

// fill inserts missing ids of 1..PoolSize, as far as unpooled goes and not more than limit, and tells how many.
func (s *Store) fill(ctx context.Context, st reservation.Stamp, b reservation.Bucket, limit int64) (int64, error) {
	ctx = inClass(ctx, refillClass)
	f := &filling{s: s, bucket: b, limit: limit}
	w := work{path: "refill", op: reservation.OpReserve, stamp: st}
	err := s.attempts(ctx, w, func(ctx context.Context) error { return s.togetherOnce(ctx, w, f) })
	var uo *reservation.UnknownOutcomeError
	if errors.As(err, &uo) {
		return 0, unavailable(err) // a refill promises nothing to anybody; the next look sees what became of it
	}
	if err != nil {
		return 0, err
	}
	added := int64(len(f.added))
	if added > 0 {
		s.metrics.refillUnits.Add(float64(added))
		s.drains.counted(b, f.pool+added, f.taken)
	}
	return added, nil
}

// filling is the transaction that fills a bucket's pool. An id that a transaction has taken and not yet committed is
// still visible here, so it is never given out twice.
type filling struct {
	s      *Store
	bucket reservation.Bucket
	limit  int64

	taken int64 // before, by this process
	ls    ledgers
	there []bool // by id
	pool  int64  // units that are there
	added []int64
}

func (f *filling) opening() []statement {
	f.taken = f.s.drains.takenOf(f.bucket)
	f.ls, f.there, f.pool, f.added = newLedgers([]reservation.Bucket{f.bucket}), make([]bool, f.s.opts.PoolSize+1), 0, nil
	return []statement{
		f.ls.lock(),
		{query: qUnitIDs, args: []any{f.bucket.Shop, f.bucket.Item, f.bucket.Group}, scan: func(rows *sql.Rows) error {
			var id int
			if err := rows.Scan(&id); err != nil {
				return asSQL(err)
			}
			f.pool++
			if id >= 1 && id < len(f.there) {
				f.there[id] = true
			}
			return nil
		}},
	}
}

func (f *filling) decide(t *tx) ([]statement, error) {
	if err := f.ls.unknown(); err != nil {
		return nil, err
	}
	most := min(f.limit, int64(f.s.opts.PoolSize)-f.pool, f.ls[0].unpooled)
	for id := 1; id < len(f.there) && int64(len(f.added)) < most; id++ {
		if !f.there[id] {
			f.added = append(f.added, int64(id))
		}
	}
	n := len(f.added)
	if n == 0 {
		return nil, nil
	}
	b := f.bucket
	return []statement{
		t.moves([]move{{bucket: b, unpooled: -int64(n)}}),
		change("units", n, "units of the refill", qUnitsInsert, b.Shop, b.Item, b.Group, jsonList(f.added)),
	}, nil
}

// Trim gives units back to unpooled that a bucket's pool has above its size, or that it has although unpooled is
// negative. It reports how many.
func (s *Store) Trim(ctx context.Context, st reservation.Stamp, b reservation.Bucket) (int64, error) {
	ctx = inClass(ctx, refillClass)
	var trimmed int64
	w := work{path: "trim", op: reservation.OpAdjust, stamp: st}
	err := s.write(ctx, w, func(ctx context.Context, t *tx) error {
		trimmed = 0
		ls, err := lockLedgers(ctx, t, qLedgerLock, []reservation.Bucket{b})
		if err != nil {
			return err
		}
		if err := ls.unknown(); err != nil {
			return err
		}
		counted, err := countLevels(ctx, t.conn, []reservation.Bucket{b})
		if err != nil {
			return err
		}
		pool := counted[0].pool
		surplus := max(pool-int64(s.opts.PoolSize), min(-ls[0].unpooled, pool), 0)
		if surplus == 0 {
			return nil
		}
		units, err := s.topUnits(ctx, t, b, surplus)
		if err != nil || len(units) == 0 {
			return err
		}
		trimmed = int64(len(units))
		if err := s.moveLedgers(ctx, t, []move{{bucket: b, unpooled: trimmed}}); err != nil {
			return err
		}
		return s.deleteUnits(ctx, t, units)
	})
	return trimmed, err
}

// topUnits locks the units with the highest ids; those that others hold are left alone.
func (s *Store) topUnits(ctx context.Context, t *tx, b reservation.Bucket, n int64) ([][]int64, error) {
	var units [][]int64
	err := each(ctx, t.conn, func(rows *sql.Rows) error {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return asSQL(err)
		}
		units = append(units, []int64{b.Shop, b.Item, b.Group, id})
		return nil
	}, qUnitsTop, b.Shop, b.Item, b.Group, n)
	return units, err
}
