package revision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/kube"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/testenv"
)

// deadline is how long anything may take on a busy machine.
const deadline = 3 * time.Minute

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, 1)
}

// failing are records that fail while the test wants it.
type failing struct {
	records.RevisionKeeper

	failure atomic.Pointer[error]
}

func (f *failing) fail() error {
	if e := f.failure.Load(); e != nil {
		return *e
	}
	return nil
}

func (f *failing) PutRevision(ctx context.Context, r records.Revision) error {
	return cmp.Or(f.fail(), f.RevisionKeeper.PutRevision(ctx, r))
}

func (f *failing) Revisions(ctx context.Context, template types.UID) ([]records.Revision, error) {
	all, err := f.RevisionKeeper.Revisions(ctx, template)
	return all, cmp.Or(f.fail(), err)
}

// world is a hub with the packages that revision needs, and a user's clients.
type world struct {
	t       *testing.T
	ns      string
	hub     client.Client
	kube    kubernetes.Interface
	records *failing
	writes  writes
	stop    func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	kept, err := records.Open(t.Context(), t.TempDir(), logr.Discard())
	w.must(err)
	t.Cleanup(func() {
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
	w.records = &failing{RevisionKeeper: kept}
	w.must(testenv.InstallCRDs(testenv.Config(0)))
	w.ns = testenv.Namespace(t, testenv.Config(0))
	w.hub, err = client.New(testenv.Config(0), client.Options{Scheme: hub.Scheme()})
	w.must(err)
	w.kube, err = kubernetes.NewForConfig(testenv.Config(0))
	w.must(err)
	w.start()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// writes are the requests that write, as METHOD PATH.
type writes struct {
	mu  sync.Mutex
	all []string
}

func (w *writes) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = nil
}

// of returns the writes to objects whose names begin with name.
func (w *writes) of(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.all), func(r string) bool { return !strings.Contains(r, "/"+name) })
}

// recording records writes.
type recording struct {
	next   http.RoundTripper
	writes *writes
}

func (c recording) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.writes.mu.Lock()
		c.writes.all = append(c.writes.all, r.Method+" "+r.URL.Path)
		c.writes.mu.Unlock()
	}
	return c.next.RoundTrip(r)
}

// start runs the packages, as orrery server does.
func (w *world) start() {
	w.t.Helper()
	cfg := testenv.Config(0)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return recording{next, &w.writes} })
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: hub.Scheme(), Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	w.must(err)
	templates, err := template.New(mgr)
	w.must(err)
	for _, k := range kinds {
		w.must(templates.Watch(appsv1.SchemeGroupVersion.WithKind(k.Kind)))
	}
	bindings, err := binding.NewCache(w.t.Context(), mgr.GetCache())
	w.must(err)
	w.must(Add(mgr, Options{Bindings: bindings, Templates: templates, Records: w.records}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(w.stop)
}

func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	end := time.Now().Add(deadline)
	err := check()
	for err != nil {
		if time.Now().After(end) {
			w.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
		err = check()
	}
}

// place creates a workload and its binding, as a user and placement do.
func (w *world) place(o client.Object) *workv1alpha2.ResourceBinding {
	w.t.Helper()
	w.must(w.hub.Create(w.t.Context(), o))
	gvk, err := w.hub.GroupVersionKindFor(o)
	w.must(err)
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: o.GetName() + "-" + strings.ToLower(gvk.Kind)},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: gvk.Kind, Name: o.GetName(), UID: o.GetUID()},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
			Clusters:  []workv1alpha2.TargetCluster{{Name: "oak"}},
		},
	}
	w.must(w.hub.Create(w.t.Context(), b))
	return b
}

// edit changes a workload as a user does.
func edit[T client.Object](w *world, o T, change func(T)) {
	w.t.Helper()
	patch := client.MergeFrom(o.DeepCopyObject().(client.Object))
	change(o)
	w.must(w.hub.Patch(w.t.Context(), o, patch))
}

// says sets the status of a Deployment as package status would.
func (w *world) says(d *appsv1.Deployment, available corev1.ConditionStatus, replicas, updated, ready int32) {
	w.t.Helper()
	w.must(w.hub.Get(w.t.Context(), client.ObjectKeyFromObject(d), d))
	patch := client.MergeFrom(d.DeepCopy())
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: available}},
	}
	w.must(w.hub.Status().Patch(w.t.Context(), d, patch))
}

