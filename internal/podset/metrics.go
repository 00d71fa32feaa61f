package podset

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// turnMetrics are those of catch-up's turns; shadow's own are of what they found.
type turnMetrics struct {
	turns                 *prometheus.CounterVec
	walked, of            prometheus.Gauge
	last, seconds, behind prometheus.Gauge
	differences           *prometheus.GaugeVec
	frozen                prometheus.Counter
}

func newTurnMetrics(pod string, r prometheus.Registerer) *turnMetrics {
	f := promauto.With(ofPod(pod, r))
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "twinhold", Subsystem: "catchup", Name: name, Help: help})
	}
	return &turnMetrics{
		turns: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "twinhold", Subsystem: "catchup", Name: "turns_total",
			Help: "Turns of catch-up by this router, by what they looked at (missed: what its mirror missed; new; round: a part of the full round; handover: all, at once) and result (ok, failed).",
		}, []string{"turn", "result"}),
		differences: f.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "twinhold", Subsystem: "catchup", Name: "differences",
			Help: "Differences without a known cause that this router has found in enough full rounds in a row, by kind: a person has to mend them.",
		}, []string{"kind"}),
		frozen: f.NewCounter(prometheus.CounterOpts{
			Namespace: "twinhold", Subsystem: "catchup", Name: "frozen_buckets_total",
			Help: "Buckets that this router has frozen for a difference that lasts.",
		}),
		walked:  gauge("round_walked_records", "Reservations that the full round under way has walked; 0 where this router does not run it."),
		of:      gauge("round_records", "Reservations that the full round under way has to walk, as it began; 0 where this router does not run it."),
		last:    gauge("last_round_timestamp_seconds", "When this router last ended a full round; 0: not yet. Of a pod's routers one runs the rounds."),
		seconds: gauge("last_round_seconds", "Time that the last full round took which this router ended."),
		behind:  gauge("new_behind_seconds", "How long ago that was made which the quick turns of this router came to last; the settle time at least."),
	}
}

// turn counts a turn, and gives its error.
func (m *turnMetrics) turn(what string, err error) error {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.turns.WithLabelValues(what, result).Inc()
	return err
}

// show publishes how far the round is.
func (m *turnMetrics) show(at Progress) {
	m.walked.Set(float64(at.Walked))
	m.of.Set(float64(at.Of))
	if at.Began.IsZero() && !at.LastEnded.IsZero() {
		m.last.Set(float64(at.LastEnded.UnixMilli()) / 1000)
		m.seconds.Set(at.LastEnded.Sub(at.LastBegan).Seconds())
	}
}
