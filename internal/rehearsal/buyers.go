package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
)

// The goods: few enough of each that some sell out.
const (
	items    = 24
	eachItem = 60
	group    = 1
	firstItm = 900_001
)

func (r *run) shop() int64 { return r.pod.Config.Shops[0].First }

func (r *run) bucket(n int) reservation.Bucket {
	return reservation.Bucket{Shop: r.shop(), Item: int64(firstItm + n), Group: group}
}

func (r *run) stock(ctx context.Context) error {
	stock := make([]reservation.Stocking, 0, items)
	for n := range items {
		stock = append(stock, reservation.Stocking{Bucket: r.bucket(n), Quantity: eachItem})
	}
	_, existing, err := r.pod.Stock(ctx, stock)
	if err == nil && len(existing) > 0 {
		err = fmt.Errorf("bucket %s is stocked already: a rehearsal brings its own goods", existing[0])
	}
	return err
}

// hold is a grant that its buyer has not ended yet.
type hold struct {
	id    reservation.ID
	lines []reservation.Line
}

// buyers buy, give up, and retry with the same key through the other router.
type buyers struct {
	r    *run
	shop int64

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every answer
	counts  Buyers
	kept    map[reservation.Truth][]hold
	keeping int
	claimed map[reservation.ID]bool // by what the buyers were told
	ended   map[reservation.ID]bool // released
	wrong   []string
}

func (r *run) startBuyers(ctx context.Context) (*buyers, func()) {
	b := &buyers{
		r: r, shop: r.shop(), changed: make(chan struct{}), kept: map[reservation.Truth][]hold{},
		claimed: map[reservation.ID]bool{}, ended: map[reservation.ID]bool{},
		counts: Buyers{Granted: map[string]int{}, Rejected: map[string]int{}},
	}
	buying, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for n := range r.opt.Clients {
		group.Go(func() { b.buy(ctx, buying, n) })
	}
	return b, func() {
		cancel()
		group.Wait()
	}
}

// buy buys one cart after the other until it is told to stop; a cart that was begun is brought to its end.
func (b *buyers) buy(ctx, buying context.Context, n int) {
	for i := 0; buying.Err() == nil; i++ {
		b.cart(ctx, fmt.Sprintf("rehearsal-%d-%d", n, i))
		wait(buying, time.Duration(20+rand.IntN(60))*time.Millisecond)
	}
}

func (b *buyers) cart(ctx context.Context, key string) {
	lines := []reservation.Line{{Item: int64(firstItm + rand.IntN(items)), Group: group, Quantity: 1}}
	var rec reservation.Record
	if !b.retried(ctx, "reserve "+key, func(ctx context.Context, r *router.Router) error {
		res, err := r.Reserve(ctx, b.shop, key, lines, 0)
		rec = res.Record
		return err
	}) {
		return
	}
	if !b.answered(rec) || b.keepIt(rec) {
		return
	}
	b.end(ctx, rec.ID, rand.IntN(100) < paid) // what is given up is sold to the next: the load lasts
}

// paid is how many buyers of a hundred pay.
const paid = 15

// end claims or releases a hold.
func (b *buyers) end(ctx context.Context, id reservation.ID, claim bool) bool {
	what := "release " + id.String()
	if claim {
		what = "claim " + id.String()
	}
	ok := b.retried(ctx, what, func(ctx context.Context, r *router.Router) error {
		if !claim {
			_, err := r.Release(ctx, b.shop, id)
			return err
		}
		res, err := r.Claim(ctx, b.shop, id)
		if err == nil && res.Record.State != reservation.Claimed {
			err = fmt.Errorf("a claim in time was told %s", res.Record.State)
		}
		return err
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !ok:
	case claim:
		b.claimed[id] = true
		b.counts.Claimed++
	default:
		b.ended[id] = true
		b.counts.Released++
	}
	return ok
}

// patience bounds one operation with all its retries, and attempt one of them.
const (
	patience = 20 * time.Second
	attempt  = 3 * time.Second
)

// retried sends an operation until it is answered, through the routers in turn. Only errors that promise that a retry
// with the same key is right are retried; any other is a complaint.
func (b *buyers) retried(ctx context.Context, what string, send func(context.Context, *router.Router) error) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for n := rand.IntN(routers); ; n++ {
		try, done := context.WithTimeout(ctx, attempt)
		err := send(try, b.r.sets[n%routers].Router)
		done()
		if err == nil {
			return true
		}
		if reservation.CodeOf(err) != reservation.CodeUnavailable && !errors.Is(err, context.DeadlineExceeded) {
			b.complain("%s by router-%d in %s: %v", what, n%routers+1, b.r.sets[n%routers].Pods[0].Router.Stamp().Stage, err)
			return false
		}
		b.mu.Lock()
		b.counts.Retries++
		b.mu.Unlock()
		wait(ctx, 5*time.Millisecond)
		if ctx.Err() != nil {
			b.complain("%s: no answer in %v: %v", what, patience, err)
			return false
		}
	}
}

