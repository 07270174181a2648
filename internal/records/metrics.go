package records

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_records_decisions_total",
		Help: "Decisions by what became of their record: stored, unchanged since the last one, or dropped because the database could not keep up.",
	}, []string{"outcome"})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "orrery_records_write_failures_total",
		Help: "Writes of records that failed and were tried again.",
	})
	setAside = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "orrery_records_set_aside_total",
		Help: "Damaged files of records that were set aside.",
	})
)

// Outcomes of a decision's record.
const (
	stored    = "stored"
	repeated  = "unchanged"
	discarded = "dropped"
)

func init() { metrics.Registry.MustRegister(decisions, failures, setAside) } //nolint:gochecknoinits // where controller-runtime's own metrics register
