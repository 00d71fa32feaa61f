package killswitch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// gatesOf are the gates of one move. Back to shadow, Redis's answer is all it takes.
func gatesOf(from, to reservation.Stage) []string {
	switch {
	case to < from, to == reservation.Shadow:
		return []string{GateHealth}
	case to == reservation.Handover:
		return []string{GateHealth, GateDebt, GateQueue, GateBreaker, GatePool, GateEvidence, GateLatency, GateCooldown}
	case to == reservation.Cutover:
		return []string{GateHealth, GateDebt, GateComplete, GateQueue, GateBreaker, GatePool, GateEvidence, GateLatency, GateDrill, GateCooldown}
	default:
		return []string{GateHealth, GateDebt, GateComplete, GateQueue, GateBreaker, GatePool, GateEvidence, GateLatency, GateCooldown}
	}
}

// waivable tells whether a person may waive a gate, with a reason.
func waivable(gate string) bool {
	return gate != GateDebt && gate != GateComplete && gate != GateHealth
}

// gateNames are all gates that there are.
func gateNames() []string {
	return []string{GateDebt, GateComplete, GateHealth, GateQueue, GateBreaker, GatePool, GateEvidence, GateLatency, GateDrill, GateCooldown}
}

// facts are what the gates judge, each asked for once.
type facts struct {
	c *Control
	v view
	// from and to are the move's.
	from, to reservation.Stage

	survey   answer[Survey]
	evidence answer[Evidence]
	pool     answer[PoolDepth]
	audit    answer[[]reservation.AuditRecord]
}

// answer is a question's answer, once it was asked.
type answer[T any] struct {
	asked bool
	value T
	err   error
}

// errNotAsked: this process cannot find it out.
var errNotAsked = errors.New("not known here")

func (a *answer[T]) get(ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	if !a.asked {
		a.asked = true
		if ask == nil {
			a.err = errNotAsked
		} else {
			a.value, a.err = ask(ctx)
		}
	}
	return a.value, a.err
}

// judge gives the gates of the move, in order.
func (f *facts) judge(ctx context.Context, names []string, waive []string) []Gate {
	out := make([]Gate, 0, len(names))
	for _, name := range names {
		g := f.gate(ctx, name)
		g.Name, g.Waivable = name, waivable(name)
		g.Waived = g.Verdict != Pass && g.Waivable && slices.Contains(waive, name)
		out = append(out, g)
	}
	return out
}

func (f *facts) gate(ctx context.Context, name string) Gate {
	switch name {
	case GateHealth:
		return f.health(ctx)
	case GateDebt:
		return f.debt(ctx)
	case GateComplete:
		return f.complete(ctx)
	case GateQueue:
		return f.queue()
	case GateBreaker:
		return f.breaker()
	case GatePool:
		return f.poolDepth(ctx)
	case GateEvidence:
		return f.compared(ctx)
	case GateLatency:
		return f.latency(ctx)
	case GateDrill:
		return f.drill(ctx)
	default:
		return f.cooldown(ctx)
	}
}

func pass(format string, args ...any) Gate {
	return Gate{Verdict: Pass, Figure: fmt.Sprintf(format, args...)}
}

func fail(figure, reason string, args ...any) Gate {
	return Gate{Verdict: Fail, Figure: figure, Reason: fmt.Sprintf(reason, args...)}
}

func unsure(figure, reason string, args ...any) Gate {
	return Gate{Verdict: Inconclusive, Figure: figure, Reason: fmt.Sprintf(reason, args...)}
}

// health: Redis answers and is itself; for a move forward MySQL answers too, and the fences agree.
func (f *facts) health(ctx context.Context) Gate {
	v := f.v
	figure := fmt.Sprintf("Redis %s; MySQL %s", fenceFigure(v.redis, v.redisErr), fenceFigure(v.mysql, v.mysqlErr))
	leaves := f.from == reservation.Complete
	switch {
	case v.redisErr != nil:
		return fail(figure, "Redis does not answer: %v", v.redisErr)
	case v.redis.Suspect && !leaves:
		return fail(figure, "Redis is suspect: another process answers than wrote the fence; it is restored first")
	case f.to < f.from && !leaves:
		return pass("%s", figure)
	case v.mysqlErr != nil:
		return fail(figure, "MySQL does not answer: %v", v.mysqlErr)
	case leaves:
		return pass("%s", figure)
	case v.lost():
		return fail(figure, "the fences disagree: Redis has lost writes, and is restored first")
	case v.redis.Frozen || v.mysql.Frozen:
		return fail(figure, "the pod is frozen: unfreeze it first")
	case v.behind():
		figure += " (raised first)"
	}
	return f.examined(ctx, figure)
}

