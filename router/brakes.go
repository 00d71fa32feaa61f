package router

import "github.com/twinhold/twinhold/reservation"

// A brake is set in both stores, but on a bad night it reaches only one. The store that decides looks at its own within
// the decision; the other's is known from the last poll.

// saw keeps a store's fence as it was read.
func (p *Pod) saw(store reservation.Truth, f reservation.Fence) {
	p.seen[store-reservation.Redis].Store(&f)
}

// braked tells whether a store was last seen with a brake that forbids a new reservation of these lines. In legacy and
// complete the other store has no part.
func (p *Pod) braked(shop int64, lines []reservation.Line) bool {
	if !p.Stamp().Stage.DualWrite() {
		return false
	}
	for i := range p.seen {
		if f := p.seen[i].Load(); f != nil && f.Forbids(shop, lines) {
			return true
		}
	}
	return false
}
