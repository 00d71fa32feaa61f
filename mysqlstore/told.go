package mysqlstore

import (
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// told is who hears of holds that the store has ended by itself.
type told struct{ f atomic.Pointer[EndedFunc] }

// EndedFunc hears of due holds that somebody's reserve has expired under a stamp, not before began.
type EndedFunc func(st reservation.Stamp, recs []reservation.Record, began time.Time)

// OnEnded has f called for every due hold that was expired because its units, or its key, were wanted: no sweep gives
// those, and the store that follows has to hear of them all the same.
func (s *Store) OnEnded(f EndedFunc) { s.ended.f.Store(&f) }

func (t *told) tell(st reservation.Stamp, recs []reservation.Record, began time.Time) {
	if f := t.f.Load(); f != nil && len(recs) > 0 {
		(*f)(st, recs, began)
	}
}
