package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// TestI2I3TrafficIsNoFault: 16 callers do all that there is to do, a sweeper sweeps, and no round finds anything.
func TestI2I3TrafficIsNoFault(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(6, 400)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var ops atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := b.one(ctx, ops.Add(1)); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := b.Sweep(ctx, b.st, 100); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	r := b.reconciler(func(o *Options) { o.PageRows = 7 })
	rounds := 0
	for ctx.Err() == nil {
		got := round(t, r)
		rounds++
		for _, f := range got.Findings {
			t.Errorf("round %d: %s %s: %s", rounds, f.Check, f.where(), f.Found)
		}
	}
	wg.Wait()
	t.Logf("%d operations, %d rounds", ops.Load(), rounds)
	if last := round(t, r); rounds < 3 || ops.Load() < 200 || last.Read.Buckets != 6 || len(last.Findings) != 0 {
		t.Errorf("%d rounds over %d operations, the last read %+v and found %v: this shows nothing", rounds, ops.Load(), last.Read, last.Findings)
	}
}

// one is one operation of one caller: a reserve and how it ends, or an adjustment.
func (b *bench) one(ctx context.Context, n int64) error {
	id, err := reservation.NewID()
	if err != nil {
		return err
	}
	if n%20 == 0 {
		_, err := b.Adjust(ctx, b.st, reservation.Adjustment{ID: fmt.Sprint("a", n), Bucket: bucket(1 + n%6), Delta: 30})
		return err
	}
	lines := []reservation.Line{line(1, 1+rand.Int64N(4)), line(2, 1), line(3, 2)}[:1+rand.IntN(3)]
	ttl := []time.Duration{time.Minute, 5 * time.Millisecond}[rand.IntN(2)]
	req, err := reservation.NewRequest(shop, fmt.Sprint("k", n), lines, ttl, reservation.Limits{DefaultTTL: time.Minute})
	if err != nil {
		return err
	}
	store := reservation.Store(b.Store)
	if n%3 == 0 {
		store = b.Cut()
	}
	res, err := store.Reserve(ctx, b.st, id, req)
	if err != nil || res.Record.Outcome != reservation.Granted {
		return err
	}
	switch n % 4 {
	case 0:
		_, err = store.Claim(ctx, b.st, shop, id)
	case 1, 2:
		_, err = store.Release(ctx, b.st, shop, id)
	}
	return err
}

// plant is one fault, made by hand.
type plant struct {
	check       Check
	do          func(b *bench) (undo []string)
	found, mend string
}

