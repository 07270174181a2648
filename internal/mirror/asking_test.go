package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestNamespacesOneByOne: a hub that may read a type only in some namespaces of a cluster
// mirrors and watches these namespaces. After a restart it resumes, and misses no change that
// happened in any of them meanwhile.
func TestNamespacesOneByOne(t *testing.T) {
	cfg := testenv.Config(0)
	k := clientset(t, cfg)
	var namespaces []string
	for i := range 3 {
		namespaces = append(namespaces, testenv.Namespace(t, cfg))
		if i == 2 {
			break // the hub has no permissions in the last one
		}
		must[*rbacv1.Role](t)(k.RbacV1().Roles(namespaces[i]).Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "hub"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}},
		}, metav1.CreateOptions{}))
		must[*rbacv1.RoleBinding](t)(k.RbacV1().RoleBindings(namespaces[i]).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "hub"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "hub"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "narrow-hub"}},
		}, metav1.CreateOptions{}))
	}
	slices.Sort(namespaces[:2])
	for _, namespace := range namespaces {
		for i := range 3 {
			configMap(t, cfg, namespace, fmt.Sprintf("m%d", i), map[string]string{"app": "web"})
		}
		configMap(t, cfg, namespace, "other", nil)
	}
	narrow := rest.CopyConfig(cfg)
	narrow.Impersonate = rest.ImpersonationConfig{UserName: "narrow-hub"}
	var mu sync.Mutex
	watches := map[string]io.Closer{} // last watch by path
	narrow.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(q)
			if err == nil && q.URL.Query().Get("watch") == "true" {
				mu.Lock()
				watches[q.URL.Path] = answer.Body
				mu.Unlock()
			}
			return answer, err
		})
	})
	asked := &requests{}
	source := newSource(t, "east", cfg)
	source.cfg = asked.of(narrow)
	s := openStore(t)
	q := store.Query{Resource: "configmaps", Namespaces: namespaces}
	policy := mirrorPolicy(t, "some", fmt.Sprintf("mirror: {resources: [{resources: [configmaps], namespaces: [%s, %s], labelSelector: {matchLabels: {app: web}}}]}", namespaces[0], namespaces[1]))
	want := map[string]bool{}
	for _, namespace := range namespaces[:2] {
		for i := range 3 {
			want[fmt.Sprintf("east/%s/m%d", namespace, i)] = true
		}
	}
	same := func() bool {
		got := rows(t, s, q)
		for name := range want {
			if _, ok := got[name]; !ok {
				return false
			}
		}
		return len(got) == len(want)
	}
	configs := func(namespace string) string { return "/api/v1/namespaces/" + namespace + "/configmaps" }
	_, stop := begin(t, s, newFleet(source), policy)
	eventually(t, "what may be seen is stored", same)
	for _, namespace := range namespaces[:2] {
		eventually(t, "each namespace is watched", func() bool { return asked.asked(configs(namespace), "app=web", true) })
	}
	if asked.asked("/api/v1/configmaps", "app=web", false) || asked.asked(configs(namespaces[2]), "app=web", false) {
		t.Error("more was asked for than is mirrored")
	}
	remove := func(namespace, name string) {
		t.Helper()
		if err := k.CoreV1().ConfigMaps(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		delete(want, "east/"+namespace+"/"+name)
	}
	add := func(namespace, name string) {
		t.Helper()
		configMap(t, cfg, namespace, name, map[string]string{"app": "web"})
		want["east/"+namespace+"/"+name] = true
	}
	for i, namespace := range namespaces[:2] {
		remove(namespace, fmt.Sprintf("m%d", i))
		add(namespace, "new")
	}
	eventually(t, "what changes in each is followed", same)
	eventually(t, "there is a checkpoint", func() bool {
		state := must[[]byte](t)(s.Checkpoint(context.Background(), "east", configmaps.GroupResource()))
		return state != nil
	})
	stop()

	for _, namespace := range namespaces[:2] { // while no mirror runs
		remove(namespace, "new")
		add(namespace, "later")
		remove(namespace, "m2")
		add(namespace, "m2") // another object of that name
	}
	m, stop := begin(t, s, newFleet(source), policy)
	eventually(t, "what happened meanwhile is found", same)
	eventually(t, "the type is synced", func() bool {
		table, unlock := m.table("east", configmaps.GroupResource())
		defer unlock()
		return table != nil && table.synced
	})
	live := map[string]types.UID{}
	for _, namespace := range namespaces[:2] {
		list := must[*corev1.ConfigMapList](t)(k.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"}))
		for _, o := range list.Items {
			live["east/"+namespace+"/"+o.Name] = o.UID
		}
	}
	for name, row := range rows(t, s, q) {
		if row.UID != live[name] {
			t.Errorf("%s is %s, want %s", name, row.UID, live[name])
		}
	}

	// One of the watches breaks. Changes in its namespace are mirrored all the same.
	for _, namespace := range namespaces[:2] {
		mu.Lock()
		err := watches[configs(namespace)].Close()
		mu.Unlock()
		if err != nil {
			t.Error(err)
		}
		add(namespace, "last")
		eventually(t, "it goes on", same)
	}
	stop()
}

// TestNamespaceThatIsRefused: the description of the type names the namespace that the hub may
// not read.
func TestNamespaceThatIsRefused(t *testing.T) {
	cfg := testenv.Config(0)
	open, closed := testenv.Namespace(t, cfg), testenv.Namespace(t, cfg)
	source := newSource(t, "east", cfg)
	source.cfg = rest.CopyConfig(cfg)
	source.cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if strings.Contains(q.URL.Path, closed) {
				return refuse(q, http.StatusForbidden, metav1.StatusReasonForbidden), nil
			}
			return next.RoundTrip(q)
		})
	})
	m, _ := begin(t, openStore(t), newFleet(source), mirrorPolicy(t, "some", fmt.Sprintf("mirror: {resources: [{resources: [configmaps], namespaces: [%s, %s]}]}", open, closed)))
	eventually(t, "the namespace is named", func() bool {
		d, _ := m.Describe("east")
		for _, one := range d.Types {
			if one.Resource == "configmaps" && strings.Contains(one.Message, "namespace "+closed) {
				return true
			}
		}
		return false
	})
}

