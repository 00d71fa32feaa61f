package invariant_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/twinhold/twinhold/internal/invariant"
	"github.com/twinhold/twinhold/reservation"
)

// world is two stores that agree: a held, a claimed, a late claimed, a rejected, a released and an expired
// reservation on two buckets.
type world struct {
	redis, mysql reservation.Snapshot
	opts         invariant.Options
}

func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// id makes the n-th reservation's id, created n seconds after noon.
func id(n int) reservation.ID {
	var u uuid.UUID
	ms := noon().Add(time.Duration(n) * time.Second).UnixMilli()
	for i := range 6 {
		u[5-i] = byte(ms >> (8 * i))
	}
	u[6], u[8], u[15] = 0x70, 0x80, byte(n)
	return u
}

func bucket(item int64) reservation.Bucket { return reservation.Bucket{Shop: 1, Item: item, Group: 1} }

func lines(quantities ...int64) []reservation.Line {
	var l []reservation.Line
	for i, q := range quantities {
		if q > 0 {
			l = append(l, reservation.Line{Item: int64(i + 1), Group: 1, Quantity: q})
		}
	}
	return l
}

func record(n int, s reservation.State, l []reservation.Line) reservation.Record {
	outcome := reservation.Granted
	if s == reservation.Rejected {
		outcome = reservation.RejectedShort
	}
	at := noon().Add(time.Duration(n) * time.Second)
	return reservation.Record{
		ID: id(n), Shop: 1, Key: "k" + string(rune('0'+n)), Hash: reservation.Hash{byte(n)}, Lines: l, Outcome: outcome, State: s,
		CreatedAt: at, ExpiresAt: at.Add(10 * time.Minute), PurgeAt: at.Add(time.Hour),
	}
}

func agreeing() *world {
	records := func() []reservation.Record {
		late := record(3, reservation.Claimed, lines(1))
		late.Late = true
		return []reservation.Record{
			record(1, reservation.Held, lines(2, 4)),
			record(2, reservation.Claimed, lines(3, 1)),
			late,
			record(4, reservation.Rejected, lines(0, 99)),
			record(5, reservation.Released, lines(2)),
			record(6, reservation.Expired, lines(1, 1)),
		}
	}
	entry := func(item int64, kind reservation.EntryKind, n int, adj string, delta int64) reservation.Entry {
		e := reservation.Entry{Bucket: bucket(item), Kind: kind, Adjustment: adj, Delta: delta, At: noon()}
		if n > 0 {
			e.Reservation = id(n)
		}
		return e
	}
	return &world{
		redis: reservation.Snapshot{
			Store: reservation.Redis,
			Buckets: []reservation.BucketState{
				{Bucket: bucket(1), OnHand: 8, Version: 4, Available: 6, Held: 2},
				{Bucket: bucket(2), OnHand: 7, Version: 2, Available: 3, Held: 4},
			},
			Records: records(),
		},
		mysql: reservation.Snapshot{
			Store: reservation.MySQL,
			Buckets: []reservation.BucketState{
				{Bucket: bucket(1), OnHand: 8, Version: 4, Pool: 5, Unpooled: 1, Reserved: 2},
				{Bucket: bucket(2), OnHand: 7, Version: 2, Pool: 0, Unpooled: 3, Reserved: 4},
			},
			Records: records(),
			Lines:   map[reservation.ID][]reservation.Line{id(1): lines(2, 4)},
			Entries: []reservation.Entry{
				entry(1, reservation.EntryStock, 0, "", 10), entry(2, reservation.EntryStock, 0, "", 8),
				entry(1, reservation.EntryAdjust, 0, "delivery", 2),
				entry(1, reservation.EntryClaim, 2, "", -3), entry(2, reservation.EntryClaim, 2, "", -1),
				entry(1, reservation.EntryClaim, 3, "", -1),
			},
		},
		opts: invariant.Options{Settled: true, Now: noon().Add(30 * time.Minute)},
	}
}

func (w *world) check() invariant.Report { return invariant.Check(&w.redis, &w.mysql, w.opts) }

func TestAgreeingStoresAreOK(t *testing.T) {
	t.Parallel()
	rep := agreeing().check()
	want := map[string]string{"I1": "ok", "I2": "ok", "I3": "ok", "I4": "ok", "I5": "ok", "I6": "ok"}
	if diff := cmp.Diff(want, rep.Map()); diff != "" || !rep.OK() {
		t.Fatalf("(-want +got):\n%s\n%s", diff, rep)
	}
	for _, r := range rep.Results {
		if r.Evaluated == 0 || len(r.Exceptions) > 0 {
			t.Errorf("%+v", r)
		}
	}
}

