package shadow_test

import (
	"errors"
	"testing"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

func (p *pod) restore(known ...reservation.Stamp) shadow.RestoreResult {
	p.t.Helper()
	res, err := shadow.Restore(p.t.Context(), shadow.RestoreOptions{
		Pod: p.name, Redis: p.redis, MySQL: p.mysql, Known: known, By: "test", Reason: "planted", Page: 2,
	})
	p.must(err)
	p.st = res.After.Stamp
	return res
}

// flush removes everything of the pod from Redis.
func (p *pod) flush() {
	p.t.Helper()
	keys, err := p.raw.Keys(p.t.Context(), p.key("*")).Result()
	p.must(err)
	p.must(p.raw.Del(p.t.Context(), keys...).Err())
}

func (p *pod) key(rest string) string { return "{" + p.name + "}:" + rest }

// lose takes a record out of Redis as if its write had been lost by a failover. The counters stay as they are.
func (p *pod) lose(r reservation.Record) {
	p.t.Helper()
	ctx := p.t.Context()
	p.must(p.raw.Del(ctx, p.key("res:"+r.ID.String()), p.key("key:1:"+r.Key)).Err())
	p.must(p.raw.ZRem(ctx, p.key("created"), r.ID.String()).Err())
	p.must(p.raw.ZRem(ctx, p.key("exp"), r.ID.String()).Err())
}

// I5, I7: an emptied Redis has afterwards all that MySQL knows, in a new incarnation, and what was granted can be claimed.
func TestI7RestoreOfAnEmptiedRedis(t *testing.T) {
	t.Parallel()
	for _, stage := range []reservation.Stage{reservation.Shadow, reservation.Handover, reservation.Cutover} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			p := newPod(t, reservation.Shadow, 20)
			grant, paid, gone, no := p.both(2), p.both(3), p.both(1), p.both(500)
			p.claim(p.redis, paid)
			p.mirror(p.mysql, reservation.OpRelease, reservation.ReleasedOK, p.release(p.redis, gone))
			for p.st.Stage != stage {
				f, err := p.redis.Move(t.Context(), reservation.FenceMove{From: p.st, To: p.st.Stage + 1, Audit: reservation.AuditRecord{Pod: p.name, Action: reservation.ActionFlip, By: "test"}})
				p.must(err)
				p.st = f.Stamp
			}
			_, err := p.mysql.Raise(t.Context(), p.st, nil)
			p.must(err)
			was := p.st
			p.flush()

			_, err = p.redis.Reserve(t.Context(), p.st, grant.ID, p.request("other", 1, 0))
			var fence *reservation.FenceError
			if !errors.As(err, &fence) {
				t.Fatalf("an emptied Redis serves: %v", err)
			}
			res := p.restore(was)
			if res.After.Stamp != (reservation.Stamp{Epoch: was.Epoch + 1, Stage: stage}) || res.After.IncarnationEpoch != was.Epoch+1 || res.After.Suspect {
				t.Errorf("the fence: %+v", res.After)
			}
			if res.Records != 4 || res.Stored != 4 || res.Adopted != 1 || res.Units != 2 || res.Forced != 0 || res.Failed != 0 || res.Buckets != 1 {
				t.Errorf("%+v", res)
			}
			if f, err := p.mysql.ReadFence(t.Context()); err != nil || f.Stamp != p.st {
				t.Errorf("MySQL's fence: %+v, %v", f, err)
			}
			p.states("the grant", grant.ID, held, held)
			p.states("the claim", paid.ID, claimed, claimed)
			p.states("the release", gone.ID, released, released)
			p.states("the rejection", no.ID, rejected, rejected)
			p.settled()
			if r := p.run(p.catchUp()); r.Total() != 0 || len(r.Left) != 0 {
				t.Errorf("catch-up still finds %+v", r)
			}
			p.claim(p.redis, grant)
			p.states("the grant, claimed", grant.ID, claimed, claimed)
			p.settled()
		})
	}
}

