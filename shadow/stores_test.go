package shadow_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/invariant"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

const (
	held, rejected, released, claimed, expired = reservation.Held, reservation.Rejected, reservation.Released, reservation.Claimed, reservation.Expired
	shop                                       = 1
)

// pod is both stores of a pod on real servers, and words to speak with.
type pod struct {
	t     *testing.T
	name  string
	dsn   string
	redis *legacyredis.Store
	mysql *mysqlstore.Store
	raw   *redis.Client // for looking and for breaking things
	st    reservation.Stamp
	n     atomic.Int64
}

func newPod(t *testing.T, stage reservation.Stage, stock int64) *pod {
	t.Helper()
	p := &pod{t: t, name: devtest.Pod(t), dsn: devtest.Schema(t), st: reservation.Stamp{Epoch: 7, Stage: stage}}
	ctx := t.Context()
	if err := mysqlstore.Migrate(ctx, p.dsn); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.mysql, err = mysqlstore.Open(ctx, mysqlstore.Options{DSN: p.dsn, Pod: p.name, WriteTimeout: 3 * time.Second, LockWait: 2 * time.Second, MaxOpenConns: 8}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.mysql.Close() })
	client, err := legacyredis.NewClient(devtest.RedisURL(t), p.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	p.raw = redis.NewClient(&redis.Options{Addr: devtest.Redis(t).Addr()})
	t.Cleanup(func() { _ = p.raw.Close() })
	if p.redis, err = legacyredis.New(legacyredis.Options{Pod: p.name, Client: client, Ledger: p.mysql}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = p.redis.Close(ctx)
	})
	for _, f := range []reservation.Fencer{p.redis, p.mysql} {
		if _, err := f.InitFence(ctx, p.st); err != nil {
			t.Fatal(err)
		}
	}
	figs, _, err := p.mysql.Stock(ctx, p.st, []reservation.Stocking{{Bucket: bucket(), Quantity: stock}})
	if err == nil {
		_, err = p.redis.ApplyFigures(ctx, p.st, figs, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func bucket() reservation.Bucket { return reservation.Bucket{Shop: shop, Item: 1, Group: 1} }

func (p *pod) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) request(key string, quantity int64, ttl time.Duration) reservation.Request {
	p.t.Helper()
	req, err := reservation.NewRequest(shop, key, []reservation.Line{{Item: 1, Group: 1, Quantity: quantity}}, ttl,
		reservation.Limits{DefaultTTL: time.Minute, MaxTTL: 2 * time.Hour})
	p.must(err)
	return req
}

// reserve asks one store alone.
func (p *pod) reserve(in reservation.Store, quantity int64) reservation.Record {
	p.t.Helper()
	return p.reserveKey(in, fmt.Sprintf("k-%d", p.n.Add(1)), quantity)
}

func (p *pod) reserveKey(in reservation.Store, key string, quantity int64) reservation.Record {
	p.t.Helper()
	id, err := reservation.NewID()
	p.must(err)
	res, err := in.Reserve(p.t.Context(), p.st, id, p.request(key, quantity, time.Hour))
	p.must(err)
	return res.Record
}

func (p *pod) release(in reservation.Store, r reservation.Record) reservation.Record {
	p.t.Helper()
	res, err := in.Release(p.t.Context(), p.st, shop, r.ID)
	p.must(err)
	return res.Record
}

func (p *pod) claim(in reservation.Store, r reservation.Record) reservation.Record {
	p.t.Helper()
	res, err := in.Claim(p.t.Context(), p.st, shop, r.ID)
	p.must(err)
	p.must(p.redis.Flush(p.t.Context()))
	return res.Record
}

// mirror writes a record of one store into the other.
func (p *pod) mirror(to reservation.Mirror, op reservation.Op, d reservation.Decision, r reservation.Record) {
	p.t.Helper()
	_, err := to.Mirror(p.t.Context(), p.st, reservation.MirrorOp{Op: op, Decision: d, Record: r})
	p.must(err)
}

// both reserves in Redis and lets MySQL follow.
func (p *pod) both(quantity int64) reservation.Record {
	p.t.Helper()
	r := p.reserve(p.redis, quantity)
	p.mirror(p.mysql, reservation.OpReserve, r.Outcome, r)
	return r
}

func (p *pod) catchUp(change ...func(*shadow.CatchUpOptions)) *shadow.CatchUp {
	p.t.Helper()
	o := shadow.CatchUpOptions{Pod: p.name, Redis: p.redis, MySQL: p.mysql, Page: 3}
	for _, f := range change {
		f(&o)
	}
	c, err := shadow.NewCatchUp(o)
	p.must(err)
	return c
}

func (p *pod) fence() reservation.Fence {
	p.t.Helper()
	f, err := p.redis.ReadFence(p.t.Context())
	p.must(err)
	return f
}

// run is one round, which must not fail.
func (p *pod) run(c *shadow.CatchUp) shadow.Round {
	p.t.Helper()
	r, err := c.Run(p.t.Context(), p.fence())
	p.must(err)
	return r
}

func (p *pod) survey(c *shadow.CatchUp) shadow.Survey {
	p.t.Helper()
	f, err := p.mysql.ReadFence(p.t.Context())
	p.must(err)
	s, err := c.Survey(p.t.Context(), p.fence(), f)
	p.must(err)
	return s
}

// states checks what both stores have of a reservation; zero: nothing.
func (p *pod) states(what string, id reservation.ID, redis, mysql reservation.State) {
	p.t.Helper()
	for _, c := range []struct {
		in interface {
			Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error)
		}
		name string
		want reservation.State
	}{{p.redis, "Redis", redis}, {p.mysql, "MySQL", mysql}} {
		r, err := c.in.Get(p.t.Context(), shop, id)
		if err != nil && !errors.Is(err, reservation.ErrNotFound) {
			p.t.Fatal(err)
		}
		if r.State != c.want {
			p.t.Errorf("%s: %s has %s, want %s", what, c.name, r.State, c.want)
		}
	}
}

