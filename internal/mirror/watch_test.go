package mirror

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// request is a list or watch of a type in all namespaces.
type request struct {
	Resource                        string
	Watch                           bool
	ResourceVersion, Continue, Size string
}

// whole reports whether r is a list of all objects, or its first page.
func (r request) whole() bool { return !r.Watch && r.Size != "1" && r.Continue == "" }

// wire is between a mirror and a cluster and records the requests. meddle can answer in place
// of the cluster, or delay a request.
type wire struct {
	mu      sync.Mutex
	asked   []request
	meddle  func(r request, q *http.Request) *http.Response // nil: the cluster answers
	watches []io.Closer
}

// tap returns a config whose requests go through the wire.
func (w *wire) tap(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(q *http.Request) (*http.Response, error) { return w.send(next, q) })
	})
	return cfg
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

func (w *wire) send(next http.RoundTripper, q *http.Request) (*http.Response, error) {
	depth := strings.Count(strings.Trim(q.URL.Path, "/"), "/")
	if q.Method != http.MethodGet || strings.HasPrefix(q.URL.Path, "/api/") && depth != 2 || strings.HasPrefix(q.URL.Path, "/apis") && depth != 3 || depth < 2 {
		return next.RoundTrip(q)
	}
	query := q.URL.Query()
	r := request{
		Resource: path.Base(q.URL.Path), Watch: query.Get("watch") == "true",
		ResourceVersion: query.Get("resourceVersion"), Continue: query.Get("continue"), Size: query.Get("limit"),
	}
	w.mu.Lock()
	w.asked = append(w.asked, r)
	meddle := w.meddle
	w.mu.Unlock()
	if meddle != nil {
		if answer := meddle(r, q); answer != nil {
			return answer, nil
		}
	}
	answer, err := next.RoundTrip(q)
	if err == nil && r.Watch {
		w.mu.Lock()
		w.watches = append(w.watches, answer.Body)
		w.mu.Unlock()
	}
	return answer, err
}

func (w *wire) set(meddle func(r request, q *http.Request) *http.Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meddle = meddle
}

// cut ends every open watch.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.watches {
		_ = c.Close()
	}
	w.watches = nil
}

// forget clears the recorded requests.
func (w *wire) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = nil
}

// lists returns the types that were listed completely, and how often.
func (w *wire) lists() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int{}
	for _, r := range w.asked {
		if r.whole() {
			out[r.Resource]++
		}
	}
	return out
}

func (w *wire) of(resource string) (out []request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.asked {
		if r.Resource == resource {
			out = append(out, r)
		}
	}
	return out
}

