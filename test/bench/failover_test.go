//go:build bench

package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

const (
	// failoverClusters is the number of clusters of BenchmarkFailover. One lost cluster is a smaller
	// part of them than --unhealthy-cluster-threshold, so evictions begin at the usual rate.
	failoverClusters = 3
	// tolerated is how long the Deployments of BenchmarkFailover tolerate the taint of a lost cluster.
	tolerated = time.Second
)

// otherWrites is the kind of the writes on the hub that are not in writeKinds.
const otherWrites = "others"

// writeKinds has the kinds by which BenchmarkFailover counts writes on the hub, by the resource, as
// in the result of writes.
var writeKinds = map[string]string{
	"resourcebindings": "bindings", "resourcebindings/status": "binding-statuses", "deployments/status": "template-statuses",
	"clusters": "clusters", "clusters/status": "clusters", "events": "events", "configmaps": "configmaps",
}

// BenchmarkFailover cuts off a simulated cluster that has TEMPLATES Deployments (1,000). Their
// policy allows one other cluster. They tolerate the taint of a ClusterTaintPolicy for a second,
// and then leave at a rate of 100 in a second. The benchmark measures the time from the end of the
// toleration until all bindings name the other cluster, and until that cluster has all copies. It
// counts the writes on the hub for each Deployment, those of an idle minute while the lost cluster
// is still away, and those after that cluster answers again.
func BenchmarkFailover(b *testing.B) {
	size := number(b, "TEMPLATES", 1000)
	for range b.N {
		failOver(b, size)
	}
}

// failOver measures one failover in a fleet of its own.
func failOver(b *testing.B, size int) {
	b.Helper()
	const ns = "failover"
	lost, other := clusterName(0), clusterName(1)
	s := startSimulation(b, failoverClusters)
	f := &fleet{dir: b.TempDir(), args: []string{
		"--mirror-resources=" + strings.Join(mirroredTypes, ","), "--resource-eviction-rate=100", "--failover-settling-time=0s",
	}}
	f.startServer(b)
	b.Cleanup(func() { f.stopServer(b) })
	f.joinAll(b, s, failoverClusters, 1)
	f.failoverPolicies(b, ns, lost, other)
	w := f.followFailover(b, s, ns)

	// This taint keeps the Deployments out of the other cluster until all of them are placed.
	f.taint(b, other, corev1.Taint{Key: "bench", Effect: corev1.TaintEffectNoSchedule})
	f.still(b)
	if err := createAll(f.cfg, ns, size, clientWorkers); err != nil {
		b.Fatal(err)
	}
	w.wait(b, size, "every binding to name "+lost, w.named(lost, true))
	w.wait(b, size, "every copy in "+lost, w.present(lost))
	f.taint(b, other)
	f.quiet(b, s)
	f.still(b)

	w.most() // what was written until now does not count
	before := writes(b, f.cfg)
	s.control(b, "offline?clusters="+lost)
	end := f.tainted(b, lost).Add(tolerated)
	named := w.wait(b, size, "every binding to name "+other, w.named(other, false))
	present := w.wait(b, size, "every copy in "+other, w.present(other))
	report(b, named.Sub(end).Seconds(), "s-until-named-elsewhere")
	report(b, present.Sub(end).Seconds(), "s-until-present-elsewhere")
	f.still(b)
	after := writes(b, f.cfg)
	w.reportWrites(b, before, after, size, "")
	kinds := byKind(before, after)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		report(b, float64(kinds[kind])/float64(size), "hub-writes-of-"+kind+"/Deployment")
	}

	before = writes(b, f.cfg)
	time.Sleep(time.Minute) // an idle minute is what is measured
	n, what := since(before, writes(b, f.cfg))
	report(b, float64(n), "hub-writes-in-an-idle-minute")
	b.Log("hub writes in an idle minute:", what)

	w.most()
	before = writes(b, f.cfg)
	s.control(b, "online?clusters="+lost)
	w.wait(b, size, "the end of every eviction", w.named(other, true))
	f.still(b)
	w.reportWrites(b, before, writes(b, f.cfg), size, "-after-the-return")
}

