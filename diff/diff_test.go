package diff

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// clock is a hand-driven clock.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) at(ms int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

// fixedLevels answers every bucket with the same two figures.
type fixedLevels struct{ redis, mysql int64 }

func (f *fixedLevels) Levels(context.Context, reservation.Bucket) (redis, mysql int64, err error) {
	return f.redis, f.mysql, nil
}

func (f *fixedLevels) Lines(context.Context, int64, reservation.ID) ([]reservation.Line, error) {
	return []reservation.Line{{Item: 10, Group: 1, Quantity: 3}}, nil
}

type bench struct {
	t      *testing.T
	clock  *clock
	engine *Engine
	levels *fixedLevels
}

func newBench(t *testing.T) *bench {
	t.Helper()
	c := &clock{}
	c.at(0)
	l := &fixedLevels{}
	e, err := New(Options{Pod: "pod-1", Stores: l, Now: c.now, Settle: time.Second, MaxSettle: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, c, e, l}
}

const shop = 1

var bucketA = reservation.Bucket{Shop: shop, Item: 10, Group: 1}

func record(q int64, state reservation.State, outcome reservation.Decision) reservation.Record {
	id, err := reservation.NewID()
	if err != nil {
		panic(err)
	}
	return reservation.Record{ID: id, Shop: shop, Key: id.String(), Lines: []reservation.Line{{Item: 10, Group: 1, Quantity: q}}, State: state, Outcome: outcome}
}

func outcomeOf(r reservation.Record, d reservation.Decision, moved bool, saw int64) Outcome {
	return Outcome{
		Decision: d, Record: &r, Lines: r.Lines, Shop: shop, ID: r.ID, Moved: moved,
		Levels: []reservation.Level{{Bucket: bucketA, Available: saw}},
	}
}

// reserve runs one reserve: the truth within [t0, t1], the mirror within [m0, m1], in milliseconds.
func (b *bench) reserve(q, truthSaw, mirrorSaw int64, t0, t1, m0, m1 int) {
	b.t.Helper()
	grant := func(saw int64) (reservation.Decision, reservation.State) {
		if saw >= q {
			return reservation.Granted, reservation.Held
		}
		return reservation.RejectedShort, reservation.Rejected
	}
	td, ts := grant(truthSaw)
	md, _ := grant(mirrorSaw)
	b.pair(q, td, md, ts, truthSaw, mirrorSaw, t0, t1, m0, m1)
}

func (b *bench) pair(q int64, td, md reservation.Decision, ts reservation.State, truthSaw, mirrorSaw int64, t0, t1, m0, m1 int) {
	b.clock.at(t0)
	s := b.engine.Begin(reservation.OpReserve)
	b.clock.at(t1)
	rec := record(q, ts, td)
	s.Decided(outcomeOf(rec, td, td == reservation.Granted, truthSaw))
	b.clock.at(m0)
	s.MirrorBegins()
	b.clock.at(m1)
	s.Compare(reservation.Judgement{Decision: md, State: ts, Levels: []reservation.Level{{Bucket: bucketA, Available: mirrorSaw}}})
}

func (b *bench) settled() Tally {
	b.t.Helper()
	now := b.clock.now()
	if b.clock.at(5000); now.After(b.clock.now()) {
		b.clock.mu.Lock()
		b.clock.t = now
		b.clock.mu.Unlock()
	}
	if o := b.engine.others; !o.told.IsZero() { // the router says so again and again
		b.engine.Others(o.now)
	}
	if err := b.engine.Settle(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	tally := b.engine.Tally()
	if tally.Operations != tally.Compared+tally.GapTotal() {
		b.t.Errorf("I11: %d operations, %d compared, %d gaps", tally.Operations, tally.Compared, tally.GapTotal())
	}
	return tally
}

func (b *bench) expect(explained map[string]int64, unexplained int64) {
	b.t.Helper()
	got := b.settled()
	if got.Unexplained != unexplained {
		b.t.Errorf("unexplained = %d, want %d", got.Unexplained, unexplained)
	}
	for k, v := range explained {
		if got.Explained[k] != v {
			b.t.Errorf("explained[%s] = %d, want %d", k, got.Explained[k], v)
		}
	}
	samples, _ := b.engine.Samples()
	for _, s := range samples {
		b.t.Log(s)
	}
}

func TestRaceIsExplainedByWhatOverlaps(t *testing.T) {
	b := newBench(t)
	// Two buyers of the last 5: the truth took X (3) first, the mirror Y (4) first.
	b.levels.redis, b.levels.mysql = 2, 2
	b.clock.at(0)
	x := b.engine.Begin(reservation.OpReserve)
	b.clock.at(1)
	xr := record(3, reservation.Held, reservation.Granted)
	x.Decided(outcomeOf(xr, reservation.Granted, true, 5))
	b.reserve(4, 2, 5, 2, 3, 4, 5) // Y: the truth saw 2, the mirror still 5
	b.clock.at(6)
	x.MirrorBegins()
	b.clock.at(7)
	x.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Held})
	b.expect(map[string]int64{"race": 1}, 0)
	samples, _ := b.engine.Samples()
	if len(samples) != 1 || len(samples[0].Explanation.Overlapping) != 1 || samples[0].Explanation.Overlapping[0].ID != xr.ID.String() {
		t.Errorf("the sample does not name the overlapping operation: %+v", samples)
	}
}

