package mysqlstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestLaneEndings (I6): claims and releases of every kind in one transaction: each is answered as it would be alone,
// one whose record cannot be read harms nobody, and each entry has its own version.
func TestLaneEndings(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		j := newJam(t, cutover, tune)
		j.stock(100, 100)
		hold := func(key string) reservation.ID { return j.reserve(key, line(1, 2), line(2, 1)).Record.ID }
		ids := map[string]reservation.ID{}
		for _, key := range []string{"claim0", "claim1", "cut", "again", "release0", "release1", "deduct0", "deduct1", "conflict", "broken"} {
			ids[key] = hold(key)
		}
		ctx := t.Context()
		if _, err := j.Claim(ctx, j.st, shop, ids["again"]); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Release(ctx, j.st, shop, ids["conflict"]); err != nil {
			t.Fatal(err)
		}
		j.stopReleases(j.bench)
		calls := map[string]chan error{}
		for key, id := range ids {
			if key != "broken" {
				calls[key] = j.start(func() error { return j.end(key, id) })
			}
		}
		j.allWait()
		// The last of all, so that it shares whoever got a turn meanwhile.
		calls["broken"] = j.queue(func() error { return j.end("broken", ids["broken"]) })
		if _, err := j.DB().ExecContext(ctx, "UPDATE reservations SET cart = 'x' WHERE id = ?", bytesOf(ids["broken"])); err != nil {
			t.Fatal(err)
		}
		j.letGo()
		for key, done := range calls {
			err := <-done
			var corrupt *reservation.CorruptError
			var conflict *reservation.ConflictError
			switch {
			case key == "broken" && errors.As(err, &corrupt), key == "conflict" && errors.As(err, &conflict):
			case key == "broken", key == "conflict", err != nil:
				t.Errorf("%s: %v", key, err)
			}
		}
		j.solos.Wait()
		if j.gauge("twinhold_mysql_lane_apart_total", "error") == 0 {
			t.Error("no shared transaction met the broken record: this shows nothing")
		}
		if marked := j.marked(); len(marked) != 1 || marked[0] != ids["cut"] {
			t.Errorf("marked: %v", marked)
		}
		if _, err := j.DB().ExecContext(ctx, "UPDATE reservations SET cart = '[[1,1,2],[2,1,1]]' WHERE id = ?", bytesOf(ids["broken"])); err != nil {
			t.Fatal(err)
		}
		j.figures(1, 100-6*2-2, 100-6*2)
		versions(t, j.bench, 7)
		j.invariants()
	})
}

// end claims or releases a hold, as its key says.
func (j *jam) end(key string, id reservation.ID) error {
	ctx := j.t.Context()
	var res reservation.ClaimResult
	var err error
	switch {
	case strings.HasPrefix(key, "release"):
		_, err = j.Release(ctx, j.st, shop, id)
		return err
	case strings.HasPrefix(key, "deduct"):
		rec, err := j.Get(ctx, shop, id)
		if err != nil {
			return err
		}
		pin := pinOf(rec)
		d, err := j.Deduct(ctx, j.st, pin)
		if err == nil && (d.State != reservation.Claimed || d.Replayed || len(d.Changes) != 2 || d.Changes[0].Delta != -2 ||
			d.Judgement.Decision != reservation.ClaimedOK || d.Judgement.State != reservation.Claimed) {
			return fmt.Errorf("%+v", d)
		}
		if err != nil {
			return err
		}
		again, err := j.Deduct(ctx, j.st, pin)
		if err == nil && (!again.Replayed || again.Changes[0] != d.Changes[0] || !again.At.Equal(d.At)) {
			err = fmt.Errorf("again: %+v, was %+v", again, d)
		}
		return err
	case key == "cut":
		res, err = j.Cut().Claim(ctx, j.st, shop, id)
	default:
		res, err = j.Claim(ctx, j.st, shop, id)
	}
	if err == nil && (res.Record.State != reservation.Claimed || res.Replayed != (key == "again")) {
		err = fmt.Errorf("%+v", res)
	}
	return err
}

func bytesOf(id reservation.ID) []byte { return id[:] }

// versions checks that the changes of item 1 are numbered 1 to n.
func versions(t *testing.T, b *bench, n int) {
	t.Helper()
	var count, distinct, highest, current int
	err := b.DB().QueryRowContext(t.Context(), `SELECT COUNT(*), COUNT(DISTINCT e.version), MAX(e.version), MAX(l.version)
FROM ledger_entries e JOIN inventory_ledger l USING (shop_id, inventory_item_id, inventory_group_id)
WHERE inventory_item_id = 1`).Scan(&count, &distinct, &highest, &current)
	if err != nil || count != n || distinct != n || highest != n || current != n {
		t.Errorf("%d entries with %d versions up to %d, the ledger is at %d (%v); want %d", count, distinct, highest, current, err, n)
	}
}

