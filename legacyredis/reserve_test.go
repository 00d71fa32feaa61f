package legacyredis_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/reservation"
)

func TestReserveGrantsAllOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5, 3)

	res := r.reserve("too much", line(1, 2), line(2, 4))
	if res.Record.Outcome != reservation.RejectedShort || res.Record.State != reservation.Rejected {
		t.Fatalf("2 and 4 of 5 and 3: %+v", res.Record)
	}
	if diff := cmp.Diff([]reservation.Shortage{{Item: 2, Group: 1, Requested: 4, Available: 3}}, res.Record.Shortages); diff != "" {
		t.Fatal(diff)
	}
	wantLevels := []reservation.Level{{Bucket: bucket(1), Available: 5}, {Bucket: bucket(2), Available: 3}}
	if diff := cmp.Diff(wantLevels, res.Levels); diff != "" {
		t.Fatal(diff)
	}
	r.figures(1, 5, 0, 5)
	r.figures(2, 3, 0, 3)

	res = r.reserve("fits", line(1, 2), line(2, 3))
	if res.Record.Outcome != reservation.Granted || res.Record.State != reservation.Held || res.Replayed {
		t.Fatalf("2 and 3 of 5 and 3: %+v", res.Record)
	}
	if diff := cmp.Diff(wantLevels, res.Levels); diff != "" {
		t.Fatal(diff)
	}
	r.figures(1, 3, 2, 5)
	r.figures(2, 0, 3, 3)

	// What the answer said is what is stored.
	got, err := r.store.Get(t.Context(), 1, res.Record.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(res.Record, got); diff != "" {
		t.Fatal(diff)
	}
	if got.ExpiresAt.Sub(got.CreatedAt) != time.Hour || got.PurgeAt.Sub(got.ExpiresAt) != 48*time.Hour || got.Epoch != 7 {
		t.Fatalf("times and epoch of %+v", got)
	}
}

func TestReserveReplaysByKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5)

	first := r.reserve("k", line(1, 2))
	again := r.reserve("k", line(1, 2))
	if !again.Replayed || again.Record.ID != first.Record.ID || len(again.Levels) != 0 {
		t.Fatalf("a replay: %+v", again)
	}
	if diff := cmp.Diff(first.Record, again.Record); diff != "" {
		t.Fatal(diff)
	}
	_, err := r.store.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 3)))
	wantIs(t, err, reservation.ErrKeyConflict)

	if _, err := r.release(first.Record.ID); err != nil {
		t.Fatal(err)
	}
	again = r.reserve("k", line(1, 2))
	if again.Record.Outcome != reservation.Granted || again.Record.State != reservation.Released {
		t.Fatalf("a replay after release says %s, %s now", again.Record.Outcome, again.Record.State)
	}
	r.figures(1, 5, 0, 5)

	// A rejection replays as one, even once there is enough.
	no := r.reserve("no", line(1, 9))
	if _, err := r.store.ApplyFigures(t.Context(), stamp(), []reservation.Figures{{Bucket: bucket(1), OnHand: 50, Version: 2}}, false); err != nil {
		t.Fatal(err)
	}
	again = r.reserve("no", line(1, 9))
	if diff := cmp.Diff(no.Record, again.Record); diff != "" || !again.Replayed {
		t.Fatal(diff)
	}
	r.figures(1, 50, 0, 50)
}

// The same id again is our own retry of a lost reply: it is answered as the first was.
func TestReserveSameIDIsNoReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5)
	id := newID(t)
	for _, c := range []struct {
		id  reservation.ID
		req reservation.Request
	}{{id, request(t, "a", time.Hour, line(1, 2))}, {newID(t), request(t, "b", time.Hour, line(1, 4))}} {
		first, err := r.store.Reserve(t.Context(), stamp(), c.id, c.req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.store.Reserve(t.Context(), stamp(), c.id, c.req)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatal(diff)
		}
	}
	r.figures(1, 3, 2, 5)
	_, err := r.store.Reserve(t.Context(), stamp(), id, request(t, "other key", time.Hour, line(1, 1)))
	wantIs(t, err, reservation.ErrKeyConflict)
}

func TestKeysAreBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(1000)
	seen := map[reservation.ID]string{}
	for _, key := range []string{"k", "K", "k ", "ké", "ke\u0301", "\x00\xff\r\n", "a}:res:{b", "{x}", "a:b"} {
		res := r.reserve(key, line(1, 1))
		if other, dup := seen[res.Record.ID]; dup {
			t.Fatalf("keys %q and %q are one", key, other)
		}
		seen[res.Record.ID] = key
		if got, err := r.store.Get(t.Context(), 1, res.Record.ID); err != nil || got.Key != key {
			t.Fatalf("key %q came back as %q, %v", key, got.Key, err)
		}
	}
	r.figures(1, int64(1000-len(seen)), int64(len(seen)), 1000)
}

// A key whose record is past its retention is unknown, whether or not the purge has run.
func TestReserveTakesOverAPurgedKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5, 5)
	first := r.reserve("k", line(1, 4), line(2, 1))
	r.expireNow(first.Record.ID)
	r.setTime(first.Record.ID, "purge_at", -time.Second)

	// Never swept: its units come back, and the new request is decided on them.
	second := r.reserve("k", line(1, 5))
	if second.Replayed || second.Record.Outcome != reservation.Granted || second.Levels[0].Available != 5 {
		t.Fatalf("after retention: %+v", second)
	}
	r.figures(1, 0, 5, 5)
	r.figures(2, 5, 0, 5)
	_, err := r.store.Get(t.Context(), 1, first.Record.ID)
	wantIs(t, err, reservation.ErrNotFound)
	_, err = r.release(first.Record.ID)
	wantIs(t, err, reservation.ErrNotFound)
	r.noOrphans()

	// Under a claim it is busy.
	if err := r.raw.HSet(t.Context(), r.key("res:%s", second.Record.ID), "state", "claiming", "purge_at", 1).Err(); err != nil {
		t.Fatal(err)
	}
	_, err = r.store.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(2, 1)))
	wantIs(t, err, reservation.ErrBusy)
}

func (r *rig) noOrphans() reservation.Snapshot {
	r.tb.Helper()
	snap, err := r.store.Inspect(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	if len(snap.Orphans) > 0 {
		r.tb.Fatalf("orphans: %q", snap.Orphans)
	}
	return snap
}

func TestFrozenTakesNoNewKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5)
	first := r.reserve("k", line(1, 2))
	if err := r.raw.HSet(t.Context(), r.key("fence"), "frozen", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := r.store.Reserve(t.Context(), stamp(), newID(t), request(t, "new", time.Hour, line(1, 1)))
	wantIs(t, err, reservation.ErrFrozen)
	if again := r.reserve("k", line(1, 2)); !again.Replayed {
		t.Fatalf("frozen: %+v", again)
	}
	if _, err := r.release(first.Record.ID); err != nil {
		t.Fatal(err)
	}
	r.figures(1, 5, 0, 5)
}

func TestReleaseOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	id := r.reserve("k", line(1, 4)).Record.ID
	_, err := r.store.Release(t.Context(), stamp(), 2, id)
	wantIs(t, err, reservation.ErrNotFound)
	_, err = r.release(newID(t))
	wantIs(t, err, reservation.ErrNotFound)
	for i := range 3 {
		res, err := r.release(id)
		if err != nil || res.Replayed != (i > 0) || res.WasExpired || res.Record.State != reservation.Released || res.Record.ReleasedAt.IsZero() {
			t.Fatalf("release %d: %+v, %v", i, res, err)
		}
		r.figures(1, 10, 0, 10)
	}
	no := r.reserve("no", line(1, 11)).Record.ID
	_, err = r.release(no)
	if c := wantAs[*reservation.ConflictError](t, err); c.State != reservation.Rejected || c.Op != reservation.OpRelease {
		t.Fatal(c)
	}
	due := r.reserve("due", line(1, 3)).Record.ID
	r.expireNow(due)
	if res := r.sweep(); len(res.Expired) != 1 || res.Expired[0].ID != due || res.Expired[0].State != reservation.Expired {
		t.Fatalf("sweep: %+v", res)
	}
	r.figures(1, 10, 0, 10)
	res, err := r.release(due)
	if err != nil || !res.WasExpired || res.Replayed || res.Record.State != reservation.Released {
		t.Fatalf("release of an expired one: %+v, %v", res, err)
	}
	r.figures(1, 10, 0, 10)
}

