package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// flips are the moves of a person or a plan, as far as reservation.Stage allows them.
func (m *model) flips(s state) {
	from := s.redis.fence
	if s.redis.suspect {
		return
	}
	for _, to := range reservation.Stages() {
		allowed := from.stage.CanMoveTo(to) || !m.has(Handover) && from.stage == reservation.Shadow && to == reservation.Cutover
		if !allowed || to < reservation.Shadow {
			continue
		}
		switch back := to < from.stage; {
		case from.stage == reservation.Complete:
			m.leaveComplete(s)
		case back && s.left.BackFlips > 0:
			n := s
			n.left.BackFlips--
			n.moveRedis(to)
			m.emit(n, event{"flip", 0, "back to " + to.String()})
		case !back && s.left.Flips > 0 && !s.redis.latch:
			m.forward(s, to)
		}
	}
}

func (m *model) forward(s state, to reservation.Stage) {
	if to == reservation.Complete && !m.Complete {
		return
	}
	from := s.redis.fence
	if from.stage == reservation.Handover && s.gate != from.epoch {
		if m.gatePassed(&s) {
			s.gate = from.epoch
			m.emit(s, event{"flip", 0, "the gate of cutover passes"})
		}
		return
	}
	s.left.Flips--
	s.gate = 0
	s.moveRedis(to)
	m.emit(s, event{"flip", 0, "to " + to.String()})
}

// gatePassed is the entry condition of cutover: it looks at the records of epochs older than the handover's.
func (m *model) gatePassed(s *state) bool {
	epoch := s.redis.fence.epoch
	if s.mysql.fence.epoch != epoch || s.mysql.marks() || s.mysql.free() < 0 {
		return false
	}
	for id := range s.redis.records {
		r, q := s.redis.records[id], s.mysql.records[id]
		oldRedis, oldMySQL := r.known() && r.epoch < epoch, q.known() && q.epoch < epoch
		if m.has(GateLive) && (oldRedis || oldMySQL) && r.state.Live() != q.state.Live() {
			return false
		}
		if m.has(GateFinal) && oldRedis && r.state.Final() && q.state != r.state {
			return false
		}
	}
	return true
}

// leaveComplete goes back to cutover: MySQL's fence first, then Redis is reseeded and fenced, in two steps.
func (m *model) leaveComplete(s state) {
	to := s.redis.fence.next(reservation.Cutover)
	switch begun := s.mysql.fence == to; {
	case !begun && s.left.BackFlips > 0:
		s.left.BackFlips--
		if m.has(LeftMySQLFirst) {
			s.mysql.fence = to
			m.emit(s, event{"flip", 0, "leaves complete: MySQL's fence to cutover"})
			return
		}
		s.reseed()
		s.redis.fence = to
		m.emit(s, event{"flip", 0, "leaves complete: Redis reseeded and fenced"})
	case begun:
		s.reseed()
		s.redis.fence = to
		m.emit(s, event{"flip", 0, "Redis reseeded and fenced"})
	}
}

// reseed rebuilds Redis from MySQL.
func (s *state) reseed() {
	s.redis.records = s.mysql.records
	s.redis.onHand, s.redis.version = s.mysql.onHand, s.mysql.version
}

// moveRedis changes Redis's fence; MySQL's follows in a step of its own. Where MySQL decided, what it granted without
// Redis is debt from now on.
func (s *state) moveRedis(to reservation.Stage) {
	if to.Truth() == reservation.Redis && s.redis.fence.stage.Truth() == reservation.MySQL {
		for id := range s.callers {
			if s.mysql.marked[id] && !s.redis.records[id].state.Live() {
				s.callers[id].overbooked = true
			}
		}
	}
	s.redis.fence = s.redis.fence.next(to)
}

// kills sets the latch, and takes it away. The first script that sees the latch folds it into the fence: nobody sees
// the fence between, so both are one step.
func (m *model) kills(s state) {
	stage := s.redis.fence.stage
	if s.redis.suspect {
		return
	}
	if s.left.Kills > 0 && !s.redis.latch && (stage == reservation.Handover || stage == reservation.Cutover) {
		n := s
		n.left.Kills--
		n.redis.latch = true
		if n.moveRedis(reservation.Shadow); !m.has(KillRaisesEpoch) {
			n.redis.fence.epoch--
		}
		m.emit(n, event{"kill", 0, "the latch, folded into the fence: shadow"})
	}
	if s.left.Rearms > 0 && s.redis.latch && s.mysql.fence == s.redis.fence && m.drained(&s) {
		n := s
		n.left.Rearms--
		n.redis.latch = false
		n.moveRedis(reservation.Shadow)
		m.emit(n, event{"rearm", 0, "the latch is gone"})
	}
}

// drained stands for the cool-down: what was live at the kill has come to its end.
func (m *model) drained(s *state) bool {
	for id := range s.callers {
		if m.Expiry && s.callers[id].clock == live && (s.redis.records[id].state.TakesUnits() || s.mysql.records[id].state.TakesUnits()) {
			return false
		}
	}
	return true
}

// fences is the second half of a split fence write, by whoever polls.
func (m *model) fences(s state) {
	if s.redis.fence != s.mysql.fence && s.redis.fence.epoch >= s.mysql.fence.epoch && !s.redis.suspect {
		s.mysql.fence = s.redis.fence
		m.emit(s, event{"poll", 0, "MySQL's fence follows Redis's"})
	}
}
