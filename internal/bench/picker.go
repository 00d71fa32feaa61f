package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// picker chooses buckets: evenly, or by Zipf: the bucket of rank k is wanted 1/k^skew times as often as the first. It
// is one goroutine's.
type picker struct {
	rnd *rand.Rand
	n   int
	cum []float64 // nil: evenly
}

func newPicker(buckets int, skew float64, seed uint64) *picker {
	p := &picker{rnd: rand.New(rand.NewPCG(seed, 1)), n: buckets}
	if skew > 0 && buckets > 1 {
		p.cum = zipf(buckets, skew)
	}
	return p
}

// zipf sums the weights.
func zipf(buckets int, skew float64) []float64 {
	cum := make([]float64, buckets)
	sum := 0.0
	for k := range cum {
		sum += math.Pow(float64(k+1), -skew)
		cum[k] = sum
	}
	return cum
}

func (p *picker) next() int {
	switch {
	case p.n == 1:
		return 0
	case p.cum == nil:
		return p.rnd.IntN(p.n)
	}
	at, _ := slices.BinarySearch(p.cum, p.rnd.Float64()*p.cum[p.n-1])
	return min(at, p.n-1)
}
