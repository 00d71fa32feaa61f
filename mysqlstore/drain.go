package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/twinhold/twinhold/reservation"
)

const (
	// drainBuckets bounds the buckets whose depth is followed.
	drainBuckets = 4096
	// backgroundRefills is how many refills may be under way at once, backgroundInsert how many units one puts in: a
	// claim of the bucket waits for no more than that.
	backgroundRefills = 2
	backgroundInsert  = 250
)

// drains follows how deep the pools are of which this process takes units. Nothing scans: a bucket that nobody takes
// from is not followed. What other processes take shows at the next look, which comes the sooner the lower the pool is.
type drains struct {
	mu      sync.Mutex
	buckets map[reservation.Bucket]*drain
	slots   chan struct{} // holds a token for each refill under way
}

type drain struct {
	known int64 // units in the pool when it was last counted
	taken int64 // since
	busy  bool  // somebody looks, or refills
}

func newDrains() *drains {
	return &drains{buckets: map[reservation.Bucket]*drain{}, slots: make(chan struct{}, backgroundRefills)}
}

// mark is the number of units below which a pool is refilled.
func (s *Store) mark() int64 { return int64(s.opts.LowWater * float64(s.opts.PoolSize)) }

// drained notes units taken out of a bucket's pool, and looks after the pool if it may be low.
func (s *Store) drained(st reservation.Stamp, b reservation.Bucket, n int64) {
	d := s.drains
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.of(b, int64(s.opts.PoolSize))
	k.taken += n
	if s.opts.LowWater < 0 || k.busy || !s.maybeLow(k) {
		return
	}
	select {
	case d.slots <- struct{}{}:
	default:
		return // the next one who takes asks again
	}
	if !s.enter() {
		<-d.slots
		return
	}
	k.busy, k.known, k.taken = true, k.known-k.taken, 0
	go func() {
		defer s.running.Done()
		defer func() { <-d.slots }()
		s.topUp(st, b)
	}()
}

// maybeLow tells whether a pool is worth a look: half of what was above the mark is gone, and never at each unit.
func (s *Store) maybeLow(k *drain) bool {
	step := max(int64(s.opts.PoolSize)/20, (k.known-s.mark())/2, 1)
	return k.taken >= step
}

// drop forgets some bucket that nobody is busy with.
func (d *drains) drop() {
	for b, k := range d.buckets {
		if !k.busy {
			delete(d.buckets, b)
			return
		}
	}
}

// counted notes the depth of a pool as somebody saw it just now.
func (d *drains) counted(b reservation.Bucket, pool int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.of(b, pool)
	k.known, k.taken = pool, 0
}

// of gives what is known of a bucket, which is so many units in its pool if it was not followed so far.
func (d *drains) of(b reservation.Bucket, pool int64) *drain {
	k := d.buckets[b]
	if k == nil {
		if len(d.buckets) >= drainBuckets {
			d.drop()
		}
		k = &drain{known: pool}
		d.buckets[b] = k
	}
	return k
}

// topUp counts a pool, and refills it in small transactions if it is below the mark.
func (s *Store) topUp(st reservation.Stamp, b reservation.Bucket) {
	ctx, cancel := context.WithTimeout(inClass(s.life, refillClass), s.opts.Deadline)
	defer cancel()
	pool := int64(s.opts.PoolSize)
	defer func() { s.drains.release(b, pool) }()
	g, err := s.look(ctx, b)
	if err != nil {
		return // whoever finds too few refills it himself
	}
	pool = g.level.pool
	s.metrics.depth.Observe(float64(pool) / float64(s.opts.PoolSize))
	if pool < s.mark() {
		for rest := g.level.unpooled; rest > 0 && pool < int64(s.opts.PoolSize); {
			added, err := s.fill(ctx, st, b, backgroundInsert)
			if err != nil || added == 0 {
				break
			}
			s.metrics.refills.WithLabelValues("background").Inc()
			pool, rest = pool+added, rest-added // what is taken meanwhile is noted by those who take
		}
	}
}

// release lets the next one who takes look again. What was taken since the look is kept.
func (d *drains) release(b reservation.Bucket, pool int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.buckets[b]; k != nil {
		k.busy, k.known = false, pool
	}
}

// Depth is how far the pool of a bucket is drained, as this process knows it.
type Depth struct {
	Bucket reservation.Bucket
	Units  int64 // in the pool when it was last counted, less what this process has taken since
	Size   int64 // of a full pool
}

// Deepest gives up to n buckets of which this process has taken units, the deepest drained first. It asks the server
// nothing: what other processes take shows once a pool is looked after.
func (s *Store) Deepest(n int) []Depth {
	s.drains.mu.Lock()
	depths := make([]Depth, 0, len(s.drains.buckets))
	for b, k := range s.drains.buckets {
		depths = append(depths, Depth{Bucket: b, Units: max(k.known-k.taken, 0), Size: int64(s.opts.PoolSize)})
	}
	s.drains.mu.Unlock()
	slices.SortFunc(depths, func(x, y Depth) int {
		return cmp.Or(cmp.Compare(x.Units, y.Units), x.Bucket.Compare(y.Bucket))
	})
	return depths[:max(0, min(n, len(depths)))]
}