// refuse returns an error response with a code and reason.
func refuse(q *http.Request, code int, reason metav1.StatusReason) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"says the test"}`, reason, code)
	return &http.Response{
		StatusCode: code, Status: fmt.Sprint(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: q,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// checkpointed waits until the store has a checkpoint for every type of the cluster.
func checkpointed(t *testing.T, s *store.Store, m *Mirror, cluster string) {
	t.Helper()
	eventually(t, "the store has a checkpoint for every type", func() bool {
		types := m.Types()
		for _, typ := range types {
			state, err := s.Checkpoint(t.Context(), cluster, resourceOf(typ.API))
			if err != nil {
				t.Fatal(err)
			}
			if state == nil {
				return false
			}
		}
		return len(types) > 0
	})
}

// knowledge is everything that a mirror knows about a cluster.
type knowledge struct {
	Placed, Orphans []Object
	Namespaces      map[string]string
	Labels          map[string]string // of a namespace
	Capacity        Capacity
	Fits            int64
	Versions        map[string]string // of every object, by type and key
	Message         string
}

func know(t *testing.T, m *Mirror, cluster, namespace string) knowledge {
	t.Helper()
	k := knowledge{
		Placed: m.PlacedIn(cluster), Orphans: m.Orphans(cluster), Labels: m.NamespaceLabels(cluster, namespace),
		Versions: map[string]string{}, Message: m.Observation(cluster).Message,
	}
	var known, synced bool
	k.Namespaces, synced = m.Namespaces(cluster)
	k.Capacity, known = m.Capacity(cluster)
	fits, measured := fitting(m, cluster, namespace)
	if !known || !synced || !measured {
		t.Fatalf("capacity known %t, namespaces synced %t, free capacity measured %t", known, synced, measured)
	}
	k.Fits = fits
	c := m.cluster(cluster)
	c.mu.Lock()
	defer c.mu.Unlock()
	for gr, tab := range c.tables {
		for at, r := range tab.records {
			k.Versions[fmt.Sprint(gr, at)] = fmt.Sprint(r.uid, " ", r.version, " ", r.stored == r.version, " ", r.object != nil)
		}
	}
	return k
}

// fitting returns how many replicas with little CPU fit in a namespace of a cluster. known is
// false while the free capacity is unknown.
func fitting(m *Mirror, cluster, namespace string) (n int64, known bool) {
	free, known := m.FreeCapacity(cluster)
	if !known {
		return 0, false
	}
	n, _ = free.Fits(scheduler.NewClaim(&interpreter.Requirements{
		Namespace: namespace, Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
	}), false)
	return n, true
}

// populate creates one object for each case that the index handles specially.
func populate(t *testing.T, cfg *rest.Config, namespace string) {
	t.Helper()
	k := clientset(t, cfg)
	ours := metav1.ApplyOptions{FieldManager: workv1alpha2.FieldManager, Force: true}
	applyMap(t, cfg, placedMap(namespace, "placed", "resume", "d1", map[string]any{"a": "1"}))
	applyMap(t, cfg, placedMap(namespace, "goes", "resume", "d1", nil))
	orphan := placedMap(namespace, "orphan", "", "d1", map[string]any{"a": "1"})
	orphan.SetLabels(nil)
	orphan.SetAnnotations(map[string]string{workv1alpha2.OrphanAnnotation: "hub/b"})
	applyMap(t, cfg, orphan)
	// An object with a binding label that another client copied.
	must[*corev1.ConfigMap](t)(k.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "copied", Labels: map[string]string{workv1alpha2.BindingLabel: "resume"}},
	}, metav1.CreateOptions{}))
	must[*corev1.Secret](t)(k.CoreV1().Secrets(namespace).Apply(t.Context(), corev1ac.Secret("s", namespace).
		WithLabels(map[string]string{workv1alpha2.BindingLabel: "resume"}).WithStringData(map[string]string{"password": "hunter2"}), ours))
	labels := map[string]string{"app": "web"}
	must[*appsv1.Deployment](t)(k.AppsV1().Deployments(namespace).Apply(t.Context(), appsv1ac.Deployment("web", namespace).
		WithLabels(map[string]string{workv1alpha2.BindingLabel: "resume"}).
		WithSpec(appsv1ac.DeploymentSpec().WithReplicas(3).WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).
				WithSpec(corev1ac.PodSpec().WithContainers(corev1ac.Container().WithName("c").WithImage("i"))))), ours))
	must[*appsv1.Deployment](t)(k.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"status":{"observedGeneration":1,"replicas":3,"updatedReplicas":3,"readyReplicas":2,"availableReplicas":2}}`),
		metav1.PatchOptions{}, "status"))
	must[*corev1.Namespace](t)(k.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"work.orrery.dev/created-by":"hub","pod-security.kubernetes.io/enforce":"baseline"}}}`), metav1.PatchOptions{}))
	must[*corev1.ServiceAccount](t)(k.CoreV1().ServiceAccounts(namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
	node := must[*corev1.Node](t)(k.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-" + namespace}}, metav1.CreateOptions{}))
	node.Spec.Taints = nil // without the not-ready taint that the API server sets
	node = must[*corev1.Node](t)(k.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}))
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("10")}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must[*corev1.Node](t)(k.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
	must[*corev1.Pod](t)(k.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{NodeName: node.Name, AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")}},
		}}},
	}, metav1.CreateOptions{}))
	quota := must[*corev1.ResourceQuota](t)(k.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}, metav1.CreateOptions{}))
	quota.Status.Hard = corev1.ResourceList{"pods": resource.MustParse("6")}
	quota.Status.Used = corev1.ResourceList{"pods": resource.MustParse("1")}
	must[*corev1.ResourceQuota](t)(k.CoreV1().ResourceQuotas(namespace).UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}))
	t.Cleanup(func() { // other tests see the same nodes
		if err := k.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// resumed lists the types of the restart tests, besides those that the mirror always needs.
var resumed = []string{"configmaps", "secrets", "resourcequotas", "deployments.apps"}

// TestResume: after a restart no type is listed, and the mirror knows the same as before.
func TestResume(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	s := openStore(t)
	m, stop := start(t, s, newFleet(newSource(t, "east", cfg, resumed...)))
	synced(t, m, "east")
	populate(t, cfg, namespace)
	q := store.Query{Resource: "pods", Namespaces: []string{namespace}}
	eventually(t, "all of it is known, and stored", func() bool {
		placed := m.PlacedOf("resume", "east")
		serves := slices.ContainsFunc(placed, func(o Object) bool { return o.Resource.Resource == "deployments" && o.Available == 2 })
		fits, measured := fitting(m, "east", namespace)
		return len(rows(t, s, q)) == 1 && len(placed) == 4 && serves && measured && fits == 5 &&
			len(m.NamespaceLabels("east", namespace)) > 0 && unwritten(m) == 0
	})
	checkpointed(t, s, m, "east")
	want := know(t, m, "east", namespace)
	if want.Fits != 5 { // the limit of its quota
		t.Errorf("%d replicas fit, want 5", want.Fits)
	}
	stop()

	var w wire
	m, stop = start(t, s, newFleet(newSource(t, "east", w.tap(cfg), resumed...)))
	synced(t, m, "east")
	if diff := cmp.Diff(want, know(t, m, "east", namespace)); diff != "" {
		t.Error(diff)
	}
	if lists := w.lists(); len(lists) != 0 {
		t.Errorf("listed: %v", lists)
	}
	// Later changes are watched, and the next start resumes from there.
	applyMap(t, cfg, placedMap(namespace, "next", "resume", "d1", nil))
	eventually(t, "the next one is placed", func() bool { return len(m.PlacedOf("resume", "east")) == 5 })
	stop()
	w.forget()
	m, _ = start(t, s, newFleet(newSource(t, "east", w.tap(cfg), resumed...)))
	synced(t, m, "east")
	if lists := w.lists(); len(lists) != 0 || len(m.PlacedOf("resume", "east")) != 5 {
		t.Errorf("listed: %v; placed: %v", lists, m.PlacedOf("resume", "east"))
	}
}

// TestResumeIsNotSyncedEarly: after a restart no type is synced, and no object counts as
// present or absent, before the watch has delivered what happened meanwhile. The test delays
// the watch.
func TestResumeIsNotSyncedEarly(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg).CoreV1().ConfigMaps(namespace)
	s := openStore(t)
	m, stop := start(t, s, newFleet(newSource(t, "east", cfg, "configmaps")))
	for _, name := range []string{"goes", "stays", "returns", "changes"} {
		applyMap(t, cfg, placedMap(namespace, name, "early", "d1", nil))
	}
	synced(t, m, "east")
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	eventually(t, "four are stored", func() bool { return len(rows(t, s, q)) == 4 })
	checkpointed(t, s, m, "east")
	before := rows(t, s, q)
	stop()
	for _, name := range []string{"goes", "returns"} {
		if err := k.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	applyMap(t, cfg, placedMap(namespace, "returns", "early", "d2", nil))
	applyMap(t, cfg, placedMap(namespace, "new", "early", "d2", nil))
	applyMap(t, cfg, placedMap(namespace, "changes", "early", "d2", nil))

	var w wire
	release := make(chan struct{})
	w.set(func(r request, q *http.Request) *http.Response {
		if r.Resource == "configmaps" && r.Watch {
			select {
			case <-release:
			case <-q.Context().Done():
			}
		}
		return nil
	})
	fleet := newFleet(newSource(t, "east", w.tap(cfg), "configmaps"))
	m = newMirror(s, fleet, testLogger(t))
	cm := configmaps.GroupResource()
	look := func() map[string]string {
		out := map[string]string{}
		for _, name := range []string{"goes", "stays", "returns", "changes", "new", "never"} {
			p, o := m.Lookup("east", cm, namespace, name)
			out[name] = strings.TrimSpace(fmt.Sprint(p, " ", o.Digest))
		}
		return out
	}
	var atSync map[string]string
	m.Subscribe(func(e Event) {
		if e.Type == Synced && e.Resource == cm {
			atSync = look()
		}
	})
	run(t, m)
	eventually(t, "the watch is being opened", func() bool {
		for _, r := range w.of("configmaps") {
			if r.Watch {
				return true
			}
		}
		return false
	})
	unknown := presence.Unknown
	want := map[string]string{
		"goes": fmt.Sprint(unknown, " d1"), "stays": fmt.Sprint(unknown, " d1"), "returns": fmt.Sprint(unknown, " d1"),
		"changes": fmt.Sprint(unknown, " d1"), "new": fmt.Sprint(unknown), "never": fmt.Sprint(unknown),
	}
	if diff := cmp.Diff(want, look()); diff != "" || m.Synced("east", cm) || m.Stored("east", cm) || m.Observation("east").Synced {
		t.Errorf("before the watch has brought anything, it is synced %t or: %s", m.Synced("east", cm), diff)
	}
	close(release)
	synced(t, m, "east")
	want = map[string]string{
		"goes": fmt.Sprint(presence.Absent), "stays": fmt.Sprint(presence.Present, " d1"), "returns": fmt.Sprint(presence.Present, " d2"),
		"changes": fmt.Sprint(presence.Present, " d2"), "new": fmt.Sprint(presence.Present, " d2"), "never": fmt.Sprint(presence.Absent),
	}
	if diff := cmp.Diff(want, atSync); diff != "" {
		t.Error("when it was reported as synced:", diff)
	}
	if lists := w.lists(); len(lists) != 0 {
		t.Errorf("listed: %v", lists)
	}
	id := "east/" + namespace + "/"
	eventually(t, "the store has what the cluster has", func() bool {
		now := rows(t, s, q)
		return len(now) == 4 && now[id+"returns"].UID != before[id+"returns"].UID && now[id+"new"].Name != "" &&
			now[id+"changes"].ResourceVersion != before[id+"changes"].ResourceVersion
	})
}

// TestNoResume: a type is listed after a restart if its checkpoint is invalid, or if the
// cluster cannot continue from it.
func TestNoResume(t *testing.T) {
	cfg := testenv.Config(0)
	cm := configmaps.GroupResource()
	for name, tc := range map[string]struct {
		change func(t *testing.T, s *store.Store, east *testSource, w *wire)
		lists  map[string]int
	}{
		"ClusterRebuilt": {
			func(_ *testing.T, _ *store.Store, east *testSource, _ *wire) { east.id = "rebuilt" },
			map[string]int{"configmaps": 1, "namespaces": 1, "nodes": 1, "pods": 1, "customresourcedefinitions": 1, "apiservices": 1},
		},
		"JoinedAnew": {
			func(_ *testing.T, _ *store.Store, east *testSource, _ *wire) { east.cluster.UID = "joined anew" },
			map[string]int{"configmaps": 1, "namespaces": 1, "nodes": 1, "pods": 1, "customresourcedefinitions": 1, "apiservices": 1},
		},
		"Withdrawn": {
			func(t *testing.T, s *store.Store, _ *testSource, _ *wire) {
				if err := s.SaveCheckpoints(t.Context(), []store.Checkpoint{{Cluster: "east", Resource: cm}}); err != nil {
					t.Fatal(err)
				}
			},
			map[string]int{"configmaps": 1},
		},
		"ClusterRestored": {func(t *testing.T, s *store.Store, _ *testSource, _ *wire) {
			state := must[[]byte](t)(s.Checkpoint(t.Context(), "east", cm))
			_, rest, _ := strings.Cut(string(state), `"resourceVersion":"`)
			old, _, _ := strings.Cut(rest, `"`)
			save(t, s, cm, strings.Replace(string(state), old, "9999999999", 1))
		}, map[string]int{"configmaps": 1}},
		"OtherVersion": {func(t *testing.T, s *store.Store, _ *testSource, _ *wire) {
			state := must[[]byte](t)(s.Checkpoint(t.Context(), "east", cm))
			save(t, s, cm, strings.Replace(string(state), `"version":"v1"`, `"version":"v0"`, 1))
		}, map[string]int{"configmaps": 1}},
		"OtherScope": {func(t *testing.T, s *store.Store, _ *testSource, _ *wire) {
			state := must[[]byte](t)(s.Checkpoint(t.Context(), "east", cm))
			save(t, s, cm, strings.Replace(string(state), `"namespaced":true`, `"namespaced":false`, 1))
		}, map[string]int{"configmaps": 1}},
		"Garbage": {func(t *testing.T, s *store.Store, _ *testSource, _ *wire) { save(t, s, cm, "garbage") }, map[string]int{"configmaps": 1}},
		"Expired": {func(_ *testing.T, _ *store.Store, _ *testSource, w *wire) {
			var once sync.Once
			w.set(func(r request, q *http.Request) (answer *http.Response) {
				if r.Resource == "configmaps" && r.Watch {
					once.Do(func() { answer = refuse(q, http.StatusGone, metav1.StatusReasonExpired) })
				}
				return answer
			})
		}, map[string]int{"configmaps": 1}},
		"NoBookmarks": {func(_ *testing.T, _ *store.Store, _ *testSource, w *wire) {
			w.set(func(r request, q *http.Request) *http.Response {
				if r.Resource == "configmaps" && r.Watch {
					query := q.URL.Query()
					query.Del("allowWatchBookmarks")
					q.URL.RawQuery = query.Encode()
				}
				return nil
			})
		}, map[string]int{"configmaps": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := testenv.Namespace(t, cfg)
			s := openStore(t)
			m, stop := start(t, s, newFleet(newSource(t, "east", cfg, "configmaps")))
			for _, name := range []string{"goes", "stays"} {
				applyMap(t, cfg, placedMap(namespace, name, namespace, "d1", nil))
			}
			synced(t, m, "east")
			q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
			eventually(t, "they are stored", func() bool { return len(rows(t, s, q)) == 2 })
			checkpointed(t, s, m, "east")
			stop()
			if err := clientset(t, cfg).CoreV1().ConfigMaps(namespace).Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			testenv.Namespace(t, cfg) // raises the cluster's resource version only

			var w wire
			east := newSource(t, "east", w.tap(cfg), "configmaps")
			tc.change(t, s, east, &w)
			m, _ = start(t, s, newFleet(east))
			synced(t, m, "east")
			if diff := cmp.Diff(tc.lists, w.lists()); diff != "" {
				t.Error("listed:", diff)
			}
			if p, _ := m.Lookup("east", cm, namespace, "goes"); p != presence.Absent || len(m.PlacedOf(types.UID(namespace), "east")) != 1 {
				t.Errorf("what went is %v", p)
			}
			eventually(t, "it leaves the store", func() bool { return len(rows(t, s, q)) == 1 })
		})
	}
}

