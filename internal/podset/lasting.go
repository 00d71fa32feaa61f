package podset

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// Bounds of what is remembered, and of what is done without a person.
const (
	maxDifferences = 1000    // that a round remembers
	maxSummed      = 200_000 // buckets whose held units are summed
	maxFreezes     = 20      // buckets that one difference freezes
	maxFrozen      = 50      // buckets that are frozen at a time, by whomever
	maxShort       = 100
)

// lasting follows differences over the full rounds that this process walks from their start to their end. One that is
// there in enough of them in a row freezes its buckets, once. A round that was begun elsewhere counts for nothing.
type lasting struct {
	mu      sync.Mutex
	whole   time.Time                    // when the round began that is followed; zero: none
	now     map[string]shadow.Difference // of this round
	streaks map[string]*streak
	live    shadow.Live                                     // of this round; nil: too many buckets to sum
	before  map[reservation.Bucket]reservation.Availability // at the end of the last round
	after   map[reservation.Bucket]reservation.Availability
	lacks   shadow.Lacks
	ended   time.Time // when the round began that was followed last to its end
	unsure  int       // holds that one store has and nobody was answered, or that were left alone: they may be why MySQL is short
}

// streak is one difference over rounds.
type streak struct {
	shadow.Difference
	rounds int
	since  time.Time
	acted  bool
}

// begin follows a round from its start.
func (l *lasting) begin(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole, l.now, l.live = at, map[string]shadow.Difference{}, shadow.Live{}
	l.after, l.unsure, l.lacks = map[reservation.Bucket]reservation.Availability{}, 0, shadow.Lacks{}
}

// add takes what a part of the round has found.
func (l *lasting) add(began time.Time, part shadow.Part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.follows(began) {
		return
	}
	l.lacks.Add(part.Lacks)
	l.unsure += part.Unconfirmed + part.Skipped
	for _, d := range part.Differ {
		l.found(d)
	}
	if l.live != nil {
		l.live.Add(part.Live)
		if len(l.live) > maxSummed {
			l.live = nil
		}
	}
}

// follows tells whether this is the round that is followed. The caller holds the lock.
func (l *lasting) follows(began time.Time) bool { return !l.whole.IsZero() && l.whole.Equal(began) }

func (l *lasting) found(d shadow.Difference) {
	if len(l.now) < maxDifferences {
		l.now[d.Key()] = d
	}
}

// bucket judges a bucket at the end of the round. Its held units are summed only where none of its figures has moved since
// the end of the round before.
func (l *lasting) bucket(ledger reservation.Figures, redis reservation.Availability) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.whole.IsZero() {
		return
	}
	if len(l.after) < maxSummed {
		l.after[ledger.Bucket] = redis
	}
	var live *shadow.Held
	if was, ok := l.before[ledger.Bucket]; ok && was == redis && l.live != nil {
		h := l.live[ledger.Bucket]
		live = &h
	}
	if d, differs := shadow.CheckBucket(ledger, redis, live); differs {
		l.found(d)
	}
}

// end counts in how many rounds in a row each difference was there, and gives those that have just been there for enough.
func (l *lasting) end(began time.Time, needed int, explained func(shadow.Difference) bool) (due []*streak, lasts map[shadow.DifferenceKind]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lasts = map[shadow.DifferenceKind]int{}
	if !l.follows(began) {
		l.whole, l.before = time.Time{}, nil
		for _, s := range l.streaks {
			if s.acted {
				lasts[s.Kind]++
			}
		}
		return nil, lasts
	}
	next := map[string]*streak{}
	for key, d := range l.now {
		if explained(d) {
			continue
		}
		s := l.streaks[key]
		if s == nil {
			s = &streak{since: began}
		}
		s.Difference = d
		s.rounds++
		next[key] = s
		if needed > 0 && s.rounds >= needed {
			lasts[d.Kind]++
			if !s.acted {
				s.acted = true
				due = append(due, s)
			}
		}
	}
	l.streaks, l.before, l.whole, l.ended = next, l.after, time.Time{}, began
	return due, lasts
}

// debt gives what the round has left that was just followed to its end.
func (l *lasting) debt(began time.Time) (shadow.Lacks, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lacks, l.ended.Equal(began)
}

