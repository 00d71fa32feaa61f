package diff

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// NearbyFunc gives the reservations that any router created between two instants, and whether that was all of them.
type NearbyFunc func(ctx context.Context, from, to time.Time) (recs []reservation.Record, whole bool, err error)

// Nearby looks for them in a store: ids are in order of time. It reads limit records at most.
func Nearby(w reservation.Walker, limit int) NearbyFunc {
	const page = 500
	return func(ctx context.Context, from, to time.Time) (recs []reservation.Record, whole bool, err error) {
		after := before(from)
		for len(recs) < limit {
			n := min(page, limit-len(recs))
			got, err := w.Walk(ctx, after, n)
			if err != nil {
				return nil, false, err
			}
			for i := range got {
				if createdAt(got[i].ID).After(to) {
					return recs, true, nil
				}
				recs = append(recs, got[i])
			}
			if len(got) < n {
				return recs, true, nil
			}
			after = got[n-1].ID
		}
		return recs, false, nil
	}
}

// before gives an id below every UUIDv7 of a time.
func before(at time.Time) reservation.ID {
	var id reservation.ID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(at.UnixMilli(), 0)))
	copy(id[:6], ms[2:])
	return id
}

// createdAt is the time in a UUIDv7: when its router made it.
func createdAt(id reservation.ID) time.Time {
	var ms [8]byte
	copy(ms[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:])))
}

// maxPeriods and maxCarried bound what is remembered of and about other routers.
const (
	maxPeriods = 32
	maxCarried = 1 << 16
)

// others is what an engine knows of the pod's other routers.
type others struct {
	now int
	// told is when the router last said so; zero: never.
	told time.Time
	// periods are the times at which there were any, oldest first; the last one is open while there are.
	periods []window
	// carried holds the state in which this process itself left a reservation in both stores, while others are alive:
	// of the last ones, in two halves.
	carried, older map[reservation.ID]reservation.State
}

// Others tells the engine how many other routers of the pod are alive now; it wants to be told again and again. While there are any, what cannot be
// accounted for may be theirs: it is looked up in the stores, and what cannot be looked up is counted as Unseen.
func (e *Engine) Others(n int) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	o := &e.others
	switch {
	case o.now <= 0 && n > 0:
		if len(o.periods) == maxPeriods {
			o.periods = append(o.periods[:0], o.periods[1:]...)
		}
		o.periods = append(o.periods, window{from: o.told}) // it came at some time since there was none
		o.carried = map[reservation.ID]reservation.State{}
	case o.now > 0 && n <= 0:
		o.periods[len(o.periods)-1].to = now
	}
	o.now, o.told = n, now
}

// within tells whether another router was alive at any time between two instants.
func (o *others) within(from, to time.Time) bool {
	for _, p := range o.periods {
		if !p.from.After(to) && (p.to.IsZero() || !p.to.Before(from)) {
			return true
		}
	}
	return false
}

// carried notes the state in which an operation left its reservation in both stores. The caller holds the lock.
func (e *Engine) carried(s *Span) {
	o, p := &e.others, &s.pair
	if o.now <= 0 || p.ID == (reservation.ID{}) || !p.Truth.State.Valid() {
		return
	}
	if len(o.carried) >= maxCarried/2 {
		o.older, o.carried = o.carried, map[reservation.ID]reservation.State{}
	}
	state := p.Truth.State
	if state == reservation.Provisional {
		state = p.Mirror.State
	}
	o.carried[p.ID] = state
}

// left gives the state in which this process left a reservation in both stores; zero if it did not, or long ago.
func (o *others) left(id reservation.ID) reservation.State {
	if s, ok := o.carried[id]; ok {
		return s
	}
	return o.older[id]
}

// lookback is how long before a pair another router's step may lie and still be on its way to the mirror.
func (e *Engine) lookback() time.Duration { return e.opt.Settle }

// oldest is before when nothing needs to be remembered. While there are other routers, what this process did is kept
// a little longer, so that it is not taken for theirs. The caller holds the lock.
func (e *Engine) oldest() time.Time {
	at := e.live.oldest()
	if e.others.now > 0 && !at.IsZero() {
		at = at.Add(-e.lookback())
	}
	return at
}

