package diff

import (
	"bytes"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Cover is what a turn of catch-up has looked at: that, and nothing else, is the same in both stores since.
type Cover struct {
	// Began and Ended bound the turn. Only gaps from before it are closed.
	Began, Ended time.Time
	// IDs are the reservations that it looked at; nil: those with an id above After, up to UpTo.
	IDs         []reservation.ID
	After, UpTo reservation.ID
	// LeftAlone of them were too young, or under way.
	LeftAlone []reservation.ID
	// Ledger: Redis has the figures of every bucket since, and with them every change of stock.
	Ledger bool
}

// Everything is the cover of a whole round.
func Everything(began, ended time.Time, leftAlone ...reservation.ID) Cover {
	c := Cover{Began: began, Ended: ended, LeftAlone: leftAlone, Ledger: true}
	for i := range c.UpTo {
		c.UpTo[i] = 0xff
	}
	return c
}

// has gives what tells whether a reservation is covered. The zero id is that of a change of stock.
func (c *Cover) has() func(reservation.ID) bool {
	alone, named := set(c.LeftAlone), set(c.IDs)
	return func(id reservation.ID) bool {
		switch {
		case id == (reservation.ID{}):
			return c.Ledger
		case alone[id]:
			return false
		case c.IDs != nil:
			return named[id]
		default:
			return bytes.Compare(id[:], c.After[:]) > 0 && bytes.Compare(id[:], c.UpTo[:]) <= 0
		}
	}
}

func set(ids []reservation.ID) map[reservation.ID]bool {
	out := make(map[reservation.ID]bool, len(ids))
	for _, id := range ids {
		out[id] = true
	}
	return out
}

// Converged tells the engine that a whole catch-up round ended at the given time: what gaps had left out is in the
// mirror now. began is when the round started: only gaps before it are closed, and not those of reservations that the
// round left alone, since they were too young or under way.
func (e *Engine) Converged(began, ended time.Time, leftAlone ...reservation.ID) {
	e.Covered(Everything(began, ended, leftAlone...))
}

// Covered tells the engine what a turn of catch-up has looked at: what gaps had left out of it is in the mirror now.
// Tell what the turn found before.
func (e *Engine) Covered(c Cover) {
	has := c.has()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeVoids(c, has)
	if e.lastGap.IsZero() {
		return
	}
	for _, log := range e.buckets {
		log.closeGaps(c.Began, c.Ended, has)
	}
	forget := func(id reservation.ID) {
		if at, ok := e.gaps[id]; ok && at.Before(c.Began) && has(id) {
			delete(e.gaps, id)
		}
	}
	if c.IDs != nil {
		for _, id := range c.IDs {
			forget(id)
		}
		return
	}
	for id := range e.gaps {
		forget(id)
	}
	if c.Ledger && len(e.gaps) == 0 && e.lastGap.Before(c.Began) {
		e.lastGap = time.Time{}
	}
}

func (e *Engine) closeVoids(c Cover, has func(reservation.ID) bool) {
	for id, hold := range e.voids {
		if hold.began.Before(c.Began) && has(id) {
			hold.traces.of(other(hold.pair.truth())).end(c.Ended)
			delete(e.voids, id)
		}
	}
}
