package mysqlstore

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// ChangesOf gives the changes of a claimed reservation's entries.
func (s *Store) ChangesOf(ctx context.Context, shop int64, id reservation.ID) ([]reservation.Change, error) {
	return nil, reservation.ErrNotFound
}