// TestLaneGuard: what a shared transaction finds changed under it is not committed, though its COMMIT is in the packet.
func TestLaneGuard(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		j := newJam(t, complete, tune)
		j.stock(100)
		good, bad := j.reserve("good", line(1, 2)).Record.ID, j.reserve("bad", line(1, 2)).Record.ID
		j.stopReleases(j.bench)
		calls := map[reservation.ID]chan error{}
		for _, id := range []reservation.ID{good, bad} {
			calls[id] = j.start(func() error { _, err := j.Claim(t.Context(), j.st, shop, id); return err })
		}
		j.allWait()
		// Its live line is lost, which no lock forbids.
		if _, err := j.DB().ExecContext(t.Context(), "DELETE FROM reserved_quantities WHERE reservation_id = ?", bad[:]); err != nil {
			t.Fatal(err)
		}
		j.letGo()
		var corrupt *reservation.CorruptError
		if err := <-calls[bad]; !errors.As(err, &corrupt) {
			t.Errorf("the one that lost its line: %v", err)
		}
		if err := <-calls[good]; err != nil {
			t.Errorf("the other: %v", err)
		}
		j.solos.Wait()
		if got := j.state(bad); got != reservation.Held {
			t.Errorf("the one that lost its line is %s", got)
		}
		j.until("no transaction is left open", func() bool {
			var locks int
			err := j.DB().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM performance_schema.data_locks WHERE OBJECT_SCHEMA = DATABASE()").Scan(&locks)
			return err == nil && locks == 0
		})
	})
}

// TestLaneKilled (I2, I6): a process killed with -9 in a shared transaction, at each of its steps, and in a refill that
// nobody waited for. What it had in hand is there as a whole or not at all, and comes out the same when it is done again.
func TestLaneKilled(t *testing.T) {
	t.Parallel()
	for n, point := range []string{
		"reserve_shared.units", "reserve_shared.commit", "reserve_shared.committed",
		"ledger_shared.ledger", "ledger_shared.commit", "ledger_shared.committed",
		"claim_shared.commit", "claim_shared.ledger", "claim_shared.committed",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := open(t, complete)
			b.stock(100, 100)
			plain := strings.HasPrefix(point, "claim") // these know one packet only, and one line
			cart := []reservation.Line{line(1, 1)}
			if strings.HasPrefix(point, "ledger") {
				cart = append(cart, line(2, 1))
			}
			job := crashJob{Point: point, Singly: n%2 == 0 && !plain}
			for n := range 24 {
				job.Crowd = append(job.Crowd, request(t, fmt.Sprint("k", n), time.Hour, cart...))
				job.CrowdIDs = append(job.CrowdIDs, newID(t))
			}
			if strings.HasPrefix(point, "ledger") || plain {
				job.CrowdClaims = true
				for n, r := range job.Crowd {
					if _, err := b.Reserve(t.Context(), b.st, job.CrowdIDs[n], r); err != nil {
						t.Fatal(err)
					}
				}
			}
			killedAt(t, b, job)
			b.invariants()
			job.Stamp = b.st
			if err := job.crowd(t.Context(), b.Store); err != nil {
				t.Error(err)
			}
			onHand := int64(100)
			if job.CrowdClaims {
				onHand -= 24
			}
			b.figures(1, 76, onHand)
			b.invariants()
		})
	}
	for point, singly := range map[string]bool{
		"refill.ledger": true, "refill.units": true, "refill.commit": false, "refill.committed": false,
	} {
		t.Run("background "+point, func(t *testing.T) {
			t.Parallel()
			b := open(t, complete, func(o *mysqlstore.Options) { o.LowWater = -1 })
			b.stock(5000)
			b.reserve("fills the pool", line(1, 1))
			job := crashJob{Point: point, Singly: singly, CrowdIDs: []reservation.ID{newID(t)}}
			job.Crowd = []reservation.Request{request(t, "k", time.Hour, line(1, 800))}
			killedAt(t, b, job)
			snap := b.invariants()
			if s := snap.Buckets[0]; s.Reserved != 801 || (s.Pool > 199) != (point == "refill.committed") {
				t.Errorf("killed at %s: %+v", point, s)
			}
		})
	}
}

// TestCloseUnderLoad: whoever waits in a lane of a store that closes is told.
func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	j := &jam{reg: prometheus.NewRegistry(), hold: make(chan struct{})}
	b := open(t, complete)
	b.stock(1000)
	j.bench = b.another(func(o *mysqlstore.Options) { o.Registerer = j.reg })
	var wg sync.WaitGroup
	for n := range 32 {
		wg.Go(func() {
			for m := 0; ; m++ {
				if _, err := j.buy(t.Context(), fmt.Sprint("k", n, "-", m), line(1, 1)); err != nil {
					if reservation.CodeOf(err) != reservation.CodeUnavailable {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	j.until("lanes are shared", func() bool { return j.gauge("twinhold_mysql_lane_batch_members") > 3 })
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	b.invariants()
}
