package search

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// BenchmarkWatches measures what 1,000 watches cost, each of one of 100 labels, at 500 changes
// a second for 20 seconds. It reports the share of a core and the heap and stacks beyond those
// of the same changes without watches. Clients are not included: written events are dropped.
func BenchmarkWatches(b *testing.B) {
	const watchers, teams, rate, seconds = 1000, 100, 500, 20
	for range b.N {
		var cpu [2]time.Duration
		var heap [2]float64
		for i, n := range []int{0, watchers} {
			f := threeClusters(b)
			ctx, stop := context.WithCancel(b.Context())
			var running sync.WaitGroup
			sinks := make([]*sink, n)
			from := f.version(b, "/api/v1/pods")
			for w := range n {
				sinks[w] = &sink{header: http.Header{}, began: make(chan struct{})}
				path := fmt.Sprintf("%s/api/v1/pods?watch=true&resourceVersion=%s&labelSelector=team%%3Dt%d", fleetv1alpha1.FleetPath, from, w%teams)
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
				running.Go(func() { f.server.Config.Handler.ServeHTTP(sinks[w], r) })
				<-sinks[w].began
			}
			before := used(b)
			tick := time.NewTicker(time.Second / 10)
			written := 0
			for range seconds * 10 {
				<-tick.C
				changes := make([]store.Change, 0, rate/10)
				for range rate / 10 {
					changes = append(changes, benchPod(written, teams))
					written++
				}
				if err := f.store.Write(ctx, changes); err != nil {
					b.Fatal(err)
				}
			}
			tick.Stop()
			want := int64(n) * int64(written) / teams
			for events(sinks) < want {
				time.Sleep(time.Millisecond)
			}
			cpu[i] = used(b) - before
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heap[i] = float64(m.HeapAlloc+m.StackInuse) / 1e6
			stop()
			running.Wait()
		}
		b.ReportMetric(100*(cpu[1]-cpu[0]).Seconds()/seconds, "%core")
		b.ReportMetric(heap[1]-heap[0], "MB")
	}
}

func benchPod(n, teams int) store.Change {
	name, team := fmt.Sprint("web-", n%5000), fmt.Sprint("t", n%teams)
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"shop","labels":{"team":%q},"resourceVersion":"%d"},"spec":{"fill":%q}}`,
		name, team, n, strings.Repeat("fill ", 400))
	return store.Change{Row: store.Row{
		Cluster: "oak", Version: "v1", Resource: "pods", Kind: "Pod", Namespace: "shop", Name: name, ResourceVersion: fmt.Sprint(n),
		Labels: map[string]string{"team": team}, Body: []byte(body),
	}}
}

// sink counts the events that are written to it.
type sink struct {
	header http.Header
	began  chan struct{}
	events atomic.Int64
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(int) { close(s.began) }

func (s *sink) Write(b []byte) (int, error) {
	s.events.Add(1)
	return len(b), nil
}

func (s *sink) Flush() {}

func events(sinks []*sink) (n int64) {
	for _, s := range sinks {
		n += s.events.Load()
	}
	return n
}

// used returns the processor time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCEL measures answers that read 10,000 candidates of 2 KB, including their encoding.
// The expressions select a tenth of the candidates.
func BenchmarkCEL(b *testing.B) {
	const candidates = 10_000
	f := newFleet(b, "oak")
	f.serve(podKind, "pods", true, "oak")
	for from := 0; from < candidates; from += 500 {
		changes := make([]store.Change, 0, 500)
		for i := from; i < from+500; i++ {
			name := fmt.Sprintf("web-%05d", i)
			changes = append(changes, store.Change{Row: store.Row{
				Cluster: "oak", Version: "v1", Resource: "pods", Kind: "Pod", Namespace: "shop", Name: name,
				Labels: map[string]string{"app": "web", "team": fmt.Sprint("t", i%100)},
				Body: fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"shop","labels":{"app":"web"}},"spec":{"priority":%d,"fill":%q},"status":{"phase":"Running"}}`,
					name, i%10, strings.Repeat("fill ", 370)),
			}})
		}
		if err := f.store.Write(b.Context(), changes); err != nil {
			b.Fatal(err)
		}
	}
	for name, parameters := range map[string]string{
		"Expression": "filter=object.spec.priority+%3E+8",
		"Loop":       "filter=object.metadata.labels.exists(k,k+%3D%3D+'app')+%26%26+object.spec.priority+%3E+8",
		"Terms":      "q=is:terminating",
		"Counts":     "q=-is:terminating&group=phase",
	} {
		b.Run(name, func(b *testing.B) {
			before := used(b)
			for b.Loop() {
				w := httptest.NewRecorder()
				f.server.Config.Handler.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, fleetv1alpha1.FleetPath+"/api/v1/pods?"+parameters, nil))
				if w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
			b.ReportMetric((used(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// BenchmarkList measures a list of 10,000 pods of 2 KB in each encoding.
func BenchmarkList(b *testing.B) {
	const pods = 10_000
	f := newFleet(b, "oak")
	f.serve(podKind, "pods", true, "oak")
	for from := 0; from < pods; from += 500 {
		changes := make([]store.Change, 0, 500)
		for i := range 500 {
			c := benchPod(from+i, 100)
			c.Name = fmt.Sprintf("web-%05d", from+i)
			changes = append(changes, c)
		}
		if err := f.store.Write(b.Context(), changes); err != nil {
			b.Fatal(err)
		}
	}
	for name, accept := range map[string]string{
		"JSON":     "application/json",
		"YAML":     "application/yaml",
		"CBOR":     "application/cbor",
		"Protobuf": "application/vnd.kubernetes.protobuf",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := used(b)
			for b.Loop() {
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, fleetv1alpha1.FleetPath+"/api/v1/pods", nil)
				r.Header.Set("Accept", accept)
				f.server.Config.Handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
			b.ReportMetric((used(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
}
