package router_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/memstore"
	"github.com/twinhold/twinhold/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shadowStamp = reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}

// truth is a store whose answers can be replaced: these tests are about the router, not about a store.
type truth struct {
	*memstore.Store
	calls int
	err   error
}

func (s *truth) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	s.calls++
	if s.err != nil {
		return reservation.Result{}, s.err
	}
	return s.Store.Reserve(ctx, st, id, req)
}

// redisLike and mysqlLike are what the router asks beside that; a mirror always answers what the truth did.
type redisLike struct{ *truth }

func (redisLike) Mirror(_ context.Context, _ reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	return reservation.Judgement{Decision: op.Decision, State: op.Record.State}, nil
}

func (s redisLike) Confirm(ctx context.Context, _ reservation.Stamp, id reservation.ID) (reservation.Record, error) {
	return s.Get(ctx, 1, id)
}

func (s redisLike) TurnDown(ctx context.Context, _ reservation.Stamp, id reservation.ID, _ []reservation.Shortage) (reservation.Record, error) {
	return s.Get(ctx, 1, id)
}

func (s redisLike) Beat(ctx context.Context, _ reservation.Heartbeat) (reservation.Fence, error) {
	return s.ReadFence(ctx)
}

func (redisLike) Routers(context.Context, time.Duration) ([]reservation.Heartbeat, error) {
	return nil, nil
}

func (redisLike) Leave(context.Context, string) error { return nil }

func (s redisLike) Move(ctx context.Context, m reservation.FenceMove) (reservation.Fence, error) {
	s.SetFence(reservation.Fence{Stamp: reservation.Stamp{Epoch: m.From.Epoch + 1, Stage: m.To}})
	return s.ReadFence(ctx)
}

type mysqlLike struct{ *memstore.Store }

func (mysqlLike) Mirror(_ context.Context, _ reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	return reservation.Judgement{Decision: op.Decision, State: op.Record.State}, nil
}

func (mysqlLike) Agree(_ context.Context, _ reservation.Stamp, rec reservation.Record) (reservation.Judgement, error) {
	return reservation.Judgement{Decision: reservation.Granted, State: rec.State}, nil
}

func (s mysqlLike) Raise(ctx context.Context, st reservation.Stamp, _ *reservation.AuditRecord) (reservation.Fence, error) {
	s.SetFence(reservation.Fence{Stamp: st})
	return s.ReadFence(ctx)
}

func (mysqlLike) Mark(context.Context, reservation.Stamp, reservation.ID) error { return nil }

func (mysqlLike) ByKey(context.Context, int64, string) (reservation.Record, error) {
	return reservation.Record{}, reservation.ErrNotFound
}

func (mysqlLike) ChangesOf(context.Context, int64, reservation.ID) ([]reservation.Change, error) {
	return nil, reservation.ErrNotFound
}

func (s mysqlLike) Cut() reservation.Store { return s.Store }

