package fleetapi

import (
	"log"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
)

// requests is the metric of the duration of requests to the fleet API.
var requests = promauto.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "orrery_fleet_request_duration_seconds",
	Help:    "Duration of requests to the fleet API by what they reached, method and status code. Streams count until they end.",
	Buckets: []float64{.005, .025, .1, .5, 1, 5, 30, 120},
}, []string{"part", "method", "code"})

// metrics returns a handler that serves the metrics of Prometheus' default registry and of the
// registry of controller-runtime. Metrics that both have, such as those of the process, are served
// once.
func metrics() http.Handler {
	gather := func() ([]*dto.MetricFamily, error) {
		all, err := prometheus.DefaultGatherer.Gather()
		if err != nil {
			return nil, err
		}
		known := map[string]bool{}
		for _, f := range all {
			known[f.GetName()] = true
		}
		controllers, err := ctrlmetrics.Registry.Gather()
		for _, f := range controllers {
			if !known[f.GetName()] {
				all = append(all, f)
			}
		}
		return all, err
	}
	return promhttp.HandlerFor(prometheus.GathererFunc(gather), promhttp.HandlerOpts{})
}

// statusWriter is a response writer that records the status code, for the metrics.
// http.ResponseController unwraps it, so that no feature of the wrapped writer is hidden.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (o *statusWriter) WriteHeader(code int) {
	if o.code == 0 {
		o.code = code
	}
	o.ResponseWriter.WriteHeader(code)
}

// Write implements io.Writer.
func (o *statusWriter) Write(b []byte) (int, error) {
	if o.code == 0 {
		o.code = http.StatusOK
	}
	return o.ResponseWriter.Write(b)
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (o *statusWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// withMetrics returns a middleware that counts requests and measures their duration.
func withMetrics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o, start := &statusWriter{ResponseWriter: w}, time.Now()
		defer func() {
			requests.WithLabelValues(part(r.URL.Path), method(r.Method), strconv.Itoa(o.code)).Observe(time.Since(start).Seconds())
		}()
		next.ServeHTTP(o, r)
	})
}

// part returns the value of the label "part" of the metric for a path: proxy, search, explanation
// or other.
func part(path string) string {
	if k, _, _ := match(path); k != nil {
		return k.part
	}
	return "other"
}

// method returns the value of the label "method" of the metric: the HTTP method, or "other" for an
// unusual one.
func method(m string) string {
	if methods[m] == "" {
		return "other"
	}
	return m
}

// withRecovery returns a middleware that turns a panic in a request into an answer with status 500.
// If a part of the answer was sent already, it aborts the response instead.
func withRecovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { //nolint:contextcheck // the request has it
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // this very value is the signal
				panic(p) // aborts the response, on purpose
			}
			logr.FromContextOrDiscard(r.Context()).Error(nil, "request panicked", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			if o, ok := w.(*statusWriter); ok && o.code != 0 {
				// the client must not take a part of the response for the whole
				panic(http.ErrAbortHandler)
			}
			answer.Error(w, r, apierrors.NewGenericServerResponse(http.StatusInternalServerError, r.Method, fleetv1alpha1.GroupVersion.WithResource("").GroupResource(), "", "the request panicked; the server's log says why", 0, true))
		}()
		next.ServeHTTP(w, r)
	})
}

// errorLog returns the error log of an http.Server. It writes to the given logger at a low level,
// because its messages are about single connections.
func errorLog(to logr.Logger) *log.Logger { return log.New(lines{to}, "", 0) }

// lines is a writer that logs each line about a failed connection.
type lines struct{ to logr.Logger }

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	l.to.V(1).Info("connection failed", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}
