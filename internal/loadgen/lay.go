package loadgen

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// builder turns steps into carts and events.
type builder struct {
	opts  PlanOptions
	ids   ids
	steps []step
	plan  Plan
	queue []pending
}

// pending is an event before it has its place.
type pending struct {
	Event
	order, nth, copyNo int
	exact              bool
}

// openCart is a cart that is still held, as far as the plan can tell.
type openCart struct {
	cart  int
	shop  int64
	lines map[[2]int64]int64
	ttl   time.Duration // unless it is left to expire
	end   int           // index of its claim or release in the queue; -1: left to expire
	endAt time.Time
}

// drawn gives a number from 0 to n-1 that depends on nothing but the words. It is the only chance there is.
func drawn(n uint64, words ...string) uint64 {
	h := sha256.New()
	for _, w := range words {
		// The length goes in too, so that no two lists of words read the same.
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(w))))
		h.Write([]byte(w))
	}
	return binary.BigEndian.Uint64(h.Sum(nil)) % n
}

// The shares: of 100 carts 80 are claimed, 12 released, 8 left to expire; one request in 20 is sent again.
const (
	shareClaimed  = 80
	shareReleased = 12
	retriedOneIn  = 20
)

func fateOf(name string, copyNo int) Fate {
	switch n := drawn(100, "fate", name, strconv.Itoa(copyNo)); {
	case n < shareClaimed:
		return FateClaim
	case n < shareClaimed+shareReleased:
		return FateRelease
	default:
		return FateExpire
	}
}

func retried(op reservation.Op, key string) bool {
	return drawn(retriedOneIn, "retry", op.String(), key) == 0
}

// decidesAfter is how long a buyer thinks: half a minute to four minutes of recorded time.
func decidesAfter(name string, copyNo int) time.Duration {
	return time.Duration(30+drawn(211, "pays after", name, strconv.Itoa(copyNo))) * time.Second
}

// key gives the key of a copy. Copies append #N, all of them or none, so that no two can meet.
func (b *builder) key(name string, copyNo int) string {
	if b.opts.Repeat > 1 {
		name += "#" + strconv.Itoa(copyNo)
	}
	return b.opts.KeyPrefix + name
}

// lay puts one copy of all steps into the queue.
func (b *builder) lay(copyNo int) error {
	carts := make(map[string]int)
	var open []openCart
	for order, s := range b.steps {
		at := pending{Event: Event{At: s.at, Attempt: 1, Cart: -1}, order: order, copyNo: copyNo, exact: s.exact}
		id := strconv.FormatInt(s.shop, 10) + ":" + s.name
		switch {
		case s.cart != nil:
			o := b.layCart(s, at)
			carts[id] = o.cart
			open = append(open, o)
		case s.back != nil:
			open = b.layCancellation(s, at, open)
		case s.adjust != nil:
			b.layAdjustment(*s.adjust, at)
		default:
			cart, known := carts[id]
			if !known {
				return &ParseError{File: s.file, Line: s.line, Reason: fmt.Sprintf("no line above reserves with the key %q", s.name)}
			}
			b.layRequest(s, at, cart)
		}
	}
	return nil
}

// layCart reserves, and ends the cart by its fate unless the file says how it ends.
func (b *builder) layCart(s step, at pending) openCart {
	c := Cart{Shop: s.shop, Key: b.key(s.name, at.copyNo), Invoice: s.name, Copy: at.copyNo, Lines: s.cart, TTL: s.ttl, Fate: FateExpire}
	if !s.exact {
		c.Fate = fateOf(s.name, at.copyNo)
	}
	if c.Fate == FateExpire && !s.exact && b.opts.ExpireTTL > 0 {
		c.TTL = b.opts.ExpireTTL
	}
	o := openCart{cart: len(b.plan.Carts), shop: s.shop, ttl: s.ttl, lines: make(map[[2]int64]int64, len(s.cart)), end: -1}
	for _, l := range s.cart {
		o.lines[[2]int64{l.Item, l.Group}] += l.Quantity
	}
	b.plan.Carts = append(b.plan.Carts, c)
	at.Op, at.Cart = reservation.OpReserve, o.cart
	b.queue = append(b.queue, at)
	if c.Fate == FateExpire {
		return o
	}
	at.Op, at.nth = reservation.OpClaim, 1
	if c.Fate == FateRelease {
		at.Op = reservation.OpRelease
	}
	at.At = s.at.Add(decidesAfter(s.name, at.copyNo))
	o.end, o.endAt = len(b.queue), at.At
	b.queue = append(b.queue, at)
	return o
}

// layCancellation. A cancellation names no invoice. It is taken as the release of the latest earlier cart that is
// still held at that moment and of which it gives back every line in full; the release takes the place of the
// cart's own ending. Whatever else it gives back (mostly goods sold long ago) is stock that comes back.
func (b *builder) layCancellation(s step, at pending, open []openCart) []openCart {
	rest := make(map[[2]int64]int64, len(s.back))
	for _, l := range s.back {
		rest[[2]int64{l.Item, l.Group}] = l.Quantity
	}
	for i := len(open) - 1; i >= 0; i-- {
		o := open[i]
		if o.shop != s.shop || o.end >= 0 && !o.endAt.After(s.at) || !covers(rest, o.lines) {
			continue
		}
		for bucket, q := range o.lines {
			rest[bucket] -= q
		}
		b.releaseNow(o, at)
		open = append(open[:i], open[i+1:]...)
		break
	}
	for _, l := range s.back {
		if l.Quantity = rest[[2]int64{l.Item, l.Group}]; l.Quantity > 0 {
			b.layAdjustment(*adjustmentOf(s, l, l.Quantity), at)
		}
	}
	return open
}

func covers(rest, cart map[[2]int64]int64) bool {
	for bucket, q := range cart {
		if rest[bucket] < q {
			return false
		}
	}
	return true
}

// releaseNow puts a release in the place of a cart's own ending.
func (b *builder) releaseNow(o openCart, at pending) {
	b.plan.Carts[o.cart].Fate, b.plan.Carts[o.cart].TTL = FateRelease, o.ttl
	b.count(&b.plan.Recorded.Released, at.copyNo)
	at.Op, at.Cart = reservation.OpRelease, o.cart
	if o.end < 0 {
		b.queue = append(b.queue, at)
		return
	}
	b.queue[o.end] = at
}

// count counts for the first copy only: Recorded speaks of the recording.
func (b *builder) count(n *int, copyNo int) {
	if copyNo == 1 {
		*n++
	}
}

func (b *builder) layAdjustment(a reservation.Adjustment, at pending) {
	if a.Delta > 0 {
		b.count(&b.plan.Recorded.Returns, at.copyNo)
	} else {
		b.count(&b.plan.Recorded.WriteOffs, at.copyNo)
	}
	a.ID = b.key(a.ID, at.copyNo)
	at.Op, at.Adjust = reservation.OpAdjust, a
	b.queue = append(b.queue, at)
}

// layRequest is a claim, a release or a retry that the file itself names.
func (b *builder) layRequest(s step, at pending, cart int) {
	at.Op, at.Cart = s.ends, cart
	switch {
	case s.again:
		at.Op, at.Attempt = reservation.OpReserve, 2
	case s.ends == reservation.OpClaim:
		b.plan.Carts[cart].Fate = FateClaim
	case s.ends == reservation.OpRelease && b.plan.Carts[cart].Fate != FateClaim:
		b.plan.Carts[cart].Fate = FateRelease
	}
	b.queue = append(b.queue, at)
}
