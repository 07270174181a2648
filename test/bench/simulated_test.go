//go:build bench

package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/testenv"
)

// mirroredTypes are the types that BenchmarkSimulated mirrors beside the five that the hub
// mirrors for itself.
var mirroredTypes = []string{
	"configmaps", "services", "deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch",
}

// placedIn is the number of clusters of each template. The policy of each namespace places its
// templates in one group of that many clusters.
const placedIn = 20

// simulation is the process that simulates the clusters.
type simulation struct {
	address  string            // of the control endpoint
	clusters map[string]string // addresses by name
	ca       []byte
	client   *http.Client
	process  *os.Process
}

// simulated is the answer of the control endpoint.
type simulated struct{ Writes, Watches, Lists, Requests int64 }

func startSimulation(b *testing.B, clusters int) *simulation {
	b.Helper()
	dir := b.TempDir()
	binary := filepath.Join(dir, "simulated")
	build := exec.Command("go", "build", "-o", binary, "./test/bench/simulated")
	build.Dir = testenv.Root()
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the simulated clusters: %v\n%s", err, out)
	}
	cmd := exec.Command(binary, "--clusters", strconv.Itoa(clusters), "--dir", dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s := &simulation{process: cmd.Process}
	poll(b, time.Minute, "the simulated clusters", func(context.Context) (bool, error) {
		address, err := os.ReadFile(filepath.Join(dir, "address"))
		s.address = string(address)
		return err == nil, nil
	})
	var err error
	if s.ca, err = os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil {
		b.Fatal(err)
	}
	addresses, err := os.ReadFile(filepath.Join(dir, "clusters.json"))
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(addresses, &s.clusters); err != nil {
		b.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.ca)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	return s
}

