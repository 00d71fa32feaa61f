package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

const shop = 7

var (
	complete = reservation.Stamp{Epoch: 5, Stage: reservation.Complete}
	shadow   = reservation.Stamp{Epoch: 5, Stage: reservation.Shadow}
)

// bench is one store on a fresh schema.
type bench struct {
	*mysqlstore.Store
	t    testing.TB
	dsn  string
	opts mysqlstore.Options
	st   reservation.Stamp
}

// open makes a fresh schema with a fence of this stamp and a store on it.
func open(t testing.TB, st reservation.Stamp, tune ...func(*mysqlstore.Options)) *bench {
	t.Helper()
	return openOn(t, devtest.Schema(t), st, tune...)
}

func openOn(t testing.TB, dsn string, st reservation.Stamp, tune ...func(*mysqlstore.Options)) *bench {
	t.Helper()
	ctx := t.Context()
	if err := mysqlstore.Migrate(ctx, dsn); err != nil {
		t.Fatal(err)
	}
	o := mysqlstore.Options{DSN: dsn, Pod: "pod-1", Retention: time.Hour, WriteTimeout: 3 * time.Second}
	for _, f := range tune {
		f(&o)
	}
	s, err := mysqlstore.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.InitFence(ctx, st); err != nil {
		t.Fatal(err)
	}
	b := &bench{Store: s, t: t, dsn: dsn, opts: o, st: st}
	b.whole()
	return b
}

// whole brings MySQL's fence to the bench's stamp, and has its "too few" count where that is a handover.
func (b *bench) whole() {
	b.t.Helper()
	_, err := b.Raise(b.t.Context(), b.st, nil)
	if err = errors.Join(err, b.Whole(b.t.Context(), b.st)); err != nil {
		b.t.Fatal(err)
	}
}

// another opens a second store on the same schema.
func (b *bench) another(tune ...func(*mysqlstore.Options)) *bench {
	b.t.Helper()
	o := b.opts
	for _, f := range tune {
		f(&o)
	}
	s, err := mysqlstore.Open(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	return &bench{Store: s, t: b.t, dsn: o.DSN, opts: o, st: b.st}
}

func bucket(item int64) reservation.Bucket {
	return reservation.Bucket{Shop: shop, Item: item, Group: 1}
}

func line(item, quantity int64) reservation.Line {
	return reservation.Line{Item: item, Group: 1, Quantity: quantity}
}

// stock gives items 1..n their first stock.
func (b *bench) stock(quantities ...int64) {
	b.t.Helper()
	var list []reservation.Stocking
	for n, q := range quantities {
		list = append(list, reservation.Stocking{Bucket: bucket(int64(n + 1)), Quantity: q})
	}
	created, existing, err := b.Stock(b.t.Context(), b.st, list)
	if err != nil || len(created) != len(list) || len(existing) != 0 {
		b.t.Fatalf("stock: %d created, %v existing, %v", len(created), existing, err)
	}
}

func request(t testing.TB, key string, ttl time.Duration, lines ...reservation.Line) reservation.Request {
	t.Helper()
	r, err := reservation.NewRequest(shop, key, lines, ttl, reservation.Limits{DefaultTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newID(t testing.TB) reservation.ID {
	t.Helper()
	id, err := reservation.NewID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// reserve reserves or fails the test; a rejection is no failure.
func (b *bench) reserve(key string, lines ...reservation.Line) reservation.Result {
	b.t.Helper()
	return b.reserveFor(key, 10*time.Minute, lines...)
}

func (b *bench) reserveFor(key string, ttl time.Duration, lines ...reservation.Line) reservation.Result {
	b.t.Helper()
	res, err := b.Reserve(b.t.Context(), b.st, newID(b.t), request(b.t, key, ttl, lines...))
	if err != nil {
		b.t.Fatalf("reserve %s: %v", key, err)
	}
	return res
}

func (b *bench) state(id reservation.ID) reservation.State {
	b.t.Helper()
	r, err := b.Get(b.t.Context(), shop, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.State
}

// figures checks a bucket's available and on_hand.
func (b *bench) figures(item, available, onHand int64) {
	b.t.Helper()
	a, err := b.Availability(b.t.Context(), bucket(item))
	if err != nil {
		b.t.Fatal(err)
	}
	if a.Available != available || a.OnHand != onHand || a.Held != onHand-available {
		b.t.Errorf("item %d: available %d, on hand %d, held %d; want %d, %d", item, a.Available, a.OnHand, a.Held, available, onHand)
	}
}

// invariants checks I2, I3, I6 and that nothing is orphaned, from the tables.
func (b *bench) invariants() reservation.Snapshot {
	b.t.Helper()
	snap, err := b.Inspect(context.WithoutCancel(b.t.Context()))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, err := range broken(snap) {
		b.t.Error(err)
	}
	return snap
}

// broken gives what is wrong in a snapshot.
func broken(snap reservation.Snapshot) []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, o := range snap.Orphans {
		bad("orphan: %s", o)
	}
	sums := map[reservation.Bucket]int64{}
	claims := map[reservation.ID]map[reservation.Bucket]int64{}
	for _, e := range snap.Entries {
		sums[e.Bucket] += e.Delta
		if e.Kind == reservation.EntryClaim {
			if claims[e.Reservation] == nil {
				claims[e.Reservation] = map[reservation.Bucket]int64{}
			}
			claims[e.Reservation][e.Bucket] = e.Delta
		}
	}
	for _, s := range snap.Buckets {
		if s.Pool+s.Reserved+s.Unpooled != s.OnHand {
			bad("I2: bucket %s: pool %d + reserved %d + unpooled %d != on_hand %d", s.Bucket, s.Pool, s.Reserved, s.Unpooled, s.OnHand)
		}
		if s.Unpooled < 0 && s.Pool > 0 {
			bad("I2: bucket %s: unpooled %d with %d units in the pool", s.Bucket, s.Unpooled, s.Pool)
		}
		if s.OnHand != sums[s.Bucket] {
			bad("I3: bucket %s: on_hand %d, entries sum to %d", s.Bucket, s.OnHand, sums[s.Bucket])
		}
	}
	for _, r := range snap.Records {
		if r.State.TakesUnits() != (len(snap.Lines[r.ID]) == len(r.Lines)) {
			bad("reservation %s is %s and has %d lines", r.ID, r.State, len(snap.Lines[r.ID]))
		}
		if (r.State == reservation.Claimed) != (len(claims[r.ID]) > 0) {
			bad("I6: reservation %s is %s and has %d entries", r.ID, r.State, len(claims[r.ID]))
		}
		for _, l := range r.Lines {
			if r.State == reservation.Claimed && claims[r.ID][l.Bucket(r.Shop)] != -l.Quantity {
				bad("I6: reservation %s: entry of %s is %d, line is %d", r.ID, l.Bucket(r.Shop), claims[r.ID][l.Bucket(r.Shop)], l.Quantity)
			}
		}
	}
	return errs
}

func (b *bench) until(what string, cond func() bool) {
	b.t.Helper()
	devtest.Until(b.t, what, cond)
}
