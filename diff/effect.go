package diff

import "github.com/twinhold/twinhold/reservation"

// effect is what an operation does to the availability of one bucket. Where the answer does not say whether it did,
// maybe is true.
type effect struct {
	bucket reservation.Bucket
	delta  int64
	maybe  bool
}

func effectsOf(op reservation.Op, o Outcome) []effect {
	if o.Replayed {
		return nil
	}
	if a := o.Adjustment; a != nil {
		return []effect{{bucket: a.Bucket, delta: a.Delta}}
	}
	sign := int64(0)
	switch op {
	case reservation.OpReserve:
		sign = -1
	case reservation.OpClaim: // a late one takes what its hold had given back; a refused one gives back
		sign = -1
		if o.Decision == reservation.RefundRequired {
			sign = 1
		}
	case reservation.OpRelease, reservation.OpExpire:
		sign = 1
	case reservation.OpAdjust:
	}
	if !o.Moved || sign == 0 {
		return nil
	}
	effects := make([]effect, len(o.Lines))
	for i, l := range o.Lines {
		effects[i] = effect{l.Bucket(o.Shop), sign * l.Quantity, op == reservation.OpClaim}
	}
	return effects
}

// perhaps gives what an operation without an answer may have done.
func perhaps(op reservation.Op, o Outcome, reason GapReason) []effect {
	if reason != GapUnknown {
		return nil
	}
	o.Moved, o.Replayed = true, false
	effects := effectsOf(op, o)
	for i := range effects {
		effects[i].maybe = true
	}
	return effects
}

// stands tells whether a decision lets the operation's effect be.
func stands(d reservation.Decision) bool {
	switch d {
	case reservation.Granted, reservation.ClaimedOK, reservation.RefundRequired, reservation.ReleasedOK,
		reservation.ExpiredOK, reservation.Adjusted:
		return true
	default:
		return false
	}
}
