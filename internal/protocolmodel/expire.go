package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// time moves one reservation's clock on, once a store knows it.
func (m *model) time(s state, id uint8) {
	if !m.Expiry || s.callers[id].clock == pastGrace || !s.redis.records[id].known() && !s.mysql.records[id].known() {
		return
	}
	s.callers[id].clock++
	m.emit(s, event{"time", id, []string{"", "expires_at has passed", "the grace has passed"}[s.callers[id].clock]})
}

// sweepers are both stores' sweepers, each under its own store's fence.
func (m *model) sweepers(s state, id uint8) {
	if !m.Expiry || s.callers[id].clock == live {
		return
	}
	if r := s.redis.records[id]; m.sweeps(r.state) && !s.redis.suspect {
		if m.due(&s, id, s.redis.fence.stage, reservation.Redis, s.mysql.records[id]) {
			n := s
			n.redis.records[id].state = reservation.Expired
			m.emit(n, event{"Redis's sweeper", id, "expires the hold"})
		}
	}
	if r := s.mysql.records[id]; m.sweeps(r.state) {
		if m.due(&s, id, s.mysql.fence.stage, reservation.MySQL, s.redis.records[id]) {
			n := s
			n.mysql.records[id].state = reservation.Expired
			m.emit(n, event{"MySQL's sweeper", id, "expires the hold"})
		}
	}
}

func (m *model) sweeps(r reservation.State) bool {
	return r == reservation.Held || r == reservation.Provisional ||
		r == reservation.Claiming && !m.has(PinStopsExpiry)
}

// due tells whether a store may end a hold: the truth by its clock, the mirror when the truth's record has ended, or
// after the grace if the truth does not know it.
func (m *model) due(s *state, id uint8, at reservation.Stage, store reservation.Truth, other record) bool {
	route := at.Route(reservation.OpExpire)
	if route.Decides == store {
		return true
	}
	if route.Mirror == reservation.Never {
		return false
	}
	return other.state.Final() || !other.known() && s.callers[id].clock == pastGrace
}
