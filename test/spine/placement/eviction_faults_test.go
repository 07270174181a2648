package placement

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// evictionFaults are the tests of this file. One of them runs at each commit.
var evictionFaults = []string{
	"TestClusterLostDuringEvictions",
	"TestFlappingCluster",
	"TestHubIsCutOff",
	"TestDatabaseOfTheMirrorIsAway",
}

// awayTaint is the key of the taint that the policy of tainting adds.
const awayTaint = clusterv1alpha1.TaintUnreachable

// tainting applies a ClusterTaintPolicy that taints every cluster while it is not Ready. At the end
// of the test, it removes the policy and the taints of all clusters.
func tainting(w *spine.World) {
	w.Helper()
	name := testenv.UniqueName("faults")
	w.Cleanup(func() {
		if !w.Hub.Running() {
			return
		}
		for _, m := range spine.Members.List {
			m.Heal()
		}
		w.Hub.Remove(w, policyAPI, "ClusterTaintPolicy", "", name)
		for _, m := range spine.Members.List {
			taint(w, m)
		}
	})
	w.Hub.Apply(w, fmt.Sprintf(`---
apiVersion: %s
kind: ClusterTaintPolicy
metadata: {name: %s}
spec:
  addOnConditions: [{conditionType: Ready, operator: NotIn, statusValues: ["True"]}]
  removeOnConditions: [{conditionType: Ready, operator: In, statusValues: ["True"]}]
  taints: [{key: %s, value: "yes", effect: NoExecute}]
`, policyAPI, name, awayTaint))
}

// placeDeployment places a Deployment, and waits until it is available in a member.
func placeDeployment(w *spine.World, m *testenv.Member, name, placement string) {
	w.Helper()
	w.Hub.Apply(w, spine.Policy(w.Namespace, name, "{apiVersion: apps/v1, kind: Deployment, name: "+name+"}", placement)+spine.Deployment(w.Namespace, name, 1))
	w.Available(m, name, 1)
	w.Applied("Deployment", name)
}

// placeJob places a Job with these tolerations in oak. At its end, the test fails unless the Job
// was created once, in all clusters together, and never deleted.
func placeJob(w *spine.World, tolerations string) {
	w.Helper()
	w.Hub.Apply(w, spine.Policy(w.Namespace, "job", "{apiVersion: batch/v1, kind: Job}", oakThenPine+tolerations, directly)+spine.Job(w.Namespace, "job"))
	w.Placed(w.Oak, "batch/v1", "Job", "job")
	w.Applied("Job", "job")
	w.Cleanup(func() {
		var writes []string
		for _, m := range spine.Members.List {
			for _, r := range w.Writes(m) {
				if r.Resource == "jobs" && (r.Code == http.StatusCreated || strings.HasPrefix(r.Verb, "delete")) {
					writes = append(writes, m.Name+": "+r.String())
				}
			}
		}
		if len(writes) != 1 {
			w.Errorf("the Job is to be created once, and not deleted:\n%s", strings.Join(writes, "\n"))
		}
	})
}

// history records the states of objects on the hub.
type history struct {
	w       *spine.World
	objects dynamic.ResourceInterface
	state   func(*unstructured.Unstructured) string

	mu      sync.Mutex
	states  map[string][]string // by name of the object
	version map[string]string   // resourceVersion of the last recorded state, by name of the object
}