// A promoted replica lacks the last writes: a mirrored hold is adopted, a claim and a release are made up for, what only
// Redis knows stays; what it gave away twice is counted.
func TestRestoreOfARedisThatLostItsLastWrites(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 5)
	lost, paid, gone := p.both(2), p.both(1), p.both(1)
	p.claim(p.redis, paid)
	p.mirror(p.mysql, reservation.OpRelease, reservation.ReleasedOK, p.release(p.redis, gone))
	// The replica still holds what was released and claimed, with the counters of then, and never had the lost one.
	p.lose(lost)
	for _, r := range []reservation.Record{paid, gone} {
		p.must(p.raw.HSet(t.Context(), p.key("res:"+r.ID.String()), "state", "held").Err())
	}
	for kind, n := range map[string]int{"avail": 3, "held": 2, "onhand": 5, "ver": 1} {
		p.must(p.raw.Set(t.Context(), p.key(kind+":"+bucket().String()), n, 0).Err())
	}
	only := p.reserve(p.redis, 2) // granted by the promoted one before anybody noticed
	p.must(p.raw.HSet(t.Context(), p.key("fence"), "suspect", "1").Err())

	res := p.restore()
	if res.Adopted != 1 || res.Units != 2 || res.Failed != 0 || len(res.Unknown) == 0 {
		t.Errorf("%+v", res)
	}
	p.states("the lost hold", lost.ID, held, held)
	p.states("the claim", paid.ID, claimed, claimed)
	p.states("the release", gone.ID, released, released)
	p.states("what only Redis has", only.ID, held, 0)
	a, err := p.redis.Availability(t.Context(), bucket())
	if err != nil || a.OnHand != 4 || a.Held != 4 || a.Available != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if r := p.run(p.catchUp()); r.Total() != 1 || r.Repaired["lost"] != 1 {
		t.Errorf("catch-up brings what only Redis had to MySQL: %+v", r)
	}
	p.settled()
	if again := p.restoreError(); !errors.Is(again, reservation.ErrHealthy) {
		t.Errorf("a healthy Redis: %v", again)
	}
}

func (p *pod) restoreError() error {
	_, err := shadow.Restore(p.t.Context(), shadow.RestoreOptions{Pod: p.name, Redis: p.redis, MySQL: p.mysql, By: "test"})
	return err
}

// A hold that reached MySQL after the restore has read it: its epoch is older than the incarnation, so Redis may have
// lost it, and catch-up adopts it.
func TestI7HoldOlderThanTheIncarnationIsAdopted(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 5)
	late := p.reserve(p.redis, 2)
	was := p.st
	p.flush()
	p.restore(was)
	p.states("before", late.ID, 0, 0)
	old := p.st
	old.Epoch-- // its mirror write had passed MySQL's fence just before that was raised
	p.exec("UPDATE pod_fence SET epoch = ?", old.Epoch)
	_, err := p.mysql.Mirror(t.Context(), old, reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.Granted, Record: late})
	p.must(err)
	if s := p.survey(p.catchUp()); s.Unconfirmed.Reservations != 1 {
		t.Errorf("%+v", s)
	}
	if r := p.run(p.catchUp()); r.Repaired["adopted"] != 1 || r.Total() != 1 {
		t.Errorf("%+v", r)
	}
	p.states("after", late.ID, held, held)
	p.settled()
}

// Out of complete: Redis is wiped and rebuilt under the stamp that MySQL has already, and running it again changes nothing.
func TestReseedOnRealServers(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Complete, 10)
	grant, paid := p.reserve(p.mysql, 2), p.reserve(p.mysql, 1)
	_, err := p.mysql.Claim(t.Context(), p.st, shop, paid.ID)
	p.must(err)
	to := reservation.Stamp{Epoch: p.st.Epoch + 1, Stage: reservation.Cutover}
	_, err = p.mysql.Raise(t.Context(), to, nil)
	p.must(err)
	for range 2 {
		res, err := shadow.Restore(t.Context(), shadow.RestoreOptions{Pod: p.name, Redis: p.redis, MySQL: p.mysql, Wipe: true, To: to, By: "test"})
		p.must(err)
		if res.After.Stamp != to {
			t.Errorf("%+v", res.After)
		}
	}
	p.st = to
	p.states("the grant", grant.ID, held, held)
	p.states("the claim", paid.ID, claimed, claimed)
	p.settled()
	if r := p.run(p.catchUp()); r.Total() != 0 || len(r.Left) != 0 {
		t.Errorf("%+v", r)
	}
}
