package shadow

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	depth   prometheus.Gauge
	breaker prometheus.Gauge
	panics  prometheus.Counter
	seconds *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer, pod string) *metrics {
	f := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r))
	return &metrics{
		depth: f.NewGauge(prometheus.GaugeOpts{
			Name: "twinhold_mirror_queue_operations",
			Help: "Operations that wait for the mirror or are under way in it.",
		}),
		breaker: f.NewGauge(prometheus.GaugeOpts{
			Name: "twinhold_mirror_breaker_state",
			Help: "The mirror's breaker: 0 closed, 1 half-open, 2 open.",
		}),
		panics: f.NewCounter(prometheus.CounterOpts{
			Name: "twinhold_mirror_panics_total",
			Help: "Panics contained in the mirror.",
		}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:                        "twinhold_mirror_operation_seconds",
			Help:                        "Time one operation took in the mirror, by result.",
			Buckets:                     prometheus.ExponentialBuckets(0.0005, 2, 14),
			NativeHistogramBucketFactor: 1.1,
		}, []string{"result"}),
	}
}
