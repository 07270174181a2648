package lifecycle_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/provision"
	"orrery.dev/orrery/internal/testenv"
)

// onHub returns a client of an API server with the hub's kinds and one Operation, oak-1.
func onHub(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1alpha1.AddToScheme(scheme), lifecyclev1alpha1.AddToScheme(scheme), testenv.InstallCRDs(testenv.Config(0)))
	if err != nil {
		t.Fatal(err)
	}
	hub, err := client.New(testenv.Config(0), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	if err := hub.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	op := &lifecyclev1alpha1.Operation{
		ObjectMeta: metav1.ObjectMeta{Name: "oak-1"},
		Spec:       lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate, Deadline: &metav1.Duration{Duration: 3 * patience}},
	}
	if err := hub.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := errors.Join(
			hub.DeleteAllOf(ctx, &lifecyclev1alpha1.Operation{}), hub.DeleteAllOf(ctx, &lifecyclev1alpha1.OperationSlice{}),
			hub.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(clusterv1alpha1.SecretNamespace)))
		if err != nil {
			t.Error(err)
		}
	})
	return hub
}

// everything lists all objects, as the cache's index of clusters would: there is only one cluster
// here.
type everything struct{ client.Client }

func (e everything) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return e.Client.List(ctx, list)
}

// TestManyHostsOnHub: a run over many hosts is killed in the middle. The next server resumes from
// the records, but verifies them. In the end every step is in a slice, and the Operation is small.
func TestManyHostsOnHub(t *testing.T) {
	const n = 60
	l := newLab(t, n, 1)
	hub := onHub(t)
	server := func(name string) *provision.Store {
		return &provision.Store{Client: hub, Cached: everything{hub}, Logs: t.TempDir(), Holder: name, Lost: func(string) {}}
	}
	p := l.mortal()
	run := func(store *provision.Store, at func(step string) bool) (*lifecyclev1alpha1.Operation, error) {
		t.Helper()
		l.env.Store = mortalStore{store, p}
		op, err := store.Operation(t.Context(), "oak-1")
		if err != nil {
			t.Fatal(err)
		}
		ctx := p.start(t.Context(), at)
		err = l.engine.Run(ctx, op, l.spec)
		p.end()
		return op, err
	}
	// The record is written in the background, after a moment. A run without a record cannot be
	// resumed.
	_, err := run(server("one"), func(step string) bool {
		if step != "h-30 kubelet/unit" {
			return false
		}
		testenv.Eventually(t, "steps are kept", patience, func() error {
			kept := &lifecyclev1alpha1.OperationSliceList{}
			if err := hub.List(t.Context(), kept); err != nil || len(kept.Items) > 0 {
				return err
			}
			return errors.New("no slices")
		})
		return true
	})
	if err == nil || !p.killed.Load() {
		t.Fatalf("the run was not killed: %v", err)
	}

	l.kubelets()

	// Somebody changes all slices to say that everything is done.
	slices := &lifecyclev1alpha1.OperationSliceList{}
	if err := hub.List(t.Context(), slices); err != nil {
		t.Fatal(err)
	}
	if len(slices.Items) == 0 {
		t.Error("the killed server has kept no steps")
	}
	for _, o := range slices.Items {
		for i := range o.Steps {
			o.Steps[i].State = lifecyclev1alpha1.StepChanged
		}
		for _, id := range []string{"kubelet/config", "kubelet/unit"} {
			o.Steps = append(o.Steps, lifecyclev1alpha1.StepRecord{Host: o.Host, ID: id, State: lifecyclev1alpha1.StepChanged, Attempt: 1})
		}
		if err := hub.Update(t.Context(), &o); err != nil {
			t.Fatal(err)
		}
	}

	two := server("two")
	if _, err := run(two, nil); err != nil {
		t.Fatal(err)
	}
	op, err := two.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(op)
	if err != nil {
		t.Fatal(err)
	}
	st := op.Status
	if st.Phase != lifecyclev1alpha1.PhaseSucceeded || st.Attempt != 2 || st.StepsDone != st.StepsTotal || st.StepsDone == 0 || len(st.Hosts) < n {
		t.Errorf("phase %s, attempt %d, %d of %d steps on %d hosts", st.Phase, st.Attempt, st.StepsDone, st.StepsTotal, len(st.Hosts))
	}
	if len(st.Steps) > 100 || len(text) > 80<<10 {
		t.Errorf("the Operation has %d bytes and %d steps", len(text), len(st.Steps))
	}
	steps, err := two.Steps(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]int{}
	for _, s := range steps {
		if s.State == lifecyclev1alpha1.StepChanged || s.State == lifecyclev1alpha1.StepUnchanged {
			ended[s.Host]++
		}
	}
	worked := 0
	for _, h := range st.Hosts {
		if h.Name != "cluster" && !l.runs(t.Context(), h.Name, "orrery-kubelet") {
			t.Errorf("host %s runs no kubelet: a record was believed", h.Name)
		}
		if ended[h.Name] < int(h.Done) {
			t.Errorf("%d steps of host %s are kept, of %d", ended[h.Name], h.Name, h.Done)
		}
		worked += int(h.Done)
	}
	if worked == 0 || ended["cluster"] == 0 {
		t.Errorf("%d steps were done on hosts, and %d of the cluster are kept", worked, ended["cluster"])
	}
}

// TestReadBeforeLock: an Operation that another process has run since it was read is not run, and
// its record is not overwritten.
func TestReadBeforeLock(t *testing.T) {
	l := newLab(t, 1, 1)
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}}
	if err := l.store.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	stale := op.DeepCopy()
	if err := l.engine.Run(t.Context(), op, l.spec); err != nil {
		t.Fatal(err)
	}
	before := l.kept(op.Name)
	says(t, l.engine.Run(t.Context(), stale, l.spec), "another process has run it", "Succeeded")
	if after := l.kept(op.Name); after.Status.Attempt != before.Status.Attempt || len(after.Status.Steps) != len(before.Status.Steps) {
		t.Errorf("the record has attempt %d and %d steps", after.Status.Attempt, len(after.Status.Steps))
	}
}
