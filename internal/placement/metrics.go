package placement

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// begun counts the evictions that began: objects that began to leave a cluster.
var begun = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "orrery_evictions_total",
	Help: "Objects that began to leave a cluster, by the cluster and the reason of the eviction task.",
}, []string{"cluster", "reason"})

func init() { metrics.Registry.MustRegister(begun) } //nolint:gochecknoinits // where controller-runtime's own metrics register