func TestNothingOverlapsNothingIsExplained(t *testing.T) {
	b := newBench(t)
	b.reserve(3, 5, 5, 0, 1, 2, 3)     // long over
	b.reserve(4, 2, 4, 10, 11, 12, 13) // the mirror is off by 2, and nothing is under way
	b.levels.redis, b.levels.mysql = 2, 2
	b.expect(nil, 1)
}

func TestOffByOneInTheDecisionIsNeverARace(t *testing.T) {
	b := newBench(t)
	b.levels.redis, b.levels.mysql = 0, 0
	b.clock.at(0)
	other := b.engine.Begin(reservation.OpReserve) // overlaps all the while
	b.clock.at(1)
	r := record(1, reservation.Held, reservation.Granted)
	other.Decided(outcomeOf(r, reservation.Granted, true, 6))
	// The mirror saw enough and said no.
	b.pair(5, reservation.Granted, reservation.RejectedShort, reservation.Held, 5, 5, 2, 3, 4, 5)
	// The mirror saw too little and said yes.
	b.pair(5, reservation.RejectedShort, reservation.Granted, reservation.Rejected, 4, 4, 2, 3, 4, 5)
	b.clock.at(6)
	other.MirrorBegins()
	b.clock.at(7)
	other.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Held})
	b.expect(map[string]int64{"race": 0}, 2)
}

func TestDifferenceThatStaysIsNotARace(t *testing.T) {
	b := newBench(t)
	b.levels.redis, b.levels.mysql = 2, 3 // a leaked unit
	b.clock.at(0)
	x := b.engine.Begin(reservation.OpReserve)
	b.clock.at(1)
	xr := record(3, reservation.Held, reservation.Granted)
	x.Decided(outcomeOf(xr, reservation.Granted, true, 5))
	b.reserve(4, 2, 5, 2, 3, 4, 5)
	b.clock.at(6)
	x.MirrorBegins()
	b.clock.at(7)
	x.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Held})
	b.expect(map[string]int64{"race": 0}, 1)
}

func TestWhatAGapLeftOutExplains(t *testing.T) {
	b := newBench(t)
	b.clock.at(0)
	x := b.engine.Begin(reservation.OpReserve)
	b.clock.at(1)
	x.Decided(outcomeOf(record(3, reservation.Held, reservation.Granted), reservation.Granted, true, 5))
	x.Gap(GapTimeout)
	b.reserve(4, 2, 5, 100, 101, 102, 103)
	b.clock.at(200)
	b.engine.Converged(b.clock.now(), b.clock.now())
	b.reserve(4, 2, 5, 300, 301, 302, 303) // catch-up has brought it over: it explains nothing any more
	b.levels.redis, b.levels.mysql = 2, 2
	b.expect(map[string]int64{"gap": 1}, 1)
}

