package search

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

// made are the objects of testdata/kinds.yaml in the real API server.
var made []*unstructured.Unstructured

// mirrored are the types that fill copies from the real API server.
var mirrored = []string{
	"configmaps", "events", "namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods", "replicationcontrollers",
	"serviceaccounts", "services", "poddisruptionbudgets.policy",
	"cronjobs.batch", "daemonsets.apps", "deployments.apps", "ingresses.networking.k8s.io", "jobs.batch", "replicasets.apps", "statefulsets.apps",
	"customresourcedefinitions.apiextensions.k8s.io", "widgets.example.org",
}

// fakeMirror answers from its fields. The objects are in a real store. As in a mirror, each
// type of a cluster has one version.
type fakeMirror struct {
	served map[string]map[schema.GroupResource]member.API
	stale  map[string]time.Time
	behind map[string]bool
	lost   map[string]bool
	silent map[string]time.Time // stale types, as CLUSTER/TYPE
	parts  map[string]bool      // types that are mirrored in part, as CLUSTER/TYPE
	// problems are the reasons why types are not watched, by CLUSTER/TYPE.
	problems map[string]string
	data     map[string]bool // clusters whose Secrets are mirrored with data
}

func (f *fakeMirror) Types() []mirror.Type {
	return mirror.GroupTypes(func(yield func(string, member.API) bool) {
		for _, cluster := range slices.Sorted(maps.Keys(f.served)) {
			for _, api := range f.served[cluster] {
				if !yield(cluster, api) {
					return
				}
			}
		}
	})
}

func (f *fakeMirror) serve(api member.API, clusters []string) {
	for _, c := range clusters {
		if f.served[c] == nil {
			f.served[c] = map[schema.GroupResource]member.API{}
		}
		f.served[c][api.GroupVersionResource().GroupResource()] = api
	}
}

func (f *fakeMirror) Stored(cluster string, _ schema.GroupResource) bool { return !f.behind[cluster] }

func (f *fakeMirror) Incomplete(string, schema.GroupResource) (partly, missing int) { return 0, 0 }

func (f *fakeMirror) Lost(cluster string, _ schema.GroupResource) bool { return f.lost[cluster] }

func (f *fakeMirror) Stale(cluster string) (time.Time, bool) {
	t, ok := f.stale[cluster]
	return t, ok
}

func (f *fakeMirror) Freshness(cluster string, gr schema.GroupResource) (time.Time, bool) {
	if t, ok := f.stale[cluster]; ok {
		return t, true
	}
	t, ok := f.silent[cluster+"/"+gr.String()]
	return t, ok
}

func (f *fakeMirror) Silence(cluster string, gr schema.GroupResource) (why string, listed bool) {
	_, silent := f.silent[cluster+"/"+gr.String()]
	return f.problems[cluster+"/"+gr.String()], silent
}

func (f *fakeMirror) Partial(cluster string, gr schema.GroupResource) bool {
	return f.parts[cluster+"/"+gr.String()]
}

func (f *fakeMirror) WithoutData(cluster string) bool { return !f.data[cluster] }

// fleet serves a Search over a store.
type fleet struct {
	mirror *fakeMirror
	store  *store.Store
	dir    string // of the store
	denied func(authorizationv1.ResourceAttributes) bool
	asked  []authorizationv1.ResourceAttributes
	// closed are the clusters that a namespace may not use, by namespace.
	closed  map[string][]string
	granted func(what authorizationv1.ResourceAttributes) []string // replaces some
	// some are the namespaces in which the caller may see what they may not see in all
	// namespaces.
	some []string
	// fenced replaces closed. It returns true if the namespace may not use the cluster.
	fenced   func(namespace, cluster string) bool
	live     map[string]Live
	url      string
	server   *httptest.Server
	search   *Search
	made     map[string]time.Time // by hub namespace; zero time for all others
	starting bool                 // Options.Ready returns false
	mu       sync.Mutex           // protects some, made and changes
	grants   atomic.Value         // a chan struct{}
	changes  map[string]uint64    // result of Options.Generation, by namespace
}

// Allowed implements Fence.
func (f *fleet) Allowed(namespace, cluster string) bool {
	if f.fenced != nil {
		return !f.fenced(namespace, cluster)
	}
	return !slices.Contains(f.closed[namespace], cluster)
}

func newFleet(t testing.TB, clusters ...string) *fleet {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return fleetOf(t, s, dir, clusters...)
}

// fleetOf returns a fleet over a store that the test opened.
func fleetOf(t testing.TB, s *store.Store, dir string, clusters ...string) *fleet {
	t.Helper()
	f := &fleet{mirror: &fakeMirror{
		served: map[string]map[schema.GroupResource]member.API{}, stale: map[string]time.Time{}, behind: map[string]bool{}, lost: map[string]bool{},
		silent: map[string]time.Time{}, parts: map[string]bool{}, data: map[string]bool{},
	}, store: s, dir: dir}
	f.grants.Store(make(chan struct{}))
	search := New(Options{
		Mirror: f.mirror, Store: s, Ready: func() bool { return !f.starting }, Clusters: func() []string { return clusters },
		Authorize: func(_ context.Context, what authorizationv1.ResourceAttributes) error {
			f.asked = append(f.asked, what)
			if f.denied != nil && f.denied(what) {
				return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "not you")
			}
			return nil
		},
		Namespaces: func(_ context.Context, what authorizationv1.ResourceAttributes) ([]string, error) {
			if f.granted != nil {
				return f.granted(what), nil
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.some, nil
		},
		Fence: func() (Fence, error) { return f, nil },
		Made: func(namespace string) (time.Time, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.made[namespace], true
		},
		Generation: func(namespace string) uint64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.changes[namespace]
		},
		Grants: func() <-chan struct{} { return f.grants.Load().(chan struct{}) },
		Live: func(cluster string) (Live, bool) {
			if f.live == nil {
				return liveCluster{serves: presence.Absent}, true
			}
			c, ok := f.live[cluster]
			return c, ok
		},
		Version: func() (*version.Info, error) {
			return &version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"}, nil
		},
	})
	f.search = search
	server := httptest.NewUnstartedServer(answer.Func(func(w http.ResponseWriter, r *http.Request) error {
		names := Merged
		path, ok := strings.CutPrefix(r.URL.EscapedPath(), fleetv1alpha1.FleetPath)
		if !ok {
			names = Qualified
			path, ok = strings.CutPrefix(r.URL.EscapedPath(), fleetv1alpha1.QualifiedPath)
		}
		if !ok {
			return errors.New("not the fleet's: " + r.URL.Path)
		}
		return search.Serve(w, r, path, names)
	}))
	server.Start()
	t.Cleanup(server.Close)
	f.server = server
	f.url = server.URL + fleetv1alpha1.FleetPath
	return f
}

