package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// catchUps is the worker: a look at one reservation in both stores, and later one compare-and-set write.
func (m *model) catchUps(s state, id uint8) {
	if !s.catchUp.busy {
		if s.left.CatchUps == 0 || s.redis.suspect {
			return
		}
		c := catchUp{true, id, s.redis.records[id], s.mysql.records[id], s.redis.fence, s.mysql.marked[id]}
		if redis, mysql := m.settled(&c, s.redis.incarnation); redis == c.redis.state && mysql == c.mysql.state && !c.marked {
			return
		}
		s.left.CatchUps--
		s.catchUp = c
		m.emit(s, event{"catch-up", id, "finds the stores different"})
		return
	}
	if s.catchUp.id == id {
		m.catchUpWrites(s)
	}
}

func (m *model) catchUpWrites(s state) {
	c := s.catchUp
	s.catchUp = catchUp{}
	redis, mysql := m.settled(&c, s.redis.incarnation)
	cas := m.has(CatchUpCompares)
	switch inRedis, inMySQL := &s.redis.records[c.id], &s.mysql.records[c.id]; {
	case redis != c.redis.state:
		if cas && (s.redis.fence != c.stamp || s.redis.suspect || *inRedis != c.redis) {
			m.emit(s, event{"catch-up", c.id, "Redis has changed meanwhile"})
			return
		}
		*inRedis = record{redis, max(c.redis.epoch, c.mysql.epoch)}
		s.redis.learn(m, s.mysql.onHand, s.mysql.version)
		m.emit(s, event{"catch-up", c.id, "writes into Redis: " + redis.String()})
	case mysql != c.mysql.state:
		if cas && (s.mysql.fence.epoch > c.stamp.epoch || *inMySQL != c.mysql) {
			m.emit(s, event{"catch-up", c.id, "MySQL has changed meanwhile"})
			return
		}
		s.mysql.fence = later(s.mysql.fence, c.stamp)
		*inMySQL = record{mysql, max(c.redis.epoch, c.mysql.epoch)}
		m.emit(s, event{"catch-up", c.id, "writes into MySQL: " + mysql.String()})
	case c.marked && *inMySQL == c.mysql:
		s.mysql.marked[c.id] = false
		m.emit(s, event{"catch-up", c.id, "drains the mark"})
	}
}

func later(a, b stamp) stamp {
	if b.epoch > a.epoch {
		return b
	}
	return a
}

// settled gives the states that a record should have in both stores, from what was seen of it. Only one of the two is
// another than what was seen.
func (m *model) settled(c *catchUp, incarnation uint8) (redis, mysql reservation.State) {
	r, q := c.redis.state, c.mysql.state
	decides := c.stamp.stage.Truth()
	promised := c.marked || c.mysql.epoch < incarnation
	present := c.stamp.stage == reservation.Handover && max(c.redis.epoch, c.mysql.epoch) >= c.stamp.epoch
	switch {
	case present && q.Live() && (r == reservation.Expired || r == reservation.Released):
		return r, r // Redis has ended it, and nothing of it is under way
	case c.stamp.stage == reservation.Complete, present,
		r == reservation.Provisional && m.has(CatchUpLeavesProvisional):
		return r, q
	case r == 0 && q.Live() && decides == reservation.Redis && !promised:
		if !m.has(CatchUpLeavesUnanswered) {
			return r, reservation.Released
		}
		return r, q
	case q == 0 && decides == reservation.MySQL && r.Live(), r == 0 && q == reservation.Rejected && !promised:
		return r, q
	case r == reservation.Provisional: // only without its protection: taken for a hold
		return reservation.Held, q
	case r == reservation.Claiming && q != reservation.Claimed && q != reservation.Released && q != reservation.Refused:
		return r, q // a pin is rolled forward, never undone
	case r == reservation.Claiming && q == reservation.Claimed:
		return q, q
	}
	want := reservation.Merge(r, q)
	if decides == reservation.MySQL {
		want = reservation.Merge(q, r)
	}
	switch {
	case want != r:
		return want, q
	case want != q && want != reservation.Claimed: // the ledger is not catch-up's
		return r, want
	}
	return r, q
}