// A hold that reaches the mirror past its expiry takes nothing there, and its expiry gives nothing back.
func TestHoldThatArrivesTooLateIsAccountedFor(t *testing.T) {
	b := newBench(t)
	b.clock.at(0)
	hold := b.engine.Begin(reservation.OpReserve)
	b.clock.at(1)
	rec := record(3, reservation.Held, reservation.Granted)
	hold.Decided(outcomeOf(rec, reservation.Granted, true, 5))
	b.clock.at(100)
	hold.MirrorBegins()
	b.clock.at(101)
	hold.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Expired})
	// Long after, the mirror still has the 3 that the truth has not: the truth's hold has not been swept.
	b.reserve(4, 2, 5, 200, 201, 202, 203)
	b.clock.at(300)
	end := b.engine.BeginAt(reservation.OpExpire, b.clock.now())
	expired := rec
	expired.State = reservation.Expired
	b.clock.at(301)
	end.Decided(outcomeOf(expired, reservation.ExpiredOK, true, 0))
	end.MirrorBegins()
	b.clock.at(302)
	end.Compare(reservation.Judgement{Decision: reservation.ExpiredOK, State: reservation.Expired})
	// From now on both have 5 again: no difference may be laid to the late hold.
	b.reserve(4, 5, 2, 400, 401, 402, 403)
	b.levels.redis, b.levels.mysql = 5, 5
	b.expect(map[string]int64{"race": 1}, 1)
}

// A release whose reply was lost may have given its units back: its lines are read from the truth.
func TestOperationsWithoutAnAnswerAreAccountedFor(t *testing.T) {
	for name, c := range map[string]struct {
		op        reservation.Op
		saw, then int64 // what truth and mirror saw
		lines     []reservation.Line
		explained int64
	}{
		"release gave back":       {reservation.OpRelease, 5, 2, nil, 1},
		"release cannot take":     {reservation.OpRelease, 2, 5, nil, 0},
		"reserve took":            {reservation.OpReserve, 2, 5, []reservation.Line{{Item: 10, Group: 1, Quantity: 3}}, 1},
		"reserve cannot give":     {reservation.OpReserve, 5, 2, []reservation.Line{{Item: 10, Group: 1, Quantity: 3}}, 0},
		"reserve of another item": {reservation.OpReserve, 2, 5, []reservation.Line{{Item: 11, Group: 1, Quantity: 3}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.engine.Begin(c.op)
			b.clock.at(1)
			s.Undecided(GapUnknown, Outcome{Shop: shop, ID: record(1, reservation.Held, reservation.Granted).ID, Lines: c.lines})
			b.reserve(4, c.saw, c.then, 10, 11, 12, 13)
			b.expect(map[string]int64{"gap": c.explained}, 1-c.explained)
		})
	}
}

// A claim in time moves nothing that is available, before, while or after it is under way; a late one may take.
func TestOnlyLateClaimsAreAccountedFor(t *testing.T) {
	for name, c := range map[string]struct {
		late      bool
		saw, then int64
		explained int64
	}{
		"in time":             {false, 2, 5, 0},
		"late":                {true, 2, 5, 1},
		"late, cannot add":    {true, 5, 2, 0},
		"more than its units": {true, 1, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.engine.Begin(reservation.OpClaim)
			b.clock.at(1)
			rec := record(3, reservation.Claimed, reservation.Granted)
			s.Decided(outcomeOf(rec, reservation.ClaimedOK, c.late, 0))
			b.reserve(4, c.saw, c.then, 10, 11, 12, 13)
			b.clock.at(20)
			s.MirrorBegins()
			b.clock.at(21)
			s.Compare(reservation.Judgement{Decision: reservation.ClaimedOK, State: reservation.Claimed})
			b.levels.redis, b.levels.mysql = 2, 2
			b.expect(map[string]int64{"race": c.explained}, 1-c.explained)
		})
	}
}

