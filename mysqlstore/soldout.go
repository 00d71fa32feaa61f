package mysqlstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/twinhold/twinhold/reservation"
)

const (
	// soldOutFor is how long a look is believed that found too little: so long another process's stock may stay unseen.
	soldOutFor = 50 * time.Millisecond
	// soldOutBuckets bounds the buckets that are remembered.
	soldOutBuckets = 4096
	// ownLooks is after how many looks of its own a caller's rejection stands, however long it takes to be stored.
	ownLooks = 3
)

// sighting is what a look without locks said of a bucket.
type sighting struct {
	level level
	at    time.Time // when the reply was there
	gen   uint64    // how often this process had changed the stock before the look
}

// soldOut remembers the buckets that a look found short, so that those who come next need no look of their own. What
// this process gives back makes it forget at once.
type soldOut struct {
	seed  maphash.Seed
	gens  [1024]atomic.Uint64 // by hash of the bucket; a collision forgets too much, never too little
	looks singleflight.Group

	mu   sync.Mutex
	seen map[reservation.Bucket]sighting
}

func newSoldOut() *soldOut {
	return &soldOut{seed: maphash.MakeSeed(), seen: map[reservation.Bucket]sighting{}}
}

func (o *soldOut) gen(b reservation.Bucket) *atomic.Uint64 {
	return &o.gens[maphash.Comparable(o.seed, b)%uint64(len(o.gens))]
}

// forget: the bucket's stock is not what was seen.
func (o *soldOut) forget(b reservation.Bucket) { o.gen(b).Add(1) }

// holds tells whether what was seen may still be believed.
func (o *soldOut) holds(g *sighting, now time.Time) bool {
	return now.Sub(g.at) < soldOutFor && o.gen(g.level.bucket).Load() == g.gen
}

// remember keeps a sighting that was short.
func (o *soldOut) remember(g sighting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[g.level.bucket]; !ok && len(o.seen) >= soldOutBuckets {
		for b := range o.seen { // any one: it costs a look
			delete(o.seen, b)
			break
		}
	}
	o.seen[g.level.bucket] = g
}

// short gives the sighting that says that this bucket lacks the quantity; nil if there is none that holds.
func (o *soldOut) short(b reservation.Bucket, quantity int64, now time.Time) *sighting {
	o.mu.Lock()
	g, ok := o.seen[b]
	if ok && !o.holds(&g, now) {
		delete(o.seen, b)
		ok = false
	}
	o.mu.Unlock()
	if !ok || g.level.available() >= quantity {
		return nil
	}
	return &g
}

// look counts a bucket without locks, once for all of this process that want to know at the same time and are
// of the same class: nobody waits for a look that waits for another class's connections.
func (s *Store) look(ctx context.Context, b reservation.Bucket) (sighting, error) {
	gen := s.soldOut.gen(b).Load()
	return coalesce(ctx, s, &s.soldOut.looks, fmt.Sprintf("%s %d %s", b, gen, classOf(ctx)), func(ctx context.Context) (sighting, error) {
		var ls []level
		err := s.read(ctx, "count", func(ctx context.Context) (err error) {
			ls, err = countLevels(ctx, s.reads, []reservation.Bucket{b})
			return err
		})
		if err != nil {
			return sighting{}, err
		}
		return sighting{level: ls[0], at: s.opts.Now(), gen: gen}, nil
	})
}
