package mysqlstore

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	duration    *prometheus.HistogramVec // by path
	retries     *prometheus.CounterVec   // by reason
	unknown     *prometheus.CounterVec   // by path
	busy        *prometheus.CounterVec   // by path
	refills     prometheus.Counter
	refillUnits prometheus.Counter
	forced      *prometheus.CounterVec // by path
	late        *prometheus.CounterVec // by outcome
	expired     prometheus.Counter
	purged      prometheus.Counter
	skipped     prometheus.Counter
}

func newMetrics(r prometheus.Registerer, pod string) *metrics {
	if r != nil {
		r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
	}
	f := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "twinhold", Subsystem: "mysql", Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "twinhold", Subsystem: "mysql", Name: name, Help: help}, []string{label})
	}
	return &metrics{
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "mysql", Name: "operation_duration_seconds",
			Help:                        "Time of one operation in MySQL with its retries, by path.",
			Buckets:                     prometheus.ExponentialBuckets(0.0005, 2, 14),
			NativeHistogramBucketFactor: 1.1,
		}, []string{"path"}),
		retries:     vec("retries_total", "Transactions run again, by reason (1213, 1205, 1062, lost, race, time_limit, fence, commit).", "reason"),
		unknown:     vec("unknown_outcomes_total", "Commits whose outcome no look-up settled before the deadline, by path.", "path"),
		busy:        vec("busy_total", "Rounds that found enough units but locked by others, by path.", "path"),
		refills:     counter("refills_total", "Inline refills of a bucket's pool."),
		refillUnits: counter("refill_units_total", "Units that refills put into pools."),
		forced:      vec("forced_units_total", "Units taken although they were promised to others or not there, by path.", "path"),
		late:        vec("late_claims_total", "Claims past their expiry, by outcome.", "outcome"),
		expired:     counter("expired_total", "Holds that this process expired."),
		purged:      counter("purged_total", "Records that this process purged past their retention."),
		skipped:     counter("sweep_skipped_total", "Due records that a sweep found locked or broken."),
	}
}
