package mirror

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	losses = promauto.NewCounter(prometheus.CounterOpts{
		Name: "orrery_mirror_store_losses_total",
		Help: "Databases of the mirror that were damaged, or of a newer version, and were set aside.",
	})
	storeFailing = promauto.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_mirror_store_failing",
		Help: "1 while what is observed cannot be written to the mirror's database.",
	})
	pendingChanges = promauto.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_mirror_pending_changes",
		Help: "Changes that wait to be written to the mirror's database.",
	})
	lists = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_mirror_lists_total",
		Help: "Lists of a whole type of a cluster, by outcome: listed, failed.",
	}, []string{"outcome"})
	resumes = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_mirror_resumes_total",
		Help: "Watches that went on from a checkpoint after a start, by outcome: resumed, or listed where the cluster could not go on from there.",
	}, []string{"outcome"})
)

// typeSeries is the number of series of the metric orrery_mirror_type_lag_seconds. A series for
// each type of each cluster would be 60,000 series for 1,000 clusters with 60 types. So the metric
// has the typeSeries types with the oldest data, each with its lag in the cluster where it is
// oldest. One more series is for all other types. Another metric has one series for each cluster,
// with the lag of its oldest type. `orrery cluster describe` shows the lag of each type.
const typeSeries = 200

var (
	clusterLag = prometheus.NewDesc("orrery_mirror_cluster_lag_seconds",
		"How old what is known of a cluster is: that of the type that is oldest there; 0 while every change is told.", []string{"cluster"}, nil)
	incompleteObjects = prometheus.NewDesc("orrery_mirror_incomplete_objects",
		"Objects of a cluster that the mirror's database refuses: stored is part where they are stored without a part, and none where they are not stored. No series: there are none.",
		[]string{"cluster", "stored"}, nil)
	typeLag = prometheus.NewDesc("orrery_mirror_type_lag_seconds",
		"How old what is known of a type is, in the cluster where it is oldest; 0 while every cluster tells every change. "+
			"The 200 oldest types; resource other is the oldest of the rest.", []string{"group", "resource"}, nil)
)

// lags is the collector of the metrics that are computed at each scrape: the age of the mirrored
// data, and the numbers of objects that the database refused.
type lags struct{ mirror *Mirror }

// Describe implements prometheus.Collector.
func (l lags) Describe(to chan<- *prometheus.Desc) {
	to <- clusterLag
	to <- typeLag
	to <- incompleteObjects
}

// Collect implements prometheus.Collector.
func (l lags) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	types := map[schema.GroupResource]time.Duration{}
	for _, c := range l.mirror.all() {
		var oldest time.Duration
		c.mu.Lock()
		for gr, t := range c.tables {
			lag, _ := t.lag(now)
			oldest, types[gr] = max(oldest, lag), max(types[gr], lag)
		}
		c.mu.Unlock()
		to <- prometheus.MustNewConstMetric(clusterLag, prometheus.GaugeValue, oldest.Seconds(), c.name)
		partly, missing := l.mirror.incomplete.total(c.name)
		for stored, n := range map[string]int{"part": partly, "none": missing} {
			if n > 0 {
				to <- prometheus.MustNewConstMetric(incompleteObjects, prometheus.GaugeValue, float64(n), c.name, stored)
			}
		}
	}
	sorted := make([]schema.GroupResource, 0, len(types))
	for gr := range types {
		sorted = append(sorted, gr)
	}
	slices.SortFunc(sorted, func(a, b schema.GroupResource) int {
		return cmp.Or(-cmp.Compare(types[a], types[b]), cmpResource(a, b))
	})
	for i, gr := range sorted {
		if i == typeSeries {
			to <- prometheus.MustNewConstMetric(typeLag, prometheus.GaugeValue, types[gr].Seconds(), "", "other")
			return
		}
		to <- prometheus.MustNewConstMetric(typeLag, prometheus.GaugeValue, types[gr].Seconds(), gr.Group, gr.Resource)
	}
}
