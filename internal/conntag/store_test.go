package conntag_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// metered is the store on MySQL with its connections metered.
func metered(t *testing.T) (*mysqlstore.Store, *conntag.Meter, reservation.Stamp) {
	t.Helper()
	meter, err := conntag.New(conntag.Options{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	dsn := devtest.Schema(t)
	if err := mysqlstore.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	// Lazy: the look at the schema's version is goose's own statement, and has no tag.
	store, err := mysqlstore.Open(t.Context(), mysqlstore.Options{DSN: dsn, Pod: devtest.Pod(t), Lazy: true, Wrap: meter.Wrap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	fence, err := store.InitFence(t.Context(), reservation.Stamp{Epoch: 1, Stage: reservation.Complete})
	if err != nil {
		t.Fatal(err)
	}
	return store, meter, fence.Stamp
}

// Every statement of a reservation's life has a tag, alone and in shared transactions.
func TestNoStatementOfTheStoreIsWithoutATag(t *testing.T) {
	t.Parallel()
	store, meter, stamp := metered(t)
	bucket := reservation.Bucket{Shop: 1, Item: 7, Group: 1}
	if _, _, err := store.Stock(t.Context(), stamp, []reservation.Stocking{{Bucket: bucket, Quantity: 500}}); err != nil {
		t.Fatal(err)
	}
	const callers = 16
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() { live(t, store, stamp, fmt.Sprintf("k%d", n), n%2 == 0) })
	}
	all.Wait()
	if _, err := store.Availability(t.Context(), bucket); err != nil {
		t.Error(err)
	}
	if n := meter.Untagged(); n != 0 {
		t.Errorf("%d statements without a tag", n)
	}
	seen := map[string]bool{}
	for _, u := range meter.Usage() {
		seen[u.Tag] = true
		if u.InUse != 0 {
			t.Errorf("in use, and everybody has gone: %+v", u)
		}
	}
	if !seen["begin"] || len(seen) < 5 {
		t.Errorf("tags: %v", seen)
	}
}

// live reserves, and claims or releases.
func live(t *testing.T, store *mysqlstore.Store, stamp reservation.Stamp, key string, claim bool) {
	t.Helper()
	req, err := reservation.NewRequest(1, key, []reservation.Line{{Item: 7, Group: 1, Quantity: 2}}, 10*time.Minute, reservation.Limits{})
	if err != nil {
		t.Error(err)
		return
	}
	id, err := reservation.NewID()
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := store.Reserve(t.Context(), stamp, id, req); err != nil {
		t.Error(err)
		return
	}
	if claim {
		_, err = store.Claim(t.Context(), stamp, 1, id)
	} else {
		_, err = store.Release(t.Context(), stamp, 1, id)
	}
	if err != nil {
		t.Error(err)
	}
}
