package legacyredis

import (
	"context"

	"github.com/twinhold/twinhold/reservation"
)

// IDs pages through the ids in the index by creation, without a look at the records: also those that cannot be read.
func (s *Store) IDs(ctx context.Context, after reservation.ID, limit int) ([]reservation.ID, error) {
	out := make([]reservation.ID, 0, max(limit, 0))
	for from := after.String(); len(out) < limit; {
		names, err := s.idsAfter(ctx, from, limit-len(out))
		if err != nil || len(names) == 0 {
			return out, err
		}
		for _, name := range names {
			if id, err := reservation.ParseID(name); err == nil { // what is no id is named by Inspect
				out = append(out, id)
			}
		}
		from = names[len(names)-1]
	}
	return out, nil
}
