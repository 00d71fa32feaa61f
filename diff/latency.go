package diff

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// Latencies are counted in buckets whose bounds grow by a twentieth, so that counts of any number of processes can be
// added up and a quantile is at most a twentieth too high.
const (
	lowestMS      = 0.01
	bucketStep    = 1.05
	latencyGroups = 322 // up to a minute; what takes longer counts as a minute
)

// histogram counts latencies by bucket.
type histogram struct{ n [latencyGroups]int64 }

func (h *histogram) add(took time.Duration) { h.n[latencyGroup(took)]++ }

func latencyGroup(took time.Duration) int {
	ms := took.Seconds() * 1000
	if ms <= lowestMS {
		return 0
	}
	return min(int(math.Ceil(math.Log(ms/lowestMS)/math.Log(bucketStep)-1e-9)), latencyGroups-1)
}

// boundName is a bucket's name in the tally table: its upper bound in milliseconds, to four digits.
func boundName(group int) string {
	bound := lowestMS * math.Pow(bucketStep, float64(group))
	return strconv.FormatFloat(boundOf(strconv.FormatFloat(bound, 'g', 4, 64)), 'f', -1, 64)
}

// boundOf reads a bucket's name; what no version of this program wrote counts as the lowest.
func boundOf(name string) float64 {
	bound, err := strconv.ParseFloat(name, 64)
	if err != nil {
		return 0
	}
	return bound
}

// Latency is a distribution's two figures, in milliseconds, at most a twentieth too high.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func (h *histogram) latency() Latency {
	counts := map[float64]int64{}
	for group, n := range h.n {
		if n > 0 {
			counts[boundOf(boundName(group))] = n
		}
	}
	return latencyOf(counts)
}

// latencyOf reads the two figures from counts by upper bound.
func latencyOf(counts map[float64]int64) Latency {
	bounds := slices.SortedFunc(maps.Keys(counts), cmp.Compare[float64])
	total := int64(0)
	for _, n := range counts {
		total += n
	}
	at := func(q float64) float64 {
		rank, seen := int64(math.Ceil(q*float64(total))), int64(0)
		for _, b := range bounds {
			if seen += counts[b]; seen >= rank {
				return b
			}
		}
		return 0
	}
	return Latency{P50: at(0.50), P99: at(0.99)}
}