// numbered waits until a Deployment has this number. It is an annotation, and each change of a
// Deployment's annotations makes a new generation. So the status from w.says is then about an older
// generation.
func (w *world) numbered(d *appsv1.Deployment, number string) {
	w.t.Helper()
	w.eventually("the Deployment has its number", func() error {
		w.must(w.hub.Get(w.t.Context(), client.ObjectKeyFromObject(d), d))
		if d.Annotations[numberAnnotation] != number {
			return fmt.Errorf("its annotations are %v", d.Annotations)
		}
		return nil
	})
}

func (w *world) replicaSets(of client.Object) []appsv1.ReplicaSet {
	w.t.Helper()
	var all appsv1.ReplicaSetList
	w.must(w.hub.List(w.t.Context(), &all, client.InNamespace(w.ns)))
	return slices.DeleteFunc(all.Items, func(rs appsv1.ReplicaSet) bool { return !metav1.IsControlledBy(&rs, of) })
}

// recorded waits until the records have these numbers.
func (w *world) recorded(o client.Object, numbers ...int64) {
	w.t.Helper()
	w.eventually("records", func() error {
		all, _ := w.records.Revisions(w.t.Context(), o.GetUID())
		var got []int64
		for _, r := range all {
			got = append(got, r.Number)
		}
		if diff := gocmp.Diff(numbers, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// history waits until `kubectl rollout history` shows these revisions, given as number and image.
func (w *world) history(o client.Object, want ...string) {
	w.t.Helper()
	gvk, err := w.hub.GroupVersionKindFor(o)
	w.must(err)
	viewer, err := polymorphichelpers.HistoryViewerFor(gvk.GroupKind(), w.kube)
	w.must(err)
	w.eventually("rollout history of "+o.GetName(), func() error {
		shown, err := viewer.GetHistory(w.ns, o.GetName())
		if err != nil {
			return err
		}
		var got []string
		for number, r := range shown {
			var template corev1.PodTemplateSpec
			switch r := r.(type) {
			case *appsv1.ReplicaSet:
				template = r.Spec.Template
			case *appsv1.StatefulSet:
				template = r.Spec.Template
			case *appsv1.DaemonSet:
				template = r.Spec.Template
			}
			got = append(got, fmt.Sprint(number, " ", template.Spec.Containers[0].Image))
		}
		slices.Sort(got)
		if diff := gocmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// undo runs `kubectl rollout undo --to-revision`; 0 is the previous revision.
func (w *world) undo(o client.Object, to int64) string {
	w.t.Helper()
	gvk, err := w.hub.GroupVersionKindFor(o)
	w.must(err)
	rollbacker, err := polymorphichelpers.RollbackerFor(gvk.GroupKind(), w.kube)
	w.must(err)
	said, err := rollbacker.Rollback(o, nil, to, cmdutil.DryRunNone)
	w.must(err)
	w.must(w.hub.Get(w.t.Context(), client.ObjectKeyFromObject(o), o))
	return said
}

// helmIsReady reports whether Helm's --wait would end.
func (w *world) helmIsReady(d *appsv1.Deployment) bool {
	w.t.Helper()
	var said []string
	checker := kube.NewReadyChecker(w.kube, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
	o := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: d.ObjectMeta, Spec: d.Spec}
	ready, err := checker.IsReady(w.t.Context(), &resource.Info{Namespace: w.ns, Name: d.Name, Object: runtime.Object(o)})
	w.must(err)
	if !ready {
		w.t.Log("helm: ", said)
	}
	return ready
}

func (w *world) deployment(name string, labels map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: podTemplate("a"),
		},
	}
}

// TestHelmWaits: Helm 3 waits for the ReplicaSet with a Deployment's pod template, and for its
// ready replicas.
func TestHelmWaits(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("web", map[string]string{"app.kubernetes.io/managed-by": "Helm"})
	w.place(d)
	// current waits until check accepts the ReplicaSet of the Deployment's template.
	current := func(what string, check func(rs *appsv1.ReplicaSet) bool) {
		t.Helper()
		w.eventually(what, func() error {
			for _, rs := range w.replicaSets(d) {
				if rs.Spec.Template.Spec.Containers[0].Image == d.Spec.Template.Spec.Containers[0].Image && check(&rs) {
					return nil
				}
			}
			return fmt.Errorf("there are %+v", w.replicaSets(d))
		})
	}
	ready := func(n int32) func(rs *appsv1.ReplicaSet) bool {
		return func(rs *appsv1.ReplicaSet) bool {
			return rs.Status.ReadyReplicas == n && rs.Status.ObservedGeneration == rs.Generation && *rs.Spec.Replicas == 0
		}
	}
	current("a ReplicaSet from the first revision on", ready(0))
	if w.helmIsReady(d) {
		t.Error("Helm is done before any cluster has answered")
	}
	w.says(d, corev1.ConditionFalse, 4, 4, 2)
	current("replicas, ready in one of two clusters", func(rs *appsv1.ReplicaSet) bool { return rs.Status.Replicas == 4 })
	if w.helmIsReady(d) {
		t.Error("Helm is done while a cluster has none")
	}
	w.says(d, corev1.ConditionTrue, 4, 4, 4)
	current("replicas that are ready", ready(4))
	if !w.helmIsReady(d) {
		t.Error("Helm waits although all is ready")
	}

	edit(w, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "b" })
	current("a ReplicaSet of the second revision", ready(0))
	if w.helmIsReady(d) {
		t.Error("Helm takes the old replicas for the new ones")
	}
	w.numbered(d, "2")
	w.says(d, corev1.ConditionTrue, 5, 2, 5)
	current("replicas, some of them new", func(rs *appsv1.ReplicaSet) bool { return rs.Status.Replicas == 2 })
	if w.helmIsReady(d) {
		t.Error("Helm is done while old replicas are left")
	}
	w.says(d, corev1.ConditionTrue, 4, 4, 4)
	current("new replicas that are ready", ready(4))
	if !w.helmIsReady(d) {
		t.Error("Helm waits although the update is done")
	}
}

// TestHistoryFromTheSecondRevisionOn: a Deployment with one revision has no objects on the hub.
func TestHistoryFromTheSecondRevisionOn(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("web", nil) // without annotations, where kubectl cannot replace them
	w.place(d)
	w.recorded(d, 1)
	if all := w.replicaSets(d); len(all) > 0 {
		t.Errorf("the first revision has ReplicaSets: %+v", all)
	}
	edit(w, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "b" })
	w.history(d, "1 a", "2 b")
	edit(w, d, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Image = "c"
		d.Annotations = map[string]string{causeAnnotation: "c is best", "team": "shop"}
	})
	w.history(d, "1 a", "2 b", "3 c")
	w.eventually("the cause is shown", func() error {
		viewer, err := polymorphichelpers.HistoryViewerFor(kinds[0], w.kube)
		w.must(err)
		text, err := viewer.ViewHistory(w.ns, d.Name, 0)
		if err != nil || !strings.Contains(text, "c is best") {
			return fmt.Errorf("%s, %w", text, err)
		}
		return nil
	})
	w.eventually("the Deployment shows its revision", func() error {
		w.must(w.hub.Get(t.Context(), client.ObjectKeyFromObject(d), d))
		if n := d.Annotations[numberAnnotation]; n != "3" {
			return fmt.Errorf("it is %q", n)
		}
		return nil
	})
	if all := w.replicaSets(d); slices.ContainsFunc(all, func(rs appsv1.ReplicaSet) bool { return *rs.Spec.Replicas != 0 }) {
		t.Errorf("a ReplicaSet asks for replicas: %+v", all)
	}
}

// TestUndo: undoing a rollout restores the old pod template under a new number.
func TestUndo(t *testing.T) {
	w := newWorld(t)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d := w.deployment("web", nil)
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "db"},
		Spec:       appsv1.StatefulSetSpec{Selector: selector, Template: podTemplate("a")},
	}
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "log"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: podTemplate("a")},
	}
	rollout := map[client.Object]func(image string){
		d: func(image string) {
			edit(w, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image })
		},
		s: func(image string) {
			edit(w, s, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = image })
		},
		ds: func(image string) {
			edit(w, ds, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = image })
		},
	}
	for _, o := range []client.Object{d, s, ds} {
		t.Run(o.GetName(), func(t *testing.T) {
			w.place(o)
			w.recorded(o, 1)
			rollout[o]("b")
			w.history(o, "1 a", "2 b")
			rollout[o]("c")
			w.history(o, "1 a", "2 b", "3 c")
			if said := w.undo(o, 3); !strings.Contains(said, "skipped") {
				t.Errorf("undo to what is there says %q", said)
			}
			w.undo(o, 0)
			w.history(o, "1 a", "3 c", "4 b")
			w.undo(o, 1)
			w.history(o, "3 c", "4 b", "5 a")
			w.recorded(o, 3, 4, 5)
		})
	}
}

