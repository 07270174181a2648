package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	dials = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_tunnel_dials_total",
		Help: "Connections to clusters that were asked of their agents, by result: ok or error.",
	}, []string{"result"})
	dialTime = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "orrery_tunnel_dial_duration_seconds", Help: "How long successful dials through agents took.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	})
	refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_tunnel_refused_total",
		Help: "Connections of agents that were refused, by reason: Busy (closed before they proved who they are, because there were too many), Protocol or Identity.",
	}, []string{"reason"})
)

func init() { metrics.Registry.MustRegister(dials, dialTime, refusals) } //nolint:gochecknoinits // where controller-runtime's own metrics register
