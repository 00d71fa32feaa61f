package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// release is one step of a release.
func (m *model) release(t turn) {
	switch t.router().step {
	case releaseRedis:
		if t.redisRefuses(idle) {
			return
		}
		if !m.released(t.inRedis(), *t.inMySQL()) {
			t.then(idle, "Redis: busy or conflict")
			return
		}
		if t.route().Mirror == reservation.BeforeAnswer {
			t.then(releaseMirror, "Redis releases")
			return
		}
		t.then(answerReleased, "Redis releases")
	case releaseMySQL, releaseMirror:
		if t.mysqlRefuses() {
			return
		}
		if decides := t.router().step == releaseMySQL; decides {
			m.mysqlReleases(t)
			return
		}
		if r := t.inMySQL(); r.state != reservation.Released {
			*r = record{reservation.Merge(reservation.Released, r.state), t.epoch()}
		}
		t.then(answerReleased, "MySQL releases too")
	case mirrorRelease:
		if t.redisRefuses(answerReleased) {
			return
		}
		if r := t.inRedis(); r.state != reservation.Claiming || !m.has(PinStopsRelease) {
			*r = record{reservation.Merge(reservation.Released, r.state), t.epoch()}
		}
		t.then(answerReleased, "mirrors the release")
	case answerReleased:
		t.caller().released = true
		if t.route().Mirror == reservation.AfterAnswer {
			t.now.queue[t.id()][1] = record{reservation.Released, t.epoch()}
		}
		t.then(idle, "answers released")
	default:
		panic("protocolmodel: this step belongs to another operation")
	}
}

func (m *model) mysqlReleases(t turn) {
	if !t.inMySQL().known() && t.route().Mirror != reservation.Never {
		m.releaseNotFound(t)
		return
	}
	switch {
	case !m.released(t.inMySQL(), *t.inRedis()):
		t.then(idle, "MySQL: conflict")
	case t.router().cut:
		t.now.mysql.marked[t.id()] = true
		t.then(answerReleased, "MySQL releases, marked")
	case t.route().Mirror == reservation.Never:
		t.then(answerReleased, "MySQL releases")
	default:
		t.then(mirrorRelease, "MySQL releases")
	}
}

// releaseNotFound: MySQL does not know what it is asked to release. A yes passes Redis before it is answered; a no is
// believed only once Redis's fence was read.
func (m *model) releaseNotFound(t turn) {
	if t.router().cut {
		t.then(idle, "cannot ask Redis for what MySQL does not know: unavailable")
		return
	}
	if m.has(NoUnderFence) && t.redisRefuses(idle) {
		return
	}
	if c := t.caller(); c.granted && c.clock == live && !c.claimed && !c.released && !c.outcomeLost && !c.overbooked {
		t.now.broken = i7
	}
	t.then(idle, "answers not found")
}

// released releases r where its state allows it; one that the store does not know is taken from the other.
func (m *model) released(r *record, other record) bool {
	if !r.known() {
		r.state, r.epoch = other.state, other.epoch
	}
	switch r.state {
	case reservation.Claiming:
		if m.has(PinStopsRelease) {
			return false
		}
		r.state = reservation.Released
	case reservation.Expired:
		if m.has(ExpiredBecomesReleased) {
			r.state = reservation.Released
		}
	case reservation.Held, reservation.Released, reservation.Provisional:
		r.state = reservation.Released
	default:
		return false
	}
	return true
}
