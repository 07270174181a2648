package rebalance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, 1)
}

// started starts the controller. It returns a client of its API server, its cache of bindings,
// and a namespace.
func started(t *testing.T) (client.Client, *binding.Cache, string) {
	t.Helper()
	config := testenv.Config(0)
	if err := testenv.InstallCRDs(config); err != nil {
		t.Fatal(err)
	}
	testenv.Leftovers(t, config)
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), appsv1alpha1.AddToScheme(s), workv1alpha2.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: s, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	bindings, err := binding.NewCache(t.Context(), mgr.GetCache())
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(mgr, bindings); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(config, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c, bindings, testenv.Namespace(t, config)
}

func bound(namespace, name string) *workv1alpha2.ResourceBinding {
	return &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-deployment"},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
		},
	}
}

// A template that no policy places gets no new decision, and placed returns false for it.
func TestPlaced(t *testing.T) {
	cases := map[string]struct {
		change func(*workv1alpha2.ResourceBinding)
		want   bool
	}{
		"Placed":          {change: func(b *workv1alpha2.ResourceBinding) { b.Spec.PlacementHash = "h" }, want: true},
		"NotDecidedOnYet": {change: func(*workv1alpha2.ResourceBinding) {}, want: true},
		"Follower": {change: func(b *workv1alpha2.ResourceBinding) {
			b.Spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "web"}}
		}},
		"PlacedAndFollows": {change: func(b *workv1alpha2.ResourceBinding) {
			b.Spec.PlacementHash = "h"
			b.Spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "web"}}
		}, want: true},
		"PolicyGone":    {change: func(b *workv1alpha2.ResourceBinding) { decided(b, workv1alpha2.ReasonPolicyGone) }},
		"NoClusterFits": {change: func(b *workv1alpha2.ResourceBinding) { decided(b, workv1alpha2.ReasonNoClusterFits) }, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := bound("shop", "web")
			tc.change(b)
			if got := placed(b); got != tc.want {
				t.Errorf("placed is %v, want %v", got, tc.want)
			}
		})
	}
}

func decided(b *workv1alpha2.ResourceBinding, reason string) {
	b.Spec.PlacementHash = "h"
	b.Status.Conditions = []metav1.Condition{{Type: workv1alpha2.ConditionScheduled, Reason: reason}}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestSameSecond creates several WorkloadRebalancers within a second or two. Each requests a
// decision that is made after its creation, and none requests two.
func TestSameSecond(t *testing.T) {
	c, known, namespace := started(t)
	web := bound(namespace, "web")
	if err := c.Create(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	asking := &controller{client: c, bindings: known, now: time.Now}
	second := metav1.NewTime(time.Now().Truncate(time.Second))
	next := metav1.NewTime(second.Add(time.Second))
	for _, step := range []struct {
		uid     types.UID
		created metav1.Time
		want    time.Duration // after second
	}{
		{"a", second, 0},
		{"a", second, 0},
		{"b", second, time.Second},
		{"b", second, time.Second},
		{"c", second, 2 * time.Second},
		// The binding was triggered for this second already, but by an older rebalancer.
		{"d", next, 3 * time.Second},
		{"older", second, 3 * time.Second},
		{"e", metav1.NewTime(second.Add(time.Minute)), time.Minute},
	} {
		w := &appsv1alpha1.WorkloadRebalancer{ObjectMeta: metav1.ObjectMeta{Name: string(step.uid), UID: step.uid, CreationTimestamp: step.created}}
		o := appsv1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: "web"}
		eventually(t, "asked", func() error {
			b, ok := known.ByUID(web.UID)
			if !ok || b.ResourceVersion != web.ResourceVersion {
				return errors.New("the cache is behind")
			}
			observed, err := asking.rebalance(t.Context(), w, o)
			if err == nil && observed.Result != appsv1alpha1.RebalanceSuccessful {
				err = fmt.Errorf("observed %+v", observed)
			}
			return err
		})
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(web), web); err != nil {
			t.Fatal(err)
		}
		if want := second.Add(step.want); !web.Spec.RescheduleTriggeredAt.Time.Equal(want) {
			t.Errorf("%s: asked for at %v, want %v", step.uid, web.Spec.RescheduleTriggeredAt, want)
		}
	}
	// A stale cache must not make a rebalancer request a time that the binding already has.
	stale := web.DeepCopy()
	web.Labels = map[string]string{"newer": "true"}
	if err := c.Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	behind := &controller{client: c, bindings: staleBindings{stale}, now: time.Now}
	w := &appsv1alpha1.WorkloadRebalancer{ObjectMeta: metav1.ObjectMeta{Name: "f", UID: "f", CreationTimestamp: metav1.NewTime(second.Add(time.Hour))}}
	o := appsv1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: "web"}
	if _, err := behind.rebalance(t.Context(), w, o); !apierrors.IsConflict(err) {
		t.Errorf("with a cache that is behind: %v, want a conflict", err)
	}
}