func TestSweepPurgesWhatIsPastRetention(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	held := r.reserve("held", line(1, 1)).Record.ID
	rejected := r.reserve("rejected", line(1, 11)).Record.ID
	gone := r.reserve("gone", line(1, 2)).Record.ID
	if _, err := r.release(gone); err != nil {
		t.Fatal(err)
	}
	if res := r.sweep(); res.Purged != 0 || len(res.Expired) != 0 {
		t.Fatalf("nothing is due yet: %+v", res)
	}
	r.setTime(rejected, "purge_at", -time.Second)
	r.setTime(gone, "purge_at", -time.Second)
	if res := r.sweep(); res.Purged != 2 {
		t.Fatalf("sweep: %+v", res)
	}
	snap := r.noOrphans()
	if len(snap.Records) != 1 || snap.Records[0].ID != held {
		t.Fatalf("left over: %+v", snap.Records)
	}
	r.figures(1, 9, 1, 10)
}

// A cart of a thousand lines is one script of a few milliseconds.
func TestLargeCart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = reservation.MaxLines
	stock := make([]int64, n)
	cart := make([]reservation.Line, n)
	for i := range n {
		stock[i] = 100_000
		cart[i] = line(int64(i+1), 74_215)
	}
	r.stock(stock...)
	start := time.Now()
	res := r.reserve("wholesale", cart...)
	t.Logf("%d lines: %v", n, time.Since(start))
	if res.Record.Outcome != reservation.Granted || len(res.Levels) != n {
		t.Fatalf("%s, %d levels", res.Record.Outcome, len(res.Levels))
	}
	if no := r.reserve("second", cart...); len(no.Record.Shortages) != n {
		t.Fatalf("%d shortages", len(no.Record.Shortages))
	}
	r.figures(1, 100_000-74_215, 74_215, 100_000)
	r.figures(n, 100_000-74_215, 74_215, 100_000)
	if _, err := r.release(res.Record.ID); err != nil {
		t.Fatal(err)
	}
	r.figures(n, 100_000, 0, 100_000)
	r.noOrphans()
}

func TestWalkPagesInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(100)
	var want []reservation.ID
	for i := range 23 {
		want = append(want, r.reserve(fmt.Sprint(i), line(1, 5)).Record.ID)
	}
	var got []reservation.ID
	var after reservation.ID
	for {
		page, err := r.store.Walk(t.Context(), after, 5)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, rec := range page {
			got = append(got, rec.ID)
		}
		after = page[len(page)-1].ID
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	id := r.reserve("k", line(1, 1)).Record.ID
	before := r.noOrphans()
	if f := before.Fence; f.Stamp != stamp() || f.Incarnation != 1 || f.IncarnationEpoch != 7 || len(f.Server) != 40 || f.Frozen {
		t.Fatalf("fence %+v", f)
	}
	try := func(st reservation.Stamp) error {
		_, err1 := r.store.Reserve(t.Context(), st, newID(t), request(t, "new", time.Hour, line(1, 1)))
		_, err2 := r.store.Release(t.Context(), st, 1, id)
		_, err3 := r.store.Claim(t.Context(), st, 1, id)
		_, err4 := r.store.Adjust(t.Context(), st, reservation.Adjustment{ID: "a", Bucket: bucket(1), Delta: -1})
		_, err5 := r.store.Sweep(t.Context(), st, 10)
		_, err6 := r.store.ApplyFigures(t.Context(), st, []reservation.Figures{{Bucket: bucket(1), OnHand: 1, Version: 9}}, true)
		for _, err := range []error{err2, err3, err4, err5, err6} {
			if a, b := wantAs[*reservation.FenceError](t, err), wantAs[*reservation.FenceError](t, err1); a.Fence.Stamp != b.Fence.Stamp || a.Verdict != b.Verdict || a.Caller != b.Caller {
				t.Fatalf("%v and %v", a, b)
			}
		}
		return err1
	}
	for st, want := range map[reservation.Stamp]reservation.FenceVerdict{
		{Epoch: 6, Stage: reservation.Shadow}:   reservation.Stale,
		{Epoch: 6, Stage: reservation.Cutover}:  reservation.Stale,
		{Epoch: 7, Stage: reservation.Cutover}:  reservation.Regressed,
		{Epoch: 8, Stage: reservation.Shadow}:   reservation.Regressed,
		{Epoch: 10, Stage: reservation.Legacy}:  reservation.Regressed,
		{Epoch: 700, Stage: reservation.Shadow}: reservation.Regressed,
	} {
		e := wantAs[*reservation.FenceError](t, try(st))
		if e.Verdict != want || !reflect.DeepEqual(e.Fence, before.Fence) || e.Caller != st {
			t.Fatalf("%+v: %+v", st, e)
		}
	}
	if diff := cmp.Diff(before, r.noOrphans()); diff != "" {
		t.Fatalf("a refused write changed something: %s", diff)
	}
	// It is never overwritten, and not made anew beside data.
	f, err := r.store.InitFence(t.Context(), reservation.Stamp{Epoch: 1, Stage: reservation.Legacy})
	if err != nil || !reflect.DeepEqual(f, before.Fence) {
		t.Fatalf("%+v, %v", f, err)
	}
	if err := r.raw.Del(t.Context(), r.key("fence")).Err(); err != nil {
		t.Fatal(err)
	}
	if e := wantAs[*reservation.FenceError](t, try(stamp())); e.Verdict != reservation.NoFence {
		t.Fatal(e)
	}
	_, err = r.store.InitFence(t.Context(), stamp())
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.NoFence {
		t.Fatal(e)
	}
	if empty, err := r.store.Empty(t.Context()); err != nil || empty {
		t.Fatalf("empty %t, %v", empty, err)
	}
}

