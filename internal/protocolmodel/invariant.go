package protocolmodel

import "fmt"

// invariant is one of the design's, by its number; 0 is none.
type invariant uint8

const (
	i1 invariant = 1 // no oversell
	i5 invariant = 5 // one final state, and nobody told otherwise
	i6 invariant = 6 // the ledger is lowered once per claim
	i7 invariant = 7 // a granted, live reservation can be claimed
	i8 invariant = 8 // nothing is granted by MySQL after MySQL's fence carries the kill
	i9 invariant = 9 // the same key, the same answer
)

// String gives the invariant's name and what it forbids.
func (i invariant) String() string {
	switch i {
	case i1:
		return "I1: oversold"
	case i5:
		return "I5: claimed and released both answered"
	case i6:
		return "I6: ledger lowered twice for one claim"
	case i7:
		return "I7: granted and live, but not claimable, or not found"
	case i8:
		return "I8: granted by MySQL after its fence was raised"
	case i9:
		return "I9: granted and rejected both answered"
	default:
		return fmt.Sprintf("I%d", uint8(i))
	}
}

// promised tells whether the caller may count on the unit: granted, neither ended by the caller nor by time, and none
// of the exceptions of I1.
func (c *caller) promised() bool {
	return c.granted && c.clock == live && !c.releaseAsked && !c.outcomeLost && !c.overbooked
}

// check gives the invariant that s breaks, or 0.
func (m *model) check(s *state) invariant {
	if s.broken != 0 {
		return s.broken
	}
	var out int8
	for id := range s.callers {
		switch c := &s.callers[id]; {
		case c.granted && c.rejected && !c.outcomeLost:
			return i9
		case c.claimed && c.released:
			return i5
		case s.mysql.entries[id] > 1:
			return i6
		case s.mysql.entries[id] == 1 || c.promised():
			if !c.overbooked && !c.outcomeLost {
				out++
			}
		}
	}
	if out > m.Stock {
		return i1
	}
	return 0
}
