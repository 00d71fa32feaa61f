package legacyredis_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// pins is a ledger that remembers the pins it was given.
type pins struct {
	reservation.Ledger
	mu   sync.Mutex
	seen []reservation.Pin
}

func (p *pins) Deduct(ctx context.Context, st reservation.Stamp, pin reservation.Pin) (reservation.Deduction, error) {
	p.mu.Lock()
	p.seen = append(p.seen, pin)
	p.mu.Unlock()
	return p.Ledger.Deduct(ctx, st, pin)
}

func (p *pins) last() reservation.Pin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[len(p.seen)-1]
}

// move sets both fences.
func (b *book) move(st reservation.Stamp) {
	b.tb.Helper()
	b.inStage(st)
	if _, err := b.mysql.Raise(b.tb.Context(), st, nil); err != nil {
		b.tb.Fatal(err)
	}
}

// decided is a hold that MySQL granted in cutover, mirrored.
func (b *book) decided(key string, quantity int64) reservation.Record {
	b.tb.Helper()
	res, err := b.mysql.Reserve(b.tb.Context(), cutover(), newID(b.tb), request(b.tb, key, time.Hour, line(1, quantity)))
	if err != nil || res.Record.State != reservation.Held {
		b.tb.Fatalf("%+v, %v", res, err)
	}
	b.mirror(cutover(), opOf(res.Record))
	return res.Record
}

func (b *book) claimIn(st reservation.Stamp, id reservation.ID) (reservation.ClaimResult, error) {
	b.tb.Helper()
	return b.store.Claim(b.tb.Context(), st, 1, id)
}

// While MySQL decides, the pin judges nothing: Redis's own view of the hold's time does not count.
func TestI7ClaimWhileMySQLDecides(t *testing.T) {
	t.Parallel()
	var seen *pins
	b := newBook(t, func(o *legacyredis.Options) {
		seen = &pins{Ledger: o.Ledger}
		o.Ledger = seen
	})
	b.stockBoth(20)
	b.move(cutover())
	for _, here := range []reservation.State{reservation.Held, reservation.Expired, reservation.Rejected, reservation.Released, 0} {
		rec := b.decided("here "+here.String(), 2)
		key := b.key("res:%s", rec.ID)
		switch here {
		case reservation.Held: // past its time by Redis's clock alone
			b.expireNow(rec.ID)
		case 0:
			b.lose(rec)
		default:
			b.giveBack(2)
			if err := b.raw.HSet(t.Context(), key, "state", here.String()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		res, err := b.claimIn(cutover(), rec.ID)
		if err != nil || res.Record.State != reservation.Claimed || res.Late {
			t.Fatalf("Redis has it %s: %+v, %v", here, res, err)
		}
		if p := seen.last(); !p.Unjudged || p.Late || p.Refuse {
			t.Fatalf("Redis has it %s: the pin was judged: %+v", here, p)
		}
	}
	b.figures(1, 10, 0, 10)
	b.noOrphans()
}

// giveBack makes item 1's counters as if a hold had ended.
func (b *book) giveBack(quantity int64) {
	b.tb.Helper()
	ctx := b.tb.Context()
	_, err := b.raw.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.IncrBy(ctx, b.key("avail:%s", bucket(1)), quantity)
		p.DecrBy(ctx, b.key("held:%s", bucket(1)), quantity)
		return nil
	})
	if err != nil {
		b.tb.Fatal(err)
	}
}

// What MySQL has ended is a conflict, and the pin is undone to what MySQL says: units back, once.
func TestUnpin(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	b.move(cutover())
	rec := b.decided("k", 4)
	if _, err := b.mysql.Release(t.Context(), cutover(), 1, rec.ID); err != nil {
		t.Fatal(err)
	}
	_, err := b.claimIn(cutover(), rec.ID)
	if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Released {
		t.Fatal(c)
	}
	b.figures(1, 10, 0, 10)
	b.stateNow(rec.ID, reservation.Released)

	// Redis has granted it by itself, and MySQL said no.
	no, err := b.mysql.Reserve(t.Context(), cutover(), newID(t), request(t, "no", time.Hour, line(1, 50)))
	if err != nil || no.Record.State != reservation.Rejected {
		t.Fatalf("%+v, %v", no, err)
	}
	held := no.Record
	held.State, held.Outcome, held.Shortages = reservation.Held, reservation.Granted, nil
	b.mirror(cutover(), opOf(held))
	b.figures(1, -40, 50, 10)
	_, err = b.claimIn(cutover(), held.ID)
	if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Rejected {
		t.Fatal(c)
	}
	b.figures(1, 10, 0, 10)
	if got := b.stateNow(held.ID, reservation.Rejected); got.Outcome != reservation.RejectedShort {
		t.Fatalf("%+v", got)
	}
	b.noOrphans()
}

// An old unpin that comes late finds no pin any more, and undoes nothing.
func TestUnpinOfWhatIsNoPin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	id := r.reserve("k", line(1, 4)).Record.ID
	if got := r.eval("finish", stamp(), id.String(), "rejected", "1", "0", ""); got[0] != "ALREADY" {
		t.Fatal(got)
	}
	r.stateNow(id, reservation.Held)
	r.figures(1, 6, 4, 10)
}

