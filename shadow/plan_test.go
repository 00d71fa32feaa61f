package shadow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// letters of the states, as the tables of these tests write them.
func stateByLetter() map[byte]reservation.State {
	return map[byte]reservation.State{
		'0': 0, 'P': reservation.Provisional, 'H': reservation.Held, 'K': reservation.Claiming, 'J': reservation.Rejected,
		'X': reservation.Expired, 'F': reservation.Refused, 'L': reservation.Released, 'C': reservation.Claimed,
	}
}

// A row is what Redis has, a column what MySQL has: 0 nothing, P provisional, H held, K claiming, J rejected,
// X expired, F refused, L released, C claimed. R: Redis is given MySQL's state, M: MySQL is given Redis's, a dot: both
// stay. These are the values of the protocol model's rule (catchup.go, settled), which was explored by exhaustion.
const (
	redisDecides = `
  0HJXFLC
0 ...RRRR
P .......
H M.MRRRR
K ....RRR
J MM.MRRR
X MMM.RRR
F MMMM.RR
L MMMMM.R
C .......`
	// A mark says that MySQL's outcome was answered: it is adopted where Redis knows nothing, has turned it down, or
	// still has its half of a grant in handover.
	redisDecidesMarked = `
  0HJXFLC
0 .RRRRRR
P .R.....
H M.MRRRR
K ....RRR
J MR.MRRR
X MMM.RRR
F MMMM.RR
L MMMMM.R
C .......`
	// MySQL's record is older than Redis's last restore: Redis may have lost it. Its rejection may be newer.
	redisDecidesLost = `
  0HJXFLC
0 .RRRRRR
P .......
H M.MRRRR
K ....RRR
J MM.MRRR
X MMM.RRR
F MMMM.RR
L MMMMM.R
C .......`
	mysqlDecides = `
  0HJXFLC
0 .R.RRRR
P .......
H ..RRRRR
K ....RRR
J MR.RRRR
X MMR.RRR
F MMMM.RR
L MMMMM.R
C .......`
	mysqlDecidesMarked = `
  0HJXFLC
0 .RRRRRR
P .R.....
H ..RRRRR
K ....RRR
J MR.RRRR
X MMR.RRR
F MMMM.RR
L MMMMM.R
C .......`
	nothing = `
  0HJXFLC
0 .......
P .......
H .......
K .......
J .......
X .......
F .......
L .......
C .......`
)

// presentHandover: of the present epoch, only what Redis has ended is taken over.
const presentHandover = `
  0HJXFLC
0 .......
P .......
H .......
K .......
J .......
X .M.....
F .......
L .M.....
C .......`

func TestSettledByTheModelsRules(t *testing.T) {
	t.Parallel()
	const epoch = 9
	for _, c := range []struct {
		stage        reservation.Stage
		recordEpoch  uint64
		marked, lost bool
		want         string
	}{
		{reservation.Legacy, 8, false, false, nothing},
		{reservation.Shadow, 9, false, false, redisDecides},
		{reservation.Shadow, 8, true, false, redisDecidesMarked},
		{reservation.Shadow, 8, false, true, redisDecidesLost},
		{reservation.Handover, 8, false, false, redisDecides},
		{reservation.Handover, 8, true, false, redisDecidesMarked},
		{reservation.Handover, 9, false, false, presentHandover},
		{reservation.Handover, 9, true, true, presentHandover},
		{reservation.Cutover, 9, false, false, mysqlDecides},
		{reservation.Cutover, 8, false, false, mysqlDecides},
		{reservation.Cutover, 9, true, false, mysqlDecidesMarked},
		{reservation.Complete, 8, true, true, nothing},
	} {
		t.Run(fmt.Sprintf("%s/%d/marked=%v/lost=%v", c.stage, c.recordEpoch, c.marked, c.lost), func(t *testing.T) {
			t.Parallel()
			f := facts{epoch: c.recordEpoch, stamp: reservation.Stamp{Epoch: epoch, Stage: c.stage}, marked: c.marked, lost: c.lost}
			for pair, what := range cells(t, c.want) {
				f.redis, f.mysql = pair[0], pair[1]
				if pair[1] == 0 {
					f.marked, f.lost = false, false // a mark and an epoch are a record's
				} else {
					f.marked, f.lost = c.marked, c.lost
				}
				redis, mysql := f.settled()
				want := pair
				switch what {
				case 'R':
					want[0] = pair[1]
				case 'M':
					want[1] = pair[0]
				}
				if got := [2]reservation.State{redis, mysql}; got != want {
					t.Errorf("Redis %s, MySQL %s: becomes %s, %s; want %s, %s", stateName(pair[0]), stateName(pair[1]),
						stateName(got[0]), stateName(got[1]), stateName(want[0]), stateName(want[1]))
				}
			}
		})
	}
}