func plants() []plant {
	of := func(item int64) string { return ofBucket(bucket(item)) }
	return []plant{
		{I2, func(b *bench) []string {
			b.hand("UPDATE inventory_ledger SET unpooled = unpooled + 3 WHERE " + of(1))
			return nil
		}, "off by +3", "sql"},
		{I2, func(b *bench) []string {
			b.hand("DELETE FROM reservation_units WHERE " + of(2) + " ORDER BY id LIMIT 2")
			return nil
		}, "off by -2", "sql"},
		{Negative, func(b *bench) []string {
			b.hand("UPDATE inventory_ledger SET on_hand = on_hand - 91, unpooled = unpooled - 91 WHERE "+of(3),
				"UPDATE ledger_entries SET delta = delta - 91 WHERE kind = 'stock' AND "+of(3))
			return []string{
				"UPDATE inventory_ledger SET on_hand = on_hand + 91, unpooled = unpooled + 91 WHERE " + of(3),
				"UPDATE ledger_entries SET delta = delta + 91 WHERE kind = 'stock' AND " + of(3),
			}
		}, "promised twice", ""},
		{I3, func(b *bench) []string {
			b.hand("UPDATE inventory_ledger SET on_hand = on_hand + 4, unpooled = unpooled + 4 WHERE " + of(1))
			return []string{"UPDATE inventory_ledger SET on_hand = on_hand - 4, unpooled = unpooled - 4 WHERE " + of(1)}
		}, "off by +4", ""},
		{LineOrphan, func(b *bench) []string {
			b.hand("INSERT INTO reserved_quantities VALUES (1, 1, 1, x'0193000000007000800000000000000A', 2)",
				"UPDATE inventory_ledger SET unpooled = unpooled - 2 WHERE "+of(1))
			return nil
		}, "not there", "sql"},
		{LineEnded, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 2))
			b.hand("UPDATE reservations SET state = 'expired' WHERE id = " + hexOf(id))
			return nil
		}, "is expired", "sql"},
		{LineDiffers, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 2))
			b.hand("UPDATE reserved_quantities SET quantity = 1 WHERE reservation_id = "+hexOf(id), "UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE "+of(1))
			return []string{
				"UPDATE reserved_quantities SET quantity = 2 WHERE reservation_id = " + hexOf(id) + " AND " + of(1),
				"UPDATE inventory_ledger SET unpooled = unpooled - 1 WHERE " + of(1),
			}
		}, "cart has 2", ""},
		{ClaimMissing, func(b *bench) []string {
			id := b.hold(time.Minute, line(2, 2))
			b.hand("UPDATE reservations SET state = 'claimed' WHERE id = " + hexOf(id))
			return nil
		}, "not in the ledger", "sql"},
		{LineBucket, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 1))
			b.hand("INSERT INTO reserved_quantities VALUES (1, 99, 1, " + hexOf(id) + ", 2)")
			return []string{"DELETE FROM reserved_quantities WHERE " + of(99)}
		}, "no ledger row", ""},
		{UnitBucket, func(b *bench) []string {
			b.hand("INSERT INTO reservation_units VALUES (1, 98, 1, 1), (1, 98, 1, 2)")
			return []string{"DELETE FROM reservation_units WHERE " + of(98)}
		}, "no ledger row", ""},
		{EntryBucket, func(b *bench) []string {
			b.hand("INSERT INTO ledger_entries SELECT 1, 97, 1, kind, ref, NULL, delta, forced, created_at, version FROM ledger_entries WHERE kind = 'stock' AND " + of(1))
			return []string{"DELETE FROM ledger_entries WHERE " + of(97)}
		}, "no ledger row", ""},
		{HoldEmpty, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 2), line(2, 1))
			b.hand("DELETE FROM reserved_quantities WHERE reservation_id = "+hexOf(id),
				"UPDATE inventory_ledger SET unpooled = unpooled + 2 WHERE "+of(1), "UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE "+of(2))
			return []string{"DELETE FROM reservations WHERE id = " + hexOf(id)}
		}, "has no lines", ""},
		{HoldEmpty, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 2), line(2, 1))
			b.hand("DELETE FROM reserved_quantities WHERE reservation_id = "+hexOf(id)+" AND "+of(2), "UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE "+of(2))
			return []string{
				"INSERT IGNORE INTO reserved_quantities VALUES (1, 1, 1, " + hexOf(id) + ", 2), (1, 2, 1, " + hexOf(id) + ", 1)",
				"UPDATE inventory_ledger SET unpooled = unpooled - 1 WHERE " + of(2),
			}
		}, "1 of the 2 lines", ""},
		{HoldOverdue, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 2))
			b.hand("UPDATE reservations SET expires_at = expires_at - INTERVAL 20 MINUTE WHERE id = " + hexOf(id))
			return []string{"UPDATE reservations SET expires_at = expires_at + INTERVAL 20 MINUTE WHERE id = " + hexOf(id)}
		}, "19m", ""},
		{MarkOrphan, func(b *bench) []string {
			b.hand("INSERT INTO reservation_marks VALUES (x'0193000000007000800000000000000B', UTC_TIMESTAMP(6))")
			return nil
		}, "not its reservation", "sql"},
		{MarkOld, func(b *bench) []string {
			id := b.hold(time.Minute, line(1, 2))
			if err := b.Mark(b.t.Context(), b.st, id); err != nil {
				b.t.Fatal(err)
			}
			b.hand("UPDATE reservation_marks SET created_at = created_at - INTERVAL 1 HOUR WHERE reservation_id = " + hexOf(id))
			return []string{"DELETE FROM reservation_marks WHERE reservation_id = " + hexOf(id)}
		}, "1h0m", ""},
	}
}

// TestEachFaultIsFoundAfterThreeRounds: exactly it, exactly then, and what it says mends it.
func TestEachFaultIsFoundAfterThreeRounds(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(5, 100)
	b.claim(b.hold(time.Minute, line(1, 3), line(2, 1), line(3, 1)))
	b.hold(time.Minute, line(1, 3), line(5, 1))
	tried := map[Check]bool{}
	for _, p := range plants() {
		tried[p.check] = true
		r := b.reconciler(func(o *Options) { o.PageRows = 2 })
		if got := round(t, r); len(got.Findings) != 0 {
			t.Fatalf("before %s: %v", p.check, got.Findings)
		}
		undo := p.do(b)
		for n := 1; n <= 4; n++ {
			got := round(t, r)
			if checks(got.Findings) != string(p.check) || len(got.Findings) != 1 {
				t.Fatalf("%s, round %d: found %v", p.check, n, got.Findings)
			}
			f := got.Findings[0]
			if f.Rounds != n || f.Lasting != (n >= 3) || len(got.Lasting()) != max(0, min(1, n-2)) || !strings.Contains(f.Found, p.found) || f.Fix == "" {
				t.Errorf("%s, round %d: %+v", p.check, n, f)
			}
			if n == 4 && p.mend == "sql" {
				undo = mending(f.Fix)
			}
		}
		b.hand(undo...)
		if got := round(t, r); len(got.Findings) != 0 {
			t.Fatalf("after %s was mended by %q: %v", p.check, undo, got.Findings)
		}
	}
	for _, c := range Checks() {
		if !tried[c] {
			t.Errorf("%s was not tried", c)
		}
	}
}

