package mysqlstore_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// plainJam holds items of 1 to 3 units, and stops up their ledger's lane.
func plainJam(t *testing.T, st reservation.Stamp) (*jam, []reservation.Record) {
	t.Helper()
	j := newJam(t, st)
	j.stock(100)
	recs := make([]reservation.Record, 9)
	for n := range recs {
		recs[n] = j.reserve(fmt.Sprint("k", n), line(1, int64(n%3+1))).Record
	}
	j.stopReleases(j.bench)
	return j, recs
}

// plainly tells how many claims' transactions were one packet, and how many of these were given up.
func (j *jam) plainly() [2]float64 {
	return [2]float64{
		j.gauge("twinhold_mysql_operation_duration_seconds", "claim_shared"), j.gauge("twinhold_mysql_retries_total", "not_plain"),
	}
}

// TestPlainClaims (I2, I3, I6): claims that leave nothing to decide are one packet, and each is what it would be alone:
// its record, its entry with a version of its own, its pin's instant.
func TestPlainClaims(t *testing.T) {
	t.Parallel()
	for _, st := range []reservation.Stamp{complete, cutover} {
		t.Run(st.Stage.String(), func(t *testing.T) {
			t.Parallel()
			j, recs := plainJam(t, st)
			ctx := t.Context()
			var calls []chan error
			told := make([]reservation.Deduction, len(recs))
			for n, rec := range recs {
				calls = append(calls, j.start(func() error {
					if st == cutover {
						var err error
						told[n], err = j.Deduct(ctx, st, pinAt(rec))
						return err
					}
					res, err := j.Claim(ctx, st, shop, rec.ID)
					want := after(rec, reservation.Claimed)
					want.ClaimedAt = res.Record.ClaimedAt
					if diff := cmp.Diff(want, res.Record); err == nil && (diff != "" || res.Late || res.Replayed) {
						err = fmt.Errorf("%+v: %s", res, diff)
					}
					told[n].At = res.Record.ClaimedAt
					return err
				}))
			}
			j.allWait()
			j.letGo()
			for n, done := range calls {
				if err := <-done; err != nil {
					t.Errorf("claim %d: %v", n, err)
				}
			}
			if got := j.plainly(); got[0] == 0 || got[1] != 0 {
				t.Errorf("one packet, given up: %v", got)
			}
			for n, rec := range recs {
				j.claimedAs(rec, told[n], st == cutover)
			}
			versions(t, j.bench, 10)
			j.solos.Wait()
			j.figures(1, 100-18, 100-18)
			j.invariants()
		})
	}
}

// pinAt is a pin of this record, of an instant of its own.
func pinAt(rec reservation.Record) reservation.Pin {
	pin := pinOf(rec)
	pin.Record.PinnedAt = rec.CreatedAt.Add(time.Millisecond)
	return pin
}

// claimedAs holds what was told against what is stored.
func (j *jam) claimedAs(rec reservation.Record, told reservation.Deduction, pinned bool) {
	j.t.Helper()
	ctx := j.t.Context()
	got, err := j.Get(ctx, shop, rec.ID)
	want := after(rec, reservation.Claimed)
	want.ClaimedAt = told.At
	if pinned {
		want.PinnedAt = pinAt(rec).Record.PinnedAt
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		j.t.Errorf("stored: %v %s", err, diff)
	}
	if now := time.Now(); told.At.Before(rec.CreatedAt) || told.At.After(now.Add(time.Second)) {
		j.t.Errorf("claimed at %v, reserved at %v, now %v", told.At, rec.CreatedAt, now)
	}
	if !pinned {
		return
	}
	again, err := j.Deduct(ctx, j.st, pinAt(rec))
	told.Replayed = true
	if diff := cmp.Diff(told, again); err != nil || diff != "" {
		j.t.Errorf("again: %v %s", err, diff)
	}
}

