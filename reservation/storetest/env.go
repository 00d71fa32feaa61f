package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/invariant"
	"github.com/twinhold/twinhold/reservation"
)

// reporter is what cases need of *testing.T; *rapid.T has it too.
type reporter interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// env is one case at work: a store, a shop of its own, and words to speak with.
type env struct {
	reporter
	t    *testing.T // the case itself, also below rapid
	h    *Harness
	cfg  Config
	shop int64
	keys *atomic.Int64
}

// shopStride keeps the shops of cases apart from the further shops that a case makes for itself.
const shopStride = 1_000_000

func newEnv(t *testing.T, h *Harness, cfg Config, n int64) *env {
	return &env{reporter: t, t: t, h: h, cfg: cfg, shop: n * shopStride, keys: new(atomic.Int64)}
}

// opTimeout is the deadline of an operation that nothing hinders. A loaded machine is slow; nothing is this slow.
const opTimeout = 30 * time.Second

// ctx gives an operation its deadline. The case's end cancels it too.
func (e *env) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.t.Context(), opTimeout)
}

// key makes up a key that the case has not used.
func (e *env) key() string { return fmt.Sprintf("key-%d", e.keys.Add(1)) }

func (e *env) id() reservation.ID {
	id, err := reservation.NewID()
	if err != nil {
		e.Fatalf("%v", err)
	}
	return id
}

func (e *env) bucket(item int64) reservation.Bucket {
	return reservation.Bucket{Shop: e.shop, Item: item, Group: 1}
}

// line is a quantity of an item in group 1.
func line(item, quantity int64) reservation.Line {
	return reservation.Line{Item: item, Group: 1, Quantity: quantity}
}

// stock gives items 1, 2, 3... of group 1 their quantities.
func (e *env) stock(quantities ...int64) {
	e.Helper()
	stock := make([]reservation.Stocking, len(quantities))
	for i, q := range quantities {
		stock[i] = reservation.Stocking{Bucket: e.bucket(int64(i + 1)), Quantity: q}
	}
	e.stockAll(stock)
}

func (e *env) stockAll(stock []reservation.Stocking) {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	if err := e.h.Stock(ctx, stock); err != nil {
		e.Fatalf("stock %d buckets: %v", len(stock), err)
	}
}

func (e *env) request(shop int64, key string, ttl time.Duration, lines ...reservation.Line) reservation.Request {
	e.Helper()
	req, err := reservation.NewRequest(shop, key, lines, ttl, e.cfg.Limits)
	if err != nil {
		e.Fatalf("the request of the test itself is invalid: %v", err)
	}
	return req
}

// longTTL outlives every case.
const longTTL = time.Hour

// try reserves and gives back whatever comes.
func (e *env) try(key string, lines ...reservation.Line) (reservation.Result, error) {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	return e.h.Store.Reserve(ctx, e.h.Stamp, e.id(), e.request(e.shop, key, longTTL, lines...))
}

// reserve reserves, and fails the case on an error.
func (e *env) reserve(key string, lines ...reservation.Line) reservation.Result {
	e.Helper()
	return e.reserveFor(longTTL, key, lines...)
}

func (e *env) reserveFor(ttl time.Duration, key string, lines ...reservation.Line) reservation.Result {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	res, err := e.h.Store.Reserve(ctx, e.h.Stamp, e.id(), e.request(e.shop, key, ttl, lines...))
	if err != nil {
		e.Fatalf("reserve %q of %v: %v", key, lines, err)
	}
	return res
}

// granted reserves with a fresh key and wants a grant.
func (e *env) granted(lines ...reservation.Line) reservation.ID {
	e.Helper()
	return e.grantedFor(longTTL, lines...)
}

func (e *env) grantedFor(ttl time.Duration, lines ...reservation.Line) reservation.ID {
	e.Helper()
	res := e.reserveFor(ttl, e.key(), lines...)
	e.wantOutcome(res, reservation.Granted, reservation.Held)
	return res.Record.ID
}

// rejected reserves with a fresh key and wants a rejection.
func (e *env) rejected(lines ...reservation.Line) reservation.Result {
	e.Helper()
	res := e.reserve(e.key(), lines...)
	e.wantOutcome(res, reservation.RejectedShort, reservation.Rejected)
	return res
}

