package mirror

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// onStores runs a test with a store on each database: SQLite, PostgreSQL and MariaDB.
func onStores(t *testing.T, test func(t *testing.T, s *store.Store)) {
	for name, at := range map[string]func(t *testing.T) string{
		"SQLite":     func(t *testing.T) string { return t.TempDir() },
		"PostgreSQL": func(t *testing.T) string { return testenv.PostgreSQL.Create(t) },
		"MariaDB":    func(t *testing.T) string { return testenv.MariaDB.Create(t) },
	} {
		t.Run(name, func(t *testing.T) {
			s := must[*store.Store](t)(storeAt(at(t)))
			defer s.Close()
			test(t, s)
		})
	}
}

// TestHostileObjects: the store keeps every object that an API server accepts as it is, and
// each query finds exactly that object. The test uses names that are SQL, wildcards or in other
// scripts, annotations of 100 KB, deep nesting, and objects of more than a megabyte.
func TestHostileObjects(t *testing.T) {
	cfg := testenv.Config(manyObjects)
	namespace := testenv.Namespace(t, cfg)
	k := clientset(t, cfg)
	names := []string{
		"'; DROP TABLE object; --", `" OR 1=1 --`, "_", "*", "a_b", "aXb", `back\slash`, "ünïcode-\u65e5\u672c-🚀", "e\u0301", "\u00e9", "UPPER", "upper", "tab\there", "line\nfeed",
		"<script>", "$[0]", "$.a", "?1", ":x", "@x", "{}", "null", "0", "-1", " space ", "system:x", strings.Repeat("long", 60),
	}
	for _, name := range names {
		must[*rbacv1.ClusterRole](t)(k.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{"hostile": "yes", "example.com.example.org/A_b.c-d": "A_b.c-D"},
			Annotations: map[string]string{"example.com/x": "'; DROP TABLE body; --\u2028\x7f" + strings.Repeat("é'\"\\", 20_000)},
		}}, metav1.CreateOptions{}))
		t.Cleanup(func() {
			if err := k.RbacV1().ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		})
	}
	must[*corev1.ConfigMap](t)(k.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "large", Annotations: map[string]string{"a": strings.Repeat("x", 200_000)}},
		Data:       map[string]string{"text": strings.Repeat("\u8a9e", 330_000)},
	}, metav1.CreateOptions{}))

	crds := must[*apiextensions.Clientset](t)(apiextensions.NewForConfig(cfg)).ApiextensionsV1().CustomResourceDefinitions()
	must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "abysses.hostile.test"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "hostile.test", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "abysses", Singular: "abyss", Kind: "Abyss", ListKind: "AbyssList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
			}},
		},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() {
		if err := crds.Delete(context.Background(), "abysses.hostile.test", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	abysses := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cfg)).Resource(schema.GroupVersionResource{Group: "hostile.test", Version: "v1", Resource: "abysses"})
	abyss := func(name string, content map[string]any) *unstructured.Unstructured {
		content["apiVersion"], content["kind"], content["metadata"] = "hostile.test/v1", "Abyss", map[string]any{"name": name}
		return &unstructured.Unstructured{Object: content}
	}
	deep := map[string]any{"bottom": "reached"}
	for range 500 {
		deep = map[string]any{"a": deep}
	}
	eventually(t, "abysses are served", func() bool {
		_, err := abysses.Create(t.Context(), abyss("deep", map[string]any{"spec": deep}), metav1.CreateOptions{})
		return err == nil
	})
	for name, content := range map[string]map[string]any{
		"wide":  {"spec": strings.Repeat("x", 1_400_000)},
		"keys":  {"'": 1, `"`: 2, "$": 3, "a.b": 4, "": 5, "[0]": 6, "\u65e5\u672c": 7, "\u0000": "\u0000"},
		"types": {"spec": []any{nil, true, 1e300, int64(1) << 62, "", []any{}, map[string]any{}}},
	} {
		must[*unstructured.Unstructured](t)(abysses.Create(t.Context(), abyss(name, content), metav1.CreateOptions{}))
	}

	onStores(t, func(t *testing.T, s *store.Store) {
		east := newSource(t, "east", cfg, "configmaps", "clusterroles.rbac.authorization.k8s.io", "abysses.hostile.test")
		m, stop := start(t, s, newFleet(east))
		defer stop()
		synced(t, m, "east")
		asClusters(t, s, m, cfg, "east")
		roles := store.Query{Group: rbacv1.GroupName, Resource: "clusterroles"}
		for _, name := range names {
			q := roles
			q.Names = []string{name}
			if found := rows(t, s, q); len(found) != 1 || found["east//"+name].Name != name {
				t.Errorf("by the name %q it finds %d rows", name, len(found))
			}
		}
		q := roles
		q.Labels = labels.SelectorFromSet(labels.Set{"example.com.example.org/A_b.c-d": "A_b.c-D"})
		if found := rows(t, s, q); len(found) != len(names) {
			t.Errorf("by label it finds %d rows, want %d", len(found), len(names))
		}
		// Pagination returns each object once, in any order.
		q.Limit = 4
		paged := map[string]bool{}
		for {
			page := must[store.Page](t)(s.List(t.Context(), q))
			for _, r := range page.Rows {
				if paged[r.Name] {
					t.Errorf("%q is on two pages", r.Name)
				}
				paged[r.Name] = true
			}
			if q.Continue = page.Continue; q.Continue == "" {
				break
			}
		}
		if len(paged) != len(names) {
			t.Errorf("%d of %d are on pages", len(paged), len(names))
		}
	})
}

