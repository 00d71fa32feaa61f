package memstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/memstore"
	"github.com/twinhold/twinhold/reservation/storetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, cfg storetest.Config) *storetest.Harness {
		t.Helper()
		return harness(t, cfg, func(s *memstore.Store) reservation.Store { return s })
	})
}

// harness makes a memstore that the suite sees through wrap.
func harness(t *testing.T, cfg storetest.Config, wrap func(*memstore.Store) reservation.Store) *storetest.Harness {
	t.Helper()
	s, err := memstore.New(memstore.Options{Clock: time.Now, Late: cfg.Late, Retention: cfg.Retention})
	if err != nil {
		t.Fatal(err)
	}
	stamp := reservation.Stamp{Epoch: 4, Stage: reservation.Shadow}
	s.SetFence(reservation.Fence{Stamp: stamp})
	return &storetest.Harness{
		Store: wrap(s),
		Stamp: stamp,
		Truth: reservation.MySQL,
		Stock: func(ctx context.Context, stock []reservation.Stocking) error {
			_, _, err := s.Stock(ctx, stamp, stock)
			return err
		},
		Inspect: func(ctx context.Context) (*reservation.Snapshot, *reservation.Snapshot, error) {
			red, err := s.InspectCounters(ctx)
			if err != nil {
				return nil, nil, err
			}
			sql, err := s.Inspect(ctx)
			return &red, &sql, err
		},
		SetFence: func(_ context.Context, f reservation.Fence) error {
			s.SetFence(f)
			return nil
		},
		Unsupported: map[storetest.Feature]string{
			storetest.LostReplies: "memstore is called in the process: there is no reply to lose",
			storetest.Crashes:     "memstore keeps nothing when its process is killed",
		},
	}
}
