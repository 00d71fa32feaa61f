package killswitch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/reservation"
)

// statusWait bounds what a status waits for each store, surveyWait for the survey of both: it has to work at 3 a.m.
// with one of them hung.
const (
	statusWait = time.Second
	surveyWait = time.Second
	fullWait   = 10 * time.Minute
)

// Status shows the pod as it is. It changes nothing and never fails: what could not be found out within about two
// seconds is null, and HeldBecause says why. With full, the survey of both stores may take minutes.
func (c *Control) Status(ctx context.Context, full bool) Status {
	v := c.look(ctx, statusWait)
	if len(v.redis.FrozenBuckets)+len(v.mysql.FrozenBuckets) > 0 {
		v.why = c.whyFrozen(ctx)
	}
	s := Status{
		Pod: c.opt.Pod, MaxStage: c.opt.MaxStage.String(), HeldBecause: []string{},
		Breaker: "unknown", Redis: storeStatus(v.redis, v.redisErr), MySQL: storeStatus(v.mysql, v.mysqlErr),
		CatchUp: v.rounds,
	}
	if c.opt.Declared.Valid() {
		s.Declared = c.opt.Declared.String()
	}
	if v.marksErr == nil {
		s.Marks = &v.marks
	}
	s.fence(v)
	s.routers(v)
	s.held(v, c.opt.MaxStage)
	c.debtNow(ctx, &s, v, full)
	return s
}

func storeStatus(f reservation.Fence, err error) StoreStatus {
	switch {
	case err != nil:
		return StoreStatus{Error: err.Error()}
	case f.Epoch == 0:
		return StoreStatus{Epoch: &f.Epoch}
	default:
		stage := f.Stage.String()
		return StoreStatus{Epoch: &f.Epoch, Stage: &stage}
	}
}

// fence fills in what the fences say: Redis's, but where only MySQL's is there or nobody keeps Redis's.
func (s *Status) fence(v view) {
	f := v.redis
	leaves := v.mysqlErr == nil && (v.mysql.Stage == reservation.Complete && !v.behind() || v.mysql.Epoch > v.redis.Epoch)
	if v.redisErr != nil || leaves {
		f = v.mysql
	}
	if v.redisErr == nil || v.mysqlErr == nil {
		s.Epoch = &f.Epoch
	}
	switch {
	case f.Stage.Valid():
		s.Stage, s.Truth = f.Stage.String(), f.Stage.Truth().String()
	case v.redisErr != nil:
		s.Stage, s.Truth = "unknown", "unknown"
	default:
		s.Stage, s.Truth = "none", "none" // no router has started it yet
	}
	if v.redisErr == nil {
		r := v.redis
		s.Latch = r.Latch
		s.Killed, s.Suspect, s.Incarnation, s.IncarnationEpoch = &r.Killed, &r.Suspect, &r.Incarnation, &r.IncarnationEpoch
	}
	if frozen := v.redis.Frozen || v.mysql.Frozen; frozen || v.redisErr == nil && v.mysqlErr == nil {
		s.Frozen = &frozen
	}
	seen := map[reservation.Bucket]bool{}
	for _, b := range append(append([]reservation.Bucket{}, v.redis.FrozenBuckets...), v.mysql.FrozenBuckets...) {
		if !seen[b] {
			seen[b] = true
			s.FrozenBuckets = append(s.FrozenBuckets, b.String())
		}
	}
}

// routers fills in the routers, and sums what they tell of themselves.
func (s *Status) routers(v view) {
	if v.redisErr != nil || v.routersErr != nil {
		return // nobody knows them
	}
	queue := 0
	s.Queue, s.Routers, s.Laggards = &queue, []RouterStatus{}, []string{}
	rank := map[string]int{"none": 1, "closed": 2, "half-open": 3, "open": 4}
	worst := 0
	for _, hb := range v.routers {
		s.Routers = append(s.Routers, RouterStatus{
			ID: hb.Router, Epoch: hb.Epoch, SeenSAgo: hb.Ago.Seconds(), Stage: hb.Stage.String(), Cut: hb.Cut,
			Queue: hb.Queue, Breaker: hb.Breaker, Skipped: hb.Skipped,
		})
		queue += hb.Queue
		if r := rank[hb.Breaker]; r > worst {
			worst, s.Breaker = r, hb.Breaker
		}
		if s.isBehind(hb) {
			s.Laggards = append(s.Laggards, hb.Router)
		}
	}
}

