package provision

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/pki"
)

// instruments are the Prometheus metrics of the Operations that this server runs, and of the
// certificates of built clusters.
type instruments struct {
	operations *prometheus.CounterVec
	steps      *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	running    prometheus.Gauge
	expiry     *prometheus.GaugeVec
	clusters   *sync.Map // names of the clusters in expiry
}

// metrics are the instruments of this process.
var metrics = instruments{
	operations: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_lifecycle_operations_total",
		Help: "Operations that ended or were paused, by action and phase.",
	}, []string{"action", "phase"}),
	steps: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_lifecycle_steps_total",
		Help: "Steps of Operations, by what became of them.",
	}, []string{"state"}),
	seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "orrery_lifecycle_operation_seconds",
		Help:    "How long Operations ran, by action.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 12),
	}, []string{"action"}),
	running: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_lifecycle_operations_running",
		Help: "Operations that run now.",
	}),
	expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "orrery_lifecycle_certificate_expiry_timestamp_seconds",
		Help: "When the first certificate on the hosts of a cluster ends, and the first of its authorities.",
	}, []string{"cluster", "kind"}),
	clusters: &sync.Map{},
}

func init() { //nolint:gochecknoinits // where controller-runtime's own metrics register
	ctrlmetrics.Registry.MustRegister(metrics.operations, metrics.steps, metrics.seconds, metrics.running, metrics.expiry)
}

// begin counts an Operation as running, until the caller calls done, once.
func (m instruments) begin() (done func()) {
	m.running.Inc()
	return m.running.Dec
}

// step counts a step that has ended, by its state. It ignores a step that is pending or running,
// and the empty step at the end of a run.
func (m instruments) step(_ lifecyclev1alpha1.Operation, r lifecyclev1alpha1.StepRecord) {
	if r.ID == "" || r.State == lifecyclev1alpha1.StepPending || r.State == lifecyclev1alpha1.StepRunning {
		return
	}
	m.steps.WithLabelValues(string(r.State)).Inc()
}

// end counts an Operation that has ended or was paused, by action and phase. ran is how long it
// ran; 0 means that it did not run, and records no duration.
func (m instruments) end(op *lifecyclev1alpha1.Operation, ran time.Duration) {
	m.operations.WithLabelValues(string(op.Spec.Action), string(op.Status.Phase)).Inc()
	if ran > 0 {
		m.seconds.WithLabelValues(string(op.Spec.Action)).Observe(ran.Seconds())
	}
}

// Values of the label kind of the expiry metric.
const (
	kindCertificate = "certificate" // the first certificate that is no authority
	kindAuthority   = "authority"   // the first authority
)

// expire sets the expiry metrics of a cluster: when its first certificate and its first authority
// expire. list has the earliest expiry first. If list has no authority, or nothing else, that
// metric keeps its value.
func (m instruments) expire(cluster string, list []pki.Expiry) {
	m.clusters.Store(cluster, true)
	for kind, authority := range map[string]bool{kindCertificate: false, kindAuthority: true} {
		if i := slices.IndexFunc(list, func(e pki.Expiry) bool { return e.IsAuthority() == authority }); i >= 0 {
			m.expiry.WithLabelValues(cluster, kind).Set(float64(list[i].NotAfter.Unix()))
		}
	}
}

// forget deletes the expiry metrics of a cluster.
func (m instruments) forget(cluster string) {
	m.clusters.Delete(cluster)
	m.expiry.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
}

// expireOnly deletes the expiry metrics of all clusters that are not in clusters.
func (m instruments) expireOnly(clusters []string) {
	m.clusters.Range(func(key, _ any) bool {
		if name, ok := key.(string); ok && !slices.Contains(clusters, name) {
			m.forget(name)
		}
		return true
	})
}
