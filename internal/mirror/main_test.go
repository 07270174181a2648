package mirror

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(killedEnv) != "" {
		mirrorUntilKilled()
	}
	testenv.Main(m, manyObjects+1)
}

// manyObjects is the index of the API server for tests that leave thousands of objects, and labels
// of bindings. The other tests list nothing of that server.
const manyObjects = 1

// testFleet is a fleet whose clusters the test controls. Their API lists come from real
// servers.
type testFleet struct {
	mu          sync.Mutex
	sources     map[string]*testSource
	subscribers []func(member.Event)
	refreshed   map[string]int
}

func newFleet(sources ...*testSource) *testFleet {
	f := &testFleet{sources: map[string]*testSource{}, refreshed: map[string]int{}}
	for _, s := range sources {
		f.sources[s.cluster.Name] = s
	}
	return f
}

func (f *testFleet) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.sources))
}

func (f *testFleet) source(name string) (source, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.sources[name]
	return s, ok
}

func (f *testFleet) Subscribe(s func(member.Event)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers = append(f.subscribers, s)
}

func (f *testFleet) Refresh(cluster string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refreshed[cluster]++
}

// Rediscover reads the API list several times, as the registry does, because the list may lag
// behind other answers of the server.
func (f *testFleet) Rediscover(cluster string) {
	f.mu.Lock()
	s := f.sources[cluster]
	f.mu.Unlock()
	if s == nil {
		return
	}
	for _, delay := range []time.Duration{0, time.Second, 5 * time.Second} {
		time.AfterFunc(delay, func() {
			if s.discover() {
				f.notify(member.Event{Type: member.Changed, Name: cluster})
			}
		})
	}
}

func (f *testFleet) notify(e member.Event) {
	f.mu.Lock()
	subscribers := f.subscribers
	f.mu.Unlock()
	for _, s := range subscribers {
		s(e)
	}
}

// setReachable sets the reachability of a cluster and notifies subscribers, as the registry
// does.
func (f *testFleet) setReachable(s *testSource, yes bool) {
	s.mu.Lock()
	s.reachable = yes
	s.mu.Unlock()
	f.notify(member.Event{Type: member.Changed, Name: s.cluster.Name})
}

type testSource struct {
	cluster *clusterv1alpha1.Cluster
	cfg     *rest.Config

	mu        sync.Mutex
	id        string
	reachable bool
	apis      []member.API
	stale     map[string]bool // groups that do not answer
}

func newSource(t testing.TB, name string, cfg *rest.Config, resources ...string) *testSource {
	t.Helper()
	s := sourceOf(name, cfg, resources...)
	if cfg != nil && !s.discover() {
		t.Fatalf("cluster %s has no API", name)
	}
	return s
}

// sourceOf returns a source like newSource, but does not read the API list.
func sourceOf(name string, cfg *rest.Config, resources ...string) *testSource {
	s := &testSource{cluster: &clusterv1alpha1.Cluster{}, cfg: cfg, id: "id-of-" + name, reachable: true}
	s.cluster.Name, s.cluster.UID = name, types.UID("uid-of-"+name)
	if len(resources) > 0 {
		s.cluster.Spec.Mirror = &clusterv1alpha1.Mirror{}
		for _, resource := range resources {
			gr := schema.ParseGroupResource(resource)
			s.cluster.Spec.Mirror.Resources = append(s.cluster.Spec.Mirror.Resources,
				clusterv1alpha1.MirrorResources{Group: gr.Group, Resources: []string{gr.Resource}})
		}
	}
	return s
}

func (s *testSource) ID() string {
	if !s.Reachable() {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

func (s *testSource) Cluster() *clusterv1alpha1.Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster
}
func (s *testSource) Config() *rest.Config { return rest.CopyConfig(s.cfg) }

func (s *testSource) Reachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reachable
}

func (s *testSource) serves() ([]member.API, func(string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := maps.Clone(s.stale)
	return s.apis, func(group string) bool { return !stale[group] }
}

// discover reads the API list and reports whether it changed.
func (s *testSource) discover() bool {
	c, err := discovery.NewDiscoveryClientForConfig(s.cfg)
	if err != nil {
		return false
	}
	groups, lists, err := c.ServerGroupsAndResources()
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return false
	}
	preferred := map[string]bool{}
	for _, g := range groups {
		preferred[g.PreferredVersion.GroupVersion] = true
	}
	var apis []member.API
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return false
		}
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			apis = append(apis, member.API{
				GroupVersionKind: gv.WithKind(r.Kind), Resource: r.Name, Singular: r.SingularName, Namespaced: r.Namespaced,
				Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories, Preferred: preferred[l.GroupVersion],
			})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = map[string]bool{}
	for gv := range failed {
		s.stale[gv.Group] = true
		for _, api := range s.apis { // as last known
			if api.GroupVersionKind.GroupVersion() == gv {
				api.Stale = true
				apis = append(apis, api)
			}
		}
	}
	changed := fmt.Sprint(apis) != fmt.Sprint(s.apis)
	s.apis = apis
	return changed
}

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testLogger(t testing.TB) logr.Logger {
	l := &testLog{t: t}
	t.Cleanup(l.end)
	return testr.NewWithInterface(l, testr.Options{})
}

// testLog forwards to the log of a test until the test ends. A delayed read of an API list may
// log later than that.
type testLog struct {
	t testing.TB

	mu    sync.Mutex
	ended bool
}

// Helper implements testr.TestingT.
func (l *testLog) Helper() {}

// Log implements testr.TestingT.
func (l *testLog) Log(args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.t.Log(args...)
	}
}

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// start runs a mirror of a fleet until the test ends or stop is called.
func start(t testing.TB, s database, f *testFleet) (m *Mirror, stop func()) {
	t.Helper()
	m = newMirror(s, f, testLogger(t))
	if db, ok := s.(*store.Store); ok {
		m.follow(db)
	}
	return m, run(t, m)
}

// run runs a mirror until the test ends or stop is called. An error of the mirror fails the
// test.
func run(t testing.TB, m *Mirror) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits until a condition holds, and fails the test after three minutes.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func synced(t testing.TB, m *Mirror, cluster string) {
	t.Helper()
	eventually(t, "cluster "+cluster+" is mirrored", func() bool { return m.Observation(cluster).Synced })
}

// rows returns the stored objects that q selects, by cluster/namespace/name.
func rows(t testing.TB, s *store.Store, q store.Query) map[string]store.Row {
	t.Helper()
	page, err := s.List(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]store.Row{}
	for _, r := range page.Rows {
		out[r.Cluster+"/"+r.Namespace+"/"+r.Name] = r
	}
	return out
}

func must[T any](t testing.TB) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
