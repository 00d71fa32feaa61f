package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

const (
	// sweepLines bounds the lines of the holds that one transaction expires, and so the locks that it holds.
	sweepLines = 250
	// dueOfBucket is how many due holds of a bucket one refill expires.
	dueOfBucket = 100
	purgeBatch  = 250
	// sweepPages bounds one sweep that finds little but locked and broken rows.
	sweepPages = 20
)

// dueHold is a hold that was seen due, without locks.
type dueHold struct {
	id        reservation.ID
	shop      int64
	lines     []reservation.Line // nil: its cart cannot be read
	expiresAt time.Time
}

// Sweep expires due holds where MySQL decides, and purges final records past their retention. It does limit
// records at most; what is locked or broken is skipped and counted, and never stops what comes after it.
func (s *Store) Sweep(ctx context.Context, st reservation.Stamp, limit int) (reservation.SweepResult, error) {
	var res reservation.SweepResult
	if limit <= 0 {
		return res, &reservation.InvalidError{Field: "limit", Reason: "is not positive: give the size of a batch"}
	}
	ctx = inClass(ctx, backgroundClass)
	if st.Stage.Truth() == reservation.MySQL {
		if err := s.sweepDue(ctx, st, limit, &res); err != nil {
			return res, err
		}
	}
	var err error
	res.Purged, err = s.purge(ctx, st, limit)
	res.More = res.More || res.Purged == limit
	return res, err
}

// sweepDue goes through the due holds in order of expiry, until limit are expired or there are no more. Where it comes to
// the end of its pages in the midst of what it may not expire, the next sweep goes on behind that.
func (s *Store) sweepDue(ctx context.Context, st reservation.Stamp, limit int, res *reservation.SweepResult) error {
	after := s.stuck.behind()
	for range sweepPages {
		page, err := s.due(ctx, qDue, after.expiresAt, after.expiresAt, after.id[:], limit-len(res.Expired))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			s.stuck.goBehind(dueHold{}) // the next sweep begins at the oldest
			return nil
		}
		after = page[len(page)-1]
		seen := len(page)
		exp, err := s.expire(ctx, st, slices.DeleteFunc(page, func(d dueHold) bool { return d.lines == nil }), true)
		res.Expired = append(res.Expired, exp.expired...)
		skipped := seen - len(exp.expired)
		res.Skipped += skipped
		s.metrics.skipped.Add(float64(skipped))
		if err != nil {
			return err
		}
		if res.More = len(res.Expired) >= limit; res.More {
			return nil
		}
	}
	s.stuck.goBehind(after)
	res.More = true
	return nil
}

// due reads candidates without locks. One whose cart cannot be read comes without lines.
func (s *Store) due(ctx context.Context, query string, args ...any) ([]dueHold, error) {
	var due []dueHold
	err := s.read(ctx, "due", func(ctx context.Context) error {
		due = nil
		return each(ctx, s.reads, func(rows *sql.Rows) error {
			var (
				d        dueHold
				id, cart []byte
				err      error
			)
			if err := rows.Scan(&id, &d.shop, &cart, &d.expiresAt); err != nil {
				return asSQL(err)
			}
			copy(d.id[:], id)
			if d.lines, err = unpackCart(cart); err != nil {
				d.lines = nil
				s.logStuck(ctx, "a due hold cannot be read", d.id, err)
			}
			due = append(due, d)
			return nil
		}, query, args...)
	})
	return due, err
}

// expireBucket expires due holds of one bucket, whole.
func (s *Store) expireBucket(ctx context.Context, st reservation.Stamp, b reservation.Bucket) (int, error) {
	return s.shared(ctx, "expire "+b.String(), st, func(ctx context.Context) (int, error) { return s.expireBucketNow(ctx, st, b) })
}

