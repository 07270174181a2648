package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// slowStore is a store whose writes wait while it is held, and fail while err is set.
type slowStore struct {
	*store.Store

	mu   sync.Mutex
	held chan struct{} // closed when waiting writes have to check again; nil: writes do not wait
	pass int           // number of writes that may pass while the store is held
	err  error
}

// set holds the store or releases it, and sets the error of its writes.
func (s *slowStore) set(hold bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		close(s.held)
	}
	s.held, s.err, s.pass = nil, err, 0
	if hold {
		s.held = make(chan struct{})
	}
}

// one lets one write pass.
func (s *slowStore) one() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		s.pass++
		close(s.held)
		s.held = make(chan struct{})
	}
}

func (s *slowStore) Write(ctx context.Context, changes []store.Change) error {
	for {
		s.mu.Lock()
		held, err := s.held, s.err
		if held != nil && s.pass > 0 {
			s.pass--
			held = nil
		}
		s.mu.Unlock()
		if held == nil {
			if err != nil {
				return err
			}
			return s.Store.Write(ctx, changes)
		}
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unwritten returns the number of changes that wait to be stored.
func unwritten(m *Mirror) int {
	m.writer.mu.Lock()
	defer m.writer.mu.Unlock()
	return len(m.writer.pending)
}

// TestEditWhileTheWriterIsBehind: the selection of objects changes while the store is slow, so
// that watches wait for the writer. All selected rows are stored in the end, and the
// checkpoints cover exactly these: after a restart the index has every object.
func TestEditWhileTheWriterIsBehind(t *testing.T) {
	const each, clusters, bound = 40, 3, 60
	cfg := testenv.Config(manyObjects)
	cm := configmaps.GroupResource()
	for name, edits := range map[string]func(ns, other string) [][]string{
		"Widened":         func(ns, other string) [][]string { return [][]string{{ns, other}} },
		"WidenedAndBack":  func(ns, other string) [][]string { return [][]string{{ns, other}, {ns}} },
		"NarrowedAndBack": func(ns, other string) [][]string { return [][]string{{other}, {ns}} },
	} {
		t.Run(name, func(t *testing.T) {
			ns, other := testenv.Namespace(t, cfg), testenv.Namespace(t, cfg)
			for i := range each {
				configMap(t, cfg, ns, fmt.Sprintf("cm-%02d", i), nil)
			}
			configMap(t, cfg, other, "elsewhere", nil)
			want := map[string]bool{}
			fleet := newFleet()
			for i := range clusters {
				one := newSource(t, fmt.Sprintf("c%d", i), cfg, "configmaps")
				one.cluster.Spec.Mirror.Resources[0].Namespaces = []string{ns}
				fleet.sources[one.cluster.Name] = one
				for j := range each {
					want[fmt.Sprintf("%s/%s/cm-%02d", one.cluster.Name, ns, j)] = true
				}
			}
			s := &slowStore{Store: openStore(t)}
			s.set(true, nil)
			m := newMirror(s, fleet, testLogger(t))
			m.writer.bound = bound
			stop := run(t, m)
			// Together the clusters have more changes than the writer's bound, and nothing is
			// written, so some watches wait.
			observed := func(in, filter string) int {
				tab, unlock := m.table(in, cm)
				defer unlock()
				if tab == nil || !tab.running || tab.filter.String() != filter {
					return 0
				}
				return len(tab.records)
			}
			all := func(filter string, n int) func() bool {
				return func() bool {
					for i := range clusters {
						if observed(fmt.Sprintf("c%d", i), filter) < n {
							return false
						}
					}
					return unwritten(m) >= bound
				}
			}
			eventually(t, "the writer is behind", all("namespaces "+ns, each))
			last := []string{ns}
			for _, last = range edits(ns, other) {
				for _, one := range fleet.sources {
					one.mu.Lock()
					c := one.cluster.DeepCopy()
					c.Spec.Mirror.Resources[0].Namespaces = last
					one.cluster = c
					one.mu.Unlock()
					fleet.notify(member.Event{Type: member.Changed, Name: c.Name})
				}
				filter := scope{namespaces: slices.Sorted(slices.Values(last))}.String()
				eventually(t, "the edit counts", all(filter, 1))
			}
			if slices.Contains(last, other) {
				for i := range clusters {
					want[fmt.Sprintf("c%d/%s/elsewhere", i, other)] = true
				}
			}
			s.set(false, nil)
			for i := range clusters {
				synced(t, m, fmt.Sprintf("c%d", i))
			}
			eventually(t, "nothing waits", func() bool { return unwritten(m) == 0 })
			stored := func() map[string]bool {
				got := map[string]bool{}
				for id := range rows(t, s.Store, store.Query{Resource: "configmaps", Namespaces: []string{ns, other}}) {
					got[id] = true
				}
				return got
			}
			if got := stored(); !maps.Equal(want, got) {
				t.Errorf("%d rows are stored, want %d; the mirror says of c0 that all is: %v", len(got), len(want), m.Stored("c0", cm))
			}
			stop()

			m, _ = start(t, s.Store, fleet)
			indexed := map[string]bool{}
			for i := range clusters {
				name := fmt.Sprintf("c%d", i)
				synced(t, m, name)
				tab, unlock := m.table(name, cm)
				for k := range tab.records {
					indexed[name+"/"+k.namespace+"/"+k.name] = true
				}
				unlock()
			}
			if !maps.Equal(want, indexed) {
				t.Errorf("after a restart the index has %d objects, want %d", len(indexed), len(want))
			}
			if got := stored(); !maps.Equal(want, got) {
				t.Errorf("after a restart %d rows are stored, want %d", len(got), len(want))
			}
		})
	}
}

// TestPoliciesAtRandom changes objects, policies and the speed of the store in random order.
// The store ends with exactly the objects that are to be mirrored, and its checkpoints cover
// them.
func TestPoliciesAtRandom(t *testing.T) {
	cfg := testenv.Config(manyObjects)
	key := seal.New()
	r := testenv.Rand(t)
	for n := range testenv.Count(t, "POLICIES_AT_RANDOM", 3, 50) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			spaces := []string{testenv.Namespace(t, cfg), testenv.Namespace(t, cfg)}
			k := clientset(t, cfg).CoreV1()
			db, _ := sealedStore(t, key)
			s := &slowStore{Store: db}
			source := newSource(t, "east", cfg)
			fleet := newFleet(source)
			m := newMirror(s, fleet, testLogger(t))
			m.follow(db)
			m.writer.bound = 12
			selections := []string{
				"namespaces: [" + spaces[0] + "]", "namespaces: [" + spaces[1] + "]", "namespaces: [" + spaces[0] + ", " + spaces[1] + "]",
				"namespaces: [" + spaces[0] + ", " + spaces[1] + "], labelSelector: {matchLabels: {app: x}}",
			}
			var chosen *configv1alpha1.MirrorPolicy
			choose := func() {
				spec := "{resources: [configmaps], " + selections[r.IntN(len(selections))] + "}, {resources: [secrets], namespaces: [" + spaces[0] + ", " + spaces[1] + "]}"
				if r.IntN(2) == 0 {
					spec += ", {resources: [secrets], namespaces: [" + spaces[0] + "], secretData: Encrypted}"
				}
				chosen = mirrorPolicy(t, "chosen", "mirror: {resources: ["+spec+"]}")
				m.setPolicy("chosen", chosen)
			}
			fine := func(err error) {
				t.Helper()
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
					t.Fatal(err)
				}
			}
			choose()
			stop := run(t, m)
			for range 150 {
				name, space, app := fmt.Sprintf("o%d", r.IntN(12)), spaces[r.IntN(2)], []string{"x", "y"}[r.IntN(2)]
				about := metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}}
				patch := fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app)
				var err error
				switch n := r.IntN(20); {
				case n < 6:
					_, err = k.ConfigMaps(space).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: about}, metav1.CreateOptions{})
				case n < 9:
					_, err = k.ConfigMaps(space).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
				case n < 11:
					err = k.ConfigMaps(space).Delete(t.Context(), name, metav1.DeleteOptions{})
				case n < 13:
					_, err = k.Secrets(space).Create(t.Context(), &corev1.Secret{ObjectMeta: about, StringData: map[string]string{"of": name}}, metav1.CreateOptions{})
				case n < 16:
					choose()
				case n < 17:
					s.set(true, nil)
				case n < 18:
					s.one()
				case n < 19:
					s.set(false, errors.New("disk I/O error"))
				default:
					s.set(false, nil)
				}
				fine(err)
			}
			s.set(false, nil)
			choose()

			said := statements(source.Cluster(), []policy{newPolicy(chosen)})
			kept, selected := secretData(said), filter{}
			for _, d := range decide(said, facts{apis: source.apis}).types {
				if resourceOf(d.api) == configmaps.GroupResource() {
					selected = d.filter
				}
			}
			list, err := k.ConfigMaps("").List(t.Context(), metav1.ListOptions{})
			fine(err)
			want := map[string]string{}
			for _, o := range list.Items {
				if selected.has(o.Namespace, o.Labels) {
					want["east/"+o.Namespace+"/"+o.Name] = o.ResourceVersion
				}
			}
			secretList, err := k.Secrets("").List(t.Context(), metav1.ListOptions{})
			fine(err)
			for _, o := range secretList.Items {
				if slices.Contains(spaces, o.Namespace) {
					want["east/"+o.Namespace+"/"+o.Name+" secret"] = fmt.Sprint(o.ResourceVersion, " data ", kept != nil && kept.has(o.Namespace, o.Labels))
				}
			}
			stored := func() map[string]string {
				got := map[string]string{}
				for id, row := range rows(t, db, store.Query{Resource: "configmaps"}) {
					got[id] = row.ResourceVersion
				}
				for id, row := range rows(t, db, store.Query{Resource: "secrets", Namespaces: spaces}) {
					var o corev1.Secret
					fine(json.Unmarshal(row.Body, &o))
					got[id+" secret"] = fmt.Sprint(row.ResourceVersion, " data ", len(o.Data) > 0)
				}
				return got
			}
			testenv.Eventually(t, "what is to be mirrored is stored", testenv.Patience, func() error {
				if diff := cmp.Diff(want, stored()); diff != "" {
					return fmt.Errorf("the mirror says %+v: %s", m.Observation("east"), diff)
				}
				return nil
			})
			synced(t, m, "east")
			stop()

			m, _ = begin(t, db, fleet, chosen)
			synced(t, m, "east")
			indexed := map[string]bool{}
			tab, unlock := m.table("east", configmaps.GroupResource())
			for o := range tab.records {
				indexed["east/"+o.namespace+"/"+o.name] = true
			}
			unlock()
			for id := range want {
				if !strings.HasSuffix(id, " secret") && !indexed[id] {
					t.Errorf("after a restart the index lacks %s", id)
				}
			}
			if diff := cmp.Diff(want, stored()); diff != "" {
				t.Errorf("after a restart: %s", diff)
			}
		})
	}
}
