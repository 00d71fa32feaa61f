package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

func TestRefillReusesIDs(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.PoolSize = 10 })
	b.stock(1000)
	for n := range 60 {
		res := b.reserve(fmt.Sprint("k", n), line(1, 1+int64(n%7)))
		if res.Record.Outcome != reservation.Granted {
			t.Fatalf("round %d: %+v", n, res)
		}
		if n%3 == 0 {
			if _, err := b.Release(t.Context(), b.st, shop, res.Record.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	var lowest, highest, rows int
	row := b.DB().QueryRowContext(t.Context(), "SELECT COALESCE(MIN(id), 1), COALESCE(MAX(id), 1), COUNT(*) FROM reservation_units")
	if err := row.Scan(&lowest, &highest, &rows); err != nil {
		t.Fatal(err)
	}
	if lowest < 1 || highest > 10 || rows > 10 {
		t.Errorf("%d units with ids %d to %d; want 1 to 10, reused", rows, lowest, highest)
	}
	b.invariants()
}

// TestI1LastUnits: many buyers, few units, one bucket, a pool smaller than the stock: exactly the stock is granted,
// and nobody is told sold out while units are left.
func TestI1LastUnits(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.PoolSize = 7 })
	b.stock(30)
	var wg sync.WaitGroup
	var got, busy, refused atomic.Int64
	for n := range 50 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			id, err := reservation.NewID()
			if err != nil {
				t.Error(err)
				return
			}
			res, err := b.Reserve(ctx, b.st, id, request(t, fmt.Sprint("k", n), time.Minute, line(1, 1)))
			switch {
			case errors.Is(err, reservation.ErrBusy):
				busy.Add(1)
			case err != nil:
				t.Error(err)
			case res.Record.Outcome == reservation.Granted:
				got.Add(1)
			default:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if got.Load() != 30 || refused.Load() != 20 || busy.Load() != 0 {
		t.Errorf("%d granted, %d rejected, %d busy; want 30, 20, 0", got.Load(), refused.Load(), busy.Load())
	}
	b.figures(1, 0, 30)
	b.invariants()
}

func TestLargeCarts(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	ctx := t.Context()
	var stock []reservation.Stocking
	var lines []reservation.Line
	for item := int64(1); item <= 749; item++ {
		stock = append(stock, reservation.Stocking{Bucket: bucket(item), Quantity: 70})
		lines = append(lines, line(item, 60))
	}
	stock = append(stock, reservation.Stocking{Bucket: bucket(5000), Quantity: 80_000})
	if _, _, err := b.Stock(ctx, b.st, stock); err != nil {
		t.Fatal(err)
	}
	small := b.reserve("small", line(5000, 900)) // part of the stock is in the pool
	big := b.reserve("piece", line(5000, 74_215))
	if big.Record.Outcome != reservation.Granted {
		t.Fatalf("74,215 pieces: %+v", big)
	}
	b.figures(5000, 80_000-900-74_215, 80_000)
	if rest := b.reserve("rest", line(5000, 4_885)); rest.Record.Outcome != reservation.Granted {
		t.Fatalf("the rest, pool rows included: %+v", rest)
	}
	b.figures(5000, 0, 80_000)
	cart := b.reserve("cart", lines...)
	if cart.Record.Outcome != reservation.Granted {
		t.Fatalf("749 lines: %v", cart.Record.Shortages)
	}
	again := b.reserve("cart2", lines...)
	if again.Record.Outcome != reservation.RejectedShort || len(again.Record.Shortages) != 749 {
		t.Fatalf("749 lines again: %s, %d short", again.Record.Outcome, len(again.Record.Shortages))
	}
	b.invariants()
	for _, id := range []reservation.ID{small.Record.ID, big.Record.ID, cart.Record.ID} {
		if _, err := b.Claim(ctx, b.st, shop, id); err != nil {
			t.Fatal(err)
		}
	}
	b.figures(1, 10, 10)
	b.invariants()
}

// grip holds rows locked in a transaction of its own, until the test lets go.
func grip(t *testing.T, b *bench, query string) (letGo func()) {
	t.Helper()
	tx, err := b.DB().BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

func TestBusyIsNotSoldOut(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(3)
	first := b.reserve("a", line(1, 1))
	if _, err := b.Release(t.Context(), b.st, shop, first.Record.ID); err != nil {
		t.Fatal(err)
	}
	letGo := grip(t, b, "SELECT id FROM reservation_units WHERE shop_id = 7 AND inventory_item_id = 1 FOR UPDATE")
	defer letGo()
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	_, err := b.Reserve(ctx, b.st, newID(t), request(t, "b", time.Minute, line(1, 2)))
	if !errors.Is(err, reservation.ErrBusy) {
		t.Fatalf("units that somebody holds for the moment: %v", err)
	}
	letGo()
	if res := b.reserve("b", line(1, 2)); res.Record.Outcome != reservation.Granted || res.Replayed {
		t.Fatalf("once they are free: %+v", res)
	}
	b.invariants()
}

// TestLockWait (1205): a ledger row that somebody holds for longer than the lock wait fails nobody who can wait.
func TestLockWait(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(3)
	held := b.reserve("a", line(1, 1))
	letGo := grip(t, b, "SELECT on_hand FROM inventory_ledger FOR UPDATE")
	defer letGo()
	done := make(chan error, 1)
	go func() {
		_, err := b.Claim(t.Context(), b.st, shop, held.Record.ID)
		done <- err
	}()
	waits := func() (n int) {
		_ = b.DB().QueryRowContext(t.Context(), "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Innodb_row_lock_waits'").Scan(&n)
		return n
	}
	begun := time.Now()
	devtest.Until(t, "a lock wait has run out", func() bool { return waits() > 0 && time.Since(begun) > 1500*time.Millisecond })
	select {
	case err := <-done:
		t.Fatalf("the claim did not wait: %v", err)
	default:
	}
	// A caller who cannot wait is told in time, and nothing is changed.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := b.Release(ctx, b.st, shop, held.Record.ID)
	if reservation.CodeOf(err) != reservation.CodeUnavailable || time.Since(began) > 2*time.Second {
		t.Errorf("release: %v after %v", err, time.Since(began))
	}
	letGo()
	if err := <-done; err != nil {
		t.Fatalf("the claim: %v", err)
	}
	b.figures(1, 2, 2)
	b.invariants()
}

// TestDeadlock (1213): a transaction in the wrong lock order costs a retry, not an error.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.LockWait = 3 * time.Second })
	b.stock(3)
	held := b.reserve("a", line(1, 1))
	ctx := t.Context()
	tx, err := b.DB().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "SELECT id FROM reservations FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.Release(ctx, b.st, shop, held.Record.ID)
		done <- err
	}()
	devtest.Until(t, "the release waits for the reservation's row", func() bool {
		var n int
		err := b.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM performance_schema.data_locks
WHERE OBJECT_SCHEMA = DATABASE() AND OBJECT_NAME = 'reservations' AND LOCK_STATUS = 'WAITING'`).Scan(&n)
		return err == nil && n > 0
	})
	// One of the two is the victim; if it is ours, it tries again once the other has ended.
	_, locked := tx.ExecContext(ctx, "SELECT on_hand FROM inventory_ledger FOR UPDATE")
	_ = tx.Rollback()
	if err := <-done; err != nil {
		t.Fatalf("release: %v (the other: %v)", err, locked)
	}
	b.figures(1, 3, 3)
	b.invariants()
}

// TestCartsInOppositeOrder: carts that want the same buckets the other way round, with claims, releases and sweeps
// between them: no error reaches a caller, and the tables add up.
func TestCartsInOppositeOrder(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.PoolSize, o.MaxOpenConns = 50, 60 })
	b.stock(400, 400, 400)
	limit := 3 * time.Second
	if devtest.Soak() {
		limit = time.Minute
	}
	stop := time.Now().Add(limit)
	var wg sync.WaitGroup
	var n atomic.Int64
	for range 50 {
		wg.Go(func() {
			for time.Now().Before(stop) {
				if err := buyAndEnd(t.Context(), t, b, n.Add(1)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(stop) {
			if _, err := b.Sweep(t.Context(), b.st, 100); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Wait()
	t.Logf("%d carts", n.Load())
	b.invariants()
}

func buyAndEnd(ctx context.Context, t *testing.T, b *bench, n int64) error {
	lines := []reservation.Line{line(1, 2), line(2, 1), line(3, 1)}
	rand.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	ttl := []time.Duration{time.Minute, 5 * time.Millisecond}[rand.IntN(2)]
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	id, err := reservation.NewID()
	if err != nil {
		return err
	}
	res, err := b.Reserve(ctx, b.st, id, request(t, fmt.Sprint("cart", n), ttl, lines[:1+rand.IntN(3)]...))
	if err != nil || res.Record.Outcome != reservation.Granted {
		return err
	}
	switch n % 8 {
	case 0:
		_, err = b.Claim(ctx, b.st, shop, id)
	default:
		_, err = b.Release(ctx, b.st, shop, id)
	}
	return err
}

func TestTrim(t *testing.T) {
	t.Parallel()
	b := open(t, complete, func(o *mysqlstore.Options) { o.PoolSize = 100 })
	b.stock(200)
	b.reserve("a", line(1, 1))
	small := b.another(func(o *mysqlstore.Options) { o.PoolSize = 10 })
	n, err := small.Trim(t.Context(), b.st, bucket(1))
	if err != nil || n != 89 {
		t.Fatalf("trimmed %d, %v; want 89", n, err)
	}
	snap := b.invariants()
	if s := snap.Buckets[0]; s.Pool != 10 || s.Unpooled != 189 {
		t.Errorf("pool %d, unpooled %d", s.Pool, s.Unpooled)
	}
	if n, err = small.Trim(t.Context(), b.st, bucket(1)); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
}