func (s *Store) expireBucketNow(ctx context.Context, st reservation.Stamp, b reservation.Bucket) (int, error) {
	due, err := s.due(ctx, qDueOfBucket, b.Shop, b.Item, b.Group, dueOfBucket)
	if err != nil {
		return 0, err
	}
	due = slices.DeleteFunc(due, func(d dueHold) bool { return d.lines == nil })
	began := time.Now()
	exp, err := s.expire(ctx, st, due, true)
	s.ended.tell(st, exp.expired, began)
	return len(exp.expired), err
}

type expired struct {
	expired []reservation.Record
	skipped int
}

// expire ends due holds in batches. A batch that fails is done again one by one; with skip, what is locked is left
// for the next time, else it is waited for.
func (s *Store) expire(ctx context.Context, st reservation.Stamp, due []dueHold, skip bool) (expired, error) {
	var all expired
	for len(due) > 0 {
		n, lines := 0, 0
		for n < len(due) && (n == 0 || lines+len(due[n].lines) <= sweepLines) {
			lines += len(due[n].lines)
			n++
		}
		batch := due[:n]
		due = due[n:]
		if err := s.pace.pause(ctx, n); err != nil {
			return all, unavailable(err)
		}
		recs, err := s.expireBatch(ctx, st, batch, skip)
		if err == nil {
			all.expired = append(all.expired, recs...)
			all.skipped += len(batch) - len(recs)
			continue
		}
		if !alone(err) || ctx.Err() != nil {
			return all, err
		}
		for _, d := range batch {
			recs, err := s.expireBatch(ctx, st, []dueHold{d}, skip)
			switch {
			case err == nil:
				all.expired = append(all.expired, recs...)
				all.skipped += 1 - len(recs)
			case alone(err) && ctx.Err() == nil:
				all.skipped++
				s.logStuck(ctx, "a due hold cannot be expired", d.id, err)
			default:
				return all, err
			}
		}
	}
	return all, nil
}

// alone tells whether the error of a batch may be one member's own: a broken row, or one that somebody holds.
func alone(err error) bool {
	var (
		ce *reservation.CorruptError
		ue *reservation.UnavailableError
	)
	return errors.As(err, &ce) || errors.As(err, &ue)
}

