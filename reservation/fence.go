package reservation

import (
	"context"
	"errors"
	"time"
)

// ErrLatched: the pod's kill switch is set, and forbids every move towards MySQL until it is rearmed.
var ErrLatched = errors.New("the pod is killed: rearm it first")

// ErrNotLatched: there is no kill to rearm.
var ErrNotLatched = errors.New("the pod is not killed: there is nothing to rearm")

// ErrRestoring: somebody else is restoring this Redis just now.
var ErrRestoring = errors.New("another restore of this Redis is under way")

// ErrHealthy: this Redis has the highest fence that was seen, and the server that wrote it: nothing to restore.
var ErrHealthy = errors.New("this Redis is healthy: there is nothing to restore")

// Audit actions: what changed a fence, or a brake.
const (
	ActionFlip     = "flip"
	ActionKill     = "kill"
	ActionRearm    = "rearm"
	ActionAbort    = "abort" // of handover, by a router that MySQL did not answer
	ActionFreeze   = "freeze"
	ActionUnfreeze = "unfreeze"
	ActionRestore  = "restore"
	ActionReseed   = "reseed"
	ActionDrill    = "drill"
	ActionMend     = "mend" // of one reservation or bucket, by a person
)

// AuditRecord is one change of a pod's fence, latch or brakes: who, why, before and after. The store that is changed
// writes it in the same atomic step as the change, and fills in At, Before and After.
type AuditRecord struct {
	At     time.Time `json:"at"`
	Pod    string    `json:"pod"`
	Action string    `json:"action"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Ticket string    `json:"ticket,omitempty"`
	Before Stamp     `json:"before"`
	After  Stamp     `json:"after"`
	// Waived names the gates that a person waived.
	Waived []string `json:"waived,omitempty"`
	// Debt is what the change cost; nil where it was not known then.
	Debt *Debt `json:"debt,omitempty"`
	// Detail says what else a person should know: a bucket, what a restore adopted.
	Detail string `json:"detail,omitempty"`
	// Store is the store that holds this record.
	Store string `json:"store,omitempty"`
}

// Debt is what one store promised and the other lacks.
type Debt struct {
	Reservations int64 `json:"reservations"`
	Units        int64 `json:"units"`
	// DrainsInS is how many seconds it takes until the last of them has ended by itself.
	DrainsInS float64 `json:"drains_in_s"`
}

// Heartbeat is what a router tells of itself, by pod: the acknowledgement of the epoch, and its state.
type Heartbeat struct {
	Router string `json:"router"` // its name, unique among the pod's routers
	Stamp
	// At is Redis's clock at the heartbeat. Ago is how long ago that was when the heartbeats were read.
	At  time.Time     `json:"-"`
	Ago time.Duration `json:"-"`
	// Cut: it goes on with MySQL because it could not reach Redis; told once it can again.
	Cut     bool   `json:"cut,omitempty"`
	Queue   int    `json:"queue"`
	Breaker string `json:"breaker"` // closed, half-open or open; none where nothing is mirrored
	// Skipped counts marks look-ups that were skipped since the router started.
	Skipped int64 `json:"skipped,omitempty"`
}

// FenceMove asks Redis for a change of stage, as a compare-and-set.
type FenceMove struct {
	From  Stamp // must be the fence's
	To    Stage // epoch + 1
	Audit AuditRecord
}

// RedisFence is what changes and shows the fence in a pod's Redis. It never asks MySQL. Every method folds a latch
// that it meets in handover or cutover. A FenceError with Regressed, or with NoFence, means that Redis has to be
// restored first.
type RedisFence interface {
	// ReadFence gives the fence as it is, latch and suspicion included, and changes nothing; Epoch 0: none.
	ReadFence(ctx context.Context) (Fence, error)
	// Beat writes the router's heartbeat and gives the fence. It is how a router loads the fence, and acknowledges it.
	// A suspect Redis, or one without a fence, takes no heartbeat: the fence is given all the same (Suspect set, or
	// Epoch 0), so that the router knows.
	Beat(ctx context.Context, hb Heartbeat) (Fence, error)
	// Leave removes a router's heartbeat: it stops on purpose.
	Leave(ctx context.Context, router string) error
	// Routers gives every heartbeat of the last keep, by name. Older ones are removed.
	Routers(ctx context.Context, keep time.Duration) ([]Heartbeat, error)
	// Move changes the stage. *FenceError where From is not the fence's (Stale if the fence is ahead), ErrLatched for a
	// move forward (any but to shadow) while the latch is there.
	Move(ctx context.Context, m FenceMove) (Fence, error)
	// Kill sets the latch and folds it: in handover and cutover epoch + 1 and shadow, in shadow the latch alone. In
	// legacy and complete it is refused: *InvalidError, nothing changed. Killed before: the fence as it is.
	Kill(ctx context.Context, a AuditRecord) (Fence, error)
	// Rearm compares the stamp, raises the epoch, removes the latch, stays in shadow. ErrNotLatched without a latch.
	Rearm(ctx context.Context, from Stamp, a AuditRecord) (Fence, error)
	// Freeze sets or lifts the brake of the pod (zero bucket) or of one bucket.
	Freeze(ctx context.Context, b Bucket, on bool, a AuditRecord) (Fence, error)
	// Audit gives the records, oldest first.
	Audit(ctx context.Context) ([]AuditRecord, error)
	// WaitReplica waits until a replica has all writes so far; how many did. Zero replicas connected: 0, 0.
	WaitReplica(ctx context.Context, wait time.Duration) (reached, connected int, err error)
}

// MySQLFence is the same in the pod's MySQL.
type MySQLFence interface {
	ReadFence(ctx context.Context) (Fence, error) // Epoch 0: none
	// Raise sets epoch and stage if they are newer than what is there, and gives the fence that is there then. It waits
	// for the oldest write transaction. With an audit record (not nil) the change is written down in the same transaction.
	Raise(ctx context.Context, st Stamp, a *AuditRecord) (Fence, error)
	Freeze(ctx context.Context, b Bucket, on bool, a AuditRecord) (Fence, error)
	Audit(ctx context.Context) ([]AuditRecord, error)
}

// Confirmer is Redis's part of a grant that needs both stores (stage handover). Both methods give the record as it is afterwards, whose
// State says what became of it: somebody else may have been first.
type Confirmer interface {
	// Confirm: provisional becomes held.
	Confirm(ctx context.Context, st Stamp, id ID) (Record, error)
	// TurnDown: provisional becomes rejected, with MySQL's shortages; its units go back. A held one is left alone.
	TurnDown(ctx context.Context, st Stamp, id ID, short []Shortage) (Record, error)
}

// Agreer is MySQL's part of it.
type Agreer interface {
	// Agree decides a provisional hold under its own id, key and expiry, as a reserve would (frozen or not: Redis has
	// decided that). The decision is stored with the epoch. Decision: Granted (State: held, or what the record has
	// become since) or RejectedShort. KeyConflict and UnknownBucket store nothing. ErrBusy if others hold the units.
	Agree(ctx context.Context, st Stamp, rec Record) (Judgement, error)
}

// Marks are MySQL's notes on outcomes that were answered without Redis. A mark is written only under a fence in which
// MySQL decides, in the transaction of the outcome or before the answer.
type Marks interface {
	// Mark notes that the record's outcome is answered without Redis. Idempotent.
	Mark(ctx context.Context, st Stamp, id ID) error
	// Marked pages through the marked records in order of id (Record.Marked is set).
	Marked(ctx context.Context, after ID, limit int) ([]Record, error)
	// Unmark removes the mark if the record's state is still expect: Redis has it now. It tells whether it did.
	Unmark(ctx context.Context, st Stamp, id ID, expect State) (bool, error)
	// MarksDebt sums the marked records that are live, and counts all marks.
	MarksDebt(ctx context.Context) (debt Debt, marks int64, err error)
}

// Change is one change of a bucket's on_hand: the ledger's version goes up by one with each.
type Change struct {
	Bucket  Bucket
	Delta   int64
	Version int64
}

// Restoring is a restore of a pod's Redis from MySQL that is under way: begun, not finished. While it is, every script
// of others is refused. Its writes go past the fence. One at a time; if its process dies, another can begin.
type Restoring interface {
	// Seen is the fence as it was found; Epoch 0: none.
	Seen() Fence
	// ApplyFigures gives Redis the ledger's figures absolutely; a bucket that is not there is created.
	ApplyFigures(ctx context.Context, figs []Figures) error
	// Mirror is Redis's Mirror, past the fence; as is every judgement: what stands higher stays.
	Mirror(ctx context.Context, st Stamp, op MirrorOp) (Judgement, error)
	// MirrorAll is Mirror for many, in order and with few round trips. Each stands alone: errs has one for each.
	MirrorAll(ctx context.Context, st Stamp, ops []MirrorOp) (js []Judgement, errs []error)
	// Finish sets the fence: this stamp, incarnation + 1, incarnation_epoch = its epoch, this server, not suspect.
	// killed sets the latch with that reason too: a kill was lost. It is the last step.
	Finish(ctx context.Context, to Stamp, killed string, a AuditRecord) (Fence, error)
	// Abandon gives it up: Redis stays as suspect as it was.
	Abandon(ctx context.Context) error
}
