package legacyredis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// gate stands before the real ledger and lets a test stop calls on their way.
type gate struct {
	reservation.Ledger
	mu  sync.Mutex
	err error
	// after: the call reaches the ledger, and its answer is replaced by err.
	after bool
}

func (g *gate) set(err error, after bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err, g.after = err, after
}

func (g *gate) state() (after bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.after, g.err
}

func (g *gate) Deduct(ctx context.Context, st reservation.Stamp, pin reservation.Pin) (reservation.Deduction, error) {
	after, err := g.state()
	if err != nil && !after {
		return reservation.Deduction{}, err
	}
	d, derr := g.Ledger.Deduct(ctx, st, pin)
	return d, errors.Join(derr, err)
}

func (g *gate) ApplyAdjustment(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment, taken bool) (reservation.AdjustResult, error) {
	after, err := g.state()
	if err != nil && !after {
		return reservation.AdjustResult{}, err
	}
	res, aerr := g.Ledger.ApplyAdjustment(ctx, st, adj, taken)
	return res, errors.Join(aerr, err)
}

// book is a rig with a real ledger behind a gate.
type book struct {
	*rig
	mysql *mysqlstore.Store
	gate  *gate
}

func newBook(t *testing.T, change ...func(*legacyredis.Options)) *book {
	t.Helper()
	sql := openLedger(t)
	g := &gate{Ledger: sql}
	set := func(o *legacyredis.Options) { o.Ledger = g }
	return &book{rig: newRig(t, append([]func(*legacyredis.Options){set}, change...)...), mysql: sql, gate: g}
}

func (b *book) claim(id reservation.ID) (reservation.ClaimResult, error) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), 10*time.Second)
	defer cancel()
	return b.store.Claim(ctx, stamp(), 1, id)
}

func (b *book) mustClaim(id reservation.ID, want reservation.State, late, replayed bool) reservation.ClaimResult {
	b.tb.Helper()
	res, err := b.claim(id)
	if err != nil || res.Record.State != want || res.Late != late || res.Replayed != replayed {
		b.tb.Fatalf("claim: %s, late %t, replayed %t, %v; want %s, %t, %t", res.Record.State, res.Late, res.Replayed, err, want, late, replayed)
	}
	return res
}

func (b *book) adjust(id string, delta int64, force bool) (reservation.AdjustResult, error) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), 10*time.Second)
	defer cancel()
	return b.store.Adjust(ctx, stamp(), reservation.Adjustment{ID: id, Bucket: bucket(1), Delta: delta, Force: force})
}

func (b *book) state(id reservation.ID, want reservation.State) reservation.Record {
	b.tb.Helper()
	rec, err := b.store.Get(b.tb.Context(), 1, id)
	if err != nil || rec.State != want {
		b.tb.Fatalf("it is %s, %v; want %s", rec.State, err, want)
	}
	return rec
}

func TestClaimInTime(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10, 10)
	id := b.reserve("k", line(1, 4), line(2, 1)).Record.ID
	res := b.mustClaim(id, reservation.Claimed, false, false)
	if res.Mirror == nil || res.Record.PinnedAt.IsZero() || res.Record.ClaimedAt.IsZero() {
		t.Fatalf("%+v", res)
	}
	b.figures(1, 6, 0, 6)
	b.figures(2, 9, 0, 9)
	b.state(id, reservation.Claimed)
	b.mustClaim(id, reservation.Claimed, false, true)
	b.figures(1, 6, 0, 6)
	_, err := b.release(id)
	if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Claimed {
		t.Fatal(c)
	}
	b.noOrphans()
}

func TestClaimOfWhatHasEnded(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	released := b.reserve("a", line(1, 1)).Record.ID
	if _, err := b.release(released); err != nil {
		t.Fatal(err)
	}
	rejected := b.reserve("b", line(1, 11)).Record.ID
	for id, state := range map[reservation.ID]reservation.State{released: reservation.Released, rejected: reservation.Rejected} {
		_, err := b.claim(id)
		if c := wantAs[*reservation.ConflictError](t, err); c.State != state || c.Op != reservation.OpClaim {
			t.Fatal(c)
		}
	}
	_, err := b.claim(newID(t))
	wantIs(t, err, reservation.ErrNotFound)
	other := b.reserve("c", line(1, 1)).Record.ID
	_, err = b.store.Claim(t.Context(), stamp(), 2, other)
	wantIs(t, err, reservation.ErrNotFound)
	b.figures(1, 9, 1, 10)
}

