package mysqlstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestWritesWaitForNothingElse: shared transactions take, claim and release while somebody holds the unit behind
// theirs, another reservation and its line. The tables are small, where the optimizer would like to read them whole.
func TestWritesWaitForNothingElse(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		reg := prometheus.NewRegistry()
		j := &jam{reg: reg}
		j.bench = open(t, complete, tune, func(o *mysqlstore.Options) {
			o.Registerer, o.LowWater, o.LockWait, o.WriteTimeout = reg, -1, 3*time.Second, jamTime
		})
		j.stock(100)
		other := j.reserve("other", line(1, 1)).Record
		for _, query := range []string{
			"SELECT id FROM reservation_units WHERE shop_id = 7 AND inventory_item_id = 1 AND id = 34 FOR UPDATE",
			fmt.Sprintf("SELECT id FROM reservations WHERE id = x'%x' FOR UPDATE", other.ID[:]),
			fmt.Sprintf("SELECT quantity FROM reserved_quantities WHERE shop_id = 7 AND inventory_item_id = 1 AND inventory_group_id = 1 AND reservation_id = x'%x' FOR UPDATE", other.ID[:]),
		} {
			defer grip(t, j.bench, query)()
		}
		ids := make([]reservation.ID, 32) // the units 2 to 33
		each := func(do func(n int) error) {
			var wg sync.WaitGroup
			for n := range ids {
				wg.Go(func() {
					if err := do(n); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		each(func(n int) error {
			res, err := j.buy(t.Context(), fmt.Sprint("k", n), line(1, 1))
			ids[n] = res.Record.ID
			return err
		})
		each(func(n int) (err error) {
			if n%2 == 0 {
				_, err = j.Claim(t.Context(), j.st, shop, ids[n])
			} else {
				_, err = j.Release(t.Context(), j.st, shop, ids[n])
			}
			return err
		})
		if n := j.gauge("twinhold_mysql_lane_batch_members", "ledger"); n == 0 {
			t.Error("no claims shared a transaction: this shows nothing")
		}
		for _, reason := range []string{"1205", "1213", "time_limit"} {
			if n := j.gauge("twinhold_mysql_retries_total", reason) + j.gauge("twinhold_mysql_lane_apart_total", reason); n > 0 {
				t.Errorf("%v waits ended in %s", n, reason)
			}
		}
		j.figures(1, 100-1-16, 100-16)
	})
}

// TestReplayAfterNone (I6): a key that comes again while no keys are looked up has its answer, though nothing is left.
func TestReplayAfterNone(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(5)
	first := b.reserve("a", line(1, 5))
	for range 2 { // the second time, keys are looked up
		if again := b.reserve("a", line(1, 5)); !again.Replayed || again.Record.ID != first.Record.ID {
			t.Errorf("with nothing left, the replay is %+v", again)
		}
	}
	b.invariants()
}