func (f *facts) examined(ctx context.Context, figure string) Gate {
	if f.c.opt.Health == nil {
		return pass("%s", figure)
	}
	findings, err := f.c.opt.Health(ctx)
	switch {
	case err != nil:
		return fail(figure, "the stores could not be examined: %v", err)
	case len(findings) > 0:
		return fail(figure, "twinhold doctor finds: %s", strings.Join(findings, "; "))
	default:
		return pass("%s", figure)
	}
}

func fenceFigure(f reservation.Fence, err error) string {
	if err != nil {
		return "unknown"
	}
	return stampText(f.Stamp)
}

// debt: neither store lacks what the other promised, and no mark is outstanding.
func (f *facts) debt(ctx context.Context) Gate {
	if f.v.marksErr != nil {
		return unsure("unknown", "MySQL could not say what it answered without Redis: %v", f.v.marksErr)
	}
	marks := count(f.v.marks, "mark")
	s, err := f.surveyed(ctx)
	if err != nil {
		return unsure(marks, "both stores could not be surveyed: %v", err)
	}
	figure := fmt.Sprintf("%s, %s, %d differing, %s", count(s.Debt.Reservations, "reservation"), count(s.Debt.Units, "unit"), s.Differing, marks)
	if s.Debt.Reservations == 0 && s.Debt.Units == 0 && s.Differing == 0 && f.v.marks == 0 {
		return pass("%s", figure)
	}
	return fail(figure, "one store lacks what the other has: catch-up brings it over (holds alone end by themselves in %s)", seconds(s.Debt.DrainsInS))
}

// complete: the gate of cutover (DESIGN section 3), and on the way to complete that nothing is lacking at all.
func (f *facts) complete(ctx context.Context) Gate {
	s, err := f.surveyed(ctx)
	if err != nil {
		return unsure("unknown", "both stores could not be surveyed: %v", err)
	}
	ready, because := s.Ready, s.Because
	if f.to == reservation.Complete {
		because = s.lacks()
		ready = len(because) == 0
	}
	figure := fmt.Sprintf("%s lacking, %d differing, %d unconfirmed, %s", count(s.Debt.Reservations, "reservation"),
		s.Differing, s.Unconfirmed, count(s.ShortBuckets, "short bucket"))
	if ready {
		return pass("%s", figure)
	}
	return fail(figure, "%s", strings.Join(because, "; "))
}

func (f *facts) surveyed(ctx context.Context) (Survey, error) {
	ask := f.c.opt.Survey
	if ask == nil {
		return f.survey.get(ctx, nil)
	}
	return f.survey.get(ctx, func(ctx context.Context) (Survey, error) { return ask(ctx, f.v.redis, f.v.mysql) })
}

// queue: no router's mirror is behind.
func (f *facts) queue() Gate {
	routers, g := f.alive()
	if g != nil {
		return *g
	}
	worst := routers[0]
	for _, hb := range routers {
		if hb.Queue > worst.Queue {
			worst = hb
		}
	}
	figure := fmt.Sprintf("%d waiting at most, of %s", worst.Queue, count(len(routers), "router"))
	if worst.Queue > f.c.opt.Bounds.MaxQueue {
		return fail(figure, "router %s has %d waiting, %d are allowed: the mirror does not keep up", worst.Router, worst.Queue, f.c.opt.Bounds.MaxQueue)
	}
	return pass("%s", figure)
}

// breaker: every router writes to both stores.
func (f *facts) breaker() Gate {
	routers, g := f.alive()
	if g != nil {
		return *g
	}
	var shut []string
	for _, hb := range routers {
		switch {
		case hb.Cut:
			shut = append(shut, hb.Router+" is cut from Redis")
		case hb.Breaker != "closed" && hb.Breaker != "none":
			shut = append(shut, fmt.Sprintf("the breaker of %s is %s", hb.Router, hb.Breaker))
		}
	}
	figure := fmt.Sprintf("closed at %d of %s", len(routers)-len(shut), count(len(routers), "router"))
	if len(shut) > 0 {
		return fail(figure, "%s", strings.Join(shut, "; "))
	}
	return pass("%s", figure)
}

// alive gives the routers that are there, or the gate that says that none is.
func (f *facts) alive() ([]reservation.Heartbeat, *Gate) {
	routers := f.v.fresh()
	switch {
	case f.v.routersErr != nil:
		g := unsure("unknown", "the routers' heartbeats could not be read: %v", f.v.routersErr)
		return nil, &g
	case len(routers) == 0:
		g := unsure("no router", "no router was heard of in the last %s: is one running?", freshRouter)
		return nil, &g
	default:
		return routers, nil
	}
}

