package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

// DifferenceKind names what differs.
type DifferenceKind string

// The kinds. None of them is catch-up's to mend.
const (
	// DiffersRecord: both have it in the same state, with other lines, key, hash, shop or expiry.
	DiffersRecord DifferenceKind = "record"
	// DiffersClaim: claimed in Redis, not in MySQL, and the ledger has no entry of it.
	DiffersClaim DifferenceKind = "claim"
	// DiffersUnreadable: a store has a record that cannot be read.
	DiffersUnreadable DifferenceKind = "unreadable"
	// DiffersCounters: Redis's counters of a bucket do not add up: available is not on_hand - held, or on_hand is not the
	// ledger's of that version.
	DiffersCounters DifferenceKind = "counters"
	// DiffersHeld: what Redis counts as held of a quiet bucket is not the sum of its live reservations.
	DiffersHeld DifferenceKind = "held"
	// DiffersShort: MySQL has promised more of a bucket than there is, and Redis, with the same stock, has not.
	DiffersShort DifferenceKind = "short"
)

// DifferenceKinds lists them.
func DifferenceKinds() []DifferenceKind {
	return []DifferenceKind{DiffersRecord, DiffersClaim, DiffersUnreadable, DiffersCounters, DiffersHeld, DiffersShort}
}

// Difference is something that differs without a cause that catch-up knows, and that it may not or cannot mend.
type Difference struct {
	Kind DifferenceKind
	// ID is whose it is; zero: that of a bucket.
	ID reservation.ID
	// Buckets are those that it is about; none where nothing of them can be read.
	Buckets []reservation.Bucket
	// What says it in words, with its figures: the same words in the next round mean the same difference.
	What string
	// Redis and MySQL are the two records; nil where there is none, or it cannot be read.
	Redis, MySQL *reservation.Record
}

// Key is what makes two differences of two rounds the same.
func (d Difference) Key() string {
	if d.ID != (reservation.ID{}) {
		return string(d.Kind) + " " + d.ID.String()
	}
	return fmt.Sprintf("%s %v: %s", d.Kind, d.Buckets, d.What)
}

// differenceOf is what is left of one reservation.
func differenceOf(kind DifferenceKind, v view, what string) Difference {
	d := Difference{Kind: kind, ID: v.id(), What: what, Redis: v.redis, MySQL: v.mysql}
	switch {
	case v.redis != nil && v.mysql != nil && kind == DiffersRecord && !slices.Equal(v.redis.Lines, v.mysql.Lines):
		d.Buckets = unlike(v.redis, v.mysql)
	case v.any() != nil:
		d.Buckets = bucketsOf(v.any())
	}
	return d
}

func bucketsOf(r *reservation.Record) []reservation.Bucket {
	out := make([]reservation.Bucket, len(r.Lines))
	for i, l := range r.Lines {
		out[i] = l.Bucket(r.Shop)
	}
	return out
}

// unlike gives the buckets of which two records have another quantity.
func unlike(a, b *reservation.Record) []reservation.Bucket {
	quantity := map[reservation.Bucket]int64{}
	for _, l := range a.Lines {
		quantity[l.Bucket(a.Shop)] += l.Quantity
	}
	for _, l := range b.Lines {
		quantity[l.Bucket(b.Shop)] -= l.Quantity
	}
	var out []reservation.Bucket
	for b, n := range quantity {
		if n != 0 {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, reservation.Bucket.Compare)
	return out
}

// leaves notes a difference that is not catch-up's to mend. A claim whose entry the ledger has is on its way.
func (c *CatchUp) leaves(ctx context.Context, v view, s step, p *Part) error {
	p.Left = append(p.Left, s.left)
	kind := DiffersRecord
	if v.facts().redis == reservation.Claimed && v.facts().mysql != reservation.Claimed {
		kind = DiffersClaim
		_, err := c.opt.MySQL.ChangesOf(ctx, v.redis.Shop, v.redis.ID)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, reservation.ErrNotFound) && unusable(err):
			return c.reading(reservation.MySQL, err)
		}
	}
	p.Differ = append(p.Differ, differenceOf(kind, v, s.left))
	return nil
}

// Live is what live reservations of Redis sum to, by bucket.
type Live map[reservation.Bucket]Held

// Held is a bucket's sum; Pinned: a claim of one is under way, which may hold units or not.
type Held struct {
	Units  int64
	Pinned bool
}

// Count adds a record of Redis.
func (l Live) Count(r *reservation.Record) {
	if r == nil || !r.State.TakesUnits() {
		return
	}
	for _, line := range r.Lines {
		b := line.Bucket(r.Shop)
		h := l[b]
		h.Units += line.Quantity
		h.Pinned = h.Pinned || r.State == reservation.Claiming
		l[b] = h
	}
}

// Add adds the sums of another part.
func (l Live) Add(o Live) {
	for b, h := range o {
		sum := l[b]
		l[b] = Held{Units: sum.Units + h.Units, Pinned: sum.Pinned || h.Pinned}
	}
}

// CheckBucket judges a bucket's figures in Redis, which were read in one atomic step, against the ledger's. live, if not
// nil, is what its reservations sum to, where the figures did not move while they were walked.
func CheckBucket(ledger reservation.Figures, redis reservation.Availability, live *Held) (Difference, bool) {
	d := Difference{Kind: DiffersCounters, Buckets: []reservation.Bucket{ledger.Bucket}}
	switch {
	case redis.Available != redis.OnHand-redis.Held:
		d.What = fmt.Sprintf("available is %d in Redis, on_hand %d less held %d is %d", redis.Available, redis.OnHand, redis.Held, redis.OnHand-redis.Held)
	case redis.Version == ledger.Version && redis.OnHand != ledger.OnHand:
		d.What = fmt.Sprintf("on_hand is %d in Redis, %d in the ledger, at the same version %d", redis.OnHand, ledger.OnHand, ledger.Version)
	case live != nil && !live.Pinned && live.Units != redis.Held:
		d.Kind = DiffersHeld
		d.What = fmt.Sprintf("held is %d in Redis, its live reservations sum to %d", redis.Held, live.Units)
	default:
		return d, false
	}
	return d, true
}
