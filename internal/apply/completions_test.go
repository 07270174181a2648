package apply

import (
	"encoding/json"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// dividedJob is a Job of six completions, two of which run at once.
const dividedJob = `{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: NAMESPACE}, spec: {parallelism: 2, completions: 6, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`

// parallel divides a parallelism of two into the shares.
func parallel(s *workv1alpha2.BindingSpec, shares ...workv1alpha2.TargetCluster) {
	s.ReplicaSchedulingType, s.Replicas, s.Clusters = policyv1alpha1.Divided, new(int32(2)), shares
}

func parallelIn(cluster string, n int32) workv1alpha2.TargetCluster {
	return workv1alpha2.TargetCluster{Name: cluster, Replicas: &n}
}

// patchStatus changes the status of a binding.
func (f *fleet) patchStatus(b *workv1alpha2.ResourceBinding, status map[string]any) {
	f.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	f.must(err)
	f.must(f.hub.Status().Patch(f.t.Context(), b.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
}

// A cluster that is added runs no completions that other clusters have. This includes bindings
// that do not record how many those are: of an adopted Job, and of one that an earlier version
// created.
func TestAnAddedClusterRunsNoMoreCompletionsThanAsked(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	f.join("elm", testenv.Kubeconfig(elmServer))
	oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	for name, tc := range map[string]struct {
		adopted bool
		runs    []map[string]any // as an earlier version wrote it; nil: keep those of this version
	}{
		"Adopted":       {adopted: true},
		"WithoutCounts": {runs: []map[string]any{{"clusterName": "oak", "phase": workv1alpha2.RunBegan, "time": "2026-01-01T00:00:00Z"}}},
		"WithoutMarks":  {runs: []map[string]any{}},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := f.adoptable(oak)
			template := f.manifestOf(ns, dividedJob)
			if tc.adopted {
				f.has(oak, template, "kubectl-create")
			}
			b := f.bind(template, func(s *workv1alpha2.BindingSpec) { parallel(s, parallelIn("oak", 2)) })
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			made := f.live(oak, template)
			if tc.runs != nil {
				f.stop()
				for _, r := range tc.runs {
					r["templateUID"], r["copyUID"] = template.GetUID(), made.GetUID()
				}
				f.patchStatus(b, map[string]any{"runs": tc.runs})
				f.start()
			}
			f.edit(b, func(s *workv1alpha2.BindingSpec) { parallel(s, parallelIn("elm", 1), parallelIn("oak", 1)) })
			f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			for cluster, want := range map[client.Client]int64{oak: 6, elm: 0} {
				now := f.live(cluster, template)
				if n, _, err := unstructured.NestedInt64(now.Object, "spec", "completions"); err != nil || n != want {
					t.Errorf("%d completions, want %d (%v)", n, want, err)
				}
			}
			f.must(f.hub.Delete(t.Context(), b))
			f.gone(f.hub, b)
		})
	}
	f.unjoin("oak")
	f.unjoin("elm")
}

// A mark is for one cluster, not for its name. Another cluster that joins under the name runs
// the work again; the same cluster that comes back does not.
func TestMarksAreOfOneCluster(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	template := f.manifestOf(ns, dividedJob)
	b := f.bind(template, nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	made := f.live(oak, template)
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if len(b.Status.Runs) != 1 {
		t.Fatalf("the marks are %+v", b.Status.Runs)
	}
	mark, err := json.Marshal(b.Status.Runs[0])
	f.must(err)
	ended := map[string]any{}
	f.must(json.Unmarshal(mark, &ended))
	ended["phase"], ended["copyUID"] = workv1alpha2.RunComplete, made.GetUID()
	f.patchStatus(b, map[string]any{"runs": []any{ended}})
	f.unjoin("oak")
	f.must(oak.Delete(t.Context(), made, client.PropagationPolicy("Background")))
	f.gone(oak, made)

	f.join("oak", testenv.Kubeconfig(oakServer))
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	if err := oak.Get(t.Context(), client.ObjectKeyFromObject(made), made.DeepCopy()); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("what ended there was run again, or cannot be read: %v", err)
	}
	f.unjoin("oak")

	f.join("oak", testenv.Kubeconfig(elmServer))
	f.eventually("another cluster of the name runs it", func() error {
		return elm.Get(t.Context(), client.ObjectKeyFromObject(made), made.DeepCopy())
	})
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if len(b.Status.Runs) != 1 || b.Status.Runs[0].Phase != workv1alpha2.RunBegan {
		t.Errorf("the marks are %+v", b.Status.Runs)
	}
	f.must(f.hub.Delete(t.Context(), b))
	f.eventually("the copy is gone", func() error {
		if err := elm.Get(t.Context(), client.ObjectKeyFromObject(made), made.DeepCopy()); err != nil {
			return client.IgnoreNotFound(err)
		}
		return errors.New("it is there")
	})
	f.unjoin("oak")
}
