package shadow

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// A bucket that is behind is given the ledger's figures only if it has not moved for the settle time.
func TestFiguresOfABucketThatStandsStill(t *testing.T) {
	t.Parallel()
	c, now := planner(t)
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	ledger := func(version int64) reservation.Figures { return reservation.Figures{Bucket: b, Version: version} }
	for i, look := range []struct {
		after         time.Duration
		redis, ledger int64
		want          bool
	}{
		{0, 4, 5, false},                // a first look
		{30 * time.Second, 4, 6, false}, // still there, but not for long enough
		{50 * time.Second, 5, 7, false}, // it moves, though it never gets there
		{100 * time.Second, 6, 8, false},
		{159 * time.Second, 6, 9, false},
		{161 * time.Second, 6, 9, true}, // it has stood still for a minute
		{170 * time.Second, 9, 9, false},
		{300 * time.Second, 9, 10, false}, // behind again: a first look
		{301 * time.Second, unknownVersion, 10, false},
	} {
		if got := c.stands(ledger(look.ledger), look.redis, now.Add(look.after)); got != look.want {
			t.Errorf("look %d: %v, want %v", i+1, got, look.want)
		}
	}
}

// A claim that commits while the restore is under way is in the ledger's figures at its end.
func TestRestoreMindsClaimsMeanwhile(t *testing.T) {
	t.Parallel()
	first, later := record(t, reservation.Held), record(t, reservation.Held)
	redis := newFake(reservation.Redis, st(5, reservation.Cutover))
	mysql := newFake(reservation.MySQL, st(5, reservation.Cutover), first, later)
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	mysql.figs[b] = reservation.Figures{Bucket: b, OnHand: 9, Version: 1}
	redis.between = func() {
		later.State = reservation.Claimed
		mysql.records[later.ID] = later
		mysql.figs[b] = reservation.Figures{Bucket: b, OnHand: 8, Version: 2}
	}
	opt := restoreOf(redis, mysql)
	opt.Page = 1
	if _, err := Restore(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	if redis.figs[b].OnHand != 8 || redis.records[later.ID].State != reservation.Claimed {
		t.Errorf("%+v, %s", redis.figs[b], redis.records[later.ID].State)
	}
}

// What each pair of states counts as, by the epoch in which each record was decided.
func TestSurveyCounts(t *testing.T) {
	t.Parallel()
	const (
		held, claiming, provisional = reservation.Held, reservation.Claiming, reservation.Provisional
		rejected, expired, released = reservation.Rejected, reservation.Expired, reservation.Released
		claimed                     = reservation.Claimed
		older, fresh                = uint64(3), uint64(9) // the handover's epoch
	)
	type counts struct {
		missing, marked, unconfirmed int64
		differing, pins, provisional int
		older                        Older
	}
	for name, c := range map[string]struct {
		redis, mysql reservation.State
		epoch        uint64
		marked       bool
		want         counts
	}{
		"equal":                            {held, held, older, false, counts{}},
		"live in Redis only":               {held, 0, older, false, counts{missing: 1, older: Older{Live: 1}}},
		"the same, of the handover":        {held, 0, fresh, false, counts{missing: 1}},
		"rejected by MySQL":                {held, rejected, older, false, counts{missing: 1, older: Older{Live: 1}}},
		"expired in MySQL":                 {held, expired, older, false, counts{missing: 1, older: Older{Live: 1}}},
		"ended in MySQL":                   {held, released, older, false, counts{differing: 1, older: Older{Live: 1}}},
		"a pin":                            {claiming, held, older, false, counts{pins: 1}},
		"a pin that has landed":            {claiming, claimed, older, false, counts{pins: 1, older: Older{Live: 1}}},
		"a pin that MySQL does not know":   {claiming, 0, older, false, counts{pins: 1, missing: 1, older: Older{Live: 1}}},
		"live in MySQL only, marked":       {0, held, older, true, counts{marked: 1, older: Older{Live: 1}}},
		"live in MySQL only":               {0, held, older, false, counts{unconfirmed: 1, older: Older{Live: 1, Unconfirmed: 1}}},
		"the same, of this handover":       {0, held, fresh, false, counts{unconfirmed: 1}},
		"provisional":                      {provisional, 0, fresh, false, counts{provisional: 1}},
		"provisional of old, unconfirmed":  {provisional, held, older, false, counts{provisional: 1, unconfirmed: 1, older: Older{Live: 1, Unconfirmed: 1}}},
		"provisional in one, ended":        {provisional, expired, older, false, counts{provisional: 1}},
		"released in Redis only":           {released, held, older, false, counts{differing: 1, older: Older{Live: 1, Final: 1}}},
		"a rejection that MySQL lacks":     {rejected, 0, older, false, counts{differing: 1, older: Older{Final: 1}}},
		"the rejection, of the handover":   {rejected, 0, fresh, false, counts{differing: 1}},
		"another end":                      {expired, rejected, older, false, counts{differing: 1, older: Older{Final: 1}}},
		"an end that Redis lacks":          {0, claimed, older, false, counts{differing: 1}},
		"a rejection that nobody was told": {0, rejected, older, false, counts{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, mysql := newFake(reservation.Redis, st(9, reservation.Handover)), newFake(reservation.MySQL, st(9, reservation.Handover))
			r := record(t, held)
			r.Epoch = c.epoch
			if c.redis != 0 {
				redis.records[r.ID] = was(r, c.redis)
			}
			if c.mysql != 0 {
				q := was(r, c.mysql)
				q.Marked = c.marked
				mysql.records[r.ID] = q
			}
			s := surveyOf(t, redis, mysql)
			got := counts{
				s.Missing.Reservations, s.Marked.Reservations, s.Unconfirmed.Reservations, s.Differing, s.Pins, s.Provisional, s.Older,
			}
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			ready, why := s.ReadyForCutover()
			if wants := c.want.older == (Older{}) && !c.marked; ready != wants {
				t.Errorf("ready is %v: %q", ready, why)
			}
			if redis.writes+mysql.writes != 0 {
				t.Error("a survey has written")
			}
		})
	}
}

func surveyOf(t *testing.T, redis, mysql *fake) Survey {
	t.Helper()
	c, err := NewCatchUp(CatchUpOptions{Pod: "pod-1", Redis: redis, MySQL: mysql})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Survey(t.Context(), redis.fence, mysql.fence)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What is younger than the settle time is no debt yet, but the gate does not look past it.
func TestSurveyOfYoungRecords(t *testing.T) {
	t.Parallel()
	redis, mysql := newFake(reservation.Redis, st(9, reservation.Handover)), newFake(reservation.MySQL, st(9, reservation.Handover))
	r := record(t, reservation.Held)
	redis.records[r.ID] = r
	c, err := NewCatchUp(CatchUpOptions{Pod: "pod-1", Redis: redis, MySQL: mysql, Settle: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Survey(t.Context(), redis.fence, mysql.fence)
	if err != nil || s.Young != 1 || s.Debt().Reservations != 0 || s.Older.Live != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A store that does not answer ends the round; one record that cannot be written does not.
func TestOneBrokenRecordDoesNotStopTheRest(t *testing.T) {
	t.Parallel()
	for cause, ends := range map[error]bool{
		&reservation.UnavailableError{Store: reservation.MySQL, Cause: errors.New("planted")}: true,
		&reservation.FenceError{Store: reservation.MySQL, Verdict: reservation.Stale}:         true,
		&reservation.CorruptError{Store: reservation.MySQL, What: "planted"}:                  false,
	} {
		at := st(9, reservation.Shadow)
		redis, mysql := newFake(reservation.Redis, at, record(t, reservation.Held), record(t, reservation.Held)), newFake(reservation.MySQL, at)
		mysql.broken = cause
		c, err := NewCatchUp(CatchUpOptions{Pod: "pod-1", Redis: redis, MySQL: mysql})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Run(t.Context(), redis.fence)
		if ends && (!errors.Is(err, cause) || len(mysql.ops) == 0) || !ends && (err != nil || len(r.Left) != 2) {
			t.Errorf("%v: %+v, %v, %d writes tried", cause, r, err, len(mysql.ops))
		}
	}
}

// Outside the dual-write stages catch-up asks nothing and writes nothing.
func TestCatchUpOnlyInDualWriteStages(t *testing.T) {
	t.Parallel()
	for _, stage := range []reservation.Stage{reservation.Legacy, reservation.Complete} {
		redis := newFake(reservation.Redis, st(9, stage), record(t, reservation.Held))
		mysql := newFake(reservation.MySQL, st(9, stage), record(t, reservation.Held, isMarked))
		c, err := NewCatchUp(CatchUpOptions{Pod: "pod-1", Redis: redis, MySQL: mysql})
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range []func(context.Context, reservation.Fence) (Round, error){c.Run, c.DrainMarks} {
			if r, err := run(t.Context(), redis.fence); err != nil || r.Walked != 0 || redis.writes+mysql.writes != 0 {
				t.Errorf("%s: %+v, %v", stage, r, err)
			}
		}
	}
}

func TestEitherWritesTheStoreThatFollows(t *testing.T) {
	t.Parallel()
	for _, stage := range reservation.Stages() {
		redis, mysql := newFake(reservation.Redis, st(9, stage)), newFake(reservation.MySQL, st(9, stage))
		op := reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.Granted, Record: record(t, reservation.Held)}
		if _, err := (Either{Redis: redis, MySQL: mysql}).Mirror(t.Context(), st(9, stage), op); err != nil {
			t.Fatal(err)
		}
		if wantRedis := stage.Truth() == reservation.MySQL; (redis.writes == 1) != wantRedis || (mysql.writes == 1) == wantRedis {
			t.Errorf("%s: %d writes into Redis, %d into MySQL", stage, redis.writes, mysql.writes)
		}
	}
}

// A pod's catch-up and its restores are made anew, with one registry: the metrics go on.
func TestMetricsAreSharedByEveryRun(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	for range 2 {
		at := st(9, reservation.Shadow)
		redis, mysql := newFake(reservation.Redis, at, record(t, reservation.Held)), newFake(reservation.MySQL, at)
		c, err := NewCatchUp(CatchUpOptions{Pod: "pod-1", Redis: redis, MySQL: mysql, Registerer: registry})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Run(t.Context(), redis.fence); err != nil {
			t.Fatal(err)
		}
		opt := restoreOf(redis, mysql)
		opt.Registerer = registry
		if _, err := Restore(t.Context(), opt); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "twinhold_catchup_repairs_total", "twinhold_restores_total":
			if n := f.GetMetric()[0].GetCounter().GetValue(); n != 2 {
				t.Errorf("%s is %v, want 2", f.GetName(), n)
			}
		}
	}
}

// MySQL is whole in a handover once it holds nothing of older epochs any more that Redis has ended.
func TestWholeOnceNothingIsWithheld(t *testing.T) {
	t.Parallel()
	const held, released, expired, rejected = reservation.Held, reservation.Released, reservation.Expired, reservation.Rejected
	at := st(9, reservation.Handover)
	lately := func(r *reservation.Record) { r.ReleasedAt = time.Now() }
	fresh := func(r *reservation.Record) { r.Epoch = 9 }
	for name, c := range map[string]struct {
		redis    reservation.State
		change   []func(*reservation.Record)
		withheld int
	}{
		"held in both":                        {held, nil, 0},
		"provisional":                         {reservation.Provisional, nil, 0},
		"ended in Redis, and brought over":    {released, nil, 0},
		"just ended in Redis":                 {released, []func(*reservation.Record){lately}, 1},
		"expired in Redis, in this handover":  {expired, []func(*reservation.Record){fresh}, 0},
		"unknown to Redis":                    {0, nil, 1},
		"unknown to Redis, and promised":      {0, []func(*reservation.Record){isMarked}, 0},
		"rejected by Redis, and brought over": {rejected, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := record(t, held, c.change...)
			redis, mysql := newFake(reservation.Redis, at), newFake(reservation.MySQL, at, r)
			if c.redis != 0 {
				redis.records[r.ID] = was(r, c.redis)
			}
			cu, err := NewCatchUp(CatchUpOptions{Pod: "pod-1", Redis: redis, MySQL: mysql, Settle: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			round, err := cu.Run(t.Context(), redis.fence)
			if whole := mysql.fence.Whole == 9; err != nil || round.Withheld != c.withheld || whole != (c.withheld == 0) {
				t.Errorf("%d withheld, whole is %v, %v", round.Withheld, whole, err)
			}
		})
	}
}

// I5: what is too young is judged by the stores' clock: a router whose own is an hour ahead repairs nothing of a healthy
// flow, and one that is an hour behind repairs what is lost.
func TestCatchUpJudgesByTheStoresClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		own, made time.Duration // off by, ago
		want      int
	}{
		"ahead, a record of just now":   {time.Hour, time.Second, 0},
		"behind, a record that is lost": {-time.Hour, 10 * time.Minute, 1},
	} {
		at := st(9, reservation.Shadow)
		r := record(t, reservation.Held)
		r.CreatedAt, r.ExpiresAt = now.Add(-c.made), now.Add(30*time.Minute)
		redis, mysql := newFake(reservation.Redis, at, r), newFake(reservation.MySQL, at)
		cu, err := NewCatchUp(CatchUpOptions{
			Pod: "pod-1", Redis: redis, MySQL: mysql, Settle: time.Minute,
			Now: func() time.Time { return now.Add(c.own) }, StoreNow: func() time.Time { return now },
		})
		if err != nil {
			t.Fatal(err)
		}
		round, err := cu.Run(t.Context(), redis.fence)
		if err != nil || round.Total() != c.want || !round.Began.Equal(now.Add(c.own)) {
			t.Errorf("%s: %d repairs, want %d; began %v, %v", name, round.Total(), c.want, round.Began, err)
		}
	}
}