func (e *env) wantOutcome(res reservation.Result, outcome reservation.Decision, state reservation.State) {
	e.Helper()
	if res.Record.Outcome != outcome || res.Record.State != state {
		e.Fatalf("reserve answered %s, %s now; want %s, %s", res.Record.Outcome, res.Record.State, outcome, state)
	}
}

func (e *env) tryClaim(shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	ctx, cancel := e.ctx()
	defer cancel()
	return e.h.Store.Claim(ctx, e.h.Stamp, shop, id)
}

// claim wants the claim to end in state, late or not.
func (e *env) claim(id reservation.ID, state reservation.State, late bool) reservation.ClaimResult {
	e.Helper()
	res, err := e.tryClaim(e.shop, id)
	if err != nil {
		e.Fatalf("claim: %v", err)
	}
	if res.Record.State != state || res.Late != late {
		e.Fatalf("claim ended %s (late: %t); want %s (late: %t)", res.Record.State, res.Late, state, late)
	}
	return res
}

func (e *env) tryRelease(shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	ctx, cancel := e.ctx()
	defer cancel()
	return e.h.Store.Release(ctx, e.h.Stamp, shop, id)
}

func (e *env) release(id reservation.ID) reservation.ReleaseResult {
	e.Helper()
	res, err := e.tryRelease(e.shop, id)
	if err != nil {
		e.Fatalf("release: %v", err)
	}
	if res.Record.State != reservation.Released {
		e.Fatalf("release ended %s", res.Record.State)
	}
	return res
}

func (e *env) tryAdjust(adj reservation.Adjustment) (reservation.AdjustResult, error) {
	ctx, cancel := e.ctx()
	defer cancel()
	return e.h.Store.Adjust(ctx, e.h.Stamp, adj)
}

func (e *env) adjust(id string, item, delta int64, force bool) reservation.AdjustResult {
	e.Helper()
	res, err := e.tryAdjust(reservation.Adjustment{ID: id, Bucket: e.bucket(item), Delta: delta, Force: force})
	if err != nil {
		e.Fatalf("adjust bucket %s by %d: %v", e.bucket(item), delta, err)
	}
	return res
}

func (e *env) get(id reservation.ID) reservation.Record {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	rec, err := e.h.Store.Get(ctx, e.shop, id)
	if err != nil {
		e.Fatalf("get %s: %v", id, err)
	}
	return rec
}

func (e *env) state(id reservation.ID, want reservation.State) {
	e.Helper()
	if got := e.get(id).State; got != want {
		e.Fatalf("reservation %s is %s; want %s", id, got, want)
	}
}

func (e *env) settle() {
	e.Helper()
	if e.h.Settle == nil {
		return
	}
	ctx, cancel := e.ctx()
	defer cancel()
	if err := e.h.Settle(ctx); err != nil {
		e.Fatalf("settle: %v", err)
	}
}

func (e *env) availability(item int64) reservation.Availability {
	e.Helper()
	ctx, cancel := e.ctx()
	defer cancel()
	a, err := e.h.Store.Availability(ctx, e.bucket(item))
	if err != nil {
		e.Fatalf("availability of %s: %v", e.bucket(item), err)
	}
	return a
}

// figures wants a bucket's exact figures, once background work is done.
func (e *env) figures(item, available, held, onHand int64) {
	e.Helper()
	e.settle()
	a := e.availability(item)
	if a.Available != available || a.Held != held || a.OnHand != onHand {
		e.Fatalf("bucket %s: available %d, held %d, on hand %d; want %d, %d, %d",
			a.Bucket, a.Available, a.Held, a.OnHand, available, held, onHand)
	}
	if a.Bucket != e.bucket(item) || a.Truth != e.h.Truth {
		e.Fatalf("availability is of %s in %s; want %s in %s", a.Bucket, a.Truth, e.bucket(item), e.h.Truth)
	}
}

// sweep sweeps until nothing is due, and gives what it expired.
func (e *env) sweep() []reservation.Record {
	e.Helper()
	var all []reservation.Record
	for {
		ctx, cancel := e.ctx()
		res, err := e.h.Store.Sweep(ctx, e.h.Stamp, 100)
		cancel()
		if err != nil {
			e.Fatalf("sweep: %v", err)
		}
		all = append(all, res.Expired...)
		if !res.More {
			return all
		}
	}
}

