package failover

import (
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// waitingEvictions is the metric of the evictions in a Queue that have no grant.
var waitingEvictions = prometheus.NewDesc("orrery_evictions_waiting",
	"Evictions that are due because of a taint and wait, by the reason why they wait.", []string{"reason"}, nil)

// measured are the values of the label reason: the reasons why evictions in a Queue wait.
var measured = []Hold{HoldOff, HoldUnknown, HoldPaused, HoldUnconfirmed, HoldStarting, HoldSettling, HoldManyAtOnce, HoldRate}

// collector computes the metric of a Queue at each scrape.
type collector struct{ queue *Queue }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) { to <- waitingEvictions }

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	waiting := c.queue.Status().Waiting
	for _, hold := range measured {
		to <- prometheus.MustNewConstMetric(waitingEvictions, prometheus.GaugeValue, float64(waiting[hold]), string(hold))
	}
}

// measure registers the metric of the queue, and returns the function that removes it. If another
// queue of the process has registered the metric, it logs that.
func (q *Queue) measure(log logr.Logger) (end func()) {
	if err := metrics.Registry.Register(collector{q}); err != nil { // it works without
		log.Info("The evictions that wait are not among the metrics", "error", err.Error())
		return func() {}
	}
	return func() { metrics.Registry.Unregister(collector{q}) }
}