// fakeStream is a stream whose events and end the test chooses.
type fakeStream struct {
	says   chan watch.Event
	ends   chan error
	mu     sync.Mutex
	at     string
	closed chan struct{}
	once   sync.Once
}

func newFakeStream(at string) *fakeStream {
	return &fakeStream{says: make(chan watch.Event), ends: make(chan error, 1), at: at, closed: make(chan struct{})}
}

func (s *fakeStream) next() (watch.Event, error) {
	select {
	case e := <-s.says:
		s.mu.Lock()
		s.at = e.Object.(metav1.Object).GetResourceVersion()
		s.mu.Unlock()
		return e, nil
	case err := <-s.ends:
		return watch.Event{}, err
	case <-s.closed:
		return watch.Event{}, io.EOF
	}
}

func (s *fakeStream) reached() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}
func (s *fakeStream) close() { s.once.Do(func() { close(s.closed) }) }

// TestMerged: a merged watch has reached the version of the stream that is furthest behind. Its
// streams end together.
func TestMerged(t *testing.T) {
	event := func(version string) watch.Event {
		return watch.Event{Type: watch.Added, Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}}
	}
	begin := func(at string) (*fakeStream, *fakeStream, events) {
		a, b := newFakeStream(at), newFakeStream(at)
		ctx, cancel := context.WithCancel(t.Context())
		m := merge(ctx, cancel, []events{a, b})
		t.Cleanup(m.close)
		return a, b, m
	}
	a, b, m := begin("5")
	if m.reached() != "5" {
		t.Errorf("it begins at %s", m.reached())
	}
	for i, step := range []struct {
		of            *fakeStream
		version, want string
	}{{a, "9", "5"}, {b, "7", "7"}, {b, "100", "9"}, {a, "20", "20"}} {
		step.of.says <- event(step.version)
		e, err := m.next()
		if err != nil || e.Object.(metav1.Object).GetResourceVersion() != step.version || m.reached() != step.want {
			t.Errorf("step %d: %v, %v, reached %s, want %s", i, e.Object, err, m.reached(), step.want)
		}
	}
	a.ends <- io.EOF
	b.says <- event("120") // b ends a little later
	if _, err := m.next(); err != nil || m.reached() != "20" {
		t.Errorf("%v, reached %s", err, m.reached())
	}
	b.ends <- io.EOF
	if _, err := m.next(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want its end", err)
	}

	// One stream ends and the other continues. The merged watch ends, so that all are opened
	// again.
	a, _, m = begin("5")
	a.ends <- io.EOF
	if _, err := m.next(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want its end", err)
	}

	a, _, m = begin("5")
	a.ends <- errors.New("broken")
	if _, err := m.next(); err == nil || err.Error() != "broken" {
		t.Errorf("%v, want what broke it", err)
	}

	// The context of the watch is cancelled.
	ctx, cancel := context.WithCancel(t.Context())
	given := merge(ctx, cancel, []events{newFakeStream("5"), newFakeStream("5")})
	cancel()
	if _, err := given.next(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want its end", err)
	}
	given.close()

	// Versions that are not numbers do not show which stream is behind.
	a, _, m = begin("x")
	a.says <- event("y")
	if _, err := m.next(); err != nil || m.reached() != "x" {
		t.Errorf("%v, reached %s", err, m.reached())
	}
}
