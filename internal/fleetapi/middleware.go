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

var requests = promauto.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "orrery_fleet_request_duration_seconds",
	Help:    "Duration of requests to the fleet API by what they reached, method and status code. Streams count until they end.",
	Buckets: []float64{.005, .025, .1, .5, 1, 5, 30, 120},
}, []string{"part", "method", "code"})

// metrics serves the metrics of the default registry and of the registry of the controllers.
// Metrics that both have, those of the process, are served once.
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

// statusWriter records the status code. http.ResponseController unwraps it, so that no feature
// of the writer is hidden.
type statusWriter struct {
	http.ResponseWriter
	code int
}

func (o *statusWriter) WriteHeader(code int) {
	if o.code == 0 {
		o.code = code
	}
	o.ResponseWriter.WriteHeader(code)
}

func (o *statusWriter) Write(b []byte) (int, error) {
	if o.code == 0 {
		o.code = http.StatusOK
	}
	return o.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (o *statusWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// withMetrics counts and times requests.
func withMetrics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o, start := &statusWriter{ResponseWriter: w}, time.Now()
		defer func() {
			requests.WithLabelValues(part(r.URL.Path), method(r.Method), strconv.Itoa(o.code)).Observe(time.Since(start).Seconds())
		}()
		next.ServeHTTP(o, r)
	})
}

// part returns the label for a path. There are only a few values, for any path.
func part(path string) string {
	switch {
	case strings.HasPrefix(path, fleetv1alpha1.ClustersPath):
		return "proxy"
	case strings.HasPrefix(path, fleetv1alpha1.FleetPath), strings.HasPrefix(path, fleetv1alpha1.QualifiedPath):
		return "search"
	case questions[path].serve != nil:
		return "explanation"
	default:
		return "other"
	}
}

func method(m string) string {
	if proxyVerb(m) == "" {
		return "other"
	}
	return m
}

// withRecovery limits the effect of a panic to its request.
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

// errorLog returns a logger for http.Server, whose messages are about single connections.
func errorLog(to logr.Logger) *log.Logger { return log.New(lines{to}, "", 0) }

type lines struct{ to logr.Logger }

func (l lines) Write(line []byte) (int, error) {
	l.to.V(1).Info("connection failed", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}
