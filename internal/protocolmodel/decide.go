package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// reserve is one step of a reserve.
func (m *model) reserve(t turn) {
	switch t.router().step {
	case askRedis:
		if !t.redisRefuses(askRedis) {
			m.redisDecides(t)
		}
	case agree:
		if !t.mysqlRefuses() {
			m.mysqlAgrees(t)
		}
	case confirm, turnDown:
		if !t.redisRefuses(idle) {
			m.settleProvisional(t)
		}
	case storeRejection:
		if !t.mysqlRefuses() {
			r := t.inMySQL()
			*r = record{reservation.Merge(reservation.Rejected, r.state), t.epoch()}
			t.then(answerRejected, "stores Redis's rejection in MySQL")
		}
	case askMySQL:
		if !t.mysqlRefuses() {
			m.mysqlDecides(t)
		}
	case mirrorGrant, mirrorRejection:
		m.mirrorDecision(t)
	case markOutcome:
		m.markDecision(t)
	case answerGranted:
		m.answer(t, reservation.Held)
	case answerRejected:
		m.answer(t, reservation.Rejected)
	default:
		panic("protocolmodel: this step belongs to another operation")
	}
}

// redisDecides is Redis's reserve script.
func (m *model) redisDecides(t turn) {
	redis, r := &t.now.redis, t.inRedis()
	if !r.known() && m.Budget.Cuts > 0 && m.has(MarksLookedUp) {
		if t.epoch() > t.now.mysql.fence.epoch && m.has(LookUpRaisesFence) {
			t.now.mysql.fence = t.router().belief
		}
		if t.now.mysql.marked[t.id()] {
			*r = *t.inMySQL()
		}
	}
	again := r.state == reservation.Provisional && (r.epoch < t.epoch())
	switch {
	case !r.known() && redis.available() > 0:
		*r = record{m.redisGrant(t.route()), t.epoch()}
		t.redisGranted("Redis grants")
	case !r.known():
		*r = record{reservation.Rejected, t.epoch()}
		t.redisRejected("Redis rejects")
	case r.state == reservation.Rejected:
		t.redisRejected("Redis replays its rejection")
	case again && m.has(DecidedAfresh) && redis.available() < 0:
		*r = record{reservation.Rejected, t.epoch()}
		t.redisRejected("Redis decides the provisional hold afresh: rejected")
	case again:
		*r = record{m.redisGrant(t.route()), t.epoch()}
		t.redisGranted("Redis decides the provisional hold afresh: granted")
	default:
		t.router().held = r.state != reservation.Provisional
		t.redisGranted("Redis replays its grant")
	}
}

// redisGrant is the state of a grant by Redis: provisional where MySQL must agree.
func (m *model) redisGrant(route reservation.Route) reservation.State {
	if route.Both && m.has(Provisional) {
		return reservation.Provisional
	}
	return reservation.Held
}

func (t *turn) redisGranted(what string) {
	if t.route().Both {
		t.then(agree, what)
		return
	}
	t.then(answerGranted, what)
}

func (t *turn) redisRejected(what string) {
	if t.route().Mirror == reservation.BeforeAnswer && t.has(StoredRejection) {
		t.then(storeRejection, what)
		return
	}
	t.then(answerRejected, what)
}

// mysqlAgrees is MySQL's half of a grant in handover.
func (m *model) mysqlAgrees(t turn) {
	r := t.inMySQL()
	if t.now.left.LostReplies > 0 {
		lost := t
		lost.now.left.LostReplies--
		m.abortHandover(lost)
	}
	switch older := t.router().held && m.has(ForcedOlderHold); {
	case older && (!r.known() || r.state == reservation.Rejected):
		*r = record{reservation.Held, t.epoch()}
		t.then(confirm, "MySQL takes the older hold by force")
	case r.state == reservation.Rejected:
		t.then(turnDown, "MySQL says no, as before")
	case r.known():
		t.then(confirm, "MySQL has it")
	case t.now.mysql.free() > 0:
		*r = record{reservation.Held, t.epoch()}
		t.then(confirm, "MySQL agrees")
	default:
		*r = record{reservation.Rejected, t.epoch()}
		t.then(turnDown, "MySQL says no")
	}
}

// abortHandover is the script that, MySQL's reply being lost, compares the epoch and sets (epoch + 1, shadow). After it
// the reserve is routed again, so that Redis decides the reservation afresh. Whether MySQL carried the write out is
// open: both are emitted.
func (m *model) abortHandover(t turn) {
	notDone := t
	if r := t.inMySQL(); !r.known() && t.now.mysql.free() > 0 {
		*r = record{reservation.Held, t.epoch()}
		m.abortScript(t)
	}
	m.abortScript(notDone)
}

