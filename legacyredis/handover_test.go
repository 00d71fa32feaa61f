package legacyredis_test

import (
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

func handover() reservation.Stamp { return at(9, reservation.Handover) }

// reserveIn reserves under another stamp than the rig's.
func (r *rig) reserveIn(st reservation.Stamp, key string, l ...reservation.Line) reservation.Result {
	r.tb.Helper()
	res, err := r.store.Reserve(r.tb.Context(), st, newID(r.tb), request(r.tb, key, time.Hour, l...))
	if err != nil {
		r.tb.Fatalf("reserve %s: %v", key, err)
	}
	return res
}

func (r *rig) stateNow(id reservation.ID, want reservation.State) reservation.Record {
	r.tb.Helper()
	rec, err := r.store.Get(r.tb.Context(), 1, id)
	if err != nil || rec.State != want {
		r.tb.Fatalf("it is %s, %v; want %s", rec.State, err, want)
	}
	return rec
}

// In handover a grant is Redis's half; MySQL's yes makes it held, its no gives the units back.
func TestHandoverGrantNeedsBoth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	old := r.reserve("old", line(1, 1)).Record
	r.inStage(handover())

	yes := r.reserveIn(handover(), "yes", line(1, 2))
	if yes.Record.State != reservation.Provisional || yes.Record.Outcome != reservation.Granted || yes.Replayed {
		t.Fatalf("%+v", yes)
	}
	r.stateNow(yes.Record.ID, reservation.Provisional)
	r.figures(1, 7, 3, 10)
	if again := r.reserveIn(handover(), "yes", line(1, 2)); again.Replayed || again.Record.State != reservation.Provisional || again.Record.ID != yes.Record.ID || len(again.Levels) != 1 {
		t.Fatalf("met in its own epoch: %+v", again)
	}
	rec, err := r.store.Confirm(t.Context(), handover(), yes.Record.ID)
	if err != nil || rec.State != reservation.Held {
		t.Fatalf("%+v, %v", rec, err)
	}
	if rec, err = r.store.TurnDown(t.Context(), handover(), yes.Record.ID, nil); err != nil || rec.State != reservation.Held {
		t.Fatalf("a held one was turned down: %+v, %v", rec, err)
	}
	if again := r.reserveIn(handover(), "yes", line(1, 2)); !again.Replayed || again.Record.State != reservation.Held {
		t.Fatalf("once confirmed it is a replay: %+v", again)
	}

	no := r.reserveIn(handover(), "no", line(1, 2)).Record.ID
	short := []reservation.Shortage{{Item: 1, Group: 1, Requested: 2, Available: 1}}
	for range 2 {
		rec, err = r.store.TurnDown(t.Context(), handover(), no, short)
		if err != nil || rec.State != reservation.Rejected || rec.Outcome != reservation.RejectedShort || len(rec.Shortages) != 1 || rec.Shortages[0] != short[0] {
			t.Fatalf("%+v, %v", rec, err)
		}
		r.figures(1, 7, 3, 10)
	}
	if rec, err = r.store.Confirm(t.Context(), handover(), no); err != nil || rec.State != reservation.Rejected {
		t.Fatalf("a rejected one was confirmed: %+v, %v", rec, err)
	}
	if again := r.reserveIn(handover(), "no", line(1, 2)); !again.Replayed || again.Record.Outcome != reservation.RejectedShort {
		t.Fatalf("%+v", again)
	}
	if again := r.reserveIn(handover(), "old", line(1, 1)); !again.Replayed || again.Record.State != reservation.Held || again.Record.ID != old.ID {
		t.Fatalf("one that was answered in an older epoch: %+v", again)
	}
	_, err = r.store.Confirm(t.Context(), handover(), newID(t))
	wantIs(t, err, reservation.ErrNotFound)
	r.noOrphans()
}

