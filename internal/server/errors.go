package server

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/twinhold/twinhold/reservation"
)

// internalText is all that a caller is told of what is ours to look into.
const internalText = "internal error: the router's log has its cause"

// fail turns an error of the router into the caller's. The interceptor explained logs what is withheld.
func fail(err error) error {
	switch code := codeOf(err); code {
	case connect.CodeInternal:
		return connect.NewError(code, &withheld{text: internalText, cause: err})
	case connect.CodeUnavailable:
		return connect.NewError(code, &withheld{text: unavailable(err), cause: err})
	default:
		return reasoned(connect.NewError(code, err), err)
	}
}

// The headers that tell a program what the message tells a person.
const (
	// HeaderField names the field of an invalid_argument.
	HeaderField = "Twinhold-Field"
	// HeaderReason is ReasonBucket or ReasonShort, where a code stands for more than one thing.
	HeaderReason = "Twinhold-Reason"

	ReasonBucket = "unknown_bucket"
	ReasonShort  = "short"
)

func reasoned(to *connect.Error, err error) error {
	var (
		inv    *reservation.InvalidError
		bucket *reservation.UnknownBucketError
		short  *reservation.ShortError
	)
	switch {
	case errors.As(err, &inv):
		to.Meta().Set(HeaderField, inv.Field)
	case errors.As(err, &bucket):
		to.Meta().Set(HeaderReason, ReasonBucket)
	case errors.As(err, &short):
		to.Meta().Set(HeaderReason, ReasonShort)
	}
	return to
}

// codeOf maps an error to its Connect code. A call whose time was over has no known outcome: unavailable.
func codeOf(err error) connect.Code {
	switch reservation.CodeOf(err) {
	case reservation.CodeInvalidArgument:
		return connect.CodeInvalidArgument
	case reservation.CodeNotFound:
		return connect.CodeNotFound
	case reservation.CodeAlreadyExists:
		return connect.CodeAlreadyExists
	case reservation.CodeFailedPrecondition:
		return connect.CodeFailedPrecondition
	case reservation.CodeUnavailable:
		return connect.CodeUnavailable
	default:
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return connect.CodeUnavailable
		}
		return connect.CodeInternal
	}
}

// unavailable says why without the cause, and what to do.
func unavailable(err error) string {
	var (
		unknown *reservation.UnknownOutcomeError
		down    *reservation.UnavailableError
		fence   *reservation.FenceError
	)
	switch {
	case errors.As(err, &unknown):
		return "the outcome of " + unknown.Op.String() + " is unknown: retry with the same key"
	case errors.As(err, &down):
		return down.Store.String() + " is unavailable: retry with the same key"
	case errors.As(err, &fence):
		return fence.Store.String() + " refused this router's epoch: retry with the same key"
	case errors.Is(err, reservation.ErrBusy):
		return reservation.ErrBusy.Error()
	case errors.Is(err, reservation.ErrFrozen):
		return reservation.ErrFrozen.Error() + ": retry with the same key once it is lifted"
	default:
		return "the call's time is over, its outcome unknown: retry with the same key"
	}
}
