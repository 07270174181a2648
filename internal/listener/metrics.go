package listener

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	connections = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_listener_connections", Help: "Connections to the public listener that no agent has taken over.",
	})
	rejected = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "orrery_listener_rejected_total", Help: "Connections to the public listener that were closed because there were too many: the longest silent ones of the address that has most.",
	})
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_listener_requests_total", Help: "Requests to the public listener by route and status code; 101 is a WebSocket.",
	}, []string{"route", "code"})
	certificateEnds = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_listener_certificate_expiry_seconds", Help: "When the certificate of the public listener ends, in seconds of the Unix epoch.",
	})
)

func init() { metrics.Registry.MustRegister(connections, rejected, requests, certificateEnds) } //nolint:gochecknoinits // where controller-runtime's own metrics register
