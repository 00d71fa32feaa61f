package diff

import (
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// window bounds an instant that is not known more closely, or a look at a store. A zero to is "not yet".
type window struct{ from, to time.Time }

// trace is when one store took an operation's effect and, where it gave it up again unanswered, when that was.
type trace struct {
	// never: this store does not take it.
	never bool
	take  window
	back  window // zero: it stands
}

func (t *trace) backed() bool { return !t.back.from.IsZero() }

// open tells whether a step is still to come.
func (t *trace) open() bool {
	return !t.never && (t.take.to.IsZero() || t.backed() && t.back.to.IsZero())
}

// overBefore tells whether all of it was over before a time.
func (t *trace) overBefore(at time.Time) bool {
	return t.never || !t.open() && !t.take.to.After(at) && !t.back.to.After(at)
}

// end closes what is open.
func (t *trace) end(at time.Time) {
	if t.take.to.IsZero() {
		t.take.to = at
	}
	if t.backed() && t.back.to.IsZero() {
		t.back.to = at
	}
}

type bounds struct{ lo, hi int64 }

// seen tells how often a look saw the effect: surely (1, 1), surely not (0, 0), or perhaps (0, 1).
func (t *trace) seen(look window) bounds {
	if t.never {
		return bounds{}
	}
	b := seen(t.take, look)
	if t.backed() {
		g := seen(t.back, look)
		b = bounds{max(b.lo-g.hi, 0), max(b.hi-g.lo, 0)}
	}
	return b
}

// seen tells whether a look saw what came within w.
func seen(w, look window) bounds {
	switch {
	case !w.to.IsZero() && w.to.Before(look.from):
		return bounds{1, 1}
	case w.from.After(look.to):
		return bounds{0, 0}
	default:
		return bounds{0, 1}
	}
}

// stores holds one thing of each store.
type stores[T any] struct{ redis, mysql T }

func (s *stores[T]) of(t reservation.Truth) *T {
	if t == reservation.MySQL {
		return &s.mysql
	}
	return &s.redis
}

// truthOf is the store that decides in a stage. A stamp without a stage is Redis's: that is where a pod starts.
func truthOf(s reservation.Stage) reservation.Truth {
	if s.Valid() {
		return s.Truth()
	}
	return reservation.Redis
}

// other is the store that a store's decisions are compared with.
func other(t reservation.Truth) reservation.Truth {
	if t == reservation.MySQL {
		return reservation.Redis
	}
	return reservation.MySQL
}

// contribution bounds what an operation adds to (Redis's level - MySQL's level), as they were seen by the looks.
func contribution(en entry, looks stores[window]) (lo, hi int64) {
	redis, mysql := en.span.traces.redis.seen(looks.redis), en.span.traces.mysql.seen(looks.mysql)
	a, b := en.delta*(redis.lo-mysql.hi), en.delta*(redis.hi-mysql.lo)
	lo, hi = min(a, b), max(a, b)
	if en.maybe {
		lo, hi = min(lo, 0), max(hi, 0)
	}
	return lo, hi
}