// settled checks I1 to I6 on both stores at rest.
func (p *pod) settled() {
	p.t.Helper()
	r, err := p.redis.Inspect(p.t.Context())
	p.must(err)
	q, err := p.mysql.Inspect(p.t.Context())
	p.must(err)
	report := invariant.Check(&r, &q, invariant.Options{Settled: true, Now: time.Now()})
	if !report.OK() || len(r.Orphans) > 0 || len(q.Orphans) > 0 {
		p.t.Errorf("%s\norphans: %v %v", report.String(), r.Orphans, q.Orphans)
	}
}

// I5: three planted faults give exactly three repairs, and the next round none.
func TestI5ThreePlantedFaultsGiveThreeRepairs(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 10)
	for range 4 {
		p.both(1)
	}
	p.claim(p.redis, p.both(1))
	lost := p.reserve(p.redis, 1)
	leaked := p.both(2)
	p.release(p.redis, leaked)
	missing := p.reserve(p.redis, 50)
	c := p.catchUp()
	if s := p.survey(c); s.Missing.Reservations != 1 || s.Missing.Units != 1 || s.Missing.DrainsInS < 3000 || s.Differing != 2 || s.Debt() != s.Missing {
		t.Errorf("surveyed before: %+v", s)
	}
	r := p.run(c)
	if r.Total() != 3 || r.Repaired["lost"] != 1 || r.Repaired["leaked"] != 1 || r.Repaired["missing"] != 1 || len(r.Left) != 0 || len(r.Repairs) != 3 {
		t.Errorf("%+v", r)
	}
	p.states("the lost hold", lost.ID, held, held)
	p.states("the leaked hold", leaked.ID, released, released)
	p.states("the missing rejection", missing.ID, rejected, rejected)
	if again := p.run(c); again.Total() != 0 || len(again.Left) != 0 || again.Walked != r.Walked {
		t.Errorf("the next round: %+v", again)
	}
	if s := p.survey(c); s.Debt().Reservations != 0 || s.Differing != 0 || s.Lagging != 0 {
		t.Errorf("surveyed after: %+v", s)
	}
	p.settled()
}

