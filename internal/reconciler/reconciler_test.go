package reconciler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

var errBoom = errors.New("boom")

// counter counts the writes that go through a client.
type counter struct {
	client.Client

	writes int
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	cfg := testenv.Config(0)
	if err := testenv.InstallCRDs(cfg, "clusters.cluster.orrery.dev"); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := clusterv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	direct, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	c.Client = interceptor.NewClient(direct, interceptor.Funcs{
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			c.writes++
			return w.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			c.writes++
			return w.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	return c
}

func newCluster(t *testing.T, c client.Client) *clusterv1alpha1.Cluster {
	t.Helper()
	o := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "loop-"},
		Spec: clusterv1alpha1.ClusterSpec{
			APIEndpoint: "https://127.0.0.1:1", SecretRef: clusterv1alpha1.SecretReference{Namespace: "a", Name: "b"},
		},
	}
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func conditions(o *clusterv1alpha1.Cluster) *[]metav1.Condition { return &o.Status.Conditions }

// said returns a condition without times.
func said(conditionType string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: status, Reason: reason, ObservedGeneration: 1}
}

func TestOutcomes(t *testing.T) {
	c := newCounter(t)
	type run struct {
		first, second error
		nonBlocking   bool
	}
	cases := map[string]struct {
		before *run // an earlier reconcile
		run    run
		want   []metav1.Condition
		result ctrl.Result
		err    error
	}{
		"AllDone": {
			run: run{second: Done("Fine", "as it should be")},
			want: []metav1.Condition{
				said("First", "True", "First"), said("Second", "True", "Fine"), said("Ready", "True", "Ready"),
			},
		},
		"StalledStopsTheRest": {
			run: run{first: Stalled("Wrong", "spec.x is wrong")},
			want: []metav1.Condition{
				said("First", "False", "Wrong"), said("Second", "Unknown", "WaitingForFirst"), said("Ready", "False", "Wrong"),
			},
		},
		"WaitingLooksAgain": {
			run: run{second: Waiting("NotYet", time.Minute, "not yet")},
			want: []metav1.Condition{
				said("First", "True", "First"), said("Second", "False", "NotYet"), said("Ready", "False", "NotYet"),
			},
			result: ctrl.Result{RequeueAfter: time.Minute},
		},
		"WrappedOutcomeIsStillOne": {
			run: run{second: fmt.Errorf("second: %w", Waiting("NotYet", 0, "not yet"))},
			want: []metav1.Condition{
				said("First", "True", "First"), said("Second", "False", "NotYet"), said("Ready", "False", "NotYet"),
			},
		},
		"UnknownKeepsWhatTheRestSaid": {
			before: &run{},
			run:    run{first: Unknown("Silent", time.Second, "no answer")},
			want: []metav1.Condition{
				said("First", "Unknown", "Silent"), said("Second", "True", "Second"), said("Ready", "Unknown", "Silent"),
			},
			result: ctrl.Result{RequeueAfter: time.Second},
		},
		"UnknownFromTheStart": {
			run: run{first: Unknown("Silent", 0, "no answer")},
			want: []metav1.Condition{
				said("First", "Unknown", "Silent"), said("Second", "Unknown", "WaitingForFirst"), said("Ready", "Unknown", "Silent"),
			},
		},
		"ErrorIsRetriedAndKeepsWhatTheRestSaid": {
			before: &run{},
			run:    run{first: errBoom},
			want: []metav1.Condition{
				said("First", "False", "Error"), said("Second", "True", "Second"), said("Ready", "False", "Error"),
			},
			err: errBoom,
		},
		"NonBlockingLetsTheRestRun": {
			run: run{first: Waiting("Partly", 2*time.Second, "some"), second: Waiting("NotYet", time.Second, "not yet"), nonBlocking: true},
			want: []metav1.Condition{
				said("First", "False", "Partly"), said("Second", "False", "NotYet"), said("Ready", "False", "Partly"),
			},
			result: ctrl.Result{RequeueAfter: time.Second},
		},
		"NonBlockingErrorAndTheRestDone": {
			run: run{first: errBoom, nonBlocking: true},
			want: []metav1.Condition{
				said("First", "False", "Error"), said("Second", "True", "Second"), said("Ready", "False", "Error"),
			},
			err: errBoom,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := newCluster(t, c)
			var now run
			loop := &Loop[*clusterv1alpha1.Cluster]{
				Client: c, Conditions: conditions,
				Steps: []Step[*clusterv1alpha1.Cluster]{
					{Condition: "First", NonBlocking: tc.run.nonBlocking, Run: func(context.Context, *clusterv1alpha1.Cluster) error { return now.first }},
					{Condition: "Second", Run: func(context.Context, *clusterv1alpha1.Cluster) error { return now.second }},
				},
			}
			req := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}
			if tc.before != nil {
				now = *tc.before
				if _, err := loop.Reconcile(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			now = tc.run
			c.writes = 0
			for round, wantWrites := range []int{1, 1} {
				result, err := loop.Reconcile(t.Context(), req)
				if !errors.Is(err, tc.err) {
					t.Errorf("round %d: error %v, want %v", round, err, tc.err)
				}
				if diff := cmp.Diff(tc.result, result); diff != "" {
					t.Errorf("round %d: result (-want +got):\n%s", round, diff)
				}
				if c.writes != wantWrites {
					t.Errorf("round %d: %d writes in all, want %d", round, c.writes, wantWrites)
				}
			}
			if err := c.Get(t.Context(), req.NamespacedName, o); err != nil {
				t.Fatal(err)
			}
			ignore := cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime", "Message")
			if diff := cmp.Diff(tc.want, o.Status.Conditions, ignore); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatusAndFinalizer(t *testing.T) {
	c := newCounter(t)
	const finalizer = "orrery.dev/test"
	finish := Waiting("Busy", time.Second, "not yet")
	loop := &Loop[*clusterv1alpha1.Cluster]{
		Client: c, Conditions: conditions, Finalizer: finalizer,
		Finalize: func(context.Context, *clusterv1alpha1.Cluster) error { return finish },
		Steps: []Step[*clusterv1alpha1.Cluster]{{Condition: "First", Run: func(_ context.Context, o *clusterv1alpha1.Cluster) error {
			o.Status.ID = "seen"
			return nil
		}}},
	}
	o := newCluster(t, c)
	key := client.ObjectKeyFromObject(o)
	reconcile := func() ctrl.Result {
		t.Helper()
		result, err := loop.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}

	reconcile()
	if err := c.Get(t.Context(), key, o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{finalizer}, o.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	if o.Status.ID != "seen" || c.writes != 2 {
		t.Errorf("status.id %q after %d writes, want what the step set after 2", o.Status.ID, c.writes)
	}

	if err := c.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if result := reconcile(); result.RequeueAfter != time.Second {
		t.Errorf("result %v while finalizing, want to look again after 1s", result)
	}
	if err := c.Get(t.Context(), key, o); err != nil {
		t.Fatal(err)
	}
	if got := o.Status.Conditions[len(o.Status.Conditions)-1]; got.Type != "Ready" || got.Reason != "Busy" {
		t.Errorf("last condition %v, want Ready to say Busy", got)
	}

	finish = nil
	reconcile()
	if err := c.Get(t.Context(), key, o); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want the object gone", err)
	}
	reconcile() // a missing object is fine
}

// TestStepThatDoesNotApply: a step that does not apply to an object sets no condition, and
// removes one from before.
func TestStepThatDoesNotApply(t *testing.T) {
	c := newCounter(t)
	o := newCluster(t, c)
	applies := true
	loop := &Loop[*clusterv1alpha1.Cluster]{
		Client: c, Conditions: conditions,
		Steps: []Step[*clusterv1alpha1.Cluster]{
			{
				Condition: "First", Applies: func(*clusterv1alpha1.Cluster) bool { return applies },
				Run: func(context.Context, *clusterv1alpha1.Cluster) error { return Stalled("Wrong", "spec.x is wrong") },
			},
			{Condition: "Second", Run: func(context.Context, *clusterv1alpha1.Cluster) error { return nil }},
		},
	}
	for _, applies = range []bool{true, false} {
		if _, err := loop.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	want := []metav1.Condition{said("Second", "True", "Second"), said("Ready", "True", "Ready")}
	ignore := cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime", "Message")
	if diff := cmp.Diff(want, o.Status.Conditions, ignore); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

func TestConflictIsNotReported(t *testing.T) {
	c := newCounter(t)
	o := newCluster(t, c)
	loop := &Loop[*clusterv1alpha1.Cluster]{
		Client: c, Conditions: conditions,
		Steps: []Step[*clusterv1alpha1.Cluster]{{Condition: "First", Run: func(ctx context.Context, o *clusterv1alpha1.Cluster) error {
			// Another client writes between the read and the write of the loop.
			other := o.DeepCopy()
			other.Labels = map[string]string{"changed": "meanwhile"}
			return c.Update(ctx, other)
		}}},
	}
	result, err := loop.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("result %v, error %v; want to look again without an error", result, err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	if len(o.Status.Conditions) > 0 {
		t.Errorf("conditions %v were written from an old read", o.Status.Conditions)
	}
}

func TestSetCondition(t *testing.T) {
	var conds []metav1.Condition
	if !SetCondition(&conds, metav1.Condition{Type: "A", Status: "True", Reason: "One"}, 1) {
		t.Error("a new condition is no change")
	}
	past := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	conds[0].LastTransitionTime = past
	if SetCondition(&conds, metav1.Condition{Type: "A", Status: "True", Reason: "One"}, 1) {
		t.Error("the same condition is a change")
	}
	if !SetCondition(&conds, metav1.Condition{Type: "A", Status: "True", Reason: "Two"}, 2) {
		t.Error("another reason is no change")
	}
	want := []metav1.Condition{{Type: "A", Status: "True", Reason: "Two", ObservedGeneration: 2, LastTransitionTime: past}}
	if diff := cmp.Diff(want, conds); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}
