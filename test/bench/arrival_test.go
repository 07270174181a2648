//go:build bench

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// The load of BenchmarkArrival.
const (
	changesEachSecond = 500
	changesWhileAway  = 100 // objects changed while no server runs
	mark              = "bench"
)

// BenchmarkArrival changes objects in simulated clusters (CLUSTERS, 50 by default), 500 a
// second for SECONDS (30). It measures how long each change takes to a watch and to a list of
// the fleet, both through the hub's API server. It also measures the memory for OBJECTS
// (20,000) of 2 KB before the changes, and the cost of a restart after them.
func BenchmarkArrival(b *testing.B) {
	clusters, objects, seconds := number(b, "CLUSTERS", 50), number(b, "OBJECTS", 20_000), number(b, "SECONDS", 30)
	s := startSimulation(b, clusters)
	f := &fleet{dir: b.TempDir(), args: []string{"--mirror-resources=configmaps"}}
	f.startServer(b)
	b.Cleanup(func() { f.stopServer(b) })
	for range b.N {
		f.joinAll(b, s, clusters, 1)
		a := &arrival{b: b, simulation: s, fleet: f, clusters: clusters, objects: objects}
		a.connect()
		_, each := pss(b, f.server.Process.Pid)
		before := own(each)
		start := time.Now()
		a.create()
		a.counted()
		report(b, float64(objects)/time.Since(start).Seconds(), "objects/s-created-and-mirrored")
		_, each = pss(b, f.server.Process.Pid)
		report(b, float64(own(each)-before), "MiB-PSS-for-the-objects")
		// By then the garbage collector has returned the memory of the burst.
		time.Sleep(time.Minute)
		_, each = pss(b, f.server.Process.Pid)
		report(b, float64(own(each)-before), "MiB-PSS-for-the-objects-a-minute-later")

		a.changes(time.Duration(seconds) * time.Second)

		f.stopServer(b)
		for i := range changesWhileAway {
			a.must(a.touch(i))
		}
		lists := s.control(b, "stats").Lists
		start = time.Now()
		f.startServer(b)
		a.connect()
		a.counted()
		report(b, time.Since(start).Seconds(), "s-to-answer-after-a-restart")
		for i := range changesWhileAway {
			a.shown(i)
		}
		report(b, time.Since(start).Seconds(), "s-to-show-what-changed-meanwhile")
		report(b, float64(s.control(b, "stats").Lists-lists), "lists-by-the-restart")
	}
}

// arrival is one run of the benchmark.
type arrival struct {
	b *testing.B
	*simulation
	*lister
	fleet             *fleet
	clusters, objects int

	mu   sync.Mutex
	sent []int64 // when each object was changed last, in nanoseconds
}

func (a *arrival) must(err error) {
	a.b.Helper()
	if err != nil {
		a.b.Fatal(err)
	}
}

func (a *arrival) connect() {
	a.b.Helper()
	var err error
	a.lister, err = newLister(a.fleet.cfg)
	a.must(err)
}

// lister lists the benchmark's ConfigMaps from the fleet.
type lister struct {
	client *http.Client
	host   string
}

func newLister(cfg *rest.Config) (*lister, error) {
	client, err := rest.HTTPClientFor(cfg)
	return &lister{client: client, host: strings.TrimSuffix(cfg.Host, "/")}, err
}

func (l *lister) ask(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.host+fleetv1alpha1.FleetPath+"/api/v1/namespaces/bench/configmaps?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := l.client.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return nil, errors.Join(fmt.Errorf("%s: %s", resp.Status, text), resp.Body.Close())
	}
	return resp.Body, nil
}

func (l *lister) list(query url.Values) (list metav1.PartialObjectMetadataList, err error) {
	body, err := l.ask(context.Background(), query)
	if err != nil {
		return list, err
	}
	defer body.Close()
	return list, json.NewDecoder(body).Decode(&list)
}

func (a *arrival) home(i int) (cluster, name string) {
	return clusterName(i % a.clusters), fmt.Sprintf("c%06d", i)
}

// write sends a write request to a simulated cluster.
func (a *arrival) write(method, cluster, path string, body []byte) error {
	r, err := http.NewRequest(method, a.simulation.clusters[cluster]+"/clusters/"+cluster+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer simulated")
	r.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := a.simulation.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return err
}

func (a *arrival) create() {
	a.b.Helper()
	a.sent = make([]int64, a.objects)
	for i := range a.clusters {
		a.must(a.write(http.MethodPost, clusterName(i), "/api/v1/namespaces", []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"bench"}}`)))
	}
	fill := strings.Repeat("0123456789abcdef", 100)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range a.objects {
		g.Go(func() error {
			cluster, name := a.home(i)
			return a.write(http.MethodPost, cluster, "/api/v1/namespaces/bench/configmaps", fmt.Appendf(nil,
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"app":"app-%d","tier":"t%d"}},"data":{"fill":%q}}`, name, i%100, i%3, fill))
		})
	}
	a.must(g.Wait())
}