// A healthy flow sees no repair: what is not in the mirror yet is younger than the settle time.
func TestHealthyFlowSeesNoRepair(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 1000)
	q, err := shadow.New(shadow.Options{Pod: p.name, Mirror: shadow.Either{Redis: p.redis, MySQL: p.mysql}})
	p.must(err)
	carry := func(op reservation.Op, d reservation.Decision, r reservation.Record) {
		q.Offer(shadow.Job{Stamp: p.st, Op: reservation.MirrorOp{Op: op, Decision: d, Record: r}, Done: func(_ reservation.Judgement, err error) {
			if err != nil {
				t.Error(err)
			}
		}})
	}
	c := p.catchUp(func(o *shadow.CatchUpOptions) { o.Settle = time.Minute })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 60 {
			r := p.reserve(p.redis, 1)
			carry(reservation.OpReserve, r.Outcome, r)
			switch i % 3 {
			case 1:
				carry(reservation.OpRelease, reservation.ReleasedOK, p.release(p.redis, r))
			case 2:
				if _, err := p.redis.Claim(t.Context(), p.st, shop, r.ID); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if r := p.run(c); r.Total() != 0 || len(r.Left) != 0 || r.Unconfirmed != 0 {
			t.Errorf("%+v", r)
		}
	}
	p.must(q.Close(t.Context()))
	p.must(p.redis.Flush(t.Context()))
	rest := p.catchUp(func(o *shadow.CatchUpOptions) { o.AtRest = true })
	if r := p.run(rest); r.Total() != 0 || len(r.Left) != 0 || r.Walked != 60 {
		t.Errorf("at rest: %+v", r)
	}
	p.settled()
}

// cut lets a router that has lost Redis answer: a grant, a rejection, a release, a claim, each marked.
func (p *pod) cut() (grant, no, gone, paid reservation.Record) {
	p.t.Helper()
	cut := p.mysql.Cut()
	gone, paid = p.reserve(p.mysql, 1), p.reserve(p.mysql, 2)
	for _, r := range []reservation.Record{gone, paid} {
		p.mirror(p.redis, reservation.OpReserve, r.Outcome, r)
	}
	grant, no = p.reserve(cut, 3), p.reserve(cut, 500)
	p.release(cut, gone)
	_, err := cut.Claim(p.t.Context(), p.st, shop, paid.ID)
	p.must(err)
	return grant, no, gone, paid
}

// I7: what was answered without Redis is in Redis once the marks are drained, in cutover and after a kill, and a
// grant can be claimed there.
func TestI7MarksAreDrained(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			t.Parallel()
			p := newPod(t, reservation.Cutover, 10)
			grant, no, gone, paid := p.cut()
			c := p.catchUp()
			if s := p.survey(c); s.Marks != 4 || s.Marked.Reservations != 1 || s.Marked.Units != 3 || s.Unconfirmed.Reservations != 0 || s.Differing != 3 {
				t.Errorf("surveyed before: %+v", s)
			}
			if killed {
				f, err := p.redis.Kill(t.Context(), reservation.AuditRecord{Pod: p.name, By: "test", Reason: "planted"})
				p.must(err)
				p.st = f.Stamp
			}
			r, err := c.DrainMarks(t.Context(), p.fence())
			p.must(err)
			if r.Drained != 4 || r.Walked != 4 || r.Repaired["adopted"] != 1 || r.Total() != 4 || len(r.Left) != 0 {
				t.Errorf("%+v", r)
			}
			p.states("the grant", grant.ID, held, held)
			p.states("the rejection", no.ID, rejected, rejected)
			p.states("the release", gone.ID, released, released)
			p.states("the claim", paid.ID, claimed, claimed)
			if _, marks, err := p.mysql.MarksDebt(t.Context()); err != nil || marks != 0 {
				t.Errorf("%d marks are left, %v", marks, err)
			}
			if again, err := c.DrainMarks(t.Context(), p.fence()); err != nil || again.Walked != 0 {
				t.Errorf("again: %+v, %v", again, err)
			}
			p.claim(p.redis, grant)
			p.states("the grant, claimed", grant.ID, claimed, claimed)
			p.settled()
		})
	}
}