func TestWhatCatchUpFindsNeedsACause(t *testing.T) {
	b := newBench(t)
	s := b.engine.Begin(reservation.OpReserve)
	rec := record(3, reservation.Held, reservation.Granted)
	s.Decided(outcomeOf(rec, reservation.Granted, true, 5))
	s.Gap(GapTimeout)
	b.engine.Found(Find{Shop: shop, ID: rec.ID, Verdict: Lost, Truth: reservation.Held})
	b.engine.Found(Find{Shop: shop, ID: record(3, reservation.Held, reservation.Granted).ID, Verdict: Lost, Truth: reservation.Held})
	// One of an earlier epoch, such as legacy's, was never on its way; one of the present epoch was.
	now := reservation.Stamp{Epoch: 7, Stage: reservation.Shadow}
	earlier := record(3, reservation.Held, reservation.Granted).ID
	b.engine.Found(Find{Shop: shop, ID: earlier, Verdict: Lost, Truth: reservation.Held, Epoch: 6, Stamp: now})
	b.engine.Found(Find{Shop: shop, ID: earlier, Verdict: Lost, Truth: reservation.Held, Epoch: 7, Stamp: now})
	b.expect(nil, 2)
	if got := b.engine.Tally().Found["lost"]; got != 4 {
		t.Errorf("%d found, want 4", got)
	}
}

func TestOtherDifferencesAreUnexplained(t *testing.T) {
	for name, mutate := range map[string]func(*reservation.Judgement, *reservation.Record){
		"state": func(j *reservation.Judgement, _ *reservation.Record) { j.State = reservation.Rejected },
		"quantity": func(_ *reservation.Judgement, r *reservation.Record) {
			r.Lines = []reservation.Line{{Item: 10, Group: 1, Quantity: 9}}
		},
		"expiry": func(_ *reservation.Judgement, r *reservation.Record) { r.ExpiresAt = r.ExpiresAt.Add(time.Microsecond) },
		"key":    func(_ *reservation.Judgement, r *reservation.Record) { r.Key += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.engine.Begin(reservation.OpReserve)
			rec := record(2, reservation.Held, reservation.Granted)
			s.Decided(outcomeOf(rec, reservation.Granted, true, 5))
			s.MirrorBegins()
			mirror := rec
			j := reservation.Judgement{Decision: reservation.Granted, State: reservation.Held, Record: &mirror}
			mutate(&j, &mirror)
			s.Compare(j)
			tally := b.settled()
			if tally.Verdicts[name] != 1 || tally.Unexplained != 1 {
				t.Errorf("verdicts %v, unexplained %d: want one %s, unexplained", tally.Verdicts, tally.Unexplained, name)
			}
		})
	}
}

func TestI11EveryOperationEndsOnce(t *testing.T) {
	b := newBench(t)
	s := b.engine.Begin(reservation.OpRelease)
	s.Undecided(GapUnknown, Outcome{Shop: shop})
	s.Gap(GapShutdown) // a second end is refused
	s = b.engine.Begin(reservation.OpReserve)
	s.Decided(outcomeOf(record(1, reservation.Held, reservation.Granted), reservation.Granted, true, 1))
	s.Compare(reservation.Judgement{}) // no decision: incoherent
	s = b.engine.Begin(reservation.OpReserve)
	s.Decided(outcomeOf(record(1, reservation.Held, reservation.Granted), reservation.Granted, true, 1))
	s.MirrorBegins()
	s.Compare(reservation.Judgement{Backfilled: true, Decision: reservation.Granted})
	got := b.settled()
	want := map[string]int64{"unknown": 1, "incoherent": 1, "backfilled": 1}
	for k, v := range want {
		if got.Gaps[k] != v {
			t.Errorf("gaps[%s] = %d, want %d (%v)", k, got.Gaps[k], v, got.Gaps)
		}
	}
	if got.Operations != 3 || got.GapTotal() != 3 {
		t.Errorf("operations %d, gaps %d: want 3 and 3", got.Operations, got.GapTotal())
	}
}

