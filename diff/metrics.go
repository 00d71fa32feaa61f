package diff

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	operations *prometheus.CounterVec
	compared   *prometheus.CounterVec
	gaps       *prometheus.CounterVec
	explained  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, pod string) *metrics {
	f := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r))
	return &metrics{
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "twinhold_diff_operations_total",
			Help: "Validated operations of pods in a dual-write stage. Each ends as compared or as a gap.",
		}, []string{"op"}),
		compared: f.NewCounterVec(prometheus.CounterOpts{
			Name: "twinhold_diff_compared_total",
			Help: "Operations whose two outcomes were compared, by verdict.",
		}, []string{"op", "verdict"}),
		gaps: f.NewCounterVec(prometheus.CounterOpts{
			Name: "twinhold_diff_gaps_total",
			Help: "Operations that were not compared, by reason.",
		}, []string{"op", "reason"}),
		explained: f.NewCounterVec(prometheus.CounterOpts{
			Name: "twinhold_diff_differences_total",
			Help: "Unequal pairs once settled, by verdict and explanation; none counts against the pod, unseen may be another router's doing.",
		}, []string{"op", "verdict", "explanation"}),
	}
}