func (m *model) abortScript(t turn) {
	redis := &t.now.redis
	if redis.suspect || m.has(AbortCompares) && redis.fence != t.router().belief {
		t.routeAgain("MySQL's reply is lost; the abort finds another epoch")
		return
	}
	redis.fence = t.router().belief.next(reservation.Shadow)
	t.router().belief = redis.fence
	if m.has(AbortDecides) {
		t.router().held = false
		t.then(askRedis, "MySQL's reply is lost; aborts handover and asks Redis again")
		return
	}
	if r := t.inRedis(); r.state == reservation.Provisional {
		r.state = reservation.Held
	}
	t.then(answerGranted, "MySQL's reply is lost; aborts handover and answers what Redis had said")
}

// settleProvisional is Redis's last word in handover: the provisional hold is confirmed, or turned into rejected.
func (m *model) settleProvisional(t turn) {
	r := t.inRedis()
	switch confirmed := t.router().step == confirm; {
	case r.state == reservation.Rejected:
		t.redisRejected("Redis has turned it down meanwhile")
	case confirmed:
		if r.state == reservation.Provisional {
			r.state = reservation.Held
		}
		t.then(answerGranted, "Redis confirms")
	case r.state == reservation.Provisional || r.state == reservation.Held && (!m.has(Provisional) || !m.has(ForcedOlderHold)):
		r.state = reservation.Rejected
		t.then(answerRejected, "Redis turns it down")
	default:
		t.routeAgain("finds it no longer provisional")
	}
}

// mysqlDecides is MySQL's reserve.
func (m *model) mysqlDecides(t turn) {
	if t.epoch() < t.now.mysql.fence.epoch {
		t.now.broken = i8
	}
	granted, rejected := mirrorGrant, mirrorRejection
	switch {
	case t.router().cut:
		granted, rejected = markOutcome, markOutcome
	case t.route().Mirror == reservation.Never:
		granted, rejected = answerGranted, answerRejected
	}
	switch r := t.inMySQL(); {
	case r.state == reservation.Rejected:
		t.then(rejected, "MySQL replays its rejection")
	case r.known():
		t.then(granted, "MySQL replays its grant")
	case t.now.mysql.free() > 0:
		*r = record{reservation.Held, t.epoch()}
		t.then(granted, "MySQL grants")
	default:
		*r = record{reservation.Rejected, t.epoch()}
		t.then(rejected, "MySQL rejects")
	}
}

// mirrorDecision writes MySQL's decision into Redis before the answer. Refused as stale, the new truth is asked.
func (m *model) mirrorDecision(t turn) {
	granted := t.router().step == mirrorGrant
	if granted && !m.has(MirrorFirst) {
		early := t
		m.answer(early, reservation.Held)
	}
	if granted && !m.has(AsksNewTruth) && t.epoch() < t.now.redis.fence.epoch {
		t.then(answerGranted, "is STALE at the mirror write and answers all the same")
		return
	}
	if t.redisRefuses(markOutcome) {
		return
	}
	outcome, r := reservation.Rejected, t.inRedis()
	next, what := answerRejected, "mirrors MySQL's rejection"
	if granted {
		outcome, next, what = reservation.Held, answerGranted, "mirrors MySQL's grant"
	}
	if r.state != reservation.Claiming {
		*r = record{reservation.Merge(outcome, r.state), t.epoch()}
	}
	t.then(next, what)
}

// markDecision confirms what is answered without Redis, under MySQL's fence.
func (m *model) markDecision(t turn) {
	rejected := t.inMySQL().state == reservation.Rejected
	if m.has(Marked) {
		if t.mysqlRefuses() {
			return
		}
		t.now.mysql.marked[t.id()] = true
	}
	if !rejected && t.now.redis.fence.stage.Truth() == reservation.Redis && !t.inRedis().state.Live() && m.has(Marked) && m.Budget.Cuts > 0 {
		t.caller().overbooked = true
	}
	if rejected {
		t.then(answerRejected, "marks the rejection")
		return
	}
	t.then(answerGranted, "marks the grant")
}

// answer tells the caller; in shadow the mirror hears of it after that.
func (m *model) answer(t turn, outcome reservation.State) {
	what := "answers granted"
	if outcome == reservation.Rejected {
		t.caller().rejected, what = true, "answers rejected"
	} else {
		t.caller().granted = true
	}
	if t.route().Mirror == reservation.AfterAnswer {
		t.now.queue[t.id()][0] = record{outcome, t.epoch()}
	}
	t.then(idle, what)
}
