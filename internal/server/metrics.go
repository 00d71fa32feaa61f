package server

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	duration *prometheus.HistogramVec // by op, code
	inFlight prometheus.Gauge
	panics   *prometheus.CounterVec // by op
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "api", Name: "call_duration_seconds",
			Help:                        "Time of one call of the data API, by operation and code. A call that could not be read has no operation and is not here.",
			Buckets:                     prometheus.ExponentialBuckets(0.0005, 2, 14),
			NativeHistogramBucketFactor: 1.1,
		}, []string{"op", "code"}),
		inFlight: f.NewGauge(prometheus.GaugeOpts{
			Namespace: "twinhold", Subsystem: "api", Name: "calls_in_flight", Help: "Calls of the data API that are under way.",
		}),
		panics: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "twinhold", Subsystem: "api", Name: "panics_total", Help: "Panics contained in calls of the data API.",
		}, []string{"op"}),
	}
}
