package mysqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestRoundTrips counts the statements of each operation on its straight path, transaction control included.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	b := open(t, cutover, func(o *mysqlstore.Options) { o.MaxOpenConns = 1 })
	b.stock(50)
	b.reserve("fills the pool", line(1, 1))
	ctx := t.Context()
	questions := func() (n int) {
		t.Helper()
		var name string
		if err := b.DB().QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	got := map[string]int{}
	count := func(name string, op func(context.Context) error) {
		t.Helper()
		before := questions()
		if err := op(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got[name] = questions() - before - 1
	}
	reserve := func(s reservation.Store, id reservation.ID, key string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Reserve(ctx, b.st, id, request(t, key, time.Hour, line(1, 1)))
			return err
		}
	}
	ids := []reservation.ID{newID(t), newID(t), newID(t), newID(t)}
	count("reserve", reserve(b, ids[0], "a"))
	count("reserve, a replay", reserve(b, newID(t), "a"))
	count("reserve, cut", reserve(b.Cut(), ids[1], "b"))
	count("claim", func(ctx context.Context) error { _, err := b.Claim(ctx, b.st, shop, ids[0]); return err })
	count("reserve", reserve(b, ids[3], "z"))
	count("claim, cut", func(ctx context.Context) error { _, err := b.Cut().Claim(ctx, b.st, shop, ids[3]); return err })
	count("reserve", reserve(b, ids[2], "c"))
	count("release", func(ctx context.Context) error { _, err := b.Release(ctx, b.st, shop, ids[2]); return err })
	count("read of the fence", func(ctx context.Context) error { _, err := b.ReadFence(ctx); return err })
	b.st = stamp(6, reservation.Handover)
	if _, err := b.Raise(ctx, b.st, nil); err != nil {
		t.Fatal(err)
	}
	rec := truthRecord(t, "d", reservation.Held, time.Hour, line(1, 1))
	count("mirror of a grant", func(ctx context.Context) error { _, err := b.Mirror(ctx, b.st, granted(rec)); return err })
	count("agree", func(ctx context.Context) error {
		_, err := b.Agree(ctx, b.st, provisional(t, "e", time.Hour, line(1, 1)))
		return err
	})
	count("deduct", func(ctx context.Context) error { _, err := b.Deduct(ctx, b.st, pinOf(rec)); return err })
	if diff := cmp.Diff(map[string]int{
		"reserve": 9, "reserve, a replay": 5, "reserve, cut": 10, "claim": 10, "claim, cut": 11, "release": 9,
		"mirror of a grant": 10, "agree": 10, "deduct": 13, "read of the fence": 1,
	}, got); diff != "" {
		t.Error(diff)
	}
}
