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
	refills     *prometheus.CounterVec   // by how
	refillUnits prometheus.Counter
	forced      *prometheus.CounterVec // by path
	late        *prometheus.CounterVec // by outcome
	expired     prometheus.Counter
	purged      prometheus.Counter
	skipped     prometheus.Counter

	waiting       prometheus.GaugeFunc
	batch         *prometheus.HistogramVec // by lane
	laneWait      prometheus.Histogram
	laneDropped   prometheus.Counter
	laneApart     *prometheus.CounterVec // by reason
	soldOutMemory prometheus.Counter
	budgetWait    *prometheus.HistogramVec // by class
	sweepPause    prometheus.Counter
	depth         prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, pod string, waiting func() float64, depths prometheus.Collector) *metrics {
	if r != nil {
		r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
		r.MustRegister(depths)
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
		retries:     vec("retries_total", "Transactions run again, by reason (1213, 1205, 1062, lost, race, time_limit, fence, commit, not_plain).", "reason"),
		unknown:     vec("unknown_outcomes_total", "Commits whose outcome no look-up settled before the deadline, by path.", "path"),
		busy:        vec("busy_total", "Rounds that found enough units but locked by others, by path.", "path"),
		refills:     vec("refills_total", "Refills of a bucket's pool: inline, for which a caller waited, or background.", "how"),
		refillUnits: counter("refill_units_total", "Units that refills put into pools."),
		forced:      vec("forced_units_total", "Units taken although they were promised to others or not there, by path.", "path"),
		late:        vec("late_claims_total", "Claims past their expiry, by outcome.", "outcome"),
		expired:     counter("expired_total", "Holds that this process expired."),
		purged:      counter("purged_total", "Records that this process purged past their retention."),
		skipped:     counter("sweep_skipped_total", "Due records that a sweep found locked or broken."),

		waiting: f.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "twinhold", Subsystem: "mysql", Name: "lane_waiting", Help: "Callers that wait in lanes now.",
		}, waiting),
		batch: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "mysql", Name: "lane_batch_members",
			Help:    "Callers that shared one transaction or look, by lane.",
			Buckets: prometheus.ExponentialBuckets(2, 2, 8), NativeHistogramBucketFactor: 1.1,
		}, []string{"lane"}),
		laneWait: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "mysql", Name: "lane_wait_seconds",
			Help:    "Time that a caller waited in a lane until its transaction began; who did not wait is not counted.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14), NativeHistogramBucketFactor: 1.1,
		}),
		laneDropped:   counter("lane_dropped_total", "Callers that had gone before their work began."),
		laneApart:     vec("lane_apart_total", "Callers that a shared transaction did not carry out and that were run alone, by reason (1213, 1205, 1062, lost, time_limit, commit, error, case).", "reason"),
		soldOutMemory: counter("sold_out_remembered_total", "Rejections from what another caller's look had found at most 50 ms before."),
		budgetWait: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "mysql", Name: "budget_wait_seconds",
			Help:    "Time that work waited since its class held all the connections that it may hold, by class (truth, mirror, refill, background); who did not wait is not counted.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14), NativeHistogramBucketFactor: 1.1,
		}, []string{"class"}),
		sweepPause: counter("sweep_pause_seconds_total", "Time that sweeps and purges paused, so as not to do more rows a second than they may."),
		depth: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "mysql", Name: "pool_depth_ratio",
			Help:    "Units in the pool of a bucket that was taken from, as a part of its size, when it was looked after.",
			Buckets: prometheus.LinearBuckets(0.1, 0.1, 10), NativeHistogramBucketFactor: 1.1,
		}),
	}
}
