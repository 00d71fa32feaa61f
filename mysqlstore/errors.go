package mysqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/reservation"
)

// ErrEntryMissing: a mirrored record says claimed, and the ledger has no entry of that claim. Catch-up never
// deducts; the claim's own step 2 has to run.
var ErrEntryMissing = errors.New("the record says claimed but the ledger has no entry of it: run the claim's deduction first")

var (
	errClosed    = errors.New("the store is closed")
	errTimeLimit = errors.New("write transaction reached its time limit")
	// errRace: somebody else changed what was read before the locks; start again.
	errRace = errors.New("lost a race")
)

// sqlError is anything that came back from the driver, so that it cannot be taken for an answer.
type sqlError struct{ err error }

func (e *sqlError) Error() string { return e.err.Error() }
func (e *sqlError) Unwrap() error { return e.err }

func asSQL(err error) error {
	if err == nil {
		return nil
	}
	return &sqlError{err}
}

// commitError: COMMIT was sent, and its reply did not say that it was done.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// Server errors that we act on.
const (
	erTooManyConns  = 1040
	erServerClosing = 1053
	erDupEntry      = 1062
	erLockWait      = 1205
	erDeadlock      = 1213
	erKilled        = 1317
)

// retryReason tells why the whole transaction may be run again, or "" if it may not. It is asked only of
// transactions whose COMMIT was not sent.
func retryReason(err error) string {
	var me *mysql.MySQLError
	switch {
	case errors.Is(err, errRace):
		return "race"
	case errors.Is(err, errTimeLimit):
		return "time_limit"
	case errors.Is(err, errBehind):
		return "fence"
	case errors.As(err, &me):
		switch me.Number {
		case erDeadlock:
			return "1213"
		case erLockWait:
			return "1205"
		case erDupEntry:
			return "1062"
		case erTooManyConns, erServerClosing, erKilled:
			return "lost"
		default:
			return ""
		}
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return "lost"
	}
	var se *sqlError
	if errors.As(err, &se) {
		return "lost" // network errors of any kind: nothing was committed
	}
	return ""
}

// isAnswer tells an error of the domain from a failure to get one.
func isAnswer(err error) bool {
	var (
		se *sqlError
		ce *commitError
	)
	return !errors.As(err, &se) && !errors.As(err, &ce) && !errors.Is(err, errRace) && !errors.Is(err, errBehind)
}

func unavailable(err error) error {
	return &reservation.UnavailableError{Store: reservation.MySQL, Cause: err}
}

func corrupt(format string, args ...any) error {
	return &reservation.CorruptError{Store: reservation.MySQL, What: fmt.Sprintf(format, args...)}
}

// busyAtLast names the reason for which a caller ran out of time: if all it met was busy, then that. An unknown
// outcome stays one.
func busyAtLast(ctx context.Context, waited bool, err error) error {
	var ue *reservation.UnavailableError
	if waited && ctx.Err() != nil && errors.As(err, &ue) {
		return reservation.ErrBusy
	}
	return err
}

// ended gives why a context is over, in words that name a deadline as such.
func ended(ctx context.Context, last error) error {
	cause := context.Cause(ctx)
	if last == nil {
		return cause
	}
	if cause == nil {
		return last
	}
	return fmt.Errorf("%w (last: %w)", cause, last)
}