// TestPlainClaimsChanged (I6, I7, I8): what was seen without locks is no longer so when the claims come to their locks.
// Nothing of the packet is committed, and each is answered as it would be alone.
func TestPlainClaimsChanged(t *testing.T) {
	t.Parallel()
	on := func(err error, late bool) func(reservation.ClaimResult, error) bool {
		return func(r reservation.ClaimResult, got error) bool {
			if err != nil {
				return errors.Is(got, err)
			}
			return got == nil && r.Record.State == reservation.Claimed && r.Late == late
		}
	}
	for name, c := range map[string]struct {
		sql         string
		behind      bool // the claims carry an older epoch
		first, rest func(reservation.ClaimResult, error) bool
	}{
		"marked": {
			sql:   "UPDATE reservations SET unmirrored = TRUE WHERE id = ?",
			first: on(nil, false), rest: on(nil, false),
		},
		"due": {
			sql:   "UPDATE reservations SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = ?",
			first: on(nil, true), rest: on(nil, false),
		},
		"its line is gone": {
			sql:   "DELETE FROM reserved_quantities WHERE reservation_id = ?",
			first: func(_ reservation.ClaimResult, err error) bool { return errors.As(err, new(*reservation.CorruptError)) },
			rest:  on(nil, false),
		},
		"an older epoch": {
			behind: true,
			first:  func(_ reservation.ClaimResult, err error) bool { return errors.As(err, new(*reservation.FenceError)) },
			rest:   func(_ reservation.ClaimResult, err error) bool { return errors.As(err, new(*reservation.FenceError)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, recs := plainJam(t, complete)
			st := j.st
			if c.behind {
				st.Epoch--
			}
			results, calls := make([]reservation.ClaimResult, len(recs)), make([]chan error, len(recs))
			for n, rec := range recs {
				calls[n] = j.start(func() (err error) {
					results[n], err = j.Claim(t.Context(), st, shop, rec.ID)
					return err
				})
			}
			j.allWait()
			if c.sql != "" {
				if _, err := j.DB().ExecContext(t.Context(), c.sql, bytesOf(recs[0].ID)); err != nil {
					t.Fatal(err)
				}
			}
			j.letGo()
			check := c.first
			for n, done := range calls {
				if err := <-done; !check(results[n], err) {
					t.Errorf("claim %d: %+v, %v", n, results[n], err)
				}
				check = c.rest
			}
			if got := j.plainly(); got[1] == 0 {
				t.Errorf("one packet, given up: %v", got)
			}
			j.solos.Wait()
		})
	}
}

// TestPlainClaimsOfTooMuch (I2): what the ledger does not cover is refused, one by one.
func TestPlainClaimsOfTooMuch(t *testing.T) {
	t.Parallel()
	j := newJam(t, complete)
	j.stock(100)
	var ids []reservation.ID
	for n := range 5 {
		ids = append(ids, j.reserve(fmt.Sprint("k", n), line(1, 10)).Record.ID)
	}
	// As if somebody had written stock off past the tables: 25 are left, all of them held.
	if _, err := j.DB().ExecContext(t.Context(), "UPDATE inventory_ledger SET on_hand = 25"); err != nil {
		t.Fatal(err)
	}
	j.stopReleases(j.bench)
	states := make(chan reservation.State, len(ids))
	for _, id := range ids {
		j.start(func() error {
			res, err := j.Claim(t.Context(), j.st, shop, id)
			if err != nil {
				t.Error(err)
			}
			states <- res.Record.State
			return err
		})
	}
	j.allWait()
	j.letGo()
	got := map[reservation.State]int{}
	for range ids {
		got[<-states]++
	}
	j.solos.Wait()
	if got[reservation.Claimed] != 2 || got[reservation.Refused] != 3 || j.plainly()[1] == 0 {
		t.Errorf("%v, in one packet, given up: %v", got, j.plainly())
	}
}

// TestPlainClaimsAgainstReleases (I2, I6): two processes claim and release the same reservations at once. Locks of
// theirs may meet in two orders; no caller sees anything of that.
func TestPlainClaimsAgainstReleases(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(400)
	other := b.another()
	recs := make([]reservation.Record, 300)
	for n := range recs {
		recs[n] = b.reserve(fmt.Sprint("k", n), line(1, 1)).Record
	}
	var claimed, released atomic.Int64
	end := func(op func() error, won *atomic.Int64) {
		var conflict *reservation.ConflictError
		switch err := op(); {
		case err == nil:
			won.Add(1)
		case !errors.As(err, &conflict):
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for _, rec := range recs {
		wg.Go(func() {
			end(func() error { _, err := b.Claim(t.Context(), b.st, shop, rec.ID); return err }, &claimed)
		})
		wg.Go(func() {
			end(func() error { _, err := other.Release(t.Context(), b.st, shop, rec.ID); return err }, &released)
		})
	}
	wg.Wait()
	if sum := claimed.Load() + released.Load(); sum != int64(len(recs)) {
		t.Errorf("%d claimed and %d released of %d", claimed.Load(), released.Load(), len(recs))
	}
	b.figures(1, 400-claimed.Load(), 400-claimed.Load())
	b.invariants()
}

// MySQL's clock is known to a process whose own is off, as long as it was read lately.
func TestServerTime(t *testing.T) {
	t.Parallel()
	var off atomic.Int64
	off.Store(int64(time.Hour))
	b := open(t, complete, func(o *mysqlstore.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
	})
	if _, err := b.ReadFence(t.Context()); err != nil {
		t.Fatal(err)
	}
	now, ok := b.ServerTime()
	if d := time.Since(now); !ok || d < -time.Minute || d > time.Minute {
		t.Errorf("MySQL's clock is %v, known %t", now, ok)
	}
	off.Add(int64(time.Minute))
	if now, ok := b.ServerTime(); ok {
		t.Errorf("a minute later it is still known as %v", now)
	}
}
