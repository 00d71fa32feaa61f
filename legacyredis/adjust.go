package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twinhold/twinhold/reservation"
)

// Adjust changes a bucket's stock: pin here, ledger, finish here. The pin takes what is taken away (or refuses it with
// *reservation.ShortError, unless forced), so that nobody is promised it meanwhile. What is added moves nothing until
// the ledger has it; its pin is there so that Sweep gives Redis the figures if this process dies in between.
func (s *Store) Adjust(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	if err := adj.Validate(); err != nil {
		return reservation.AdjustResult{}, err
	}
	// The ledger has a fence of its own; while Redis decides, Redis's counts too, before anything is changed there.
	if _, err := s.run(ctx, call{script: s.scripts.fenceCheck, op: reservation.OpAdjust, stamp: st, readOnly: true}); err != nil {
		return reservation.AdjustResult{}, err
	}
	if res, done, err := s.adjustedBefore(ctx, st, adj); done || err != nil {
		return res, err
	}
	forced, err := s.adjustPin(ctx, st, adj)
	var short *reservation.ShortError
	if errors.As(err, &short) {
		// The same adjustment may have been carried out since the ledger was asked: then it is no longer there to take.
		if res, done, again := s.adjustedBefore(ctx, st, adj); done {
			return res, again
		}
	}
	if err != nil {
		return reservation.AdjustResult{}, err
	}
	s.fail(FailAdjustPinned)
	res, err := s.adjustPinned(ctx, st, adj)
	if err == nil && forced {
		res.Forced = true
		s.metrics.forcedAdjust.Inc()
		s.log.Warn("a forced adjustment went below what is promised", "bucket", adj.Bucket, "delta", adj.Delta, "id", adj.ID)
	}
	return res, err
}

// adjustedBefore answers an adjustment whose id the ledger has.
func (s *Store) adjustedBefore(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (reservation.AdjustResult, bool, error) {
	first, past, err := s.ledger.AdjustmentByID(ctx, adj.Bucket.Shop, adj.ID)
	switch {
	case errors.Is(err, reservation.ErrNotFound):
		return reservation.AdjustResult{}, false, nil
	case err != nil:
		return reservation.AdjustResult{}, false, err
	case first.Bucket != adj.Bucket || first.Delta != adj.Delta:
		return reservation.AdjustResult{}, false, reservation.ErrKeyConflict
	}
	// Should a crash have kept it from being finished here, that is made good; the answer does not depend on it.
	_ = s.adjustFinish(ctx, st, adj, &past.Change)
	return reservation.AdjustResult{Figures: past.Figures, Change: past.Change, Replayed: true}, true, nil
}

// adjustPin remembers the adjustment and takes its units. It tells whether that went below what is promised.
func (s *Store) adjustPin(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (forced bool, err error) {
	c := call{script: s.scripts.adjustPin, op: reservation.OpAdjust, stamp: st, args: []any{
		strconv.FormatInt(adj.Bucket.Shop, 10), adj.ID, strconv.FormatInt(adj.Bucket.Item, 10),
		strconv.FormatInt(adj.Bucket.Group, 10), strconv.FormatInt(adj.Delta, 10), flag(adj.Force), micros(s.lease),
	}}
	r, err := s.run(ctx, c)
	if err != nil {
		return false, err
	}
	switch r.status {
	case "PINNED":
		return r.text(0) == "1", nil
	case "SHORT":
		available, err := r.number(0)
		if err != nil {
			return false, err
		}
		return false, &reservation.ShortError{Bucket: adj.Bucket, Asked: -adj.Delta, Available: available}
	}
	return false, strange(c, r)
}

// adjustPinned makes a pinned adjustment permanent. If the ledger refuses it for good, the pin is undone; if the
// ledger gave no answer, the pin stays.
func (s *Store) adjustPinned(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	// While MySQL decides, what was taken here must be there in MySQL too.
	taken := adj.Delta < 0 && st.Stage.Truth() == reservation.Redis
	res, err := s.ledger.ApplyAdjustment(ctx, st, adj, taken)
	if refusedForGood(err) {
		if undone := s.adjustFinish(ctx, st, adj, nil); undone != nil {
			return res, fmt.Errorf("%w (its units stay taken until the sweeper undoes it: %w)", err, undone)
		}
		return res, err
	}
	if err != nil {
		return res, unsure(reservation.OpAdjust, err)
	}
	s.fail(FailAdjustApplied)
	if s.adjustFinish(ctx, st, adj, &res.Change) == nil {
		s.fail(FailAdjustFinished)
	}
	return res, nil
}

// refusedForGood tells the errors that asking the ledger again cannot change.
func refusedForGood(err error) bool {
	var short *reservation.ShortError
	var unknown *reservation.UnknownBucketError
	var invalid *reservation.InvalidError
	return errors.As(err, &short) || errors.As(err, &unknown) || errors.As(err, &invalid) ||
		errors.Is(err, reservation.ErrKeyConflict)
}

// adjustFinish ends the pin, if there is one, and applies the ledger's change, nil if there was none. The ledger's answer stands whatever becomes of it.
func (s *Store) adjustFinish(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment, change *reservation.Change) error {
	packed := ""
	if change != nil {
		packed = packChanges([]reservation.Change{*change})
	}
	_, err := s.runLast(ctx, call{script: s.scripts.adjustFinish, op: reservation.OpAdjust, stamp: st, args: []any{
		strconv.FormatInt(adj.Bucket.Shop, 10), adj.ID, packed,
	}})
	if err != nil {
		s.metrics.unfinished.WithLabelValues(endClass(err)).Inc()
		s.log.Warn("adjustment not finished in Redis: left to the sweeper and to catch-up", "bucket", adj.Bucket, "id", adj.ID, "error", err)
	}
	return err
}
