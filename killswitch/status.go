package killswitch

import (
	"context"
	"fmt"
	"sync"
	"time"

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
	s := Status{
		Pod: c.opt.Pod, MaxStage: c.opt.MaxStage.String(), Routers: []RouterStatus{}, HeldBecause: []string{}, Laggards: []string{},
		Breaker: "unknown", Redis: storeStatus(v.redis, v.redisErr), MySQL: storeStatus(v.mysql, v.mysqlErr),
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
		return StoreStatus{}
	default:
		return StoreStatus{Epoch: f.Epoch, Stage: f.Stage.String()}
	}
}

// fence fills in what the fences say: Redis's, but where only MySQL's is there or nobody keeps Redis's.
func (s *Status) fence(v view) {
	f := v.redis
	leaves := v.mysqlErr == nil && (v.mysql.Stage == reservation.Complete && !v.behind() || v.mysql.Epoch > v.redis.Epoch)
	if v.redisErr != nil || leaves {
		f = v.mysql
	}
	s.Epoch = f.Epoch
	switch {
	case f.Stage.Valid():
		s.Stage, s.Truth = f.Stage.String(), f.Stage.Truth().String()
	case v.redisErr != nil && v.mysqlErr != nil:
		s.Stage, s.Truth = "unknown", "unknown"
	default:
		s.Stage, s.Truth = "none", "none" // no router has started it yet
	}
	s.Killed, s.Latch = v.redis.Killed, v.redis.Latch
	s.Frozen = v.redis.Frozen || v.mysql.Frozen
	s.Suspect, s.Incarnation, s.IncarnationEpoch = v.redis.Suspect, v.redis.Incarnation, v.redis.IncarnationEpoch
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
	rank := map[string]int{"none": 1, "closed": 2, "half-open": 3, "open": 4}
	worst := 0
	for _, hb := range v.routers {
		s.Routers = append(s.Routers, RouterStatus{
			ID: hb.Router, Epoch: hb.Epoch, SeenSAgo: hb.Ago.Seconds(), Stage: hb.Stage.String(), Cut: hb.Cut,
			Queue: hb.Queue, Breaker: hb.Breaker, Skipped: hb.Skipped,
		})
		s.Queue += hb.Queue
		if r := rank[hb.Breaker]; r > worst {
			worst, s.Breaker = r, hb.Breaker
		}
		if hb.Epoch < s.Epoch {
			s.Laggards = append(s.Laggards, hb.Router)
		}
	}
}

func (s *Status) because(format string, args ...any) {
	s.HeldBecause = append(s.HeldBecause, fmt.Sprintf(format, args...))
}

// held says why anything is held, the worst first.
func (s *Status) held(v view, maxStage reservation.Stage) {
	s.heldByStores(v)
	if s.Killed {
		s.because("killed: %s: it stays in shadow until twinhold rearm %s --execute", s.Latch, s.Pod)
	}
	if s.Frozen {
		s.because("frozen (%s): no new reservations until twinhold unfreeze %s", brakes(v), s.Pod)
	}
	for _, b := range s.FrozenBuckets {
		s.because("bucket %s is frozen: no new reservations of it until twinhold unfreeze %s --bucket %s", b, s.Pod, b)
	}
	if v.marks > 0 {
		s.because("%s: outcomes that were answered without Redis, and that Redis lacks until catch-up has brought them over", count(v.marks, "mark"))
	}
	if v.redisErr == nil && s.Stage == maxStage.String() {
		s.because("max_stage is %s: a flip goes no further", maxStage)
	}
	s.heldByRouters(v)
}

func (s *Status) heldByStores(v view) {
	switch {
	case v.redisErr != nil:
		s.because("Redis does not answer: %v", v.redisErr)
	case v.redis.Suspect:
		s.because("Redis is suspect: another process answers than wrote the fence; nothing is served from it until it is restored")
	case v.redis.Epoch == 0 && (v.mysqlErr != nil || v.mysql.Epoch == 0):
		s.because("there is no fence yet: no router has started this pod")
	case v.lost():
		s.because("the fences disagree: Redis is at %s, MySQL at %s: Redis has lost writes and is restored, or is being rebuilt", stampText(v.redis.Stamp), stampText(v.mysql.Stamp))
	case v.behind():
		s.because("MySQL's fence (%s) is behind Redis's (%s): the next write or poll of a router raises it", stampText(v.mysql.Stamp), stampText(v.redis.Stamp))
	}
	if v.mysqlErr != nil {
		s.because("MySQL does not answer, so debt and marks are unknown, and nothing can be claimed: %v", v.mysqlErr)
	}
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
		if hb.Epoch < s.Epoch {
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
	s.Debt, s.ViewComplete = &got.Debt, &complete
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
