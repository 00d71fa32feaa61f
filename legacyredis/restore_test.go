package legacyredis_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

func (r *rig) begin(seen reservation.Stamp, wipe bool) reservation.Restoring {
	r.tb.Helper()
	v, err := r.store.BeginRestore(r.tb.Context(), seen, wipe)
	if err != nil {
		r.tb.Fatal(err)
	}
	return v
}

func (r *rig) finish(v reservation.Restoring, to reservation.Stamp, killed string) reservation.Fence {
	r.tb.Helper()
	f, err := v.Finish(r.tb.Context(), to, killed, by("restorer"))
	if err != nil {
		r.tb.Fatal(err)
	}
	return f
}

// distrust makes the rig's Redis suspect, as a restart does.
func (r *rig) distrust() {
	r.tb.Helper()
	if err := r.raw.HSet(r.tb.Context(), r.key("fence"), "suspect", "1").Err(); err != nil {
		r.tb.Fatal(err)
	}
}

func figure(item, onHand, version int64) reservation.Figures {
	return reservation.Figures{Bucket: bucket(item), OnHand: onHand, Version: version}
}

// sums wants every bucket's held to be what its records and pins say, and I4.
func (r *rig) sums() {
	r.tb.Helper()
	snap := r.noOrphans()
	held := map[reservation.Bucket]int64{}
	for _, rec := range snap.Records {
		if rec.State.TakesUnits() {
			for _, l := range rec.Lines {
				held[l.Bucket(rec.Shop)] += l.Quantity
			}
		}
	}
	for _, b := range snap.Buckets {
		if b.Held != held[b.Bucket] || b.Available != b.OnHand-b.Held {
			r.tb.Errorf("I4: %s: available %d, on hand %d, held %d, and %d by the records", b.Bucket, b.Available, b.OnHand, b.Held, held[b.Bucket])
		}
	}
}

// A healthy Redis is not restored; one that is suspect, behind, of another stage, or empty is.
func TestBeginRestore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seen    reservation.Stamp
		suspect bool
		flushed bool
		wipe    bool
		refused bool
	}{
		"healthy":                  {seen: stamp(), refused: true},
		"ahead of what was seen":   {seen: at(6, reservation.Cutover), refused: true},
		"nothing seen":             {refused: true},
		"suspect":                  {seen: stamp(), suspect: true},
		"behind":                   {seen: at(8, reservation.Shadow)},
		"of another stage":         {seen: at(7, reservation.Cutover)},
		"flushed":                  {seen: stamp(), flushed: true},
		"healthy, and to be wiped": {seen: stamp(), wipe: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.stock(10)
			id := r.reserve("k", line(1, 3)).Record.ID
			if c.suspect {
				r.distrust()
			}
			if c.flushed {
				r.flush()
			}
			v, err := r.store.BeginRestore(t.Context(), c.seen, c.wipe)
			if errors.Is(err, reservation.ErrHealthy) != c.refused || err != nil && !c.refused {
				t.Fatal(err)
			}
			if c.refused {
				r.figures(1, 7, 3, 10)
				return
			}
			if want := uint64(7); c.flushed != (v.Seen().Epoch == 0) || !c.flushed && (v.Seen().Epoch != want || v.Seen().Suspect != c.suspect) {
				t.Fatalf("seen: %+v", v.Seen())
			}
			verdict := reservation.Regressed
			if c.flushed {
				verdict = reservation.NoFence
			}
			r.refusals(stamp(), id, verdict)
			_, err = r.store.InitFence(t.Context(), stamp())
			if c.flushed && err == nil {
				t.Fatal("a fence was made under a restore")
			}
			_, err = r.store.BeginRestore(t.Context(), c.seen, c.wipe)
			wantIs(t, err, reservation.ErrRestoring)
			if err := v.Abandon(t.Context()); err != nil {
				t.Fatal(err)
			}
			if f := r.fence(); !f.Suspect {
				t.Fatalf("given up, it is trusted: %+v", f)
			}
			_, err = v.Finish(t.Context(), at(20, reservation.Shadow), "", by("x"))
			wantIs(t, err, reservation.ErrRestoring)
			r.finish(r.begin(c.seen, false), at(20, reservation.Shadow), "")
		})
	}
}

// flush removes everything of the pod.
func (r *rig) flush() {
	r.tb.Helper()
	keys := r.raw.Keys(r.tb.Context(), r.key("*")).Val()
	if err := r.raw.Del(r.tb.Context(), keys...).Err(); err != nil {
		r.tb.Fatal(err)
	}
}

