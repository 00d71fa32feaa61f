package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// failovers are Redis's replication, a failover that loses what was not replicated, and the restore.
func (m *model) failovers(s state) {
	if s.left.Failovers > 0 && s.replica != s.redis {
		n := s
		n.replica = s.redis
		m.emit(n, event{"replication", 0, "the replica catches up"})
		m.failover(s)
	}
	if s.redis.suspect {
		m.restore(s)
	}
}

func (m *model) failover(s state) {
	for id := range s.callers {
		r, q := s.redis.records[id].state, s.mysql.records[id].state
		lost := s.replica.records[id] != s.redis.records[id]
		unmirrored := r.Live() && !q.Live() || r == reservation.Rejected && q != reservation.Rejected
		if lost && unmirrored && s.redis.fence.stage.Truth() == reservation.Redis {
			s.callers[id].outcomeLost = true
		}
	}
	s.left.Failovers--
	s.redis, s.replica = s.replica, redisStore{}
	s.redis.suspect = true
	m.emit(s, event{"failover", 0, "Redis is replaced by its replica, last writes are lost"})
}

// restore rebuilds Redis from MySQL: an epoch above every epoch seen, the stage of the highest, shadow if in doubt.
func (m *model) restore(s state) {
	seen := later(s.redis.fence, s.mysql.fence)
	for r := range m.Routers {
		seen = later(seen, s.routers[r].belief)
	}
	var adopted [maxRequests]bool
	for id := range s.callers {
		r, q := &s.redis.records[id], s.mysql.records[id]
		switch {
		case q.state.Live() && !r.state.Live() && r.state.Rank() <= q.state.Rank():
			if m.has(RestoreAdopts) {
				*r = q
				adopted[id] = true
			}
		case q.state.Rank() > r.state.Rank():
			*r = q
		}
	}
	for id, a := range adopted { // beyond what is there: some of these were answered to nobody, and nobody can tell which
		s.callers[id].overbooked = s.callers[id].overbooked || a && s.redis.available() < 0
	}
	s.redis.learn(m, s.mysql.onHand, s.mysql.version)
	s.redis.suspect = false
	if m.has(RestoreRaisesEpoch) {
		s.redis.fence = seen.next(seen.stage)
	}
	s.redis.incarnation = s.redis.fence.epoch
	m.emit(s, event{"restore", 0, "Redis is rebuilt from MySQL"})
}
