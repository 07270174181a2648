package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// brokenStore is a store whose calls fail while err is set.
type brokenStore struct {
	*store.Store

	mu  sync.Mutex
	err error
}

func (b *brokenStore) set(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *brokenStore) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *brokenStore) Write(ctx context.Context, changes []store.Change) error {
	if err := b.failure(); err != nil {
		return err
	}
	return b.Store.Write(ctx, changes)
}

func (b *brokenStore) Types(ctx context.Context) ([]store.Type, error) {
	if err := b.failure(); err != nil {
		return nil, err
	}
	return b.Store.Types(ctx)
}

func (b *brokenStore) Keys(ctx context.Context, cluster string, gr schema.GroupResource) ([]store.Key, error) {
	if err := b.failure(); err != nil {
		return nil, err
	}
	return b.Store.Keys(ctx, cluster, gr)
}

func (b *brokenStore) SaveType(ctx context.Context, t store.Type) error {
	if err := b.failure(); err != nil {
		return err
	}
	return b.Store.SaveType(ctx, t)
}

// TestIndexWithoutAStore: placement continues while the store fails from the start. When the
// store works again, it gets what was created and deleted meanwhile.
func TestIndexWithoutAStore(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg).CoreV1().ConfigMaps(namespace)
	for _, name := range []string{"goes", "stays"} {
		must[*corev1.ConfigMap](t)(k.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	}
	s := &brokenStore{Store: openStore(t)}
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	fleet := newFleet(newSource(t, "east", cfg, "configmaps"))
	m, stop := start(t, s, fleet)
	synced(t, m, "east")
	eventually(t, "both are stored", func() bool { return len(rows(t, s.Store, q)) == 2 })
	stop()

	s.set(errors.New("disk I/O error"))
	if err := k.Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m, _ = start(t, s, fleet)
	cm := configmaps.GroupResource()
	eventually(t, "it is listed", func() bool { return m.Synced("east", cm) })
	applyMap(t, cfg, placedMap(namespace, "placed", "broken", "d", nil))
	eventually(t, "it is indexed", func() bool {
		p, o := m.Lookup("east", cm, namespace, "placed")
		return p == presence.Present && o.Digest == "d" && len(m.PlacedOf("broken", "east")) == 1
	})
	if p, _ := m.Lookup("east", cm, namespace, "goes"); p != presence.Absent {
		t.Errorf("presence %v of what was deleted, want Absent", p)
	}
	eventually(t, "it is said", func() bool {
		o := m.Observation("east")
		return !o.Synced && o.NotStored && strings.Contains(o.Message, "disk I/O error") && !m.Stored("east", cm)
	})

	s.set(nil)
	eventually(t, "the store has what the cluster has", func() bool {
		now := rows(t, s.Store, q)
		id := "east/" + namespace + "/"
		return len(now) == 2 && now[id+"stays"].Name != "" && now[id+"placed"].Name != ""
	})
	eventually(t, "it is mirrored", func() bool { return m.Observation("east").Synced && m.Stored("east", cm) })
}

