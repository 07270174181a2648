package mirror

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
