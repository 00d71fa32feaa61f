package diff

import (
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

func stamp(epoch uint64, s reservation.Stage) reservation.Stamp {
	return reservation.Stamp{Epoch: epoch, Stage: s}
}

func saw(n int64) []reservation.Level { return []reservation.Level{{Bucket: bucketA, Available: n}} }

// step is one side of an operation: who says what, when, and what it saw.
type step struct {
	from, to int
	decision reservation.Decision
	state    reservation.State
	saw      int64
}

func (b *bench) time(ms int) time.Time {
	b.clock.at(ms)
	return b.clock.now()
}

// begin starts a reserve and tells its first decision.
func (b *bench) begin(st reservation.Stamp, rec reservation.Record, t step) *Span {
	b.t.Helper()
	b.clock.at(t.from)
	s := b.engine.Begin(reservation.OpReserve)
	b.decided(s, st, rec, t)
	return s
}

func (b *bench) decided(s *Span, st reservation.Stamp, rec reservation.Record, t step) {
	rec.State, rec.Outcome, rec.Epoch = t.state, t.decision, st.Epoch
	o := outcomeOf(rec, t.decision, t.decision == reservation.Granted, t.saw)
	o.Stamp, o.Asked, o.Ended = st, b.time(t.from), b.time(t.to)
	s.Decided(o)
}

// compared tells the mirror's side.
func (b *bench) compared(s *Span, m step) {
	b.clock.at(m.from)
	s.MirrorBegins()
	b.clock.at(m.to)
	s.Compare(reservation.Judgement{Decision: m.decision, State: m.state, Levels: saw(m.saw)})
}

// whole runs a reserve in a stage, forced into the mirror.
func (b *bench) whole(st reservation.Stamp, q int64, t, m step) {
	b.t.Helper()
	b.compared(b.begin(st, record(q, t.state, t.decision), t), m)
}

func granted(from, to int, saw int64) step {
	return step{from, to, reservation.Granted, reservation.Held, saw}
}

func rejected(from, to int, saw int64) step {
	return step{from, to, reservation.RejectedShort, reservation.Rejected, saw}
}

// In cutover the truth is MySQL: what it has taken and Redis has not yet explains that Redis sees more, and never less.
func TestTheStageSaysWhichStoreIsTheTruth(t *testing.T) {
	for name, c := range map[string]struct {
		stage         reservation.Stage
		truth, mirror int64 // what the second buyer of 4 meets
		race          int64
	}{
		"shadow: the truth has less":   {reservation.Shadow, 2, 5, 1},
		"shadow: the truth has more":   {reservation.Shadow, 5, 2, 0},
		"handover: the truth has less": {reservation.Handover, 2, 5, 1},
		"cutover: the truth has less":  {reservation.Cutover, 2, 5, 1},
		"cutover: the truth has more":  {reservation.Cutover, 5, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.levels.redis, b.levels.mysql = 2, 2
			st := stamp(4, c.stage)
			x := b.begin(st, record(3, reservation.Held, reservation.Granted), granted(0, 1, 5))
			side := func(from, to int, saw int64) step {
				if saw >= 4 {
					return granted(from, to, saw)
				}
				return rejected(from, to, saw)
			}
			b.whole(st, 4, side(2, 3, c.truth), side(4, 5, c.mirror))
			b.compared(x, granted(6, 7, 5))
			b.expect(map[string]int64{"race": c.race}, 1-c.race)
		})
	}
}

// A mirror that was overlapped in one stage explains what is seen in the next: the effect is the store's, not the role's.
func TestEffectsOutliveAChangeOfStage(t *testing.T) {
	for name, c := range map[string]struct {
		truth, mirror int64
		explained     int64
	}{
		"redis has it, mysql not yet": {5, 2, 1}, // in cutover the truth is MySQL
		"the other way round":         {2, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.levels.redis, b.levels.mysql = 2, 2
			x := b.begin(stamp(1, reservation.Shadow), record(3, reservation.Held, reservation.Granted), granted(0, 1, 5))
			side := func(from, to int, saw int64) step {
				if saw >= 4 {
					return granted(from, to, saw)
				}
				return rejected(from, to, saw)
			}
			b.whole(stamp(3, reservation.Cutover), 4, side(2, 3, c.truth), side(4, 5, c.mirror))
			b.compared(x, granted(6, 7, 5))
			b.expect(map[string]int64{"race": c.explained}, 1-c.explained)
		})
	}
}

