package shadow

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

func st(epoch uint64, stage reservation.Stage) reservation.Stamp {
	return reservation.Stamp{Epoch: epoch, Stage: stage}
}

func TestRestoredFenceIsAboveEveryEpochSeen(t *testing.T) {
	t.Parallel()
	const legacy, shadow, handover, cutover = reservation.Legacy, reservation.Shadow, reservation.Handover, reservation.Cutover
	for name, c := range map[string]struct {
		redis  reservation.Stamp
		killed bool
		mysql  reservation.Stamp
		known  []reservation.Stamp
		latch  string
		to     reservation.Stamp
		want   reservation.Stamp // epoch 0: refused
		latchd string
		doubts int
	}{
		"suspect, all agree":                  {redis: st(7, cutover), mysql: st(7, cutover), known: []reservation.Stamp{st(7, cutover)}, want: st(8, cutover)},
		"flushed in cutover, a router knows":  {mysql: st(7, cutover), known: []reservation.Stamp{st(7, cutover)}, want: st(8, cutover)},
		"flushed in cutover, nobody knows":    {mysql: st(7, cutover), want: st(8, shadow), doubts: 1},
		"behind MySQL, nobody knows":          {redis: st(6, handover), mysql: st(7, cutover), want: st(8, shadow), doubts: 1},
		"flushed in shadow":                   {mysql: st(7, shadow), want: st(8, shadow)},
		"a router has seen more":              {redis: st(5, shadow), mysql: st(5, shadow), known: []reservation.Stamp{st(6, handover), st(7, cutover)}, want: st(8, cutover)},
		"a router has seen the kill":          {redis: st(7, cutover), mysql: st(7, cutover), known: []reservation.Stamp{st(8, shadow)}, want: st(9, shadow)},
		"and knows its reason":                {redis: st(7, cutover), mysql: st(7, cutover), known: []reservation.Stamp{st(8, shadow)}, latch: "why", want: st(9, shadow), latchd: "why"},
		"a kill that nobody had folded":       {redis: st(7, cutover), killed: true, mysql: st(7, cutover), known: []reservation.Stamp{st(7, cutover)}, want: st(8, shadow), doubts: 1},
		"its latch is still there":            {redis: st(8, shadow), killed: true, mysql: st(7, cutover), latch: "why", want: st(9, shadow)},
		"the latch was lost":                  {redis: st(7, cutover), mysql: st(7, cutover), latch: "why", want: st(8, shadow), latchd: "why", doubts: 1},
		"one epoch in two stages":             {redis: st(7, shadow), mysql: st(6, shadow), known: []reservation.Stamp{st(7, cutover)}, want: st(8, shadow), doubts: 1},
		"legacy: MySQL knows no holds":        {redis: st(1, legacy), mysql: st(1, legacy), want: st(2, legacy), doubts: 1},
		"no fence anywhere":                   {},
		"a reseed says where it goes":         {redis: st(7, reservation.Complete), mysql: st(8, cutover), to: st(8, cutover), want: st(8, cutover)},
		"but not below what has been seen":    {redis: st(9, shadow), mysql: st(8, cutover), to: st(8, cutover)},
		"nor to another stage than was there": {redis: st(7, shadow), mysql: st(8, cutover), to: st(8, shadow)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sightings{redis: reservation.Fence{Stamp: c.redis, Killed: c.killed}, mysql: reservation.Fence{Stamp: c.mysql}, known: c.known}
			v, err := s.judge(c.to, c.latch)
			switch {
			case (err != nil) != (c.want.Epoch == 0):
				t.Fatalf("%+v, %v", v, err)
			case v.to != c.want || v.latch != c.latchd || len(v.doubts) != c.doubts:
				t.Errorf("%+v; want %v, latch %q, %d doubts", v, c.want, c.latchd, c.doubts)
			}
		})
	}
}

func restoreOf(redis, mysql *fake) RestoreOptions {
	return RestoreOptions{Pod: "pod-1", Redis: redis, MySQL: mysql, Page: 2}
}

