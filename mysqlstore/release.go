package mysqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Release gives a hold's units back, once. An expired one becomes released and moves none. A claimed, refused or
// rejected one is a *ConflictError.
func (s *Store) Release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	return s.release(ctx, st, shop, id, false)
}

// release is Release; with mark, the outcome is answered without Redis.
func (s *Store) release(ctx context.Context, st reservation.Stamp, shop int64, id reservation.ID, mark bool) (reservation.ReleaseResult, error) {
	seen, err := s.lookForEnding(ctx, shop, id)
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	if seen == nil {
		return reservation.ReleaseResult{}, s.goneOrUnknown(ctx, shop, id)
	}
	told := s.endInLane(ctx, st, reservation.OpRelease, seen, mark)
	res, err := told.release, told.err
	if !told.answered() {
		res, err = s.releaseAlone(ctx, st, seen, mark, told)
	}
	if errors.Is(err, errGone) {
		return s.release(ctx, st, shop, id, mark) // it is not looked for in memory any more
	}
	return res, err
}

// releaseAlone is a release in a transaction of its own, after what its lane told it.
func (s *Store) releaseAlone(ctx context.Context, st reservation.Stamp, seen *row, mark bool, told word) (reservation.ReleaseResult, error) {
	var res reservation.ReleaseResult
	id := seen.ID
	done := told.done // by an earlier transaction, whose COMMIT was not confirmed
	w := told.work(work{path: "release", op: reservation.OpRelease, stamp: st, id: id, lines: len(seen.Lines)})
	err := s.write(ctx, w, func(ctx context.Context, t *tx) error {
		_, cur, err := lockReservation(ctx, t, seen)
		if err != nil {
			return err
		}
		fresh := mark && !cur.Marked
		cur.Marked = cur.Marked || mark
		if res, err = s.releaseRow(ctx, t, cur); err == nil && fresh {
			err = s.markOutcome(ctx, t, id, res.Replayed)
		}
		if res.Replayed && res.Record.ReleasedAt.Equal(done) {
			res.Replayed = false // it was committed after all
		}
		done = res.Record.ReleasedAt
		return err
	})
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	return res, nil
}

// goneOrUnknown tells a purged claim, which cannot be released, from an id that was never there.
func (s *Store) goneOrUnknown(ctx context.Context, shop int64, id reservation.ID) error {
	if _, err := s.claimFromEntries(ctx, s.reads, shop, id); err != nil {
		return err
	}
	return &reservation.ConflictError{Op: reservation.OpRelease, State: reservation.Claimed}
}

func (s *Store) releaseRow(ctx context.Context, t *tx, cur *row) (reservation.ReleaseResult, error) {
	switch cur.State {
	case reservation.Released:
		return reservation.ReleaseResult{Record: cur.Record, Replayed: true, WasExpired: !cur.ExpiredAt.IsZero()}, nil
	case reservation.Held, reservation.Expired:
	default:
		return reservation.ReleaseResult{}, &reservation.ConflictError{Op: reservation.OpRelease, State: cur.State}
	}
	held := cur.State == reservation.Held
	if held {
		if err := s.giveBack(ctx, t, cur.Shop, cur.Lines); err != nil {
			return reservation.ReleaseResult{}, err
		}
	}
	cur.State = reservation.Released
	cur.ReleasedAt = later(t.now, cur.at)
	if err := s.updateRecord(ctx, t, cur); err != nil {
		return reservation.ReleaseResult{}, err
	}
	if held {
		if err := s.deleteLines(ctx, t, cur); err != nil {
			return reservation.ReleaseResult{}, err
		}
	}
	return reservation.ReleaseResult{Record: cur.Record, WasExpired: !held}, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
