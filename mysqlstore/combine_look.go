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
	w := s.join(laneKey{kind: lookLane}, 0, &member{ctx: ctx, id: id, looks: true})
	if w.answered() || w.err != nil {
		return w.row, w.err
	}
	return rowByID(ctx, s.reads, qRecord, id) // the others' look failed
}

func (s *Store) shareLooks(ctx context.Context, batch []*member) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.WriteTimeout)
	defer cancel()
	look := recordsOf(batch, nil)
	found := make(map[reservation.ID]*row, len(batch))
	err := each(ctx, s.reads, func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err == nil {
			found[r.ID] = r
		}
		return err
	}, look.query, look.args...)
	if err != nil {
		s.tellAll(batch, err, time.Time{}, nil)
		return
	}
	for _, m := range batch {
		s.tell(m, word{row: found[m.id]})
	}
}

// recordsOf reads the members' records without locks.
func recordsOf(members []*member, scan func(*sql.Rows) error) statement {
	ids := make([]any, len(members))
	for n, m := range members {
		ids[n] = m.id[:]
	}
	return statement{query: qRecords + repeat("?", len(ids)) + ")", args: ids, scan: scan}
}