// neighbourhood is what other routers did around a pair, as far as the stores tell.
type neighbourhood struct {
	steps map[reservation.Bucket][]entry
	whole bool // no reservation was left out
}

// neighbours looks up what other routers did around a pair: the reservations that they created from a little before it
// until its end, and what they did with them. A step was taken by the truth at the time that the record gives, and by
// the mirror between then and now. What this process itself did is left out.
func (e *Engine) neighbours(ctx context.Context, s *Span) *neighbourhood {
	if e.opt.Nearby == nil {
		return &neighbourhood{}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	looks := s.pair.looks()
	from := earlier(looks.redis.from, looks.mysql.from).Add(-e.lookback())
	to := later(looks.redis.to, looks.mysql.to)
	recs, whole, err := e.opt.Nearby(ctx, from, to)
	if err != nil {
		e.opt.Logger.Warn("what other routers did could not be read", "pod", e.opt.Pod, "err", err)
		return &neighbourhood{}
	}
	read := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	steps := map[reservation.Bucket][]entry{}
	for _, l := range s.pair.Lines {
		b := l.Bucket(s.pair.Shop)
		own := map[ownStep]bool{}
		for _, en := range e.entries(b) {
			own[ownStep{en.span.pair.ID, en.delta > 0}] = true
		}
		for i := range recs {
			steps[b] = append(steps[b], e.steps(&recs[i], b, own, window{from, read}, s.pair.truth())...)
		}
	}
	return &neighbourhood{steps, whole}
}

// clockSlack is how far the clock of a store and this process's may be apart. More makes a race unseen.
const clockSlack = 25 * time.Millisecond

type ownStep struct {
	id   reservation.ID
	back bool
}

// steps gives what a record of another router did to a bucket: since span.from, as it was read at span.to.
func (e *Engine) steps(r *reservation.Record, b reservation.Bucket, own map[ownStep]bool, span window, truth reservation.Truth) []entry {
	quantity := int64(0)
	for _, l := range r.Lines {
		if l.Bucket(r.Shop) == b {
			quantity = l.Quantity
		}
	}
	if quantity == 0 || r.Outcome != reservation.Granted {
		return nil
	}
	step := func(op reservation.Op, at time.Time, delta int64) entry {
		s := &Span{engine: e, began: at}
		s.pair.Op, s.pair.Shop, s.pair.ID = op, r.Shop, r.ID
		w := window{at.Add(-clockSlack), span.to}
		s.traces = stores[trace]{redis: trace{take: w}, mysql: trace{take: w}}
		s.traces.of(truth).take.to = at.Add(clockSlack)
		return entry{span: s, delta: delta, others: true}
	}
	var out []entry
	if !r.CreatedAt.Before(span.from) && !own[ownStep{r.ID, false}] {
		out = append(out, step(reservation.OpReserve, r.CreatedAt, -quantity))
	}
	back, op := r.ExpiredAt, reservation.OpExpire
	if back.IsZero() {
		back, op = r.ReleasedAt, reservation.OpRelease
	}
	if !back.IsZero() && !own[ownStep{r.ID, true}] {
		out = append(out, step(op, back, quantity))
	}
	return out
}

// GapReader is a sink that can tell of the gaps of other routers.
type GapReader interface {
	// OthersGaps counts the operations of other routers that a mirror has missed, in the hours from since on.
	OthersGaps(ctx context.Context, since time.Time) (int64, error)
}

// behind tells whether a difference that lasts may be a gap of another router: one was alive, and has counted gaps of
// late. A mirror that nobody has left behind must agree.
func (e *Engine) behind(ctx context.Context, w *waiting) bool {
	sink, ok := e.opt.Sink.(GapReader)
	if !ok || len(w.reads) == 0 || !e.othersAround(w.span) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	n, err := sink.OthersGaps(ctx, w.span.began.UTC().Truncate(time.Hour).Add(-time.Hour))
	if err != nil {
		e.opt.Logger.Warn("the gaps of other routers could not be read", "pod", e.opt.Pod, "err", err)
	}
	return n > 0
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
