package reservation

import (
	"context"
	"time"
)

// Shortage is one line that could not be had: what was asked, and what was available just then.
type Shortage struct {
	Item, Group, Requested, Available int64
}

// Record is a whole reservation, as a store keeps it: enough to write it into the other store.
// Times are UTC with microseconds; a zero time is a step that was not taken.
type Record struct {
	ID    ID
	Shop  int64
	Key   string // empty once the key was taken over by a newer record
	Hash  Hash
	Lines []Line // normalised; kept in every state

	// Outcome is what the reserve answered: Granted or RejectedShort. A replay gives it again.
	Outcome   Decision
	Shortages []Shortage // of a rejection
	State     State      // as it is now

	DecidedBy Truth
	Epoch     uint64 // in which it was decided
	Late      bool   // it was claimed (or refused) past its expiry
	Marked    bool   // MySQL only: its outcome was answered without Redis, which may not know it yet

	CreatedAt  time.Time
	ExpiresAt  time.Time
	PurgeAt    time.Time // expires_at + retention; past it the key and the id are unknown
	PinnedAt   time.Time
	ReleasedAt time.Time
	ExpiredAt  time.Time
	ClaimedAt  time.Time // claimed or refused
}

// Level is what a store saw available in one bucket at the moment it decided, before its own effect.
type Level struct {
	Bucket    Bucket
	Available int64
}

// Result answers a reserve. Record.Outcome is the answer, Record.State the state of now.
type Result struct {
	Record   Record
	Replayed bool
	// Levels holds what the store saw, one per line where it knows it. Empty on a replay.
	Levels []Level
}

// ClaimResult answers a claim: Record.State is Claimed, or Refused (refund_required).
type ClaimResult struct {
	Record   Record
	Late     bool
	Replayed bool
	// Mirror is what the other store would have answered, where the claim's own protocol wrote both; nil elsewhere.
	Mirror *Judgement
}

// ReleaseResult answers a release. Record.State is Released.
type ReleaseResult struct {
	Record   Record
	Replayed bool
	// WasExpired is true where the hold had already given its units back: none moved now.
	WasExpired bool
}

// AdjustResult answers an adjustment.
type AdjustResult struct {
	// Figures are the bucket's as of now; Change is this adjustment's own, the same again in a replay.
	Figures  Figures
	Change   Change
	Replayed bool
	// Forced is true where it went below what is promised.
	Forced bool
	// Mirror is what the other store would have answered; nil where it was not asked.
	Mirror *Judgement
}

// Availability is a bucket's figures: Available = OnHand - Held.
type Availability struct {
	Bucket                           Bucket
	Available, Held, OnHand, Version int64
	Truth                            Truth
}

// SweepResult is what one sweep did.
type SweepResult struct {
	// Expired holds the reservations that this sweep ended.
	Expired []Record
	// RolledForward counts pins whose claim or adjustment was completed.
	RolledForward int
	// Purged counts records past their retention.
	Purged int
	// Skipped counts due records that were locked, or that could not be read; they come up again.
	Skipped int
	// More is true where the batch was full: there may be more to do at once.
	More bool
}

// Store is a reservation store that decides. Every method is safe for concurrent use, obeys its context's
// deadline, checks the stamp against its fence in the same atomic step as the write, and is idempotent by id and
// key, so that a caller may retry it. Errors are those of this package; DecisionOf and CodeOf sort them.
//
// Reserve takes a fresh id; a replay answers with the first record's id. Claim and Release answer ErrNotFound for
// an id of another shop. Sweep expires due holds, rolls old pins forward and purges, limit records at most.
type Store interface {
	Reserve(ctx context.Context, st Stamp, id ID, req Request) (Result, error)
	Claim(ctx context.Context, st Stamp, shop int64, id ID) (ClaimResult, error)
	Release(ctx context.Context, st Stamp, shop int64, id ID) (ReleaseResult, error)
	Adjust(ctx context.Context, st Stamp, adj Adjustment) (AdjustResult, error)
	Get(ctx context.Context, shop int64, id ID) (Record, error)
	Availability(ctx context.Context, b Bucket) (Availability, error)
	Sweep(ctx context.Context, st Stamp, limit int) (SweepResult, error)
}

// Figures is what the ledger says of a bucket. Whoever keeps a copy applies it absolutely, and only if Version is
// newer than its own.
type Figures struct {
	Bucket          Bucket
	OnHand, Version int64
}

// Pin is the first half of a claim where Redis decides: the whole record, and how the claim came to be late.
type Pin struct {
	Record Record // State is Claiming
	// Late: the pin found the reservation past its expiry.
	Late bool
	// Refuse: late, none available, and the pod's late_claim is refuse: the ledger records refused, deducts nothing.
	Refuse bool
	// Unjudged: the pin was set while MySQL decided, or by force: whether the claim is late, and what then, is judged
	// by the ledger's transaction, by MySQL's clock, whatever the stage is by then.
	Unjudged bool
}

