package mirror

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// mirrorPolicy returns a MirrorPolicy with a spec in YAML. It selects every cluster unless the
// spec has a clusterSelector.
func mirrorPolicy(t testing.TB, name, spec string) *configv1alpha1.MirrorPolicy {
	t.Helper()
	p := &configv1alpha1.MirrorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	if p.Spec.ClusterSelector == nil {
		p.Spec.ClusterSelector = &metav1.LabelSelector{}
	}
	return p
}

// requests records the URLs of the requests to a cluster.
type requests struct {
	mu   sync.Mutex
	seen []*url.URL
}

func (r *requests) of(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			r.mu.Lock()
			r.seen = append(r.seen, req.URL)
			r.mu.Unlock()
			return next.RoundTrip(req)
		})
	})
	return cfg
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// asked reports whether there was a list or watch of the path with the label selector.
func (r *requests) asked(path, selector string, watch bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.seen {
		q := u.Query()
		if w, _ := strconv.ParseBool(q.Get("watch")); u.Path == path && q.Get("labelSelector") == selector && w == watch {
			return true
		}
	}
	return false
}

func configMap(t testing.TB, cfg *rest.Config, namespace, name string, labels map[string]string) {
	t.Helper()
	must[*corev1.ConfigMap](t)(clientset(t, cfg).CoreV1().ConfigMaps(namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))
}

// TestFilters: of a type that is mirrored in part, only that part is requested from the
// cluster. Other objects are unknown, not absent.
func TestFilters(t *testing.T) {
	cfg := testenv.Config(0)
	namespace, other := testenv.Namespace(t, cfg), testenv.Namespace(t, cfg)
	cm := configmaps.GroupResource()
	configMap(t, cfg, namespace, "web", map[string]string{"app": "web"})
	configMap(t, cfg, namespace, "db", map[string]string{"app": "db"})
	configMap(t, cfg, other, "web", map[string]string{"app": "web"})
	asked := &requests{}
	s := openStore(t)
	m, stop := start(t, s, newFleet(newSource(t, "east", asked.of(cfg))))
	stored := func(names ...string) func() bool {
		return func() bool {
			got := rows(t, s, store.Query{Resource: "configmaps", Namespaces: []string{namespace, other}})
			for _, name := range names {
				if _, ok := got["east/"+name]; !ok {
					return false
				}
			}
			return len(got) == len(names)
		}
	}
	narrow := mirrorPolicy(t, "narrow", fmt.Sprintf("mirror: {resources: [{resources: [configmaps], namespaces: [%s], labelSelector: {matchLabels: {app: web}}}]}", namespace))
	m.setPolicy("narrow", narrow)
	path := "/api/v1/namespaces/" + namespace + "/configmaps"

	eventually(t, "one of three is stored", stored(namespace+"/web"))
	eventually(t, "the cluster is asked for the part", func() bool { return asked.asked(path, "app=web", false) && asked.asked(path, "app=web", true) })
	if p, _ := m.Lookup("east", cm, namespace, "none"); p != presence.Unknown || m.Synced("east", cm) {
		t.Errorf("what is not in the mirror is %s, want Unknown", p)
	}
	configMap(t, cfg, namespace, "new", map[string]string{"app": "web"})
	eventually(t, "what comes is stored", stored(namespace+"/web", namespace+"/new"))
	patch := func(name, app string) {
		must[*corev1.ConfigMap](t)(clientset(t, cfg).CoreV1().ConfigMaps(namespace).Patch(t.Context(), name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app), metav1.PatchOptions{}))
	}
	patch("new", "db")
	patch("db", "web")
	eventually(t, "what does not match any more leaves, and what does comes", stored(namespace+"/web", namespace+"/db"))

	// The selections of two policies add up.
	m.setPolicy("second", mirrorPolicy(t, "second", fmt.Sprintf("mirror: {resources: [{resources: [configmaps], namespaces: [%s]}]}", other)))
	eventually(t, "both parts are stored", stored(namespace+"/web", namespace+"/db", other+"/web"))
	patch("db", "db")
	configMap(t, cfg, other, "any", nil)
	eventually(t, "both parts are followed", stored(namespace+"/web", other+"/web", other+"/any"))
	stop()

	// The selection is narrowed while the mirror is down.
	m, _ = start(t, s, newFleet(newSource(t, "east", cfg)))
	m.setPolicy("narrow", narrow)
	eventually(t, "the rest leaves", stored(namespace+"/web"))

	// Placement requires the type now: it is mirrored completely, and a missing object is known
	// to be absent.
	m.Require(configmaps.GroupVersion().WithKind("ConfigMap"))
	eventually(t, "all of it is mirrored", func() bool {
		p, _ := m.Lookup("east", cm, namespace, "none")
		return p == presence.Absent && stored(namespace+"/web", namespace+"/db", namespace+"/new", other+"/web", other+"/any")()
	})
}