func memory(t *testing.T, decides reservation.Truth, st reservation.Stamp) *memstore.Store {
	t.Helper()
	mem, err := memstore.New(memstore.Options{Clock: time.Now, Truth: decides})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mem.InitFence(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	stock := []reservation.Stocking{{Bucket: reservation.Bucket{Shop: 1, Item: 1, Group: 1}, Quantity: 10}}
	if _, _, err := mem.Stock(t.Context(), st, stock); err != nil {
		t.Fatal(err)
	}
	return mem
}

func newPod(t *testing.T) (*router.Pod, *truth) { return newPodIn(t, shadowStamp) }

func newPodIn(t *testing.T, st reservation.Stamp) (*router.Pod, *truth) {
	t.Helper()
	s := &truth{Store: memory(t, reservation.Redis, st)}
	p, err := router.NewPod(router.PodOptions{
		ID: "pod-1", Shops: []router.ShopRange{{From: 1, To: 9}}, Fence: reservation.Fence{Stamp: st},
		Redis: redisLike{s}, MySQL: mysqlLike{memory(t, reservation.MySQL, st)},
		Tuning: router.Tuning{Limits: reservation.Limits{DefaultTTL: time.Minute, MaxTTL: time.Hour, MinTTL: time.Second}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p, s
}

func one(quantity int64) []reservation.Line {
	return []reservation.Line{{Item: 1, Group: 1, Quantity: quantity}}
}

func TestPodOfFindsTheRange(t *testing.T) {
	a, _ := newPod(t)
	r, err := router.New(a)
	if err != nil {
		t.Fatal(err)
	}
	for shop, found := range map[int64]bool{0: false, 1: true, 9: true, 10: false, -1: false} {
		if _, err := r.PodOf(shop); (err == nil) != found {
			t.Errorf("shop %d: %v, want found = %v", shop, err, found)
		}
	}
	b, _ := newPod(t)
	if _, err := router.New(a, b); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("two pods with the same shops: %v", err)
	}
}

func TestBadInputReachesNoStoreAndIsNoOperation(t *testing.T) {
	p, s := newPod(t)
	for name, call := range map[string]func() error{
		"no key":   func() error { _, err := p.Reserve(t.Context(), 1, "", one(1), 0); return err },
		"no lines": func() error { _, err := p.Reserve(t.Context(), 1, "k", nil, 0); return err },
		"zero":     func() error { _, err := p.Reserve(t.Context(), 1, "k", one(0), 0); return err },
		"short":    func() error { _, err := p.Reserve(t.Context(), 1, "k", one(1), time.Second); return err },
		"no delta": func() error {
			_, err := p.Adjust(t.Context(), reservation.Adjustment{ID: "a", Bucket: reservation.Bucket{Shop: 1, Item: 1, Group: 1}})
			return err
		},
	} {
		if code := reservation.CodeOf(call()); code != reservation.CodeInvalidArgument {
			t.Errorf("%s gave %s", name, code)
		}
	}
	if got := p.Engine().Tally().Operations; s.calls != 0 || got != 0 {
		t.Errorf("%d calls reached the store, %d operations were counted", s.calls, got)
	}
}

func TestI11EveryEndOfAnOperationIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		gap    string
		expect int64 // compared
	}{
		"granted":     {nil, "", 1},
		"conflict":    {reservation.ErrKeyConflict, "", 1},
		"no bucket":   {&reservation.UnknownBucketError{}, "", 1},
		"unknown":     {&reservation.UnknownOutcomeError{Store: reservation.Redis, Cause: errors.New("reply lost")}, "unknown", 0},
		"deadline":    {context.DeadlineExceeded, "unknown", 0},
		"unavailable": {&reservation.UnavailableError{Store: reservation.Redis, Cause: errors.New("refused")}, "unavailable", 0},
		"busy":        {reservation.ErrBusy, "unavailable", 0},
		"frozen":      {reservation.ErrFrozen, "frozen", 0},
		"stale":       {&reservation.FenceError{Verdict: reservation.Stale}, "unavailable", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := newPod(t)
			s.err = c.err
			_, err := p.Reserve(t.Context(), 1, "k", one(1), 0)
			if !errors.Is(err, c.err) {
				t.Errorf("the caller got %v, want %v", err, c.err)
			}
			if err := p.Queue().Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			tally := p.Engine().Tally()
			if tally.Operations != 1 || tally.Compared != c.expect || tally.GapTotal() != 1-c.expect {
				t.Errorf("I11: operations %d, compared %d, gaps %v", tally.Operations, tally.Compared, tally.Gaps)
			}
			if c.gap != "" && tally.Gaps[c.gap] != 1 {
				t.Errorf("gaps %v, want one %s", tally.Gaps, c.gap)
			}
		})
	}
}

func TestLegacyComparesNothing(t *testing.T) {
	p, _ := newPodIn(t, reservation.Stamp{Epoch: 1, Stage: reservation.Legacy})
	if _, err := p.Reserve(t.Context(), 1, "k", one(1), 0); err != nil {
		t.Fatal(err)
	}
	if got := p.Engine().Tally().Operations; got != 0 || p.Queue().Depth() != 0 {
		t.Errorf("a pod in legacy counted %d operations, %d wait for the mirror", got, p.Queue().Depth())
	}
}

func TestAReusedAdjustmentIDIsOneDecisionOfBothPaths(t *testing.T) {
	p, _ := newPod(t)
	adj := reservation.Adjustment{ID: "a", Bucket: reservation.Bucket{Shop: 1, Item: 1, Group: 1}, Delta: 1}
	if _, err := p.Adjust(t.Context(), adj); err != nil {
		t.Fatal(err)
	}
	adj.Delta = 2
	if _, err := p.Adjust(t.Context(), adj); !errors.Is(err, reservation.ErrKeyConflict) {
		t.Fatalf("the id again with another delta: %v", err)
	}
	if got := p.Engine().Tally(); got.Compared != 2 || got.Verdicts["match"] != 2 {
		t.Errorf("compared %d, verdicts %v, want two matches", got.Compared, got.Verdicts)
	}
}