// TestPlantedViolations: each is found, under the right number, with the evidence, and with nothing else beside it
// but what follows from it.
func TestPlantedViolations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(w *world)
		want  string   // a violation that must be told
		also  []string // other invariants that the same fault breaks
	}{
		"oversold": {func(w *world) {
			w.mysql.Entries[0].Delta, w.mysql.Entries[2].Delta = 2, 2 // 4 stocked
		}, "I1: bucket 1:1:1: 4 claimed + 2 promised in Redis = 6, but only 4 were ever stocked", []string{"I3"}},
		"oversold beyond what late claims explain": {func(w *world) {
			w.mysql.Entries[0].Delta, w.mysql.Entries[2].Delta = 2, 2
		}, "(late claims on record explain 1, forced adjustments 0)", []string{"I3"}},
		"promised without a bucket": {func(w *world) {
			r := record(7, reservation.Held, lines(0, 0, 5))
			w.redis.Records, w.mysql.Records = append(w.redis.Records, r), append(w.mysql.Records, r)
			w.mysql.Lines[r.ID] = r.Lines
		}, "I1: bucket 1:3:1: 0 claimed + 5 promised in Redis = 5, but only 0 were ever stocked", []string{"I2", "I4"}},
		"pool off by one": {
			func(w *world) { w.mysql.Buckets[0].Pool = 6 },
			"I2: bucket 1:1:1: 6 in the pool + 2 reserved + 1 unpooled = 9, but on hand are 8", nil,
		},
		"unpooled negative with a pool": {
			func(w *world) { w.mysql.Buckets[0].Pool, w.mysql.Buckets[0].Unpooled = 7, -1 },
			"I2: bucket 1:1:1: unpooled is -1 while 7 units are in the pool", nil,
		},
		"reserved is not the lines": {
			func(w *world) { w.mysql.Buckets[0].Reserved, w.mysql.Buckets[0].Pool = 3, 4 },
			"I2: bucket 1:1:1: reserved is 3, but its live lines sum to 2", nil,
		},
		"a held record without lines": {
			func(w *world) { delete(w.mysql.Lines, id(1)) },
			"is held with lines 1:1 x 2, 2:1 x 4, but its live lines in MySQL are none", nil,
		},
		"a line of another quantity": {
			func(w *world) { w.mysql.Lines[id(1)] = lines(2, 3) },
			"but its live lines in MySQL are 1:1 x 2, 2:1 x 3", nil,
		},
		"lines of a released record": {
			func(w *world) { w.mysql.Lines[id(5)] = lines(2) },
			"I2: reservation " + id(5).String() + " is released, but still has 1 live lines in MySQL", nil,
		},
		"lines of nobody": {
			func(w *world) { w.mysql.Lines[id(9)] = lines(2) },
			"I2: MySQL keeps live lines of reservation " + id(9).String() + ", which it does not know", nil,
		},
		"on hand negative": {
			func(w *world) { w.mysql.Buckets[1].OnHand, w.mysql.Buckets[1].Unpooled = -1, -5 },
			"I2: bucket 1:2:1: a figure is negative: pool 0, reserved 4, on hand -1",
			[]string{"I3", "I4"},
		},
		"an orphan in MySQL": {
			func(w *world) { w.mysql.Orphans = []string{"unit 3 of 1:9:1"} },
			"I2: MySQL holds something that belongs to nothing: unit 3 of 1:9:1", nil,
		},
		"entries do not sum": {
			func(w *world) { w.mysql.Entries[2].Delta = 3 },
			"I3: bucket 1:1:1: on hand are 8, but its 4 entries sum to 9", nil,
		},
		"stocked twice": {
			func(w *world) { w.mysql.Entries[2].Kind = reservation.EntryStock },
			"I3: bucket 1:1:1 was stocked for the first time 2 times", nil,
		},
		"entries without a bucket": {func(w *world) {
			w.mysql.Entries = append(w.mysql.Entries, reservation.Entry{Bucket: bucket(3), Kind: reservation.EntryStock, Delta: 1})
		}, "I3: bucket 1:3:1 has no ledger row, but 1 entries", nil},
		"available off by one": {
			func(w *world) { w.redis.Buckets[0].Available = 7 },
			"I4: bucket 1:1:1: available is 7 in Redis, but on hand 8 - held 2 = 6", nil,
		},
		"held off by one": {
			func(w *world) { w.redis.Buckets[0].Available, w.redis.Buckets[0].Held = 5, 3 },
			"I4: bucket 1:1:1: held is 3 in Redis, but its live reservations sum to 2", nil,
		},
		"Redis is behind": {func(w *world) {
			w.redis.Buckets[0] = reservation.BucketState{Bucket: bucket(1), OnHand: 9, Version: 3, Available: 7, Held: 2}
		}, "I4: bucket 1:1:1: Redis is still at version 3 (9 on hand), the ledger at 4 (8 on hand)", nil},
		"Redis is ahead": {
			func(w *world) { w.redis.Buckets[0].Version = 5 },
			"I4: bucket 1:1:1: Redis is at version 5 of the ledger, which is only at 4", nil,
		},
		"one version, two figures": {
			func(w *world) { w.redis.Buckets[0].OnHand, w.redis.Buckets[0].Available = 9, 7 },
			"I4: bucket 1:1:1: at version 4 Redis says 9 on hand, the ledger 8", nil,
		},
		"a bucket that Redis lacks": {
			func(w *world) { w.redis.Buckets = w.redis.Buckets[:1] },
			"I4: bucket 1:2:1 is in the ledger, but has no counters in Redis", nil,
		},
		"a bucket that the ledger lacks": {func(w *world) {
			w.redis.Buckets = append(w.redis.Buckets, reservation.BucketState{Bucket: bucket(3)})
		}, "I4: bucket 1:3:1 has counters in Redis, but no ledger row in MySQL", nil},
		"live reservations without counters": {
			func(w *world) { w.redis.Buckets = w.redis.Buckets[:1] },
			"I4: bucket 1:2:1 has no counters in Redis, but live reservations of 4 units", nil,
		},
		"an orphan in Redis": {
			func(w *world) { w.redis.Orphans = []string{"{p}:key:1:k"} },
			"I4: Redis holds something that belongs to nothing: {p}:key:1:k", nil,
		},
		"lost in MySQL": {
			func(w *world) { w.mysql.Records = w.mysql.Records[:5] },
			"I5: reservation " + id(6).String() + " (shop 1, expired) is in Redis, but not in MySQL", nil,
		},
		"lost in Redis": {
			func(w *world) { w.redis.Records = w.redis.Records[:5] },
			"I5: reservation " + id(6).String() + " (shop 1, expired) is in MySQL, but not in Redis", nil,
		},
		"states differ": {
			func(w *world) { w.redis.Records[4].State = reservation.Expired },
			"I5: reservation " + id(5).String() + " is expired in Redis, released in MySQL", nil,
		},
		"lines differ": {
			func(w *world) { w.redis.Records[4].Lines = lines(3) },
			"has the lines 1:1 x 3 in Redis, 1:1 x 2 in MySQL", nil,
		},
		"keys differ": {func(w *world) { w.redis.Records[4].Key = "" }, `has the key "" in Redis, "k5" in MySQL`, nil},
		"hashes differ": {
			func(w *world) { w.redis.Records[4].Hash[0] = 0xab },
			"has the hash ab000000 in Redis, 05000000 in MySQL", nil,
		},
		"outcomes differ": {
			func(w *world) { w.mysql.Records[3].Outcome = reservation.Granted },
			"was rejected in Redis, granted in MySQL", nil,
		},
		"expiries differ": {
			func(w *world) { w.mysql.Records[3].ExpiresAt = noon() },
			"expires at 2026-03-01T12:10:04.000000Z in Redis, at 2026-03-01T12:00:00.000000Z in MySQL", nil,
		},
		"shops differ": {func(w *world) { w.mysql.Records[4].Shop = 2 }, "is of shop 1 in Redis, of shop 2 in MySQL", nil},
		"claimed and never deducted": {func(w *world) {
			w.redis.Records[4].State, w.mysql.Records[4].State = reservation.Claimed, reservation.Claimed
		}, "I6: reservation " + id(5).String() + " is claimed, but the ledger was never deducted for its 2 units of bucket 1:1:1", nil},
		"deducted twice": {
			func(w *world) { w.mysql.Entries = append(w.mysql.Entries, w.mysql.Entries[5]) },
			"I6: reservation " + id(3).String() + " was deducted 2 times from bucket 1:1:1: [1 1]",
			[]string{"I3"},
		},
		"deducted too much": {
			func(w *world) { w.mysql.Entries[4].Delta, w.mysql.Entries[1].Delta = -2, 9 },
			"I6: reservation " + id(2).String() + " has 1 units of bucket 1:2:1, but 2 were deducted", nil,
		},
		"added in place of deducted": {
			func(w *world) { w.mysql.Entries[4].Delta, w.mysql.Entries[1].Delta = 1, 6 },
			"has 1 units of bucket 1:2:1, but -1 were deducted", nil,
		},
		"deducted where it has no line": {
			func(w *world) { w.mysql.Entries[5].Bucket = bucket(2) },
			"I6: reservation " + id(3).String() + " has no line of bucket 1:2:1, but [1] were deducted there",
			[]string{"I3"},
		},
		"deducted for a released one": {
			func(w *world) { w.mysql.Entries[5].Reservation = id(5) },
			"I6: reservation " + id(5).String() + " is released, but the ledger was deducted for it: 1 from bucket 1:1:1", nil,
		},
		"deducted for nobody": {
			func(w *world) { w.mysql.Entries[5].Reservation = id(9) },
			"I6: the ledger was deducted for reservation " + id(9).String() + ", which no store knows", nil,
		},
		"deducted for one that is too young to be purged": {func(w *world) {
			w.mysql.Entries[5].Reservation, w.opts.OldestKept = id(9), noon()
		}, "which no store knows", nil},
		"a pin that was left": {
			func(w *world) { w.redis.Records[0].State = reservation.Claiming },
			"I6: reservation " + id(1).String() + " has been pinned since",
			[]string{"I5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := agreeing()
			c.plant(w)
			rep := w.check()
			found := slices.ContainsFunc(rep.Violations(), func(v string) bool { return strings.Contains(v, c.want) })
			if !found || rep.OK() {
				t.Fatalf("not found: %s\n%s", c.want, rep)
			}
			if !strings.Contains(rep.String(), "violated: ") {
				t.Errorf("the text does not show it:\n%s", rep)
			}
			number, _, _ := strings.Cut(c.want, ":")
			if strings.HasPrefix(number, "I") && len(number) == 2 && rep.Map()[number] != "violated" {
				t.Errorf("%s is %s", number, rep.Map()[number])
			}
			for _, also := range c.also {
				if rep.Map()[also] != "violated" {
					t.Errorf("%s should be violated too:\n%s", also, rep)
				}
			}
		})
	}
}

