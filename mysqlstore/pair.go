package mysqlstore

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// pair is the truth's reservation under its locks: MySQL's own record of it, if there is one, and the record of
// another id that has its key.
type pair struct {
	cur    *row
	holder *row
	ls     ledgers
}

// lookPair reads both without locks. The holder is looked for only where the record is not there.
func lookPair(ctx context.Context, r runner, rec reservation.Record) (*pair, error) {
	cur, err := rowByID(ctx, r, qRecord, rec.ID)
	if err != nil || cur != nil {
		return &pair{cur: cur}, err
	}
	holder, err := rowByKey(ctx, r, rec.Shop, rec.Key)
	if err == nil && holder != nil && holder.ID == rec.ID {
		err = errRace // it has just been stored
	}
	return &pair{holder: holder}, err
}

// lockPair locks the ledger rows of both, then both rows in order of id, and makes sure that nothing has changed
// sides since the look without locks.
func lockPair(ctx context.Context, t *tx, rec reservation.Record) (*pair, error) {
	p, err := lookPair(ctx, t.conn, rec)
	if err != nil {
		return nil, err
	}
	buckets := bucketsOf(rec.Shop, rec.Lines)
	if p.cur != nil && p.cur.Shop != rec.Shop {
		return nil, reservation.ErrNotFound
	}
	if p.cur != nil {
		buckets = append(buckets, p.cur.buckets()...)
	}
	if p.holder != nil {
		buckets = append(buckets, p.holder.buckets()...)
	}
	if p.ls, err = lockLedgers(ctx, t, qLedgerLock, buckets); err != nil {
		return nil, err
	}
	if err := lockRows(ctx, t, p, rec); err != nil {
		return nil, err
	}
	return p, nil
}

// lockRows locks both rows in order of id.
func lockRows(ctx context.Context, t *tx, p *pair, rec reservation.Record) error {
	had, holder := p.cur != nil, p.holder
	lockHolder := func() (err error) {
		if holder == nil {
			return nil
		}
		if p.holder, err = rowByID(ctx, t.conn, qRecordLock, holder.ID); err != nil {
			return err
		}
		if p.holder == nil || p.holder.Key != rec.Key {
			return errRace
		}
		return nil
	}
	first := holder != nil && string(holder.ID[:]) < string(rec.ID[:])
	if first {
		if err := lockHolder(); err != nil {
			return err
		}
	}
	var err error
	if p.cur, err = rowByID(ctx, t.conn, qRecordLock, rec.ID); err != nil {
		return err
	}
	if (p.cur != nil) != had {
		return errRace
	}
	if first {
		return nil
	}
	return lockHolder()
}

// takeUnderLocks takes the units of a record that nobody was promised, under the ledgers' locks, or gives errShort.
func (s *Store) takeUnderLocks(ctx context.Context, t *tx, rec reservation.Record, p *pair) error {
	if err := p.unknown(rec); err != nil {
		return err
	}
	takes, units, had, err := lockQuantity(ctx, t, lockSkip, rec.Shop, rec.Lines, p.ls)
	if err != nil {
		return err
	}
	if !had {
		return errShort
	}
	return s.takeLocked(ctx, t, rec.Shop, rec.Lines, takes, units)
}

// unknown gives an error if one of the record's buckets has no ledger row.
func (p *pair) unknown(rec reservation.Record) error {
	for _, l := range rec.Lines {
		if b := l.Bucket(rec.Shop); !p.ls.find(b).known {
			return &reservation.UnknownBucketError{Bucket: b}
		}
	}
	return nil
}

// freeKey takes the key from another id's record, since the truth's id keeps it. That record was answered to
// nobody who counts if it is held and carries no mark: it becomes rejected, and its units go back. (Past its
// retention it is expired.) A marked or final one keeps its state.
func (s *Store) freeKey(ctx context.Context, t *tx, holder *row) error {
	if holder == nil {
		return nil
	}
	if holder.State.TakesUnits() && !holder.Marked {
		if err := s.giveBack(ctx, t, holder.Shop, holder.Lines); err != nil {
			return err
		}
		if holder.purged() {
			holder.State, holder.ExpiredAt = reservation.Expired, t.now
		} else {
			holder.State, holder.Outcome = reservation.Rejected, reservation.RejectedShort
		}
		if err := s.updateRecord(ctx, t, holder); err != nil {
			return err
		}
		if err := s.deleteLines(ctx, t, holder); err != nil {
			return err
		}
	}
	_, err := exec(ctx, t.conn, qKeyDrop, holder.ID[:])
	return err
}

// mergeTruth takes over what the truth answered to the reserve. It is not for a record whose own answer counts: where
// MySQL decides, or one that is marked; unless that answer is overturned, as a rejection is by a hold.
func mergeTruth(cur *row, rec reservation.Record) {
	cur.Outcome, cur.Shortages = rec.Outcome, rec.Shortages
	cur.DecidedBy, cur.Epoch = rec.DecidedBy, rec.Epoch
	cur.CreatedAt, cur.ExpiresAt, cur.PurgeAt = rec.CreatedAt, rec.ExpiresAt, rec.PurgeAt
}

// mergeSteps takes over the steps that the other store knows; those that it does not know stay.
func mergeSteps(cur *row, rec reservation.Record) {
	cur.Late = cur.Late || rec.Late
	if !rec.PinnedAt.IsZero() {
		cur.PinnedAt = rec.PinnedAt
	}
	if !rec.ReleasedAt.IsZero() {
		cur.ReleasedAt = rec.ReleasedAt
	}
	if !rec.ExpiredAt.IsZero() {
		cur.ExpiredAt = rec.ExpiredAt
	}
	if !rec.ClaimedAt.IsZero() {
		cur.ClaimedAt = rec.ClaimedAt
	}
}
