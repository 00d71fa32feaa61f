package bench

import (
	"context"
	"fmt"
	"time"
)

// The parts of Cost: what grows in each.
const (
	partStock = "stock"
	partHolds = "holds"
	partLines = "lines"
)

// cartStock is the stock of each bucket where carts have many lines. It is little, since 749 buckets are filled, and it
// is enough, since a caller that is alone gives back what it took.
const cartStock = 100

// costSchemes are one scheme, the pool with its defaults, at growing sizes. Every call is a reserve and the release of
// what it took, so that a size stays what it is while it is measured.
func costSchemes() []scheme {
	var all []scheme
	for _, n := range []int64{10, 1_000, 100_000, 10_000_000} {
		// With 10 in stock most of many callers are rejected: it is no base.
		all = append(all, costScheme(fmt.Sprintf("one bucket with %d in stock", n), size{part: partStock, base: "stock_1000", stock: n}, n, setUpPool))
	}
	for _, n := range []int64{0, 1_000, 30_000, 300_000} {
		all = append(all, costScheme(fmt.Sprintf("one bucket under %d live holds of others", n), size{part: partHolds, base: "holds_0"}, n, setUpHolds(n)))
	}
	for _, n := range []int{1, 10, 100, 749} {
		z := size{part: partLines, base: "lines_1", stock: cartStock, lines: n, alone: true}
		all = append(all, costScheme(fmt.Sprintf("carts of %s, one unit each, of a bucket a line", count(n, "line", "lines")), z, int64(n), setUpPool))
	}
	return all
}

func costScheme(what string, z size, n int64, setUp func(context.Context, place, int64) (int64, error)) scheme {
	s := poolScheme(fmt.Sprintf("%s_%d", z.part, n), "a reserve and its release: "+what, false)
	s.size, s.setUp = z, setUp
	return s
}

// setUpHolds sets a pool up that has so many live holds.
func setUpHolds(n int64) func(context.Context, place, int64) (int64, error) {
	return func(ctx context.Context, p place, stock int64) (int64, error) {
		laid, err := setUpPool(ctx, p, stock)
		if err != nil {
			return laid, err
		}
		h := holds{seed: uint64(time.Now().UnixMilli()), last: uint64(n)}
		return laid + n, h.lay(ctx, p, newPicker(p.Buckets, 0, h.seed))
	}
}
