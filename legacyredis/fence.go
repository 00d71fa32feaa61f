package legacyredis

import (
	"context"
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// scanPage is how many keys one SCAN looks at.
const scanPage = 1000

// ReadFence reads the pod's fence, latch and suspicion included; Epoch 0 means that there is none.
func (s *Store) ReadFence(ctx context.Context) (reservation.Fence, error) {
	return s.fence(ctx, call{script: s.scripts.fenceRead, readOnly: true})
}

// fence runs a script that answers with the fence.
func (s *Store) fence(ctx context.Context, c call) (reservation.Fence, error) {
	c.op = reservation.OpReserve
	r, err := s.run(ctx, c)
	if err != nil {
		return fenceOf(err), err
	}
	if r.status != "FENCE" {
		return reservation.Fence{}, strange(c, r)
	}
	return parseFence(r)
}

// fenceOf gives the fence that an error carries, so that whoever was refused knows what is there.
func fenceOf(err error) reservation.Fence {
	var refused *reservation.FenceError
	if errors.As(err, &refused) {
		return refused.Fence
	}
	return reservation.Fence{}
}

// Empty tells whether Redis holds nothing of this pod: no fence, no reservation, no counter. It looks at every key
// of the database, in pages.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	empty := true
	err := s.scan(ctx, func(keys []string) (bool, error) {
		for _, key := range keys {
			// What people and routers leave beside the data does not count.
			if key != s.keys.fence() && s.keys.stays(key) {
				continue
			}
			empty = false
			return false, nil
		}
		return true, nil
	})
	return empty, err
}

// scan gives the pod's keys page by page, until f says that it has enough. A key may come twice. All pages are of one
// server, which has the whole pod: where that changes on the way, it fails.
func (s *Store) scan(ctx context.Context, f func(keys []string) (more bool, err error)) error {
	same, err := s.oneServer(ctx)
	if err != nil {
		return err
	}
	var cursor uint64
	for {
		var page []string
		err := s.ask(ctx, "scan", func(ctx context.Context) error {
			keys, next, err := s.client.Scan(ctx, cursor, s.keys.all(), scanPage).Result()
			if err != nil {
				return err
			}
			page, cursor = keys, next
			return nil
		})
		if err == nil {
			err = same(ctx, cursor == 0)
		}
		if err != nil {
			return err
		}
		more, err := f(page)
		if err != nil || !more || cursor == 0 {
			return err
		}
	}
}

// InitFence creates the fence with the given stamp, if Redis holds nothing of this pod, and gives the fence that is
// there afterwards. It never overwrites one. Where data is there without a fence, the fence was lost: that is a
// *reservation.FenceError.
func (s *Store) InitFence(ctx context.Context, st reservation.Stamp) (reservation.Fence, error) {
	if st.Epoch == 0 || !st.Stage.Valid() {
		return reservation.Fence{}, &reservation.InvalidError{Field: "fence", Reason: "needs an epoch from 1 and a valid stage"}
	}
	f, err := s.ReadFence(ctx)
	if err != nil || f.Epoch != 0 {
		return f, err
	}
	empty, err := s.Empty(ctx)
	if err != nil {
		return f, err
	}
	if !empty {
		return s.raced(ctx, st, "keys of this pod")
	}
	c := call{script: s.scripts.fenceInit, op: reservation.OpReserve, stamp: st}
	r, err := s.run(ctx, c)
	switch {
	case err != nil:
		return f, err
	case r.status == "NOTEMPTY":
		return s.raced(ctx, st, r.text(0))
	case r.status != "FENCE":
		return f, strange(c, r)
	}
	return parseFence(r)
}

// raced: data was seen without a fence. Another process may have created both since then; if not, the fence is lost.
func (s *Store) raced(ctx context.Context, st reservation.Stamp, what string) (reservation.Fence, error) {
	f, err := s.ReadFence(ctx)
	if err != nil || f.Epoch != 0 {
		return f, err
	}
	return f, fmt.Errorf("%w: but %s is there, so the fence was lost: restore this Redis before it is used",
		&reservation.FenceError{Store: reservation.Redis, Verdict: reservation.NoFence, Caller: st}, what)
}