// An empty Redis gets everything back: figures, holds, ended ones, keys; then the fence, at once and last.
func TestI7RestoreOfAnEmptyRedis(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	held, rejected, released := r.truth("h", reservation.Held, line(1, 4), line(2, 1)), r.truth("n", reservation.Rejected, line(1, 90)), r.truth("r", reservation.Released, line(1, 2))
	claimed := r.truth("c", reservation.Claimed, line(1, 3))
	r.flush()
	v := r.begin(at(9, reservation.Cutover), false)
	to := at(10, reservation.Cutover)
	for range 2 { // it can be begun again from the start
		if err := v.ApplyFigures(t.Context(), []reservation.Figures{figure(1, 7, 5), figure(2, 2, 1)}); err != nil {
			t.Fatal(err)
		}
		for _, rec := range []reservation.Record{held, rejected, released, claimed} {
			op := opOf(rec)
			op.Adopt = rec.State.Live()
			if j, err := v.Mirror(t.Context(), to, op); err != nil || j.State != rec.State {
				t.Fatalf("%+v, %v", j, err)
			}
		}
	}
	f := r.finish(v, to, "")
	if f.Stamp != to || f.Incarnation != 10 || f.IncarnationEpoch != 10 || f.Suspect || f.Killed || len(f.Server) != 40 {
		t.Fatalf("%+v", f)
	}
	r.figures(1, 3, 4, 7)
	r.figures(2, 1, 1, 2)
	for _, rec := range []reservation.Record{held, rejected, released, claimed} {
		got := r.stateNow(rec.ID, rec.State)
		if diff := cmp.Diff(rec, got); diff != "" {
			t.Fatal(diff)
		}
		if again, err := r.store.Reserve(t.Context(), to, newID(t), request(t, rec.Key, time.Hour, rec.Lines...)); err != nil || again.Record.ID != rec.ID {
			t.Fatalf("I9: %+v, %v", again, err)
		}
	}
	r.sums()
	if list := r.audit(); len(list) != 1 || list[0].Action != reservation.ActionRestore || list[0].After != to || list[0].Before.Epoch != 0 {
		t.Fatalf("%+v", list)
	}
}

// A Redis that lost its last writes: what stands higher there stays, what MySQL has is adopted, and a rejection that
// somebody was told stands where Redis decides.
func TestRestoreOfARedisThatIsBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	own := r.reserve("own", line(1, 2)).Record // never reached MySQL
	ended := r.reserve("ended", line(1, 1)).Record
	if _, err := r.release(ended.ID); err != nil {
		t.Fatal(err)
	}
	said := r.reserve("no", line(1, 50)).Record
	lost := r.truth("lost", reservation.Held, line(1, 9))
	ended.State, ended.ReleasedAt = reservation.Held, time.Time{}
	said.State, said.Outcome, said.Shortages = reservation.Held, reservation.Granted, nil
	r.distrust()

	v := r.begin(stamp(), false)
	if err := v.ApplyFigures(t.Context(), []reservation.Figures{figure(1, 10, 1)}); err != nil {
		t.Fatal(err)
	}
	to := at(8, reservation.Shadow)
	for rec, want := range map[*reservation.Record]reservation.State{&ended: reservation.Released, &said: reservation.Rejected, &lost: reservation.Held} {
		op := opOf(*rec)
		op.Adopt = true
		if j, err := v.Mirror(t.Context(), to, op); err != nil || j.State != want {
			t.Fatalf("%s: %+v, %v; want %s", rec.Key, j, err, want)
		}
	}
	f := r.finish(v, to, "")
	if f.Incarnation != 2 || f.IncarnationEpoch != 8 {
		t.Fatalf("%+v", f)
	}
	r.stateNow(own.ID, reservation.Held)
	r.figures(1, -1, 11, 10)
	r.sums()
}

