package legacyredis

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

var errMovedOn = errors.New("the pod went to another server while its keys were read: try again")

// oneServer makes a check that the pod is where it was, for whoever reads page by page: a cursor means something to the
// server that gave it only. A slot's move shows in its keys before it shows in answers to a SCAN, which names none of
// them; so the fence is read at the beginning, and at the end.
func (s *Store) oneServer(ctx context.Context) (same func(ctx context.Context, end bool) error, err error) {
	p := s.client.place
	if p == nil {
		return func(context.Context, bool) error { return nil }, nil
	}
	moved := &reservation.UnavailableError{Store: reservation.Redis, Cause: errMovedOn}
	var reign uint64
	for range maxAttempts {
		reign = p.reign.Load()
		if _, err := s.ReadFence(ctx); err != nil {
			return nil, err
		}
		if p.reign.Load() == reign {
			break
		}
	}
	return func(ctx context.Context, end bool) error {
		if end {
			if _, err := s.ReadFence(ctx); err != nil {
				return err
			}
		}
		if p.reign.Load() != reign {
			return moved
		}
		return nil
	}, nil
}
