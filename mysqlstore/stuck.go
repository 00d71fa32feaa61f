package mysqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

const (
	// stuckPause is how long a due hold that cannot be ended is not spoken of again. It is looked at in every sweep.
	stuckPause = 10 * time.Minute
	// stuckNamed bounds how many of them are kept in mind; beyond that, none is named within the pause.
	stuckNamed = 1000
)

// stuck is what sweeps know of the due holds that they could not end.
type stuck struct {
	mu    sync.Mutex
	from  dueHold // where the next sweep begins; zero: at the oldest
	named map[reservation.ID]time.Time
}

func (s *stuck) behind() dueHold {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.from
	if from.expiresAt.IsZero() {
		from.expiresAt = time.Unix(0, 0).UTC()
	}
	return from
}

func (s *stuck) goBehind(d dueHold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = dueHold{id: d.id, expiresAt: d.expiresAt}
}

// name tells whether it is time to speak of this hold.
func (s *stuck) name(id reservation.ID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.named[id]) < stuckPause {
		return false
	}
	for old, at := range s.named {
		if now.Sub(at) >= stuckPause {
			delete(s.named, old)
		}
	}
	if len(s.named) >= stuckNamed {
		return false
	}
	if s.named == nil {
		s.named = map[reservation.ID]time.Time{}
	}
	s.named[id] = now
	return true
}

func (s *Store) logStuck(ctx context.Context, what string, id reservation.ID, err error) {
	if s.stuck.name(id, s.opts.Now()) {
		s.opts.Logger.ErrorContext(ctx, what, "reservation", id, "error", err, "said_again_in", stuckPause)
	}
}
