package conntag

import "github.com/prometheus/client_golang/prometheus"

// Names of the metrics that others read back (twinhold conns does).
const (
	MetricStatements = "twinhold_mysql_statement_duration_seconds"
	MetricHeld       = "twinhold_mysql_connection_held_seconds_total"
	MetricLongest    = "twinhold_mysql_connection_held_longest_seconds"
	MetricInUse      = "twinhold_mysql_connections_in_use"
	MetricErrors     = "twinhold_mysql_statement_errors_total"
	MetricUntagged   = "twinhold_mysql_untagged_statements_total"

	// LabelTag and LabelClass are their labels.
	LabelTag   = "tag"
	LabelClass = "class"
)

// Classes of errors.
const (
	ClassLockWait  = "lock_wait"
	ClassDeadlock  = "deadlock"
	ClassCancelled = "cancelled"
	ClassOther     = "other"
)

type metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	// What is known only once the open holds are settled.
	held, longest, inUse, untagged *prometheus.Desc
}

func newMetrics() *metrics {
	byTag := []string{LabelTag}
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: MetricStatements, Help: "Time of one statement on its connection, by conn_tag.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9), NativeHistogramBucketFactor: 1.1,
		}, byTag),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: MetricErrors, Help: "Statements that failed, by conn_tag and class (lock_wait is 1205, deadlock is 1213, cancelled, other).",
		}, []string{LabelTag, LabelClass}),
		held:     prometheus.NewDesc(MetricHeld, "Seconds for which connections were out of the pool, by conn_tag.", byTag, nil),
		longest:  prometheus.NewDesc(MetricLongest, "The longest time in one piece for which a conn_tag kept a connection.", byTag, nil),
		inUse:    prometheus.NewDesc(MetricInUse, "Connections out of the pool now, by the conn_tag that keeps them.", byTag, nil),
		untagged: prometheus.NewDesc(MetricUntagged, "Statements without a conn_tag.", nil, nil),
	}
}

// newTally makes a tag's counters once, so that counting looks nothing up but for an error.
func (m *Meter) newTally(name string) *tally {
	return &tally{
		name: name, observe: m.metrics.duration.WithLabelValues(name).Observe,
		failed: func(class string) { m.metrics.errors.WithLabelValues(name, class).Inc() },
	}
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) {
	m.metrics.duration.Describe(ch)
	m.metrics.errors.Describe(ch)
	for _, d := range []*prometheus.Desc{m.metrics.held, m.metrics.longest, m.metrics.inUse, m.metrics.untagged} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	inUse := m.settle()
	m.metrics.duration.Collect(ch)
	m.metrics.errors.Collect(ch)
	const second = 1e9
	m.tags.each(func(t *tally) {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, t.name)
		}
		ch <- prometheus.MustNewConstMetric(m.metrics.held, prometheus.CounterValue, float64(t.held.Load())/second, t.name)
		gauge(m.metrics.longest, float64(t.longest.Load())/second)
		gauge(m.metrics.inUse, float64(inUse[t]))
	})
	ch <- prometheus.MustNewConstMetric(m.metrics.untagged, prometheus.CounterValue, float64(m.Untagged()))
}