// staleBindings is a cache with an outdated version of one binding.
type staleBindings struct{ b *workv1alpha2.ResourceBinding }

func (s staleBindings) Synced() bool { return true }

func (s staleBindings) Of(binding.Template) (b *workv1alpha2.ResourceBinding, others []*workv1alpha2.ResourceBinding) {
	return s.b, nil
}

func TestRebalance(t *testing.T) {
	c, known, namespace := started(t)
	web, db := bound(namespace, "web"), bound(namespace, "db")
	later := metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))
	db.Spec.RescheduleTriggeredAt = &later
	create := func(b *workv1alpha2.ResourceBinding) {
		t.Helper()
		if err := c.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the binding is known", func() error {
			if _, ok := known.ByUID(b.UID); !ok {
				return errors.New("it is not")
			}
			return nil
		})
	}
	dependency := bound(namespace, "dependency")
	dependency.Spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Namespace: namespace, Name: web.Name}}
	create(web)
	create(db)
	create(dependency)
	ref := func(name string) appsv1alpha1.ObjectReference {
		return appsv1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: name}
	}
	w := &appsv1alpha1.WorkloadRebalancer{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec:       appsv1alpha1.WorkloadRebalancerSpec{Workloads: []appsv1alpha1.ObjectReference{ref("web"), ref("none"), ref("db"), ref("dependency")}},
	}
	if err := c.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	finished := func(generation int64) {
		t.Helper()
		eventually(t, "finished", func() error {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(w), w); err != nil {
				return err
			}
			if w.Status.FinishTime == nil || w.Status.ObservedGeneration != generation {
				return fmt.Errorf("status %+v", w.Status)
			}
			return nil
		})
	}
	finished(1)
	const done, failed = appsv1alpha1.RebalanceSuccessful, appsv1alpha1.RebalanceFailed
	want := []appsv1alpha1.ObservedWorkload{
		{Workload: ref("web"), Result: done},
		{Workload: ref("none"), Result: failed, Reason: appsv1alpha1.RebalanceObjectNotFound},
		{Workload: ref("db"), Result: done},
		{Workload: ref("dependency"), Result: failed, Reason: appsv1alpha1.RebalanceNoPolicy},
	}
	if diff := cmp.Diff(want, w.Status.ObservedWorkloads); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
	asked := func(b *workv1alpha2.ResourceBinding, at *metav1.Time) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			t.Fatal(err)
		}
		if !b.Spec.RescheduleTriggeredAt.Equal(at) {
			t.Errorf("%s was asked for at %v, want %v", b.Name, b.Spec.RescheduleTriggeredAt, at)
		}
	}
	asked(web, &w.CreationTimestamp)
	asked(db, &later) // a later request stays
	asked(dependency, nil)

	// A request is made once for each object. An object that was not found is looked up again.
	none := bound(namespace, "none")
	create(none)
	web.Spec.RescheduleTriggeredAt = nil
	if err := c.Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	w.Spec.Workloads = append(w.Spec.Workloads, ref("no-such-thing"))
	w.Spec.Workloads[4].APIVersion = "a/b/c"
	if err := c.Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	finished(2)
	want[1] = appsv1alpha1.ObservedWorkload{Workload: ref("none"), Result: done}
	want = append(want, appsv1alpha1.ObservedWorkload{Workload: w.Spec.Workloads[4], Result: failed, Reason: appsv1alpha1.RebalanceObjectNotFound})
	if diff := cmp.Diff(want, w.Status.ObservedWorkloads); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
	asked(web, nil)
	asked(none, &w.CreationTimestamp)

	// The WorkloadRebalancer is deleted when its time to live is over.
	w.Spec.TTLSecondsAfterFinished = new(int32(0))
	if err := c.Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() error {
		err := c.Get(t.Context(), types.NamespacedName{Name: w.Name}, w)
		if err == nil {
			return errors.New("it is still there")
		}
		return client.IgnoreNotFound(err)
	})
	if err := c.Get(t.Context(), types.NamespacedName{Name: w.Name}, w); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// TestDeletedMeanwhile: a WorkloadRebalancer that is deleted before its status is written is no
// error. Another failure of the write is one.
func TestDeletedMeanwhile(t *testing.T) {
	s := runtime.NewScheme()
	if err := appsv1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	w := &appsv1alpha1.WorkloadRebalancer{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	gone := apierrors.NewNotFound(schema.GroupResource{Group: appsv1alpha1.GroupVersion.Group, Resource: "workloadrebalancers"}, "w")
	for name, tc := range map[string]struct{ answer, want error }{
		"Deleted": {answer: gone},
		"Refused": {answer: errRefused, want: errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fake.NewClientBuilder().WithScheme(s).WithObjects(w.DeepCopy()).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
					return tc.answer
				},
			}).Build()
			c := &controller{client: hub, bindings: staleBindings{}, now: time.Now}
			if _, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w)}); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

var errRefused = errors.New("refused")