// newHistory records each change of the objects of a resource until the test ends. state returns
// the part of an object that is recorded.
func newHistory(w *spine.World, resource schema.GroupVersionResource, namespace string, state func(*unstructured.Unstructured) string) *history {
	w.Helper()
	cfg, err := w.Hub.Config()
	w.Must(err)
	cfg.QPS = -1 // no limit of the client
	d, err := dynamic.NewForConfig(cfg)
	w.Must(err)
	h := &history{w: w, objects: d.Resource(resource).Namespace(namespace), state: state, states: map[string][]string{}, version: map[string]string{}}
	var events watch.Interface
	w.Eventually("watch "+resource.Resource, func() error {
		list, err := h.objects.List(w.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		clear(h.states)
		for i := range list.Items {
			h.record(&list.Items[i])
		}
		events, err = h.objects.Watch(w.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		return err
	})
	w.Cleanup(events.Stop)
	go func() {
		for e := range events.ResultChan() {
			if o, ok := e.Object.(*unstructured.Unstructured); ok && (e.Type == watch.Added || e.Type == watch.Modified) {
				h.record(o)
			}
		}
	}()
	return h
}

// record adds the state of an object, unless it equals the previous state.
func (h *history) record(o *unstructured.Unstructured) {
	state := h.state(o)
	h.mu.Lock()
	defer h.mu.Unlock()
	states := h.states[o.GetName()]
	if n := len(states); n == 0 || states[n-1] != state {
		h.states[o.GetName()] = append(states, state)
	}
	h.version[o.GetName()] = o.GetResourceVersion()
}

// of returns the states of an object, in order. The last one is its present state.
func (h *history) of(name string) (states []string) {
	h.w.Helper()
	h.w.Eventually("each state of "+name+" is recorded", func() error {
		o, err := h.objects.Get(h.w.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.version[name] != o.GetResourceVersion() {
			return fmt.Errorf("version %s is recorded, and it has %s", h.version[name], o.GetResourceVersion())
		}
		states = slices.Clone(h.states[name])
		return nil
	})
	return states
}

// was fails the test unless these were the states of an object.
func (h *history) was(name string, want ...string) {
	h.w.Helper()
	if diff := cmp.Diff(want, h.of(name)); diff != "" {
		h.w.Errorf("the states of %s (-want +got):\n%s", name, diff)
	}
}

// placementsOf records where the bindings of a test place their templates: the clusters, and
// "leaves CLUSTER" for each eviction task.
func placementsOf(w *spine.World) *history {
	w.Helper()
	resource := schema.GroupVersionResource{Group: "work.orrery.dev", Version: "v1alpha2", Resource: "resourcebindings"}
	return newHistory(w, resource, w.Namespace, func(b *unstructured.Unstructured) string {
		return strings.Join(append(fieldsOf(b, "", "name", "clusters"), fieldsOf(b, "leaves ", "fromCluster", "gracefulEvictionTasks")...), ", ")
	})
}

// taintsOf records the taints of all clusters, as "KEY TIME", with the time at which the taint was
// added.
func taintsOf(w *spine.World) *history {
	w.Helper()
	resource := schema.GroupVersionResource{Group: "cluster.orrery.dev", Version: "v1alpha1", Resource: "clusters"}
	return newHistory(w, resource, "", func(c *unstructured.Unstructured) string {
		keys, times := fieldsOf(c, "", "key", "taints"), fieldsOf(c, " ", "timeAdded", "taints")
		for i := range keys {
			keys[i] += times[i]
		}
		return strings.Join(keys, ", ")
	})
}

// fieldsOf returns a field of each element of a list in the spec of an object, each after prefix.
func fieldsOf(o *unstructured.Unstructured, prefix, field, list string) []string {
	var all []string
	elements, _, _ := unstructured.NestedSlice(o.Object, "spec", list)
	for _, e := range elements {
		e, _ := e.(map[string]any)
		all = append(all, fmt.Sprint(prefix, e[field]))
	}
	return all
}

// marksNow returns the present mark of each member.
func marksNow() map[*testenv.Member]int {
	marks := map[*testenv.Member]int{}
	for _, m := range spine.Members.List {
		marks[m] = m.Mark()
	}
	return marks
}

// unwritten fails the test for every write to its namespace in a member since the marks.
func unwritten(w *spine.World, marks map[*testenv.Member]int) {
	w.Helper()
	for m, mark := range marks {
		for _, r := range w.WritesSince(m, mark) {
			w.Errorf("%s: %s", m.Name, r)
		}
	}
}

// TestClusterLostDuringEvictions loses a cluster, and brings it back, while three Deployments leave
// oak for pine. Each is at another point: pine has just been asked to create the replacement
// (asked), the pods of the replacement are not ready (waiting), or oak has just been asked to
// delete the old copy (released).
func TestClusterLostDuringEvictions(t *testing.T) {
	testenv.Rotate(t, len(evictionFaults), evictionFaults...)
	cases := []struct {
		name, lost string
		fault      testenv.Fault
	}{
		{"OakIsCut", "oak", testenv.Cut},
		{"PineIsCut", "pine", testenv.Cut},
		{"OakHangs", "oak", testenv.Hang},
		{"PineHangs", "pine", testenv.Hang},
	}
	if !testenv.Soak() {
		// Sample would always choose the same case at the commits at which Rotate runs this test.
		i := testenv.Rand(t).IntN(len(cases))
		cases = cases[i : i+1]
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			w := spine.Start(t, "lost-"+spine.Lower(tc.name))
			loseDuringEvictions(w, spine.Members.Named(tc.lost), tc.fault)
		})
	}
}

// loseDuringEvictions is TestClusterLostDuringEvictions for one cluster and one fault.
func loseDuringEvictions(w *spine.World, lost *testenv.Member, fault testenv.Fault) {
	const first, second = "example.org/first", "example.org/second"
	names := []string{"asked", "waiting", "released"}
	placeDeployment(w, w.Oak, "released", oakThenPine)
	placeDeployment(w, w.Oak, "asked", oakThenPine+tolerating(first))
	placeDeployment(w, w.Oak, "waiting", oakThenPine+tolerating(first))
	placeJob(w, "")
	placements, marks := placementsOf(w), marksNow()
	w.Cleanup(func() { taint(w, w.Oak) })

	// Two requests wait in front of their cluster until release is called.
	var (
		underWay sync.Map // the names of their Deployments
		released = make(chan struct{})
		release  = sync.OnceFunc(func() { close(released) })
		judge    = &evictionKill{w: w, from: w.Oak, to: w.Pine} // kills nothing, because left is 0
	)
	w.Cleanup(release)
	for _, m := range spine.Members.List {
		m.OnWriteIn(w.Namespace, func(r testenv.Write) {
			judge.look(m, r)
			if r.Resource == "deployments" && !r.DryRun && (m == w.Pine && r.Name == "asked" || m == w.Oak && r.Name == "released") {
				underWay.Store(r.Name, true)
				<-released
			}
		})
	}
	arrives := func(name string) {
		w.Helper()
		w.Eventually("the request for Deployment "+name+" is on its way", func() error {
			if _, ok := underWay.Load(name); !ok {
				return errors.New("there is none")
			}
			return nil
		})
	}
	taint(w, w.Oak, noExecute(first, ""))
	arrives("released")
	open := w.Closed(w.Pine)
	taint(w, w.Oak, noExecute(first, ""), noExecute(second, ""))
	w.Placed(w.Pine, "apps/v1", "Deployment", "waiting")
	arrives("asked")

	stay := w.Content(w.Oak)
	delete(stay, "Deployment/released")
	cut := time.Now()
	lost.Fail(fault)
	release() // both requests are performed, and the hub gets no answer from the lost cluster
	w.Lost(lost)
	others := slices.DeleteFunc(slices.Clone(spine.Members.List), func(m *testenv.Member) bool { return m == lost })
	w.CaughtUp(0, others...)
	if lost == w.Pine {
		// Replacements become ready in a cluster that does not answer, so they do not count.
		open()
		w.Available(w.Pine, "asked", 1)
		w.Available(w.Pine, "waiting", 1)
		w.CaughtUp(0, others...)
	}
	w.Stays(w.Oak, stay)
	lost.Heal()
	w.Ready(lost)
	back := time.Now()
	if lost == w.Oak {
		w.CaughtUp(0)
		w.Stays(w.Oak, stay) // oak answers again, and no replacement is ready
		open()
	}
	for _, name := range names {
		w.Gone(w.Oak, "apps/v1", "Deployment", name)
		w.Available(w.Pine, name, 1)
		evicted(w, "Deployment", name)
	}
	w.CaughtUp(time.Second)

	for _, name := range names {
		placements.was(name+"-deployment", "oak", "pine, leaves oak", "pine")
	}
	placements.was("job-job", "oak")
	for m, verb := range map[*testenv.Member]string{w.Pine: "apply", w.Oak: "delete"} {
		// An answer of the lost cluster may not have reached the hub, so the hub may repeat the write.
		heard := func(r testenv.Write) bool {
			return spine.Heard(r) && (m != lost || r.Ended.Before(cut.Add(-recorded)) || r.Time.After(back))
		}
		writes, last := w.WritesSince(m, marks[m]), map[string]testenv.Write{}
		for _, name := range names {
			if got := slices.Compact(about(writes, "deployments", name)); !slices.Equal(got, []string{verb}) {
				w.Errorf("%s: the writes of Deployment %s are %v, want %s", m.Name, name, got, verb)
			}
		}
		for _, r := range writes {
			content := fmt.Sprintf("%s %s %v", r.Verb, r.Object(), r.Body)
			if before, again := last[content]; again && r.Resource == "deployments" && heard(before) {
				w.Errorf("%s: %s: the hub repeats %s", m.Name, r, before)
			}
			last[content] = r
		}
	}
	judge.mu.Lock()
	defer judge.mu.Unlock()
	for _, wrong := range judge.wrong {
		w.Error(wrong)
	}
}

// TestFlappingCluster loses oak again and again, each time for less than the toleration. Nothing is
// evicted, and each taint has a time of its own, so the toleration starts again. Then oak stays
// away, and a Deployment with a short toleration shows that the hub evicts.
func TestFlappingCluster(t *testing.T) {
	testenv.Rotate(t, len(evictionFaults), evictionFaults...)
	w := spine.Start(t, "flapping")
	tainting(w)
	patient := tolerating(awayTaint + ":120")
	placeDeployment(w, w.Oak, "patient", oakThenPine+patient)
	placeJob(w, patient)
	w.CaughtUp(0)
	generation := func() int64 {
		return w.Lookup(w.Hub.API, "cluster.orrery.dev/v1alpha1", "Cluster", "", "oak").GetGeneration()
	}
	placements, taints, marks, began := placementsOf(w), taintsOf(w), marksNow(), generation()

	losses := testenv.Count(t, "FLAPS", 2, 5)
	for range losses {
		w.Oak.Fail(testenv.Cut)
		hasTaint(w, w.Oak, awayTaint, true)
		w.Oak.Heal()
		hasTaint(w, w.Oak, awayTaint, false)
	}
	w.Ready(w.Oak)
	w.CaughtUp(0)
	unwritten(w, marks)

	placeDeployment(w, w.Oak, "impatient", oakThenPine+tolerating(awayTaint+":1"))
	w.Oak.Fail(testenv.Cut)
	losses++
	w.Available(w.Pine, "impatient", 1)
	w.Oak.Heal()
	w.Gone(w.Oak, "apps/v1", "Deployment", "impatient")
	evicted(w, "Deployment", "impatient")
	hasTaint(w, w.Oak, awayTaint, false)
	w.CaughtUp(0)

	placements.was("patient-deployment", "oak")
	placements.was("job-job", "oak")
	states := taints.of("oak")
	for i, s := range states {
		tainted := i%2 == 1
		if strings.HasPrefix(s, awayTaint+" ") != tainted || !tainted && s != "" || i > 2 && tainted && s <= states[i-2] {
			t.Errorf("taints of oak: state %d is %q", i, s)
		}
	}
	// Each loss adds the taint once and removes it once. Nothing else writes to the Cluster's spec.
	if written := generation() - began; len(states) != 2*losses+1 || written != int64(2*losses) {
		t.Errorf("after %d losses, oak was written %d times, and its taints were %q", losses, written, states)
	}
}

// TestHubIsCutOff cuts the network of the hub, so that no cluster answers. Pine answers again
// first: then another cluster fits for the objects that have to leave oak, and too many clusters
// are still lost. Oak answers before birch, so nothing is due when one cluster is lost.
func TestHubIsCutOff(t *testing.T) {
	testenv.Rotate(t, len(evictionFaults), evictionFaults...)
	seconds := 10 // the hub notices within this time that the other clusters do not answer either
	if testenv.Soak() {
		seconds = 40
	}
	tolerations := tolerating(fmt.Sprintf("%s:%d", awayTaint, seconds))
	w := spine.Start(t, "cut-off")
	tainting(w)
	placeDeployment(w, w.Oak, "web", oakThenPine+tolerations)
	placeDeployment(w, w.Pine, "other", "clusterAffinities: [{affinityName: first, clusterNames: [pine]}, {affinityName: second, clusterNames: [oak]}]"+tolerations)
	placeJob(w, tolerations)
	w.CaughtUp(0)
	placements, taints, marks := placementsOf(w), taintsOf(w), marksNow()

	for _, m := range spine.Members.List {
		m.Fail(testenv.Cut)
	}
	for _, m := range spine.Members.List {
		w.Lost(m)
		hasTaint(w, m, awayTaint, true)
	}
	w.Pine.Heal()
	w.Ready(w.Pine)
	hasTaint(w, w.Pine, awayTaint, false)
	delayed(w, "Deployment", "web", awayTaint, "ManyAtOnce")
	delayed(w, "Job", "job", awayTaint, "JobMayRun")
	w.CaughtUp(0, w.Pine)
	for _, m := range []*testenv.Member{w.Oak, w.Birch} {
		m.Heal()
		w.Ready(m)
		hasTaint(w, m, awayTaint, false)
	}
	scheduled(w, "Deployment", "web", "to leave oak", false)
	scheduled(w, "Job", "job", "to leave oak", false)
	w.CaughtUp(0)

	unwritten(w, marks)
	placements.was("web-deployment", "oak")
	placements.was("other-deployment", "pine")
	placements.was("job-job", "oak")
	for _, m := range spine.Members.List {
		if states := taints.of(m.Name); len(states) != 3 || states[0] != "" || states[2] != "" {
			t.Errorf("%s was tainted more than once: %q", m.Name, states)
		}
	}
}

// TestDatabaseOfTheMirrorIsAway kills the database of the mirror. Then no Cluster is Ready, but no
// cluster is at fault: the ClusterTaintPolicy on Ready taints none. A cluster that is lost
// meanwhile is tainted, and is left.
func TestDatabaseOfTheMirrorIsAway(t *testing.T) {
	testenv.Rotate(t, len(evictionFaults), evictionFaults...)
	dsn := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(dsn, []byte(testenv.PostgreSQL.Create(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	w := spine.AloneWith(t, "database-away", "--mirror-dsn-file="+dsn)
	tainting(w)
	tolerations := tolerating(awayTaint + ":1")
	placeDeployment(w, w.Oak, "web", oakThenPine+tolerations)
	placeJob(w, tolerations)
	w.CaughtUp(0)
	placements, taints, marks := placementsOf(w), taintsOf(w), marksNow()

	testenv.PostgreSQL.Kill(t)
	restart := sync.OnceFunc(func() { testenv.PostgreSQL.Restart(t) })
	t.Cleanup(restart)
	w.CaughtUp(0)
	for _, m := range spine.Members.List {
		w.Condition("cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name, "Ready=False/"+clusterv1alpha1.ReasonNotStored)
	}
	// The hub handles the taints of one cluster after the other: those of birch come last.
	const last = "example.org/last"
	taint(w, w.Birch, noExecute(last, ""))
	hasTaint(w, w.Birch, last, true)
	w.CaughtUp(0)
	taints.was("oak", "")
	taints.was("pine", "")
	placements.was("web-deployment", "oak")
	unwritten(w, marks)

	w.Oak.Fail(testenv.Cut)
	w.Available(w.Pine, "web", 1)
	restart()
	w.Ready(w.Pine)
	w.CaughtUp(0, w.Pine, w.Birch)
	taints.was("pine", "")
	if states := taints.of("oak"); len(states) != 2 || !strings.HasPrefix(states[1], awayTaint+" ") {
		t.Errorf("the taints of oak, which is lost, were %q", states)
	}
	placements.was("web-deployment", "oak", "pine, leaves oak")
	placements.was("job-job", "oak")
}