// A late claim in its three forms, before and after the sweeper has seen it, with figures exact.
func TestLateClaim(t *testing.T) {
	t.Parallel()
	for _, swept := range []bool{true, false} {
		for _, c := range []struct {
			name                    string
			policy                  reservation.LatePolicy
			taken                   int64 // by somebody else, of what the late one gave back
			want                    reservation.State
			available, held, onHand int64
		}{
			{"available", reservation.ForceLate, 3, reservation.Claimed, 0, 3, 3},
			{"available, policy refuse", reservation.RefuseLate, 3, reservation.Claimed, 0, 3, 3},
			{"forced", reservation.ForceLate, 6, reservation.Claimed, -4, 7, 3},
			{"refused", reservation.RefuseLate, 6, reservation.Refused, 3, 7, 10},
		} {
			t.Run(fmt.Sprintf("%s swept %t", c.name, swept), func(t *testing.T) {
				t.Parallel()
				b := newBook(t, func(o *legacyredis.Options) { o.LatePolicy = c.policy })
				b.stockBoth(10)
				id := b.reserve("late", line(1, 7)).Record.ID
				if !swept {
					// Unswept, its units are still its own: somebody else got his by force.
					if c.taken > 3 {
						other := b.reserve("other", line(1, 1)).Record.ID
						b.force(other, 7)
					} else {
						b.reserve("other", line(1, 3))
					}
					b.expireNow(id)
				} else {
					b.expireNow(id)
					b.sweep()
					if c.taken > 3 {
						b.reserve("other", line(1, 7))
					} else {
						b.reserve("other", line(1, 3))
					}
				}
				b.mustClaim(id, c.want, true, false)
				b.figures(1, c.available, c.held, c.onHand)
				b.mustClaim(id, c.want, true, true)
				if n := b.entries(id); (n == 1) != (c.want == reservation.Claimed) {
					t.Fatalf("I6: %d entries", n)
				}
				if rec := b.state(id, c.want); !rec.Late {
					t.Fatal("it is not on the record")
				}
				b.figures(1, c.available, c.held, c.onHand)
			})
		}
	}
}

// force makes the record of a hold, and the counters, as if it had been granted quantity pieces.
func (b *book) force(id reservation.ID, quantity int64) {
	b.tb.Helper()
	ctx := b.tb.Context()
	rec, err := b.store.Get(ctx, 1, id)
	if err != nil {
		b.tb.Fatal(err)
	}
	more := quantity - rec.Lines[0].Quantity
	if err := errors.Join(
		b.raw.HSet(ctx, b.key("res:%s", id), "lines", fmt.Sprintf("1:1:%d", quantity)).Err(),
		b.raw.DecrBy(ctx, b.key("avail:%s", bucket(1)), more).Err(),
		b.raw.IncrBy(ctx, b.key("held:%s", bucket(1)), more).Err(),
	); err != nil {
		b.tb.Fatal(err)
	}
}

// The ledger does not answer: the pin stays, the claim says so, and the sweeper completes it.
func TestPinStaysWhileTheLedgerIsSilent(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} { // the deduction was not made, or made and not heard of
		b := newBook(t, func(o *legacyredis.Options) { o.PinLease = time.Millisecond })
		b.stockBoth(10)
		id := b.reserve("k", line(1, 4)).Record.ID
		b.gate.set(&reservation.UnknownOutcomeError{Store: reservation.MySQL, Op: reservation.OpClaim, Cause: errors.New("no reply")}, after)
		_, err := b.claim(id)
		wantAs[*reservation.UnknownOutcomeError](t, err)
		b.figures(1, 6, 4, 10)
		if after {
			b.state(id, reservation.Claimed) // its entry is there
		} else {
			b.state(id, reservation.Claiming)
		}
		_, err = b.release(id)
		if after {
			if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Claimed {
				t.Fatal(c)
			}
		} else {
			wantIs(t, err, reservation.ErrBusy)
		}
		// Its time does not end it.
		b.expireNow(id)
		devtest.Until(t, "the sweeper has met the pin", func() bool { return b.sweep().Skipped == 1 })
		b.figures(1, 6, 4, 10)

		b.gate.set(nil, false)
		devtest.Until(t, "the sweeper has rolled it forward", func() bool { return b.sweep().RolledForward == 1 })
		b.figures(1, 6, 0, 6)
		b.state(id, reservation.Claimed)
		b.mustClaim(id, reservation.Claimed, false, true)
		b.figures(1, 6, 0, 6)
		b.noOrphans()
	}
}

// A second claim joins a pin and runs step 2 too.
func TestClaimJoinsAPin(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	id := b.reserve("k", line(1, 4)).Record.ID
	b.gate.set(&reservation.UnavailableError{Store: reservation.MySQL, Cause: errors.New("down")}, false)
	_, err := b.claim(id)
	wantAs[*reservation.UnavailableError](t, err)
	b.gate.set(nil, false)
	b.mustClaim(id, reservation.Claimed, false, false)
	b.figures(1, 6, 0, 6)

	var wg sync.WaitGroup
	id = b.reserve("crowd", line(1, 4)).Record.ID
	for range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if res, err := b.store.Claim(ctx, stamp(), 1, id); err != nil || res.Record.State != reservation.Claimed {
				t.Errorf("%s, %v", res.Record.State, err)
			}
		})
	}
	wg.Wait()
	b.figures(1, 2, 0, 2)
	if n := b.entries(id); n != 1 {
		t.Fatalf("I6: %d entries", n)
	}
}