// TestEachViolationIsOfOneInvariant: a fault of one kind does not colour the others.
func TestEachViolationIsOfOneInvariant(t *testing.T) {
	t.Parallel()
	for want, plant := range map[string]func(w *world){
		"I2": func(w *world) { w.mysql.Buckets[0].Pool++ },
		"I3": func(w *world) { w.mysql.Entries[2].Delta++ },
		"I4": func(w *world) { w.redis.Buckets[0].Available++ },
		"I5": func(w *world) { w.redis.Records[4].Hash[3] = 1 },
		"I6": func(w *world) { w.mysql.Entries[5].Reservation = id(5) },
	} {
		w := agreeing()
		plant(w)
		for name, got := range w.check().Map() {
			if (got == "violated") != (name == want) {
				t.Errorf("planted in %s: %s is %s", want, name, got)
			}
		}
	}
}

func TestForcedLateClaimIsAnException(t *testing.T) {
	t.Parallel()
	w := agreeing()
	// A late claim of 3 more took what a hold of 2 was promised: on hand 1, promised 2.
	late := record(7, reservation.Claimed, lines(7))
	late.Late = true
	w.redis.Records, w.mysql.Records = append(w.redis.Records, late), append(w.mysql.Records, late)
	w.mysql.Entries = append(w.mysql.Entries, reservation.Entry{Bucket: bucket(1), Kind: reservation.EntryClaim, Reservation: late.ID, Delta: -7})
	w.mysql.Buckets[0] = reservation.BucketState{Bucket: bucket(1), OnHand: 1, Version: 5, Unpooled: -1, Reserved: 2}
	w.redis.Buckets[0] = reservation.BucketState{Bucket: bucket(1), OnHand: 1, Version: 5, Available: -1, Held: 2}
	rep := w.check()
	r, _ := rep.Result("I1")
	if !rep.OK() || len(r.Exceptions) != 2 || !strings.Contains(rep.String(), "2 exceptions on record") {
		t.Fatalf("one exception for each store is wanted:\n%s", rep)
	}
	if !strings.Contains(r.Exceptions[0], "promised 1 too often: late claims took 8") {
		t.Errorf("the exception says: %s", r.Exceptions[0])
	}
	// The same figures without a late claim on record are a violation.
	for _, recs := range [][]reservation.Record{w.redis.Records, w.mysql.Records} {
		for i := range recs {
			recs[i].Late = false
		}
	}
	if got := w.check().Map()["I1"]; got != "violated" {
		t.Errorf("without a late claim on record I1 is %s", got)
	}
}

