package mysqlstore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestSweepPassesOverLockedAndBroken: rows that nobody can expire, at the head of the queue, never stop the rest.
func TestSweepPassesOverLockedAndBroken(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(10, 10, 10)
	ctx := t.Context()
	var broken []reservation.ID
	for n := range 3 {
		broken = append(broken, b.reserveFor(fmt.Sprint("broken", n), time.Millisecond, line(1, 1)).Record.ID)
	}
	locked := b.reserveFor("locked", 2*time.Millisecond, line(2, 1)).Record.ID
	good := b.reserveFor("good", 3*time.Millisecond, line(3, 1)).Record
	for n, id := range broken {
		damage := []string{
			"UPDATE reservations SET cart = 'nonsense' WHERE id = ?",
			"DELETE FROM reserved_quantities WHERE reservation_id = ?",
			"UPDATE reservations SET cart = '[[77,1,1]]' WHERE id = ?",
		}[n]
		if _, err := b.DB().ExecContext(ctx, damage, id[:]); err != nil {
			t.Fatal(err)
		}
	}
	letGo := grip(t, b, fmt.Sprintf("SELECT id FROM reservations WHERE id = UNHEX(REPLACE('%s', '-', '')) FOR UPDATE", locked))
	defer letGo()
	b.until("the good one is expired", func() bool {
		res, err := b.Sweep(ctx, b.st, 1)
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Expired) == 1 && res.Expired[0].ID == good.ID && res.Skipped >= 4
	})
	letGo()
	b.until("the locked one is expired once it is free", func() bool {
		res, err := b.Sweep(ctx, b.st, 10)
		return err == nil && len(res.Expired) == 1 && res.Expired[0].ID == locked
	})
	b.figures(2, 10, 10)
	b.figures(3, 10, 10)
}

// TestSweepLosesTheWordOfItsCommit: what it expired is still reported, once.
func TestSweepLosesTheWordOfItsCommit(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(10)
	far, p := b.behind(t)
	held := b.reserveFor("a", time.Millisecond, line(1, 4))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	b.until("it is due", func() bool {
		var due bool
		err := b.DB().QueryRowContext(ctx, "SELECT expires_at < UTC_TIMESTAMP(6) FROM reservations").Scan(&due)
		return err == nil && due
	})
	f := p.Cut(faultproxy.Rule{Match: []byte("conn_tag:commit "), When: faultproxy.After, Times: 1})
	res, err := far.Sweep(ctx, b.st, 10)
	if err != nil || f.Fired() != 1 || len(res.Expired) != 1 || res.Expired[0].ID != held.Record.ID {
		t.Errorf("got %+v, %v, fired %d", res, err, f.Fired())
	}
	b.figures(1, 10, 10)
	b.invariants()
}

// TestManyColdBuckets: a cart of many lines does not refill as many pools.
func TestManyColdBuckets(t *testing.T) {
	t.Parallel()
	for _, st := range []reservation.Stamp{complete, shadow} {
		b := open(t, st)
		var quantities []int64
		var lines []reservation.Line
		for item := int64(1); item <= 300; item++ {
			quantities = append(quantities, 2000)
			lines = append(lines, line(item, 2))
		}
		b.stock(quantities...)
		if st == complete {
			b.reserve("a", lines...)
		} else {
			judged(t, b.mirror(granted(truthRecord(t, "a", reservation.Held, time.Minute, lines...))), reservation.Granted, reservation.Held, true)
		}
		var units int
		if err := b.DB().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM reservation_units").Scan(&units); err != nil || units != 0 {
			t.Errorf("%d units were put into pools, %v", units, err)
		}
		b.figures(300, 1998, 2000)
		b.invariants()
	}
}

// TestSweepComesBehindTheStuck: more broken holds than one sweep looks at never keep it from those behind them, and each
// is named in the log once in a while, not with every sweep.
func TestSweepComesBehindTheStuck(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	b := open(t, complete, func(o *mysqlstore.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	b.stock(100)
	const stuck, limit = 45, 2 // a sweep looks at 20 pages
	for n := range stuck {
		b.reserveFor(fmt.Sprint("broken", n), time.Millisecond, line(1, 1))
	}
	if _, err := b.DB().ExecContext(t.Context(), "UPDATE reservations SET cart = 'nonsense'"); err != nil {
		t.Fatal(err)
	}
	good := b.reserveFor("good", 2*time.Millisecond, line(1, 1)).Record.ID
	sweeps := 0
	b.until("the good one is expired", func() bool {
		sweeps++
		res, err := b.Sweep(t.Context(), b.st, limit)
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Expired) == 1 && res.Expired[0].ID == good
	})
	for range 4 { // round and round
		if _, err := b.Sweep(t.Context(), b.st, limit); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(log.String(), "cannot be read"); sweeps < 2 || got != stuck {
		t.Errorf("%d sweeps named %d broken holds, of %d", sweeps, got, stuck)
	}
}

// syncBuffer is a log that may be written by several.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
