package legacyredis_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// mirrored reserves in Redis and lets MySQL follow.
func (b *book) mirrored(key string, quantity int64) reservation.Record {
	b.tb.Helper()
	rec := b.reserve(key, line(1, quantity)).Record
	_, err := b.mysql.Mirror(b.tb.Context(), stamp(), reservation.MirrorOp{Op: reservation.OpReserve, Decision: rec.Outcome, Record: rec})
	if err != nil {
		b.tb.Fatal(err)
	}
	return rec
}

// lose takes a hold out of Redis as if its write had been lost by a failover.
func (b *book) lose(rec reservation.Record) {
	b.tb.Helper()
	ctx := b.tb.Context()
	_, err := b.raw.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, b.key("res:%s", rec.ID), b.key("key:1:%s", rec.Key))
		p.ZRem(ctx, b.key("created"), rec.ID.String())
		p.ZRem(ctx, b.key("exp"), rec.ID.String())
		p.IncrBy(ctx, b.key("avail:%s", bucket(1)), rec.Lines[0].Quantity)
		p.DecrBy(ctx, b.key("held:%s", bucket(1)), rec.Lines[0].Quantity)
		return nil
	})
	if err != nil {
		b.tb.Fatal(err)
	}
	b.noOrphans()
}

// A hold that only MySQL knows was promised to somebody: its claim is carried out, by force if need be.
func TestClaimOfALostHold(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]int64{"available": 2, "by force": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			b.stockBoth(10)
			rec := b.mirrored("lost", 4)
			b.lose(rec)
			b.reserve("other", line(1, others))
			b.figures(1, 10-others, others, 10)
			res := b.mustClaim(rec.ID, reservation.Claimed, false, false)
			if res.Record.Key != "lost" || len(res.Record.Lines) != 1 || !res.Record.ExpiresAt.Equal(rec.ExpiresAt) {
				t.Fatalf("%+v", res.Record)
			}
			b.figures(1, 6-others, others, 6)
			b.state(rec.ID, reservation.Claimed)
			if n := b.entries(rec.ID); n != 1 {
				t.Fatalf("I6: %d entries", n)
			}
			if again := b.reserve("lost", line(1, 4)); !again.Replayed || again.Record.ID != rec.ID {
				t.Fatalf("its key: %+v", again)
			}
			b.noOrphans()
		})
	}
}

// Its key was given to a newer reservation meanwhile: that one keeps it.
func TestClaimOfALostHoldWhoseKeyIsTaken(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	rec := b.mirrored("k", 4)
	b.lose(rec)
	newer := b.reserve("k", line(1, 1)).Record
	b.mustClaim(rec.ID, reservation.Claimed, false, false)
	b.figures(1, 5, 1, 6)
	if again := b.reserve("k", line(1, 1)); again.Record.ID != newer.ID {
		t.Fatalf("the key leads to %s", again.Record.ID)
	}
	if got := b.state(rec.ID, reservation.Claimed); got.Key != "" {
		t.Fatalf("two records with the key %q", got.Key)
	}
	b.noOrphans()
}

func TestClaimOfALostHoldThatHadEnded(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	rec := b.mirrored("k", 4)
	done, err := b.release(rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.mysql.Mirror(t.Context(), stamp(), reservation.MirrorOp{Op: reservation.OpRelease, Decision: reservation.ReleasedOK, Record: done.Record}); err != nil {
		t.Fatal(err)
	}
	if err := b.raw.Del(t.Context(), b.key("res:%s", rec.ID), b.key("key:1:k")).Err(); err != nil {
		t.Fatal(err)
	}
	_, err = b.claim(rec.ID)
	if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Released {
		t.Fatal(c)
	}
	b.figures(1, 10, 0, 10)
}

// While Redis decides, MySQL's own expiry or rejection does not matter to a claim; its release does.
func TestReleaseInMySQLBeatsAPin(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	rec := b.mirrored("k", 4)
	released := rec
	released.State, released.ReleasedAt = reservation.Released, time.Now().UTC().Truncate(time.Microsecond)
	if _, err := b.mysql.Mirror(t.Context(), stamp(), reservation.MirrorOp{Op: reservation.OpRelease, Decision: reservation.ReleasedOK, Record: released}); err != nil {
		t.Fatal(err)
	}
	_, err := b.claim(rec.ID)
	if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Released || c.Op != reservation.OpClaim {
		t.Fatal(c)
	}
	b.figures(1, 10, 0, 10)
	b.state(rec.ID, reservation.Released)
	if n := b.entries(rec.ID); n != 0 {
		t.Fatalf("I6: %d entries of a released one", n)
	}
}

// A claim of a purged reservation finds its entry.
func TestClaimAfterThePurge(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	id := b.reserve("k", line(1, 4)).Record.ID
	b.mustClaim(id, reservation.Claimed, false, false)
	b.figures(1, 6, 0, 6)
	b.setTime(id, "purge_at", -time.Second)
	b.mustClaim(id, reservation.Claimed, false, true) // past its retention, not purged yet
	if res := b.sweep(); res.Purged != 1 {
		t.Fatalf("%+v", res)
	}
	b.mustClaim(id, reservation.Claimed, false, true)
	b.figures(1, 6, 0, 6)
	_, err := b.store.Get(t.Context(), 1, id)
	wantIs(t, err, reservation.ErrNotFound)
	if n := b.entries(id); n != 1 {
		t.Fatalf("I6: %d entries", n)
	}
}

// An unknown id is answered so by a ledger that can be asked, and not otherwise.
func TestUnknownClaimNeedsTheLedger(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	if err := b.mysql.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := b.claim(newID(t))
	if err == nil || errors.Is(err, reservation.ErrNotFound) || reservation.CodeOf(err) != reservation.CodeUnavailable {
		t.Fatalf("the ledger cannot be asked, and the claim says %v", err)
	}
}