// short finds what MySQL has promised twice while Redis, with the same stock, has not.
func (p *Pod) short(ctx context.Context) error {
	short, err := p.MySQL.Short(ctx, maxShort)
	if err != nil {
		return err
	}
	p.lasting.mu.Lock()
	defer p.lasting.mu.Unlock()
	if p.lasting.unsure > 0 {
		return nil
	}
	for b, n := range short {
		redis, ok := p.lasting.after[b]
		m, err := p.MySQL.Availability(ctx, b)
		if !ok || err != nil || redis.Available < 0 || redis.Version != m.Version || m.Available >= 0 {
			continue
		}
		p.lasting.found(shadow.Difference{
			Kind: shadow.DiffersShort, Buckets: []reservation.Bucket{b},
			What: fmt.Sprintf("MySQL has promised %d more than there is, Redis has %d available", n, redis.Available),
		})
	}
	return nil
}

// judge ends a round for the differences: what lasts is told, and freezes its buckets.
func (p *Pod) judge(ctx context.Context, began time.Time) {
	needed := p.cfg.Load().Tuning.FreezeAfter
	due, lasts := p.lasting.end(began, needed, func(d shadow.Difference) bool {
		return d.ID != (reservation.ID{}) && (p.Router.Engine().HasGap(d.ID) || p.Router.Engine().InFlight(d.ID))
	})
	if lacks, whole := p.lasting.debt(began); whole {
		p.steady.ShowLacks(lacks)
	}
	for _, kind := range shadow.DifferenceKinds() {
		p.metrics.differences.WithLabelValues(string(kind)).Set(float64(lasts[kind]))
	}
	for _, s := range due {
		p.brake(ctx, s)
	}
}

// brake freezes the buckets of a difference that lasts, and keeps the evidence in the audit.
func (p *Pod) brake(ctx context.Context, s *streak) {
	log := p.log.With("pod", p.Config.ID, "kind", string(s.Kind), "what", s.What, "rounds", s.rounds, "mend", p.mendCommand(s.Difference))
	control, err := p.Control(ControlOptions{By: p.name})
	if err != nil {
		log.Error("a difference lasts without a known cause, and its buckets could not be frozen", "err", err)
		return
	}
	fence, err := p.Redis.ReadFence(ctx)
	if err != nil {
		log.Error("a difference lasts without a known cause, and its buckets could not be frozen", "err", err)
		return
	}
	evidence := p.evidenceOf(ctx, s)
	frozen := len(fence.FrozenBuckets)
	s.acted = !allFrozen(fence, s.Buckets) // else it waits for its turn, when they are let in again
	for i, b := range s.Buckets {
		if i >= maxFreezes || frozen >= maxFrozen {
			log.Error("a difference lasts without a known cause: no more buckets are frozen by themselves", "bucket", b.String())
			return
		}
		if isFrozen(fence, b) {
			continue
		}
		if _, err := control.FreezeWith(ctx, b, reasonOf(s.Difference), evidence); err != nil {
			log.Error("a difference lasts without a known cause, and its bucket could not be frozen", "bucket", b.String(), "err", err)
			continue
		}
		frozen++
		p.metrics.frozen.Inc()
		log.Error("a difference lasts without a known cause: its bucket is frozen", "bucket", b.String())
	}
	if len(s.Buckets) == 0 {
		log.Error("a difference lasts without a known cause, and nobody can tell its buckets")
	}
}

func allFrozen(f reservation.Fence, buckets []reservation.Bucket) bool {
	for _, b := range buckets {
		if !isFrozen(f, b) {
			return false
		}
	}
	return len(buckets) > 0
}

func isFrozen(f reservation.Fence, b reservation.Bucket) bool {
	for _, have := range f.FrozenBuckets {
		if have == b {
			return true
		}
	}
	return false
}

// lastsReason begins the reason of every freeze that a difference caused; what follows is whose it is.
const lastsReason = "a difference that lasts: "

func reasonOf(d shadow.Difference) string {
	if d.ID != (reservation.ID{}) {
		return lastsReason + d.ID.String() + " (" + string(d.Kind) + ")"
	}
	return lastsReason + string(d.Kind)
}

// mendCommand is how a person looks at it.
func (p *Pod) mendCommand(d shadow.Difference) string {
	switch {
	case d.ID != (reservation.ID{}) && d.Kind == shadow.DiffersClaim:
		return fmt.Sprintf("twinhold mend %s --id %s --from redis", p.Config.ID, d.ID)
	case d.ID != (reservation.ID{}):
		return fmt.Sprintf("twinhold mend %s --id %s --from redis|mysql", p.Config.ID, d.ID)
	case len(d.Buckets) > 0:
		return fmt.Sprintf("twinhold mend %s --bucket %s --from mysql", p.Config.ID, d.Buckets[0])
	default:
		return "twinhold status " + p.Config.ID
	}
}
