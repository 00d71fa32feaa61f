package mysqlstore

import (
	"context"
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
	if s.opts.LowWater < 0 {
		return
	}
	d := s.drains
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.buckets[b]
	if k == nil {
		if len(d.buckets) >= drainBuckets {
			d.drop()
		}
		k = &drain{known: int64(s.opts.PoolSize)}
		d.buckets[b] = k
	}
	k.taken += n
	if k.busy || !s.maybeLow(k) {
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
	k.busy, k.taken = true, 0
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
	if k := d.buckets[b]; k != nil {
		k.known, k.taken = pool, 0
	}
}

// topUp counts a pool, and refills it in small transactions if it is below the mark.
func (s *Store) topUp(st reservation.Stamp, b reservation.Bucket) {
	ctx, cancel := context.WithTimeout(s.life, s.opts.Deadline)
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
