package console

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of the console. Their help texts describe them.
var (
	openSessions = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "orrery_console_sessions", Help: "Sessions of the console that are open.",
	})
	exchanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_console_exchanges_total", Help: "Links and tokens that were exchanged for a session, by result: Opened, Refused, Invalid, Busy or Failed.",
	}, []string{"result"})
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_console_requests_total", Help: "Requests of sessions to the hub's API server by method and status code; 101 is a WebSocket.",
	}, []string{"method", "code"})
)

func init() { metrics.Registry.MustRegister(openSessions, exchanges, requests) } //nolint:gochecknoinits // where controller-runtime's own metrics register