func save(t *testing.T, s *store.Store, gr schema.GroupResource, state string) {
	t.Helper()
	epoch := must[string](t)(s.Epoch(t.Context()))
	if err := s.SaveCheckpoints(t.Context(), []store.Checkpoint{{Cluster: "east", Resource: gr, Epoch: epoch, State: []byte(state)}}); err != nil {
		t.Fatal(err)
	}
}

// TestServersHistoryIsLost: an API server that was restarted no longer has the history since
// the checkpoint, so the type is listed.
func TestServersHistoryIsLost(t *testing.T) {
	server := testenv.StartServer(t)
	cfg := server.Config()
	namespace := testenv.Namespace(t, cfg)
	s := openStore(t)
	m, stop := start(t, s, newFleet(newSource(t, "east", cfg, "configmaps")))
	for _, name := range []string{"goes", "stays"} {
		applyMap(t, cfg, placedMap(namespace, name, namespace, "d1", nil))
	}
	synced(t, m, "east")
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	eventually(t, "they are stored", func() bool { return len(rows(t, s, q)) == 2 })
	checkpointed(t, s, m, "east")
	stop()
	if err := clientset(t, cfg).CoreV1().ConfigMaps(namespace).Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	applyMap(t, cfg, placedMap(namespace, "stays", namespace, "d2", nil))
	server.Signal(t, syscall.SIGKILL)
	server.Restart(t)
	var w wire
	m, _ = start(t, s, newFleet(newSource(t, "east", w.tap(cfg), "configmaps")))
	synced(t, m, "east")
	if lists := w.lists(); lists["configmaps"] != 1 {
		t.Errorf("listed %v, want configmaps once", lists)
	}
	if got := m.PlacedOf(types.UID(namespace), "east"); len(got) != 1 || got[0].Digest != "d2" {
		t.Errorf("placed %v", got)
	}
}