// liar is an API server that sends what the test sets.
type liar struct {
	mu      sync.Mutex
	version string            // of the list
	objects map[string]string // JSON by name
	end     chan struct{}     // closed to end the watches
	events  []string          // of the next watch
}

const liarsNamespace = "ns"

// liarsObject returns a ConfigMap as JSON.
func liarsObject(name, uid, version, data string) string {
	b, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"d": data},
		"metadata": map[string]any{"namespace": liarsNamespace, "name": name, "uid": uid, "resourceVersion": version},
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	say := func(text string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text)) // a client that cannot read it asks again
	}
	switch {
	case r.URL.Path != "/api/v1/configmaps":
		http.NotFound(w, r)
	case r.URL.Query().Get("watch") == "true":
		l.mu.Lock()
		events, end := l.events, l.end
		l.events = nil
		l.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(strings.Join(events, "\n") + "\n"))
		w.(http.Flusher).Flush()
		select {
		case <-end:
		case <-r.Context().Done():
		}
	default:
		l.mu.Lock()
		items := make([]string, 0, len(l.objects))
		for _, o := range l.objects {
			items = append(items, o)
		}
		version := l.version
		l.mu.Unlock()
		say(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":%q},"items":[%s]}`, version, strings.Join(items, ",")))
	}
}

// change ends the watches and sets the events of the next watch. From now on the cluster has
// objects, and its lists have the given version.
func (l *liar) change(version string, objects map[string]string, events ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version, l.objects, l.events = version, objects, append(l.events, events...)
	close(l.end)
	l.end = make(chan struct{})
}

func event(kind, object string) string { return fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object) }