func TestLateStepsOfTheSameReservationAreNoDifference(t *testing.T) {
	for _, c := range []struct {
		truth, mirror reservation.State
		agree         bool
	}{
		{reservation.Held, reservation.Claimed, true},
		{reservation.Held, reservation.Released, true},
		{reservation.Held, reservation.Rejected, false},
		{reservation.Expired, reservation.Claimed, true},
		{reservation.Expired, reservation.Held, false},
		{reservation.Released, reservation.Claimed, false},
		{reservation.Claimed, reservation.Released, false},
		{reservation.Rejected, reservation.Held, false},
		{reservation.Claiming, reservation.Held, true},
	} {
		if got := stateAgrees(c.truth, c.mirror); got != c.agree {
			t.Errorf("stateAgrees(%s, %s) = %v", c.truth, c.mirror, got)
		}
	}
}

func TestEqualPairTakesNoMemory(t *testing.T) {
	rec := record(2, reservation.Held, reservation.Granted)
	p := Pair{Truth: Side{Decision: reservation.Granted, State: reservation.Held, Record: &rec}, Mirror: Side{Decision: reservation.Granted, State: reservation.Held, Record: &rec}}
	if n := testing.AllocsPerRun(1000, func() {
		if Compare(&p) != Match {
			t.Fatal("not a match")
		}
	}); n != 0 {
		t.Errorf("%v allocations for an equal pair", n)
	}
}

func TestRunAndSettleShareTheJudging(t *testing.T) {
	e, err := New(Options{Pod: "pod-1", Stores: &fixedLevels{redis: 2, mysql: 2}, Settle: 4 * time.Millisecond, MaxSettle: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	for range 200 {
		s := e.Begin(reservation.OpReserve)
		rec := record(4, reservation.Rejected, reservation.RejectedShort)
		s.Decided(outcomeOf(rec, reservation.RejectedShort, false, 2))
		s.MirrorBegins()
		s.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Rejected, Levels: []reservation.Level{{Bucket: bucketA, Available: 5}}})
	}
	if err := e.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	running.Wait()
	if got := e.Tally(); got.Unexplained != 200 || got.Pending != 0 {
		t.Errorf("%d unexplained, %d waiting: want 200 and none", got.Unexplained, got.Pending)
	}
}

// recordingSink keeps what was put, and can lose the reply.
type recordingSink struct {
	rows map[TallyRow]int64
	fail error
}

func (r *recordingSink) PutTallies(_ context.Context, rows []TallyRow) error {
	for _, row := range rows {
		n := row.N
		row.N = 0
		r.rows[row] = max(r.rows[row], n)
	}
	return r.fail
}

func TestFlushCountsOnceThoughRepliesAreLost(t *testing.T) {
	b := newBench(t)
	sink := &recordingSink{rows: map[TallyRow]int64{}}
	b.engine.opt.Sink = sink
	one := func() { b.engine.Begin(reservation.OpRelease).Undecided(GapUnavailable, Outcome{Shop: shop}) }
	flush := func() error { return b.engine.Flush(t.Context()) }
	one()
	sink.fail = context.DeadlineExceeded
	if err := flush(); err == nil {
		t.Fatal("the lost reply was not reported")
	}
	one()
	sink.fail = nil
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	b.clock.at(2 * 3600 * 1000)
	one()
	for range 3 {
		if err := flush(); err != nil {
			t.Fatal(err)
		}
	}
	one()
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	var operations int64
	hours := map[time.Time]bool{}
	for row, n := range sink.rows {
		hours[row.Hour] = true
		if row.Kind == "operations" {
			operations += n
		}
	}
	if operations != 4 || len(hours) != 2 {
		t.Errorf("%d operations over %d hours, want 4 over 2: %v", operations, len(hours), sink.rows)
	}
}

