package router

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	epoch, stage, cut prometheus.Gauge
	routedAgain       *prometheus.CounterVec
	lookUps           *prometheus.CounterVec
	aborts            prometheus.Counter
}

func newMetrics(r prometheus.Registerer, pod string) *metrics {
	f := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r))
	return &metrics{
		epoch: f.NewGauge(prometheus.GaugeOpts{
			Name: "twinhold_router_epoch", Help: "The epoch that this router believes the pod to be in.",
		}),
		stage: f.NewGauge(prometheus.GaugeOpts{
			Name: "twinhold_router_stage", Help: "The stage that this router believes: 1 legacy, 2 shadow, 3 handover, 4 cutover, 5 complete.",
		}),
		cut: f.NewGauge(prometheus.GaugeOpts{
			Name: "twinhold_router_cut", Help: "1 while this router goes on with MySQL because Redis is out of reach.",
		}),
		routedAgain: f.NewCounterVec(prometheus.CounterOpts{
			Name: "twinhold_router_routed_again_total", Help: "Operations that a fence refused as stale, and that were carried out again.",
		}, []string{"op"}),
		lookUps: f.NewCounterVec(prometheus.CounterOpts{
			Name: "twinhold_router_mark_lookups_total",
			Help: "Look-ups in MySQL of what was answered without Redis, after a kill; skipped: it could not be had in time.",
		}, []string{"result"}),
		aborts: f.NewCounter(prometheus.CounterOpts{
			Name: "twinhold_router_handover_aborts_total", Help: "Times that this router took the pod from handover back to shadow, since MySQL did not answer.",
		}),
	}
}