func TestForcedAdjustmentIsAnException(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.mysql.Entries = append(w.mysql.Entries, reservation.Entry{Bucket: bucket(2), Kind: reservation.EntryAdjust, Adjustment: "fire", Delta: -5})
	w.mysql.Buckets[1] = reservation.BucketState{Bucket: bucket(2), OnHand: 2, Version: 3, Unpooled: -2, Reserved: 4}
	w.redis.Buckets[1] = reservation.BucketState{Bucket: bucket(2), OnHand: 2, Version: 3, Available: -2, Held: 4}
	if got := w.check().Map()["I1"]; got != "violated" {
		t.Errorf("an adjustment that nobody forced: I1 is %s", got)
	}
	w.mysql.Entries[len(w.mysql.Entries)-1].Forced = true
	rep := w.check()
	if r, _ := rep.Result("I1"); !rep.OK() || len(r.Exceptions) != 2 {
		t.Errorf("a forced adjustment:\n%s", rep)
	}
	// What somebody added with force takes nothing away from what force explains.
	w.mysql.Entries = append(w.mysql.Entries[:6:6],
		reservation.Entry{Bucket: bucket(2), Kind: reservation.EntryAdjust, Adjustment: "fire", Delta: 4, Forced: true},
		reservation.Entry{Bucket: bucket(2), Kind: reservation.EntryAdjust, Adjustment: "fire", Delta: -9, Forced: true})
	if rep := w.check(); !rep.OK() {
		t.Errorf("a forced adjustment after one that added:\n%s", rep)
	}
}