// failoverPolicies creates the namespace, with a policy that places its Deployments in one of the
// clusters, and the ClusterTaintPolicy.
func (f *fleet) failoverPolicies(b *testing.B, ns string, clusters ...string) {
	b.Helper()
	namespace(b, clientset(b, f.cfg), ns)
	ready := func(operator policyv1alpha1.MatchConditionOperator) []policyv1alpha1.MatchCondition {
		return []policyv1alpha1.MatchCondition{{
			ConditionType: clusterv1alpha1.ConditionReady, Operator: operator, StatusValues: []metav1.ConditionStatus{metav1.ConditionTrue},
		}}
	}
	for _, o := range []client.Object{
		&policyv1alpha1.ClusterTaintPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: ns},
			Spec: policyv1alpha1.ClusterTaintPolicySpec{
				AddOnConditions: ready(policyv1alpha1.MatchConditionOpNotIn), RemoveOnConditions: ready(policyv1alpha1.MatchConditionOpIn),
				Taints: []policyv1alpha1.Taint{{Key: clusterv1alpha1.TaintNotReady, Effect: corev1.TaintEffectNoExecute}},
			},
		},
		&policyv1alpha1.PropagationPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"},
			Spec: policyv1alpha1.PropagationSpec{
				ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}},
				Placement: policyv1alpha1.Placement{
					ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: clusters},
					SpreadConstraints: []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}},
					ClusterTolerations: []corev1.Toleration{{
						Key: clusterv1alpha1.TaintNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
						TolerationSeconds: new(int64(tolerated / time.Second)),
					}},
				},
			},
		},
	} {
		if err := f.hub.Create(context.Background(), o); err != nil {
			b.Fatal(err)
		}
	}
}

// taint gives a cluster these taints and no others.
func (f *fleet) taint(b *testing.B, cluster string, taints ...corev1.Taint) {
	b.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		b.Fatal(err)
	}
	o := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: cluster}}
	if err := f.hub.Patch(context.Background(), o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		b.Fatal(err)
	}
}

// tainted waits until the cluster has the taint of the ClusterTaintPolicy, and returns when the
// taint was added. The API cuts that time to whole seconds. So a time that is measured from it may
// be up to a second too long.
func (f *fleet) tainted(b *testing.B, cluster string) (added time.Time) {
	b.Helper()
	poll(b, 5*time.Minute, "the taint of "+cluster, func(ctx context.Context) (bool, error) {
		var c clusterv1alpha1.Cluster
		if err := f.hub.Get(ctx, types.NamespacedName{Name: cluster}, &c); err != nil {
			return false, err
		}
		for _, t := range c.Spec.Taints {
			if t.Key == clusterv1alpha1.TaintNotReady && t.TimeAdded != nil {
				added = t.TimeAdded.Time
			}
		}
		return !added.IsZero(), nil
	})
	return added
}

// byKind returns the number of writes since before, by kind. The result has every kind.
func byKind(before, after map[string]int) map[string]int {
	count := map[string]int{otherWrites: 0}
	for _, kind := range writeKinds {
		count[kind] = 0
	}
	for k, n := range after {
		_, resource, _ := strings.Cut(k, " ")
		count[cmp.Or(writeKinds[resource], otherWrites)] += n - before[k]
	}
	return count
}

// failoverWatch watches the Deployments of a namespace and their bindings on the hub, and their
// copies in the simulated clusters.
type failoverWatch struct {
	mu       sync.Mutex
	bindings map[string]target               // by Deployment
	copies   map[string]map[string]time.Time // when a cluster first stored the copy of a Deployment
	changes  map[string]int                  // of a Deployment and its binding, since the last most
	err      error                           // the watch of the hub has ended
}

// target is where a binding places its Deployment.
type target struct {
	cluster string    // "": in none, or in several
	named   time.Time // when the watch first showed that cluster
	evicted bool      // an eviction task keeps an old copy
}