// A pin that was set while MySQL decided stays unjudged, whoever joins it after a kill; the one whose ledger was stale
// gives that to the caller.
func TestI7UnjudgedPinIsJoinedAfterAKill(t *testing.T) {
	t.Parallel()
	var seen *pins
	b := newBook(t, func(o *legacyredis.Options) {
		seen = &pins{Ledger: o.Ledger}
		o.Ledger = seen
	})
	b.stockBoth(10)
	b.move(cutover())
	rec := b.decided("k", 4)
	b.pinIt(cutover(), rec.ID)
	killed := at(10, reservation.Shadow)
	b.move(killed)
	b.expireNow(rec.ID)
	res, err := b.claimIn(killed, rec.ID)
	if err != nil || res.Record.State != reservation.Claimed {
		t.Fatalf("%+v, %v", res, err)
	}
	if p := seen.last(); !p.Unjudged || p.Late {
		t.Fatalf("%+v", p)
	}
	b.figures(1, 6, 0, 6)
	if again, err := b.claimIn(killed, rec.ID); err != nil || !again.Replayed {
		t.Fatalf("%+v, %v", again, err)
	}
}

func TestStaleLedgerLeavesThePin(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	id := b.reserve("k", line(1, 4)).Record.ID
	if _, err := b.mysql.Raise(t.Context(), at(9, reservation.Shadow), nil); err != nil {
		t.Fatal(err)
	}
	_, err := b.claim(id)
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.Stale || e.Store != reservation.MySQL {
		t.Fatal(e)
	}
	b.stateNow(id, reservation.Claiming)
	b.inStage(at(9, reservation.Shadow))
	if res, err := b.claimIn(at(9, reservation.Shadow), id); err != nil || res.Record.State != reservation.Claimed || res.Replayed {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, 6, 0, 6)
}

// A last step whose stamp has become old is run under the fence that is there, unless there is no Redis in it any more.
func TestLastStepFollowsTheFence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		next     reservation.Stamp
		finished bool
	}{{at(8, reservation.Handover), true}, {at(9, reservation.Cutover), true}, {at(10, reservation.Shadow), true}, {at(11, reservation.Complete), false}} {
		var b *book
		b = newBook(t, func(o *legacyredis.Options) {
			o.Failpoint = func(name string) {
				if name == legacyredis.FailClaimDeducted || name == legacyredis.FailAdjustApplied {
					b.inStage(c.next)
				}
			}
		})
		b.stockBoth(10)
		id := b.reserve("k", line(1, 4)).Record.ID
		b.mustClaim(id, reservation.Claimed, false, false)
		if c.finished {
			b.figures(1, 6, 0, 6)
		} else {
			b.figures(1, 6, 4, 10)
		}
		b.inStage(stamp())
		if _, err := b.adjust("a", -1, false); err != nil {
			t.Fatal(err)
		}
		if c.finished {
			b.figures(1, 5, 0, 5)
			b.noOrphans()
		}
	}
}

// A late claim is alerted once, whoever judged it.
func TestLateUnjudgedClaim(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	b.move(cutover())
	req := request(t, "k", 300*time.Millisecond, line(1, 4))
	res, err := b.mysql.Reserve(t.Context(), cutover(), newID(t), req)
	if err != nil {
		t.Fatal(err)
	}
	rec := res.Record
	b.mirror(cutover(), opOf(rec))
	devtest.Until(t, "it has expired", func() bool {
		return b.raw.Time(t.Context()).Val().After(rec.ExpiresAt)
	})
	got, err := b.claimIn(cutover(), rec.ID)
	if err != nil || got.Record.State != reservation.Claimed || !got.Late {
		t.Fatalf("%+v, %v", got, err)
	}
	b.figures(1, 6, 0, 6)
	if rec := b.stateNow(rec.ID, reservation.Claimed); !rec.Late {
		t.Fatalf("Redis does not know that it was late: %+v", rec)
	}
}

// While MySQL decides the sweeper ends no hold: it is MySQL's to end. It does not come up again and again either.
func TestSweepWhileMySQLDecides(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(20)
	due := b.reserve("due", line(1, 1)).Record.ID
	gone := b.reserve("gone", line(1, 2)).Record.ID
	rejected := b.reserve("rejected", line(1, 99)).Record.ID
	pinned := b.reserve("pinned", line(1, 3)).Record.ID
	b.inStage(at(8, reservation.Handover))
	half := b.reserveIn(at(8, reservation.Handover), "half", line(1, 4)).Record.ID
	b.move(cutover())
	b.pinIt(cutover(), pinned)
	for _, id := range []reservation.ID{due, gone, half} {
		b.expireNow(id)
	}
	b.setTime(pinned, "pin_until", -time.Second)
	b.setTime(gone, "purge_at", -time.Second)
	b.setTime(rejected, "purge_at", -time.Second)

	res, err := b.store.Sweep(t.Context(), cutover(), 100)
	if err != nil || len(res.Expired) != 0 || res.RolledForward != 1 || res.Purged != 1 || res.Skipped != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	b.stateNow(due, reservation.Held)
	b.stateNow(half, reservation.Expired)
	b.stateNow(pinned, reservation.Claimed)
	b.figures(1, 16, 1, 17)
	// What is left of it: the hold past its retention, that has ended and is removed next.
	if res, err = b.store.Sweep(t.Context(), cutover(), 100); err != nil || res.Purged != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	members := b.raw.ZRangeByScore(t.Context(), b.key("exp"), &redis.ZRangeBy{Min: "-inf", Max: b.nowText()}).Val()
	if len(members) != 0 {
		t.Fatalf("due again at once: %v", members)
	}
	// Redis decides again: then it is Redis's to end.
	b.move(at(10, reservation.Shadow))
	b.expireNow(due)
	if res, err = b.store.Sweep(t.Context(), at(10, reservation.Shadow), 100); err != nil || len(res.Expired) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, 17, 0, 17)
	b.noOrphans()
}

func (r *rig) nowText() string {
	r.tb.Helper()
	now, err := r.raw.Time(r.tb.Context()).Result()
	if err != nil {
		r.tb.Fatal(err)
	}
	return strconv.FormatInt(now.UnixMicro(), 10)
}
