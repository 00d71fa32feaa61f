package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/faultproxy"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

var cutover = reservation.Stamp{Epoch: 5, Stage: reservation.Cutover}

// marked is the ids of the marked records, checked to be whole.
func (b *bench) marked() []reservation.ID {
	b.t.Helper()
	var ids []reservation.ID
	for after := (reservation.ID{}); ; {
		page, err := b.Marked(b.t.Context(), after, 2)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			if !r.Marked || len(r.Lines) == 0 || r.Key == "" {
				b.t.Errorf("marked: %+v", r)
			}
			ids = append(ids, r.ID)
		}
		after = page[len(page)-1].ID
	}
	if f := b.fence(); f.Marks != int64(len(ids)) {
		b.t.Errorf("the fence says %d marks, there are %d", f.Marks, len(ids))
	}
	return ids
}

// TestCutCarriesTheMark: grants, rejections, replays, claims and releases of a router that is cut, and no more.
func TestCutCarriesTheMark(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(10)
	ctx := t.Context()
	cut := b.Cut()
	reserve := func(key string, q int64) reservation.Record {
		t.Helper()
		res, err := cut.Reserve(ctx, b.st, newID(t), request(t, key, 10*time.Minute, line(1, q)))
		if err != nil || !res.Record.Marked {
			t.Fatalf("%s: %+v, %v", key, res, err)
		}
		return res.Record
	}
	var want []reservation.ID
	wants := func(id reservation.ID) {
		t.Helper()
		want = append(want, id)
		slices.SortFunc(want, func(a, b reservation.ID) int { return slices.Compare(a[:], b[:]) })
		if got := b.marked(); !slices.Equal(got, want) {
			t.Errorf("marked %v, want %v", got, want)
		}
		if r, err := b.Get(ctx, shop, id); err != nil || !r.Marked {
			t.Errorf("get: %+v, %v", r, err)
		}
	}
	wants(reserve("granted", 2).ID)
	wants(reserve("rejected", 20).ID)
	plain := b.reserve("plain", line(1, 1)).Record
	claimed := b.reserve("claimed", line(1, 1)).Record
	gone := b.reserve("released", line(1, 1)).Record
	again := b.reserve("claimed before", line(1, 1)).Record
	if _, err := b.Claim(ctx, b.st, shop, again.ID); err != nil {
		t.Fatal(err)
	}
	if plain.Marked || len(b.marked()) != 2 {
		t.Errorf("an outcome that needs no mark has one: %+v", plain)
	}
	if r := reserve("plain", 1); r.ID != plain.ID {
		t.Errorf("replay: %+v", r)
	}
	wants(plain.ID)
	for _, rec := range []reservation.Record{claimed, again} {
		res, err := cut.Claim(ctx, b.st, shop, rec.ID)
		if err != nil || !res.Record.Marked || res.Replayed != (rec.ID == again.ID) {
			t.Errorf("claim: %+v, %v", res, err)
		}
		wants(rec.ID)
	}
	if res, err := cut.Release(ctx, b.st, shop, gone.ID); err != nil || !res.Record.Marked {
		t.Errorf("release: %+v, %v", res, err)
	}
	wants(gone.ID)

	var conflict *reservation.ConflictError
	lone := b.reserve("conflict", line(1, 1)).Record
	if _, err := b.Release(ctx, b.st, shop, lone.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := cut.Claim(ctx, b.st, shop, lone.ID); !errors.As(err, &conflict) {
		t.Errorf("claim of a released one: %v", err)
	}
	var ue *reservation.UnavailableError
	if _, err := cut.Claim(ctx, b.st, shop, newID(t)); !errors.As(err, &ue) {
		t.Errorf("claim of an id that only Redis may know: %v", err)
	}
	if _, err := cut.Release(ctx, b.st, shop, newID(t)); !errors.As(err, &ue) {
		t.Errorf("release of an id that only Redis may know: %v", err)
	}
	if _, err := cut.Adjust(ctx, b.st, reservation.Adjustment{ID: "x", Bucket: bucket(1), Delta: 1}); err != nil {
		t.Error(err)
	}
	if got := b.marked(); !slices.Equal(got, want) {
		t.Errorf("marked %v, want %v", got, want)
	}
	debt, marks, err := b.MarksDebt(ctx)
	if err != nil || marks != int64(len(want)) || debt.Reservations != 2 || debt.Units != 3 || debt.DrainsInS < 300 || debt.DrainsInS > 601 {
		t.Errorf("debt %+v, %d marks, %v", debt, marks, err)
	}
	b.invariants()
}

func TestMarkAndUnmark(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(10)
	ctx := t.Context()
	rec := b.reserve("a", line(1, 1)).Record
	var ie *reservation.InvalidError
	for _, st := range []reservation.Stage{reservation.Legacy, reservation.Shadow, reservation.Handover} {
		if err := b.Mark(ctx, stamp(5, st), rec.ID); !errors.As(err, &ie) {
			t.Errorf("mark in %s: %v", st, err)
		}
		if _, err := b.Cut().Reserve(ctx, stamp(5, st), newID(t), request(t, "x", time.Minute, line(1, 1))); !errors.As(err, &ie) {
			t.Errorf("cut in %s: %v", st, err)
		}
	}
	refused(t, b.Mark(ctx, stamp(4, reservation.Cutover), rec.ID), reservation.Stale)
	if err := b.Mark(ctx, b.st, newID(t)); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("mark of nothing: %v", err)
	}
	for range 2 {
		if err := b.Mark(ctx, b.st, rec.ID); err != nil {
			t.Error(err)
		}
	}
	if got := b.marked(); !slices.Equal(got, []reservation.ID{rec.ID}) {
		t.Errorf("marked %v", got)
	}
	if r, err := b.ByKey(ctx, shop, "a"); err != nil || r.ID != rec.ID || !r.Marked {
		t.Errorf("by key: %+v, %v", r, err)
	}
	if _, err := b.ByKey(ctx, shop, "b"); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("by a key that nobody has: %v", err)
	}
	unmark := func(st reservation.Stamp, expect reservation.State, want bool) {
		t.Helper()
		if did, err := b.Unmark(ctx, st, rec.ID, expect); err != nil || did != want {
			t.Errorf("unmark expecting %s: %t, %v; want %t", expect, did, err, want)
		}
	}
	unmark(b.st, reservation.Released, false)
	after := stamp(6, reservation.Shadow) // after a kill, Redis decides, and the marks are drained
	unmark(after, reservation.Held, true)
	unmark(after, reservation.Held, false)
	if got := b.marked(); len(got) != 0 {
		t.Errorf("marked %v", got)
	}
	refused(t, b.Mark(ctx, b.st, rec.ID), reservation.Stale)
	b.invariants()
}