// poolDepth: no bucket is short.
func (f *facts) poolDepth(ctx context.Context) Gate {
	var p PoolDepth
	var err error
	if f.c.opt.Pool != nil {
		p, err = f.pool.get(ctx, f.c.opt.Pool)
	} else {
		var s Survey
		s, err = f.surveyed(ctx)
		p.ShortBuckets, p.Short = s.ShortBuckets, s.Short
	}
	figure := count(p.ShortBuckets, "short bucket")
	if p.Buckets > 0 {
		figure += fmt.Sprintf(" of %d", p.Buckets)
	}
	switch {
	case err != nil:
		return unsure("unknown", "the pools could not be looked at: %v", err)
	case p.ShortBuckets > 0:
		return fail(figure, "too few units in %v%s", p.Short, more(p.ShortBuckets-int64(len(p.Short))))
	default:
		return pass("%s", figure)
	}
}

func more(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// compared: enough operations, and none that differs without an explanation.
func (f *facts) compared(ctx context.Context) Gate {
	e, err := f.evidence.get(ctx, f.c.opt.Evidence)
	if err != nil {
		return unsure("unknown", "what was compared could not be read: %v", err)
	}
	figure := fmt.Sprintf("%d compared, %d unexplained, %d gaps", e.Compared, e.Unexplained, e.Gaps)
	switch {
	case e.Unexplained > 0:
		return fail(figure, "%d operations differ without an explanation: the routers' logs have each", e.Unexplained)
	case e.Compared < f.c.opt.Bounds.MinCompared:
		return unsure(figure, "gates.min_compared asks for %d compared operations: wait for traffic", f.c.opt.Bounds.MinCompared)
	default:
		return pass("%s", figure)
	}
}

// latency: MySQL is not much slower than Redis, or fast enough in any case.
func (f *facts) latency(ctx context.Context) Gate {
	e, err := f.evidence.get(ctx, f.c.opt.Evidence)
	if err != nil {
		return unsure("unknown", "the latencies could not be read: %v", err)
	}
	b := f.c.opt.Bounds
	figure := fmt.Sprintf("p50 MySQL %.1f ms, Redis %.1f ms; p99 MySQL %.1f ms, Redis %.1f ms", e.MySQL.P50, e.Redis.P50, e.MySQL.P99, e.Redis.P99)
	switch {
	case e.Compared == 0 || e.MySQL.P99 == 0:
		return unsure(figure, "no operation was timed on both sides: wait for traffic")
	case e.MySQL.P99 <= millis(b.LatencyFloor), e.MySQL.P99 <= b.LatencyRatio*e.Redis.P99:
		return pass("%s", figure)
	default:
		return fail(figure, "MySQL's p99 is %.1f ms, more than %.4g times Redis's and more than %.4g ms", e.MySQL.P99, b.LatencyRatio, millis(b.LatencyFloor))
	}
}

// drill: this version has killed and rearmed the pod on purpose.
func (f *facts) drill(ctx context.Context) Gate {
	recs, g := f.records(ctx)
	if g != nil {
		return *g
	}
	rec, version := lastDrill(recs)
	switch {
	case rec == nil:
		return fail("none", "the kill was never drilled on this pod: run twinhold drill %s", f.c.opt.Pod)
	case version != f.c.opt.Version:
		return fail(rec.At.UTC().Format(time.RFC3339), "the last drill was of version %q, this is %q: run twinhold drill %s", version, f.c.opt.Version, f.c.opt.Pod)
	default:
		return pass("%s, %s", rec.At.UTC().Format(time.RFC3339), strings.TrimPrefix(rec.Detail, drillDone+", "))
	}
}

// cooldown: the last kill is long enough ago.
func (f *facts) cooldown(ctx context.Context) Gate {
	recs, g := f.records(ctx)
	if g != nil {
		return *g
	}
	at, by := lastKill(recs)
	if at.IsZero() {
		return pass("never killed")
	}
	return f.c.cooled(at, by)
}

func (c *Control) cooled(at time.Time, by string) Gate {
	since := c.opt.Now().Sub(at).Truncate(time.Second)
	figure := fmt.Sprintf("%s of %s", since, c.opt.Cooldown)
	if since < c.opt.Cooldown {
		return fail(figure, "killed by %s at %s: wait %s more", by, at.UTC().Format(time.RFC3339), c.opt.Cooldown-since)
	}
	return pass("%s", figure)
}

func (f *facts) records(ctx context.Context) ([]reservation.AuditRecord, *Gate) {
	recs, err := f.audit.get(ctx, f.c.Audit)
	if err != nil {
		g := unsure("unknown", "%v", err)
		return nil, &g
	}
	return recs, nil
}

func count[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Truncate(time.Second).String()
}
