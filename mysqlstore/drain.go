package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

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
	known int64   // units in the pool when it was last counted
	taken int64   // by this process, since
	share float64 // the part of all that was taken that this process took, as its last look showed
	batch int64   // what one transaction takes, the largest of late
	busy  bool    // somebody looks, or refills
}

const (
	// firstShare is expected before the first look, leastShare is the smallest that is believed.
	firstShare, leastShare = 0.5, 1. / 16
	// highMark is the largest part of a pool that a mark may be.
	highMark = 0.75
)

func newDrains() *drains {
	return &drains{buckets: map[reservation.Bucket]*drain{}, slots: make(chan struct{}, backgroundRefills)}
}

// mark is the number of units below which a pool is refilled: LowWater, and what two transactions take at once, since
// what these have locked is as good as gone, and the next two come before the refill is there.
func (s *Store) mark(k *drain) int64 {
	pool := float64(s.opts.PoolSize)
	low := int64(s.opts.LowWater * pool)
	return max(low, min(low+2*k.batch, int64(highMark*pool)))
}

// drained notes units taken out of a bucket's pool, and looks after the pool if it may be low.
func (s *Store) drained(st reservation.Stamp, b reservation.Bucket, n int64) {
	d := s.drains
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.of(b, int64(s.opts.PoolSize))
	k.taken += n
	k.batch = max(n, k.batch-k.batch/8)
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
	ours := k.begin()
	go func() {
		defer s.running.Done()
		defer func() { <-d.slots }()
		for more := true; more; {
			s.topUp(st, b, ours)
			ours, more = s.again(b)
		}
	}()
}

// begin notes that somebody looks after the pool from now on, and tells how many units were taken before.
func (k *drain) begin() (ours int64) {
	ours = k.taken
	k.busy, k.known, k.taken = true, k.known-ours, 0
	return ours
}

// again tells whether so much was taken meanwhile that the pool is worth another look; if not, the next one who takes
// may start one.
func (s *Store) again(b reservation.Bucket) (ours int64, more bool) {
	s.drains.mu.Lock()
	defer s.drains.mu.Unlock()
	k := s.drains.buckets[b]
	if k == nil {
		return 0, false
	}
	if s.life.Err() == nil && s.maybeLow(k) {
		return k.begin(), true
	}
	k.busy = false
	return 0, false
}

// maybeLow tells whether a pool is worth a look: what was above the mark may be gone, if the others take as they did.
// It never is at each unit.
func (s *Store) maybeLow(k *drain) bool {
	above := int64(float64(k.known-s.mark(k))*k.share) + 1
	return k.taken >= max(int64(s.opts.PoolSize)/20, above)
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

// takenOf is what this process has taken from a bucket since its depth was known.
func (d *drains) takenOf(b reservation.Bucket) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.buckets[b]; k != nil {
		return k.taken
	}
	return 0
}

// counted notes the depth of a pool as somebody saw it after so much had been taken. What was taken later is kept.
func (d *drains) counted(b reservation.Bucket, pool, taken int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.of(b, pool)
	k.known, k.taken = pool, max(k.taken-taken, 0)
}

// of gives what is known of a bucket, which is so many units in its pool if it was not followed so far.
func (d *drains) of(b reservation.Bucket, pool int64) *drain {
	k := d.buckets[b]
	if k == nil {
		if len(d.buckets) >= drainBuckets {
			d.drop()
		}
		k = &drain{known: pool, share: firstShare}
		d.buckets[b] = k
	}
	return k
}

// topUp counts a pool of which this process took so many units, and refills it in small transactions if it is below
// the mark.
func (s *Store) topUp(st reservation.Stamp, b reservation.Bucket, ours int64) {
	ctx, cancel := context.WithTimeout(inClass(s.life, refillClass), s.opts.Deadline)
	defer cancel()
	g, err := s.look(ctx, b)
	if err != nil {
		return // whoever finds too few refills it himself
	}
	pool := g.level.pool
	s.metrics.depth.Observe(float64(pool) / float64(s.opts.PoolSize))
	if !s.saw(b, pool, ours) {
		return
	}
	for rest := g.level.unpooled; rest > 0 && pool < int64(s.opts.PoolSize); {
		added, err := s.fill(ctx, st, b, backgroundInsert)
		if err != nil || added == 0 {
			return
		}
		s.metrics.refills.WithLabelValues("background").Inc()
		pool, rest = pool+added, rest-added // what is taken meanwhile is noted by those who take
	}
}

// saw notes what a look found after this process took so many units, and how much of the taking was its own. What was
// taken since the look is kept. It tells whether the pool is low.
func (s *Store) saw(b reservation.Bucket, pool, ours int64) bool {
	s.drains.mu.Lock()
	defer s.drains.mu.Unlock()
	k := s.drains.of(b, pool)
	all := max(ours+k.known-pool, ours, 1)
	k.share, k.known = max(float64(ours)/float64(all), leastShare), pool
	return pool < s.mark(k)
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

// deepestShown is how many of the deepest drained pools are shown as metrics: a series each, whatever the number of items.
const deepestShown = 5

// deepest shows the depth of the deepest drained pools by their rank.
type deepest struct {
	s    *Store
	desc *prometheus.Desc
}

func newDeepest(s *Store) deepest {
	return deepest{s, prometheus.NewDesc("twinhold_mysql_deepest_pool_ratio",
		"Units in the five deepest drained pools of which this process takes, as a part of their size, by rank (1 is the deepest).",
		[]string{"rank"}, nil)}
}

func (d deepest) Describe(ch chan<- *prometheus.Desc) { ch <- d.desc }

func (d deepest) Collect(ch chan<- prometheus.Metric) {
	for n, depth := range d.s.Deepest(deepestShown) {
		ch <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, float64(depth.Units)/float64(depth.Size), strconv.Itoa(n+1))
	}
}