// followFailover starts to watch the namespace, until the benchmark ends.
func (f *fleet) followFailover(b *testing.B, s *simulation, ns string) *failoverWatch {
	b.Helper()
	w := &failoverWatch{bindings: map[string]target{}, copies: map[string]map[string]time.Time{}, changes: map[string]int{}}
	body, err := s.open("follow")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { body.Close() })
	go w.readCopies(body, ns)
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	events := stream(ctx, b, protobuf(b, f.cfg).AppsV1().Deployments(ns).Watch, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return f.hub.Watch(ctx, &workv1alpha2.ResourceBindingList{}, client.InNamespace(ns), &client.ListOptions{Raw: &o})
	})
	go func() {
		for {
			select {
			case e := <-events:
				w.see(e)
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

// see records an event of the hub.
func (w *failoverWatch) see(e watch.Event) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var name string
	switch o := e.Object.(type) {
	case *appsv1.Deployment:
		name = o.Name
	case *workv1alpha2.ResourceBinding:
		name = strings.TrimSuffix(o.Name, "-deployment")
		t := target{named: now, evicted: len(o.Spec.GracefulEvictionTasks) > 0}
		if len(o.Spec.Clusters) == 1 {
			t.cluster = o.Spec.Clusters[0].Name
		}
		if was := w.bindings[name]; was.cluster == t.cluster {
			t.named = was.named
		}
		w.bindings[name] = t
	default:
		w.err = fmt.Errorf("the watch of the hub ended: %v", e.Object)
		return
	}
	if e.Type == watch.Modified {
		w.changes[name]++
	}
}

// readCopies records the writes of Deployments in the simulated clusters until body is closed.
func (w *failoverWatch) readCopies(body io.Reader, ns string) {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		var stored struct {
			Cluster, Namespace, Name string
			Time                     time.Time
		}
		if json.Unmarshal(lines.Bytes(), &stored) != nil || stored.Namespace != ns {
			continue
		}
		w.mu.Lock()
		copies := w.copies[stored.Cluster]
		if copies == nil {
			copies = map[string]time.Time{}
			w.copies[stored.Cluster] = copies
		}
		if _, known := copies[stored.Name]; !known {
			copies[stored.Name] = stored.Time
		}
		w.mu.Unlock()
	}
}

// named returns a function for wait that counts the bindings that name only the cluster. If
// finished, bindings with an eviction task do not count.
func (w *failoverWatch) named(cluster string, finished bool) func() (n int, last time.Time) {
	return func() (n int, last time.Time) {
		for _, t := range w.bindings {
			if t.cluster != cluster || finished && t.evicted {
				continue
			}
			n++
			if t.named.After(last) {
				last = t.named
			}
		}
		return n, last
	}
}

// present returns a function for wait that counts the copies in the cluster. Copies that were
// deleted again count as well.
func (w *failoverWatch) present(cluster string) func() (n int, last time.Time) {
	return func() (n int, last time.Time) {
		for _, at := range w.copies[cluster] {
			n++
			if at.After(last) {
				last = at
			}
		}
		return n, last
	}
}

// wait waits until count, which is called with the lock, counts all Deployments, and returns the
// time of the last one.
func (w *failoverWatch) wait(b *testing.B, size int, what string, count func() (n int, last time.Time)) (last time.Time) {
	b.Helper()
	poll(b, patience(size), what, func(context.Context) (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		n, at := count()
		last = at
		return n == size, w.err
	})
	return last
}

// most returns how often the Deployment that changed most often changed since the last call.
// Changes of its binding count as well.
func (w *failoverWatch) most() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, changes := range w.changes {
		n = max(n, changes)
	}
	clear(w.changes)
	return n
}

// reportWrites reports the writes on the hub for each Deployment, on average and at most. The
// average counts all writes. The maximum counts those of the Deployment and its binding that
// changed something. when is the end of the units.
func (w *failoverWatch) reportWrites(b *testing.B, before, after map[string]int, size int, when string) {
	b.Helper()
	n, what := since(before, after)
	report(b, float64(n)/float64(size), "hub-writes/Deployment"+when)
	report(b, float64(w.most()), "hub-writes/Deployment-at-most"+when)
	b.Log("hub writes:", what)
}
