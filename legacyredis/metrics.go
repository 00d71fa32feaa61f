package legacyredis

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the store's figures. Each carries the pod.
type metrics struct {
	scripts       *prometheus.HistogramVec // script
	replies       *prometheus.CounterVec   // script, status
	retries       *prometheus.CounterVec   // script, class
	failed        *prometheus.CounterVec   // script, class
	noscript      prometheus.Counter
	late          *prometheus.CounterVec // how
	unknown       *prometheus.CounterVec // end
	paidConflicts *prometheus.CounterVec // state
	unfinished    *prometheus.CounterVec // class
	rolled        *prometheus.CounterVec // kind
	skipped       *prometheus.CounterVec // reason
	forcedAdjust  prometheus.Counter
}

func newMetrics(r prometheus.Registerer, pod string) *metrics {
	if r != nil {
		r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
	}
	f := promauto.With(r)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "twinhold", Subsystem: "redis", Name: name, Help: help}, labels)
	}
	return &metrics{
		scripts: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "twinhold", Subsystem: "redis", Name: "script_seconds",
			Help:    "Time from sending a script to its answer, retries included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15), NativeHistogramBucketFactor: 1.1,
		}, []string{"script"}),
		replies:       counter("replies_total", "Answers of scripts by status.", "script", "status"),
		retries:       counter("retries_total", "Attempts that were made again, by what went wrong.", "script", "class"),
		failed:        counter("failed_total", "Calls that ended without an answer, by what went wrong.", "script", "class"),
		noscript:      counter("noscript_total", "Scripts that Redis did not have and was sent in full.").WithLabelValues(),
		late:          counter("late_claims_total", "Claims past their expiry, or of lost holds, by how they were settled (available, forced, refused, adopted).", "how"),
		unknown:       counter("unknown_claims_total", "Claims of ids that Redis did not know: adopted from the ledger's side, or not found.", "end"),
		paidConflicts: counter("claim_conflicts_total", "Claims of reservations that had ended, by state: somebody has paid.", "state"),
		unfinished:    counter("unfinished_total", "Claims and adjustments in the ledger whose last step in Redis was left to the sweeper.", "class"),
		rolled:        counter("pins_rolled_forward_total", "Pins older than their lease that the sweeper completed.", "kind"),
		skipped:       counter("sweep_skipped_total", "Due records that the sweeper could not handle.", "reason"),
		forcedAdjust:  counter("forced_adjustments_total", "Adjustments that went below what is promised.").WithLabelValues(),
	}
}
