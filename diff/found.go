package diff

import "github.com/twinhold/twinhold/reservation"

// Find is a difference that catch-up found between the two stores' records, and mended, in whichever store.
type Find struct {
	Shop    int64
	ID      reservation.ID
	Verdict Verdict // Lost, Leaked or State
	// Truth and Mirror are the states in the store that decides in the stamp's stage and in the other one, before it was
	// mended; zero: not known there.
	Truth, Mirror reservation.State
	// Marked: MySQL has a mark on it: it was answered without Redis, which is why Redis lacked it.
	Marked bool
	// Epoch is the one in which the reservation was decided; zero: not known.
	Epoch uint64
	Stamp reservation.Stamp
}

// Found counts what catch-up found. A mark explains it, or a gap of this process for that very reservation, or that it
// was decided in an earlier epoch: what was on its way then was refused as stale, and in legacy nothing was. Any other
// lacks a cause, and counts against the pod; but where other routers have been alive since the reservation was made, and
// it was not this process that left it as the truth has it, the cause may be a gap of theirs: that is Unseen.
// Tell it before Covered.
func (e *Engine) Found(f Find) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &Span{engine: e}
	s.pair = Pair{
		Pod: e.opt.Pod, Op: reservation.OpReserve, Shop: f.Shop, ID: f.ID, Stamp: f.Stamp,
		Truth: Side{State: f.Truth}, Mirror: Side{State: f.Mirror},
	}
	e.tally.add(s.pair.Op, kindFound, f.Verdict.String(), 1)
	_, gap := e.gaps[f.ID]
	left := e.others.left(f.ID)
	ours := left.Valid() && left == f.Truth
	switch {
	case gap || f.Marked || f.Epoch != 0 && f.Epoch < f.Stamp.Epoch:
		e.metrics.explained.WithLabelValues(s.pair.Op.String(), f.Verdict.String(), string(Gap)).Inc()
	case !ours && e.others.within(createdAt(f.ID), now):
		e.conclude(s, f.Verdict, Explanation{Kind: Unseen, Note: "found by catch-up; other routers were alive, and it may be a gap of theirs"})
	default:
		e.conclude(s, f.Verdict, none("found by catch-up, and no gap of this run accounts for it"))
	}
}

// HasGap tells whether an operation of this reservation was a gap that catch-up has not closed yet.
func (e *Engine) HasGap(id reservation.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.gaps[id]
	return ok
}

// InFlight tells whether an operation of this reservation has been begun and has not ended: it may be on its way to the
// store that follows.
func (e *Engine) InFlight(id reservation.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := e.live.head; s != nil; s = s.next {
		if s.pair.ID == id && !s.finished {
			return true
		}
	}
	return false
}
