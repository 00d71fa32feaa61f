package storetest

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

func fenceCases() []testCase {
	return []testCase{
		{name: "stale", run: func(e *env) {
			up := reservation.Fence{Stamp: reservation.Stamp{Epoch: e.h.Stamp.Epoch + 1, Stage: e.h.Stamp.Stage}}
			refusedBy(e, up, reservation.Stale)
		}},
		{name: "stale_after_the_stage_moved", run: func(e *env) {
			up := reservation.Fence{Stamp: reservation.Stamp{Epoch: e.h.Stamp.Epoch + 2, Stage: otherStage(e.h.Stamp.Stage)}}
			refusedBy(e, up, reservation.Stale)
		}},
		{name: "regressed", run: regressed},
		{name: "same_epoch_other_stage", run: func(e *env) {
			same := reservation.Fence{Stamp: reservation.Stamp{Epoch: e.h.Stamp.Epoch, Stage: otherStage(e.h.Stamp.Stage)}}
			refusedBy(e, same, reservation.Regressed)
		}},
		{name: "nofence", run: func(e *env) { refusedBy(e, reservation.Fence{}, reservation.NoFence) }},
		{name: "frozen", needs: Frozen, run: frozen},
	}
}

func otherStage(s reservation.Stage) reservation.Stage {
	if s == reservation.Shadow {
		return reservation.Cutover
	}
	return reservation.Shadow
}

// setFence replaces the fence, and puts the right one back when the case ends.
func (e *env) setFence(f reservation.Fence) (restore func()) {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	if err := e.h.SetFence(ctx, f); err != nil {
		e.Fatalf("set the fence: %v", err)
	}
	return func() {
		e.Helper()
		ctx, cancel := e.ctx()
		defer cancel()
		if err := e.h.SetFence(ctx, reservation.Fence{Stamp: e.h.Stamp}); err != nil {
			e.Fatalf("put the fence back: %v", err)
		}
	}
}

// refusedBy: under this fence every write is refused with the verdict and the fence, and nothing is changed.
func refusedBy(e *env, f reservation.Fence, verdict reservation.FenceVerdict) {
	e.stock(10)
	first := e.reserve("k", line(1, 2))
	held := first.Record.ID
	due := e.grantedFor(shortTTL, line(1, 3))
	e.pass(e.get(due).ExpiresAt)
	e.adjust("before", 1, 1, false)

	restore := e.setFence(f)
	for name, write := range e.writes(held) {
		ctx, cancel := e.ctx()
		err := write(ctx)
		cancel()
		var fe *reservation.FenceError
		if !errors.As(err, &fe) {
			e.Errorf("%s under fence %+v: got %v; want %s", name, f.Stamp, err, verdict)
			continue
		}
		if fe.Verdict != verdict || fe.Caller != e.h.Stamp || verdict != reservation.NoFence && fe.Fence.Stamp != f.Stamp {
			e.Errorf("%s: got %v; want %s and the fence %+v", name, fe, verdict, f.Stamp)
		}
	}
	restore()

	e.figures(1, 6, 5, 11)
	e.state(held, reservation.Held)
	e.state(due, reservation.Held)
	e.wantReplay(e.reserve("k", line(1, 2)), first.Record, reservation.Held)
	if res := e.reserve("fenced", line(1, 1)); res.Replayed {
		e.Errorf("a refused reserve left its key behind")
	}
	if res := e.adjust("fenced", 1, 1, false); res.Replayed {
		e.Errorf("a refused adjustment left its id behind")
	}
	e.claim(held, reservation.Claimed, false)
}

// writes is every write of the contract, ready to be refused.
func (e *env) writes(held reservation.ID) map[string]func(ctx context.Context) error {
	s, st := e.h.Store, e.h.Stamp
	reserve := func(key string, quantity int64) func(ctx context.Context) error {
		req, id := e.request(e.shop, key, longTTL, line(1, quantity)), e.id()
		return func(ctx context.Context) error {
			_, err := s.Reserve(ctx, st, id, req)
			return err
		}
	}
	adjust := func(id string, delta int64) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Adjust(ctx, st, reservation.Adjustment{ID: id, Bucket: e.bucket(1), Delta: delta})
			return err
		}
	}
	return map[string]func(ctx context.Context) error{
		"reserve":                   reserve("fenced", 1),
		"reserve, to be rejected":   reserve("fenced short", 100),
		"reserve, a replay":         reserve("k", 2),
		"adjust up":                 adjust("fenced", 1),
		"adjust down":               adjust("fenced", -1),
		"adjust, a replay":          adjust("before", 1),
		"claim":                     func(ctx context.Context) error { _, err := s.Claim(ctx, st, e.shop, held); return err },
		"release":                   func(ctx context.Context) error { _, err := s.Release(ctx, st, e.shop, held); return err },
		"sweep, with something due": func(ctx context.Context) error { _, err := s.Sweep(ctx, st, 100); return err },
	}
}

// regressed: the caller knows a later epoch than the store. Redis has lost writes then; MySQL is only behind, and is
// raised before the write is carried out.
func regressed(e *env) {
	down := reservation.Fence{Stamp: reservation.Stamp{Epoch: e.h.Stamp.Epoch - 1, Stage: e.h.Stamp.Stage}}
	if !e.h.FenceRises {
		refusedBy(e, down, reservation.Regressed)
		return
	}
	e.stock(10)
	restore := e.setFence(down)
	defer restore()
	id := e.granted(line(1, 2))
	// The fence is up now: a caller of the old epoch is refused.
	ctx, cancel := e.ctx()
	defer cancel()
	_, err := e.h.Store.Release(ctx, down.Stamp, e.shop, id)
	var fe *reservation.FenceError
	if !errors.As(err, &fe) || fe.Verdict != reservation.Stale || fe.Fence.Stamp != e.h.Stamp {
		e.Fatalf("the old epoch after the fence was raised: got %v; want STALE and the fence %+v", err, e.h.Stamp)
	}
	e.figures(1, 8, 2, 10)
}

// frozen: no new reservations; replays, claims, releases and reads go on.
func frozen(e *env) {
	e.stock(10)
	first := e.reserve("k", line(1, 2))
	other := e.granted(line(1, 3))
	restore := e.setFence(reservation.Fence{Stamp: e.h.Stamp, Frozen: true})
	defer restore()
	if _, err := e.try("new", line(1, 1)); !errors.Is(err, reservation.ErrFrozen) {
		e.Fatalf("a new reserve while frozen: got %v; want frozen", err)
	}
	e.wantReplay(e.reserve("k", line(1, 2)), first.Record, reservation.Held)
	e.claim(first.Record.ID, reservation.Claimed, false)
	e.release(other)
	e.figures(1, 8, 0, 8)
	restore()
	e.granted(line(1, 1))

	// A brake that only the other store carries comes with the request.
	ctx, cancel := e.ctx()
	defer cancel()
	for key, want := range map[string]error{"other": reservation.ErrFrozen, "k": nil} {
		req := e.request(e.shop, key, longTTL, line(1, 2))
		req.Frozen = true
		if _, err := e.h.Store.Reserve(ctx, e.h.Stamp, e.id(), req); !errors.Is(err, want) {
			e.Fatalf("reserve with key %q under the other store's brake: got %v; want %v", key, err, want)
		}
	}
}
