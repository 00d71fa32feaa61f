package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// mirror carries out what waits in shadow's queue, in any order: judge and store.
func (m *model) mirror(s state, id uint8) {
	for slot, op := range s.queue[id] {
		if !op.known() {
			continue
		}
		n := s
		n.queue[id][slot] = record{}
		if op.epoch < n.mysql.fence.epoch {
			m.emit(n, event{"mirror", id, "a queued operation is refused as stale: a gap"})
			continue
		}
		if op.epoch > n.mysql.fence.epoch {
			n.mysql.fence = stamp{op.epoch, reservation.Shadow}
		}
		r := &n.mysql.records[id]
		outcome := op.state
		if outcome == reservation.Held && n.callers[id].clock != live {
			outcome = reservation.Expired
		}
		*r = record{reservation.Merge(outcome, r.state), max(op.epoch, r.epoch)}
		m.emit(n, event{"mirror", id, "MySQL follows: " + r.state.String()})
	}
}