// A key that Redis gave to another id meanwhile: the marked hold keeps its promise, and the truth's keeps the key.
func TestMarkedHoldWhoseKeyRedisGaveAway(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Cutover, 10)
	marked := p.reserveKey(p.mysql.Cut(), "k", 1)
	f, err := p.redis.Kill(t.Context(), reservation.AuditRecord{Pod: p.name, By: "test", Reason: "planted"})
	p.must(err)
	p.st = f.Stamp
	other := p.reserveKey(p.redis, "k", 1)
	c := p.catchUp()
	for range 2 { // the mark stays while MySQL does not know who has the key
		r, err := c.DrainMarks(t.Context(), p.fence())
		if err != nil || r.Drained != 0 || len(r.Left) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		p.states("the marked hold", marked.ID, held, held)
	}
	if r := p.run(c); r.Total() != 1 || len(r.Left) != 0 || r.Drained != 0 {
		t.Errorf("brings the other: %+v", r)
	}
	if r := p.run(c); r.Total() != 0 || len(r.Left) != 0 || r.Drained != 1 {
		t.Errorf("the next round: %+v", r)
	}
	p.states("the marked hold", marked.ID, held, held)
	p.states("the other", other.ID, held, held)
	if again := p.reserveKey(p.redis, "k", 1); again.ID != other.ID {
		t.Errorf("the key leads to %s in Redis", again.ID)
	}
	p.settled()
}

// meanwhile is a store in which something happens between catch-up's look and its write.
type meanwhile struct {
	*mysqlstore.Store
	do func()
}

func (m *meanwhile) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	if m.do != nil {
		do := m.do
		m.do = nil
		do()
	}
	return m.Store.Mirror(ctx, st, op)
}

func TestCatchUpLosesToAConcurrentChange(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 10)
	r := p.reserve(p.redis, 1)
	sql := &meanwhile{Store: p.mysql, do: func() {
		gone := p.release(p.redis, r)
		p.mirror(p.mysql, reservation.OpRelease, reservation.ReleasedOK, gone)
	}}
	round := p.run(p.catchUp(func(o *shadow.CatchUpOptions) { o.MySQL = sql }))
	if round.Total() != 0 || len(round.Left) != 1 || !strings.Contains(round.Left[0], "changed meanwhile") {
		t.Errorf("%+v", round)
	}
	p.states("the release", r.ID, released, released)
	p.settled()
}

// A round whose fence has moved ends with that, and writes nothing more.
func TestFenceEndsTheRound(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Cutover, 10)
	grant, _, _, _ := p.cut()
	old := p.fence()
	_, err := p.redis.Kill(t.Context(), reservation.AuditRecord{Pod: p.name, By: "test", Reason: "planted"})
	p.must(err)
	var fence *reservation.FenceError
	if _, err := p.catchUp().Run(t.Context(), old); !errors.As(err, &fence) || fence.Verdict != reservation.Stale {
		t.Errorf("%v", err)
	}
	p.states("the grant", grant.ID, 0, held)
}