// What only Redis has stays, what stands higher there stays, MySQL's holds are adopted, and nothing that Redis turned
// down comes back.
func TestRestoreMergesWhatBothHave(t *testing.T) {
	t.Parallel()
	const held, released, rejected, claimed = reservation.Held, reservation.Released, reservation.Rejected, reservation.Claimed
	at := st(5, reservation.Shadow)
	only, lost, ended, down := record(t, held), record(t, held), record(t, held), record(t, held)
	marked, paid, no, half := record(t, held, isMarked), record(t, claimed), record(t, rejected), record(t, held)
	redis := newFake(reservation.Redis, st(4, reservation.Shadow), only, was(ended, released), was(down, rejected), was(marked, rejected), was(half, reservation.Provisional))
	mysql := newFake(reservation.MySQL, at, lost, ended, down, marked, paid, no, half)
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	mysql.figs[b] = reservation.Figures{Bucket: b, OnHand: 9, Version: 2}
	var log bytes.Buffer
	opt, registry := restoreOf(redis, mysql), prometheus.NewRegistry()
	opt.Logger, opt.Registerer = slog.New(slog.NewTextHandler(&log, nil)), registry
	opt.Known = []reservation.Stamp{st(6, reservation.Shadow)}
	res, err := Restore(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[reservation.ID]reservation.State{
		only.ID: held, lost.ID: held, ended.ID: released, down.ID: rejected, marked.ID: held, paid.ID: claimed, no.ID: rejected, half.ID: held,
	} {
		if got := redis.records[id].State; got != want {
			t.Errorf("%s: %s, want %s", id, stateName(got), want)
		}
	}
	if res.After.Stamp != st(7, reservation.Shadow) || res.After.IncarnationEpoch != 7 || res.After.Incarnation != 1 || mysql.fence.Stamp != res.After.Stamp {
		t.Errorf("the fence: %+v, MySQL's %+v", res.After, mysql.fence)
	}
	if res.Adopted != 3 || res.Units != 3 || res.Records != 7 || res.Stored != 5 || res.Failed != 0 || res.Buckets != 1 || redis.figs[b].OnHand != 9 {
		t.Errorf("%+v", res)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "adopted=3") {
		t.Errorf("no alert: %s", log.String())
	}
	if len(mysql.ops) != 0 {
		t.Error("the restore wrote MySQL's records")
	}
}

// A restore that fails leaves Redis to the next one, which starts from the beginning and ends the same.
func TestRestoreIsRunAgain(t *testing.T) {
	t.Parallel()
	redis := newFake(reservation.Redis, reservation.Stamp{})
	mysql := newFake(reservation.MySQL, st(5, reservation.Cutover))
	for range 7 {
		r := record(t, reservation.Held)
		mysql.records[r.ID] = r
	}
	opt := restoreOf(redis, mysql)
	opt.Known = []reservation.Stamp{st(5, reservation.Cutover)}
	redis.broken = &reservation.UnavailableError{Store: reservation.Redis, Cause: errors.New("planted")}
	if _, err := Restore(t.Context(), opt); !errors.As(err, new(*reservation.UnavailableError)) {
		t.Fatalf("a broken Redis: %v", err)
	}
	if redis.restoring || redis.fence.Epoch != 0 {
		t.Fatal("the failed restore was not given up")
	}
	ctx, cancel := context.WithCancel(t.Context())
	redis.broken = nil
	redis.between = cancel // the fake goes on without its context; the walk of MySQL is next
	stopped := &stopping{fake: mysql}
	opt.MySQL = stopped
	if _, err := Restore(ctx, opt); !errors.Is(err, context.Canceled) || redis.restoring {
		t.Fatalf("a cancelled restore: %v", err)
	}
	res, err := Restore(t.Context(), opt)
	if err != nil || res.Records != 7 || len(redis.records) != 7 || res.After.Stamp != st(6, reservation.Cutover) {
		t.Fatalf("%+v, %v", res, err)
	}
}

// stopping is a MySQL whose reads end with their context.
type stopping struct{ *fake }

func (s *stopping) Walk(ctx context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.fake.Walk(ctx, after, limit)
}

func TestReseedOutOfComplete(t *testing.T) {
	t.Parallel()
	stale, held := record(t, reservation.Held), record(t, reservation.Held)
	redis := newFake(reservation.Redis, st(7, reservation.Complete), stale)
	mysql := newFake(reservation.MySQL, st(8, reservation.Cutover), held)
	opt := restoreOf(redis, mysql)
	opt.Wipe, opt.To = true, st(8, reservation.Cutover)
	res, err := Restore(t.Context(), opt)
	if err != nil || res.After.Stamp != opt.To {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, there := redis.records[stale.ID]; there || len(redis.records) != 1 {
		t.Errorf("Redis holds %v", redis.records)
	}
	redis.records[stale.ID] = stale // somebody's since then
	if res, err = Restore(t.Context(), opt); err != nil || res.After.Stamp != opt.To || len(redis.records) != 2 {
		t.Fatalf("run again: %+v, %v, %d records", res, err, len(redis.records))
	}
}

// A reseed that may not be has removed nothing.
func TestRefusedReseedRemovesNothing(t *testing.T) {
	t.Parallel()
	redis := newFake(reservation.Redis, st(9, reservation.Shadow), record(t, reservation.Held))
	opt := restoreOf(redis, newFake(reservation.MySQL, st(8, reservation.Cutover)))
	opt.Wipe, opt.To = true, st(8, reservation.Cutover)
	if _, err := Restore(t.Context(), opt); err == nil || len(redis.records) != 1 || redis.restoring {
		t.Fatalf("%v, %d records", err, len(redis.records))
	}
}

func TestRestoreSaysWhatRoutersStillHad(t *testing.T) {
	t.Parallel()
	redis := newFake(reservation.Redis, st(5, reservation.Shadow))
	redis.beats = []reservation.Heartbeat{{Router: "r-1", Stamp: st(6, reservation.Shadow), Queue: 12}}
	res, err := Restore(t.Context(), restoreOf(redis, newFake(reservation.MySQL, st(5, reservation.Shadow))))
	if err != nil || res.After.Stamp != st(7, reservation.Shadow) {
		t.Fatalf("%+v, %v", res, err)
	}
	if len(res.Unknown) != 2 || !strings.Contains(res.Unknown[0], "r-1") {
		t.Errorf("%q", res.Unknown)
	}
}
