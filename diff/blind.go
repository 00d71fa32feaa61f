package diff

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

// maxBlind bounds the operations whose lines are still to be read.
const maxBlind = 4096

// remember notes an operation that had no answer and named no lines (a claim, a release): what it may have moved is
// read from the truth before the next difference is explained.
func (e *Engine) remember(s *Span) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.blind) < maxBlind {
		e.blind = append(e.blind, s)
	}
}

// resolveBlind reads the lines of the operations that had no answer. Those that cannot be read now are tried again.
func (e *Engine) resolveBlind(ctx context.Context) {
	e.mu.Lock()
	blind := e.blind
	e.blind = nil
	e.mu.Unlock()
	for _, s := range blind {
		bounded, cancel := context.WithTimeout(ctx, readTimeout)
		lines, err := e.opt.Stores.Lines(bounded, s.pair.Shop, s.pair.ID)
		cancel()
		switch {
		case errors.Is(err, reservation.ErrNotFound):
		case err != nil:
			e.remember(s)
		default:
			e.mu.Lock()
			e.register(s, perhaps(s.pair.Op, Outcome{Shop: s.pair.Shop, Lines: lines}, GapUnknown))
			e.mu.Unlock()
		}
	}
}
