package mysqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// row is one reservation as its row says it.
type row struct {
	reservation.Record
	judged *verdict
	at     time.Time // MySQL's clock when the row was read, after its lock was had
}

func (r *row) purged() bool { return !r.PurgeAt.After(r.at) }

func (r *row) buckets() []reservation.Bucket { return bucketsOf(r.Shop, r.Lines) }

func bucketsOf(shop int64, lines []reservation.Line) []reservation.Bucket {
	bs := make([]reservation.Bucket, len(lines))
	for n, l := range lines {
		bs[n] = l.Bucket(shop)
	}
	return bs
}

// scanRow reads recordColumns.
func scanRow(rows *sql.Rows) (*row, error) {
	var (
		r                                   row
		id, key, hash, cart, shorts, judged []byte
		outcome, state, truth               string
		pinned, released, expired, claimed  sql.NullTime
	)
	err := rows.Scan(&id, &r.Shop, &key, &hash, &cart, &outcome, &shorts, &state, &truth, &r.Epoch, &r.Marked,
		&judged, &r.Late, &r.CreatedAt, &r.ExpiresAt, &r.PurgeAt, &pinned, &released, &expired, &claimed, &r.at)
	if err != nil {
		return nil, asSQL(err)
	}
	copy(r.ID[:], id)
	copy(r.Hash[:], hash)
	r.Key = string(key)
	r.PinnedAt, r.ReleasedAt, r.ExpiredAt, r.ClaimedAt = pinned.Time, released.Time, expired.Time, claimed.Time
	bad := func(what string, err error) error { return corrupt("reservation %s: %s: %v", r.ID, what, err) }
	if r.Lines, err = unpackCart(cart); err != nil {
		return &r, bad("cart", err)
	}
	if r.Shortages, err = unpackShortages(shorts); err != nil {
		return &r, bad("shortages", err)
	}
	if r.judged, err = unpackVerdict(judged); err != nil {
		return &r, bad("judged", err)
	}
	if r.State, err = reservation.ParseState(state); err != nil {
		return &r, bad("state", err)
	}
	if r.Outcome, err = parseOutcome(outcome); err != nil {
		return &r, bad("outcome", err)
	}
	if r.DecidedBy, err = parseTruth(truth); err != nil {
		return &r, bad("decided_by", err)
	}
	return &r, nil
}

func parseOutcome(s string) (reservation.Decision, error) {
	for _, d := range []reservation.Decision{reservation.Granted, reservation.RejectedShort} {
		if d.String() == s {
			return d, nil
		}
	}
	return 0, corrupt("unknown outcome %q", s)
}

func parseTruth(s string) (reservation.Truth, error) {
	for _, t := range []reservation.Truth{reservation.Redis, reservation.MySQL} {
		if t.String() == s {
			return t, nil
		}
	}
	return 0, corrupt("unknown store %q", s)
}

// rowOf runs a query for one reservation; nil if there is none.
func rowOf(ctx context.Context, r runner, query string, args ...any) (*row, error) {
	var found *row
	err := each(ctx, r, func(rows *sql.Rows) (err error) {
		found, err = scanRow(rows)
		return err
	}, query, args...)
	if err != nil {
		return nil, err
	}
	return found, nil
}

func rowByID(ctx context.Context, r runner, query string, id reservation.ID) (*row, error) {
	return rowOf(ctx, r, query, id[:])
}

func rowByKey(ctx context.Context, r runner, shop int64, key string) (*row, error) {
	if key == "" {
		return nil, nil
	}
	return rowOf(ctx, r, qRecordByKey, shop, []byte(key))
}

// insertRecord writes a new reservation's row, its live lines if it holds units, and its mark if it has one.
func (s *Store) insertRecord(ctx context.Context, t *tx, rec reservation.Record, judged *verdict) error {
	j, err := judged.pack()
	if err != nil {
		return err
	}
	var key []byte
	if rec.Key != "" {
		key = []byte(rec.Key)
	}
	_, err = exec(ctx, t.conn, qRecordInsert, rec.ID[:], rec.Shop, key, rec.Hash[:], packCart(rec.Lines),
		rec.Outcome.String(), packShortages(rec.Shortages), rec.State.String(), rec.DecidedBy.String(), rec.Epoch, rec.Marked, j,
		rec.Late, rec.CreatedAt, rec.ExpiresAt, rec.PurgeAt, orNull(rec.PinnedAt), orNull(rec.ReleasedAt),
		orNull(rec.ExpiredAt), orNull(rec.ClaimedAt))
	if err != nil {
		return err
	}
	s.step(t, "record")
	if rec.State.TakesUnits() {
		if err := s.insertLines(ctx, t, rec.Shop, rec.ID, rec.Lines); err != nil {
			return err
		}
	}
	if !rec.Marked {
		return nil
	}
	return s.insertMark(ctx, t, rec.ID)
}

// updateRecord writes everything of a locked row that can change, but its key. A mark is the caller's to insert.
func (s *Store) updateRecord(ctx context.Context, t *tx, r *row) error {
	j, err := r.judged.pack()
	if err != nil {
		return err
	}
	n, err := exec(ctx, t.conn, qRecordUpdate, r.Outcome.String(), packShortages(r.Shortages), r.State.String(),
		r.DecidedBy.String(), r.Epoch, r.Marked, j, r.Late, r.CreatedAt, r.ExpiresAt, r.PurgeAt, orNull(r.PinnedAt),
		orNull(r.ReleasedAt), orNull(r.ExpiredAt), orNull(r.ClaimedAt), r.ID[:])
	if err == nil && n != 1 {
		err = errRace
	}
	s.step(t, "record")
	return err
}

func (s *Store) insertLines(ctx context.Context, t *tx, shop int64, id reservation.ID, lines []reservation.Line) error {
	_, err := exec(ctx, t.conn, qLinesInsert, id[:], jsonLines(shop, lines))
	s.step(t, "lines")
	return err
}

// deleteLines drops a reservation's live lines. All of them must be there: units are given back only once.
func (s *Store) deleteLines(ctx context.Context, t *tx, r *row) error {
	n, err := exec(ctx, t.conn, qLinesDelete, r.ID[:])
	if err == nil && n != int64(len(r.Lines)) {
		err = corrupt("reservation %s is %s and has %d live lines, its cart has %d", r.ID, r.State, n, len(r.Lines))
	}
	s.step(t, "lines")
	return err
}

func orNull(t time.Time) sql.NullTime { return sql.NullTime{Time: t, Valid: !t.IsZero()} }
