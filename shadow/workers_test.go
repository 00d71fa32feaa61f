package shadow_test

import (
	"sync"
	"testing"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// I2, I4, I5: two workers at once do no harm: what was wrong is mended once, whoever was first.
func TestTwoWorkersAtOnceDoNoHarm(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 1000)
	const each = 30
	for range each {
		p.reserve(p.redis, 1)                     // lost
		p.release(p.redis, p.both(2))             // leaked
		p.reserve(p.redis, 5000)                  // a missing rejection
		p.claim(p.redis, p.both(1))               // as it should be
		p.release(p.redis, p.reserve(p.redis, 1)) // a missing end
	}
	const workers = 3
	rounds := make([]shadow.Round, workers)
	var all sync.WaitGroup
	for n := range workers {
		c := p.catchUp() // of its own: nothing but the stores is shared
		all.Go(func() {
			var err error
			if rounds[n], err = c.Run(t.Context(), p.fence()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	repaired := map[string]int{}
	for _, r := range rounds {
		for was, n := range r.Repaired {
			repaired[was] += n
		}
	}
	if repaired["lost"] != each || repaired["leaked"] != each || repaired["missing"] != 2*each || len(repaired) != 3 {
		t.Errorf("repaired %v", repaired)
	}
	if r := p.run(p.catchUp()); r.Total() != 0 || len(r.Left) != 0 {
		t.Errorf("the next round: %+v", r)
	}
	p.settled()
}

// Backfill: what was there before shadow began is brought over, holds and ends alike, and can be claimed afterwards.
func TestI7HoldsFromBeforeShadowAreBroughtOver(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Legacy, 100)
	hold, paid, gone := p.reserve(p.redis, 3), p.reserve(p.redis, 2), p.reserve(p.redis, 1)
	no := p.reserve(p.redis, 5000)
	p.claim(p.redis, paid)
	p.release(p.redis, gone)
	p.states("before", hold.ID, held, 0)
	if r := p.run(p.catchUp()); r.Walked != 0 {
		t.Errorf("in legacy there is nothing to bring over: %+v", r)
	}
	f, err := p.redis.Move(t.Context(), reservation.FenceMove{From: p.st, To: reservation.Shadow, Audit: reservation.AuditRecord{Pod: p.name, Action: reservation.ActionFlip, By: "test"}})
	p.must(err)
	p.st = f.Stamp
	_, err = p.mysql.Raise(t.Context(), p.st, nil)
	p.must(err)
	fresh := p.both(1)
	c := p.catchUp()
	if s := p.survey(c); s.Missing.Reservations != 1 || s.Missing.Units != 3 {
		t.Errorf("surveyed: %+v", s)
	}
	if r := p.run(c); r.Repaired["lost"] != 1 || len(r.Left) != 0 {
		t.Errorf("%+v", r)
	}
	p.states("the hold", hold.ID, held, held)
	p.states("the release", gone.ID, released, released)
	p.states("the rejection", no.ID, rejected, rejected)
	p.states("the claim", paid.ID, claimed, claimed)
	p.states("the fresh one", fresh.ID, held, held)
	if r := p.run(c); r.Total() != 0 || len(r.Left) != 0 {
		t.Errorf("the next round: %+v", r)
	}
	p.settled()
	p.claim(p.redis, hold)
	p.states("the hold, claimed", hold.ID, claimed, claimed)
	p.settled()
}
