package mysqlstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

func pinOf(rec reservation.Record) reservation.Pin {
	return reservation.Pin{Record: after(rec, reservation.Claiming)}
}

func (b *bench) deduct(pin reservation.Pin) reservation.Deduction {
	b.t.Helper()
	d, err := b.Deduct(b.t.Context(), b.st, pin)
	if err != nil {
		b.t.Fatalf("deduct: %v", err)
	}
	return d
}

func TestDeductAHold(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(10, 4)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3), line(2, 1))
	b.mirror(granted(rec))
	d := b.deduct(pinOf(rec))
	want := []reservation.Change{change(1, -3, 2), change(2, -1, 2)}
	if d.State != reservation.Claimed || d.Replayed || !cmp.Equal(d.Changes, want) ||
		d.Judgement.Decision != reservation.ClaimedOK || d.Judgement.State != reservation.Claimed {
		t.Fatalf("got %+v", d)
	}
	again := b.deduct(pinOf(rec))
	if again.State != reservation.Claimed || !again.Replayed || !again.At.Equal(d.At) || !cmp.Equal(again.Changes, want) {
		t.Fatalf("again: %+v", again)
	}
	// A release or expiry that comes now leaves the claim alone.
	judged(t, b.mirror(released(rec)), reservation.StateConflict, reservation.Claimed, false)
	if j := b.mirror(expiredOp(rec)); !j.Overtaken || j.State != reservation.Claimed {
		t.Errorf("expiry after the claim: %+v", j)
	}
	b.figures(1, 7, 7)
	b.figures(2, 3, 3)
	b.invariants()
}

func TestDeductOvertakesItsReserve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		stock     int64
		promised  int64
		reserve   reservation.Decision
		claim     reservation.Decision
		available int64
	}{
		{"would be granted", 10, 0, reservation.Granted, reservation.ClaimedOK, 7},
		{"would be rejected", 10, 9, reservation.RejectedShort, reservation.ClaimedOK, -2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := open(t, shadow)
			b.stock(c.stock)
			if c.promised > 0 {
				b.mirror(granted(truthRecord(t, "other", reservation.Held, time.Minute, line(1, c.promised))))
			}
			rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3))
			d := b.deduct(pinOf(rec))
			if d.State != reservation.Claimed || d.Judgement.Decision != c.claim || d.Judgement.State != reservation.Claimed {
				t.Fatalf("claim: %+v", d)
			}
			b.figures(1, c.available, 7)
			// The reserve that comes now is told the verdict that was kept.
			judged(t, b.mirror(granted(rec)), c.reserve, reservation.Claimed, false)
			b.figures(1, c.available, 7)
			b.invariants()
		})
	}
}

func TestDeductWhateverMySQLThinks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		first func(b *bench, rec reservation.Record)
		pin   func(*reservation.Pin)
		state reservation.State
		judge reservation.Decision
		left  int64
	}{
		{
			"expired", func(b *bench, r reservation.Record) { b.mirror(expiredOp(r)) }, func(p *reservation.Pin) { p.Late = true },
			reservation.Claimed, reservation.ClaimedOK, 7,
		},
		{"rejected", func(b *bench, r reservation.Record) { b.mirror(rejected(r)) }, nil, reservation.Claimed, reservation.StateConflict, 7},
		{"released", func(b *bench, r reservation.Record) { b.mirror(released(r)) }, nil, reservation.Released, reservation.StateConflict, 10},
		{
			"refused by the pin", func(b *bench, r reservation.Record) { b.mirror(granted(r)) }, func(p *reservation.Pin) { p.Late, p.Refuse = true, true },
			reservation.Refused, reservation.ClaimedOK, 10,
		},
		{
			"unknown, refused by the pin", func(*bench, reservation.Record) {}, func(p *reservation.Pin) { p.Late, p.Refuse = true, true },
			reservation.Refused, reservation.RefundRequired, 10,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := open(t, shadow)
			b.stock(10)
			rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3))
			c.first(b, rec)
			pin := pinOf(rec)
			if c.pin != nil {
				c.pin(&pin)
			}
			d := b.deduct(pin)
			if d.State != c.state || d.Replayed || d.Judgement.Decision != c.judge {
				t.Errorf("got %+v; want %s, judged %s", d, c.state, c.judge)
			}
			again := b.deduct(pin)
			if again.State != c.state || (c.state != reservation.Released && !again.Replayed) {
				t.Errorf("again: %+v", again)
			}
			b.figures(1, c.left, c.left)
			if got, err := b.Get(t.Context(), shop, rec.ID); err != nil || got.State != c.state || got.Late != (pin.Late && c.state != reservation.Released) {
				t.Errorf("record %+v, %v", got, err)
			}
			b.invariants()
		})
	}
}

func TestDeductGuardsOnHand(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(10)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 6))
	b.mirror(granted(rec))
	if _, err := b.ApplyAdjustment(t.Context(), b.st, reservation.Adjustment{ID: "loss", Bucket: bucket(1), Delta: -7, Force: true}, true); err != nil {
		t.Fatal(err)
	}
	b.figures(1, -3, 3)
	b.invariants()
	d := b.deduct(pinOf(rec))
	if d.State != reservation.Refused || d.Judgement.Decision != reservation.RefundRequired {
		t.Fatalf("got %+v", d)
	}
	b.figures(1, 3, 3)
	b.invariants()
}

