package apply

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// fences closes some clusters to some namespaces, in place of ClusterAccess.
type fences struct {
	mu         sync.Mutex
	closed     map[string]bool // NAMESPACE/CLUSTER
	namespaces []func(sets.Set[string])
	clusters   []func(string)
}

func (f *fences) Allowed(namespace, cluster string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.closed[namespace+"/"+cluster]
}

func (f *fences) Synced() bool { return true }

func (f *fences) SubscribeFences(g func(sets.Set[string])) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.namespaces = append(f.namespaces, g)
}

func (f *fences) SubscribeClusters(g func(string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clusters = append(f.clusters, g)
}

// open opens or closes a cluster to a namespace. It notifies the subscribers as a change of the
// labels of the cluster does (byLabels), or as one of a ClusterAccess.
func (f *fences) open(namespace, cluster string, open, byLabels bool) {
	f.mu.Lock()
	f.closed[namespace+"/"+cluster] = !open
	namespaces, clusters := slices.Clone(f.namespaces), slices.Clone(f.clusters)
	f.mu.Unlock()
	if byLabels {
		for _, g := range clusters {
			g(cluster)
		}
		return
	}
	for _, g := range namespaces {
		g(sets.New(namespace))
	}
}

// label sets a label of a namespace; an empty value removes it.
func (f *fleet) label(c client.Client, ns, key, value string) {
	f.t.Helper()
	text := `"` + value + `"`
	if value == "" {
		text = "null"
	}
	f.must(c.Patch(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":`+text+`}}}`))))
}

// labels waits until a namespace has exactly these labels, and the one with its name.
func (f *fleet) labels(c client.Client, ns string, want map[string]string) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("namespace %s has %v", ns, want), func() error {
		n := &corev1.Namespace{}
		if err := c.Get(f.t.Context(), client.ObjectKey{Name: ns}, n); err != nil {
			return err
		}
		delete(n.Labels, corev1.LabelMetadataName)
		if diff := cmp.Diff(want, n.Labels); diff != "" && len(want)+len(n.Labels) > 0 {
			return errors.New(diff)
		}
		return nil
	})
}

func (f *fleet) without(c client.Client, ns string) {
	f.t.Helper()
	if err := c.Get(f.t.Context(), client.ObjectKey{Name: ns}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		f.t.Errorf("namespace %s is there (%v)", ns, err)
	}
}

func TestNamespacesFollowTheLabelsOfTheHubs(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns, theirs, idle := testenv.Namespace(t, testenv.Config(hubServer)), testenv.Namespace(t, testenv.Config(hubServer)), testenv.Namespace(t, testenv.Config(hubServer))
	f.must(oak.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: theirs, Labels: map[string]string{"team": "theirs"}}}))

	f.label(f.hub, ns, "team", "a")
	f.label(f.hub, ns, workv1alpha2.AllowTakeOverLabel, "true") // for the hub only
	f.result(f.bind(configMap(ns, "a", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	f.result(f.bind(configMap(theirs, "b", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	ours := map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "a"}
	f.labels(oak, ns, ours)
	f.label(f.hub, ns, "stage", "test")
	f.labels(oak, ns, map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "a", "stage": "test"})
	f.label(oak, ns, "injected", "theirs") // set in the member: it stays
	f.label(oak, ns, "team", "b")          // set by the hub: it is put back
	f.label(f.hub, ns, "stage", "")
	f.labels(oak, ns, map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "a", "injected": "theirs"})

	f.label(f.hub, theirs, "team", "ours")
	f.label(f.hub, ns, "team", "c") // handled after the change of theirs
	f.labels(oak, ns, map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "c", "injected": "theirs"})
	f.labels(oak, theirs, map[string]string{"team": "theirs"})
	f.without(oak, idle)
	f.unjoin("oak")
}

func TestNamespacesEverywhere(t *testing.T) {
	f := newFleet(t)
	f.spread, f.fences = SpreadAll, &fences{closed: map[string]bool{}}
	hubConfig := testenv.Config(hubServer)
	early, theirs, skipped := testenv.Namespace(t, hubConfig), testenv.Namespace(t, hubConfig), testenv.Namespace(t, hubConfig)
	f.label(f.hub, early, "team", "a")
	f.label(f.hub, skipped, workv1alpha2.SkipNamespaceLabel, "true")
	oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	f.must(oak.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: theirs}}))
	f.fences.closed[early+"/elm"] = true
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	f.join("elm", testenv.Kubeconfig(elmServer))
	ours := map[string]string{workv1alpha2.NamespaceLabel: f.hubID}

	f.labels(oak, early, map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "a"})
	f.labels(elm, theirs, ours)
	f.labels(oak, theirs, nil) // existed before
	late := testenv.Namespace(t, hubConfig)
	f.labels(oak, late, ours)
	f.labels(elm, late, ours)
	f.without(elm, early)
	f.fences.open(early, "elm", true, false)
	f.labels(elm, early, map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "a"})

	// Namespaces of Kubernetes and of Orrery, and those that opt out, are left alone.
	for _, name := range []string{skipped, "orrery-cluster"} {
		f.without(oak, name)
		f.without(elm, name)
	}
	f.labels(oak, "kube-public", nil)
	f.fences.open(skipped, "elm", false, true)
	f.label(f.hub, skipped, workv1alpha2.SkipNamespaceLabel, "")
	f.labels(oak, skipped, ours)
	f.without(elm, skipped)
	f.fences.open(skipped, "elm", true, true)
	f.labels(elm, skipped, ours)

	// Neither a cluster that is closed nor a namespace that opts out loses what is there.
	f.label(f.hub, late, workv1alpha2.SkipNamespaceLabel, "true")
	f.fences.open(early, "elm", false, false)
	f.label(f.hub, early, "team", "b") // its labels are still copied
	f.labels(elm, early, map[string]string{workv1alpha2.NamespaceLabel: f.hubID, "team": "b"})
	f.labels(oak, late, ours)

	// They are deleted with the hub's namespaces, except where others have objects in them.
	f.must(oak.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: late, Name: "theirs"}}))
	for _, name := range []string{late, theirs} {
		f.must(f.hub.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		f.finalizeNamespace(hubConfig, name)
	}
	for _, name := range []string{late, theirs} { // elm has no namespace controller
		f.eventually(name+" is being deleted in elm", func() error {
			n := &corev1.Namespace{}
			if err := elm.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
				return client.IgnoreNotFound(err)
			}
			if n.DeletionTimestamp.IsZero() {
				return errors.New("it is not")
			}
			return nil
		})
	}
	f.labels(oak, late, map[string]string{}) // kept, without our mark
	f.labels(oak, theirs, nil)

	// After a restart nothing is left to do, even for the namespaces of other tests on the hub.
	all := &corev1.NamespaceList{}
	f.must(f.hub.List(t.Context(), all))
	for i := range all.Items {
		n := &all.Items[i]
		if !spreads(&metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta}) {
			continue
		}
		for cluster, c := range map[string]client.Client{"oak": oak, "elm": elm} {
			if f.fences.Allowed(n.Name, cluster) {
				f.eventually(n.Name+" is in "+cluster, func() error {
					return c.Get(t.Context(), client.ObjectKey{Name: n.Name}, &corev1.Namespace{})
				})
			}
		}
	}
	f.stop()
	before := f.calls("")
	f.start()
	f.eventually("elm is reachable", func() error { return f.reachable("elm") })
	f.eventually("oak is reachable", func() error { return f.reachable("oak") })
	after := testenv.Namespace(t, hubConfig) // created after all that was pending
	f.labels(oak, after, ours)
	f.labels(elm, after, ours)
	if made := f.calls("") - before; made != 2 {
		t.Errorf("%v calls were made, want one for the new namespace in each cluster", made)
	}
	f.unjoin("oak")
	f.unjoin("elm")
}