// expire waits until the reservation is due, and sweeps until it is expired.
func (e *env) expire(id reservation.ID) {
	e.Helper()
	e.pass(e.get(id).ExpiresAt)
	e.until("the reservation is expired", func() bool {
		e.sweep()
		return e.get(id).State == reservation.Expired
	})
}

// pass waits until the store's clock has passed an instant.
func (e *env) pass(instant time.Time) {
	e.Helper()
	e.until("the store's clock passes "+instant.Format(time.RFC3339Nano), func() bool { return e.now().After(instant) })
}

func (e *env) now() time.Time {
	e.Helper()
	if e.h.Now == nil {
		return time.Now()
	}
	ctx, cancel := e.ctx()
	defer cancel()
	now, err := e.h.Now(ctx)
	if err != nil {
		e.Fatalf("read the store's clock: %v", err)
	}
	return now
}

// until polls a condition that sends no signal.
func (e *env) until(what string, holds func() bool) {
	e.Helper()
	deadline := time.NewTimer(opTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			e.Fatalf("not within %v: %s", opTimeout, what)
		}
	}
}

// invariants computes I1 to I6 from what the store holds now.
func (e *env) invariants() {
	e.Helper()
	e.settle()
	ctx, cancel := e.ctx()
	defer cancel()
	red, sql, err := e.h.Inspect(ctx)
	if err != nil {
		e.Fatalf("inspect: %v", err)
	}
	now := e.now()
	opts := invariant.Options{
		Settled: true, LedgerOnly: e.h.LedgerOnly, Now: now,
	}
	if e.cfg.Retention < time.Minute {
		opts.OldestKept = now // such a store purges under our hands
	}
	rep := invariant.Check(red, sql, opts)
	want := []string{"I1"}
	if sql != nil {
		want = append(want, "I2", "I3")
	}
	if red != nil {
		want = append(want, "I4")
	}
	for _, name := range want {
		if r, ok := rep.Result(name); !ok || r.Evaluated == 0 {
			e.Errorf("%s was not evaluated: the store shows nothing to evaluate it on", name)
		}
	}
	if !rep.OK() {
		e.Errorf("invariants:\n%s", rep)
	}
}

// forcedPrefix begins the ids of the adjustments that the suite forces.
const forcedPrefix = "forced-"

// entriesOf reads the claim entries of a reservation from the ledger's journal.
func (e *env) entriesOf(id reservation.ID) []reservation.Entry {
	e.Helper()
	e.settle()
	ctx, cancel := e.ctx()
	defer cancel()
	_, sql, err := e.h.Inspect(ctx)
	if err != nil {
		e.Fatalf("inspect: %v", err)
	}
	if sql == nil {
		e.Fatalf("the harness shows no ledger")
	}
	return slices.DeleteFunc(slices.Clone(sql.Entries), func(en reservation.Entry) bool {
		return en.Kind != reservation.EntryClaim || en.Reservation != id
	})
}

// together runs the functions at once and waits for all. Each begins a moment of its own later, so that over many
// rounds every one of them comes first now and then.
func together(fns ...func()) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, i := range rand.Perm(len(fns)) {
		yields := rand.IntN(8)
		wg.Go(func() {
			<-start
			for range yields {
				runtime.Gosched()
			}
			fns[i]()
		})
	}
	close(start)
	wg.Wait()
}

// many is n copies of a function that gets its number.
func many(n int, fn func(i int)) []func() {
	fns := make([]func(), n)
	for i := range fns {
		fns[i] = func() { fn(i) }
	}
	return fns
}

// busy tells whether an error only says to try again.
func busy(err error) bool { return errors.Is(err, reservation.ErrBusy) }

// retried repeats an operation while it answers busy.
func retried[R any](e *env, op func() (R, error)) (R, error) {
	e.Helper()
	var (
		res R
		err error
	)
	e.until("the store is no longer busy", func() bool {
		res, err = op()
		return !busy(err)
	})
	return res, err
}

// wantConflict wants a refusal for the reservation's state.
func (e *env) wantConflict(err error, op reservation.Op, state reservation.State) {
	e.Helper()
	var conflict *reservation.ConflictError
	if !errors.As(err, &conflict) {
		e.Fatalf("want a conflict (cannot %s a %s reservation), got: %v", op, state, err)
	}
	if conflict.Op != op || conflict.State != state {
		e.Fatalf("got %q; want: cannot %s a %s reservation", conflict, op, state)
	}
}
