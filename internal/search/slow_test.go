package search

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"orrery.dev/orrery/internal/testenv"
)

// multiplexed serves a fleet over HTTP/2, as the API server of the hub requests it.
func multiplexed(t *testing.T, f *fleet, d *deadlines) *httptest.Server {
	t.Helper()
	f.search.slowest = d.slowest
	next := f.server.Config.Handler
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		next.ServeHTTP(&watched{ResponseWriter: w, deadlines: d}, q)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// deadlines records the deadlines that a watch sets for its writes.
type deadlines struct {
	slowest time.Duration
	// If off is true, deadlines are only recorded: no write misses one.
	off atomic.Bool

	mu    sync.Mutex
	steps []string // deadline, flush and none, in order
}

func (d *deadlines) note(step string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, step)
}

// last returns the last n steps.
func (d *deadlines) last(n int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.steps[max(len(d.steps)-n, 0):])
}

// watched is a ResponseWriter that records the deadlines of a watch.
type watched struct {
	http.ResponseWriter

	deadlines *deadlines
}

// Unwrap lets http.ResponseController find the writer.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// FlushError is called by http.ResponseController.
func (w *watched) FlushError() error {
	w.deadlines.note("flush")
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// SetWriteDeadline is called by http.ResponseController.
func (w *watched) SetWriteDeadline(at time.Time) error {
	switch {
	case at.IsZero():
		w.deadlines.note("none")
	case w.deadlines.off.Load():
		w.deadlines.note("deadline")
		return nil
	default:
		w.deadlines.note("deadline")
	}
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at)
}

func (f *fleet) watchAt(t *testing.T, server *httptest.Server) *http.Response {
	t.Helper()
	path := strings.TrimPrefix(f.url, f.server.URL) + "/api/v1/pods?watch=true&resourceVersion=" + f.version(t, "/api/v1/pods")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", resp.Proto, resp.Status)
	}
	return resp
}

// TestQuietWatch: a watch without events stays open, independent of the time that clients have
// to read, because the deadline is removed after each event. Under Soak, deadlines pass during
// the quiet times.
func TestQuietWatch(t *testing.T) {
	f := threeClusters(t)
	d := &deadlines{slowest: time.Minute}
	if testenv.Soak() {
		d.slowest = 100 * time.Millisecond
	} else {
		d.off.Store(true)
	}
	lines := bufio.NewScanner(f.watchAt(t, multiplexed(t, f, d)).Body)
	for i := range 3 {
		f.put(t, "oak", "pods", newObject(podKind, "shop", fmt.Sprint("new-", i)))
		if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprint("new-", i)) {
			t.Fatalf("%q, %v", lines.Text(), lines.Err())
		}
		testenv.Eventually(t, "the event has no deadline any more", testenv.Patience, func() error {
			if diff := cmp.Diff([]string{"deadline", "flush", "none"}, d.last(3)); diff != "" {
				return fmt.Errorf("last steps (-want +got):\n%s", diff)
			}
			return nil
		})
		if testenv.Soak() {
			time.Sleep(3 * d.slowest) // a quiet time
		}
	}
}

// TestClientThatDoesNotRead: the watch of a client that does not read ends and is not counted
// any more.
func TestClientThatDoesNotRead(t *testing.T) {
	f := threeClusters(t)
	before := gauge(t, watches)
	d := &deadlines{slowest: 100 * time.Millisecond}
	// No deadline passes until the watch is open, so that a busy machine does not end it.
	d.off.Store(true)
	f.watchAt(t, multiplexed(t, f, d))
	if now := gauge(t, watches); now != before+1 {
		t.Fatalf("%v watches, and before %v", now, before)
	}
	d.off.Store(false)
	fill := strings.Repeat("x", 1<<20)
	deadline := time.Now().Add(testenv.Patience)
	for i := 0; gauge(t, watches) > before; i++ {
		if time.Now().After(deadline) {
			t.Fatal("the watch is still open")
		}
		f.put(t, "oak", "pods", newObject(podKind, "shop", fmt.Sprint("big-", i%5), "label:app=web", "status.fill="+fill))
	}
}

func gauge(t *testing.T, g prometheus.Gauge) float64 {
	t.Helper()
	var m dto.Metric
	if err := g.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue()
}
