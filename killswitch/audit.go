package killswitch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Audit gives both stores' records, oldest first. A change that both wrote down is one record, whose Store names both.
// With one store out of reach it gives the other's records, and the error.
func (c *Control) Audit(ctx context.Context) ([]reservation.AuditRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	var inRedis, inMySQL []reservation.AuditRecord
	var rerr, merr error
	var both sync.WaitGroup // a store that hangs must not use up the other's time
	both.Go(func() {
		if inRedis, rerr = c.opt.Redis.Audit(ctx); rerr != nil {
			rerr = fmt.Errorf("the audit in Redis: %w", rerr)
		}
	})
	both.Go(func() {
		if inMySQL, merr = c.opt.MySQL.Audit(ctx); merr != nil {
			merr = fmt.Errorf("the audit in MySQL: %w", merr)
		}
	})
	both.Wait()
	if rerr == nil && merr == nil {
		return merge(inRedis, inMySQL), nil
	}
	return merge(inRedis, inMySQL), &auditError{redis: rerr, mysql: merr}
}

// auditError: one store's audit could not be read, or neither's.
type auditError struct{ redis, mysql error }

func (e *auditError) Error() string { return errors.Join(e.redis, e.mysql).Error() }

func (e *auditError) Unwrap() []error {
	return slices.DeleteFunc([]error{e.redis, e.mysql}, func(err error) bool { return err == nil })
}

// BothFailed tells whether an error of Audit means that neither store could be read.
func BothFailed(err error) bool {
	var e *auditError
	return errors.As(err, &e) && e.redis != nil && e.mysql != nil
}

// sameChange is how far apart the two stores' records of one change may be.
const sameChange = time.Minute

// merge puts the records of one change together: each of Redis's takes at most one of MySQL's.
func merge(inRedis, inMySQL []reservation.AuditRecord) []reservation.AuditRecord {
	out := make([]reservation.AuditRecord, 0, len(inRedis)+len(inMySQL))
	for _, r := range inRedis {
		r.Store = reservation.Redis.String()
		out = append(out, r)
	}
	for _, m := range inMySQL {
		m.Store = reservation.MySQL.String()
		i := slices.IndexFunc(out[:len(inRedis)], func(r reservation.AuditRecord) bool {
			return r.Store == reservation.Redis.String() && sameRecord(r, m)
		})
		if i < 0 {
			out = append(out, m)
			continue
		}
		out[i].Store += ", " + m.Store
		out[i].Detail = m.Detail // of a drill in shadow, with its figures
		if out[i].Debt == nil {
			out[i].Debt = m.Debt
		}
	}
	slices.SortStableFunc(out, func(a, b reservation.AuditRecord) int { return a.At.Compare(b.At) })
	return out
}

func sameRecord(r, m reservation.AuditRecord) bool {
	return r.Action == m.Action && r.After == m.After && r.By == m.By && r.Reason == m.Reason && r.Ticket == m.Ticket &&
		sameDetail(r, m) && r.At.Sub(m.At).Abs() < sameChange
}

// sameDetail: the two records of a drill in shadow are written before and after its acknowledgements are counted.
func sameDetail(r, m reservation.AuditRecord) bool {
	drilled := r.Action == reservation.ActionDrill && strings.HasPrefix(r.Detail, drillDone) && strings.HasPrefix(m.Detail, drillDone)
	return r.Detail == m.Detail || drilled
}

// A drill's records say which of its two halves they are.
const (
	drillKilled  = "drill: killed"
	drillDone    = "drill: done"
	drillVersion = "; version "
)

// isKill tells whether a record is a kill's, a drill's included.
func isKill(r reservation.AuditRecord) bool {
	return r.Action == reservation.ActionKill ||
		r.Action == reservation.ActionDrill && strings.HasPrefix(r.Detail, drillKilled)
}

// lastKill gives the time of the last kill that was no drill: of the first record of its latch, since a kill command
// that finds the pod killed is written down too. A kill by hand in shadow leaves no record: then its rearm stands for it.
func lastKill(recs []reservation.AuditRecord) (at time.Time, by string) {
	open := false
	for _, r := range recs {
		switch {
		case r.Action == reservation.ActionKill && !open:
			at, by, open = r.At, r.By, true
		case r.Action == reservation.ActionRearm && !open:
			at, by = r.At, r.By
		case r.Action == reservation.ActionRearm:
			open = false
		}
	}
	return at, by
}

// standingKill gives the first record of the kill that has not been rearmed, or nil.
func standingKill(recs []reservation.AuditRecord) *reservation.AuditRecord {
	var kill *reservation.AuditRecord
	for i, r := range recs {
		switch {
		case isKill(r) && kill == nil:
			kill = &recs[i]
		case r.Action == reservation.ActionRearm, r.Action == reservation.ActionDrill && strings.HasPrefix(r.Detail, drillDone):
			kill = nil
		}
	}
	return kill
}

// lastDrill gives the last drill that was carried to its end, and the version that drilled; nil if there is none.
func lastDrill(recs []reservation.AuditRecord) (rec *reservation.AuditRecord, version string) {
	for i, r := range recs {
		if r.Action != reservation.ActionDrill || !strings.HasPrefix(r.Detail, drillDone) {
			continue
		}
		rec = &recs[i]
		_, version, _ = strings.Cut(r.Detail, drillVersion)
	}
	return rec, version
}