// Each store was looked at when it was asked: what came to both in between was seen by the mirror alone.
func TestEachStoreIsLookedAtInItsTime(t *testing.T) {
	for stage, redisFirst := range map[reservation.Stage]bool{reservation.Shadow: true, reservation.Handover: true, reservation.Cutover: false} {
		for name, c := range map[string]struct {
			truth, mirror step
			race          int64
		}{
			"the mirror has less": {granted(2, 3, 5), rejected(20, 21, 2), 1},
			"the mirror has more": {rejected(2, 3, 2), granted(20, 21, 5), 0},
		} {
			t.Run(stage.String()+": "+name, func(t *testing.T) {
				b := newBench(t)
				st := stamp(2, stage)
				b.levels.redis, b.levels.mysql = 2, 2
				if (truthOf(stage) == reservation.Redis) != redisFirst {
					t.Fatal("the stage table has changed")
				}
				s := b.begin(st, record(4, c.truth.state, c.truth.decision), c.truth)
				b.whole(st, 3, granted(10, 11, 5), granted(12, 13, 5))
				b.compared(s, c.mirror)
				b.expect(map[string]int64{"race": c.race}, 1-c.race)
			})
		}
	}
}

func TestHandoverTurnedDownIsAFalseSoldout(t *testing.T) {
	for name, c := range map[string]struct {
		overlap bool
		race    int64
	}{
		"explained by what overlaps": {true, 1},
		"nothing overlaps":           {false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			st := stamp(2, reservation.Handover)
			b.levels.redis, b.levels.mysql = 5, 5
			if c.overlap { // a release that Redis has and MySQL has not yet
				b.clock.at(0)
				r := b.engine.Begin(reservation.OpRelease)
				rec := record(3, reservation.Released, reservation.Granted)
				o := outcomeOf(rec, reservation.ReleasedOK, true, 0)
				o.Stamp, o.Ended = st, b.time(1)
				r.Decided(o)
				defer func() {
					b.clock.at(20)
					r.MirrorBegins()
					b.clock.at(21)
					r.Compare(reservation.Judgement{Decision: reservation.ReleasedOK, State: reservation.Released})
					b.expect(map[string]int64{"race": c.race}, 1-c.race)
				}()
			}
			b.turnedDown(st, 2, 10)
			if !c.overlap {
				b.expect(map[string]int64{"race": c.race}, 1-c.race)
			}
			tally := b.engine.Tally()
			if tally.Verdicts["false_soldout"] != 1 || tally.First["rejected"] != 1 || tally.First["granted"] != 0 {
				t.Errorf("verdicts %v, first %v: want one false_soldout, and rejected told", tally.Verdicts, tally.First)
			}
		})
	}
}

// turnedDown runs a reserve of 4 of which Redis saw 5 and MySQL mysqlSaw: asked from at, over at + 6.
func (b *bench) turnedDown(st reservation.Stamp, mysqlSaw int64, at int) {
	s := b.begin(st, record(4, reservation.Provisional, reservation.Granted), step{at, at + 1, reservation.Granted, reservation.Provisional, 5})
	s.MirrorBeganAt(b.time(at + 2))
	s.MirrorEndedAt(b.time(at + 3))
	b.clock.at(at + 6)
	s.Compare(reservation.Judgement{Decision: reservation.RejectedShort, State: reservation.Rejected, Levels: saw(mysqlSaw)})
}

// What Redis had taken for a reserve that MySQL turned down was missing there until it was given back, and only there.
func TestTurnedDownUnitsAreMissingInRedisOnly(t *testing.T) {
	for name, c := range map[string]struct {
		at           int
		redis, mysql int64
		explained    int64
	}{
		"while it lasts":         {4, 1, 5, 1},
		"never missing in mysql": {4, 5, 1, 0},
		"once given back":        {30, 1, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			st := stamp(2, reservation.Handover)
			live := b.engine.Begin(reservation.OpReserve) // keeps what is over from being forgotten
			s := b.begin(st, record(4, reservation.Provisional, reservation.Granted), step{0, 1, reservation.Granted, reservation.Provisional, 5})
			side := func(from, to int, saw int64) step {
				if saw >= 3 {
					return granted(from, to, saw)
				}
				return rejected(from, to, saw)
			}
			pair := func() { b.whole(st, 3, side(c.at, c.at+1, c.redis), side(c.at+2, c.at+3, c.mysql)) }
			if c.at < 8 {
				pair()
			}
			s.MirrorBeganAt(b.time(2))
			s.MirrorEndedAt(b.time(3))
			b.clock.at(8)
			s.Compare(reservation.Judgement{Decision: reservation.RejectedShort, State: reservation.Rejected, Levels: saw(4)})
			if c.at >= 8 {
				pair()
			}
			live.Undecided(GapUnavailable, Outcome{Shop: shop})
			b.levels.redis, b.levels.mysql = 5, 5
			b.settled()
			// The turned down one itself: MySQL said no with 4 to give. That contradicts itself and counts.
			if got := b.engine.Tally(); got.Explained["race"] != c.explained || got.Unexplained != 2-c.explained {
				t.Errorf("explained %v, unexplained %d: want %d by a race, %d not", got.Explained, got.Unexplained, c.explained, 2-c.explained)
			}
		})
	}
}