func (b *buyers) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, "a buyer was told: "+fmt.Sprintf(format, args...))
}

// answered counts an answer, and tells whether it is a grant.
func (b *buyers) answered(rec reservation.Record) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	to := b.counts.Granted
	if rec.Outcome != reservation.Granted {
		to = b.counts.Rejected
	}
	to[rec.DecidedBy.String()]++
	close(b.changed)
	b.changed = make(chan struct{})
	return rec.Outcome == reservation.Granted
}

// keepIt keeps a hold aside, if some are asked for.
func (b *buyers) keepIt(rec reservation.Record) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keeping == 0 {
		return false
	}
	b.keeping--
	b.kept[rec.DecidedBy] = append(b.kept[rec.DecidedBy], hold{rec.ID, rec.Lines})
	return true
}

// await returns once a store has decided n more grants than now.
func (b *buyers) await(ctx context.Context, by reservation.Truth, n int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	target := -1
	for {
		b.mu.Lock()
		have, changed := b.counts.Granted[by.String()]+b.counts.Rejected[by.String()], b.changed
		b.mu.Unlock()
		if target < 0 {
			target = have + n
		}
		if have >= target {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s has decided %d of %d reserves that were waited for: %w", by, have, target, context.Cause(ctx))
		}
	}
}

// keep has the next n grants kept aside, and gives them.
func (b *buyers) keep(ctx context.Context, n int) []hold {
	b.mu.Lock()
	b.keeping = n
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		b.mu.Lock()
		left, changed := b.keeping, b.changed
		if left == 0 || ctx.Err() != nil {
			b.keeping = 0
			var out []hold
			for _, hs := range b.kept {
				out = append(out, hs...)
			}
			b.kept = map[reservation.Truth][]hold{}
			b.mu.Unlock()
			return out
		}
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// claimKept claims the holds that were kept aside, each twice, and says how many are claimed.
func (b *buyers) claimKept(ctx context.Context, held []hold) Kept {
	k := Kept{Held: len(held)}
	for _, h := range held {
		first := b.end(ctx, h.id, true)
		if again := b.end(ctx, h.id, true); first && again {
			k.Claimed++
		}
	}
	return k
}

func (b *buyers) count() Buyers {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Claimed = len(b.claimed)
	return b.counts
}

// complaints compares what the buyers were told with MySQL's books: each claimed once, nothing claimed that nobody
// claimed, on_hand lowered by exactly that.
func (b *buyers) complaints(ms *reservation.Snapshot) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := append([]string{}, b.wrong...)
	sold := map[reservation.Bucket]int64{}
	for _, rec := range ms.Records {
		mine := rec.Shop == b.shop && len(rec.Lines) == 1 && rec.Lines[0].Item >= firstItm
		if !mine {
			continue
		}
		told := b.claimed[rec.ID]
		if told != (rec.State == reservation.Claimed) {
			out = append(out, fmt.Sprintf("reservation %s is %s, and its buyer was told claimed: %t", rec.ID, rec.State, told))
		}
		if rec.State == reservation.Claimed {
			sold[rec.Lines[0].Bucket(rec.Shop)] += rec.Lines[0].Quantity
		}
	}
	for _, st := range ms.Buckets {
		if st.Bucket.Shop == b.shop && st.Bucket.Item >= firstItm && st.OnHand != eachItem-sold[st.Bucket] {
			out = append(out, fmt.Sprintf("I6: bucket %s has %d on hand after %d of %d were claimed", st.Bucket, st.OnHand, sold[st.Bucket], eachItem))
		}
	}
	return out
}
