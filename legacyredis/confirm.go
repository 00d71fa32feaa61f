package legacyredis

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// Confirm makes a provisional hold of this epoch held: MySQL has agreed to it. It gives the record as it is
// afterwards; if it was no longer provisional, somebody else was first.
func (s *Store) Confirm(ctx context.Context, st reservation.Stamp, id reservation.ID) (reservation.Record, error) {
	return s.settle(ctx, call{script: s.scripts.confirm, stamp: st, args: []any{id.String()}}, id)
}

// TurnDown makes a provisional hold of this epoch rejected, with MySQL's shortages; its units go back. One that is no
// longer provisional is left alone, and given as it is.
func (s *Store) TurnDown(ctx context.Context, st reservation.Stamp, id reservation.ID, short []reservation.Shortage) (reservation.Record, error) {
	return s.settle(ctx, call{script: s.scripts.turnDown, stamp: st, args: []any{id.String(), packShortages(short)}}, id)
}

func (s *Store) settle(ctx context.Context, c call, id reservation.ID) (reservation.Record, error) {
	c.op = reservation.OpReserve
	r, err := s.run(ctx, c)
	if err != nil {
		return reservation.Record{}, err
	}
	if r.status != "DONE" {
		return reservation.Record{}, strange(c, r)
	}
	rec, err := s.recordOf(id, r, 0)
	return rec.Record, err
}
