package killswitch

import (
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// RefusedError: nothing was changed, because it is not safe, or not possible, now. Hint says what to do.
type RefusedError struct {
	Pod    string
	Action string
	Reason string
	Hint   string
	// Gates that were shut, where gates refused it.
	Gates []Gate
}

// Error names the pod and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s of pod %s is refused: %s", e.Action, e.Pod, e.Reason)
}

// NoRefugeError: the pod's Redis could not take a kill, so there is nothing to flee to.
type NoRefugeError struct {
	Pod string
	// Latched: Redis is in doubt (suspect, flushed, being restored), but it has the latch: the kill counts as soon as it
	// has been restored. If not, nothing is known to have changed.
	Latched bool
	Cause   error
}

// Error says what there is not.
func (e *NoRefugeError) Error() string {
	if e.Latched {
		return fmt.Sprintf("pod %s is not killed yet: its Redis is in doubt; the latch is set, and counts once Redis has been restored: %v", e.Pod, e.Cause)
	}
	return fmt.Sprintf("pod %s is not killed: a kill flees to Redis, and Redis cannot take it: %v", e.Pod, e.Cause)
}

// Unwrap gives the cause.
func (e *NoRefugeError) Unwrap() error { return e.Cause }

// IncompleteError: a change stands in one store, and the rest of it failed. Running it again finishes it.
type IncompleteError struct {
	Pod  string
	Did  string
	Left string
	// Cause is what stopped it.
	Cause error
}

// Error says what stands and what is left.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("pod %s: %s; not done: %s: %v", e.Pod, e.Did, e.Left, e.Cause)
}

// Unwrap gives the cause.
func (e *IncompleteError) Unwrap() error { return e.Cause }

// IsRefused tells whether an error is a refusal.
func IsRefused(err error) bool {
	var r *RefusedError
	return errors.As(err, &r)
}

// plain says of a change of the fence that got no answer what a person needs: the stores speak of the operations of the
// data path, and of their keys.
func plain(what string, err error) error {
	var unknown *reservation.UnknownOutcomeError
	if !errors.As(err, &unknown) {
		return err
	}
	store := "Redis"
	if unknown.Store == reservation.MySQL {
		store = "MySQL"
	}
	return &unansweredError{text: fmt.Sprintf("%s did not answer, so the %s may or may not have been done: %v", store, what, unknown.Cause), cause: err}
}

type unansweredError struct {
	text  string
	cause error
}

func (e *unansweredError) Error() string { return e.text }

func (e *unansweredError) Unwrap() error { return e.cause }
