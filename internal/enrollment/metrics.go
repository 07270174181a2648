package enrollment

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	redemptions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_agent_redemptions_total",
		Help: "Tokens of joins that agents sent, by result: Accepted, Refused, Invalid, Busy or Failed.",
	}, []string{"result"})
	reports = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_agent_reports_total",
		Help: "Credentials that agents reported, by result: Accepted or Refused.",
	}, []string{"result"})
)

func init() { metrics.Registry.MustRegister(redemptions, reports) } //nolint:gochecknoinits // where controller-runtime's own metrics register