// TestLyingMember: a cluster sends wrong resource versions, and events in the wrong order. In
// the end the store equals the cluster. Of two states in the wrong order the newer one is
// stored.
func TestLyingMember(t *testing.T) {
	one := liarsObject
	type step struct {
		version string
		objects map[string]string
		events  []string
		want    map[string]string // data by name; nil: that of objects
	}
	for name, steps := range map[string][]step{
		"NotNumbers": {
			{"abc", map[string]string{"a": one("a", "ua", "x1", "1"), "b": one("b", "ub", "", "1")}, nil, nil},
			{"abd", map[string]string{"a": one("a", "ua", "x2", "2")}, []string{event("MODIFIED", one("a", "ua", "x2", "2")), event("DELETED", one("b", "ub", "", "1"))}, nil},
			{"", map[string]string{"a": one("a", "ua", "-5", "3"), "c": one("c", "uc", "1e3", "1")}, []string{event("MODIFIED", one("a", "ua", "-5", "3")), event("ADDED", one("c", "uc", "1e3", "1"))}, nil},
		},
		"TooLarge": {
			{"99999999999999999999999999", map[string]string{"a": one("a", "ua", "99999999999999999999999999", "1")}, nil, nil},
			{"18446744073709551615", map[string]string{"a": one("a", "ua", "18446744073709551615", "2")}, []string{event("MODIFIED", one("a", "ua", "18446744073709551615", "2"))}, nil},
		},
		"EqualForDifferentObjects": {
			{"5", map[string]string{"a": one("a", "ua", "5", "1"), "b": one("b", "ub", "5", "1")}, nil, nil},
			{"6", map[string]string{"a": one("a", "ua", "6", "2"), "b": one("b", "ub", "6", "2"), "c": one("c", "uc", "6", "2")}, []string{
				event("MODIFIED", one("a", "ua", "6", "2")), event("MODIFIED", one("b", "ub", "6", "2")), event("ADDED", one("c", "uc", "6", "2")),
			}, nil},
		},
		"GoingBackwards": {
			{"100", map[string]string{"a": one("a", "ua", "90", "1"), "b": one("b", "ub", "100", "1")}, nil, nil},
			// As after a restored backup: everything that was known before is obsolete.
			{"50", map[string]string{"a": one("a", "ua", "50", "0"), "c": one("c", "uc", "40", "0")}, nil, nil},
		},
		"OutOfOrder": {
			{"10", map[string]string{"a": one("a", "ua", "9", "9"), "b": one("b", "ub", "10", "10")}, nil, nil},
			{"20", map[string]string{"a": one("a", "ua", "20", "20"), "b": one("b", "ub2", "18", "18")}, []string{
				event("MODIFIED", one("a", "ua", "20", "20")), event("MODIFIED", one("a", "ua", "15", "15")),
				event("ADDED", one("b", "ub2", "18", "18")), event("DELETED", one("b", "ub", "17", "10")),
			}, nil},
		},
		"TwiceInAList": {{"10", map[string]string{"a": one("a", "ua", "9", "9"), "again": one("a", "ua", "9", "9")}, nil, map[string]string{"a": "9"}}},
		"BookmarkOfTheFuture": {
			{"10", map[string]string{"a": one("a", "ua", "9", "9")}, nil, nil},
			{"11", map[string]string{"a": one("a", "ua", "9", "9")}, []string{event("BOOKMARK", one("", "", "999999", ""))}, nil},
			// There is no event. The watch cannot continue, so the type is listed.
			{"12", map[string]string{"a": one("a", "ua", "12", "12")}, nil, nil},
		},
		"NameReused": {
			{"10", map[string]string{"a": one("a", "ua", "9", "9")}, nil, nil},
			{"11", map[string]string{"a": one("a", "other", "9", "other")}, []string{event("DELETED", one("a", "ua", "10", "9")), event("ADDED", one("a", "other", "9", "other"))}, nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			l := &liar{end: make(chan struct{})}
			server := httptest.NewServer(l)
			defer func() { l.change("0", nil); server.CloseClientConnections(); server.Close() }()
			s := openStore(t)
			api := member.API{GroupVersionKind: configmaps.GroupVersion().WithKind("ConfigMap"), Resource: "configmaps", Namespaced: true, Verbs: metav1.Verbs{"list", "watch"}, Preferred: true}
			source := func() *testSource {
				east := sourceOf("east", &rest.Config{Host: server.URL, QPS: -1}, "configmaps")
				east.apis = []member.API{api}
				return east
			}
			var m *Mirror
			var stop func()
			check := func(at int, want map[string]string) {
				t.Helper()
				var got map[string]string
				defer func() {
					if t.Failed() {
						t.Logf("step %d: %s", at, cmp.Diff(want, got))
					}
				}()
				eventually(t, "the store is as the cluster is", func() bool {
					l.mu.Lock()
					waits := len(l.events)
					l.mu.Unlock()
					got = map[string]string{}
					for _, r := range rows(t, s, store.Query{Resource: "configmaps"}) {
						var o struct {
							Data map[string]string `json:"data"`
						}
						if err := json.Unmarshal(r.Body, &o); err != nil {
							t.Fatal(err)
						}
						got[r.Name] = o.Data["d"]
					}
					return waits == 0 && cmp.Equal(want, got) && m.Synced("east", configmaps.GroupResource())
				})
			}
			var want map[string]string
			for i, step := range steps {
				if want = step.want; want == nil {
					want = map[string]string{}
					for name, o := range step.objects {
						var object struct {
							Data map[string]string `json:"data"`
						}
						if err := json.Unmarshal([]byte(o), &object); err != nil {
							t.Fatal(err)
						}
						want[name] = object.Data["d"]
					}
				}
				if l.change(step.version, step.objects, step.events...); i == 0 {
					m, stop = start(t, s, newFleet(source()))
				}
				check(i, want)
			}
			// The store is the same after a restart.
			stop()
			m, stop = start(t, s, newFleet(source()))
			defer stop()
			check(len(steps), want)
		})
	}
}
