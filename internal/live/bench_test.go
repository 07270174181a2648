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

// BenchmarkWindows measures what windows of 100,000 pods in 50 clusters take, of which 200 change each second: until the first rows of one are there, the bytes that come over a browser's connection
// for one in a second, and, as shares of a core, ten tabs with a window each when nothing changes, and, beyond what the changes take by themselves, when they do.
// The browsers decompress and parse nothing. The paces are those of a hub.
func BenchmarkWindows(b *testing.B) {
	const pods, clusters, rate, seconds, tabs = 100_000, 50, 200, 10, 10
	names := make([]string, clusters)
	for i := range names {
		names[i] = fmt.Sprintf("cluster-%02d", i)
	}
	w := newWorld(b, names...)
	w.live.pace = usualPace
	changed := func(i, version int) store.Change {
		row := store.Row{
			Cluster: names[i%clusters], Namespace: fmt.Sprintf("namespace-%02d", i/clusters%40), Name: fmt.Sprintf("web-%06d", i), Version: "v1", Kind: "Pod", Resource: "pods",
			UID: types.UID(fmt.Sprintf("%036d", i)), Created: time.Unix(1_700_000_000+int64(i), 0), Labels: map[string]string{"app": fmt.Sprint("app-", i%500), "tier": "front"}, ResourceVersion: fmt.Sprint(version),
		}
		row.Body = fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":%q,"labels":{"app":"app-%d","tier":"front"}},`+
			`"spec":{"nodeName":"node-%d","containers":[{"name":"c","image":"nginx","env":[%s]}]},"status":{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"name":"c","ready":%t,"restartCount":%d,"state":{"running":{}}}]}}`,
			row.Name, row.Namespace, row.UID, i%500, i%100, strings.TrimSuffix(strings.Repeat(`{"name":"SOME_VARIABLE","value":"some value"},`, 30), ","), version%2 == 0, version)
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
		pick  func(n int) int
	}{
		{"ByKey", "", anywhere},
		{"OnScreen", "", func(n int) int { return (version*20 + n) % 50 * 2000 }}, // all are of the first window
		{"ByNamespace", "orderby=namespace", anywhere},
		{"Newest", "orderby=created+desc", anywhere},
		{"Label", "labelSelector=tier%3Dfront&orderby=name", anywhere},
		{"NotReady", "q=-is:ready", anywhere},
	} {
		b.Run(class.name, func(b *testing.B) {
			for b.Loop() {
				var first []time.Duration
				for i := range 20 {
					one := w.sink(b)
					start := time.Now()
					one.open(b, 1, class.query, i*997, 60)
					<-one.rows
					first = append(first, time.Since(start))
					one.conn.CloseNow()
				}
				slices.Sort(first)
				b.ReportMetric(first[len(first)/2].Seconds()*1000, "first-p50-ms")
				b.ReportMetric(first[len(first)*19/20].Seconds()*1000, "first-p95-ms")
				open := func(n int) []*sink {
					out := make([]*sink, n)
					for i := range out {
						out[i] = w.sink(b)
						out[i].open(b, 1, class.query, i*60, 60)
						<-out[i].rows
					}
					return out
				}
				share := func(do func()) float64 {
					runtime.GC()
					before, start := used(b), time.Now()
					do()
					return 100 * (used(b) - before).Seconds() / time.Since(start).Seconds()
				}
				alone := share(func() { change(seconds*time.Second, class.pick) })
				some := open(tabs)
				idle := share(func() { time.Sleep(seconds * time.Second) })
				bytes := some[0].bytes.Load()
				busy := share(func() { change(seconds*time.Second, class.pick) })
				b.ReportMetric(idle, "idle-%core")
				b.ReportMetric(busy-alone, "busy-%core")
				b.ReportMetric(alone, "changes-%core")
				b.ReportMetric(float64(some[0].bytes.Load()-bytes)/seconds/1000, "kB/s")
				for _, one := range some {
					one.conn.CloseNow()
				}
			}
		})
	}
}

// sink is a browser that counts what comes over its connection.
type sink struct {
	conn  *websocket.Conn
	bytes atomic.Int64
	rows  chan struct{} // closed when the first rows have come
}

func (w *world) sink(b *testing.B) *sink {
	b.Helper()
	s := &sink{rows: make(chan struct{})}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return counted{conn, &s.bytes}, err
	}}}
	conn, _, err := websocket.Dial(b.Context(), w.server.URL+"/live?as=alice", &websocket.DialOptions{
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

// counted is a connection that counts what comes over it.
type counted struct {
	net.Conn

	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// used is the processor time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