// TestPolicyEdits: policies take effect at once, in any order, and a placed object is never
// missing meanwhile.
func TestPolicyEdits(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	applyMap(t, cfg, placedMap(namespace, "placed", "edits", "d", nil))
	s := openStore(t)
	east, west := newSource(t, "east", cfg), newSource(t, "west", cfg)
	east.cluster.Labels = map[string]string{"env": "prod"}
	fleet := newFleet(east, west)
	m, _ := start(t, s, fleet)
	m.Require(configmaps.GroupVersion().WithKind("ConfigMap"))
	m.setPolicy("base", mirrorPolicy(t, "base", "mirror: {resources: [{resources: [secrets]}]}"))
	cm := configmaps.GroupResource()
	mirrored := func(cluster, resource string) bool {
		return m.Synced(cluster, schema.ParseGroupResource(resource))
	}
	gone := func(cluster, resource string) bool {
		d, _ := m.Describe(cluster)
		for _, one := range d.Types {
			if (schema.GroupResource{Group: one.Group, Resource: one.Resource}).String() == resource {
				return false
			}
		}
		gr := schema.ParseGroupResource(resource)
		return len(rows(t, s, store.Query{Group: gr.Group, Resource: gr.Resource, Clusters: []string{cluster}})) == 0
	}
	present := func() bool { p, _ := m.Lookup("east", cm, namespace, "placed"); return p == presence.Present }
	eventually(t, "the base is mirrored", func() bool { return mirrored("east", "secrets") && mirrored("west", "secrets") && present() })

	done, missing := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		for {
			if !present() || len(m.Placed("edits")) == 0 {
				n++
			}
			select {
			case <-done:
				missing <- n
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	m.setPolicy("prod", mirrorPolicy(t, "prod", `
clusterSelector: {matchLabels: {env: prod}}
mirror:
  resources: [{group: apps, resources: ["*"]}, {resources: [services]}]
  exclude: [{group: "*", resources: [configmaps]}, {group: apps, resources: [daemonsets]}]`))
	eventually(t, "production has more", func() bool {
		return mirrored("east", "deployments.apps") && mirrored("east", "services") && mirrored("east", "secrets")
	})
	if m.Synced("east", schema.ParseGroupResource("daemonsets.apps")) || !gone("west", "deployments.apps") || !gone("west", "services") {
		t.Error("what was excluded is mirrored, or what another cluster was selected for")
	}
	eventually(t, "services are stored", func() bool { return !gone("east", "services") })
	m.setPolicy("ban", mirrorPolicy(t, "ban", "mirror: {exclude: [{resources: [services, secrets, configmaps]}]}"))
	eventually(t, "what is banned leaves", func() bool {
		return gone("east", "services") && gone("east", "secrets") && gone("west", "secrets") && mirrored("east", "deployments.apps")
	})
	d, _ := m.Describe("east")
	reasons := map[string]string{}
	for _, one := range d.Refused {
		reasons[one.Resource] = one.Reason
	}
	for _, one := range d.Types {
		reasons[one.Resource] = one.Reason
	}
	for resource, want := range map[string]string{
		"services": "excluded by MirrorPolicy ban", "daemonsets": "excluded by MirrorPolicy prod", "deployments": "selected by MirrorPolicy prod",
		"configmaps": "placement needs it, although MirrorPolicy ban, MirrorPolicy prod excludes it", "ingresses": "nobody selects it",
	} {
		if reasons[resource] != want {
			t.Errorf("%s: %q, want %q", resource, reasons[resource], want)
		}
	}
	m.setPolicy("ban", nil)
	eventually(t, "what is not banned any more comes", func() bool { return mirrored("east", "services") && mirrored("west", "secrets") })
	relabelled := east.Cluster().DeepCopy()
	relabelled.Labels = nil
	relabelled.Spec.Mirror = &clusterv1alpha1.Mirror{Resources: []clusterv1alpha1.MirrorResources{{Resources: []string{"endpoints"}}}}
	east.mu.Lock()
	east.cluster = relabelled
	east.mu.Unlock()
	fleet.setReachable(east, true)
	eventually(t, "the cluster's labels and spec count", func() bool {
		return mirrored("east", "endpoints") && gone("east", "deployments.apps") && gone("east", "services") && mirrored("east", "secrets")
	})
	close(done)
	if n := <-missing; n > 0 {
		t.Errorf("a placed object was missing %d times while policies changed", n)
	}
}

// TestCustomResourcesAll: with customResources: All, custom resources are mirrored when their
// definitions appear. Other types are not mirrored by that.
func TestCustomResourcesAll(t *testing.T) {
	cfg := testenv.Config(0)
	s := openStore(t)
	m, stop := start(t, s, newFleet(newSource(t, "east", cfg)))
	all := mirrorPolicy(t, "all", "mirror: {customResources: All}")
	m.setPolicy("all", all)
	eventually(t, "nothing but what is needed is mirrored", func() bool {
		d, _ := m.Describe("east")
		return m.Observation("east").Synced && len(d.Types) == 5
	})
	customResources(t, cfg, m, s)
	stop()
}

// TestEventsLife: Events are mirrored, and are removed from the mirror before they expire in
// the cluster.
func TestEventsLife(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	s := openStore(t)
	m, _ := start(t, s, newFleet(newSource(t, "east", cfg)))
	policy := mirrorPolicy(t, "events", "mirror: {resources: [{resources: [events]}]}")
	policy.Spec.Mirror.EventsLife = &metav1.Duration{Duration: 4 * time.Second}
	m.setPolicy("events", policy)
	happens := func(name string, at time.Time) {
		t.Helper()
		must[*corev1.Event](t)(clientset(t, cfg).CoreV1().Events(namespace).Create(t.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: corev1.ObjectReference{Namespace: namespace, Name: "x", Kind: "Pod"},
			LastTimestamp: metav1.NewTime(at), Type: "Normal", Reason: "Test",
		}, metav1.CreateOptions{}))
	}
	has := func(name string) bool {
		_, ok := rows(t, s, store.Query{Resource: "events", Namespaces: []string{namespace}})["east/"+namespace+"/"+name]
		return ok
	}
	eventually(t, "events are followed", func() bool { return m.Synced("east", coreEvents) })
	var name string
	var first time.Time
	eventually(t, "an event is stored", func() bool {
		if time.Since(first) > 2*time.Second { // the one before may have come too late
			first = time.Now()
			name = fmt.Sprintf("first-%d", first.UnixNano())
			happens(name, first)
		}
		return has(name)
	})
	n := 0
	eventually(t, "it leaves the mirror", func() bool {
		n++
		happens(fmt.Sprintf("later-%d", n), time.Now())
		return !has(name)
	})
	if lived := time.Since(first); lived < 3*time.Second { // its time is in whole seconds
		t.Errorf("it left after %s", lived)
	}
	must[*corev1.Event](t)(clientset(t, cfg).CoreV1().Events(namespace).Get(t.Context(), name, metav1.GetOptions{}))
	var last time.Time
	eventually(t, "others stay", func() bool {
		if has(fmt.Sprintf("later-%d", n)) {
			return true
		}
		if time.Since(last) > 2*time.Second { // the one before may have come too late
			n, last = n+1, time.Now()
			happens(fmt.Sprintf("later-%d", n), last)
		}
		return false
	})
	if d, _ := m.Describe("east"); !strings.Contains(fmt.Sprint(d.Types), "4s") {
		t.Errorf("the life is not said: %v", d.Types)
	}
}

// aggregated is an aggregated API with one object. The test can take it down.
type aggregated struct {
	mu   sync.Mutex
	down bool
}

func (a *aggregated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	down := a.down
	a.mu.Unlock()
	gadget := map[string]any{"apiVersion": "agg.example.com/v1", "kind": "Gadget", "metadata": map[string]any{"name": "g", "uid": "g-1", "resourceVersion": "5"}}
	var body any
	switch {
	case down:
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for !down { // the aggregator does not check its backends, so that down has to end the watch
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			a.mu.Lock()
			down = a.down
			a.mu.Unlock()
		}
		return
	case r.URL.Path == "/apis/agg.example.com/v1":
		body = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "agg.example.com/v1", APIResources: []metav1.APIResource{
			{Name: "gadgets", SingularName: "gadget", Kind: "Gadget", Verbs: metav1.Verbs{"get", "list", "watch"}},
		}}
	case r.URL.Path == "/apis/agg.example.com/v1/gadgets":
		body = map[string]any{"apiVersion": "agg.example.com/v1", "kind": "GadgetList", "metadata": map[string]any{"resourceVersion": "5"}, "items": []any{gadget}}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// TestAPIServiceDown: rows of an API that does not answer are kept and marked as stale. Rows of
// an API that was removed are deleted.
func TestAPIServiceDown(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	backend := &aggregated{}
	server := httptest.NewTLSServer(backend)
	defer server.Close()
	port, err := strconv.Atoi(server.URL[strings.LastIndex(server.URL, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	must[*corev1.Service](t)(clientset(t, cfg).CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "agg"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}}},
	}, metav1.CreateOptions{}))
	services := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cfg)).Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	remove := sync.OnceFunc(func() {
		if err := services.Delete(context.WithoutCancel(t.Context()), "v1.agg.example.com", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	defer remove()
	must[*unstructured.Unstructured](t)(services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.agg.example.com"},
		"spec": map[string]any{
			"group": "agg.example.com", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(10), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": namespace, "name": "agg", "port": int64(port)},
		},
	}}, metav1.CreateOptions{}))

	s := openStore(t)
	fleet := newFleet(newSource(t, "east", cfg))
	m, _ := start(t, s, fleet)
	m.setPolicy("gadgets", mirrorPolicy(t, "gadgets", "mirror: {resources: [{group: agg.example.com, resources: [gadgets]}]}"))
	gadgets := schema.GroupResource{Group: "agg.example.com", Resource: "gadgets"}
	state := func() (one fleetv1alpha1.MirroredType) {
		d, _ := m.Describe("east")
		for _, typ := range d.Types {
			if typ.Resource == "gadgets" {
				one = typ
			}
		}
		return one
	}
	look := func() { fleet.Rediscover("east") }
	eventually(t, "the API is mirrored", func() bool { look(); return m.Synced("east", gadgets) && state().State == fleetv1alpha1.MirrorCurrent })
	q := store.Query{Group: gadgets.Group, Resource: gadgets.Resource}
	eventually(t, "its object is stored", func() bool { return len(rows(t, s, q)) == 1 })

	backend.mu.Lock()
	backend.down = true
	backend.mu.Unlock()
	// Where discovery is slow, the type is stale first because its watch is interrupted.
	eventually(t, "its API group is said not to answer", func() bool { look(); return state().Message == "its API group does not answer" })
	if _, stale := m.Freshness("east", gadgets); !stale {
		t.Error("it is not said to be stale")
	}
	one := state()
	if one.State != fleetv1alpha1.MirrorStale || one.LastSeen == nil || one.LagSeconds < 1 {
		t.Errorf("it is described as %+v", one)
	}
	if p, _ := m.Lookup("east", gadgets, "", "none"); p != presence.Unknown || m.Synced("east", gadgets) {
		t.Errorf("what is not in the mirror is %s, want Unknown", p)
	}
	if len(rows(t, s, q)) != 1 {
		t.Error("its row is gone")
	}
	if _, stale := m.Freshness("east", pods); stale {
		t.Error("other types are stale, too")
	}

	backend.mu.Lock()
	backend.down = false
	backend.mu.Unlock()
	eventually(t, "it is current again", func() bool { look(); return m.Synced("east", gadgets) && state().State == fleetv1alpha1.MirrorCurrent })
	remove()
	eventually(t, "an API that is not there any more goes", func() bool { return len(rows(t, s, q)) == 0 && state().Resource == "" })
}