// The handover's force (a hold of an older epoch met there) is no turning down.
func TestForcedPastANoStands(t *testing.T) {
	for state, mirror := range map[reservation.State]reservation.State{
		reservation.Held:        reservation.Claimed, // a claim was there first
		reservation.Provisional: reservation.Held,
	} {
		t.Run(state.String(), func(t *testing.T) {
			b := newBench(t)
			st := stamp(2, reservation.Handover)
			s := b.begin(st, record(4, state, reservation.Granted), step{0, 1, reservation.Granted, state, 5})
			b.clock.at(2)
			s.MirrorBegins()
			b.clock.at(3)
			s.Compare(reservation.Judgement{Decision: reservation.RejectedShort, State: mirror, Levels: saw(2), Stored: true, Forced: 2})
			if got := b.engine.Tally().First; got["granted"] != 1 {
				t.Errorf("first %v: the hold was granted", got)
			}
			b.expect(nil, 1)
		})
	}
}

// A kill overtook a cutover's reserve: MySQL had granted it, Redis decides it afresh in the next epoch.
func TestDecidedAgainIsComparedOnce(t *testing.T) {
	shadow, cutover := stamp(6, reservation.Shadow), stamp(5, reservation.Cutover)
	for name, c := range map[string]struct {
		again     step
		changed   bool
		levels    bool // MySQL told what it saw
		overlap   bool
		explained map[string]int64
		counts    int64
		settled   int64 // what MySQL has in the end; Redis has 5
	}{
		"granted again":                         {granted(4, 5, 5), true, true, false, nil, 0, 5},
		"rejected, with a change":               {rejected(4, 5, 1), true, false, false, map[string]int64{"gap": 1}, 0, 5},
		"rejected, and no change is known":      {rejected(4, 5, 1), false, false, false, nil, 1, 5},
		"rejected, and MySQL differs for good":  {rejected(4, 5, 1), true, false, false, nil, 1, 4},
		"rejected by both figures, unaccounted": {rejected(4, 5, 1), true, true, false, nil, 1, 5},
		"rejected by both figures, a race":      {rejected(4, 5, 1), true, true, true, map[string]int64{"race": 1}, 0, 5},
		"rejected against its own figures":      {rejected(4, 5, 5), true, false, false, nil, 1, 5},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.levels.redis, b.levels.mysql = 5, c.settled
			var x *Span
			if c.overlap {
				x = b.begin(shadow, record(4, reservation.Held, reservation.Granted), granted(0, 1, 5))
			}
			rec := record(2, reservation.Held, reservation.Granted)
			first := granted(0, 1, 5)
			s := b.begin(cutover, rec, first)
			if !c.levels {
				s.pair.Truth.Levels = nil
			}
			if c.changed {
				b.engine.StageChanged(b.time(3), cutover, shadow)
			}
			b.decided(s, shadow, rec, c.again)
			b.clock.at(10)
			s.MirrorBegins()
			b.clock.at(11)
			s.Compare(reservation.Judgement{Decision: reservation.Granted, State: c.again.state}) // MySQL repeats what it said
			if x != nil {
				b.compared(x, granted(12, 13, 5))
			}
			b.expect(c.explained, c.counts)
			tally := b.engine.Tally()
			want := int64(1)
			if c.overlap {
				want = 2
			}
			if tally.Operations != want || tally.Compared != want {
				t.Errorf("%d operations, %d compared: want %d each", tally.Operations, tally.Compared, want)
			}
			if c.explained["gap"] == 1 {
				samples, _ := b.engine.Samples()
				if ex := samples[0].Explanation; !strings.HasPrefix(ex.Note, "stage change") || ex.Buckets[0].Unknown != "mirror" {
					t.Errorf("the sample does not tell of the change: %+v", ex)
				}
			}
		})
	}
}

// While a reserve that MySQL granted waits for the new truth, only MySQL lacks its units; if that says no, they go back.
func TestDecidedAgainLeavesTheRightTrace(t *testing.T) {
	shadow, cutover := stamp(6, reservation.Shadow), stamp(5, reservation.Cutover)
	rec := record(3, reservation.Held, reservation.Granted)
	look := func(from, to int) stores[window] {
		b := newBench(t)
		w := window{b.time(from), b.time(to)}
		return stores[window]{w, w}
	}
	for name, c := range map[string]struct {
		again                  step
		before, between, after [2]int64 // bounds of (Redis - MySQL) before it, between the decisions, and once over
	}{
		"granted":  {granted(20, 21, 5), [2]int64{0, 0}, [2]int64{3, 3}, [2]int64{0, 0}},
		"rejected": {rejected(20, 21, 1), [2]int64{0, 0}, [2]int64{3, 3}, [2]int64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.begin(cutover, rec, granted(10, 11, 5))
			b.decided(s, shadow, rec, c.again)
			b.clock.at(30)
			s.MirrorBegins()
			b.clock.at(31)
			s.Compare(reservation.Judgement{Decision: c.again.decision, State: c.again.state})
			log := b.engine.buckets[bucketA]
			if len(log.entries) != 1 {
				t.Fatalf("%d entries, want 1", len(log.entries))
			}
			for at, want := range map[int][2]int64{5: c.before, 15: c.between, 40: c.after} {
				lo, hi := contribution(log.entries[0], look(at, at+1))
				if lo != want[0] || hi != want[1] {
					t.Errorf("at %d: %d to %d, want %v", at, lo, hi, want)
				}
			}
		})
	}
}

