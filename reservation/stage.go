package reservation

import (
	"fmt"
	"slices"
)

// Stage is what a pod does now. The zero Stage is invalid.
type Stage uint8

// The stages, in the order in which a pod moves through them.
const (
	Legacy Stage = iota + 1
	Shadow
	Handover
	Cutover
	Complete
)

// Stages lists every valid stage in order.
func Stages() []Stage { return []Stage{Legacy, Shadow, Handover, Cutover, Complete} }

// String gives the stage's name as fences, configuration and status show it.
func (s Stage) String() string {
	switch s {
	case Legacy:
		return "legacy"
	case Shadow:
		return "shadow"
	case Handover:
		return "handover"
	case Cutover:
		return "cutover"
	case Complete:
		return "complete"
	default:
		return fmt.Sprintf("stage(%d)", uint8(s))
	}
}

// ParseStage is the inverse of String.
func ParseStage(s string) (Stage, error) {
	for _, st := range Stages() {
		if st.String() == s {
			return st, nil
		}
	}
	return 0, fmt.Errorf("unknown stage %q: use legacy, shadow, handover, cutover or complete", s)
}

// Valid tells whether s is one of the stages.
func (s Stage) Valid() bool { return s >= Legacy && s <= Complete }

// Op is one kind of operation. The zero Op is invalid.
type Op uint8

// The operations that a pod accounts for.
const (
	OpReserve Op = iota + 1
	OpClaim
	OpRelease
	OpExpire
	OpAdjust
)

// Ops lists every valid operation.
func Ops() []Op { return []Op{OpReserve, OpClaim, OpRelease, OpExpire, OpAdjust} }

// String gives the operation's name as metrics and reports show it.
func (o Op) String() string {
	switch o {
	case OpReserve:
		return "reserve"
	case OpClaim:
		return "claim"
	case OpRelease:
		return "release"
	case OpExpire:
		return "expire"
	case OpAdjust:
		return "adjust"
	default:
		return fmt.Sprintf("op(%d)", uint8(o))
	}
}

// Truth names a store as the source of truth. The zero Truth is invalid.
type Truth uint8

// The two stores.
const (
	Redis Truth = iota + 1
	MySQL
)

// String gives the store's name as the API and the configuration show it.
func (t Truth) String() string {
	switch t {
	case Redis:
		return "redis"
	case MySQL:
		return "mysql"
	default:
		return fmt.Sprintf("truth(%d)", uint8(t))
	}
}

// When says when the other store hears of an operation.
type When uint8

// The times at which the other store is written.
const (
	// Never: there is no other store.
	Never When = iota + 1
	// AfterAnswer: by the bounded queue, with a deadline of its own.
	AfterAnswer
	// BeforeAnswer: the caller waits for both.
	BeforeAnswer
	// Within: the operation's own protocol writes both (the claim's pin, ledger and finish; an adjustment's).
	Within
)

// Route says who decides one operation in one stage.
type Route struct {
	// Decides is the source of truth, whose answer the caller gets.
	Decides Truth
	// Both is true where a grant needs both stores; of an adjustment, where stock is taken away only if both have it.
	Both bool
	// Mirror says when the other store is written.
	Mirror When
}

// routes is the one table of DESIGN section 3: nothing else says who decides.
func routes(s Stage, o Op) Route {
	type row = [OpAdjust + 1]Route
	table := [Complete + 1]row{
		Legacy: {
			OpReserve: {Redis, false, Never},
			OpClaim:   {Redis, false, Within},
			OpRelease: {Redis, false, Never},
			OpExpire:  {Redis, false, Never},
			OpAdjust:  {Redis, false, Within},
		},
		Shadow: {
			OpReserve: {Redis, false, AfterAnswer},
			OpClaim:   {Redis, false, Within},
			OpRelease: {Redis, false, AfterAnswer},
			OpExpire:  {Redis, false, AfterAnswer},
			OpAdjust:  {Redis, false, Within},
		},
		Handover: {
			OpReserve: {Redis, true, BeforeAnswer},
			OpClaim:   {Redis, false, Within},
			OpRelease: {Redis, false, BeforeAnswer},
			OpExpire:  {Redis, false, AfterAnswer},
			OpAdjust:  {Redis, false, Within},
		},
		Cutover: {
			OpReserve: {MySQL, false, BeforeAnswer},
			OpClaim:   {MySQL, false, Within},
			OpRelease: {MySQL, false, BeforeAnswer},
			OpExpire:  {MySQL, false, AfterAnswer},
			OpAdjust:  {MySQL, true, Within},
		},
		Complete: {
			OpReserve: {MySQL, false, Never},
			OpClaim:   {MySQL, false, Never},
			OpRelease: {MySQL, false, Never},
			OpExpire:  {MySQL, false, Never},
			OpAdjust:  {MySQL, false, Never},
		},
	}
	return table[s][o]
}

// Route looks an operation up in the stage table. It panics on an invalid stage or operation, which only a
// programming error can make.
func (s Stage) Route(o Op) Route {
	if !s.Valid() || o < OpReserve || o > OpAdjust {
		panic(fmt.Sprintf("reservation: no route for %s in %s", o, s))
	}
	return routes(s, o)
}

// Truth is the store that decides reserves in this stage.
func (s Stage) Truth() Truth { return s.Route(OpReserve).Decides }

// DualWrite tells whether operations are written to both stores and compared.
func (s Stage) DualWrite() bool { return s == Shadow || s == Handover || s == Cutover }

// CanMoveTo tells whether a pod may go from s to next in one step: one step forward, back to shadow from
// handover or cutover, and from complete back to cutover.
func (s Stage) CanMoveTo(next Stage) bool {
	switch {
	case !s.Valid() || !next.Valid():
		return false
	case next == s+1:
		return true
	case next == Shadow:
		return s == Handover || s == Cutover
	case next == Cutover:
		return s == Complete
	default:
		return false
	}
}

// DeclaredStage gives the stage that a configured source of truth and dual-write flag mean.
func DeclaredStage(t Truth, mirror bool) Stage {
	switch {
	case t == MySQL && mirror:
		return Cutover
	case t == MySQL:
		return Complete
	case mirror:
		return Shadow
	default:
		return Legacy
	}
}

// Stamp is what every write carries: the epoch and the stage in which its caller believes the pod to be.
type Stamp struct {
	Epoch uint64
	Stage Stage
}

// Fence is a pod's epoch and stage as one store holds them, with what else that store keeps beside them.
type Fence struct {
	Stamp
	Incarnation      uint64
	IncarnationEpoch uint64
	// Server is the run id of the Redis process that wrote the fence; empty in MySQL.
	Server string
	// Suspect: another process than Server has answered: nothing is served from it until it was restored. Redis only.
	Suspect bool
	Frozen  bool
	// FrozenBuckets take no new reservations, the pod's others do.
	FrozenBuckets []Bucket
	// Killed: the latch is set; Latch is its reason. Redis only.
	Killed bool
	Latch  string
	// Marks is the number of outstanding marks; MySQL only.
	Marks int64
	// Whole is the epoch of the last handover in which MySQL was seen to hold nothing back that Redis has ended. Until
	// that is the present one, MySQL's "too few" is no rejection. MySQL only.
	Whole uint64
}

// Forbids tells whether the fence's brakes forbid a new reservation of these lines.
func (f Fence) Forbids(shop int64, lines []Line) bool {
	if f.Frozen || len(f.FrozenBuckets) == 0 {
		return f.Frozen
	}
	return slices.ContainsFunc(lines, func(l Line) bool { return slices.Contains(f.FrozenBuckets, l.Bucket(shop)) })
}
