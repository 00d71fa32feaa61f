package mysqlstore

import (
	"context"
	"database/sql"

	"github.com/twinhold/twinhold/reservation"
)

// qIDsWalk is qRecordsWalk without the records.
const qIDsWalk = "/* conn_tag:walk_ids */ SELECT r.id FROM reservations r " +
	"WHERE r.id > ? AND (r.purge_at > UTC_TIMESTAMP(6) OR r.state = 'held') ORDER BY r.id LIMIT ?"

// IDs pages through the ids that Walk would give, without a look at the rest of their rows: also those that cannot be read.
func (s *Store) IDs(ctx context.Context, after reservation.ID, limit int) ([]reservation.ID, error) {
	ctx = inClass(ctx, backgroundClass)
	var out []reservation.ID
	err := s.read(ctx, "walk_ids", func(ctx context.Context) error {
		out = nil
		return each(ctx, s.reads, func(rows *sql.Rows) error {
			var b []byte
			var id reservation.ID
			err := rows.Scan(&b)
			copy(id[:], b)
			out = append(out, id)
			return asSQL(err)
		}, qIDsWalk, after[:], limit)
	})
	return out, err
}