func (s *Status) isBehind(hb reservation.Heartbeat) bool {
	return s.Epoch != nil && hb.Epoch < *s.Epoch
}

func (s *Status) because(format string, args ...any) {
	s.HeldBecause = append(s.HeldBecause, fmt.Sprintf(format, args...))
}

// held says why anything is held, the worst first.
func (s *Status) held(v view, maxStage reservation.Stage) {
	s.heldByStores(v)
	s.heldByLatch(v)
	if s.Frozen != nil && *s.Frozen {
		s.heldByBrake(v)
	}
	for _, b := range s.FrozenBuckets {
		s.heldByBucket(b, v.why)
	}
	if v.marks > 0 {
		s.because("%s: outcomes that were answered without Redis, and that Redis lacks until catch-up has brought them over", count(v.marks, "mark"))
	}
	if v.redisErr == nil && s.Stage == maxStage.String() {
		s.because("max_stage is %s: a flip goes no further", maxStage)
	}
	s.heldByRouters(v)
}

// heldByBucket says why a bucket is frozen, and what lets it in again.
func (s *Status) heldByBucket(b string, why map[string]BucketFreeze) {
	f, known := why[b]
	switch {
	case known && f.Mend != "":
		s.because("bucket %s is frozen since %s by %s: %s: no new reservations of it until it is mended: %s", b, f.At.Format(time.RFC3339), f.By, f.Reason, f.Mend)
	case known:
		s.because("bucket %s is frozen since %s by %s (%s): no new reservations of it until twinhold unfreeze %s --bucket %s", b, f.At.Format(time.RFC3339), f.By, f.Reason, s.Pod, b)
	default:
		s.because("bucket %s is frozen: no new reservations of it until twinhold unfreeze %s --bucket %s", b, s.Pod, b)
	}
	if known {
		s.BucketFreezes = append(s.BucketFreezes, f)
	}
}

func (s *Status) heldByLatch(v view) {
	if v.redisErr != nil || !v.redis.Killed {
		return
	}
	f := v.redis
	switch {
	case f.Suspect, f.Epoch == 0, v.lost() && f.Stage != reservation.Complete:
		s.because("killed: %s: the kill counts once Redis is restored (the routers do that)", s.Latch)
	case f.Stage == reservation.Legacy || f.Stage == reservation.Complete:
		s.because("the latch is set (%s), and does nothing in %s: redis-cli DEL '{%s}:kill' takes it away", s.Latch, f.Stage, s.Pod)
	default:
		s.because("killed: %s: it stays in shadow until twinhold rearm %s --execute", s.Latch, s.Pod)
	}
}

func (s *Status) heldByStores(v view) {
	switch {
	case v.redisErr != nil:
		s.because("%s; what only Redis knows (kill, routers) is unknown", silence(reservation.Redis, v.redisErr))
	case v.redis.Epoch == 0 && v.mysqlErr == nil && v.mysql.Epoch != 0:
		s.because("Redis has no fence (emptied?), MySQL is at %s: nothing is served from it until it is restored (the routers do that)", stampText(v.mysql.Stamp))
	case v.redis.Epoch == 0 && v.mysqlErr != nil:
		s.because("Redis has no fence (emptied, or no router has started this pod)")
	case v.redis.Suspect:
		s.because("Redis is suspect: another process answers than wrote the fence; nothing is served from it until it is restored")
	case v.redis.Epoch == 0 && v.mysql.Epoch == 0:
		s.because("there is no fence yet: no router has started this pod")
	case v.lost():
		s.because("the fences disagree: Redis is at %s, MySQL at %s: Redis has lost writes and is restored, or is being rebuilt", stampText(v.redis.Stamp), stampText(v.mysql.Stamp))
	case v.behind():
		s.because("MySQL's fence (%s) is behind Redis's (%s): the next write or poll of a router raises it", stampText(v.mysql.Stamp), stampText(v.redis.Stamp))
	}
	if v.mysqlErr != nil {
		s.because("%s; debt and marks are unknown, and %s", silence(reservation.MySQL, v.mysqlErr), s.without(v))
	}
}

// without says what a pod cannot do without MySQL.
func (s *Status) without(v view) string {
	switch {
	case v.redisErr != nil:
		return "nothing can be claimed"
	case v.redis.Stage == reservation.Complete:
		return "nothing can be reserved or claimed"
	case v.redis.Stage.Truth() == reservation.MySQL:
		return "nothing can be reserved or claimed: twinhold kill " + s.Pod
	default:
		return "nothing can be claimed"
	}
}