// serve declares that clusters have a type.
func (f *fleet) serve(gvk schema.GroupVersionKind, resource string, namespaced bool, clusters ...string) {
	f.mirror.serve(member.API{GroupVersionKind: gvk, Resource: resource, Namespaced: namespaced}, clusters)
}

// put writes objects to the store as the mirror does.
func (f *fleet) put(t testing.TB, cluster, resource string, objects ...*unstructured.Unstructured) {
	t.Helper()
	changes := make([]store.Change, 0, len(objects))
	for _, o := range objects {
		o = o.DeepCopy()
		o.SetManagedFields(nil)
		body, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		gvk := o.GroupVersionKind()
		var owner types.UID
		if c := metav1.GetControllerOf(o); c != nil {
			owner = c.UID
		}
		changes = append(changes, store.Change{Row: store.Row{
			OwnerUID: owner,
			Cluster:  cluster, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Resource: resource,
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			Created: o.GetCreationTimestamp().Time, Labels: o.GetLabels(), Body: body,
		}})
	}
	if err := f.store.Write(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

// fill stores the objects of the mirrored types of the real API server in clusters, if keep
// returns true for them.
func (f *fleet) fill(t *testing.T, keep func(cluster string, o *unstructured.Unstructured) bool, clusters ...string) {
	t.Helper()
	cfg := testenv.Config(0)
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := disco.ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(mirrored, gv.WithResource(r.Name).GroupResource().String()) {
				continue
			}
			f.mirror.serve(member.API{
				GroupVersionKind: gv.WithKind(r.Kind), Resource: r.Name, Singular: r.SingularName, Namespaced: r.Namespaced,
				ShortNames: r.ShortNames, Categories: r.Categories,
			}, clusters)
			found, err := client.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, cluster := range clusters {
				for i := range found.Items {
					if keep(cluster, &found.Items[i]) {
						f.put(t, cluster, r.Name, &found.Items[i])
					}
				}
			}
		}
	}
}

// reply is an answer without its body.
type reply struct {
	StatusCode int
	Header     http.Header
}

// ask sends a request and returns the answer, which must be JSON.
func (f *fleet) ask(t testing.TB, method, path, accept string) (reply, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return reply{resp.StatusCode, resp.Header}, body
}

// kubectl runs the real kubectl against the fleet.
func (f *fleet) kubectl(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	config, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "fleet",
		"clusters": []any{map[string]any{"name": "fleet", "cluster": map[string]any{"server": f.url}}},
		"users":    []any{map[string]any{"name": "me", "user": map[string]any{}}},
		"contexts": []any{map[string]any{"name": "fleet", "context": map[string]any{"cluster": "fleet", "user": "me"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	file := filepath.Join(home, "kubeconfig")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", file}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// kinds creates the objects of testdata/kinds.yaml in the real API server, with their status.
// It creates them once; later calls return the same objects.
func kinds(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	if made != nil {
		return made
	}
	manifests, err := os.ReadFile("testdata/kinds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	for manifest := range strings.SplitSeq(string(manifests), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &o.Object); err != nil {
			t.Fatal(err)
		}
		gvk := o.GroupVersionKind()
		list, i := served(t, disco, gvk)
		r := client.Resource(gvk.GroupVersion().WithResource(list.APIResources[i].Name)).Namespace(o.GetNamespace())
		status := o.Object["status"]
		if o, err = r.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create %s: %v", manifest, err)
		}
		if status != nil && gvk.Kind != "CustomResourceDefinition" {
			o.Object["status"] = status
			if o, err = r.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
				t.Fatalf("status of %s: %v", manifest, err)
			}
		}
		made = append(made, o)
	}
	return made
}

// served waits until discovery lists a kind, which happens shortly after its definition is
// established. It returns the list and the index of the kind in it.
func served(t *testing.T, disco *discovery.DiscoveryClient, gvk schema.GroupVersionKind) (list *metav1.APIResourceList, i int) {
	t.Helper()
	testenv.Eventually(t, gvk.String()+" is served", testenv.Patience, func() (err error) {
		if list, err = disco.ServerResourcesForGroupVersion(gvk.GroupVersion().String()); err != nil {
			return err
		}
		i = slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
			return r.Kind == gvk.Kind && !strings.Contains(r.Name, "/")
		})
		if i < 0 {
			return fmt.Errorf("%s has %d others", gvk.GroupVersion(), len(list.APIResources))
		}
		return nil
	})
	return list, i
}
