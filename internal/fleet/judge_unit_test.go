package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twinhold/twinhold/reservation"
)

// told makes an answered history to plant faults in: a bucket of 3 units, a hold of 2 that was claimed, one of 1 that
// was released, a rejection.
func told() *history {
	h := newHistory()
	h.start = h.start.Add(-time.Minute)
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	h.stocked(b, 3, 0)
	for _, c := range []call{
		reserveOf(1, 1, 2, "GRANTED"), endOf(1, 4, "claim", reservation.Claimed),
		reserveOf(2, 2, 1, "GRANTED"), endOf(2, 5, "release", reservation.Released),
		reserveOf(3, 3, 1, "REJECTED"),
	} {
		h.add(c)
	}
	return h
}

func idOf(n int) string { return uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(n)}).String() }

func reserveOf(n, second int, qty int64, outcome string) call {
	at := time.Duration(second) * time.Second
	st := reservation.Held
	if outcome == "REJECTED" {
		st = reservation.Rejected
	}
	return call{
		Op: "reserve", Shop: 1, Key: "k" + string(rune('0'+n)), ID: idOf(n), Lines: []reservation.Line{{Item: 1, Group: 1, Quantity: qty}},
		Router: "router-1", Begin: at, End: at + 10*time.Millisecond, Code: "ok", Outcome: outcome, State: st,
		DecidedBy: "redis", Epoch: 1, ExpiresAt: 20 * time.Second,
	}
}

func endOf(n, second int, op string, st reservation.State) call {
	at := time.Duration(second) * time.Second
	return call{
		Op: op, Shop: 1, ID: idOf(n), Router: "router-2", Begin: at, End: at + 10*time.Millisecond, Code: "ok", State: st,
	}
}

// A test of the test: each planted fault is found, and told as what it is.
func TestJudgeFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(h *history)
		want  string
	}{
		"I1 granted twice":          {func(h *history) { h.add(reserveOf(4, 3, 1, "GRANTED")) }, "I1: bucket 1:1:1: from 3.0100 on up to 1 units more"},
		"I1 granted beside a claim": {func(h *history) { h.add(reserveOf(4, 6, 2, "GRANTED")) }, "I1: bucket 1:1:1: from 6.0100 on up to 1 units more"},
		"I1 more than the debt that was told": {func(h *history) {
			h.kill(killDone{epoch: 1, debt: &reservation.Debt{Units: 1}})
			h.add(reserveOf(4, 6, 3, "GRANTED"))
		}, "I1: bucket 1:1:1: from 6.0100 on up to 2 units more"},
		"I5 claimed and released":         {func(h *history) { h.add(endOf(2, 6, "claim", reservation.Claimed)) }, "I5: it was answered claimed at 6.0100 and released at 5.0100"},
		"I5 taken back":                   {func(h *history) { c := reserveOf(1, 6, 2, "GRANTED"); h.add(c) }, "I5: it was claimed at 4.0100, and held for a call of 6.0000"},
		"I7 not found":                    {func(h *history) { c := endOf(1, 3, "claim", 0); c.Code = "not_found"; h.add(c) }, "I7: granted, and the claim at 3.0000 does not find it"},
		"I7 refused":                      {func(h *history) { c := endOf(1, 3, "claim", reservation.Refused); h.add(c) }, "I7: granted until 20.0000, and the claim at 3.0000 was answered refused"},
		"I7 a conflict without a release": {func(h *history) { c := endOf(1, 3, "claim", 0); c.Code = "failed_precondition"; h.add(c) }, "although nobody released it"},
		"I8 after the acknowledgement": {func(h *history) {
			h.kill(killDone{epoch: 5, returned: 5500 * time.Millisecond})
			c := reserveOf(4, 6, 1, "GRANTED")
			c.DecidedBy, c.Epoch = "mysql", 4
			h.add(c)
		}, "I8: it was first asked for at 6.0000"},
		"I8 not by the truth": {func(h *history) {
			h.audit(0, "Redis", []reservation.AuditRecord{{After: reservation.Stamp{Epoch: 1, Stage: reservation.Cutover}}})
		}, "I8: it was decided by redis in epoch 1, which was a cutover"},
		"I9 another answer": {func(h *history) { c := reserveOf(3, 6, 1, "GRANTED"); h.add(c) }, `I9: key "k3" was answered REJECTED at 3.0100 and GRANTED at 6.0100`},
		"I9 two ids":        {func(h *history) { c := reserveOf(3, 6, 1, "REJECTED"); c.ID = idOf(9); h.add(c) }, `I9: key "k3" has two reservations`},
		"I9 a conflict":     {func(h *history) { c := reserveOf(3, 6, 1, ""); c.Code = "already_exists"; h.add(c) }, "I9: the reserve at 6.0000 was answered already_exists"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := told()
			if got := newJudge(h, nil, nil).all(); len(got) > 0 {
				t.Fatalf("found in a sound history: %v", got)
			}
			c.plant(h)
			j := newJudge(h, nil, nil)
			if !slices.ContainsFunc(j.all(), func(v violation) bool { return strings.Contains(j.story(v), c.want) }) {
				t.Errorf("not found: %s\nin: %v", c.want, j.violations)
			}
		})
	}
}

