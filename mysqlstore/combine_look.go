package mysqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// rowShared reads a reservation's row without locks; looks that wait for each other travel together.
func (s *Store) rowShared(ctx context.Context, id reservation.ID) (*row, error) {
	if s.opts.NoLanes {
		return rowByID(ctx, s.reads, qRecord, id)
	}
	w := s.join(laneKey{kind: lookLane}, 0, &member{ctx: ctx, id: id})
	if w.answered() {
		return w.row, w.err
	}
	defer w.turn.end()
	return rowByID(ctx, s.reads, qRecord, id)
}

func (s *Store) shareLooks(ctx context.Context, batch []*member) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.WriteTimeout)
	defer cancel()
	ids := make([]reservation.ID, len(batch))
	for n, m := range batch {
		ids[n] = m.id
	}
	found := make(map[reservation.ID]*row, len(batch))
	err := each(ctx, s.reads, func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err == nil {
			found[r.ID] = r
		}
		return err
	}, qRecords, jsonHex(ids))
	if err != nil {
		s.tellAll(batch, err, time.Time{}, nil)
		return
	}
	for _, m := range batch {
		s.tell(m, word{row: found[m.id]})
	}
}