// cells reads a table.
func cells(t *testing.T, table string) map[[2]reservation.State]byte {
	t.Helper()
	letters, out := stateByLetter(), map[[2]reservation.State]byte{}
	rows := strings.Split(strings.TrimPrefix(table, "\n"), "\n")
	for _, row := range rows[1:] {
		for i := 2; i < len(row); i++ {
			out[[2]reservation.State{letters[row[0]], letters[rows[0][i]]}] = row[i]
		}
	}
	if len(out) != 63 {
		t.Fatalf("%d cells, want 63", len(out))
	}
	return out
}

// A mark goes once Redis has what it stands for, or higher; never before.
func TestMarkDrainsOnlyWhenRedisHasTheOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		redis, mysql reservation.State
		want         bool
	}{
		{0, reservation.Held, false},
		{reservation.Provisional, reservation.Held, false},
		{reservation.Rejected, reservation.Held, false},
		{reservation.Held, reservation.Held, true},
		{reservation.Claiming, reservation.Held, true},
		{reservation.Expired, reservation.Held, true},
		{reservation.Held, reservation.Claimed, false},
		{reservation.Claiming, reservation.Claimed, false},
		{reservation.Claimed, reservation.Claimed, true},
		{reservation.Held, reservation.Released, false},
		{reservation.Claimed, reservation.Released, true},
		{0, reservation.Rejected, false},
		{reservation.Rejected, reservation.Rejected, true},
	} {
		f := facts{redis: c.redis, mysql: c.mysql, marked: true, stamp: reservation.Stamp{Epoch: 9, Stage: reservation.Shadow}}
		if f.drains() != c.want {
			t.Errorf("Redis %s, MySQL %s: drains is %v", stateName(c.redis), stateName(c.mysql), !c.want)
		}
		if f.marked = false; f.drains() {
			t.Error("drains a mark that is not there")
		}
	}
}

