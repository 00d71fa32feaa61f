package mysqlstore

import (
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// judgeReserve says what MySQL would have answered to a reserve, from what is available and from the record that
// has its key (nil: none). The truth granted it: levels and shortages are given where MySQL would not have.
func judgeReserve(rec reservation.Record, ls []level, holder *row) *verdict {
	if v := judgeKey(rec, holder); v != nil {
		return v
	}
	for _, l := range ls {
		if !l.known {
			return &verdict{Decision: reservation.UnknownBucket}
		}
	}
	if short := shortagesOf(rec.Lines, ls); len(short) > 0 {
		return &verdict{Decision: reservation.RejectedShort, Levels: levelsOf(ls), Shortages: short}
	}
	return &verdict{Decision: reservation.Granted}
}

// judgeKey says what the key alone would have answered; nil if nobody has it.
func judgeKey(rec reservation.Record, holder *row) *verdict {
	switch {
	case holder == nil || holder.purged():
		return nil
	case holder.Hash != rec.Hash:
		return &verdict{Decision: reservation.KeyConflict}
	default:
		return &verdict{Decision: holder.Outcome, Shortages: holder.Shortages}
	}
}

// judgeRejected says what MySQL would have answered to a reserve that the truth rejected. The lines that were short
// there are counted first: if one of them is short here too, the others need not be. If MySQL would have granted
// it, the levels of those lines show why.
func judgeRejected(rec reservation.Record, holder *row, count func([]reservation.Bucket) ([]level, error)) (*verdict, error) {
	if v := judgeKey(rec, holder); v != nil {
		return v, nil
	}
	first, rest := splitShort(rec)
	counted, err := count(bucketsOf(rec.Shop, first))
	if err != nil {
		return nil, err
	}
	firstOnly := rec
	firstOnly.Lines = first
	v := judgeReserve(firstOnly, counted, nil)
	if v.Decision == reservation.Granted && len(rest) > 0 {
		more, err := count(bucketsOf(rec.Shop, rest))
		if err != nil {
			return nil, err
		}
		restOnly := rec
		restOnly.Lines = rest
		v = judgeReserve(restOnly, more, nil)
	}
	switch v.Decision {
	case reservation.Granted:
		v.Levels = levelsOf(counted)
	case reservation.RejectedShort:
		v.Levels = nil // the same decision needs no explanation
	default:
	}
	return v, nil
}

// splitShort splits a rejected record's lines into those that the truth found short, and the others.
func splitShort(rec reservation.Record) (first, rest []reservation.Line) {
	for _, l := range rec.Lines {
		short := slices.ContainsFunc(rec.Shortages, func(s reservation.Shortage) bool { return s.Item == l.Item && s.Group == l.Group })
		if short || len(rec.Shortages) == 0 {
			first = append(first, l)
		} else {
			rest = append(rest, l)
		}
	}
	return first, rest
}

func (v *verdict) judgement() reservation.Judgement {
	return reservation.Judgement{Decision: v.Decision, Levels: v.Levels, Shortages: v.Shortages, Forced: v.Forced}
}

// judgeExisting says what MySQL would have answered to an operation on a reservation that it has a record of.
func judgeExisting(op reservation.MirrorOp, cur *row) reservation.Judgement {
	switch op.Op {
	case reservation.OpReserve:
		return judgeAgain(op, cur)
	case reservation.OpRelease:
		return reservation.Judgement{Decision: judgeRelease(cur.State)}
	case reservation.OpExpire:
		d := judgeExpire(cur.State)
		return reservation.Judgement{Decision: d, Overtaken: d == reservation.ExpiredOK && cur.State.Rank() > reservation.Expired.Rank()}
	case reservation.OpClaim:
		return reservation.Judgement{Decision: judgeClaim(cur.State)}
	default:
		return reservation.Judgement{Decision: reservation.Undecided}
	}
}

func judgeRelease(s reservation.State) reservation.Decision {
	switch s {
	case reservation.Held, reservation.Expired, reservation.Released:
		return reservation.ReleasedOK
	default:
		return reservation.StateConflict
	}
}

// judgeExpire: a hold that has gone further was overtaken; only a rejected one never was there to expire.
func judgeExpire(s reservation.State) reservation.Decision {
	if s == reservation.Rejected {
		return reservation.StateConflict
	}
	return reservation.ExpiredOK
}

func judgeClaim(s reservation.State) reservation.Decision {
	switch s {
	case reservation.Held, reservation.Expired, reservation.Claimed:
		return reservation.ClaimedOK
	case reservation.Refused:
		return reservation.RefundRequired
	default:
		return reservation.StateConflict
	}
}

// judgeAgain is a reserve whose record is there: the verdict that was kept, or a look-up, or nothing left to judge.
func judgeAgain(op reservation.MirrorOp, cur *row) reservation.Judgement {
	switch {
	case cur.Hash != op.Record.Hash:
		return reservation.Judgement{Decision: reservation.KeyConflict}
	case op.Replayed:
		return reservation.Judgement{Decision: cur.Outcome, Shortages: cur.Shortages}
	case cur.judged != nil:
		j := cur.judged.judgement()
		j.Overtaken = true // the claim that stored it judged it then
		return j
	case cur.DecidedBy == reservation.MySQL:
		return reservation.Judgement{Decision: cur.Outcome, Shortages: cur.Shortages}
	default:
		return reservation.Judgement{Decision: cur.Outcome, Overtaken: true}
	}
}
