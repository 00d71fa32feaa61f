package shadow

import (
	"errors"

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

// registered registers a collector, or gives the one that is registered already: a pod's catch-up and its restore are
// made anew each time that they run.
func registered[C prometheus.Collector](r prometheus.Registerer, c C) (C, error) {
	err := r.Register(c)
	var again prometheus.AlreadyRegisteredError
	if errors.As(err, &again) {
		if old, ok := again.ExistingCollector.(C); ok {
			return old, nil
		}
	}
	return c, err
}

type catchUpMetrics struct {
	repairs     *prometheus.CounterVec
	drained     prometheus.Counter
	figures     prometheus.Counter
	debt, units *prometheus.GaugeVec
	drains      *prometheus.GaugeVec
	differing   prometheus.Gauge
}

func newCatchUpMetrics(r prometheus.Registerer, pod string) (*catchUpMetrics, error) {
	r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
	m := &catchUpMetrics{}
	var errs [7]error
	m.repairs, errs[0] = registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "twinhold_catchup_repairs_total",
		Help: "Records that catch-up wrote, by the store written and by what was wrong there.",
	}, []string{"store", "was"}))
	m.drained, errs[1] = registered(r, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "twinhold_catchup_marks_drained_total",
		Help: "Marks removed because Redis has the outcome now.",
	}))
	m.figures, errs[2] = registered(r, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "twinhold_catchup_figures_total",
		Help: "Ledger figures that Redis lacked and was given.",
	}))
	m.debt, errs[3] = registered(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "twinhold_debt_reservations",
		Help: "Reservations that one store lacks, at the last full round or survey, by kind: live and missing in MySQL; live, missing in Redis and marked, or unconfirmed; differing: ended ones and rejections.",
	}, []string{"kind"}))
	m.units, errs[4] = registered(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "twinhold_debt_units",
		Help: "Units of the live reservations that one store lacks, at the last full round or survey, by kind.",
	}, []string{"kind"}))
	m.differing, errs[5] = registered(r, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "twinhold_view_differences",
		Help: "Ended reservations and rejections that differ between the stores, at the last full round or survey.",
	}))
	m.drains, errs[6] = registered(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "twinhold_debt_drains_seconds",
		Help: "How long it took, from the last full round or survey on, until the last of them has ended by itself, by kind.",
	}, []string{"kind"}))
	return m, errors.Join(errs[:]...)
}

// show publishes what a survey or a full round found.
func (m *catchUpMetrics) show(l Lacks) {
	for kind, d := range l.By() {
		m.debt.WithLabelValues(kind).Set(float64(d.Reservations))
		m.units.WithLabelValues(kind).Set(float64(d.Units))
		m.drains.WithLabelValues(kind).Set(d.DrainsInS)
	}
	m.differing.Set(float64(l.Differing))
}

type restoreMetrics struct {
	runs  *prometheus.CounterVec
	units *prometheus.CounterVec
}

func newRestoreMetrics(r prometheus.Registerer, pod string) (*restoreMetrics, error) {
	r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
	m := &restoreMetrics{}
	var errs [2]error
	m.runs, errs[0] = registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "twinhold_restores_total",
		Help: "Restores of Redis from MySQL, by result.",
	}, []string{"result"}))
	m.units, errs[1] = registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "twinhold_restore_adopted_units_total",
		Help: "Units of holds that a restore adopted from MySQL, by whether they were there (had) or not (forced).",
	}, []string{"kind"}))
	return m, errors.Join(errs[:]...)
}

func (m *restoreMetrics) observe(r RestoreResult, err error) {
	m.runs.WithLabelValues(resultOf(err)).Inc()
	m.units.WithLabelValues("had").Add(float64(r.Units - r.Forced))
	m.units.WithLabelValues("forced").Add(float64(r.Forced))
}