func (s *simulation) open(path string) (io.ReadCloser, error) {
	r, err := http.NewRequest(http.MethodGet, s.address+"/control/"+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer simulated")
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (s *simulation) control(b *testing.B, path string) (now simulated) {
	b.Helper()
	body, err := s.open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&now); err != nil {
		b.Fatal(err)
	}
	return now
}

func (s *simulation) kubeconfig(cluster string) []byte {
	raw, _ := json.Marshal(map[string]any{ //nolint:errchkjson // it can be encoded
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": s.clusters[cluster] + "/clusters/" + cluster, "certificate-authority-data": s.ca}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": "simulated"}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	return raw
}

func clusterName(i int) string { return fmt.Sprintf("c-%04d", i) }

// cpu is the processor time that a process has used.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// load returns how many percent of a core the server's own process uses while during runs.
func (f *fleet) load(b *testing.B, during func()) float64 {
	b.Helper()
	start, before := time.Now(), cpu(b, f.server.Process.Pid)
	during()
	return 100 * (cpu(b, f.server.Process.Pid) - before).Seconds() / time.Since(start).Seconds()
}

// BenchmarkSimulated runs a hub with a thousand simulated clusters (CLUSTERS) and five thousand
// templates (TEMPLATES), each in 20 of the clusters.
func BenchmarkSimulated(b *testing.B) {
	clusters, templates := number(b, "CLUSTERS", 1000), number(b, "TEMPLATES", 5000)
	groups := clusters / placedIn
	s := startSimulation(b, clusters)
	f := &fleet{dir: b.TempDir(), args: []string{"--mirror-resources=" + strings.Join(mirroredTypes, ",")}}
	f.startServer(b)
	b.Cleanup(func() { f.stopServer(b) })
	for range b.N {
		report(b, f.joinAll(b, s, clusters, groups).Seconds(), "s-to-join-all")
		watches := s.control(b, "stats").Watches
		b.Logf("%d watches", watches)

		start := time.Now()
		before := s.control(b, "stats").Writes
		f.placeAll(b, templates, groups)
		poll(b, 30*time.Minute, "every template in its clusters", func(ctx context.Context) (bool, error) {
			time.Sleep(time.Second)
			return s.control(b, "stats").Writes-before >= int64(templates*placedIn+groups*placedIn), nil
		})
		report(b, time.Since(start).Seconds(), "s-to-place-all")
		f.quiet(b, s)
		total, each := pss(b, f.server.Process.Pid)
		report(b, float64(own(each))/1024, "GiB-PSS-of-the-server")
		report(b, float64(total)/(1<<30), "GiB-PSS-of-all-processes")
		b.Log(each)

		report(b, f.load(b, func() { time.Sleep(time.Minute) }), "%-of-a-core-idle")
		report(b, f.load(b, func() {
			for range 6 {
				s.control(b, "offline?clusters="+clusterName(0))
				time.Sleep(5 * time.Second)
				s.control(b, "online?clusters="+clusterName(0))
				time.Sleep(5 * time.Second)
			}
		}), "%-of-a-core-one-flapping")
		var third []string
		for i := range clusters * 3 / 10 {
			third = append(third, clusterName(i))
		}
		gone := strings.Join(third, ",")
		s.control(b, "offline?clusters="+gone)
		start = time.Now()
		time.Sleep(30 * time.Second) // until all of them are found offline
		f.still(b)
		report(b, time.Since(start).Seconds(), "s-to-say-that-30%-are-offline")
		report(b, f.load(b, func() { time.Sleep(time.Minute) }), "%-of-a-core-30%-offline")
		s.control(b, "online?clusters="+gone)
		start = time.Now()
		f.allReady(b, clusters)
		report(b, time.Since(start).Seconds(), "s-to-have-30%-back")
		f.quiet(b, s)
		f.still(b)

		stop := make(chan struct{})
		var flapping sync.WaitGroup
		flapping.Go(func() {
			for {
				for _, command := range []string{"offline", "online"} {
					select {
					case <-stop:
						s.control(b, "online?clusters="+clusterName(0))
						return
					case <-time.After(5 * time.Second):
						s.control(b, command+"?clusters="+clusterName(0))
					}
				}
			}
		})
		f.edits(b, s, templates, groups)
		close(stop)
		flapping.Wait()
		f.quiet(b, s)

		f.stopServer(b)
		members := s.control(b, "stats")
		start = time.Now()
		f.startServer(b)
		hub := writes(b, f.cfg)
		poll(b, 10*time.Minute, "every watch", func(context.Context) (bool, error) {
			time.Sleep(100 * time.Millisecond)
			return s.control(b, "stats").Watches >= watches, nil
		})
		report(b, time.Since(start).Seconds(), "s-to-settle-after-a-restart")
		time.Sleep(30 * time.Second) // writes of a restart happen within this time
		report(b, float64(s.control(b, "stats").Writes-members.Writes), "writes-to-members-by-restart")
		n, what := since(hub, writes(b, f.cfg))
		report(b, float64(n), "writes-to-hub-by-restart")
		b.Log("hub:", what)
	}
}

// report logs the metric at once as well, because the whole benchmark takes long.
func report(b *testing.B, n float64, unit string) {
	b.Helper()
	b.Logf("%.4g %s", n, unit)
	b.ReportMetric(n, unit)
}

func number(b *testing.B, variable string, otherwise int) int {
	b.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		b.Fatalf("%s=%s: want a number", variable, text)
	}
	return n
}

// own returns the memory, in MiB, of the first process in the result of pss.
func own(each []string) int {
	n, _ := strconv.Atoi(strings.Fields(each[0][strings.LastIndex(each[0], ": ")+2:])[0])
	return n
}

// joinAll joins every simulated cluster, and returns how long it took until all were ready.
func (f *fleet) joinAll(b *testing.B, s *simulation, clusters, groups int) time.Duration {
	b.Helper()
	ctx := context.Background()
	var system corev1.Namespace
	if err := f.hub.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &system); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range clusters {
		g.Go(func() error {
			_, err := member.Join(ctx, f.hub, member.JoinOptions{
				Name: clusterName(i), Kubeconfig: s.kubeconfig(clusterName(i)), HubID: string(system.UID),
				Labels: map[string]string{"group": strconv.Itoa(i % groups)},
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	b.Logf("asked to join after %s", time.Since(start))
	f.allReady(b, clusters)
	return time.Since(start)
}

// allReady waits until every cluster is ready and mirrored.
func (f *fleet) allReady(b *testing.B, clusters int) {
	b.Helper()
	poll(b, 20*time.Minute, "every cluster to be ready and mirrored", func(ctx context.Context) (bool, error) {
		time.Sleep(time.Second)
		var all clusterv1alpha1.ClusterList
		if err := f.hub.List(ctx, &all); err != nil {
			return false, err
		}
		ready := 0
		for _, c := range all.Items {
			if meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady) &&
				meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionMirrored) {
				ready++
			}
		}
		return ready == clusters, nil
	})
}

// still waits until nothing was written to the hub for ten seconds.
func (f *fleet) still(b *testing.B) {
	b.Helper()
	last, since := -1, time.Now()
	poll(b, 10*time.Minute, "the hub to be still", func(context.Context) (bool, error) {
		time.Sleep(time.Second)
		now := 0
		for _, n := range writes(b, f.cfg) {
			now += n
		}
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= 10*time.Second, nil
	})
}

// placeAll creates the templates, and for each group of clusters a namespace whose policy
// selects it.
func (f *fleet) placeAll(b *testing.B, templates, groups int) {
	b.Helper()
	hub := clientset(b, f.cfg)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range groups {
		ns := fmt.Sprintf("group-%d", i)
		namespace(b, hub, ns)
		p := &policyv1alpha1.PropagationPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"},
			Spec: policyv1alpha1.PropagationSpec{
				ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}},
				Placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": strconv.Itoa(i)}},
				}},
			},
		}
		if err := f.hub.Create(context.Background(), p); err != nil {
			b.Fatal(err)
		}
		g.Go(func() error { return createAll(f.cfg, ns, templates/groups, 2) })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