// TestMarkedIsNeverPurged: not by the sweeper, and not by a request that takes the key over.
func TestMarkedIsNeverPurged(t *testing.T) {
	t.Parallel()
	b := open(t, cutover, func(o *mysqlstore.Options) { o.Retention = time.Nanosecond })
	b.stock(10)
	ctx := t.Context()
	rec, err := b.Cut().Reserve(ctx, b.st, newID(t), request(t, "a", 50*time.Millisecond, line(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	plain := b.reserveFor("b", 50*time.Millisecond, line(1, 2))
	b.until("the unmarked one is purged", func() bool {
		if _, err := b.Sweep(ctx, b.st, 10); err != nil {
			t.Fatal(err)
		}
		_, err := b.Lookup(ctx, shop, plain.Record.ID)
		n := b.countOf(5)
		return errors.Is(err, reservation.ErrNotFound) && n == 1
	})
	page, err := b.Marked(ctx, reservation.ID{}, 10)
	if err != nil || len(page) != 1 || page[0].ID != rec.Record.ID || page[0].State != reservation.Expired {
		t.Fatalf("marked: %+v, %v", page, err)
	}
	if did, err := b.Unmark(ctx, b.st, rec.Record.ID, reservation.Expired); err != nil || !did {
		t.Errorf("unmark: %t, %v", did, err)
	}
	b.until("it is purged then", func() bool {
		if _, err := b.Sweep(ctx, b.st, 10); err != nil {
			t.Fatal(err)
		}
		return b.countOf(5) == 0
	})
	b.figures(1, 10, 10)
	b.invariants()
}

// TestPausedMarkHoldsUpNobody: a process that stops in the middle of a marking transaction, as by SIGSTOP, keeps its
// own reservation and nothing else: others reserve, claim, release and mark meanwhile.
func TestPausedMarkHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	b.stock(100)
	b.reserve("fills the pool", line(1, 1))
	held := b.reserve("held", line(1, 1)).Record
	far, reached, letGo := b.paused("reserve.mark")
	done := make(chan error, 1)
	go func() {
		_, err := far.Cut().Reserve(t.Context(), b.st, newID(t), request(t, "paused", time.Hour, line(1, 1)))
		done <- err
	}()
	<-reached
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond*3)
	defer cancel()
	cut := b.Cut()
	began := time.Now()
	for n := range 5 {
		res, err := cut.Reserve(ctx, b.st, newID(t), request(t, fmt.Sprint("k", n), time.Hour, line(1, 1)))
		if err != nil {
			t.Fatalf("reserve beside a paused mark: %v", err)
		}
		if n%2 == 0 {
			_, err = cut.Claim(ctx, b.st, shop, res.Record.ID)
		} else {
			_, err = cut.Release(ctx, b.st, shop, res.Record.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Mark(ctx, b.st, held.ID); err != nil {
		t.Fatal(err)
	}
	if f := b.fence(); f.Marks != 6 {
		t.Errorf("%d marks; want 6, the paused one is not committed", f.Marks)
	}
	t.Logf("took %v", time.Since(began))
	letGo()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if f := b.fence(); f.Marks != 7 {
		t.Errorf("%d marks; want 7", f.Marks)
	}
	b.invariants()
}

// TestI5MarkWithItsOutcome: the connection is lost at each statement of a marked reserve, claim and release: the
// outcome and its mark are there together, and after a retry both are, once.
func TestI5MarkWithItsOutcome(t *testing.T) {
	t.Parallel()
	ops := map[string]func(s *mysqlstore.Store, b *bench, ctx context.Context, id reservation.ID) error{
		"reserve": func(s *mysqlstore.Store, b *bench, ctx context.Context, id reservation.ID) error {
			_, err := s.Cut().Reserve(ctx, b.st, id, request(b.t, "mine", time.Hour, line(1, 2)))
			return err
		},
		"claim": func(s *mysqlstore.Store, b *bench, ctx context.Context, id reservation.ID) error {
			_, err := s.Cut().Claim(ctx, b.st, shop, id)
			return err
		},
		"release": func(s *mysqlstore.Store, b *bench, ctx context.Context, id reservation.ID) error {
			_, err := s.Cut().Release(ctx, b.st, shop, id)
			return err
		},
	}
	for name, op := range ops {
		tags := []string{"fence ", "mark ", "commit "}
		switch name {
		case "reserve":
			tags = append(tags, "record_by_key ", "units_take ", "units_delete_run ", "record_insert ", "lines_insert ")
		default:
			tags = append(tags, "record_lock ", "ledger_move ", "record_update ", "lines_delete ")
		}
		for _, tag := range tags {
			for _, when := range []faultproxy.When{faultproxy.Before, faultproxy.After} {
				t.Run(fmt.Sprintf("%s/%s/%v", name, tag, when), func(t *testing.T) {
					t.Parallel()
					b := open(t, cutover)
					b.stock(10)
					b.reserve("fills the pool", line(1, 1))
					id := newID(t)
					if name != "reserve" {
						id = b.reserve("mine", line(1, 2)).Record.ID
					}
					far, p := b.behind(t, func(o *mysqlstore.Options) { o.NoMultiStatements = true })
					f := p.Cut(faultproxy.Rule{Match: []byte("conn_tag:" + tag), When: when, Times: 1})
					ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
					defer cancel()
					err := op(far.Store, b, ctx, id)
					if f.Fired() != 1 || err != nil {
						t.Fatalf("fired %d, %v", f.Fired(), err)
					}
					rec, err := b.Get(ctx, shop, id)
					if err != nil || !rec.Marked || !slices.Equal(b.marked(), []reservation.ID{id}) {
						t.Errorf("%+v, %v", rec, err)
					}
					b.invariants()
				})
			}
		}
	}
}
