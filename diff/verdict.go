package diff

import (
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// Verdict is what one pair of outcomes amounts to. The zero Verdict is invalid.
type Verdict uint8

// The verdicts of a pair.
const (
	// Match: same decision, same effect.
	Match Verdict = iota + 1
	// FalseSoldout: the mirror refused what the truth granted.
	FalseSoldout
	// OversellRisk: the mirror granted what the truth refused.
	OversellRisk
	// State, Quantity, Expiry, Key: same decision, different record.
	State
	Quantity
	Expiry
	Key
	// MirrorError and MirrorTimeout: no decision from the mirror; these end as gaps.
	MirrorError
	MirrorTimeout
	// Lost and Leaked are catch-up's: a live reservation that the mirror lacks, or still holds after its end.
	Lost
	Leaked
)

// Verdicts lists every verdict.
func Verdicts() []Verdict {
	return []Verdict{Match, FalseSoldout, OversellRisk, State, Quantity, Expiry, Key, MirrorError, MirrorTimeout, Lost, Leaked}
}

// String gives the verdict's name as reports show it.
func (v Verdict) String() string {
	names := [...]string{
		Match: "match", FalseSoldout: "false_soldout", OversellRisk: "oversell_risk", State: "state",
		Quantity: "quantity", Expiry: "expiry", Key: "key", MirrorError: "mirror_error",
		MirrorTimeout: "mirror_timeout", Lost: "lost", Leaked: "leaked",
	}
	if v == 0 || int(v) >= len(names) {
		return fmt.Sprintf("verdict(%d)", uint8(v))
	}
	return names[v]
}

// availability tells whether a verdict is about what was available, and may therefore be a race.
func (v Verdict) availability() bool { return v == FalseSoldout || v == OversellRisk }

// Compare gives the verdict of one pair. It does not allocate.
func Compare(p *Pair) Verdict {
	t, m := &p.Truth, &p.Mirror
	if t.Decision != m.Decision {
		return compareDecisions(t.Decision, m.Decision)
	}
	if m.State != 0 && t.State != 0 && !stateAgrees(t.State, m.State) {
		return State
	}
	if t.Record == nil || m.Record == nil {
		return Match
	}
	return compareRecords(t.Record, m.Record)
}

func compareDecisions(t, m reservation.Decision) Verdict {
	switch {
	case t == reservation.KeyConflict || m == reservation.KeyConflict:
		return Key
	case yes(t) && no(m):
		return FalseSoldout
	case no(t) && yes(m):
		return OversellRisk
	default:
		return State
	}
}

// yes and no are the decisions that turn on what is available.
func yes(d reservation.Decision) bool {
	return d == reservation.Granted || d == reservation.ClaimedOK || d == reservation.Adjusted
}

func no(d reservation.Decision) bool {
	return d == reservation.RejectedShort || d == reservation.RefundRequired || d == reservation.AdjustRefused
}

// stateAgrees tells whether the mirror's state is the truth's, or one that the reservation can reach from it:
// a claim writes MySQL before the mirrored operations that came earlier.
func stateAgrees(truth, mirror reservation.State) bool {
	switch {
	case truth == mirror, truth.Live() && mirror.Live():
		return true
	case truth.TakesUnits():
		return mirror.Rank() > truth.Rank() && mirror != reservation.Rejected
	case truth == reservation.Expired:
		return mirror == reservation.Released || mirror == reservation.Claimed || mirror == reservation.Refused
	default:
		return false
	}
}

func compareRecords(t, m *reservation.Record) Verdict {
	switch {
	case t.ID != m.ID || t.Shop != m.Shop || t.Hash != m.Hash || t.Key != m.Key:
		return Key
	case !equalLines(t.Lines, m.Lines):
		return Quantity
	case !t.ExpiresAt.Equal(m.ExpiresAt) || !t.PurgeAt.Equal(m.PurgeAt):
		return Expiry
	case t.Outcome != m.Outcome:
		return State
	default:
		return Match
	}
}

func equalLines(a, b []reservation.Line) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
