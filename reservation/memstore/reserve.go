package memstore

import (
	"context"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// Reserve grants all lines or none, and keeps the answer for replays.
func (s *Store) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	unlock, err := s.enter(ctx, st)
	if err != nil {
		return reservation.Result{}, err
	}
	defer unlock()
	now := s.now()

	key := shopKey{req.Shop, req.Key}
	if old, ok := s.known(req.Shop, s.keys[key], now); ok {
		if old.Hash != req.Hash {
			return reservation.Result{}, reservation.ErrKeyConflict
		}
		return reservation.Result{Record: clone(old), Replayed: true}, nil
	}
	if _, taken := s.records[id]; taken {
		return reservation.Result{}, reservation.ErrKeyConflict
	}
	if req.Frozen || s.fence.Frozen {
		return reservation.Result{}, reservation.ErrFrozen
	}
	levels, short, err := s.look(req)
	if err != nil {
		return reservation.Result{}, err
	}

	rec := &reservation.Record{
		ID: id, Shop: req.Shop, Key: req.Key, Hash: req.Hash, Lines: slices.Clone(req.Lines),
		Outcome: reservation.Granted, State: reservation.Held,
		DecidedBy: s.opts.Truth, Epoch: st.Epoch,
		CreatedAt: now, ExpiresAt: now.Add(req.TTL), PurgeAt: now.Add(req.TTL + s.opts.Retention),
	}
	if len(short) > 0 {
		rec.Outcome, rec.State, rec.Shortages = reservation.RejectedShort, reservation.Rejected, short
	} else {
		s.take(rec)
	}
	if old, ok := s.records[s.keys[key]]; ok {
		old.Key = "" // past its retention: the newer record takes the key over
	}
	s.records[id] = rec
	s.keys[key] = id
	return reservation.Result{Record: clone(rec), Levels: levels}, nil
}

// look reads what is available of each line, and which lines are short.
func (s *Store) look(req reservation.Request) ([]reservation.Level, []reservation.Shortage, error) {
	var (
		levels []reservation.Level
		short  []reservation.Shortage
	)
	for _, l := range req.Lines {
		b, ok := s.buckets[l.Bucket(req.Shop)]
		if !ok {
			return nil, nil, &reservation.UnknownBucketError{Bucket: l.Bucket(req.Shop)}
		}
		levels = append(levels, reservation.Level{Bucket: l.Bucket(req.Shop), Available: b.available})
		if b.available < l.Quantity {
			// Where force took more than there was, a buyer is told of nothing, not of less than nothing.
			short = append(short, reservation.Shortage{Item: l.Item, Group: l.Group, Requested: l.Quantity, Available: max(0, b.available)})
		}
	}
	return levels, short, nil
}

// Release gives a hold's units back, once.
func (s *Store) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	unlock, err := s.enter(ctx, st)
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	defer unlock()
	now := s.now()

	rec, ok := s.known(shop, id, now)
	if !ok {
		return reservation.ReleaseResult{}, reservation.ErrNotFound
	}
	var res reservation.ReleaseResult
	switch rec.State {
	case reservation.Held:
		s.giveBack(rec)
	case reservation.Expired:
		res.WasExpired = true
	case reservation.Released:
		return reservation.ReleaseResult{Record: clone(rec), Replayed: true, WasExpired: !rec.ExpiredAt.IsZero()}, nil
	default:
		return reservation.ReleaseResult{}, &reservation.ConflictError{Op: reservation.OpRelease, State: rec.State}
	}
	rec.State, rec.ReleasedAt = reservation.Released, now
	res.Record = clone(rec)
	return res, nil
}

// Sweep expires due holds and forgets records past their retention, limit of them at most.
func (s *Store) Sweep(ctx context.Context, st reservation.Stamp, limit int) (reservation.SweepResult, error) {
	unlock, err := s.enter(ctx, st)
	if err != nil {
		return reservation.SweepResult{}, err
	}
	defer unlock()
	now := s.now()

	var res reservation.SweepResult
	for _, rec := range s.inOrder() {
		due := rec.State == reservation.Held && !now.Before(rec.ExpiresAt)
		purge := !now.Before(rec.PurgeAt)
		if !due && !purge {
			continue
		}
		if len(res.Expired)+res.Purged >= limit {
			res.More = true
			break
		}
		if due {
			s.giveBack(rec)
			rec.State, rec.ExpiredAt = reservation.Expired, now
			res.Expired = append(res.Expired, clone(rec))
			continue // its purge, if that is due too, is the next sweep's
		}
		s.forget(rec)
		res.Purged++
	}
	return res, nil
}

func (s *Store) forget(rec *reservation.Record) {
	key := shopKey{rec.Shop, rec.Key}
	if s.keys[key] == rec.ID {
		delete(s.keys, key)
	}
	delete(s.records, rec.ID)
}
