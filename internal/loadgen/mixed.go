package loadgen

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// MixedOptions shape a workload that no shop recorded: many carts over few hot buckets.
type MixedOptions struct {
	// Seed makes the workload: the same seed, the same plan.
	Seed uint64
	// Shop owns all buckets. Needed.
	Shop int64
	// Carts is the number of reserves. Default 1,000.
	Carts int
	// Buckets is the number of buckets, items 1..N of group 1. Default 5. The first is the hottest: it is wanted
	// twice as often as the second, three times as often as the third.
	Buckets int
	// StockEach is the first stock of each bucket. Default: half of what is wanted of it.
	StockEach int64
	// MaxLines and MaxQuantity bound a cart. Default 3 and 5.
	MaxLines    int
	MaxQuantity int64
	// Adjustments is how many of 100 carts come with an adjustment of one of their buckets, up or down. Default 0.
	Adjustments int
	// TTL goes with each reserve; 0 leaves it to the target.
	TTL time.Duration
	// KeyPrefix stands before every key. Default "mixed-<seed>-".
	KeyPrefix string
}

func (o MixedOptions) withDefaults() MixedOptions {
	if o.Carts == 0 {
		o.Carts = 1000
	}
	if o.Buckets == 0 {
		o.Buckets = 5
	}
	if o.MaxLines == 0 {
		o.MaxLines = 3
	}
	if o.MaxQuantity == 0 {
		o.MaxQuantity = 5
	}
	if o.KeyPrefix == "" {
		o.KeyPrefix = "mixed-" + strconv.FormatUint(o.Seed, 10) + "-"
	}
	return o
}

func (o MixedOptions) validate() error {
	switch {
	case o.Shop <= 0:
		return fmt.Errorf("shop %d is not a shop id: use a positive whole number", o.Shop)
	case o.Carts < 1 || o.Carts > 10_000_000:
		return fmt.Errorf("%d carts are out of range: use 1 to 10000000", o.Carts)
	case o.Buckets < 1 || o.Buckets > 100_000:
		return fmt.Errorf("%d buckets are out of range: use 1 to 100000", o.Buckets)
	case o.MaxLines < 1 || o.MaxLines > reservation.MaxLines:
		return fmt.Errorf("%d lines are out of range: use 1 to %d", o.MaxLines, reservation.MaxLines)
	case o.MaxQuantity < 1 || o.MaxQuantity > reservation.MaxQuantity/reservation.MaxLines:
		return fmt.Errorf("a quantity of %d is out of range: use 1 to %d", o.MaxQuantity, reservation.MaxQuantity/reservation.MaxLines)
	case o.StockEach < 0 || o.StockEach > reservation.MaxOnHand/2:
		return fmt.Errorf("a stock of %d is out of range: use 0 (half of what is wanted) to %d", o.StockEach, int64(reservation.MaxOnHand/2))
	case o.Adjustments < 0 || o.Adjustments > 100:
		return errors.New("adjustments are a percentage: use 0 to 100")
	case o.TTL < 0:
		return errors.New("the ttl is negative: use a positive duration, or 0 for the default")
	default:
		return nil
	}
}

// Mixed makes a plan from a seed. Carts end as recorded ones do: most are claimed, some released, some left to
// expire, and one call in twenty is sent again.
func Mixed(o MixedOptions) (Plan, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Plan{}, err
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x74776968)) // the second word only sets our streams apart
	b := &builder{
		opts: PlanOptions{Shop: o.Shop, Repeat: 1, KeyPrefix: o.KeyPrefix},
		plan: Plan{Recorded: Recorded{Rows: o.Carts, NotGoods: make(map[string]int)}},
	}
	pick := hotter(rng, o.Buckets)
	demand := make([]int64, o.Buckets+1)
	at := time.Unix(0, 0).UTC()
	for i := range o.Carts {
		at = at.Add(time.Duration(rng.IntN(4)) * time.Second)
		s := step{at: at, shop: o.Shop, name: strconv.Itoa(i), file: "mixed", line: i + 1, ttl: o.TTL}
		for range 1 + rng.IntN(o.MaxLines) {
			l := reservation.Line{Item: pick(), Group: 1, Quantity: 1 + rng.Int64N(o.MaxQuantity)}
			demand[l.Item] += l.Quantity
			s.cart = append(s.cart, l)
		}
		b.addReserve(s)
		if rng.IntN(100) < o.Adjustments {
			delta := 1 + rng.Int64N(o.MaxQuantity)
			if rng.IntN(2) == 0 {
				delta = -delta
			}
			a := step{at: at, shop: o.Shop, name: s.name, file: s.file, line: s.line}
			a.adjust = adjustmentOf(a, s.cart[0], delta)
			b.steps = append(b.steps, a)
		}
	}
	if err := b.lay(1); err != nil {
		return Plan{}, err
	}
	for item := 1; item <= o.Buckets; item++ {
		stock := o.StockEach
		if stock == 0 {
			stock = demand[item] / 2
		}
		b.plan.Stock = append(b.plan.Stock, reservation.Stocking{
			Bucket: reservation.Bucket{Shop: o.Shop, Item: int64(item), Group: 1}, Quantity: stock,
		})
	}
	return b.finish()
}

// hotter picks items 1..n, the k-th with a weight of 1/k.
func hotter(rng *rand.Rand, n int) func() int64 {
	sums := make([]float64, n)
	var sum float64
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func() int64 {
		i, _ := slices.BinarySearch(sums, rng.Float64()*sum)
		return int64(min(i, n-1) + 1)
	}
}
