package mysqlstore

import (
	"sync"

	"github.com/twinhold/twinhold/reservation"
)

// recentHolds is how many holds are remembered.
const recentHolds = 16384

// recent remembers the holds that this process granted last. Whoever ends one of them knows its buckets without a look;
// what has become of it is read or compared under its locks all the same. A record's lines never change.
type recent struct {
	mu    sync.Mutex
	holds map[reservation.ID]*row
	ring  []reservation.ID
	next  int
}

func newRecent() *recent { return &recent{holds: map[reservation.ID]*row{}} }

func (r *recent) add(rec reservation.Record) {
	seen := &row{Record: rec}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ring) < recentHolds {
		r.ring = append(r.ring, rec.ID)
	} else {
		delete(r.holds, r.ring[r.next])
		r.ring[r.next] = rec.ID
		r.next = (r.next + 1) % recentHolds
	}
	r.holds[rec.ID] = seen
}

// take gives a hold of this shop and forgets it, since it is ended now; nil if it is not remembered.
func (r *recent) take(shop int64, id reservation.ID) *row {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.holds[id]
	if seen == nil || seen.Shop != shop {
		return nil
	}
	delete(r.holds, id)
	return seen
}
