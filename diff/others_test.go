package diff

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// told is a store's records, as other routers left them.
type told struct {
	recs   []reservation.Record
	whole  bool
	err    error
	called int
}

func (n *told) near(context.Context, time.Time, time.Time) ([]reservation.Record, bool, error) {
	n.called++
	return n.recs, n.whole, n.err
}

// shared is a bench whose pod has another router, unless alone.
func shared(t *testing.T, alone bool) (*bench, *told) {
	b := newBench(t)
	n := &told{whole: true}
	b.engine.opt.Nearby = n.near
	b.levels.redis, b.levels.mysql = 2, 2
	if !alone {
		b.engine.Others(1)
	}
	return b, n
}

// theirs is a hold of another router.
func (b *bench) theirs(q int64, created, ended int, end reservation.State) reservation.Record {
	r := record(q, reservation.Held, reservation.Granted)
	r.CreatedAt, r.DecidedBy = b.time(created), reservation.Redis
	switch end {
	case reservation.Released:
		r.State, r.ReleasedAt = end, b.time(ended)
	case reservation.Expired:
		r.State, r.ExpiredAt = end, b.time(ended)
	default:
	}
	return r
}

func TestRacesWithOtherRouters(t *testing.T) {
	type told struct {
		q              int64
		created, ended int
		end            reservation.State
	}
	for name, c := range map[string]struct {
		alone         bool
		truth, mirror int64 // what a buyer of 4 met, at 1000
		theirs        []told
		want          ExplanationKind
	}{
		"their reserve explains it":          {false, 2, 5, []told{{3, 990, 0, 0}}, Race},
		"their reserve cannot add":           {false, 5, 2, []told{{3, 950, 0, 0}}, Unseen},
		"too few units":                      {false, 1, 5, []told{{3, 990, 0, 0}}, Unseen},
		"long before it":                     {false, 2, 5, []told{{3, -100, 0, 0}}, Unseen},
		"after it":                           {false, 2, 5, []told{{3, 1100, 0, 0}}, Unseen},
		"their release explains it":          {false, 5, 2, []told{{3, 0, 990, reservation.Released}}, Race},
		"their expiry explains it":           {false, 5, 2, []told{{3, 0, 990, reservation.Expired}}, Race},
		"taken and given back":               {false, 5, 2, []told{{3, 990, 992, reservation.Expired}}, Race},
		"nothing is found":                   {false, 2, 5, nil, Unseen},
		"alone, nothing excuses":             {true, 2, 5, []told{{3, 990, 0, 0}}, None},
		"two routers do not excuse nonsense": {false, 6, 6, []told{{3, 990, 0, 0}}, None},
		"what a rejected hold never took":    {false, 2, 5, []told{{0, 990, 0, 0}}, Unseen},
	} {
		t.Run(name, func(t *testing.T) {
			b, n := shared(t, c.alone)
			for _, r := range c.theirs {
				rec := b.theirs(r.q, r.created, r.ended, r.end)
				if r.q == 0 {
					rec = b.theirs(3, r.created, 0, 0)
					rec.Outcome, rec.State = reservation.RejectedShort, reservation.Rejected
				}
				n.recs = append(n.recs, rec)
			}
			if c.truth == c.mirror { // the mirror says no with enough at hand
				b.pair(4, reservation.Granted, reservation.RejectedShort, reservation.Held, c.truth, c.mirror, 1000, 1001, 1002, 1003)
			} else {
				b.reserve(4, c.truth, c.mirror, 1000, 1001, 1002, 1003)
			}
			if c.want == None {
				b.expect(nil, 1)
			} else {
				b.expect(map[string]int64{string(c.want): 1}, 0)
			}
			tally := b.engine.Tally()
			if want := map[ExplanationKind]int64{Unseen: 1}[c.want]; tally.Unseen != want {
				t.Errorf("unseen = %d, want %d", tally.Unseen, want)
			}
			if c.alone && n.called > 0 {
				t.Error("a pod's only router looked for others")
			}
		})
	}
}

// What this process did itself is not taken for another router's, though the store lists it too.
func TestOwnOperationsAreNotTakenForOthers(t *testing.T) {
	b, n := shared(t, false)
	for i := range 20 { // more than are kept for nothing
		at := 900 + 4*i
		own := record(3, reservation.Held, reservation.Granted)
		s := b.begin(reservation.Stamp{}, own, granted(at, at+1, 5))
		b.compared(s, granted(at+2, at+3, 5))
		own.CreatedAt = b.time(at + 1)
		n.recs = append(n.recs, own)
	}
	b.reserve(4, 2, 5, 1000, 1001, 1002, 1003) // both had it long since: 3 are missing
	b.expect(map[string]int64{"race": 0, "unseen": 1}, 0)
}

func TestUnseenOnlyWhileOthersAreAlive(t *testing.T) {
	for name, c := range map[string]struct {
		at     int
		unseen int64
	}{"before": {0, 0}, "before they were noticed": {9500, 1}, "while": {15000, 1}, "just after": {20500, 1}, "after": {30000, 0}} {
		t.Run(name, func(t *testing.T) {
			b, _ := shared(t, true)
			b.clock.at(9000)
			b.engine.Others(0)
			b.clock.at(10000)
			b.engine.Others(2)
			b.engine.Others(1)
			b.clock.at(20000)
			b.engine.Others(0)
			b.reserve(4, 2, 5, c.at, c.at+1, c.at+2, c.at+3)
			b.clock.at(40000)
			b.engine.Others(0)
			b.expect(map[string]int64{"unseen": c.unseen}, 1-c.unseen)
		})
	}
}