// touch writes the current time to an annotation of object i.
func (a *arrival) touch(i int) error {
	cluster, name := a.home(i)
	now := time.Now().UnixNano()
	a.mu.Lock()
	a.sent[i] = now
	a.mu.Unlock()
	return a.write(http.MethodPatch, cluster, "/api/v1/namespaces/bench/configmaps/"+name, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, mark, now))
}

// counted waits until the fleet has every object.
func (a *arrival) counted() {
	a.b.Helper()
	poll(a.b, 30*time.Minute, "every object in the fleet", func(context.Context) (bool, error) {
		list, err := a.list(url.Values{"limit": {"1"}, "onlyMetadata": {"true"}})
		if err != nil {
			return false, nil //nolint:nilerr // the hub starts
		}
		n := len(list.Items)
		if list.RemainingItemCount != nil {
			n += int(*list.RemainingItemCount)
		}
		return n >= a.objects, nil
	})
}

// shown waits until a list of the fleet shows the last change to object i, and returns how long
// that took since the change. It fails b after a minute.
func (a *arrival) shown(i int) time.Duration {
	a.b.Helper()
	cluster, name := a.home(i)
	a.mu.Lock()
	sent := a.sent[i]
	a.mu.Unlock()
	for end := time.Now().Add(time.Minute); ; {
		list, err := a.list(url.Values{"names": {name}, "clusters": {cluster}, "onlyMetadata": {"true"}})
		if time.Now().After(end) {
			a.b.Fatalf("%s in %s is not shown: %v", name, cluster, err)
		}
		if err != nil { // a hub that has just started has no such cluster yet
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if len(list.Items) == 1 && list.Items[0].Annotations[mark] == strconv.FormatInt(sent, 10) {
			return time.Duration(time.Now().UnixNano() - sent)
		}
	}
}

// changes edits objects at a constant rate, and reports how long the changes take to arrive.
func (a *arrival) changes(during time.Duration) {
	a.b.Helper()
	list, err := a.list(url.Values{"limit": {"1"}})
	a.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := a.ask(ctx, url.Values{"watch": {"true"}, "resourceVersion": {list.ResourceVersion}})
	a.must(err)
	defer stream.Close()
	var watched, listed []time.Duration
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		lines := bufio.NewScanner(stream)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e struct{ Object metav1.PartialObjectMetadata }
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				continue
			}
			if sent, err := strconv.ParseInt(e.Object.Annotations[mark], 10, 64); err == nil {
				watched = append(watched, time.Duration(time.Now().UnixNano()-sent))
			}
		}
	}()
	sampled := make(chan struct{})
	var g errgroup.Group
	g.SetLimit(16)
	// The last tenth of the objects is reserved for the list. The watch sees all objects.
	most := a.objects - a.objects/10
	share := a.fleet.load(a.b, func() {
		end := time.Now().Add(during)
		go func() {
			defer close(sampled)
			for i := most; i < a.objects && time.Now().Before(end); i++ {
				if a.touch(i) != nil {
					return // the goroutines below report the error
				}
				listed = append(listed, a.shown(i))
			}
		}()
		every := time.NewTicker(time.Second / changesEachSecond)
		defer every.Stop()
		for i := 0; time.Now().Before(end); i++ {
			<-every.C
			g.Go(func() error { return a.touch(i * 7919 % most) })
		}
		a.must(g.Wait())
		<-sampled
	})
	report(a.b, share, "%-of-a-core-of-the-server")
	time.Sleep(2 * time.Second) // wait for late changes
	cancel()
	<-seen
	for what, took := range map[string][]time.Duration{"watch": watched, "list": listed} {
		if len(took) == 0 {
			a.b.Fatalf("no change came by %s", what)
		}
		slices.Sort(took)
		report(a.b, float64(len(took)), "changes-by-"+what)
		report(a.b, float64(took[len(took)/2].Milliseconds()), "ms-to-"+what+"-p50")
		report(a.b, float64(took[len(took)*99/100].Milliseconds()), "ms-to-"+what+"-p99")
	}
}