// quiet waits until no write reached the clusters for ten seconds and all bindings are applied.
func (f *fleet) quiet(b *testing.B, s *simulation) {
	b.Helper()
	last, since := int64(-1), time.Now()
	poll(b, 10*time.Minute, "quiet", func(ctx context.Context) (bool, error) {
		time.Sleep(time.Second)
		if now := s.control(b, "stats").Writes; now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 10*time.Second {
			return false, nil
		}
		var l workv1alpha2.ResourceBindingList
		if err := f.hub.List(ctx, &l); err != nil {
			return false, err
		}
		return !slices.ContainsFunc(l.Items, func(o workv1alpha2.ResourceBinding) bool {
			return !meta.IsStatusConditionTrue(o.Status.Conditions, workv1alpha2.ConditionFullyApplied)
		}), nil
	})
}

// edits measures how long one edit of a template takes to reach its 20 clusters.
func (f *fleet) edits(b *testing.B, s *simulation, templates, groups int) {
	b.Helper()
	const count = 200
	body, err := s.open("follow")
	if err != nil {
		b.Fatal(err)
	}
	defer body.Close()
	var mu sync.Mutex
	seen := map[string][]time.Time{}
	go func() {
		lines := bufio.NewScanner(body)
		for lines.Scan() {
			var w struct {
				Mark string
				Time time.Time
			}
			if json.Unmarshal(lines.Bytes(), &w) == nil && w.Mark != "" {
				mu.Lock()
				seen[w.Mark] = append(seen[w.Mark], w.Time)
				mu.Unlock()
			}
		}
	}()
	hub := clientset(b, f.cfg)
	began := map[string]time.Time{}
	for i := range count {
		mark := fmt.Sprintf("edit-%d", i)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"bench":%q}}}`, mark)
		began[mark] = time.Now()
		// Group 0 is left out: it has the cluster that flaps, which edits could not reach in
		// time.
		_, err := hub.AppsV1().Deployments(fmt.Sprintf("group-%d", 1+i%(groups-1))).Patch(context.Background(),
			fmt.Sprintf("d%04d", i%(templates/groups)), types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			b.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	poll(b, time.Minute, "every edit everywhere", func(context.Context) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		for mark := range began {
			if len(seen[mark]) < placedIn {
				return false, nil
			}
		}
		return true, nil
	})
	var took []time.Duration
	for mark, at := range began {
		took = append(took, slices.MaxFunc(seen[mark], time.Time.Compare).Sub(at))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[count/2].Milliseconds()), "ms-edit-p50")
	b.ReportMetric(float64(took[count*99/100].Milliseconds()), "ms-edit-p99")
}