// TestRecordsAreLost: without its records a hub keeps its history, and a restart changes nothing.
func TestRecordsAreLost(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("web", nil)
	w.place(d)
	w.recorded(d, 1)
	edit(w, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "b" })
	w.history(d, "1 a", "2 b")
	w.numbered(d, "2")
	w.says(d, corev1.ConditionTrue, 2, 2, 2)
	w.eventually("the history is at rest", func() error {
		if !slices.ContainsFunc(w.replicaSets(d), func(rs appsv1.ReplicaSet) bool { return rs.Status.ReadyReplicas == 2 }) {
			return fmt.Errorf("it is %+v", w.replicaSets(d))
		}
		return nil
	})
	before := w.replicaSets(d)

	w.stop()
	w.must(w.records.DeleteRevisions(t.Context(), d.UID))
	w.writes.forget()
	w.start()
	w.recorded(d, 1, 2)
	// Objects that are placed after the restart are handled after the others.
	last := w.deployment("last", map[string]string{"app.kubernetes.io/managed-by": "Helm"})
	w.place(last)
	w.eventually("another is looked at", func() error {
		if len(w.replicaSets(last)) == 0 {
			return errors.New("it was not")
		}
		return nil
	})
	if diff := gocmp.Diff(before, w.replicaSets(d)); diff != "" {
		t.Errorf("losing the records changed the ReplicaSets: -before +after:\n%s", diff)
	}
	if all := w.writes.of("web"); len(all) > 0 {
		t.Errorf("writes to the hub after a restart: %v", all)
	}

	// Unreadable records block no rollout.
	full := errors.New("disk full")
	w.records.failure.Store(&full)
	edit(w, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "c" })
	w.history(d, "1 a", "2 b", "3 c")
	w.records.failure.Store(nil)
	w.recorded(d, 1, 2, 3)
}

