package shadow_test

import (
	"strings"
	"testing"

	"github.com/twinhold/twinhold/reservation"
)

// A record that cannot be read, in either store, is named, and does not stop the rest: neither a round nor a survey.
func TestUnreadableRecordDoesNotStopTheRest(t *testing.T) {
	t.Parallel()
	for _, store := range []reservation.Truth{reservation.Redis, reservation.MySQL} {
		t.Run(store.String(), func(t *testing.T) {
			t.Parallel()
			p := newPod(t, reservation.Shadow, 20)
			p.both(1)
			bad, worse := p.both(1), p.both(1)
			p.both(1)
			before, after := p.reserve(p.redis, 1), p.reserve(p.redis, 2) // MySQL lacks them
			for _, r := range []reservation.Record{bad, worse} {
				if store == reservation.Redis {
					p.must(p.raw.HSet(t.Context(), p.key("res:"+r.ID.String()), "state", "nonsense").Err())
				} else {
					p.exec("UPDATE reservations SET state = 'nonsense' WHERE id = ?", r.ID[:])
				}
			}
			c := p.catchUp()
			r := p.run(c)
			if r.Repaired["lost"] != 2 || r.Total() != 2 || r.Unreadable != 2 || len(r.Left) != 2 || r.Walked != 6 {
				t.Errorf("%+v", r)
			}
			for _, id := range []reservation.ID{bad.ID, worse.ID} {
				if left := strings.Join(r.Left, "\n"); !strings.Contains(left, id.String()+": cannot be read in "+store.String()) {
					t.Errorf("%s is not named: %s", id, left)
				}
			}
			p.states("the one before", before.ID, held, held)
			p.states("the one after", after.ID, held, held)
			s := p.survey(c)
			if ok, why := s.ReadyForCutover(); s.Unreadable != 2 || s.Differing != 2 || ok || !strings.Contains(strings.Join(why, "\n"), "2 records cannot be read") {
				t.Errorf("%+v, %q", s, why)
			}
			part, err := c.Look(t.Context(), p.fence(), []reservation.ID{bad.ID, after.ID})
			if err != nil || part.Unreadable != 1 || part.Walked != 2 {
				t.Errorf("%+v, %v", part, err)
			}
		})
	}
}