// Counters that are gone, wholly or in part, are counted anew from the records: held ones, pins, pinned adjustments.
func TestI4RestoreCountsWhatIsHeld(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(20, 20, 20, 20)
	b.reserve("a", line(1, 2), line(2, 3), line(3, 4), line(4, 1))
	pinned := b.reserve("b", line(1, 5)).Record.ID
	b.pinIt(stamp(), pinned)
	b.gate.set(errors.New("MySQL is away"), false)
	if _, err := b.adjust("write-off", -6, false); err == nil {
		t.Fatal("it should have been left pinned")
	}
	b.gate.set(nil, false)
	ctx := t.Context()
	var gone []string
	for _, kind := range []string{"avail", "held", "onhand", "ver"} {
		gone = append(gone, b.key("%s:%s", kind, bucket(1)))
	}
	gone = append(gone, b.key("held:%s", bucket(2)), b.key("avail:%s", bucket(3)))
	if err := b.raw.Del(ctx, gone...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.raw.Set(ctx, b.key("held:%s", bucket(4)), "17", 0).Err(); err != nil {
		t.Fatal(err)
	}
	b.distrust()
	v := b.begin(stamp(), false)
	figs, err := b.mysql.Figures(ctx, reservation.Bucket{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.ApplyFigures(ctx, figs); err != nil {
		t.Fatal(err)
	}
	b.finish(v, at(8, reservation.Shadow), "")
	b.figures(1, 7, 13, 20)
	b.figures(2, 17, 3, 20)
	b.figures(3, 16, 4, 20)
	b.figures(4, 19, 1, 20)
	b.noOrphans()
}

// A wipe leaves fence, latch, heartbeats and audit, and nothing else.
func TestWipe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	for i := range 30 {
		r.reserve(string(rune('a'+i)), line(1, 1))
	}
	if _, err := r.store.Beat(t.Context(), reservation.Heartbeat{Router: "r"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Kill(t.Context(), by("x")); err != nil {
		t.Fatal(err)
	}
	v := r.begin(stamp(), true)
	var left []string
	for key := range r.contents() {
		left = append(left, key)
	}
	want := []string{r.key("audit"), r.key("fence"), r.key("kill"), r.key("restore"), r.key("routers")}
	if diff := cmp.Diff(want, sorted(left)); diff != "" {
		t.Fatal(diff)
	}
	if f := r.finish(v, at(8, reservation.Shadow), ""); !f.Killed || f.Incarnation != 2 {
		t.Fatalf("%+v", f)
	}
	if r.raw.Exists(t.Context(), r.key("restore")).Val() != 0 {
		t.Fatal("the token is still there")
	}
}

// A kill is not lost by a restore: a latch that was there is folded as the fence is set, one that was lost is set again.
func TestI8RestoreKeepsAKill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.distrust()
	v := r.begin(at(9, reservation.Cutover), false)
	if _, err := r.store.Kill(t.Context(), by("x")); err == nil {
		t.Fatal("a suspect Redis said that it is killed, and no more")
	}
	f := r.finish(v, at(10, reservation.Cutover), "")
	if f.Stamp != at(11, reservation.Shadow) || !f.Killed || f.IncarnationEpoch != 10 {
		t.Fatalf("%+v", f)
	}

	lost := newRig(t)
	lost.distrust()
	f = lost.finish(lost.begin(at(9, reservation.Shadow), false), at(10, reservation.Shadow), "the reason")
	if f.Stamp != at(10, reservation.Shadow) || !f.Killed || f.Latch != "the reason" {
		t.Fatalf("%+v", f)
	}
}

// If the process dies, its lease runs out, and another begins; the first one, if it was only slow, writes nothing more.
func TestRestoreIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	r.distrust()
	first := r.begin(stamp(), false)
	left := r.raw.PTTL(t.Context(), r.key("restore")).Val()
	if left <= 0 || left > time.Minute {
		t.Fatalf("a lease of %v", left)
	}
	if err := r.raw.PExpire(t.Context(), r.key("restore"), time.Second).Err(); err != nil {
		t.Fatal(err)
	}
	if err := first.ApplyFigures(t.Context(), []reservation.Figures{figure(1, 10, 1)}); err != nil {
		t.Fatal(err)
	}
	if left := r.raw.PTTL(t.Context(), r.key("restore")).Val(); left <= time.Second {
		t.Fatalf("a write did not renew the lease: %v", left)
	}
	if err := r.raw.PExpire(t.Context(), r.key("restore"), time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the lease ran out", func() bool { return r.raw.Exists(t.Context(), r.key("restore")).Val() == 0 })
	second := r.begin(stamp(), false)
	before := r.contents()
	wantIs(t, first.ApplyFigures(t.Context(), []reservation.Figures{figure(1, 99, 9)}), reservation.ErrRestoring)
	_, err := first.Mirror(t.Context(), stamp(), opOf(r.truth("k", reservation.Held, line(1, 1))))
	wantIs(t, err, reservation.ErrRestoring)
	_, err = first.Finish(t.Context(), at(8, reservation.Shadow), "", by("x"))
	wantIs(t, err, reservation.ErrRestoring)
	if err := first.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.unchanged(before)
	_, err = second.Finish(t.Context(), stamp(), "", by("x"))
	wantAs[*reservation.InvalidError](t, err)
	r.finish(second, at(8, reservation.Shadow), "")
	r.figures(1, 10, 0, 10)
}

// The real thing: a restarted server comes back by a restore.
func TestI7RestoreOfARestartedServer(t *testing.T) {
	t.Parallel()
	r, srv := privateRig(t, "--appendfsync", "always")
	r.stock(10)
	id := r.reserve("k", line(1, 3)).Record.ID
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.reconnected(t)
	v := r.begin(stamp(), false)
	if err := v.ApplyFigures(t.Context(), []reservation.Figures{figure(1, 10, 1)}); err != nil {
		t.Fatal(err)
	}
	walker, ok := v.(reservation.Walker)
	if !ok {
		t.Fatal("a restore cannot look at what is there")
	}
	if recs, err := walker.Walk(t.Context(), reservation.ID{}, 10); err != nil || len(recs) != 1 {
		t.Fatalf("%+v, %v", recs, err)
	}
	to := at(8, reservation.Shadow)
	r.finish(v, to, "")
	r.reconnected(t)
	if res, err := r.store.Release(t.Context(), to, 1, id); err != nil || res.Record.State != reservation.Released {
		t.Fatalf("%+v, %v", res, err)
	}
	r.figures(1, 10, 0, 10)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
