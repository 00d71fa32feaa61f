package loadgen

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/twinhold/twinhold/reservation"
)

// Stock says how much there is of every bucket. The zero Stock is plenty.
type Stock struct {
	scarce bool
	each   int64 // with fixed
	fixed  bool
}

// Plenty covers all demand: what all carts together want, and all write-offs.
func Plenty() Stock { return Stock{} }

// Scarce is Plenty, but a bucket that at least 5 carts of the recording want has only 60% of its demand, though
// never less than its largest line.
func Scarce() Stock { return Stock{scarce: true} }

// Each gives every bucket the same.
func Each(n int64) Stock { return Stock{each: n, fixed: true} }

// Of a bucket that this many carts want, only so much of its demand is there when stock is scarce.
const (
	scarceCarts   = 5
	scarcePercent = 60
)

// ParseStock reads scarce, plenty or a number.
func ParseStock(s string) (Stock, error) {
	switch s {
	case "plenty":
		return Plenty(), nil
	case "scarce":
		return Scarce(), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > reservation.MaxOnHand {
		return Stock{}, fmt.Errorf("stock %q is unknown: use scarce, plenty or a whole number from 0 to %d", s, int64(reservation.MaxOnHand))
	}
	return Each(n), nil
}

// String is the inverse of ParseStock.
func (s Stock) String() string {
	switch {
	case s.fixed:
		return strconv.FormatInt(s.each, 10)
	case s.scarce:
		return "scarce"
	default:
		return "plenty"
	}
}

// want is what one copy of a recording wants of a bucket.
type want struct {
	carts           int
	demand, largest int64 // the largest of one cart's sums
	back            int64 // comes back
}

// amount is the first stock of one copy.
func (s Stock) amount(w want) int64 {
	switch {
	case s.fixed:
		return s.each
	case s.scarce && w.carts >= scarceCarts:
		return max(w.demand*scarcePercent/100, w.largest)
	default:
		return w.demand
	}
}

// stockFor gives every bucket of the steps its first stock, those too that are only given back.
func stockFor(steps []step, o PlanOptions) ([]reservation.Stocking, error) {
	wants := make(map[reservation.Bucket]*want)
	of := func(b reservation.Bucket) *want {
		w := wants[b]
		if w == nil {
			w = new(want)
			wants[b] = w
		}
		return w
	}
	for _, s := range steps {
		sums := make(map[reservation.Bucket]int64, len(s.cart))
		for _, l := range s.cart {
			sums[l.Bucket(s.shop)] += l.Quantity
		}
		for b, q := range sums {
			w := of(b)
			w.carts++
			w.demand += q
			w.largest = max(w.largest, q)
		}
		for _, l := range s.back {
			of(l.Bucket(s.shop)).back += l.Quantity
		}
		if s.adjust != nil && s.adjust.Delta < 0 {
			of(s.adjust.Bucket).demand -= s.adjust.Delta
		} else if s.adjust != nil {
			of(s.adjust.Bucket).back += s.adjust.Delta
		}
		if err := withinBounds(s, sums, of, o); err != nil {
			return nil, err
		}
	}
	out := make([]reservation.Stocking, 0, len(wants))
	for b, w := range wants {
		out = append(out, reservation.Stocking{Bucket: b, Quantity: o.Stock.amount(*w) * int64(o.Repeat)})
	}
	slices.SortFunc(out, func(a, b reservation.Stocking) int { return a.Bucket.Compare(b.Bucket) })
	return out, nil
}

// withinBounds refuses what could pass the largest stock of a bucket. One step adds 2^50 at most, so that checking
// after each keeps every sum far from overflowing.
func withinBounds(s step, sums map[reservation.Bucket]int64, of func(reservation.Bucket) *want, o PlanOptions) error {
	check := func(b reservation.Bucket) error {
		w := of(b)
		room := int64(reservation.MaxOnHand) / int64(o.Repeat)
		if max(w.demand, o.Stock.each)+w.back > room {
			return &ParseError{File: s.file, Line: s.line, Reason: fmt.Sprintf(
				"with this, bucket %s would need more than %d pieces in all: repeat it less, or give it less stock", b, int64(reservation.MaxOnHand))}
		}
		return nil
	}
	for b := range sums {
		if err := check(b); err != nil {
			return err
		}
	}
	for _, l := range s.back {
		if err := check(l.Bucket(s.shop)); err != nil {
			return err
		}
	}
	if s.adjust != nil {
		return check(s.adjust.Bucket)
	}
	return nil
}