// A ledger change that was lost on its way to Redis is brought over once it is seen not to move; at rest at once.
func TestLostLedgerChange(t *testing.T) {
	t.Parallel()
	for _, rest := range []bool{false, true} {
		p := newPod(t, reservation.Shadow, 10)
		_, err := p.mysql.ApplyAdjustment(t.Context(), p.st, reservation.Adjustment{ID: "a", Bucket: bucket(), Delta: 5}, false)
		p.must(err)
		c := p.catchUp(func(o *shadow.CatchUpOptions) { o.AtRest = rest })
		if s := p.survey(c); s.Lagging != 1 {
			t.Errorf("surveyed: %+v", s)
		}
		first, second := p.run(c).Figures, p.run(c).Figures
		if rest && (first != 1 || second != 0) || !rest && (first != 0 || second != 1) {
			t.Errorf("at rest %v: %d figures, then %d", rest, first, second)
		}
		p.settled()
	}
}

// The gate of cutover waits for the older records, and passes once catch-up has been there.
func TestGateOfCutover(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 10)
	p.both(1)
	p.reserve(p.redis, 1)
	gone := p.both(1)
	p.release(p.redis, gone)
	p.reserve(p.redis, 500)
	lonely := p.reserve(p.mysql, 1) // held by MySQL alone: nobody was answered
	c := p.catchUp()
	f, err := p.redis.Move(t.Context(), reservation.FenceMove{From: p.st, To: reservation.Handover, Audit: reservation.AuditRecord{Pod: p.name, Action: reservation.ActionFlip, By: "test"}})
	p.must(err)
	s := p.survey(c)
	if ok, why := s.ReadyForCutover(); ok || len(why) != 3 || s.Older != (shadow.Older{Live: 3, Unconfirmed: 1, Final: 2}) {
		t.Errorf("%q, %+v", why, s)
	}
	_, err = p.mysql.Raise(t.Context(), f.Stamp, nil)
	p.must(err)
	p.st = f.Stamp
	fresh := p.reserve(p.redis, 1) // of this epoch: provisional, and none of the gate's business
	if r := p.run(c); r.Total() != 3 || r.Unconfirmed != 1 {
		t.Errorf("%+v", r)
	}
	p.states("the fresh one", fresh.ID, reservation.Provisional, 0)
	s = p.survey(c)
	if ok, why := s.ReadyForCutover(); ok || len(why) != 1 || s.Older != (shadow.Older{Live: 1, Unconfirmed: 1}) || s.Unconfirmed.Reservations != 1 {
		t.Errorf("%q, %+v", why, s)
	}
	p.expire(lonely) // its time runs out, and MySQL's sweeper or catch-up ends it
	if s = p.survey(c); len(s.Examples[shadow.KindOlderLive]) != 1 {
		t.Errorf("%+v", s)
	}
	p.sweepMySQL(lonely)
	if ok, why := p.survey(c).ReadyForCutover(); !ok {
		t.Errorf("%q", why)
	}
}

// expire lets a MySQL record's time run out, and its grace.
func (p *pod) expire(r reservation.Record) {
	p.t.Helper()
	p.exec("UPDATE reservations SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 2 HOUR WHERE id = ?", r.ID[:])
}

func (p *pod) sweepMySQL(r reservation.Record) {
	p.t.Helper()
	r.State, r.ExpiredAt = expired, time.Now().UTC().Truncate(time.Microsecond)
	p.mirror(p.mysql, reservation.OpExpire, reservation.ExpiredOK, r)
}

func (p *pod) exec(query string, args ...any) {
	p.t.Helper()
	db, err := sql.Open("mysql", p.dsn)
	p.must(err)
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(p.t.Context(), query, args...)
	p.must(err)
}

// A bucket that has promised more than it holds is named.
func TestSurveyNamesShortBuckets(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 2)
	p.both(2)
	forced := p.reserve(p.redis, 1)
	forced.State, forced.Outcome, forced.Shortages = held, reservation.Granted, nil
	p.mirror(p.mysql, reservation.OpReserve, reservation.Granted, forced)
	s := p.survey(p.catchUp())
	if s.ShortBuckets != 1 || len(s.Short) != 1 || s.Short[0] != bucket() {
		t.Errorf("%+v", s)
	}
}