// Two records of two epochs are evidence of their own: a retry met what an earlier attempt had left in each store.
func TestRecordsOfTwoEpochs(t *testing.T) {
	for name, c := range map[string]struct {
		epochs [2]uint64
		gap    int64
	}{"two": {[2]uint64{5, 6}, 1}, "one": {[2]uint64{6, 6}, 0}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.levels.redis, b.levels.mysql = 5, 5
			b.engine.StageChanged(b.time(50), stamp(5, reservation.Handover), stamp(6, reservation.Shadow))
			rec := record(2, reservation.Rejected, reservation.RejectedShort)
			rec.CreatedAt = b.time(10)
			s := b.begin(stamp(6, reservation.Shadow), rec, rejected(100, 101, 1))
			mirror := rec
			mirror.Epoch, mirror.Outcome, mirror.State = c.epochs[0], reservation.Granted, reservation.Rejected
			b.clock.at(110)
			s.MirrorBegins()
			b.clock.at(111)
			s.Compare(reservation.Judgement{Decision: reservation.Granted, State: reservation.Rejected, Record: &mirror})
			b.expect(map[string]int64{"gap": c.gap}, 1-c.gap)
		})
	}
}

func TestI11OperationsOfEveryStageAreAccountedFor(t *testing.T) {
	b := newBench(t)
	cut := b.begin(stamp(3, reservation.Cutover), record(1, reservation.Held, reservation.Granted), granted(0, 1, 5))
	cut.Gap(GapCut)
	gone := b.begin(stamp(3, reservation.Cutover), record(1, reservation.Held, reservation.Granted), granted(2, 3, 5))
	b.decided(gone, stamp(4, reservation.Complete), record(1, reservation.Held, reservation.Granted), granted(4, 5, 5))
	gone.Gap(GapNoMirror)
	lost := b.begin(stamp(3, reservation.Cutover), record(1, reservation.Held, reservation.Granted), granted(6, 7, 5))
	lost.Undecided(GapUnavailable, Outcome{Shop: shop, ID: lost.pair.ID, Stamp: stamp(4, reservation.Shadow)})
	got := b.settled()
	for _, reason := range []GapReason{GapCut, GapNoMirror, GapUnavailable} {
		if got.Gaps[string(reason)] != 1 {
			t.Errorf("gaps %v: want one %s", got.Gaps, reason)
		}
	}
	// What the cut one took is in MySQL only, until catch-up has been there.
	b.whole(stamp(4, reservation.Shadow), 5, granted(10, 11, 5), rejected(12, 13, 4))
	b.engine.Converged(b.time(100), b.time(100))
	b.whole(stamp(4, reservation.Shadow), 5, granted(110, 111, 5), rejected(112, 113, 4))
	b.levels.redis, b.levels.mysql = 4, 4
	b.expect(map[string]int64{"gap": 1}, 1)
}

func TestMarksExplainWhatCatchUpFinds(t *testing.T) {
	b := newBench(t)
	id := record(1, reservation.Held, reservation.Granted).ID
	f := Find{Shop: shop, ID: id, Verdict: Lost, Mirror: reservation.Held, Stamp: stamp(6, reservation.Shadow), Marked: true}
	b.engine.Found(f)
	f.Marked = false
	b.engine.Found(f)
	b.expect(nil, 1)
}

func TestLatencyIsByStore(t *testing.T) {
	b := newBench(t)
	b.whole(stamp(1, reservation.Shadow), 1, granted(0, 10, 5), granted(10, 110, 5))      // Redis 10, MySQL 100
	b.whole(stamp(3, reservation.Cutover), 1, granted(200, 300, 5), granted(300, 310, 5)) // MySQL 100, Redis 10
	got := b.engine.Tally()
	for name, c := range map[string]struct{ got, want float64 }{
		"redis": {got.RedisMS.P99, 10}, "mysql": {got.MySQLMS.P50, 100},
	} {
		if c.got < c.want || c.got > c.want*1.051 {
			t.Errorf("%s: %v ms, want %v and a twentieth more at most", name, c.got, c.want)
		}
	}
}
