package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// step is where a router stands in its operation: the write that it sends next, or the answer.
type step uint8

const (
	idle step = iota
	askRedis
	agree
	confirm
	turnDown
	storeRejection
	askMySQL
	mirrorGrant
	mirrorRejection
	markOutcome
	answerGranted
	answerRejected

	releaseRedis
	releaseMirror
	releaseMySQL
	mirrorRelease
	answerReleased

	pin
	lowerLedger
	answerClaimed
	finish
	unpin
)

// turn is one step of one router: now is the world after it.
type turn struct {
	*model
	now state
	who uint8
}

func (t *turn) router() *router { return &t.now.routers[t.who] }
func (t *turn) id() uint8       { return t.router().id }

func (t *turn) inRedis() *record         { return &t.now.redis.records[t.id()] }
func (t *turn) inMySQL() *record         { return &t.now.mysql.records[t.id()] }
func (t *turn) caller() *caller          { return &t.now.callers[t.id()] }
func (t *turn) epoch() uint8             { return t.router().belief.epoch }
func (t *turn) truth() reservation.Truth { return t.route().Decides }

func (t *turn) route() reservation.Route {
	r := t.router()
	return r.belief.stage.Route(r.op)
}

// then ends the step: the router stands at next.
func (t *turn) then(next step, what string) {
	id := t.id()
	t.router().step = next
	if next == idle {
		t.router().rest()
	}
	t.emit(t.now, event{actor([]string{"router A", "router B"}[t.who]), id, what})
}

// routers emits what one router can do next.
func (m *model) routers(s state, who uint8) {
	t := turn{m, s, who}
	if t.router().step == idle {
		m.begin(t)
		return
	}
	if s.left.Crashes > 0 {
		crash := t
		crash.now.left.Crashes--
		crash.then(idle, "crashes, or its caller is told unavailable")
	}
	switch {
	case t.router().step <= answerRejected:
		m.reserve(t)
	case t.router().step <= answerReleased:
		m.release(t)
	default:
		m.claim(t)
	}
}

// begin emits the operations that an idle router may take, and its poll of the fence.
func (m *model) begin(t turn) {
	if b := t.loaded(); b != t.router().belief {
		poll := t
		poll.router().belief = b
		poll.then(idle, "reads the fence")
	}
	for id := range m.Requests {
		take := t
		r, c := take.router(), &take.now.callers[id]
		r.id = id
		if c.reserves > 0 {
			take := take
			take.now.callers[id].reserves--
			take.take(reservation.OpReserve, "takes a reserve as "+r.belief.stage.String())
		}
		if c.claims > 0 && c.granted && !c.releaseAsked {
			take := take
			take.now.callers[id].claims--
			take.take(reservation.OpClaim, "takes a claim as "+r.belief.stage.String())
		}
		if c.releases > 0 && c.granted {
			take := take
			take.now.callers[id].releases--
			take.now.callers[id].releaseAsked = true
			take.take(reservation.OpRelease, "takes a release as "+r.belief.stage.String())
		}
	}
}

func (t *turn) take(op reservation.Op, what string) {
	t.router().op = op
	t.then(t.firstStep(), what)
}

// firstStep is where an operation begins in the stage that the router believes.
func (t *turn) firstStep() step {
	route := t.route()
	redis := route.Decides == reservation.Redis
	switch t.router().op {
	case reservation.OpReserve:
		if redis {
			return askRedis
		}
		return askMySQL
	case reservation.OpRelease:
		if redis {
			return releaseRedis
		}
		return releaseMySQL
	default:
		if route.Mirror == reservation.Within && t.has(Pin) {
			return pin
		}
		return lowerLedger
	}
}

// loaded is what the router believes once it has read both fences: the highest epoch that it knows of.
func (t *turn) loaded() stamp {
	b := t.router().belief
	if f := t.now.mysql.fence; f.epoch > b.epoch {
		b = f
	}
	if f := t.now.redis.fence; f.epoch >= b.epoch && !t.router().cut {
		b = f
	}
	return b
}

// routeAgain starts the operation anew under the fence, with the same id.
func (t *turn) routeAgain(what string) {
	if t.router().cut {
		t.then(idle, what+", and cannot ask Redis: unavailable")
		return
	}
	t.router().belief = t.loaded()
	t.router().held = false
	t.then(t.firstStep(), what+", routes again as "+t.router().belief.stage.String())
}

// redisRefuses tells whether Redis refuses a script of this router, and if so emits what the router does then:
// STALE routes again; REGRESSED, or a Redis out of reach, is unavailable, or in cutover goes on at cut.
func (t turn) redisRefuses(cut step) bool {
	if t.now.left.Cuts > 0 && t.truth() == reservation.MySQL {
		alone := t
		alone.now.left.Cuts--
		alone.router().cut = true
		alone.then(cut, "cannot reach Redis and goes on with MySQL")
	}
	b, f := t.router().belief, t.now.redis.fence
	switch suspect := t.now.redis.suspect && t.has(Suspect); {
	case !suspect && (b == f || !t.has(RedisFence)):
		return false
	case !suspect && b.epoch < f.epoch:
		t.routeAgain("is STALE in Redis")
	case t.truth() == reservation.MySQL:
		t.router().cut = true
		t.then(cut, "finds Redis REGRESSED and goes on with MySQL")
	default:
		t.then(idle, "finds Redis REGRESSED: unavailable")
	}
	return true
}

// mysqlRefuses tells whether MySQL's fence refuses a write of this router, which then routes again. A fence that is
// older than the router's is raised first.
func (t *turn) mysqlRefuses() bool {
	b, f := t.router().belief, &t.now.mysql.fence
	if b.epoch < f.epoch && t.has(MySQLFence) {
		t.routeAgain("is STALE in MySQL")
		return true
	}
	if b.epoch > f.epoch {
		*f = b
	}
	return false
}