// Callers of a fence that moves under them never get in after it has moved.
func TestFiguresAreAppliedAbsolutely(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	r.reserve("k", line(1, 4))
	apply := func(onHand, version int64, want int) {
		t.Helper()
		n, err := r.store.ApplyFigures(t.Context(), stamp(), []reservation.Figures{{Bucket: bucket(1), OnHand: onHand, Version: version}}, false)
		if err != nil || n != want {
			t.Fatalf("%d applied, %v", n, err)
		}
	}
	apply(7, 3, 1)
	r.figures(1, 3, 4, 7)
	apply(7, 3, 0)
	apply(100, 2, 0)
	r.figures(1, 3, 4, 7)
	apply(2, 4, 1)
	r.figures(1, -2, 4, 2)
	_, err := r.store.ApplyFigures(t.Context(), stamp(), []reservation.Figures{{Bucket: bucket(1), OnHand: 50, Version: 9}, {Bucket: bucket(2), OnHand: 1, Version: 1}}, false)
	if e := wantAs[*reservation.UnknownBucketError](t, err); e.Bucket != bucket(2) {
		t.Fatal(e)
	}
	r.figures(1, -2, 4, 2)
}

func TestUnknownBucket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(5)
	_, err := r.store.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 1), line(9, 1)))
	if e := wantAs[*reservation.UnknownBucketError](t, err); e.Bucket != bucket(9) {
		t.Fatal(e)
	}
	_, err = r.store.Availability(t.Context(), bucket(9))
	wantAs[*reservation.UnknownBucketError](t, err)
	r.figures(1, 5, 0, 5)
	if snap := r.noOrphans(); len(snap.Records) != 0 || len(snap.Buckets) != 1 {
		t.Fatalf("%+v", snap)
	}
}

func TestCrowdOnTheLastUnits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	granted := make(chan bool, 200)
	for i := range 200 {
		go func() {
			id, _ := reservation.NewID()
			req, _ := reservation.NewRequest(1, fmt.Sprint(i), lines(line(1, 1)), time.Hour, limits())
			res, err := r.store.Reserve(ctx, stamp(), id, req)
			if err != nil {
				t.Errorf("reserve: %v", err)
			}
			granted <- res.Record.Outcome == reservation.Granted
		}()
	}
	n := 0
	for range 200 {
		if <-granted {
			n++
		}
	}
	if n != 10 {
		t.Fatalf("%d of 10 granted", n)
	}
	r.figures(1, 0, 10, 10)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatal("too slow")
	}
}