// A provisional hold of an older epoch is decided afresh, since nobody was answered: by whether its units, which are
// taken already, are there.
func TestProvisionalIsDecidedAfresh(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		next  reservation.Stamp
		taken int64 // by force, meanwhile
		want  reservation.State
	}{
		"in shadow, there":            {at(10, reservation.Shadow), 0, reservation.Held},
		"in shadow, just there":       {at(10, reservation.Shadow), 8, reservation.Held},
		"in shadow, gone":             {at(10, reservation.Shadow), 9, reservation.Rejected},
		"in another handover, there":  {at(11, reservation.Handover), 0, reservation.Provisional},
		"in another handover, gone":   {at(11, reservation.Handover), 9, reservation.Rejected},
		"in shadow, a long time gone": {at(10, reservation.Shadow), 50, reservation.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.stock(10)
			r.inStage(handover())
			id := r.reserveIn(handover(), "k", line(1, 2)).Record.ID
			if c.taken > 0 {
				r.forced(handover(), "other", line(1, c.taken))
			}
			r.inStage(c.next)
			if rec, err := r.store.Confirm(t.Context(), c.next, id); err != nil || rec.State != reservation.Provisional {
				t.Fatalf("confirmed in another epoch than its own: %+v, %v", rec, err)
			}
			res := r.reserveIn(c.next, "k", line(1, 2))
			if res.Replayed || res.Record.ID != id || res.Record.State != c.want || res.Record.Epoch != c.next.Epoch {
				t.Fatalf("%+v", res)
			}
			held := c.taken + 2
			if c.want == reservation.Rejected {
				held -= 2
				if want := max(0, 10-c.taken); len(res.Record.Shortages) != 1 || res.Record.Shortages[0].Available != want {
					t.Fatalf("shortages %+v, want %d available", res.Record.Shortages, want)
				}
			}
			r.figures(1, 10-held, held, 10)
			if again := r.reserveIn(c.next, "k", line(1, 2)); again.Replayed == (c.want == reservation.Provisional) || again.Record.State != c.want {
				t.Fatalf("again: %+v", again)
			}
			r.figures(1, 10-held, held, 10)
			r.noOrphans()
		})
	}
}

// forced gives Redis a hold that it had not granted.
func (r *rig) forced(st reservation.Stamp, key string, l ...reservation.Line) reservation.Record {
	r.tb.Helper()
	rec := r.truth(key, reservation.Held, l...)
	j, err := r.store.Mirror(r.tb.Context(), st, reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.Granted, Record: rec})
	if err != nil || !j.Stored {
		r.tb.Fatalf("forced: %+v, %v", j, err)
	}
	return rec
}

// A provisional hold that nobody came back for ends with its time; one that is met past it has ended.
func TestProvisionalExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	r.inStage(handover())
	swept, met := r.reserveIn(handover(), "swept", line(1, 2)).Record.ID, r.reserveIn(handover(), "met", line(1, 3)).Record.ID
	r.expireNow(swept)
	res, err := r.store.Sweep(t.Context(), handover(), 10)
	if err != nil || len(res.Expired) != 1 || res.Expired[0].ID != swept {
		t.Fatalf("%+v, %v", res, err)
	}
	r.expireNow(met)
	again := r.reserveIn(handover(), "met", line(1, 3))
	if !again.Replayed || again.Record.State != reservation.Expired || again.Record.Outcome != reservation.Granted {
		t.Fatalf("%+v", again)
	}
	r.figures(1, 10, 0, 10)
	r.noOrphans()
}

// Whoever names the id of a provisional hold was promised it: it can be claimed and released like a held one.
func TestI7ProvisionalIsPinnedAndReleased(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(10)
	b.inStage(handover())
	paid, given := b.reserveIn(handover(), "paid", line(1, 2)).Record.ID, b.reserveIn(handover(), "given up", line(1, 3)).Record.ID
	res, err := b.store.Claim(t.Context(), handover(), 1, paid)
	if err != nil || res.Record.State != reservation.Claimed {
		t.Fatalf("%+v, %v", res, err)
	}
	if res, err := b.store.Release(t.Context(), handover(), 1, given); err != nil || res.Record.State != reservation.Released {
		t.Fatalf("%+v, %v", res, err)
	}
	b.figures(1, 8, 0, 8)
	b.noOrphans()
}