// mending takes the statements out of what a finding says.
func mending(fix string) []string {
	_, after, found := strings.Cut(fix, "then: ")
	if !found {
		after = fix
	}
	return strings.Split(strings.TrimPrefix(after, "in one transaction: "), "; ")
}

func TestAFaultThatGoesAwayNeverAlerts(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(1, 10)
	r := b.reconciler()
	wrong := "UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE " + ofBucket(bucket(1))
	right := "UPDATE inventory_ledger SET unpooled = unpooled - 1 WHERE " + ofBucket(bucket(1))
	for range 3 { // what comes again begins again
		b.hand(wrong)
		for n := 1; n <= 2; n++ {
			got := round(t, r)
			if len(got.Findings) != 1 || got.Findings[0].Rounds != n || len(got.Lasting()) != 0 {
				t.Fatalf("round %d: %v", n, got.Findings)
			}
		}
		b.hand(right)
		if got := round(t, r); len(got.Findings) != 0 {
			t.Fatal(got.Findings)
		}
	}
}

func TestARoundThatFailsJudgesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(1, 10)
	r := b.reconciler()
	b.hand("UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE " + ofBucket(bucket(1)))
	round(t, r)
	round(t, r)
	if _, err := r.Round(closed(t.Context())); !errors.Is(err, context.Canceled) {
		t.Fatalf("a round without time: %v", err)
	}
	if got := round(t, r); len(got.Lasting()) != 1 || got.Findings[0].Rounds != 3 {
		t.Errorf("after a failed round: %v", got.Findings)
	}
}

func TestJudgeEndsWhereNothingIsOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(1, 10)
	v, err := b.reconciler().Judge(t.Context(), time.Millisecond, nil)
	if err != nil || !v.OK() || v.Rounds != 1 {
		t.Fatalf("healthy: %+v, %v", v, err)
	}
	b.hand("UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE " + ofBucket(bucket(1)))
	told := 0
	v, err = b.reconciler().Judge(t.Context(), time.Millisecond, func(Round) { told++ })
	if err != nil || v.OK() || v.Rounds != 3 || told != 3 {
		t.Fatalf("with a fault: %+v, %v", v, err)
	}
	v, err = b.reconciler().Judge(t.Context(), time.Millisecond, func(Round) {
		b.hand("UPDATE inventory_ledger SET unpooled = on_hand - (SELECT COUNT(*) FROM reservation_units) WHERE " + ofBucket(bucket(1)))
	})
	if err != nil || !v.OK() || v.Rounds != 2 {
		t.Fatalf("with a fault that goes: %+v, %v", v, err)
	}
}

// TestI3ALongJournalIsSummedPieceByPiece: while it grows, each sum is exact.
func TestI3ALongJournalIsSummedPieceByPiece(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(2, 100)
	const entries = 2*shortJournal + 10
	b.hand(fmt.Sprintf(`INSERT INTO ledger_entries (shop_id, inventory_item_id, inventory_group_id, kind, ref, adjustment_id, delta, version, created_at)
WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
SELECT 1, 1, 1, 'adjust', CONCAT('x', a.i * 1000 + b.i), CONCAT('x', a.i * 1000 + b.i), 1, 1, UTC_TIMESTAMP(6) FROM n a JOIN n b WHERE a.i * 1000 + b.i <= 1000 + %d`, entries),
		fmt.Sprintf("UPDATE inventory_ledger SET on_hand = on_hand + %d, unpooled = unpooled + %[1]d WHERE %s", entries, ofBucket(bucket(1))))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			_, err := b.Adjust(ctx, b.st, reservation.Adjustment{ID: fmt.Sprint("g", n), Bucket: bucket(1), Delta: 7})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	r := b.reconciler()
	for range 5 {
		got := round(t, r)
		if len(got.Findings) != 0 || got.Read.Pages < 8 {
			t.Errorf("%d pages, found %v", got.Read.Pages, got.Findings)
		}
	}
	cancel()
	wg.Wait()
	b.hand("DELETE FROM ledger_entries WHERE ref = 'x7777'")
	got := round(t, r)
	if checks(got.Findings) != string(I3) || !strings.Contains(got.Findings[0].Found, "off by +1") {
		t.Errorf("found %v", got.Findings)
	}
}

func TestMoreFaultsThanAreListedAreCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	b.stock(30, 1)
	b.hand("UPDATE inventory_ledger SET unpooled = unpooled + 1")
	got := round(t, b.reconciler(func(o *Options) { o.MaxFindings, o.PageRows = 20, 4 }))
	if len(got.Findings) != 20 || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "I2: 10 more") || got.Read.Buckets != 30 {
		t.Errorf("%d findings, notes %v, read %+v", len(got.Findings), got.Notes, got.Read)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := New(Options{Rounds: -1, HoldGrace: -1})
	for _, want := range []string{"Pod is empty", "Primary is nil", "Rounds -1", "HoldGrace"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