// times of a reservation in these tests, against now.
func planner(t *testing.T) (*CatchUp, time.Time) {
	t.Helper()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c, err := NewCatchUp(CatchUpOptions{
		Pod: "pod-1", Redis: &fake{}, MySQL: &fake{}, Settle: time.Minute, Grace: 5 * time.Minute, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, now
}

func TestPlanMindsTheTimes(t *testing.T) {
	t.Parallel()
	c, now := planner(t)
	rec := func(s reservation.State, change ...func(*reservation.Record)) *reservation.Record {
		r := &reservation.Record{
			ID: reservation.ID{6: 0x70, 8: 0x80, 15: 1}, Shop: 1, State: s, Epoch: 9, CreatedAt: now.Add(-10 * time.Minute),
			ExpiresAt: now.Add(10 * time.Minute), PurgeAt: now.Add(time.Hour),
		}
		for _, f := range change {
			f(r)
		}
		return r
	}
	young := func(r *reservation.Record) { r.ReleasedAt = now.Add(-time.Second) }
	due := func(r *reservation.Record) { r.ExpiresAt = now.Add(-time.Second) }
	pastGrace := func(r *reservation.Record) { r.ExpiresAt = now.Add(-6 * time.Minute) }
	purged := func(r *reservation.Record) { r.PurgeAt = now.Add(-time.Second) }
	marked := func(r *reservation.Record) { r.Marked = true }
	older := func(r *reservation.Record) { r.Epoch = 3 }
	shadow, cutover := reservation.Shadow, reservation.Cutover
	held, released := reservation.Held, reservation.Released

	for name, tc := range map[string]struct {
		stage        reservation.Stage
		redis, mysql *reservation.Record
		want         string // the store that is written, and what was wrong; or what is not done
	}{
		"a hold that MySQL lacks":                  {shadow, rec(held), nil, "mysql lost held"},
		"the same, too young":                      {shadow, rec(held, young), nil, "skipped"},
		"the same, due: its sweeper ends it":       {shadow, rec(held, due), nil, "skipped"},
		"an end that MySQL lacks":                  {shadow, rec(released), nil, "mysql missing released"},
		"the same past its expiry":                 {shadow, rec(released, due), nil, "mysql missing released"},
		"the same past its retention":              {shadow, rec(released, purged), nil, "skipped"},
		"a hold that MySQL still has":              {shadow, rec(released), rec(held), "mysql leaked released"},
		"a hold that Redis still has":              {cutover, rec(held), rec(released), "redis leaked released"},
		"a state":                                  {shadow, rec(reservation.Rejected), rec(reservation.Expired), "mysql state rejected"},
		"a claim cut from Redis":                   {shadow, rec(held), rec(reservation.Claimed, marked), "redis leaked claimed"},
		"a pin that MySQL released":                {cutover, rec(reservation.Claiming), rec(released), "redis leaked released"},
		"a pin that MySQL rejected":                {cutover, rec(reservation.Claiming), rec(reservation.Rejected), "skipped"},
		"a pin past its retention":                 {shadow, rec(reservation.Claiming, purged), rec(reservation.Claimed, purged), "redis leaked claimed"},
		"a marked hold is adopted":                 {shadow, nil, rec(held, marked), "redis adopted held by force"},
		"the same however young":                   {shadow, nil, rec(held, marked, young), "redis adopted held by force"},
		"the same though due":                      {shadow, nil, rec(held, marked, due), "redis adopted held by force"},
		"a hold that Redis lost":                   {shadow, nil, rec(held, older), "redis adopted held by force"},
		"an unanswered hold waits":                 {shadow, nil, rec(held), "unconfirmed"},
		"the same, due":                            {shadow, nil, rec(held, due), "unconfirmed"},
		"the same past the grace":                  {shadow, nil, rec(held, pastGrace), "mysql leaked expired"},
		"an unanswered hold of Redis waits":        {cutover, rec(held), nil, "unconfirmed"},
		"the same past its grace":                  {cutover, rec(held, pastGrace), nil, "redis leaked expired"},
		"a pin that MySQL does not know":           {cutover, rec(reservation.Claiming, pastGrace), nil, "skipped"},
		"a provisional one":                        {shadow, rec(reservation.Provisional, pastGrace), rec(held, pastGrace), "skipped"},
		"an unanswered rejection":                  {cutover, nil, rec(reservation.Rejected), "unconfirmed"},
		"claimed in Redis alone is for a person":   {shadow, rec(reservation.Claimed), rec(held), "left"},
		"the same state":                           {shadow, rec(held), rec(held), "nothing"},
		"the same state with another expiry":       {shadow, rec(held), rec(held, due), "left"},
		"the mirror of a hold in cutover":          {cutover, nil, rec(held), "redis lost held"},
		"a rejection that MySQL lacks in cutover":  {cutover, rec(reservation.Rejected), nil, "mysql missing rejected"},
		"Redis's older word against MySQL's grant": {cutover, rec(reservation.Rejected), rec(held), "redis lost held"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := view{redis: tc.redis, mysql: tc.mysql, fence: reservation.Fence{
				Stamp: reservation.Stamp{Epoch: 9, Stage: tc.stage}, IncarnationEpoch: 5,
			}}
			s := c.plan(v, now)
			if got := describe(s); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if s.to != 0 {
				seen := v.facts().redis
				if s.to == reservation.MySQL {
					seen = v.facts().mysql
				}
				if s.op.Expect == nil || *s.op.Expect != seen {
					t.Error("the write does not compare with the state that was read")
				}
			}
		})
	}
}

func describe(s step) string {
	switch {
	case s.to != 0 && s.op.Adopt:
		return fmt.Sprintf("%s %s %s by force", s.to, s.was, s.op.Record.State)
	case s.to != 0:
		return fmt.Sprintf("%s %s %s", s.to, s.was, s.op.Record.State)
	case s.left != "":
		return "left"
	case s.unconfirmed:
		return "unconfirmed"
	case s.skipped:
		return "skipped"
	default:
		return "nothing"
	}
}
