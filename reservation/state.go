package reservation

import "fmt"

// State is where a reservation is in its life. The zero State is invalid.
type State uint8

// The states. Provisional, Held and Claiming still hold units; the others are final but for the few moves
// that CanBecome allows.
const (
	// Provisional is Redis's half of a grant in handover: units taken, nobody answered yet.
	Provisional State = iota + 1
	// Held is a granted reservation that waits for its payment.
	Held
	// Claiming is a held reservation whose claim is under way: it is pinned and no longer expires.
	Claiming
	// Rejected is a reservation for which there was not enough stock.
	Rejected
	// Expired is a held reservation whose time ran out; its units went back.
	Expired
	// Refused is a claim that was told refund_required; its units went back.
	Refused
	// Released is a reservation that the buyer gave up.
	Released
	// Claimed is a paid reservation: deducted from the ledger for good.
	Claimed
)

// States lists every valid state, lowest first.
func States() []State {
	return []State{Provisional, Held, Claiming, Rejected, Expired, Refused, Released, Claimed}
}

// String gives the state's name as it is stored and shown.
func (s State) String() string {
	switch s {
	case Provisional:
		return "provisional"
	case Held:
		return "held"
	case Claiming:
		return "claiming"
	case Rejected:
		return "rejected"
	case Expired:
		return "expired"
	case Refused:
		return "refused"
	case Released:
		return "released"
	case Claimed:
		return "claimed"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// ParseState is the inverse of String.
func ParseState(s string) (State, error) {
	for _, st := range States() {
		if st.String() == s {
			return st, nil
		}
	}
	return 0, fmt.Errorf("unknown reservation state %q", s)
}

// Valid tells whether s is one of the states.
func (s State) Valid() bool { return s >= Provisional && s <= Claimed }

// Live tells whether somebody was promised the units: held, or pinned by a claim.
func (s State) Live() bool { return s == Held || s == Claiming }

// TakesUnits tells whether the reservation's units are out of the available stock and not yet deducted.
func (s State) TakesUnits() bool { return s == Provisional || s.Live() }

// Final tells whether the reservation has ended.
func (s State) Final() bool { return s.Valid() && !s.TakesUnits() }

// CanBecome tells whether one step of a reservation's life leads from s to next: the steps that docs/states.md draws.
// A mirror follows by Merge, whose jumps to a higher rank may leave steps out.
func (s State) CanBecome(next State) bool {
	switch s {
	case Provisional: // confirmed, refused by MySQL or decided afresh, or left to its expiry
		return next == Held || next == Rejected || next == Expired
	case Held: // Claimed and Refused at once where MySQL decides; Rejected where the truth had said no
		return next == Claiming || next == Claimed || next == Refused || next == Released || next == Expired || next == Rejected
	case Claiming: // Released or Rejected where MySQL decided and was first
		return next == Claimed || next == Refused || next == Released || next == Rejected
	case Rejected: // a mirror's rejection of what the truth granted
		return next == Held || next == Claimed
	case Expired: // by a late claim; or given up, so that a late claim is a conflict
		return next == Claiming || next == Claimed || next == Refused || next == Released
	default:
		return false
	}
}

// Rank orders the states between the two stores: where they differ, the higher rank is right.
// Held against Rejected is not decided by rank but by the source of truth (see Merge).
func (s State) Rank() int {
	switch s {
	case Provisional:
		return 1
	case Held, Claiming:
		return 2
	case Rejected, Expired:
		return 3
	case Refused:
		return 4
	case Released:
		return 5
	case Claimed:
		return 6
	default:
		return 0
	}
}

// Merge gives the state that both stores should end in, when the source of truth has truth and the mirror has
// mirror. A zero State means that the store does not know the reservation.
func Merge(truth, mirror State) State {
	switch {
	case truth.Live() && mirror == Rejected, truth == Rejected && mirror.Live():
		return truth
	case mirror.Rank() > truth.Rank():
		return mirror
	default:
		return truth
	}
}

// Decision is what a store answered, or would have answered, to one operation. The zero Decision is invalid.
type Decision uint8

// The decisions, by operation.
const (
	// Granted and RejectedShort answer a reserve.
	Granted Decision = iota + 1
	RejectedShort
	// KeyConflict: the key was used with another request.
	KeyConflict
	// UnknownBucket: a bucket of the request has no ledger row.
	UnknownBucket
	// NotFound: the shop has no reservation of this id.
	NotFound
	// StateConflict: a claim of a released or rejected reservation, a release of a claimed one.
	StateConflict
	// ClaimedOK and RefundRequired answer a claim.
	ClaimedOK
	RefundRequired
	// ReleasedOK answers a release.
	ReleasedOK
	// ExpiredOK is the sweeper's.
	ExpiredOK
	// Adjusted and AdjustRefused answer a stock adjustment.
	Adjusted
	AdjustRefused
	// Undecided: the store gave no decision (busy, timeout, error).
	Undecided
)

// String gives the decision's name as reports show it.
func (d Decision) String() string {
	names := [...]string{
		Granted: "granted", RejectedShort: "rejected", KeyConflict: "key_conflict", UnknownBucket: "unknown_bucket",
		NotFound: "not_found", StateConflict: "state_conflict", ClaimedOK: "claimed", RefundRequired: "refund_required",
		ReleasedOK: "released", ExpiredOK: "expired", Adjusted: "adjusted", AdjustRefused: "adjust_refused",
		Undecided: "undecided",
	}
	if d == 0 || int(d) >= len(names) {
		return fmt.Sprintf("decision(%d)", uint8(d))
	}
	return names[d]
}

// Stores tells whether a decision about a reservation leaves something of it in the store that made it: the others
// changed nothing there.
func (d Decision) Stores() bool {
	switch d {
	case Granted, RejectedShort, ClaimedOK, RefundRequired, ReleasedOK, ExpiredOK:
		return true
	default:
		return false
	}
}