// Units that a kill told as debt may be promised twice, and a claim of one may be refunded; the judge counts them.
func TestJudgeExcusesDebtOnRecord(t *testing.T) {
	t.Parallel()
	h := told()
	h.kill(killDone{epoch: 2, began: 5500 * time.Millisecond, debt: &reservation.Debt{Reservations: 1, Units: 1}})
	h.add(reserveOf(4, 6, 2, "GRANTED"))
	h.add(endOf(4, 7, "claim", reservation.Refused))
	j := newJudge(h, nil, nil)
	if got := j.all(); len(got) > 0 || j.excused[0] != 1 || j.refunds != 1 {
		t.Errorf("found %v, excused %v, %d refunds", got, j.excused, j.refunds)
	}
}

// The same for what the stores hold at rest.
func TestJudgeHoldsAnswersAgainstStores(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(redis, mysql *reservation.Snapshot)
		want  string
	}{
		"I5 missing in Redis": {func(r, _ *reservation.Snapshot) { r.Records = r.Records[1:] }, "I5: it was answered GRANTED and is missing: in Redis true, in MySQL false"},
		"I5 not the same":     {func(r, _ *reservation.Snapshot) { r.Records[1].State = reservation.Expired }, "I5: at rest it is expired in Redis and released in MySQL"},
		"I5 not as told": {func(r, m *reservation.Snapshot) {
			r.Records[1].State, m.Records[1].State = reservation.Expired, reservation.Expired
		}, "I5: at rest it is expired, but the answers allow [released]"},
		"I5 a rejection that was granted": {func(r, m *reservation.Snapshot) {
			r.Records[2].State, m.Records[2].State = reservation.Expired, reservation.Expired
		}, "I5: at rest it is expired, but the answers allow [rejected]"},
		"I6 never deducted": {func(_, m *reservation.Snapshot) { m.Entries = nil }, "I6: claimed, with 1 lines and 0 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, mysql := atRest(), atRest()
			h := told()
			if got := newJudge(h, []reservation.Snapshot{redis}, []reservation.Snapshot{mysql}).all(); len(got) > 0 {
				t.Fatalf("found in a sound history: %v", got)
			}
			c.plant(&redis, &mysql)
			j := newJudge(h, []reservation.Snapshot{redis}, []reservation.Snapshot{mysql})
			if !slices.ContainsFunc(j.all(), func(v violation) bool { return strings.Contains(j.story(v), c.want) }) {
				t.Errorf("not found: %s\nin: %v", c.want, j.violations)
			}
		})
	}
}

func atRest() reservation.Snapshot {
	line := []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}
	rec := func(n int, st reservation.State) reservation.Record {
		return reservation.Record{ID: uuid.MustParse(idOf(n)), Shop: 1, Key: "k" + string(rune('0'+n)), Lines: line, State: st}
	}
	return reservation.Snapshot{
		Records: []reservation.Record{rec(1, reservation.Claimed), rec(2, reservation.Released), rec(3, reservation.Rejected)},
		Entries: []reservation.Entry{{Kind: reservation.EntryClaim, Reservation: uuid.MustParse(idOf(1)), Delta: -2}},
	}
}