// A router that came a moment ago may not have been noticed when a pair has settled.
func TestPairWaitsUntilOthersWereLookedFor(t *testing.T) {
	b, _ := shared(t, true)
	b.clock.at(500)
	b.engine.Others(0)
	b.reserve(4, 2, 5, 1000, 1001, 1002, 1003)
	b.clock.at(2500)
	b.engine.judgeDue(t.Context(), b.clock.now(), false)
	if b.engine.Pending() != 1 {
		t.Fatal("judged before anybody looked")
	}
	b.engine.Others(1)
	b.expect(map[string]int64{"unseen": 1}, 0)
}

// A bucket that other routers use is read again until it agrees; one that never does is no race, unless they say that
// their mirrors missed something.
func TestDifferencesThatLastCountWithOthersToo(t *testing.T) {
	for name, c := range map[string]struct {
		agrees bool
		gaps   int64
		want   ExplanationKind
	}{
		"it agrees in the end":              {true, 0, Race},
		"it never does":                     {false, 0, None},
		"it never does, and they have gaps": {false, 1, Unseen},
	} {
		t.Run(name, func(t *testing.T) {
			b, n := shared(t, false)
			b.engine.opt.Sink = gapSink(c.gaps)
			b.clock.at(990)
			n.recs = []reservation.Record{b.theirs(3, 990, 0, 0)}
			b.levels.mysql = 3
			b.reserve(4, 2, 5, 1000, 1001, 1002, 1003)
			b.clock.at(2500)
			b.engine.Others(1)
			b.engine.judgeDue(t.Context(), b.clock.now(), false)
			if b.engine.Pending() != 1 {
				t.Fatal("it was not read again")
			}
			if c.agrees {
				b.levels.mysql = 2
			}
			b.clock.at(12000)
			b.engine.judgeDue(t.Context(), b.clock.now(), false)
			got := b.engine.Tally()
			if b.engine.Pending() != 0 || (c.want == None) != (got.Unexplained == 1) || (c.want != None && got.Explained[string(c.want)] != 1) {
				t.Errorf("explained %v, unexplained %d: want %s", got.Explained, got.Unexplained, c.want)
			}
		})
	}
}

type gapSink int64

func (gapSink) PutTallies(context.Context, []TallyRow) error { return nil }

func (g gapSink) OthersGaps(context.Context, time.Time) (int64, error) { return int64(g), nil }

// Of what catch-up finds, another router's gap may be the cause, but not of what this process left equal in both.
func TestWhatCatchUpFindsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		alone, ours bool
		truth       reservation.State
		unseen      int64
	}{
		"theirs":                 {false, false, reservation.Held, 1},
		"ours":                   {false, true, reservation.Held, 0},
		"ours, ended by another": {false, true, reservation.Released, 1},
		"there is no other":      {true, false, reservation.Held, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := shared(t, c.alone)
			now := time.Now()
			b.engine.opt.Now = func() time.Time { return now }
			b.engine.Others(0)
			if !c.alone {
				b.engine.Others(1)
			}
			rec := record(3, reservation.Held, reservation.Granted)
			if c.ours {
				s := b.engine.Begin(reservation.OpReserve)
				s.Decided(outcomeOf(rec, reservation.Granted, true, 5))
				s.MirrorBegins()
				s.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Held})
			}
			b.engine.Found(Find{Shop: shop, ID: rec.ID, Verdict: Lost, Truth: c.truth})
			got := b.engine.Tally()
			if got.Unseen != c.unseen || got.Unexplained != 1-c.unseen {
				t.Errorf("unseen %d, unexplained %d: want %d and %d", got.Unseen, got.Unexplained, c.unseen, 1-c.unseen)
			}
		})
	}
}

// walker holds records in order of id.
type walker []reservation.Record

func (w walker) Walk(_ context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	var out []reservation.Record
	for _, r := range w {
		if string(r.ID[:]) > string(after[:]) && len(out) < limit {
			out = append(out, r)
		}
	}
	return out, nil
}

func TestNearbyReadsOnlyItsTimeAndItsLimit(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var w walker
	for i := range 2000 {
		at := t0.Add(time.Duration(i) * time.Millisecond)
		id := before(at)
		id[15] = 1
		if !createdAt(id).Equal(at) {
			t.Fatalf("the id of %v says %v", at, createdAt(id))
		}
		w = append(w, reservation.Record{ID: id, Key: fmt.Sprint(i)})
	}
	for name, c := range map[string]struct {
		from, to, limit int
		first, n        int
		whole           bool
	}{
		"a part":            {100, 799, 10000, 100, 700, true},
		"more than allowed": {100, 1500, 600, 100, 600, false},
		"to the end":        {1990, 9999, 10000, 1990, 10, true},
		"nothing":           {5000, 6000, 10, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
			recs, whole, err := Nearby(w, c.limit)(t.Context(), at(c.from), at(c.to))
			if err != nil || whole != c.whole || len(recs) != c.n || (c.n > 0 && recs[0].Key != fmt.Sprint(c.first)) {
				t.Errorf("%d records, whole %t, %v: want %d from %d on, whole %t", len(recs), whole, err, c.n, c.first, c.whole)
			}
		})
	}
}