// Deduction is what became of a claim in the ledger.
type Deduction struct {
	// State is Claimed, Refused, or what MySQL had already made of it (a conflict): Released, and where MySQL decides
	// Rejected too.
	State    State
	Replayed bool
	At       time.Time
	// Late: the claim came past the expiry, by whoever judged it.
	Late bool
	// Changes are the ledger's, of this very claim, one a line: the same again in a replay. Empty unless Claimed.
	Changes []Change
	// Judgement is what MySQL's own record would have made of this claim.
	Judgement Judgement
}

// Ledger is on_hand per bucket, in MySQL in every stage. The store that decides calls it to make a claim or an
// adjustment permanent. Both are idempotent: an entry that is already there is a replay.
type Ledger interface {
	// Deduct is the one MySQL transaction of a claim that Redis has pinned.
	Deduct(ctx context.Context, st Stamp, pin Pin) (Deduction, error)
	// ApplyAdjustment is the one MySQL transaction of an adjustment. A negative one that the truth has already
	// taken from its available stock is told by taken: the ledger then carries it out even where its own pool lacks it.
	ApplyAdjustment(ctx context.Context, st Stamp, adj Adjustment, taken bool) (AdjustResult, error)
	// Lookup finds a reservation, or (purged) the entries of its claim: then State is Claimed and Key is empty.
	Lookup(ctx context.Context, shop int64, id ID) (Record, error)
	// AdjustmentByID finds a past adjustment; ErrNotFound if there is none.
	AdjustmentByID(ctx context.Context, shop int64, id string) (Adjustment, AdjustResult, error)
	// ChangesOf gives the changes of a claimed reservation's entries; ErrNotFound if there are none.
	ChangesOf(ctx context.Context, shop int64, id ID) ([]Change, error)
	// Figures walks the ledger in bucket order: up to limit buckets after the given one.
	Figures(ctx context.Context, after Bucket, limit int) ([]Figures, error)
}

// MirrorOp is one operation that the truth has carried out, on its way to the other store. It carries the whole
// reservation, so that it can arrive in any order, any number of times.
type MirrorOp struct {
	Op Op
	// Decision is the truth's. KeyConflict, NotFound, UnknownBucket, StateConflict and AdjustRefused are judged and
	// store nothing.
	Decision Decision
	Replayed bool
	// Record is the reservation after the operation. For a KeyConflict, NotFound or UnknownBucket it holds what the
	// caller sent (shop, key, hash, lines, id), State zero.
	Record Record
	// Adjustment is set for OpAdjust: only a refused one is sent to a mirror, since the ledger carries out the others.
	Adjustment *Adjustment
	// Changes are the ledger's, for a Record that is Claimed, on its way to Redis.
	Changes []Change
	// Adopt: somebody was promised this hold (it is marked, or Redis lost it): it is stored by force, whatever the other
	// store has, but for a higher state.
	Adopt bool
	// Expect, if not nil, makes the write a compare-and-set: nothing is stored unless the mirror's state is *Expect
	// (zero: not known there). Catch-up uses it.
	Expect *State
}

// Judgement is what a mirror would have answered, had it decided.
type Judgement struct {
	Decision Decision
	// State is the mirror's state of the reservation after the operation; zero if it does not know it.
	State State
	// Record is the mirror's record after the operation where it was read or written whole, else nil.
	Record *Record
	// Levels holds what the mirror saw, where its decision differs from the truth's.
	Levels []Level
	// Shortages of a would-be rejection.
	Shortages []Shortage
	// Stored is true where this operation changed the mirror.
	Stored bool
	// Forced is the number of units taken although the mirror had them not.
	Forced int64
	// Backfilled: the reservation was not there although its own reserve should have been: it was stored without
	// being judged. The operation counts as a gap, not as compared.
	Backfilled bool
	// Overtaken: a later step of the same reservation got here first; there was nothing left to judge.
	Overtaken bool
}

// Mirror is a store that follows. Mirror judges the operation and stores what the truth did, in one transaction.
type Mirror interface {
	Mirror(ctx context.Context, st Stamp, op MirrorOp) (Judgement, error)
}

// Walker pages through a store's reservations in order of id: up to limit records with an id above after.
type Walker interface {
	Walk(ctx context.Context, after ID, limit int) ([]Record, error)
}

// Stocker gives buckets their first stock. It is idempotent: a bucket that is there is left alone and reported.
type Stocker interface {
	Stock(ctx context.Context, st Stamp, stock []Stocking) (created []Figures, existing []Bucket, err error)
}

// Fencer reads and creates a store's fence. Init creates it only if the store holds nothing of this pod: it reports
// whether the store was empty, and returns the fence that is there afterwards.
type Fencer interface {
	ReadFence(ctx context.Context) (Fence, error) // Epoch 0: none
	Empty(ctx context.Context) (bool, error)      // no reservation and no fence of this pod
	InitFence(ctx context.Context, st Stamp) (Fence, error)
}

// LatePolicy is what a late claim does when nothing is available.
type LatePolicy uint8

// The policies.
const (
	// ForceLate deducts all the same, at the expense of a hold that has not paid.
	ForceLate LatePolicy = iota + 1
	// RefuseLate answers refund_required.
	RefuseLate
)

// String gives the policy as the configuration writes it.
func (p LatePolicy) String() string {
	switch p {
	case ForceLate:
		return "force"
	case RefuseLate:
		return "refuse"
	default:
		return "invalid"
	}
}
