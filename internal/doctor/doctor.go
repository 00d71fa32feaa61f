// Package doctor compares a pod's MySQL server with what the design assumes of it, beyond what the store itself checks
// (version, SKIP LOCKED, binary log, clock, schema, fence): limits, flushing, privileges, old read views, and whether
// our connections are what we asked for.
//
// It promises that each finding says what it found and, where it is not well, how to mend it; that what the account may
// not see is said and not guessed; and that a server which is set up as the design assumes gives no failure.
//
// It never changes anything, on the server or in the schema.
package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Options say what is too much. A zero value takes the default.
type Options struct {
	// MaxReadView is how old another's transaction may be. Default 5m.
	MaxReadView time.Duration
	// MaxHistory is how many changes may wait for the purge. Default 1,000,000.
	MaxHistory int64
}

const (
	defaultMaxReadView = 5 * time.Minute
	defaultMaxHistory  = 1_000_000
)

// Examine asks the server through the store's own connections (Store.DB, or mysqlstore.OpenDB). The error says only that
// it could not be asked.
func Examine(ctx context.Context, db *sql.DB, o Options) ([]reservation.Finding, error) {
	o.MaxReadView = cmp.Or(o.MaxReadView, defaultMaxReadView)
	o.MaxHistory = cmp.Or(o.MaxHistory, defaultMaxHistory)
	v, err := readVariables(ctx, db)
	if err != nil {
		return nil, err
	}
	found := v.findings()
	for _, look := range []func(context.Context, *sql.DB, Options) (reservation.Finding, error){purgeLag, readViews, serveRights, migrateRights, globalRights, connsRights} {
		f, err := look(ctx, db, o)
		if err != nil {
			return nil, err
		}
		found = append(found, f)
	}
	return found, nil
}