func TestDeductInLegacy(t *testing.T) {
	t.Parallel()
	b := open(t, reservation.Stamp{Epoch: 3, Stage: reservation.Legacy})
	b.stock(10)
	rec := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 3))
	if d := b.deduct(pinOf(rec)); d.State != reservation.Claimed || !cmp.Equal(d.Changes, []reservation.Change{change(1, -3, 2)}) {
		t.Fatalf("got %+v", d)
	}
	b.figures(1, 7, 7)
	b.invariants()
	_, err := b.Deduct(t.Context(), b.st, pinOf(truthRecord(t, "u", reservation.Held, time.Minute, line(99, 1))))
	var ub *reservation.UnknownBucketError
	if !errors.As(err, &ub) {
		t.Errorf("an unknown bucket: %v", err)
	}
}

func TestApplyAdjustment(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	b.stock(10)
	b.mirror(granted(truthRecord(t, "a", reservation.Held, time.Minute, line(1, 8))))
	ctx := t.Context()
	adj := reservation.Adjustment{ID: "x", Bucket: bucket(1), Delta: -4}
	// Redis has taken 4 that MySQL promised to somebody: carried out, and judged.
	res, err := b.ApplyAdjustment(ctx, b.st, adj, true)
	if err != nil || res.Figures.OnHand != 6 || res.Forced || res.Mirror == nil || res.Mirror.Decision != reservation.AdjustRefused ||
		!cmp.Equal(res.Mirror.Levels, []reservation.Level{{Bucket: bucket(1), Available: 2}}) {
		t.Fatalf("got %+v, %+v, %v", res, res.Mirror, err)
	}
	if res, err = b.ApplyAdjustment(ctx, b.st, adj, true); err != nil || !res.Replayed || res.Figures.OnHand != 6 {
		t.Fatalf("again: %+v, %v", res, err)
	}
	b.figures(1, -2, 6)
	for _, other := range []reservation.Adjustment{
		{ID: "x", Bucket: bucket(1), Delta: -5}, {ID: "x", Bucket: bucket(2), Delta: -4}, {ID: "x", Bucket: bucket(99), Delta: 1},
	} {
		if _, err := b.ApplyAdjustment(ctx, b.st, other, false); !errors.Is(err, reservation.ErrKeyConflict) {
			t.Errorf("%+v under the same id: %v", other, err)
		}
	}
	found, past, err := b.AdjustmentByID(ctx, shop, "x")
	fig := past.Figures
	if err != nil || found.Delta != -4 || found.Bucket != bucket(1) || fig.OnHand != 6 || fig.Version != 2 {
		t.Errorf("found %+v, %+v, %v", found, fig, err)
	}
	if _, _, err := b.AdjustmentByID(ctx, shop, "y"); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("an adjustment that is not there: %v", err)
	}
	b.invariants()
}

func TestDeductLosesTheWordOfItsCommit(t *testing.T) {
	t.Parallel()
	for name, arm := range commitLoss() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, shadow)
			b.stock(10)
			far, p := b.behind(t)
			known := truthRecord(t, "a", reservation.Held, time.Minute, line(1, 2))
			b.mirror(granted(known))
			for _, rec := range []reservation.Record{known, truthRecord(t, "b", reservation.Held, time.Minute, line(1, 3))} {
				f := arm(p)
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				d, err := far.Deduct(ctx, b.st, pinOf(rec))
				cancel()
				if err != nil || f.Fired() != 1 || d.State != reservation.Claimed || d.Replayed || d.Judgement.Decision != reservation.ClaimedOK {
					t.Fatalf("%+v, %v, fired %d", d, err, f.Fired())
				}
				f.Remove()
			}
			f := arm(p)
			res, err := far.ApplyAdjustment(t.Context(), b.st, reservation.Adjustment{ID: "x", Bucket: bucket(1), Delta: -1}, true)
			if err != nil || f.Fired() != 1 || res.Replayed || res.Figures.OnHand != 4 {
				t.Fatalf("adjust: %+v, %v, fired %d", res, err, f.Fired())
			}
			b.figures(1, 4, 4)
			b.invariants()
		})
	}
}

func TestLookupAndFigures(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.Retention = time.Nanosecond })
	b.stock(10, 20, 30)
	ctx := t.Context()
	res := b.reserveFor("a", 300*time.Millisecond, line(1, 3), line(3, 1))
	if _, err := b.Claim(ctx, b.st, shop, res.Record.ID); err != nil {
		t.Fatal(err)
	}
	b.until("the claimed record is purged", func() bool {
		swept, err := b.Sweep(ctx, b.st, 10)
		if err != nil {
			t.Fatal(err)
		}
		return swept.Purged == 1
	})
	rec, err := b.Lookup(ctx, shop, res.Record.ID)
	if err != nil || rec.State != reservation.Claimed || rec.Key != "" || !cmp.Equal(rec.Lines, res.Record.Lines) {
		t.Errorf("look-up of a purged claim: %+v, %v", rec, err)
	}
	if _, err := b.Get(ctx, shop, res.Record.ID); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("get of a purged claim: %v", err)
	}
	if claim, err := b.Claim(ctx, b.st, shop, res.Record.ID); err != nil || !claim.Replayed || claim.Record.State != reservation.Claimed {
		t.Errorf("claim of a purged claim: %+v, %v", claim, err)
	}
	if _, err := b.Lookup(ctx, shop+1, res.Record.ID); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("look-up from another shop: %v", err)
	}
	var all []reservation.Figures
	for after := (reservation.Bucket{}); ; {
		page, err := b.Figures(ctx, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
		after = page[len(page)-1].Bucket
	}
	want := []reservation.Figures{{Bucket: bucket(1), OnHand: 7, Version: 2}, {Bucket: bucket(2), OnHand: 20, Version: 1}, {Bucket: bucket(3), OnHand: 29, Version: 2}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
	b.figures(1, 7, 7)
}