func TestRedisAlone(t *testing.T) {
	t.Parallel()
	w := agreeing()
	rep := invariant.Check(&w.redis, nil, w.opts)
	if diff := cmp.Diff(map[string]string{"I1": "ok", "I4": "ok"}, rep.Map()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	w.redis.Buckets[1].OnHand, w.redis.Buckets[1].Available = 2, -2
	rep = invariant.Check(&w.redis, nil, w.opts)
	if rep.Map()["I1"] != "violated" || !strings.Contains(rep.String(), "bucket 1:2:1: available is -2 in Redis") {
		t.Errorf("available below zero:\n%s", rep)
	}
}

func TestMySQLAlone(t *testing.T) {
	t.Parallel()
	w := agreeing()
	rep := invariant.Check(nil, &w.mysql, w.opts)
	want := map[string]string{"I1": "ok", "I2": "ok", "I3": "ok", "I6": "ok"}
	if diff := cmp.Diff(want, rep.Map()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func TestNothingEvaluatedIsAbsentAndNotOK(t *testing.T) {
	t.Parallel()
	for _, rep := range []invariant.Report{
		invariant.Check(nil, nil, invariant.Options{}),
		invariant.Check(&reservation.Snapshot{}, &reservation.Snapshot{}, invariant.Options{Settled: true}),
	} {
		if rep.OK() || len(rep.Map()) != 0 || !strings.Contains(rep.String(), "no invariant was evaluated") {
			t.Errorf("empty stores: ok %t, %v, %q", rep.OK(), rep.Map(), rep)
		}
	}
	if rep := invariant.Check(nil, &reservation.Snapshot{Orphans: []string{"x"}}, invariant.Options{}); rep.OK() || rep.Map()["I2"] != "violated" {
		t.Errorf("a store of orphans alone: %v", rep.Map())
	}
}

// TestLedgerOnly: in stage legacy MySQL has the ledger and the claimed, and misses nothing else.
func TestLedgerOnly(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.mysql.Records = w.mysql.Records[1:3]
	w.mysql.Lines = nil
	w.mysql.Buckets[0] = reservation.BucketState{Bucket: bucket(1), OnHand: 8, Version: 4, Pool: 8}
	w.mysql.Buckets[1] = reservation.BucketState{Bucket: bucket(2), OnHand: 7, Version: 2, Unpooled: 7}
	if w.check().OK() {
		t.Error("a mirror that lacks reservations is ok")
	}
	w.opts.LedgerOnly = true
	if rep := w.check(); !rep.OK() {
		t.Errorf("\n%s", rep)
	}
	w.redis.Records[1].State = reservation.Held
	if rep := w.check(); rep.Map()["I5"] != "violated" {
		t.Errorf("held in Redis, claimed in the ledger:\n%s", rep)
	}
}

// TestUnsettled: while things are in flight a store may be behind, but what was agreed from the start must agree.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.opts.Settled = false
	w.redis.Records[0].State = reservation.Claiming                                                               // a claim under way
	w.redis.Buckets[0] = reservation.BucketState{Bucket: bucket(1), OnHand: 9, Version: 3, Available: 7, Held: 2} // a finish to come
	w.mysql.Records = w.mysql.Records[:5]                                                                         // a mirror write to come
	if rep := w.check(); !rep.OK() {
		t.Errorf("\n%s", rep)
	}
	w.redis.Records[1].Lines = lines(9, 1)
	if rep := w.check(); rep.Map()["I5"] != "violated" {
		t.Errorf("other lines in flight:\n%s", rep)
	}
}

// TestPinnedAndDeducted: a claim between step 2 and step 3 is not counted twice.
func TestPinnedAndDeducted(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.opts.Settled = false
	w.redis.Records[0].State = reservation.Claiming
	w.mysql.Records[0].State = reservation.Claimed
	delete(w.mysql.Lines, id(1))
	w.mysql.Entries = append(w.mysql.Entries,
		reservation.Entry{Bucket: bucket(1), Kind: reservation.EntryClaim, Reservation: id(1), Delta: -2},
		reservation.Entry{Bucket: bucket(2), Kind: reservation.EntryClaim, Reservation: id(1), Delta: -4})
	w.mysql.Buckets[0] = reservation.BucketState{Bucket: bucket(1), OnHand: 6, Version: 5, Pool: 5, Unpooled: 1}
	w.mysql.Buckets[1] = reservation.BucketState{Bucket: bucket(2), OnHand: 3, Version: 3, Unpooled: 3}
	if rep := w.check(); !rep.OK() {
		t.Errorf("\n%s", rep)
	}
}

func TestPinnedAdjustmentCountsAsHeld(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.opts.Settled = false
	w.redis.Buckets[0].Held, w.redis.Buckets[0].Available = 5, 3
	if rep := w.check(); rep.Map()["I4"] != "violated" {
		t.Errorf("3 held by nobody:\n%s", rep)
	}
	w.opts.PinnedAdjustments = []reservation.Adjustment{{ID: "a", Bucket: bucket(1), Delta: -3}}
	if rep := w.check(); !rep.OK() {
		t.Errorf("\n%s", rep)
	}
}

// TestPastRetentionIsNotCompared: either store may have purged it.
func TestPastRetentionIsNotCompared(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.mysql.Records = w.mysql.Records[:5]
	w.redis.Records[5].PurgeAt = w.opts.Now
	if rep := w.check(); !rep.OK() {
		t.Errorf("\n%s", rep)
	}
	w.redis.Records[5].PurgeAt = w.opts.Now.Add(1)
	if w.check().OK() {
		t.Error("a record within its retention is missing, and that is ok")
	}
}

func TestEntriesOutliveTheirRecord(t *testing.T) {
	t.Parallel()
	w := agreeing()
	w.redis.Records = append(w.redis.Records[:2:2], w.redis.Records[3:]...)
	w.mysql.Records = append(w.mysql.Records[:2:2], w.mysql.Records[3:]...)
	if w.check().OK() {
		t.Error("an entry of nobody is ok though nothing was purged")
	}
	w.opts.OldestKept = noon().Add(4 * time.Second)
	if rep := w.check(); !rep.OK() {
		t.Errorf("\n%s", rep)
	}
}

func TestReportStaysShort(t *testing.T) {
	t.Parallel()
	w := agreeing()
	for n := range 50 {
		w.mysql.Orphans = append(w.mysql.Orphans, "row "+string(rune('a'+n%26)))
	}
	rep := w.check()
	if text := rep.String(); !strings.Contains(text, "and 30 more") || strings.Count(text, "\n") > 40 {
		t.Errorf("\n%s", text)
	}
	if len(rep.Violations()) != 50 {
		t.Errorf("%d violations in full; want 50", len(rep.Violations()))
	}
}
