package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// claim is one step of a claim: pin, ledger, answer, finish.
func (m *model) claim(t turn) {
	switch t.router().step {
	case pin:
		if !t.redisRefuses(lowerLedger) {
			m.pinned(t)
		}
	case lowerLedger:
		if !t.mysqlRefuses() {
			m.lowered(t)
		}
	case answerClaimed:
		t.caller().claimed = true
		if t.route().Mirror == reservation.Never || t.router().cut {
			t.then(idle, "answers claimed")
			return
		}
		t.then(finish, "answers claimed")
	case finish:
		m.finished(t)
	case unpin:
		if r := t.inRedis(); r.state == reservation.Claiming && t.router().belief == t.now.redis.fence {
			r.state = t.inMySQL().state
		}
		m.refused(t, "takes MySQL's end into Redis and refuses the claim")
	default:
		panic("protocolmodel: this step belongs to another operation")
	}
}

// pinned is Redis's pin script.
func (m *model) pinned(t turn) {
	redis, r := &t.now.redis, t.inRedis()
	if other := *t.inMySQL(); !r.known() {
		if !other.known() {
			m.refused(t, "known nowhere")
			return
		}
		*r = record{reservation.Claiming, other.epoch}
		redis.unjudged[t.id()] = true
		t.router().judge = m.has(UnjudgedPin)
		t.then(lowerLedger, "Redis pins by force what only MySQL knows")
		return
	}
	judged := t.truth() == reservation.Redis && t.now.mysql.entries[t.id()] == 0
	switch r.state {
	case reservation.Held, reservation.Provisional, reservation.Expired:
		if own := r.state.TakesUnits(); judged && t.caller().clock != live && m.has(LateFromAvailable) {
			left := redis.available()
			if own {
				left++
			}
			if left <= 0 {
				r.state = reservation.Refused
				m.refused(t, "late, and nothing is available: Redis refuses")
				return
			}
		}
		r.state = reservation.Claiming
		redis.unjudged[t.id()] = !judged
		t.router().judge = !judged && m.has(UnjudgedPin)
		t.then(lowerLedger, "Redis pins")
	case reservation.Claiming, reservation.Claimed:
		t.router().judge = redis.unjudged[t.id()] && m.has(UnjudgedPin)
		t.then(lowerLedger, "joins the claim that Redis knows")
	default:
		m.refused(t, "Redis: conflict")
	}
}

// lowered is the claim's MySQL transaction.
func (m *model) lowered(t turn) {
	mysql, r := &t.now.mysql, t.inMySQL()
	if mysql.entries[t.id()] > 0 && m.has(EntryOnce) {
		t.figures()
		t.then(answerClaimed, "MySQL has the entry")
		return
	}
	decides := t.truth() == reservation.MySQL
	free := mysql.free()
	if r.state.TakesUnits() {
		free++
	}
	late := (decides || t.router().judge) && t.caller().clock != live && m.has(LateFromAvailable)
	switch {
	case m.has(FinalInMySQL) && (r.state == reservation.Released || r.state == reservation.Refused),
		decides && r.state == reservation.Rejected:
		t.then(unpin, "MySQL has ended it")
		return
	case t.router().cut && !r.known():
		t.then(idle, "cannot ask Redis for what MySQL does not know: unavailable")
		return
	case mysql.onHand < 1, late && free <= 0:
		r.state = reservation.Refused
		t.then(unpin, "MySQL refuses: nothing left")
		return
	}
	*r = record{reservation.Claimed, max(r.epoch, t.epoch())}
	mysql.entries[t.id()]++
	mysql.onHand--
	mysql.version++
	if t.router().cut {
		mysql.marked[t.id()] = true
	}
	t.figures()
	t.then(answerClaimed, "MySQL lowers the ledger")
}

func (t *turn) figures() {
	t.router().onHand, t.router().version = t.now.mysql.onHand, t.now.mysql.version
}

// finished is the finish in Redis. Its answer was given: stale, it is sent again under the new fence.
func (m *model) finished(t turn) {
	redis := &t.now.redis
	if redis.suspect || t.router().belief.epoch > redis.fence.epoch {
		t.then(idle, "leaves the finish to the restore")
		return
	}
	if t.router().belief != redis.fence {
		t.router().belief = redis.fence
		if t.route().Mirror == reservation.Never {
			t.then(idle, "has no Redis to finish in")
			return
		}
	}
	t.inRedis().state = reservation.Claimed
	redis.learn(m, t.router().onHand, t.router().version)
	t.then(idle, "finishes in Redis")
}

// refused answers a conflict or refund_required, which a granted and live reservation must never get.
func (m *model) refused(t turn, what string) {
	c := t.caller()
	lost := false
	for id := range t.now.callers {
		lost = lost || t.now.callers[id].outcomeLost || t.now.callers[id].overbooked
	}
	if c.promised() && !lost {
		t.now.broken = i7
	}
	t.then(idle, what)
}
