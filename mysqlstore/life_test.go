package mysqlstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

func TestLifeOfAReservation(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(10, 5)

	first := b.reserve("a", line(1, 7), line(2, 5))
	if first.Record.Outcome != reservation.Granted || first.Record.State != reservation.Held || first.Replayed {
		t.Fatalf("first: %+v", first)
	}
	b.figures(1, 3, 10)
	b.figures(2, 0, 5)
	b.invariants()

	second := b.reserve("b", line(1, 6))
	if second.Record.Outcome != reservation.RejectedShort || len(second.Record.Shortages) != 1 ||
		second.Record.Shortages[0] != (reservation.Shortage{Item: 1, Group: 1, Requested: 6, Available: 3}) {
		t.Fatalf("second: %+v", second)
	}
	if again := b.reserve("a", line(1, 7), line(2, 5)); !again.Replayed || again.Record.ID != first.Record.ID {
		t.Fatalf("replay: %+v", again)
	}
	if _, err := b.Reserve(t.Context(), b.st, newID(t), request(t, "a", 10*time.Minute, line(1, 1))); !errors.Is(err, reservation.ErrKeyConflict) {
		t.Fatalf("other request under the key: %v", err)
	}

	claim, err := b.Claim(t.Context(), b.st, shop, first.Record.ID)
	if err != nil || claim.Record.State != reservation.Claimed || claim.Late || claim.Replayed {
		t.Fatalf("claim: %+v, %v", claim, err)
	}
	if claim, err = b.Claim(t.Context(), b.st, shop, first.Record.ID); err != nil || !claim.Replayed {
		t.Fatalf("claim again: %+v, %v", claim, err)
	}
	b.figures(1, 3, 3)
	b.figures(2, 0, 0)

	var conflict *reservation.ConflictError
	if _, err := b.Release(t.Context(), b.st, shop, first.Record.ID); !errors.As(err, &conflict) || conflict.State != reservation.Claimed {
		t.Fatalf("release of a claimed one: %v", err)
	}
	third := b.reserve("c", line(1, 3))
	rel, err := b.Release(t.Context(), b.st, shop, third.Record.ID)
	if err != nil || rel.WasExpired || rel.Record.State != reservation.Released {
		t.Fatalf("release: %+v, %v", rel, err)
	}
	if rel, err = b.Release(t.Context(), b.st, shop, third.Record.ID); err != nil || !rel.Replayed {
		t.Fatalf("release again: %+v, %v", rel, err)
	}
	b.figures(1, 3, 3)
	if _, err := b.Claim(t.Context(), b.st, shop, third.Record.ID); !errors.As(err, &conflict) {
		t.Fatalf("claim of a released one: %v", err)
	}
	b.invariants()
}

func TestExpiryByTheSweeperAndByNeed(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	b.stock(5)
	short := b.reserveFor("a", time.Millisecond, line(1, 5))
	// Nobody sweeps: the next buyer's own refill ends the due hold.
	var next reservation.Result
	devtest.Until(t, "the due hold gives way", func() bool {
		next = b.reserve("b"+newID(t).String(), line(1, 5))
		return next.Record.Outcome == reservation.Granted
	})
	if s := b.state(short.Record.ID); s != reservation.Expired {
		t.Fatalf("the due hold is %s", s)
	}
	if _, err := b.Release(t.Context(), b.st, shop, next.Record.ID); err != nil {
		t.Fatal(err)
	}
	again := b.reserveFor("d", time.Millisecond, line(1, 2))
	devtest.Until(t, "the sweeper ends it", func() bool {
		res, err := b.Sweep(t.Context(), b.st, 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Expired) == 1 && res.Expired[0].ID == again.Record.ID
	})
	b.figures(1, 5, 5)
	rel, err := b.Release(t.Context(), b.st, shop, again.Record.ID)
	if err != nil || !rel.WasExpired {
		t.Fatalf("release of an expired one: %+v, %v", rel, err)
	}
	b.figures(1, 5, 5)
	b.invariants()
}
