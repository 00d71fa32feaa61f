package bench

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	longest = int64(10 * time.Minute / time.Microsecond)
	digits  = 3
)

// newHistogram counts latencies in microseconds, to a tenth of a percent.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, digits) }

func record(h *hdrhistogram.Histogram, d time.Duration) {
	us := min(max(int64(d/time.Microsecond), 1), longest)
	_ = h.RecordValue(us) // it is in range
}

// quantileMS is a quantile in milliseconds; q is a percentage.
func quantileMS(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / 1000
}

func encodeHistogram(h *hdrhistogram.Histogram) ([]byte, error) {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("encode latencies: %w", err)
	}
	return b, nil
}

func decodeHistogram(b []byte) (*hdrhistogram.Histogram, error) {
	h, err := hdrhistogram.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("decode latencies: %w", err)
	}
	return h, nil
}