// TestLostStore: the database is destroyed while the mirror runs, and again before it starts.
// Placement does not notice. What was stored is read from the cluster again, and until then the
// cluster is not reported as mirrored.
func TestLostStore(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	dir := t.TempDir()
	s := must[*store.Store](t)(store.Open(t.Context(), dir))
	fleet := newFleet(newSource(t, "east", cfg, "configmaps", "secrets"))
	q := store.Query{Resource: "configmaps", Namespaces: []string{namespace}}
	m, stop := start(t, s, fleet)
	synced(t, m, "east")
	cm := configmaps.GroupResource()
	for _, name := range []string{"a", "b", "c"} {
		applyMap(t, cfg, placedMap(namespace, name, "lost", "d", nil))
	}
	eventually(t, "they are stored", func() bool { return len(rows(t, s, q)) == 3 })
	garbage := func() {
		t.Helper()
		file := filepath.Join(dir, "mirror.db")
		size := must[os.FileInfo](t)(os.Stat(file)).Size()
		for _, f := range []string{file, file + "-wal"} {
			if err := os.WriteFile(f, []byte(strings.Repeat("garbage ", int(size)/8)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var said member.Observation
	seen := &recorder{}
	m.Subscribe(seen.record)
	s.OnLoss(func() { said = m.Observation("east") })

	garbage()
	applyMap(t, cfg, placedMap(namespace, "d", "lost", "d", nil))
	eventually(t, "it is indexed", func() bool { return len(m.PlacedOf("lost", "east")) == 4 && m.Synced("east", cm) })
	eventually(t, "everything is stored again", func() bool {
		page, err := s.List(t.Context(), q)
		return err == nil && len(page.Rows) == 4
	})
	eventually(t, "it is mirrored again", func() bool {
		return m.Observation("east").Synced && m.Stored("east", cm) && !m.Lost("east", cm)
	})
	// A write may have failed, and wait for its retry, before the loss of the database is
	// noticed.
	if said.Synced || !said.NotStored || !strings.Contains(said.Message, "lost") && !strings.Contains(said.Message, "wait to be stored") {
		t.Errorf("when the store was lost, it was said: %+v", said)
	}
	for _, e := range seen.events {
		if e.Type != Changed || e.Name != "d" {
			t.Errorf("subscribers were told %+v", e)
		}
	}
	if types, err := s.Types(t.Context()); err != nil || len(types) < 2 {
		t.Errorf("types %v are known to the new database, %v", types, err)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	garbage()
	s = must[*store.Store](t)(store.Open(t.Context(), dir))
	defer s.Close()
	east := newSource(t, "east", cfg, "configmaps", "secrets")
	east.reachable = false
	fleet = newFleet(east)
	m, stop = start(t, s, fleet)
	defer stop()
	eventually(t, "it is said", func() bool { o := m.Observation("east"); return !o.Synced && o.NotStored && m.Lost("east", cm) })
	fleet.setReachable(east, true)
	eventually(t, "everything is stored again", func() bool { return m.Observation("east").Synced && len(rows(t, s, q)) == 4 })
}

// TestWriterIsFair: rows are written in the order in which they arrived. A row that changes
// while it waits keeps its position.
func TestWriterIsFair(t *testing.T) {
	var order []string
	w := newWriter(func(_ context.Context, changes []store.Change) error {
		for _, c := range changes {
			order = append(order, c.Name+"@"+c.ResourceVersion)
		}
		return nil
	}, noCheckpoints, logr.Discard(), func([]*table) {})
	var want []string
	for i := range 2*batchSize + 10 {
		name := string(rune('A'+i%26)) + time.Duration(i).String()
		w.add(t.Context(), nil, []store.Change{change(name, "1")})
		if i == 0 {
			want = append(want, name+"@2")
		} else {
			want = append(want, name+"@1")
		}
	}
	w.add(t.Context(), nil, []store.Change{change(strings.TrimSuffix(want[0], "@2"), "2")})
	for range 3 {
		w.flush(t.Context())
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
}

// TestStalledStore: callers of add wait about stallAfter for a write that never returns, and not
// again after that.
func TestStalledStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hold := make(chan struct{})
		w := newWriter(func(context.Context, []store.Change) error { <-hold; return nil }, noCheckpoints, logr.Discard(), func([]*table) {})
		go w.run(ctx)
		began := time.Now()
		for i := range 2 * pendingBound {
			w.add(ctx, nil, []store.Change{change(time.Duration(i).String(), "1")})
		}
		if waited := time.Since(began); waited < stallAfter || waited > 2*stallAfter {
			t.Errorf("waited %v, want %v", waited, stallAfter)
		}
		if err := w.problem(); !errors.Is(err, errStalled) {
			t.Errorf("problem %v", err)
		}
		close(hold)
		time.Sleep(time.Minute)
		if err := w.problem(); err != nil {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
	})
}

// serve adds types to a mirror as if a cluster served them.
func serve(m *Mirror, name string, apis ...member.API) *cluster {
	c := newCluster(m, name, &testSource{apis: apis, reachable: true})
	m.replace(name, c)
	for _, api := range apis {
		c.tables[resourceOf(api)] = newTable(c, api)
	}
	return c
}

func TestTypesOfDifferentVersionsAndScopes(t *testing.T) {
	gadget := func(version string, namespaced bool) member.API {
		return member.API{GroupVersionKind: schema.GroupVersionKind{Group: "example.org", Version: version, Kind: "Gadget"}, Resource: "gadgets", Namespaced: namespaced}
	}
	m := newMirror(nil, newFleet(), logr.Discard())
	serve(m, "a", gadget("v2", true))
	serve(m, "b", gadget("v1", true))
	serve(m, "c", gadget("v2", true))
	serve(m, "d", gadget("v1", false))
	want := []Type{
		{API: gadget("v1", true), Clusters: []string{"b"}},
		{API: gadget("v1", false), Clusters: []string{"d"}},
		{API: gadget("v2", true), Clusters: []string{"a", "c"}},
	}
	if diff := cmp.Diff(want, m.Types()); diff != "" {
		t.Error(diff)
	}
}

// TestRecall: the types that the store has of clusters are known before the registry reports
// these clusters, so that no client is answered that a type does not exist. This includes a
// cluster without credentials, but not one that left.
func TestRecall(t *testing.T) {
	s := &brokenStore{Store: openStore(t)}
	gadgets := member.API{GroupVersionKind: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Gadget"}, Resource: "gadgets", Namespaced: true}
	raw := must[[]byte](t)(json.Marshal(gadgets)) //nolint:errchkjson // as the mirror writes it
	for _, name := range []string{"east", "west", "south"} {
		if err := s.SaveType(t.Context(), store.Type{Cluster: name, Resource: resourceOf(gadgets), API: raw}); err != nil {
			t.Fatal(err)
		}
	}
	s.set(errors.New("disk I/O error"))
	fleet := newFleet()
	m, stop := start(t, s, fleet)
	defer stop()
	if m.Recalled() || len(m.Types()) > 0 {
		t.Errorf("recalled %v, types %v of a store that does not answer", m.Recalled(), m.Types())
	}
	s.set(nil)
	eventually(t, "the store was asked", m.Recalled)
	known := func(clusters ...string) {
		t.Helper()
		if diff := cmp.Diff([]Type{{API: gadgets, Clusters: clusters}}, m.Types()); diff != "" {
			t.Error(diff)
		}
	}
	known("east", "south", "west")
	if since, stale := m.Stale("east"); !stale || since.IsZero() {
		t.Errorf("what is only remembered is stale: %v, since %s", stale, since)
	}
	if _, stale := m.Freshness("east", resourceOf(gadgets)); !stale {
		t.Error("a type that is only remembered is not stale")
	}
	if _, stale := m.Stale("none"); stale {
		t.Error("a cluster of which nothing is known is stale")
	}
	east := sourceOf("east", &rest.Config{Host: "https://127.0.0.1:1"})
	east.reachable = false
	fleet.mu.Lock()
	fleet.sources["east"] = east
	fleet.mu.Unlock()
	fleet.notify(member.Event{Type: member.Joined, Name: "east"})
	known("east", "south", "west")
	if m.Synced("east", resourceOf(gadgets)) {
		t.Error("a cluster that was not asked is read whole")
	}
	for _, name := range []string{"south", "east"} { // one without a running mirror, and one with
		if err := m.Drop(name); err != nil {
			t.Fatal(err)
		}
	}
	known("west")
}

// TestRemovedTypeIsForgotten: a type that the cluster no longer serves leaves the mirror, even
// while another API group does not answer. Types of the group that does not answer stay.
func TestRemovedTypeIsForgotten(t *testing.T) {
	api := func(group, resource string) member.API {
		return member.API{
			GroupVersionKind: schema.GroupVersionKind{Group: group, Version: "v1", Kind: resource}, Resource: resource, Verbs: []string{"list", "watch"},
		}
	}
	m := newMirror(nil, newFleet(), logr.Discard())
	c := serve(m, "east", api("", "pods"), api("example.org", "gadgets"), api("metrics.k8s.io", "pods"))
	east := newSource(t, "east", nil)
	east.apis, east.stale = []member.API{api("", "pods")}, map[string]bool{"metrics.k8s.io": true}
	c.source = east
	_, unwanted, _ := c.plan()
	var got []string
	for _, tab := range unwanted {
		got = append(got, resourceOf(tab.api).String())
	}
	if diff := cmp.Diff([]string{"gadgets.example.org"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestTypeThatAnAPIListLacks: a type that is missing in one API list is dropped, with its stored
// rows and their history, only if the cluster says that it has no such type.
func TestTypeThatAnAPIListLacks(t *testing.T) {
	gadgets := member.API{
		GroupVersionKind: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Gadget"}, Resource: "gadgets", Verbs: []string{"list", "watch"},
	}
	pods := member.API{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Verbs: []string{"list", "watch"}}
	ask := func(t *testing.T, code int, body string, since time.Duration) (gone bool, asked int, away bool) {
		t.Helper()
		answer := roundTrip(func(q *http.Request) (*http.Response, error) {
			asked++
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprint(w, body)
			r := w.Result()
			r.Request = q
			return r, nil
		})
		m := newMirror(nil, newFleet(), logr.Discard())
		c := serve(m, "east", pods, gadgets)
		east := sourceOf("east", &rest.Config{Host: "http://east", Transport: answer})
		east.apis = []member.API{pods}
		c.source = east
		if err := c.clients(); err != nil {
			t.Fatal(err)
		}
		_, unwanted, _ := c.plan()
		if len(unwanted) != 1 || unwanted[0].api.Resource != "gadgets" {
			t.Fatalf("not wanted: %v", unwanted)
		}
		unwanted[0].unlisted = unwanted[0].unlisted.Add(-since)
		return c.confirm(t.Context(), unwanted)[0], asked, unwanted[0].away
	}
	for name, tc := range map[string]struct {
		code  int
		body  string
		since time.Duration
		gone  bool
		asked int
	}{
		"NoSuchType":        {http.StatusNotFound, "404 page not found", 0, true, 1},
		"HasObjects":        {http.StatusOK, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": []}`, 0, false, 1},
		"StartsJustNow":     {http.StatusServiceUnavailable, "", 0, false, 1},
		"Forbidden":         {http.StatusForbidden, "", 0, false, 1},
		"ForbiddenForADay":  {http.StatusForbidden, "", absentFor + time.Second, true, 0},
		"AnsweredByNothing": {http.StatusBadGateway, "", 0, false, 1},
	} {
		synctest.Test(t, func(t *testing.T) { // a test that stands still does not miss the deadline
			if gone, asked, away := ask(t, tc.code, tc.body, tc.since); gone != tc.gone || asked != tc.asked || away == tc.gone {
				t.Errorf("%s: gone %v, %d requests, away %v; want gone %v, %d requests", name, gone, asked, away, tc.gone, tc.asked)
			}
		})
	}
}

func TestPlacedOf(t *testing.T) {
	m := newMirror(nil, newFleet(), logr.Discard())
	api := member.API{GroupVersionKind: configmaps.GroupVersion().WithKind("ConfigMap"), Resource: "configmaps"}
	for _, name := range []string{"west", "east"} {
		serve(m, name, api)
	}
	observe := func(cluster, name, binding string) {
		o := at(name, "u-"+name, 5, binding)
		m.Observe(cluster, configmaps, o)
	}
	names := func(objects []Object) (out []string) {
		for _, o := range objects {
			out = append(out, o.Cluster+"/"+o.Name)
		}
		return out
	}
	check := func(want map[string][]string) {
		t.Helper()
		got := map[string][]string{}
		for _, b := range []string{"b1", "b2"} {
			got[b] = names(m.Placed(types.UID(b)))
			for _, c := range []string{"east", "west"} {
				got[b+" "+c] = names(m.PlacedOf(types.UID(b), c))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	observe("west", "a", "b1")
	observe("east", "b", "b1")
	observe("east", "a", "b1")
	observe("east", "c", "b2")
	check(map[string][]string{
		"b1": {"east/a", "east/b", "west/a"}, "b1 east": {"east/a", "east/b"}, "b1 west": {"west/a"},
		"b2": {"east/c"}, "b2 east": {"east/c"}, "b2 west": nil,
	})
	m.ObserveDeleted("west", configmaps.GroupResource(), "ns", "a", "u-a")
	m.ObserveDeleted("east", configmaps.GroupResource(), "ns", "c", "u-c")
	check(map[string][]string{
		"b1": {"east/a", "east/b"}, "b1 east": {"east/a", "east/b"}, "b1 west": nil, "b2": nil, "b2 east": nil, "b2 west": nil,
	})
	if len(m.bindings.placed) != 1 {
		t.Errorf("the index keeps %d bindings, want 1", len(m.bindings.placed))
	}
}