// TestBrokenWatch: a broken watch continues from its last version without a list. A watch that
// cannot continue leads to a list.
func TestBrokenWatch(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	var w wire
	fleet := newFleet(newSource(t, "east", w.tap(cfg), "configmaps"))
	m, _ := start(t, openStore(t), fleet)
	synced(t, m, "east")
	eventually(t, "it is watched", func() bool { return len(w.of("configmaps")) >= 2 })
	w.forget()
	w.cut()
	applyMap(t, cfg, placedMap(namespace, "first", namespace, "d1", nil))
	eventually(t, "the first is mirrored", func() bool { return len(m.PlacedOf(types.UID(namespace), "east")) == 1 })
	if lists := w.lists(); len(lists) != 0 {
		t.Errorf("listed %v", lists)
	}
	for _, r := range w.of("configmaps") {
		if r.Watch && number(r.ResourceVersion) == 0 {
			t.Errorf("watched from %q", r.ResourceVersion)
		}
	}

	// A server that fails is asked again, and the watch continues.
	w.forget()
	failures := 0
	w.set(func(r request, q *http.Request) *http.Response {
		w.mu.Lock()
		defer w.mu.Unlock()
		if failures++; r.Resource == "configmaps" && failures < 5 {
			return refuse(q, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		}
		return nil
	})
	w.cut()
	applyMap(t, cfg, placedMap(namespace, "second", namespace, "d1", nil))
	eventually(t, "the second is mirrored", func() bool { return len(m.PlacedOf(types.UID(namespace), "east")) == 2 })
	if lists := w.lists(); len(lists) != 0 {
		t.Errorf("listed %v", lists)
	}

	w.forget()
	var once sync.Once
	w.set(func(r request, q *http.Request) (answer *http.Response) {
		if r.Resource == "configmaps" && r.Watch {
			once.Do(func() { answer = refuse(q, http.StatusGone, metav1.StatusReasonExpired) })
		}
		return answer
	})
	w.cut()
	applyMap(t, cfg, placedMap(namespace, "third", namespace, "d1", nil))
	eventually(t, "the third is mirrored", func() bool { return len(m.PlacedOf(types.UID(namespace), "east")) == 3 })
	if diff := cmp.Diff(map[string]int{"configmaps": 1}, w.lists()); diff != "" {
		t.Error("listed:", diff)
	}
}

// TestPages: all pages of a list show one resource version, the newest. The list begins again
// when that version has expired.
func TestPages(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg).CoreV1().ConfigMaps(namespace)
	var creating sync.WaitGroup
	for part := range 10 {
		creating.Go(func() {
			for i := range (pageSize + 50) / 10 {
				o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%d-%d", part, i)}}
				if _, err := k.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	creating.Wait()
	var w wire
	var once sync.Once
	w.set(func(r request, q *http.Request) (answer *http.Response) {
		if r.Resource == "configmaps" && r.Continue != "" {
			once.Do(func() { answer = refuse(q, http.StatusGone, metav1.StatusReasonExpired) })
		}
		return answer
	})
	s := openStore(t)
	m, _ := start(t, s, newFleet(newSource(t, "east", w.tap(cfg), "configmaps")))
	synced(t, m, "east")
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	eventually(t, "all are stored", func() bool { return len(rows(t, s, q)) == pageSize+50 })
	eventually(t, "it is watched", func() bool {
		return slices.ContainsFunc(w.of("configmaps"), func(r request) bool { return r.Watch })
	})
	var got []string
	for _, r := range w.of("configmaps") {
		switch {
		case r.Watch:
			got = append(got, "watch")
		case r.ResourceVersion != "":
			t.Errorf("listed at %s", r.ResourceVersion)
		case r.Continue != "":
			got = append(got, "more "+r.Size)
		default:
			got = append(got, "list "+r.Size)
		}
	}
	if diff := cmp.Diff([]string{"list 500", "more 500", "list 500", "more 500", "watch"}, got); diff != "" {
		t.Error(diff)
	}

	// A new list that begins again for that reason deletes nothing either.
	var expired, tooOld sync.Once
	w.forget()
	w.set(func(r request, q *http.Request) (answer *http.Response) {
		if r.Resource == "configmaps" && r.Watch {
			expired.Do(func() { answer = refuse(q, http.StatusGone, metav1.StatusReasonExpired) })
		}
		if r.Resource == "configmaps" && r.Continue != "" {
			tooOld.Do(func() { answer = refuse(q, http.StatusGone, metav1.StatusReasonExpired) })
		}
		return answer
	})
	w.cut()
	eventually(t, "it is listed again, twice, and watched", func() bool {
		of := w.of("configmaps")
		return w.lists()["configmaps"] == 2 && len(of) > 0 && of[len(of)-1].Watch
	})
	applyMap(t, cfg, placedMap(namespace, "after", namespace, "d1", nil))
	eventually(t, "what comes after is stored", func() bool { return len(rows(t, s, q)) == pageSize+51 })
	if deleted := must[store.Revisions](t)(s.Deleted(t.Context(), q, nil, 0, 10)); len(deleted.Items) != 0 {
		t.Errorf("%v were taken for deleted", deleted.Items)
	}
}

// TestRelistsWaitForSlots: when the watches of many clusters expire at once, their lists use the
// same slots as first lists, so that no more of them run concurrently.
func TestRelistsWaitForSlots(t *testing.T) {
	cfg := testenv.Config(0)
	const slots, clusters = 3, 5
	var w wire
	var fleet []*testSource
	for i := range clusters {
		fleet = append(fleet, newSource(t, fmt.Sprintf("c%d", i), w.tap(cfg), "configmaps"))
	}
	f := newFleet(fleet...)
	m := newMirror(openStore(t), f, testLogger(t))
	m.listing = make(chan struct{}, slots)
	run(t, m)
	total := 0
	for i := range clusters {
		synced(t, m, fmt.Sprintf("c%d", i))
		c := m.cluster(fmt.Sprintf("c%d", i))
		c.mu.Lock()
		total += len(c.tables)
		c.mu.Unlock()
	}
	eventually(t, "every type is watched", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.watches) == total })

	var mu sync.Mutex
	running, most, listed := 0, 0, 0
	expired := map[string]int{}
	all, full := 0, make(chan struct{})
	proceed := sync.OnceFunc(func() { close(full) })
	w.set(func(r request, q *http.Request) *http.Response {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Watch && expired[r.Resource] < clusters:
			expired[r.Resource]++
			all++
			if all == total && running == slots {
				proceed()
			}
			return refuse(q, http.StatusGone, metav1.StatusReasonExpired)
		case r.whole():
			running++
			most = max(most, running)
			if all == total && running == slots {
				proceed()
			}
			mu.Unlock()
			<-full // until every watch has expired and every slot has a list
			mu.Lock()
			running--
			listed++
		}
		return nil
	})
	w.cut()
	eventually(t, "every type is listed and watched again", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.watches) == total
	})
	mu.Lock()
	defer mu.Unlock()
	if most != slots || listed != total {
		t.Errorf("%d of %d types were listed again, %d at once, want %d", listed, total, most, slots)
	}
}

