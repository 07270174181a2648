package live

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/store"
)

// BenchmarkWindows measures windows of 100,000 pods in 50 clusters. One pod in 100 is not ready,
// and 200 change each second. It measures the time to the first rows, near the beginning and at the
// end (far) of the list, and the bytes per second on a browser's connection. It also measures the
// CPU of ten tabs with a window each, as shares of a core: without changes, and with changes beyond
// the cost of the changes. The browsers decompress and parse nothing. The intervals are those of a
// hub.
func BenchmarkWindows(b *testing.B) {
	const pods, clusters, rate, tabs, few = 100_000, 50, 200, 10, 80
	names := make([]string, clusters)
	for i := range names {
		names[i] = fmt.Sprintf("cluster-%02d", i)
	}
	w := newWorld(b, names...)
	w.live.pace = usualPace
	w.grant("bob", "namespace-03", "namespace-17", "namespace-24", "namespace-31")
	changed := func(i, version int) store.Change {
		row := store.Row{
			Cluster: names[i%clusters], Namespace: fmt.Sprintf("namespace-%02d", i/clusters%40), Name: fmt.Sprintf("web-%06d", i), Version: "v1", Kind: "Pod", Resource: "pods",
			UID: types.UID(fmt.Sprintf("%036d", i)), Created: time.Unix(1_700_000_000+int64(i), 0), Labels: map[string]string{"app": fmt.Sprint("app-", i%500), "tier": "front"}, ResourceVersion: fmt.Sprint(version),
		}
		seed := uint32(i*31+version) * 2654435761 >> 8 // badly compressible content
		row.Body = fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":%q,"labels":{"app":"app-%d","tier":"front"}},`+
			`"spec":{"nodeName":"node-%d","containers":[{"name":"c","image":"nginx","env":[%s]}]},"status":{"phase":"Running","podIP":"10.%d.%d.%d","conditions":[{"type":"Ready","status":%q}],`+
			`"containerStatuses":[{"name":"c","ready":%t,"restartCount":%d,"state":{"running":{}}}]}}`,
			row.Name, row.Namespace, row.UID, i%500, i%100, strings.TrimSuffix(strings.Repeat(`{"name":"SOME_VARIABLE","value":"some value"},`, 30), ","),
			seed>>16, seed>>8%256, seed%256, map[bool]string{true: "True", false: "False"}[seed%100 > 0], seed%2 == 0, seed%1000)
		return store.Change{Row: row}
	}
	for n := 0; n < pods; n += 500 {
		changes := make([]store.Change, 500)
		for i := range changes {
			changes[i] = changed(n+i, 0)
		}
		if err := w.store.Write(b.Context(), changes); err != nil {
			b.Fatal(err)
		}
	}
	version := 0
	anywhere := func(n int) int { return (version*7919 + n*104729) % pods }
	change := func(during time.Duration, pick func(n int) int) {
		tick := time.NewTicker(time.Second / 10)
		defer tick.Stop()
		for end := time.Now().Add(during); time.Now().Before(end); <-tick.C {
			version++
			changes := make([]store.Change, rate/10)
			for i := range changes {
				changes[i] = changed(pick(i), version)
			}
			if err := w.store.Write(b.Context(), changes); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, class := range []struct {
		name  string
		query string
		rows  int // in the list
		pick  func(n int) int
	}{
		{"ByKey", "", pods, anywhere},
		// 50 of the 60 rows of the first window.
		{"OnScreen", "", pods, func(n int) int { return (version*20 + n) % 50 * 2000 }},
		{"ByNamespace", "orderby=namespace", pods, anywhere},
		{"ByName", "orderby=name", pods, anywhere},
		{"Newest", "orderby=created+desc", pods, anywhere},
		{"Label", "labelSelector=tier%3Dfront&orderby=name", pods, anywhere},
		{"Words", "q=web-05", 10_000, anywhere},
		{"NotReady", "q=-is:ready", few, anywhere}, // searches in objects
		// Searches in the maximum number of objects of a window.
		{"None", "q=restarts%3E1000", few, anywhere},
		{"Tenant", "orderby=name", pods / 10, anywhere},
	} {
		b.Run(class.name, func(b *testing.B) {
			who := "alice"
			if class.name == "Tenant" {
				who = "bob"
			}
			long := 10 * time.Second
			if class.rows == few { // such windows are refreshed about every ten seconds
				long = 40 * time.Second
			}
			for b.Loop() {
				for place, from := range map[string]func(i int) int{
					"first": func(i int) int { return i * 97 % class.rows }, "far": func(i int) int { return max(class.rows-60-i, 0) },
				} {
					var took []time.Duration
					for i := range 20 {
						one := w.sink(b, who)
						start := time.Now()
						one.open(b, 1, class.query, from(i), 60)
						<-one.rows
						took = append(took, time.Since(start))
						one.conn.CloseNow()
					}
					slices.Sort(took)
					b.ReportMetric(took[len(took)/2].Seconds()*1000, place+"-p50-ms")
					b.ReportMetric(took[len(took)*19/20].Seconds()*1000, place+"-p95-ms")
				}
				open := func(from, to int) (out []*sink) {
					for i := from; i < to; i++ {
						one := w.sink(b, who)
						one.open(b, 1, class.query, i*60, 60)
						<-one.rows
						out = append(out, one)
					}
					return out
				}
				share := func(do func()) float64 {
					runtime.GC()
					before, start := used(b), time.Now()
					do()
					return 100 * (used(b) - before).Seconds() / time.Since(start).Seconds()
				}
				alone := share(func() { change(long, class.pick) })
				some := open(0, 1)
				bytes := some[0].bytes.Load()
				change(10*time.Second, class.pick)
				b.ReportMetric(float64(some[0].bytes.Load()-bytes)/10/1000, "kB/s")
				some = append(some, open(1, tabs)...)
				idle := share(func() { time.Sleep(10 * time.Second) })
				busy := share(func() { change(long, class.pick) })
				b.ReportMetric(idle, "idle-%core")
				b.ReportMetric(busy-alone, "busy-%core")
				b.ReportMetric(alone, "changes-%core")
				for _, one := range some {
					one.conn.CloseNow()
				}
			}
		})
	}
}

// sink is a browser that counts the bytes on its connection.
type sink struct {
	conn  *websocket.Conn
	bytes atomic.Int64
	rows  chan struct{} // closed when the first rows have come
}

func (w *world) sink(b *testing.B, who string) *sink {
	b.Helper()
	s := &sink{rows: make(chan struct{})}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return counted{conn, &s.bytes}, err
	}}}
	conn, _, err := websocket.Dial(b.Context(), w.server.URL+"/live?as="+who, &websocket.DialOptions{
		Subprotocols: []string{Protocol}, HTTPClient: client, CompressionMode: websocket.CompressionNoContextTakeover,
	})
	if err != nil {
		b.Fatal(err)
	}
	s.conn = conn
	conn.SetReadLimit(16 << 20)
	go func() {
		for seen := false; ; {
			_, raw, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			if !seen && bytes.HasPrefix(raw, []byte(`{"type":"window"`)) {
				seen = true
				close(s.rows)
			}
		}
	}()
	return s
}

func (s *sink) open(b *testing.B, id int, query string, offset, limit int) {
	b.Helper()
	if err := s.conn.Write(b.Context(), websocket.MessageText, fmt.Appendf(nil, `{"type":"open","id":%d,"path":"/api/v1/pods","query":%q,"offset":%d,"limit":%d}`, id, query, offset, limit)); err != nil {
		b.Fatal(err)
	}
}

// counted is a connection that counts its bytes.
type counted struct {
	net.Conn

	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// used returns the CPU time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
