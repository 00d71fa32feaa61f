package shadow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// CatchUpOptions configure a CatchUp.
type CatchUpOptions struct {
	Pod   string
	Redis RedisSide
	MySQL MySQLSide
	// Settle: nothing younger is touched, so that a healthy flow sees no repair. Marks do not wait for it.
	Settle time.Duration
	// Grace is how long past its expiry a hold that the truth does not know is left alone. Default 1 min.
	Grace time.Duration
	// AtRest: nothing is under way in this pod, so a ledger figure that Redis lacks is lost, and not on its way.
	AtRest bool
	// InFlight tells whether this process has an operation of a reservation on its way to the other store: it is left to
	// that. Nil: none has.
	InFlight func(reservation.ID) bool
	// Page is how many records are read at a time. Default 500.
	Page       int
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Now is this process's clock, in which rounds begin and end. StoreNow is the stores': records are judged by it, since a
	// router's own may be off. Default Now.
	Now, StoreNow func() time.Time
}

func (o *CatchUpOptions) defaults() {
	if o.Page == 0 {
		o.Page = 500
	}
	if o.Grace == 0 {
		o.Grace = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.StoreNow == nil {
		o.StoreNow = o.Now
	}
}

func (o *CatchUpOptions) validate() error {
	if o.Pod == "" || o.Redis == nil || o.MySQL == nil {
		return errors.New("shadow: CatchUpOptions.Pod, Redis and MySQL are needed")
	}
	if o.Settle < 0 || o.Grace < 0 || o.Page < 1 {
		return errors.New("shadow: CatchUpOptions: Page at least 1, times not negative")
	}
	return nil
}

// CatchUp brings the two stores of a pod together. Every write is a compare-and-set, so two at once do no harm. It is
// safe for concurrent use.
type CatchUp struct {
	opt     CatchUpOptions
	metrics *catchUpMetrics

	mu   sync.Mutex
	lags map[reservation.Bucket]lag // buckets in which Redis was seen behind the ledger
}

// NewCatchUp makes a pod's catch-up. It asks no store anything.
func NewCatchUp(opt CatchUpOptions) (*CatchUp, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	m, err := newCatchUpMetrics(opt.Registerer, opt.Pod)
	if err != nil {
		return nil, err
	}
	return &CatchUp{opt: opt, metrics: m, lags: map[reservation.Bucket]lag{}}, nil
}

// Round is what one round of catch-up found and did. Lists of what it met are bounded, counts are whole.
type Round struct {
	Began, Ended time.Time
	Walked       int
	// Repairs names records that were written, at most 1000 of them.
	Repairs []Repair
	// Repaired counts writes, by what was wrong: lost, leaked, missing, state, adopted.
	Repaired map[string]int
	// Figures counts ledger figures that Redis's copy lacked.
	Figures int
	// Drained counts marks that are gone: Redis has those outcomes now.
	Drained int
	// Skipped counts records that are too young or under way.
	Skipped int
	// Unconfirmed counts those of one store that nobody was answered: each is left to its retry or its expiry.
	Unconfirmed int
	// Withheld counts, in handover, what MySQL still holds of older epochs and Redis does not: as long as there is any, too
	// few units in MySQL do not mean that there are too few.
	Withheld int
	// Left names what still differs: nothing here may be repaired without a person, or it changed meanwhile. At most 1000 of
	// them; LeftMore counts the others. Unreadable counts the records that a store has and cannot be read.
	Left       []string
	LeftMore   int
	Unreadable int
}

// maxNamed bounds how many of each kind a round names. A part of a round names all of its own.
const maxNamed = 1000

// Repair is one record that a store lacked, or had otherwise.
type Repair struct {
	Shop int64
	ID   reservation.ID
	// Was is lost (a live hold that the store lacked), leaked (a hold that it still had), missing (an ended one that it
	// lacked), state, or adopted (a promised hold that Redis lacked, stored by force).
	Was string
	// To is the store that was written.
	To            reservation.Truth
	Truth, Mirror reservation.State // before; zero where the store did not know it
	// Epoch is the one in which the reservation was decided.
	Epoch uint64
	// Forced is the number of units that were taken although the store had them not.
	Forced int64
}

// Total is the number of repairs.
func (r Round) Total() int {
	n := r.Figures
	for _, v := range r.Repaired {
		n += v
	}
	return n
}

// Run walks both stores once, under the fence of Redis as the caller has just read it. A store that refuses its stamp
// ends the round with that *reservation.FenceError. Outside the dual-write stages it does nothing.
func (c *CatchUp) Run(ctx context.Context, fence reservation.Fence) (Round, error) {
	return c.RunTold(ctx, fence, func(Part, error) {})
}

// RunTold is Run; told hears of every part, whole, as soon as that is done, and of what was done of one that failed.
func (c *CatchUp) RunTold(ctx context.Context, fence reservation.Fence, told func(Part, error)) (Round, error) {
	r := newRound(c.opt.Now())
	if !fence.Stage.DualWrite() {
		r.Ended = r.Began
		return r, nil
	}
	for s := (Span{UpTo: Last(), Limit: partLimit}); ; {
		p, err := c.Walk(ctx, fence, s)
		r.sum(p.Round)
		told(p, err)
		if err != nil {
			return r, err
		}
		if s.After = p.UpTo; p.UpTo == s.UpTo {
			break
		}
	}
	if err := c.figures(ctx, fence.Stamp, nil, &r, nil); err != nil {
		return r, err
	}
	if fence.Stage == reservation.Handover && r.Withheld == 0 {
		if err := c.opt.MySQL.Whole(ctx, fence.Stamp); err != nil {
			return r, fmt.Errorf("catch-up of pod %s notes that MySQL is whole: %w", c.opt.Pod, err)
		}
	}
	r.Ended = c.opt.Now()
	return r, nil
}

func newRound(began time.Time) Round { return Round{Began: began, Repaired: map[string]int{}} }

// DrainMarks brings the marked outcomes to Redis and removes their marks. Where there are none it costs one read.
func (c *CatchUp) DrainMarks(ctx context.Context, fence reservation.Fence) (Round, error) {
	r := newRound(c.opt.Now())
	for after := (reservation.ID{}); fence.Stage.DualWrite(); {
		marked, err := c.opt.MySQL.Marked(ctx, after, c.opt.Page)
		if err != nil {
			return r, c.reading(reservation.MySQL, err)
		}
		if len(marked) == 0 {
			break
		}
		if err := c.drainPage(ctx, marked, fence, &r); err != nil {
			return r, err
		}
		after = marked[len(marked)-1].ID
	}
	r.Ended = c.opt.Now()
	return r, nil
}

// drainPage drains some marks side by side: each is a few round trips, and after a kill the pod waits for the last.
func (c *CatchUp) drainPage(ctx context.Context, marked []reservation.Record, fence reservation.Fence, r *Round) error {
	ids := make([]reservation.ID, len(marked))
	for i := range marked {
		ids[i] = marked[i].ID
	}
	p, err := c.lookAt(ctx, fence, ids, func(ctx context.Context, i int) (view, error) {
		redis, err := raw(ctx, c.opt.Redis, reservation.Redis, ids[i])
		if err != nil {
			return view{}, c.reading(reservation.Redis, err)
		}
		return paired(redis, &entry{id: ids[i], rec: &marked[i]}, fence), nil
	})
	r.sum(p.Round)
	return err
}

// reconcile brings one reservation's two records together, and removes its mark once Redis has the outcome. A broken
// record does not stop the rest; a store that does not answer does.
func (c *CatchUp) reconcile(ctx context.Context, v view, r *Part) error {
	if v.bad != nil {
		r.Unreadable++
		r.Lacks.Differing++
		r.Left = append(r.Left, v.bad.Error())
		r.Differ = append(r.Differ, differenceOf(DiffersUnreadable, v, v.bad.Error()))
		return nil //nolint:nilerr // one bad record stops nothing
	}
	s := c.plan(v, c.opt.StoreNow())
	switch {
	case s.to != 0 && c.opt.InFlight != nil && c.opt.InFlight(s.op.Record.ID):
		r.skip(s.op.Record.ID, true)
	case s.to != 0:
		now, err := c.carryOut(ctx, v, s, r)
		if err != nil {
			return err
		}
		v = v.with(s.to, now)
	case s.left != "":
		if err := c.leaves(ctx, v, s, r); err != nil {
			return err
		}
	case s.unconfirmed:
		r.Unconfirmed++
	case s.skipped:
		r.skip(v.id(), s.young)
	}
	if v.withheld() {
		r.Withheld++
	}
	if !s.skipped {
		r.Lacks.count(v.facts().lacks(), v, c.opt.StoreNow())
	}
	r.Live.Count(v.redis)
	return c.drain(ctx, v, r)
}

// with is the view once a store has this record.
func (v view) with(store reservation.Truth, now *reservation.Record) view {
	if store == reservation.Redis {
		v.redis = now
		return v
	}
	if now != nil {
		now.Marked = v.mysql != nil && v.mysql.Marked
	}
	v.mysql = now
	return v
}

// carryOut writes one store and gives the record that it has then.
func (c *CatchUp) carryOut(ctx context.Context, v view, s step, r *Part) (*reservation.Record, error) {
	store, before, id := reservation.Mirror(c.opt.Redis), v.redis, s.op.Record.ID
	if s.to == reservation.MySQL {
		store, before = c.opt.MySQL, v.mysql
	}
	j, err := c.mirror(ctx, store, v.fence.Stamp, s)
	switch {
	case err != nil && unusable(err):
		return before, fmt.Errorf("catch-up of pod %s writes %s: %w", c.opt.Pod, s.to, err)
	case err != nil:
		r.Left = append(r.Left, fmt.Sprintf("%s: %v", id, err))
		return before, nil
	case j.Stored:
		c.repaired(v, s, j, r)
	case j.State != s.op.Record.State:
		r.Left = append(r.Left, fmt.Sprintf("%s: changed meanwhile (%s has %s)", id, s.to, stateName(j.State)))
	}
	if j.Record == nil {
		return before, nil
	}
	return j.Record, nil
}

func (c *CatchUp) mirror(ctx context.Context, store reservation.Mirror, st reservation.Stamp, s step) (reservation.Judgement, error) {
	if s.to == reservation.Redis && s.op.Record.State == reservation.Claimed {
		changes, err := c.opt.MySQL.ChangesOf(ctx, s.op.Record.Shop, s.op.Record.ID)
		if err != nil {
			return reservation.Judgement{}, fmt.Errorf("read the entries of its claim: %w", err)
		}
		s.op.Changes = changes
	}
	return store.Mirror(ctx, st, s.op)
}

func (c *CatchUp) repaired(v view, s step, j reservation.Judgement, r *Part) {
	f := v.facts()
	rep := Repair{Shop: s.op.Record.Shop, ID: s.op.Record.ID, Was: s.was, To: s.to, Truth: f.redis, Mirror: f.mysql, Epoch: f.epoch, Forced: j.Forced}
	if v.fence.Stage.Truth() == reservation.MySQL {
		rep.Truth, rep.Mirror = f.mysql, f.redis
	}
	r.Repaired[s.was]++
	r.Repairs = append(r.Repairs, rep)
	c.metrics.repairs.WithLabelValues(s.to.String(), s.was).Inc()
	level := slog.LevelDebug // an outage may leave thousands: whoever runs the part tells their number
	if s.was == WasAdopted && f.lost && !f.marked {
		level = slog.LevelError // Redis had lost it, and no restore brought it back
	}
	c.opt.Logger.Log(context.Background(), level, "catch-up repaired a store", "pod", c.opt.Pod, "store", s.to.String(),
		"id", rep.ID, "was", s.was, "redis", stateName(f.redis), "mysql", stateName(f.mysql), "state", stateName(j.State), "forced", j.Forced)
}

// drain removes a mark for which Redis has the outcome. One past its retention stands for nothing any more.
func (c *CatchUp) drain(ctx context.Context, v view, r *Part) error {
	f := v.facts()
	if purged := f.marked && v.purged(c.opt.StoreNow()); !purged && !f.drains() {
		return nil
	}
	gone, err := c.opt.MySQL.Unmark(ctx, v.fence.Stamp, v.mysql.ID, f.mysql)
	switch {
	case err != nil && unusable(err):
		return fmt.Errorf("catch-up of pod %s removes a mark: %w", c.opt.Pod, err)
	case err != nil:
		r.Left = append(r.Left, fmt.Sprintf("%s: its mark: %v", v.mysql.ID, err))
	case gone:
		r.Drained++
		c.metrics.drained.Inc()
	}
	return nil
}

// unusable tells whether a store as a whole is the trouble, and not one record.
func unusable(err error) bool {
	var (
		una *reservation.UnavailableError
		unk *reservation.UnknownOutcomeError
		fen *reservation.FenceError
	)
	return errors.As(err, &una) || errors.As(err, &unk) || errors.As(err, &fen) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