// TestMirrorPolicies: the hub accepts only policies that can be applied, and the mirror follows
// the accepted ones.
func TestMirrorPolicies(t *testing.T) {
	cfg := testenv.Config(0)
	if err := testenv.InstallCRDs(cfg, "mirrorpolicies.config.orrery.dev", "clusters.cluster.orrery.dev"); err != nil {
		t.Fatal(err)
	}
	scheme := hubScheme(t)
	hub := must[client.Client](t)(client.New(cfg, client.Options{Scheme: scheme}))
	create := func(name, spec string) error {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("spec:\n  "+strings.ReplaceAll(spec, "\n", "\n  ")), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetGroupVersionKind(configv1alpha1.GroupVersion.WithKind("MirrorPolicy"))
		o.SetName(name)
		return hub.Create(t.Context(), o)
	}
	for name, tc := range map[string]struct{ spec, want string }{
		"NoSelector":         {"mirror: {customResources: All}", "spec.clusterSelector"},
		"Operator":           {"clusterSelector: {matchExpressions: [{key: a, operator: Is}]}\nmirror: {customResources: All}", "operator is one of"},
		"NoValues":           {"clusterSelector: {matchExpressions: [{key: a, operator: In}]}\nmirror: {customResources: All}", "need values"},
		"Nothing":            {"clusterSelector: {}\nmirror: {}", "say what is mirrored"},
		"Kind":               {"clusterSelector: {}\nmirror: {resources: [{group: apps, resources: [Deployment]}]}", "spec.mirror.resources[0].resources[0]"},
		"Subresource":        {"clusterSelector: {}\nmirror: {resources: [{resources: [pods/log]}]}", "spec.mirror.resources[0].resources[0]"},
		"GroupVersion":       {"clusterSelector: {}\nmirror: {resources: [{group: apps/v1, resources: [deployments]}]}", "spec.mirror.resources[0].group"},
		"AllAndMore":         {"clusterSelector: {}\nmirror: {resources: [{group: apps, resources: ['*', deployments]}]}", "* is every one"},
		"VersionOfAllGroups": {"clusterSelector: {}\nmirror: {resources: [{group: '*', versions: [v1], resources: ['*']}]}", "name the group"},
		"ExcludeAllAndMore":  {"clusterSelector: {}\nmirror: {exclude: [{group: apps, resources: ['*', deployments]}]}", "* is every one"},
		"Namespace":          {"clusterSelector: {}\nmirror: {resources: [{resources: [pods], namespaces: ['*']}]}", "namespaces[0]"},
		"NoLabels":           {"clusterSelector: {}\nmirror: {resources: [{resources: [pods], labelSelector: {}}]}", "matchLabels or matchExpressions"},
		"LabelKey":           {"clusterSelector: {}\nmirror: {resources: [{resources: [pods], labelSelector: {matchLabels: {'a b': c}}}]}", "matchLabels"},
		"LabelValue":         {"clusterSelector: {}\nmirror: {resources: [{resources: [pods], labelSelector: {matchLabels: {a: 'b c'}}}]}", "matchLabels.a"},
		"LabelOperator":      {"clusterSelector: {}\nmirror: {resources: [{resources: [pods], labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}", "have none"},
		"Custom":             {"clusterSelector: {}\nmirror: {customResources: Some}", "spec.mirror.customResources"},
		"ShortLife":          {"clusterSelector: {}\nmirror: {eventsLife: 1s}", "from 1m to 24h"},
		"SecretDataOfAll":    {"clusterSelector: {}\nmirror: {resources: [{resources: ['*'], secretData: Encrypted}]}", "secretData: name secrets"},
		"SecretDataOfOthers": {"clusterSelector: {}\nmirror: {resources: [{resources: [secrets, configmaps], secretData: Encrypted}]}", "secretData: name secrets"},
		"SecretDataOfGroup":  {"clusterSelector: {}\nmirror: {resources: [{group: example.org, resources: [secrets], secretData: Encrypted}]}", "secretData: name secrets"},
		"SecretDataPlain":    {"clusterSelector: {}\nmirror: {resources: [{resources: [secrets], secretData: Plain}]}", "secretData"},
		"NoLife":             {"clusterSelector: {}\nmirror: {eventsLife: soon}", "spec.mirror.eventsLife"},
	} {
		t.Run(name, func(t *testing.T) {
			err := create("bad", tc.spec)
			if err == nil {
				if err := hub.Delete(t.Context(), &configv1alpha1.MirrorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}); err != nil {
					t.Fatal(err)
				}
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want an error with %q", err, tc.want)
			}
		})
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	informers := must[cache.Cache](t)(cache.New(cfg, cache.Options{Scheme: scheme}))
	m := newMirror(openStore(t), newFleet(newSource(t, "east", cfg)), testLogger(t))
	if err := create("first", "clusterSelector: {}\nmirror: {resources: [{resources: [configmaps]}]}"); err != nil {
		t.Fatal(err)
	}
	if err := m.Follow(ctx, informers); err != nil {
		t.Fatal(err)
	}
	go func() { _ = informers.Start(ctx) }() // it ends with ctx
	run(t, m)
	eventually(t, "a policy from before the start counts", func() bool { return m.Synced("east", configmaps.GroupResource()) })
	if d, _ := m.Describe("east"); len(d.Types) != 6 {
		t.Errorf("more is mirrored than the policy and placement want: %v", d.Types)
	}
	if err := create("second", `clusterSelector: {matchExpressions: [{key: env, operator: DoesNotExist}]}
mirror:
  resources:
  - {group: apps, versions: [v1], resources: [deployments], namespaces: [shop], labelSelector: {matchLabels: {app.kubernetes.io/name: web}, matchExpressions: [{key: tier, operator: In, values: [a, b]}]}}
  - {group: "*", resources: [services]}
  - {resources: [secrets], namespaces: [shop], secretData: Encrypted}
  customResources: Selected
  exclude: [{group: "*", resources: [leases]}]
  eventsLife: 30m`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a policy that comes counts", func() bool { return m.Synced("east", schema.GroupResource{Resource: "services"}) })
	for _, name := range []string{"first", "second"} {
		if err := hub.Delete(t.Context(), &configv1alpha1.MirrorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "without policies the default is mirrored", func() bool { return m.Synced("east", schema.GroupResource{Group: "apps", Resource: "deployments"}) })
}
