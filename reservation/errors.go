package reservation

import (
	"errors"
	"fmt"
)

// Conditions that carry no data. Each maps to one API code by CodeOf.
var (
	// ErrNotFound: the shop has no reservation of this id.
	ErrNotFound = errors.New("no such reservation in this shop")
	// ErrKeyConflict: the key (or the adjustment id) was used with another request.
	ErrKeyConflict = errors.New("this key was used with another request: use a new key for a new request")
	// ErrBusy: somebody else holds what is needed for the moment. Nothing was changed.
	ErrBusy = errors.New("busy: retry with the same key")
	// ErrFrozen: the pod or the bucket takes no new decisions.
	ErrFrozen = errors.New("frozen: no new reservations for now, status says since when and why")
)

// InvalidError says which field of a request is wrong and what to send instead. Nothing was touched.
type InvalidError struct {
	Field  string
	Reason string
}

// Error gives the field and the reason.
func (e *InvalidError) Error() string { return e.Field + " " + e.Reason }

func invalid(field, format string, args ...any) *InvalidError {
	return &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

func atLine(i int, err error) error {
	var inv *InvalidError
	if errors.As(err, &inv) {
		return &InvalidError{Field: fmt.Sprintf("lines[%d].%s", i, inv.Field), Reason: inv.Reason}
	}
	return err
}

// UnknownBucketError: a bucket of the request was never stocked. Nothing was changed.
type UnknownBucketError struct{ Bucket Bucket }

// Error names the bucket.
func (e *UnknownBucketError) Error() string {
	return fmt.Sprintf("unknown bucket %s: stock it first", e.Bucket)
}

// ConflictError: the reservation's state forbids the operation. Nothing was changed.
type ConflictError struct {
	Op    Op
	State State
}

// Error names the operation and the state.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("cannot %s a %s reservation", e.Op, e.State)
}

// ShortError: a negative adjustment would go below what is promised. Nothing was changed.
type ShortError struct {
	Bucket           Bucket
	Asked, Available int64
}

// Error gives the figures.
func (e *ShortError) Error() string {
	return fmt.Sprintf("cannot take %d from bucket %s: only %d are not promised", e.Asked, e.Bucket, e.Available)
}

// UnknownOutcomeError: the operation was sent and no reply settled what became of it. It is neither done nor
// failed: retry with the same key or id.
type UnknownOutcomeError struct {
	Store Truth
	Op    Op
	Cause error
}

// Error says that the outcome is unknown and what to do.
func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("outcome of %s in %s is unknown, retry with the same key: %v", e.Op, e.Store, e.Cause)
}

// Unwrap gives the cause.
func (e *UnknownOutcomeError) Unwrap() error { return e.Cause }

// UnavailableError: the store could not be asked, or refused before it changed anything.
type UnavailableError struct {
	Store Truth
	Cause error
}

// Error names the store and the cause.
func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s is unavailable: %v", e.Store, e.Cause)
}

// Unwrap gives the cause.
func (e *UnavailableError) Unwrap() error { return e.Cause }

// CorruptError: the store holds something that no code of ours writes there (a key of the wrong type, a half
// bucket). Nothing was changed; a person has to look.
type CorruptError struct {
	Store Truth
	What  string
}

// Error says what was found.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s holds corrupt data: %s", e.Store, e.What)
}

// FenceVerdict is why a store refused a write's stamp.
type FenceVerdict uint8

// The verdicts of a fence.
const (
	// Stale: the caller's epoch is lower than the fence's: load the fence, route again.
	Stale FenceVerdict = iota + 1
	// Regressed: the caller's epoch is higher, or equal with another stage: the store has lost writes.
	Regressed
	// NoFence: the store has no fence: never set up, or flushed.
	NoFence
)

// String gives the verdict as the scripts reply it.
func (v FenceVerdict) String() string {
	switch v {
	case Stale:
		return "STALE"
	case Regressed:
		return "REGRESSED"
	case NoFence:
		return "NOFENCE"
	default:
		return fmt.Sprintf("fence verdict(%d)", uint8(v))
	}
}

// FenceError: the store's fence refused the write; nothing was changed. Fence is what the store holds.
type FenceError struct {
	Store   Truth
	Verdict FenceVerdict
	Caller  Stamp
	Fence   Fence
}

// Error gives both stamps.
func (e *FenceError) Error() string {
	if e.Verdict == NoFence {
		return fmt.Sprintf("%s has no fence for this pod (caller: epoch %d, %s)", e.Store, e.Caller.Epoch, e.Caller.Stage)
	}
	return fmt.Sprintf("%s fence says %s: it is at epoch %d, %s; the caller at epoch %d, %s",
		e.Store, e.Verdict, e.Fence.Epoch, e.Fence.Stage, e.Caller.Epoch, e.Caller.Stage)
}

// CheckFence compares a caller's stamp with a fence and gives nil or a *FenceError.
func CheckFence(store Truth, caller Stamp, f Fence) error {
	switch {
	case f.Epoch == 0:
		return &FenceError{Store: store, Verdict: NoFence, Caller: caller}
	case caller.Epoch < f.Epoch:
		return &FenceError{Store: store, Verdict: Stale, Caller: caller, Fence: f}
	case caller != f.Stamp:
		return &FenceError{Store: store, Verdict: Regressed, Caller: caller, Fence: f}
	default:
		return nil
	}
}

// Code is an API code, by its Connect name.
type Code string

// The codes that the data API uses.
const (
	CodeOK                 Code = "ok"
	CodeInvalidArgument    Code = "invalid_argument"
	CodeNotFound           Code = "not_found"
	CodeAlreadyExists      Code = "already_exists"
	CodeFailedPrecondition Code = "failed_precondition"
	CodeUnavailable        Code = "unavailable"
	CodeInternal           Code = "internal"
)

// CodeOf maps an error to its one API code. An error that is none of ours is internal.
func CodeOf(err error) Code {
	var (
		inv   *InvalidError
		unk   *UnknownBucketError
		con   *ConflictError
		short *ShortError
		uo    *UnknownOutcomeError
		una   *UnavailableError
		fen   *FenceError
	)
	switch {
	case err == nil:
		return CodeOK
	case errors.As(err, &inv):
		return CodeInvalidArgument
	case errors.Is(err, ErrNotFound), errors.As(err, &unk):
		return CodeNotFound
	case errors.Is(err, ErrKeyConflict):
		return CodeAlreadyExists
	case errors.As(err, &con), errors.As(err, &short):
		return CodeFailedPrecondition
	case errors.Is(err, ErrBusy), errors.Is(err, ErrFrozen), errors.As(err, &uo), errors.As(err, &una), errors.As(err, &fen):
		return CodeUnavailable
	default:
		return CodeInternal
	}
}

// DecisionOf gives the decision that an error of op stands for: Undecided unless the store did decide.
func DecisionOf(err error) Decision {
	var (
		unk   *UnknownBucketError
		con   *ConflictError
		short *ShortError
	)
	switch {
	case errors.As(err, &unk):
		return UnknownBucket
	case errors.Is(err, ErrNotFound):
		return NotFound
	case errors.Is(err, ErrKeyConflict):
		return KeyConflict
	case errors.As(err, &con):
		return StateConflict
	case errors.As(err, &short):
		return AdjustRefused
	default:
		return Undecided
	}
}
