package reservation

// OpTo is the operation that brings a store to a record's present state.
func OpTo(rec Record) MirrorOp {
	op := MirrorOp{Record: rec}
	switch rec.State {
	case Rejected:
		op.Op, op.Decision = OpReserve, RejectedShort
	case Released:
		op.Op, op.Decision = OpRelease, ReleasedOK
	case Expired:
		op.Op, op.Decision = OpExpire, ExpiredOK
	case Claimed:
		op.Op, op.Decision = OpClaim, ClaimedOK
	case Refused:
		op.Op, op.Decision = OpClaim, RefundRequired
	case Provisional, Held, Claiming:
		op.Op, op.Decision = OpReserve, Granted
	}
	return op
}