// A turn of catch-up closes the gaps of what it looked at, and no others.
func TestCoverClosesWhatItLookedAt(t *testing.T) {
	b := newBench(t)
	id := func(n byte) (id reservation.ID) { id[0] = n; return id }
	for n := byte(1); n <= 9; n++ {
		b.clock.at(int(n))
		rec := record(1, reservation.Held, reservation.Granted)
		rec.ID = id(n)
		s := b.engine.Begin(reservation.OpReserve)
		s.Decided(outcomeOf(rec, reservation.Granted, true, 5))
		s.Gap(GapTimeout)
	}
	left := func() (ids []int) {
		for n := byte(1); n <= 9; n++ {
			if _, ok := b.engine.gaps[id(n)]; ok {
				ids = append(ids, int(n))
			}
		}
		return ids
	}
	at := func(ms int) time.Time { b.clock.at(ms); return b.clock.now() }
	for _, c := range []struct {
		cover Cover
		want  string
	}{
		{Cover{Began: at(3), IDs: []reservation.ID{id(1), id(3), id(5)}}, "[2 3 4 5 6 7 8 9]"}, // 3 and 5 came after it had begun
		{Cover{Began: at(100), IDs: []reservation.ID{}}, "[2 3 4 5 6 7 8 9]"},
		{Cover{Began: at(100), After: id(2), UpTo: id(4)}, "[2 5 6 7 8 9]"},
		{Cover{Began: at(100), After: id(4), UpTo: id(7), LeftAlone: []reservation.ID{id(6)}}, "[2 6 8 9]"},
		{Cover{Began: at(100), After: id(9), UpTo: id(9), Ledger: true}, "[2 6 8 9]"},
		{Everything(at(100), at(101)), "[]"},
	} {
		c.cover.Ended = at(200)
		b.engine.Covered(c.cover)
		if got := fmt.Sprint(left()); got != c.want {
			t.Errorf("%+v leaves %s, want %s", c.cover, got, c.want)
		}
	}
	if !b.engine.lastGap.IsZero() {
		t.Error("a gap is still taken to be open")
	}
}

// What was left out of a reservation that no turn has looked at still explains a difference; once it has, no more.
func TestCoverEndsWhatAGapExplains(t *testing.T) {
	for name, c := range map[string]struct {
		cover func(id reservation.ID) Cover
		gaps  int64
	}{
		"not looked at": {func(reservation.ID) Cover { return Cover{IDs: []reservation.ID{{1}}} }, 2},
		"left alone":    {func(id reservation.ID) Cover { return Cover{UpTo: id, LeftAlone: []reservation.ID{id}} }, 2},
		"looked at":     {func(id reservation.ID) Cover { return Cover{IDs: []reservation.ID{id}} }, 1},
		"walked past":   {func(id reservation.ID) Cover { return Cover{UpTo: id} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.clock.at(0)
			x := b.engine.Begin(reservation.OpReserve)
			b.clock.at(1)
			rec := record(3, reservation.Held, reservation.Granted)
			x.Decided(outcomeOf(rec, reservation.Granted, true, 5))
			x.Gap(GapTimeout)
			b.reserve(4, 2, 5, 100, 101, 102, 103)
			b.clock.at(200)
			cover := c.cover(rec.ID)
			cover.Began, cover.Ended = b.clock.now(), b.clock.now()
			b.engine.Covered(cover)
			b.reserve(4, 2, 5, 300, 301, 302, 303)
			b.levels.redis, b.levels.mysql = 2, 2
			b.expect(map[string]int64{"gap": c.gaps}, 2-c.gaps)
		})
	}
}