// Late is judged at the pin and stays with it: a roll-forward does not judge again.
func TestLateStaysWithThePin(t *testing.T) {
	t.Parallel()
	b := newBook(t, func(o *legacyredis.Options) { o.LatePolicy, o.PinLease = reservation.RefuseLate, time.Millisecond })
	b.stockBoth(10)
	id := b.reserve("late", line(1, 7)).Record.ID
	b.expireNow(id)
	b.sweep()
	other := b.reserve("other", line(1, 7)).Record.ID
	b.gate.set(&reservation.UnavailableError{Store: reservation.MySQL, Cause: errors.New("down")}, false)
	_, err := b.claim(id)
	wantAs[*reservation.UnavailableError](t, err)
	b.figures(1, 3, 7, 10)
	if _, err := b.release(other); err != nil { // now there would be enough
		t.Fatal(err)
	}
	b.gate.set(nil, false)
	devtest.Until(t, "rolled forward", func() bool { return b.sweep().RolledForward == 1 })
	b.state(id, reservation.Refused)
	b.figures(1, 10, 0, 10)
}

// Redis does not hear of step 3: the answer stands, and the pin is rolled forward.
func TestAnswerStandsWithoutTheFinish(t *testing.T) {
	t.Parallel()
	b := newBook(t, func(o *legacyredis.Options) { o.PinLease = time.Millisecond })
	b.stockBoth(10)
	id := b.reserve("k", line(1, 4)).Record.ID
	closed := b.open(t, b.url, func(o *legacyredis.Options) { o.Ledger, o.PinLease = b.gate, time.Millisecond })
	if err := closed.Close(t.Context()); err != nil { // a store that is ending finishes nothing any more
		t.Fatal(err)
	}
	res, err := closed.Claim(t.Context(), stamp(), 1, id)
	if err != nil || res.Record.State != reservation.Claimed {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, 6, 4, 10)
	devtest.Until(t, "rolled forward", func() bool { return b.sweep().RolledForward == 1 })
	b.figures(1, 6, 0, 6)
}

func TestAdjust(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	b.reserve("k", line(1, 7))

	res, err := b.adjust("received", 5, false)
	if err != nil || res.Replayed || res.Figures.OnHand != 15 {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, 8, 7, 15)
	res, err = b.adjust("written off", -6, false)
	if err != nil || res.Forced || res.Figures.OnHand != 9 {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, 2, 7, 9)
	_, err = b.adjust("too much", -3, false)
	if e := wantAs[*reservation.ShortError](t, err); e.Asked != 3 || e.Available != 2 {
		t.Fatal(e)
	}
	b.figures(1, 2, 7, 9)
	for _, id := range []string{"received", "written off"} {
		_, err = b.adjust(id, -1, false)
		wantIs(t, err, reservation.ErrKeyConflict)
	}
	for id, delta := range map[string]int64{"received": 5, "written off": -6} {
		if res, err = b.adjust(id, delta, false); err != nil || !res.Replayed {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	b.figures(1, 2, 7, 9)
	if res, err = b.adjust("forced", -5, true); err != nil || !res.Forced {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, -3, 7, 4)
	// Nobody can take away what is not there: the ledger refuses, and the pin is undone.
	_, err = b.adjust("absurd", -50, true)
	wantAs[*reservation.ShortError](t, err)
	b.figures(1, -3, 7, 4)
	_, err = b.store.Adjust(t.Context(), stamp(), reservation.Adjustment{ID: "x", Bucket: bucket(99), Delta: -1})
	wantAs[*reservation.UnknownBucketError](t, err)
	b.noOrphans()
}

func TestPinnedAdjustmentIsRolledForward(t *testing.T) {
	t.Parallel()
	for _, delta := range []int64{-4, 4} {
		for _, after := range []bool{false, true} { // the ledger has not got it, or has it and was not heard of
			b := newBook(t, func(o *legacyredis.Options) { o.PinLease = time.Millisecond })
			b.stockBoth(10)
			b.gate.set(&reservation.UnknownOutcomeError{Store: reservation.MySQL, Op: reservation.OpAdjust, Cause: errors.New("no reply")}, after)
			_, err := b.adjust("a", delta, false)
			wantAs[*reservation.UnknownOutcomeError](t, err)
			b.figures(1, 10+min(delta, 0), max(-delta, 0), 10)
			_, err = b.adjust("a", delta-1, false)
			wantIs(t, err, reservation.ErrKeyConflict)
			b.gate.set(nil, false)
			devtest.Until(t, "rolled forward", func() bool { return b.sweep().RolledForward == 1 })
			b.figures(1, 10+delta, 0, 10+delta)
			if res, err := b.adjust("a", delta, false); err != nil || !res.Replayed {
				t.Fatalf("%+v, %v", res, err)
			}
			b.figures(1, 10+delta, 0, 10+delta)
			b.noOrphans()
		}
	}
}
