package search

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// multiplexed serves a fleet by HTTP/2, as the hub's API server asks for it.
func multiplexed(t *testing.T, f *fleet, slowest time.Duration) *httptest.Server {
	t.Helper()
	f.search.slowest = slowest
	server := httptest.NewUnstartedServer(f.server.Config.Handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
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

// TestQuietWatch: a watch in which nothing happens lasts, however patient the server is with clients that do not read.
func TestQuietWatch(t *testing.T) {
	f := threeClusters(t)
	const slowest = 100 * time.Millisecond
	lines := bufio.NewScanner(f.watchAt(t, multiplexed(t, f, slowest)).Body)
	for i := range 3 {
		f.put(t, "oak", "pods", newObject(podKind, "shop", fmt.Sprint("new-", i)))
		if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprint("new-", i)) {
			t.Fatalf("%q, %v", lines.Text(), lines.Err())
		}
		time.Sleep(3 * slowest) // the time in which nothing happens
	}
}

// TestClientThatDoesNotRead: its watch ends, and holds nothing.
func TestClientThatDoesNotRead(t *testing.T) {
	f := threeClusters(t)
	before := gauge(t, watches)
	f.watchAt(t, multiplexed(t, f, 100*time.Millisecond))
	if now := gauge(t, watches); now != before+1 {
		t.Fatalf("%v watches, and before %v", now, before)
	}
	fill := strings.Repeat("x", 1<<20)
	deadline := time.Now().Add(30 * time.Second)
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
