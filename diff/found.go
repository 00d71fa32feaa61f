package diff

import "github.com/twinhold/twinhold/reservation"

// Find is a difference that catch-up found between the two stores' records, and mended.
type Find struct {
	Shop          int64
	ID            reservation.ID
	Verdict       Verdict // Lost, Leaked or State
	Truth, Mirror reservation.State
	Stamp         reservation.Stamp
}

// Found counts what catch-up found. A reservation with a gap is explained by it; any other lacks a cause, and counts
// against the pod. Tell it before Converged.
func (e *Engine) Found(f Find) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &Span{engine: e}
	s.pair = Pair{
		Pod: e.opt.Pod, Op: reservation.OpReserve, Shop: f.Shop, ID: f.ID, Stamp: f.Stamp,
		Truth: Side{State: f.Truth}, Mirror: Side{State: f.Mirror},
	}
	e.tally.add(s.pair.Op, kindFound, f.Verdict.String(), 1)
	if _, known := e.gaps[f.ID]; known {
		e.metrics.explained.WithLabelValues(s.pair.Op.String(), f.Verdict.String(), string(Gap)).Inc()
		return
	}
	e.conclude(s, f.Verdict, none("found by catch-up, and no gap of this run accounts for it"))
}