// expireBatch ends those of these holds that are due under their locks, and gives them.
func (s *Store) expireBatch(ctx context.Context, st reservation.Stamp, batch []dueHold, skip bool) ([]reservation.Record, error) {
	var buckets []reservation.Bucket
	var ids []reservation.ID
	lines := 0
	for _, d := range batch {
		buckets = append(buckets, bucketsOf(d.shop, d.lines)...)
		ids = append(ids, d.id)
		lines += len(d.lines)
	}
	lock := qLedgerLock
	if skip {
		lock = qLedgerTryLock
	}
	if classOf(ctx) == backgroundClass {
		held, leave, err := s.budgets[0].hold(ctx) // before the turn, for which callers wait
		if err != nil {
			return nil, unavailable(err)
		}
		defer leave()
		ctx = held
	}
	attempted, err := s.expireTurn(ctx, st, batch)
	if err != nil {
		return nil, err
	}
	var done []reservation.Record
	var before time.Time // at which an earlier run of the body set them expired, whose COMMIT was not confirmed
	w := work{path: "expire", op: reservation.OpExpire, stamp: st, lines: lines, attempted: attempted}
	err = s.write(ctx, w, func(ctx context.Context, t *tx) error {
		done = nil
		ls, err := lockLedgers(ctx, t, lock, buckets)
		if err != nil {
			return err
		}
		rows, was, err := dueRows(ctx, t, ids, ls, before)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			before = t.now
			if done, err = s.expireRows(ctx, t, rows); err != nil {
				return err
			}
		}
		done = append(done, was...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.metrics.expired.Add(float64(len(done)))
	return done, nil
}

// expireTurn waits for the lane of the first bucket. Claims and releases want the same ledger row, and where they are
// many it is never free for a moment: whoever passes over locked rows would never find it.
func (s *Store) expireTurn(ctx context.Context, st reservation.Stamp, batch []dueHold) (attempted func(), err error) {
	if s.opts.NoLanes || len(batch) == 0 || len(batch[0].lines) == 0 {
		return nil, nil
	}
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	w := s.join(laneKey{ledgerLane, batch[0].lines[0].Bucket(batch[0].shop)}, reservation.OpExpire, &member{
		ctx: ctx, stamp: st, id: batch[0].id, apart: true,
	})
	return w.turn.end, w.err
}

// dueRows locks the reservations, passing over locked ones, and gives those that are still held and due and whose
// ledger rows are all locked by us; and those that were expired at the instant before.
func dueRows(ctx context.Context, t *tx, ids []reservation.ID, ls ledgers, before time.Time) (out []*row, was []reservation.Record, err error) {
	err = each(ctx, t.conn, func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err != nil {
			return err
		}
		if r.State == reservation.Expired && r.ExpiredAt.Equal(before) {
			was = append(was, r.Record)
		}
		if r.State != reservation.Held || r.ExpiresAt.After(r.at) {
			return nil
		}
		for _, b := range r.buckets() {
			if l := ls.find(b); l == nil || !l.known {
				return nil
			}
		}
		out = append(out, r)
		return nil
	}, qRecordsTryLock, jsonHex(ids))
	return out, was, err
}

// expireRows drops the lines of locked holds, raises unpooled and sets their state.
func (s *Store) expireRows(ctx context.Context, t *tx, rows []*row) ([]reservation.Record, error) {
	ids := make([]reservation.ID, len(rows))
	sums := map[reservation.Bucket]int64{}
	lines := int64(0)
	done := make([]reservation.Record, len(rows))
	for n, r := range rows {
		ids[n] = r.ID
		lines += int64(len(r.Lines))
		for _, l := range r.Lines {
			sums[l.Bucket(r.Shop)] += l.Quantity
		}
		done[n] = r.Record
		done[n].State, done[n].ExpiredAt = reservation.Expired, t.now
	}
	moves := make([]move, 0, len(sums))
	for b, q := range sums {
		moves = append(moves, move{bucket: b, unpooled: q})
	}
	if err := s.moveLedgers(ctx, t, moves); err != nil {
		return nil, err
	}
	list := jsonHex(ids)
	if _, err := exec(ctx, t.conn, qRecordsExpire, list, t.now); err != nil {
		return nil, err
	}
	s.step(t, "record")
	n, err := exec(ctx, t.conn, qLinesDeleteMany, list)
	if err == nil && n != lines {
		err = corrupt("%d due holds have %d live lines, their carts have %d (first: %s)", len(rows), n, lines, ids[0])
	}
	s.step(t, "lines")
	return done, err
}

// purge deletes up to limit final records past their retention, in small transactions. Records that carry a mark stay.
func (s *Store) purge(ctx context.Context, st reservation.Stamp, limit int) (int, error) {
	purged := 0
	for purged < limit {
		want := min(limit-purged, purgeBatch)
		n, err := s.purgeOnce(ctx, st, want)
		purged += n
		s.metrics.purged.Add(float64(n))
		if err != nil || n < want {
			return purged, err
		}
		if err := s.pace.pause(ctx, n); err != nil {
			return purged, unavailable(err)
		}
	}
	return purged, nil
}

func (s *Store) purgeOnce(ctx context.Context, st reservation.Stamp, limit int) (int, error) {
	purged := 0
	w := work{path: "purge", op: reservation.OpExpire, stamp: st}
	err := s.write(ctx, w, func(ctx context.Context, t *tx) error {
		purged = 0
		var ids []reservation.ID
		err := each(ctx, t.conn, func(rows *sql.Rows) error {
			var b []byte
			if err := rows.Scan(&b); err != nil {
				return asSQL(err)
			}
			ids = append(ids, reservation.ID(b))
			return nil
		}, qPurgeLock, limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		n, err := exec(ctx, t.conn, qPurge, jsonHex(ids))
		purged = int(n)
		return err
	})
	return purged, err
}