// TestAnotherVersionIsReadAgain: when a type is mirrored in another API version than before, its
// objects are stored in that version, though they did not change.
func TestAnotherVersionIsReadAgain(t *testing.T) {
	cfg := testenv.Config(0)
	version := func(name string, stored bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: stored,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		}
	}
	crds := must[*apiextensions.Clientset](t)(apiextensions.NewForConfig(cfg)).ApiextensionsV1().CustomResourceDefinitions()
	must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "wheels.mirror.test"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "mirror.test", Scope: apiextensionsv1.ClusterScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "wheels", Singular: "wheel", Kind: "Wheel", ListKind: "WheelList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
		},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() {
		if err := crds.Delete(context.Background(), "wheels.mirror.test", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	wheels := schema.GroupVersionResource{Group: "mirror.test", Version: "v1", Resource: "wheels"}
	c := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cfg))
	eventually(t, "a wheel is made", func() bool {
		_, err := c.Resource(wheels).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "mirror.test/v1", "kind": "Wheel", "metadata": map[string]any{"name": "w"},
		}}, metav1.CreateOptions{})
		return err == nil
	})
	s := openStore(t)
	for _, v := range []string{"v1", "v2", "v1"} {
		east := newSource(t, "east", cfg, "wheels.mirror.test")
		eventually(t, "wheels are served", func() bool {
			east.discover()
			for _, api := range east.apis {
				if api.Resource == "wheels" && api.GroupVersionKind.Version == v {
					return true
				}
			}
			return false
		})
		east.cluster.Spec.Mirror.Resources[0].Versions = []string{v}
		m, stop := start(t, s, newFleet(east))
		synced(t, m, "east")
		eventually(t, "the wheel is stored as "+v, func() bool {
			r := rows(t, s, store.Query{Group: "mirror.test", Resource: "wheels"})["east//w"]
			return r.Version == v && strings.Contains(string(r.Body), "mirror.test/"+v)
		})
		checkpointed(t, s, m, "east")
		stop()
	}
}
