package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	rounds   *prometheus.CounterVec // by source, result
	seconds  prometheus.Histogram
	findings *prometheus.GaugeVec // by check
	suspects prometheus.Gauge
	lag      prometheus.Gauge
	last     prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, pod string) *metrics {
	if r != nil {
		r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
	}
	f := promauto.With(r)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "twinhold", Subsystem: "reconcile", Name: name, Help: help})
	}
	m := &metrics{
		rounds: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "twinhold", Subsystem: "reconcile", Name: "rounds_total",
			Help: "Rounds of reconcile by this process, by where they read (primary, replica) and result (ok, failed).",
		}, []string{"source", "result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "reconcile", Name: "round_seconds",
			Help:                        "Time of one round of reconcile, its pauses included.",
			Buckets:                     prometheus.ExponentialBuckets(0.1, 2, 14),
			NativeHistogramBucketFactor: 1.1,
		}),
		findings: f.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "twinhold", Subsystem: "reconcile", Name: "findings",
			Help: "Faults in MySQL that this process has found in enough rounds in a row, by check.",
		}, []string{"check"}),
		suspects: gauge("suspects", "Faults that were found in fewer rounds so far."),
		lag:      gauge("replica_lag_seconds", "How far the replica was behind at the last round; 0 where none is configured."),
		last:     gauge("last_round_timestamp_seconds", "When this process last ended a round; 0: not yet. Of a pod's routers one runs the rounds."),
	}
	for _, c := range Checks() {
		m.findings.WithLabelValues(string(c))
	}
	return m
}