// TestUnplaced: a workload that is not placed has no history.
func TestUnplaced(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("web", map[string]string{"app.kubernetes.io/managed-by": "Helm"})
	b := w.place(d)
	w.recorded(d, 1)
	alone := w.deployment("alone", map[string]string{"app.kubernetes.io/managed-by": "Helm"})
	w.must(w.hub.Create(t.Context(), alone))
	w.must(w.hub.Delete(t.Context(), b))
	w.recorded(d)
	if all := w.replicaSets(alone); len(all) > 0 {
		t.Errorf("a Deployment that is not placed has ReplicaSets: %+v", all)
	}
	if all := w.replicaSets(d); len(all) != 1 {
		t.Errorf("leaving the placement changed the history on the hub: %+v", all)
	}
}

// TestOrphanedHistoryGoes: a workload that is deleted with propagation Orphan leaves no history on
// the hub, although the garbage collector leaves its dependents. The test acts as the collector.
func TestOrphanedHistoryGoes(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("web", nil)
	b := w.place(d)
	w.recorded(d, 1)
	edit(w, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "b" })
	w.history(d, "1 a", "2 b")
	left := w.replicaSets(d)
	edit(w, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.DeletionPropagation = metav1.DeletePropagationOrphan })
	w.must(w.hub.Delete(t.Context(), b))
	theirs := left[0].DeepCopy()
	theirs.ObjectMeta = metav1.ObjectMeta{Namespace: w.ns, Name: "theirs", Labels: left[0].Labels}
	w.must(w.hub.Create(t.Context(), theirs))
	for i := range left {
		edit(w, &left[i], func(rs *appsv1.ReplicaSet) { rs.OwnerReferences = nil })
	}
	w.eventually("the ReplicaSets are deleted", func() error {
		var all appsv1.ReplicaSetList
		w.must(w.hub.List(t.Context(), &all, client.InNamespace(w.ns)))
		if len(all.Items) != 1 || all.Items[0].Name != theirs.Name {
			return fmt.Errorf("there are %d", len(all.Items))
		}
		return nil
	})
	w.recorded(d)
}