// silence says how a store fails: it does not answer, or it answers with an error of its own.
func silence(store reservation.Truth, err error) string {
	name := "Redis"
	if store == reservation.MySQL {
		name = "MySQL"
	}
	var said interface{ RedisError() }
	var refused *mysql.MySQLError
	var corrupt *reservation.CorruptError
	if errors.As(err, &said) || errors.As(err, &refused) || errors.As(err, &corrupt) {
		return fmt.Sprintf("%s answers with an error: %v", name, err)
	}
	return fmt.Sprintf("%s does not answer: %v", name, err)
}

// heldByBrake says what the pod's brake does. Where only one store has a part, the other's brake alone stops nothing;
// else it stops every router that can read it.
func (s *Status) heldByBrake(v view) {
	stage, err := reservation.ParseStage(s.Stage)
	elsewhere := err == nil && !stage.DualWrite() && (stage.Truth() == reservation.MySQL && !v.mysql.Frozen || stage.Truth() == reservation.Redis && !v.redis.Frozen)
	if elsewhere && v.redisErr == nil && v.mysqlErr == nil {
		s.because("frozen (%s), and %s decides: new reservations GO ON: run twinhold freeze %s again", brakes(v), stage.Truth(), s.Pod)
		return
	}
	s.because("frozen (%s): no new reservations until twinhold unfreeze %s", brakes(v), s.Pod)
}

func brakes(v view) string {
	switch {
	case v.redis.Frozen && v.mysql.Frozen:
		return "in both stores"
	case v.redis.Frozen:
		return "in Redis only"
	default:
		return "in MySQL only"
	}
}

func (s *Status) heldByRouters(v view) {
	if v.redisErr == nil && v.routersErr != nil {
		s.because("the routers' heartbeats could not be read: %v", v.routersErr)
	}
	if v.redisErr == nil && v.routersErr == nil && len(v.routers) == 0 {
		s.because("no router was heard of in the last %s", keepRouters)
	}
	for _, hb := range v.routers {
		ago := hb.Ago.Truncate(100 * time.Millisecond)
		if s.isBehind(hb) {
			s.because("router %s is still at epoch %d (heard of %s ago)", hb.Router, hb.Epoch, ago)
		}
		if hb.Cut {
			s.because("router %s is cut from Redis, and goes on with MySQL alone", hb.Router)
		}
		if hb.Breaker == "open" || hb.Breaker == "half-open" {
			s.because("the breaker of router %s is %s: its mirror gets nothing", hb.Router, hb.Breaker)
		}
	}
}

// debtNow fills in debt and completeness: from a survey, or the marks alone where there is no time for one.
func (c *Control) debtNow(ctx context.Context, s *Status, v view, full bool) {
	if v.marksErr == nil {
		s.Debt = &v.marksDebt
	}
	answer := v.redisErr == nil && v.mysqlErr == nil && v.redis.Epoch != 0
	if !answer || c.opt.Survey == nil || !v.redis.Stage.DualWrite() {
		return
	}
	wait := surveyWait
	if full {
		wait = fullWait
	}
	got, err := surveyWithin(ctx, wait, func(ctx context.Context) (Survey, error) { return c.opt.Survey(ctx, v.redis, v.mysql) })
	if err != nil {
		s.Debt = nil
		s.because("debt and completeness are not known: %v (twinhold status %s --full takes its time)", err, s.Pod)
		return
	}
	lacks := got.lacks()
	complete := len(lacks) == 0 && v.marksErr == nil && v.marks == 0
	s.Debt, s.DebtBy, s.ViewComplete = &got.Debt, got.By, &complete
	for _, l := range lacks {
		s.because("%s", l)
	}
}

// surveyWithin runs a survey in the time that there is.
func surveyWithin(ctx context.Context, wait time.Duration, ask func(context.Context) (Survey, error)) (Survey, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s, err := ask(ctx)
	if err != nil && ctx.Err() != nil {
		return s, fmt.Errorf("the survey of both stores did not end within %s", wait)
	}
	return s, err
}

// StatusAll shows several pods at once.
func StatusAll(ctx context.Context, pods []*Control, full bool) []Status {
	out := make([]Status, len(pods))
	var all sync.WaitGroup
	for i, c := range pods {
		all.Go(func() { out[i] = c.Status(ctx, full) })
	}
	all.Wait()
	return out
}
