package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/presence"
)

const (
	scheduled = workv1alpha2.ReasonScheduled
	ready     = policyv1alpha1.ConditionReady
	claimed   = policyv1alpha1.ConditionClaimed
	disputed  = policyv1alpha1.ConditionUndisputed
)

func TestOneWrite(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments())
	p.Spec.ConflictResolution = policyv1alpha1.ConflictOverwrite
	p.Spec.PreserveResourcesOnDeletion = new(true)
	w.create(p)
	web := deployment("web", 3, nil)
	w.create(web)

	b := w.waitPlaced("web-deployment", "a=3 b=3", scheduled)
	if diff := cmp.Diff(workv1alpha2.BindingSpec{
		Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: web.UID, Generation: 1},
		PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"}, PlacementHash: hash(p.Spec.Placement),
		Replicas: new(int32(3)), ReplicaSchedulingType: policyv1alpha1.Duplicated, Clusters: b.Spec.Clusters,
		ConflictResolution: policyv1alpha1.ConflictOverwrite, PreserveResourcesOnDeletion: true, OwnerReferenced: true,
	}, b.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if !slices.Contains(b.Finalizers, workv1alpha2.Finalizer) {
		t.Errorf("finalizers %v", b.Finalizers)
	}
	w.waitStatus(p, 1, map[string]string{
		ready: policyv1alpha1.ReasonReady, claimed: policyv1alpha1.ReasonClaimed, disputed: policyv1alpha1.ReasonUndisputed,
	})

	// The template's status and other labels cause no write.
	update(w, web, func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} })
	web.Status.Replicas = 6
	if err := w.client.Status().Update(w.ctx, web); err != nil {
		t.Fatal(err)
	}
	w.create(deployment("last", 1, nil))
	w.waitPlaced("last-deployment", "a=1 b=1", scheduled)
	path := "/apis/work.orrery.dev/v1alpha2/namespaces/" + w.namespace + "/resourcebindings"
	// A refused write counts at first.
	w.eventually("one write to each binding", func() error {
		if diff := cmp.Diff([]string{"POST " + path, "POST " + path}, w.recorder.of(path)); diff != "" {
			return fmt.Errorf("writes (-want +got):\n%s", diff)
		}
		return nil
	})
	if got := w.recorder.of("/apis/apps/"); len(got) > 0 {
		t.Errorf("writes to templates: %v", got)
	}
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	if !w.fleet.required[appsv1.SchemeGroupVersion.WithKind("Deployment")] {
		t.Error("the mirror was not asked for Deployments")
	}
}

func TestRestartWritesNothing(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments())
	p.Spec.Placement.ReplicaScheduling = divided(nil)
	w.create(p)
	other := w.clusterPolicy("other", deployments())
	w.create(other)
	for i := range 10 {
		w.create(deployment(fmt.Sprint("web-", i), 4, nil))
	}
	for i := range 10 {
		w.waitPlaced(fmt.Sprintf("web-%d-deployment", i), "a=2 b=2", scheduled)
	}
	w.waitStatus(p, 10, map[string]string{ready: policyv1alpha1.ReasonReady})

	w.stop()
	w.change(func(f *fakeFleet) { // at first, no cluster has answered
		for _, c := range w.clusters {
			f.unreachable[c], f.presence[c] = true, presence.Unknown
		}
	})
	w.start()
	for i := range 10 {
		w.waitPlaced(fmt.Sprintf("web-%d-deployment", i), "a=2 b=2", scheduled)
	}
	w.change(func(f *fakeFleet) {
		clear(f.unreachable)
		clear(f.presence)
	})
	// When the policy counts one more, all earlier events are handled.
	w.create(deployment("last", 4, nil))
	w.waitPlaced("last-deployment", "a=2 b=2", scheduled)
	w.waitStatus(p, 11, nil)
	// A refused write counts at first.
	w.eventually("one write to a binding, and one of the policy's status", func() error {
		if got := w.recorder.of("/resourcebindings"); len(got) != 1 {
			return fmt.Errorf("writes to bindings: %v", got)
		}
		if got := w.recorder.of("/propagationpolicies/p/status"); len(got) != 1 {
			return fmt.Errorf("writes of policy status: %v", got)
		}
		return nil
	})
}

// TestNewWorkloadsWaitForTheFleet: a cluster that was ready in the last process gets its share of a
// new workload, even if it was not asked yet. A workload that is placed whole does not wait.
func TestNewWorkloadsWaitForTheFleet(t *testing.T) {
	w := newWorld(t, 2)
	w.stop()
	c := &clusterv1alpha1.Cluster{}
	if err := w.client.Get(w.ctx, client.ObjectKey{Name: w.clusters[1]}, c); err != nil {
		t.Fatal(err)
	}
	c.Status.Conditions = []metav1.Condition{{
		Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now(),
	}}
	if err := w.client.Status().Update(w.ctx, c); err != nil {
		t.Fatal(err)
	}
	w.fleet.unreachable[w.clusters[1]] = true
	split := w.policy("split", policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: "split"})
	split.Spec.Placement.ReplicaScheduling = divided(nil)
	w.create(split)
	w.create(w.policy("whole", deployments()))
	w.create(deployment("split", 4, nil))
	w.create(deployment("whole", 4, nil))
	w.start()
	w.waitPlaced("whole-deployment", "a=4", scheduled)
	w.waitStatus(split, 1, map[string]string{ready: policyv1alpha1.ReasonReady}) // it was decided
	if b := w.binding("split-deployment"); b != nil {
		t.Errorf("placed %q too early", w.placed(b))
	}
	w.change(func(f *fakeFleet) { clear(f.unreachable) })
	if b := w.waitPlaced("split-deployment", "a=2 b=2", scheduled); b.Generation != 1 {
		t.Errorf("placed %d times", b.Generation)
	}
	w.waitPlaced("whole-deployment", "a=4 b=4", scheduled)
}

func TestClaimPrecedence(t *testing.T) {
	w := newWorld(t, 1)
	web := deployment("web", 1, map[string]string{"app": "web"})
	w.create(web)
	wide := w.clusterPolicy("wide", deployments())
	wide.Spec.Priority = 100
	w.create(wide)
	follow := func(kind, name string) {
		t.Helper()
		w.eventually("policy of web", func() error {
			if b := w.binding("web-deployment"); b == nil || b.Spec.PolicyRef.Kind != kind || b.Spec.PolicyRef.Name != name {
				return fmt.Errorf("binding follows %+v, want %s %s", b, kind, name)
			}
			return nil
		})
	}
	follow("ClusterPropagationPolicy", wide.Name)

	z := w.policy("z", deployments())
	w.create(z)
	follow("PropagationPolicy", "z")
	w.waitStatus(wide, 0, map[string]string{
		ready: policyv1alpha1.ReasonLostClaim, claimed: policyv1alpha1.ReasonLostClaim, disputed: policyv1alpha1.ReasonLostClaim,
	}, fmt.Sprintf("Deployment %s/web: overruled by PropagationPolicy %s/z (", w.namespace, w.namespace))

	a := w.policy("a", deployments())
	w.create(a)
	follow("PropagationPolicy", "a")
	update(w, z, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.ResourceSelectors[0].Name = "web" })
	follow("PropagationPolicy", "z")
	update(w, a, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Priority = 1 })
	follow("PropagationPolicy", "a")
	for i := range 5 {
		w.create(deployment(fmt.Sprint("more-", i), 1, nil))
	}
	w.waitStatus(a, 6, map[string]string{ready: policyv1alpha1.ReasonReady})
	update(w, z, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.ResourceSelectors[0].Name = "" })
	w.waitStatus(z, 0, map[string]string{disputed: policyv1alpha1.ReasonLostClaim}, "and 3 more")

	w.delete(a)
	follow("PropagationPolicy", "z")
	w.waitStatus(z, 6, map[string]string{ready: policyv1alpha1.ReasonReady})
}

func TestPolicyGoneKeepsPlacement(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments())
	p.Spec.Placement.ReplicaScheduling = divided(nil)
	w.create(p)
	web := deployment("web", 4, nil)
	w.create(web)
	before := w.waitPlaced("web-deployment", "a=2 b=2", scheduled)
	w.delete(p)
	b := w.waitPlaced("web-deployment", "a=2 b=2", workv1alpha2.ReasonPolicyGone)
	if b.ResourceVersion != before.ResourceVersion {
		t.Error("the binding was written")
	}
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(8)) })
	w.waitPlaced("web-deployment", "a=4 b=4", workv1alpha2.ReasonPolicyGone)

	// Deleting the template still ends the placement, also while no controller runs.
	w.stop()
	w.delete(web)
	w.start()
	w.release(b)
	if w.binding("web-deployment") != nil {
		t.Error("the binding is there again")
	}
}

func TestPolicyEdit(t *testing.T) {
	w := newWorld(t, 3)
	p := w.policy("p", deployments())
	w.create(p)
	w.create(deployment("web", 6, map[string]string{"app": "web"}))
	w.create(deployment("api", 6, map[string]string{"app": "api"}))
	w.waitPlaced("web-deployment", "a=6 b=6 c=6", scheduled)
	w.waitPlaced("api-deployment", "a=6 b=6 c=6", scheduled)

	update(w, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.Placement.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ClusterNames: w.clusters[:2]}
		p.Spec.Placement.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{StaticWeightList: []policyv1alpha1.StaticClusterWeight{
			{TargetCluster: policyv1alpha1.ClusterAffinity{ClusterNames: w.clusters[:1]}, Weight: 2},
			{TargetCluster: *w.here(), Weight: 1},
		}})
	})
	// Replicas that move stay in the old cluster until they are available in the new one.
	b := w.waitPlaced("web-deployment", "a=4 b=2 -a=2 -b=4 -c=6", scheduled)
	if b.Spec.ReplicaSchedulingType != policyv1alpha1.Divided {
		t.Errorf("the binding says %s", b.Spec.ReplicaSchedulingType)
	}
	w.waitPlaced("api-deployment", "a=4 b=2 -a=2 -b=4 -c=6", scheduled)
	w.change(func(f *fakeFleet) {
		f.copied[w.clusters[0]], f.copied[w.clusters[1]], f.copied[w.clusters[2]] = 4, 2, 0
	})
	w.waitPlaced("api-deployment", "a=4 b=2", scheduled)
	w.waitPlaced("web-deployment", "a=4 b=2", scheduled)

	update(w, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.ResourceSelectors[0].LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	})
	w.waitPlaced("api-deployment", "a=4 b=2", workv1alpha2.ReasonPolicyGone)
	w.waitPlaced("web-deployment", "a=4 b=2", scheduled)
	w.waitStatus(p, 1, map[string]string{ready: policyv1alpha1.ReasonReady})
}

// TestPolicyEditThatChangesNothing: an edit of a policy that changes no decision writes nothing,
// and moves nothing.
func TestPolicyEditThatChangesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.change(func(f *fakeFleet) { f.capacity[w.clusters[0]], f.capacity[w.clusters[1]] = 10, 10 })
	p := w.policy("p", deployments())
	p.Spec.Placement.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{
		DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas,
	})
	w.create(p)
	for i := range 3 {
		w.create(deployment(fmt.Sprint("web-", i), 4, nil))
	}
	for i := range 3 {
		w.waitPlaced(fmt.Sprintf("web-%d-deployment", i), "a=2 b=2", scheduled)
	}
	before := len(w.recorder.of("/resourcebindings"))

	// If they were divided again, everything would move to the second cluster.
	w.change(func(f *fakeFleet) { f.capacity[w.clusters[0]], f.capacity[w.clusters[1]] = 0, 1000 })
	update(w, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.Priority = 7
		p.Spec.ResourceSelectors = append(p.Spec.ResourceSelectors, policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Name: "none"})
	})
	w.eventually("decisions of the edited policy", func() error {
		for i := range 3 {
			made := w.records.of(fmt.Sprint("web-", i))
			if last := made[len(made)-1]; last.Claimed.Generation != 2 {
				return fmt.Errorf("the last decision is of generation %d", last.Claimed.Generation)
			}
		}
		return nil
	})
	if writes := w.recorder.of("/resourcebindings"); len(writes) != before {
		t.Errorf("writes to bindings: %v", writes[before:])
	}
	for i := range 3 {
		w.waitPlaced(fmt.Sprintf("web-%d-deployment", i), "a=2 b=2", scheduled)
	}
}

func TestScale(t *testing.T) {
	w := newWorld(t, 2)
	w.stop()
	w.capacityRetry = shortRetry
	w.start()
	w.change(func(f *fakeFleet) { f.capacity[w.clusters[0]], f.capacity[w.clusters[1]] = 30, 10 })
	p := w.policy("p", deployments())
	p.Spec.Placement.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{
		DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas,
	})
	w.create(p)
	web := deployment("web", 4, nil)
	w.create(web)
	w.waitPlaced("web-deployment", "a=3 b=1", scheduled)
	w.change(func(f *fakeFleet) { f.capacity[w.clusters[0]] = 0 })
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(6)) })
	w.waitPlaced("web-deployment", "a=3 b=3", scheduled)
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(100)) })
	b := w.waitPlaced("web-deployment", "a=3 b=10", workv1alpha2.ReasonInsufficient)
	if *b.Spec.Replicas != 100 {
		t.Errorf("the binding asks for %d", *b.Spec.Replicas)
	}
	if v, _ := w.controller.Outcome(b.UID); v.Status != metav1.ConditionFalse || !strings.Contains(v.Message, "13 of 100 replicas") {
		t.Errorf("outcome %+v", v)
	}
	w.change(func(f *fakeFleet) { f.capacity[w.clusters[1]] = 1000 })
	w.waitPlaced("web-deployment", "a=3 b=97", scheduled)
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(0)) })
	w.waitPlaced("web-deployment", "a=0 b=0", scheduled)
}

func TestFleetChanges(t *testing.T) {
	w := newWorld(t, 2)
	w.create(w.policy("p", deployments()))
	w.create(deployment("web", 1, nil))
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)

	// An unreachable cluster keeps its replicas and gets no new ones.
	w.change(func(f *fakeFleet) { f.unreachable[w.clusters[1]] = true })
	w.create(deployment("api", 1, nil))
	b := w.waitPlaced("api-deployment", "a=1", scheduled)
	if v, _ := w.controller.Outcome(b.UID); !strings.Contains(v.Message, "1 of 2 clusters") || !strings.Contains(v.Message, w.clusters[1]) {
		t.Errorf("message %q", v.Message)
	}
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
	w.change(func(f *fakeFleet) { clear(f.unreachable) })
	w.waitPlaced("api-deployment", "a=1 b=1", scheduled)

	// The same holds for taints. The cluster gets no object that is created after the controller
	// has seen the taint.
	tainted := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: w.clusters[0]}}
	update(w, tainted, func(c *clusterv1alpha1.Cluster) {
		c.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
	})
	w.seen("the taint", func(c *fleet.Cluster) bool { return c != nil && len(c.Taints) == 1 }, w.clusters[0])
	for i := range 5 {
		w.create(deployment(fmt.Sprint("new-", i), 1, nil))
	}
	for i := range 5 {
		b := w.waitPlaced(fmt.Sprintf("new-%d-deployment", i), "b=1", scheduled)
		if b.Generation != 1 {
			t.Errorf("%s was placed %d times", b.Name, b.Generation)
		}
	}
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)

	// A new cluster is used. A cluster that no longer serves the kind keeps its replicas and gets
	// no new ones.
	w.change(func(f *fakeFleet) { f.presence[w.clusters[1]] = presence.Absent })
	w.join("c")
	w.waitPlaced("web-deployment", "a=1 b=1 c=1", scheduled)
	w.create(deployment("late", 1, nil))
	w.waitPlaced("late-deployment", "c=1", scheduled)

	// A cluster that leaves is removed from the placement at once: its replicas do not move.
	w.delete(tainted)
	w.waitPlaced("web-deployment", "b=1 c=1", scheduled)
}

// seen waits until the controller has seen a state of a cluster.
func (w *world) seen(what string, is func(*fleet.Cluster) bool, cluster string) {
	w.t.Helper()
	w.eventually(what, func() error {
		if c, _ := w.controller.fleet.Snapshot().Cluster(cluster); !is(c) {
			return fmt.Errorf("the snapshot has %+v", c)
		}
		return nil
	})
}

// TestFlapsDecideNothing: an unsteady connection to a cluster causes no new decision on objects in
// it.
func TestFlapsDecideNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.create(w.policy("p", deployments()))
	w.create(deployment("web", 1, nil))
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
	w.settle("web")
	// The joins of both clusters concern web. They are handled some time after they are known.
	w.eventually("the joins are handled", func() error {
		if n := w.controller.decisions.seen(); n < uint64(len(w.clusters)) {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	// Other work for web, such as the event of its own write, was queued earlier. It is done when
	// this Deployment is placed.
	w.create(deployment("last", 1, nil))
	w.waitPlaced("last-deployment", "a=1 b=1", scheduled)
	w.settle("last")
	before := len(w.records.of("web"))
	for range 3 {
		w.change(func(f *fakeFleet) { f.unreachable[w.clusters[1]], f.presence[w.clusters[1]] = true, presence.Unknown })
		w.change(func(f *fakeFleet) { clear(f.unreachable); clear(f.presence) })
	}
	// Later changes are decided after the flaps.
	w.join("c")
	w.waitPlaced("web-deployment", "a=1 b=1 c=1", scheduled)
	if made := w.records.of("web")[before:]; made[0].Targets[len(made[0].Targets)-1].Cluster != w.clusters[2] {
		t.Errorf("a flap made a decision: %+v", made[0])
	}
}

// settle waits until the events of a template's own binding are handled: the last decision is about
// the stored binding.
func (w *world) settle(name string) {
	w.t.Helper()
	w.eventually("a decision on the binding of "+name, func() error {
		if len(w.records.of(name)) < 2 {
			return fmt.Errorf("only one was made")
		}
		return nil
	})
}

// TestKnows: the last decision knows the present Clusters by UID. A cluster that joins again under
// its name is another one, and is known only after a new decision.
func TestKnows(t *testing.T) {
	w := newWorld(t, 2)
	w.create(w.policy("p", deployments()))
	w.create(deployment("web", 1, nil))
	b := w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
	uid := func(cluster string) types.UID {
		c := &clusterv1alpha1.Cluster{}
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: cluster}, c); err != nil {
			t.Fatal(err)
		}
		return c.UID
	}
	first := uid(w.clusters[1])
	if !w.controller.Knows(b.UID, b.Generation, w.clusters[1], first) {
		t.Error("the decision does not know the cluster")
	}
	for what, known := range map[string]bool{
		"another generation":        w.controller.Knows(b.UID, b.Generation+1, w.clusters[1], first),
		"another UID":               w.controller.Knows(b.UID, b.Generation, w.clusters[1], "another"),
		"a cluster that never was":  w.controller.Knows(b.UID, b.Generation, "nowhere", first),
		"a binding that is unknown": w.controller.Knows("nothing", b.Generation, w.clusters[1], first),
	} {
		if known {
			t.Errorf("the decision knows %s", what)
		}
	}
	again := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: w.clusters[1]}}
	w.delete(again)
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.clusters = w.clusters[:1]
	w.join("b")
	b = w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
	second := uid(w.clusters[1])
	if w.controller.Knows(b.UID, b.Generation, w.clusters[1], first) || !w.controller.Knows(b.UID, b.Generation, w.clusters[1], second) {
		t.Error("the decision knows the cluster that left, or not the one that joined")
	}
}

func (w *world) all() []workv1alpha2.ResourceBinding {
	w.t.Helper()
	var list workv1alpha2.ResourceBindingList
	if err := w.client.List(w.ctx, &list, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func TestUnknownCluster(t *testing.T) {
	w := newWorld(t, 1)
	p := w.policy("p", deployments())
	p.Spec.Placement.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"nowhere"}}
	w.create(p)
	w.waitStatus(p, 0, map[string]string{complete: policyv1alpha1.ReasonUnknownCluster}, "the hub has no cluster nowhere")
	w.create(deployment("web", 1, nil))
	b := w.waitPlaced("web-deployment", "", workv1alpha2.ReasonNoClusterFits)
	if v, _ := w.controller.Outcome(b.UID); v.Status != metav1.ConditionFalse || !strings.Contains(v.Message, "nowhere: UnknownCluster") {
		t.Errorf("outcome %+v", v)
	}
}

// TestPolicyIsOlderThanItsCluster names a cluster that joins later, and cluster-scoped kinds.
func TestPolicyIsOlderThanItsCluster(t *testing.T) {
	w := newWorld(t, 1)
	p := w.policy("p", deployments())
	p.Spec.Placement.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ClusterNames: []string{w.namespace + "-a", w.namespace + "-later"}}
	w.create(p)
	w.waitStatus(p, 0, map[string]string{complete: policyv1alpha1.ReasonUnknownCluster}, "the hub has no cluster "+w.namespace+"-later")
	w.waitEvents(p, policyv1alpha1.ReasonUnknownCluster)
	w.join("later")
	w.waitStatus(p, 0, map[string]string{complete: policyv1alpha1.ReasonComplete})

	roles := w.policy("roles", deployments(), policyv1alpha1.ResourceSelector{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"})
	w.create(roles)
	w.waitStatus(roles, 0, map[string]string{complete: policyv1alpha1.ReasonClusterScoped},
		"resourceSelectors[1]: ClusterRole is in no namespace", "use a ClusterPropagationPolicy")
}

func TestNothingSelected(t *testing.T) {
	w := newWorld(t, 1)
	none := w.policy("none", policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: "nobody"})
	w.create(none)
	foreign := w.policy("foreign", policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "elsewhere"})
	w.create(foreign)
	unlisted := w.policy("unlisted", policyv1alpha1.ResourceSelector{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"})
	w.create(unlisted)
	w.waitStatus(none, 0, map[string]string{
		ready: policyv1alpha1.ReasonNothingSelected, claimed: policyv1alpha1.ReasonNothingSelected, disputed: policyv1alpha1.ReasonUndisputed,
	})
	w.waitStatus(foreign, 0, map[string]string{claimed: policyv1alpha1.ReasonNothingSelected}, "resourceSelectors[0].namespace")
	w.waitStatus(unlisted, 0, map[string]string{claimed: policyv1alpha1.ReasonKindNotServed}, "cannot be listed")
	w.create(deployment("nobody", 1, nil))
	w.waitStatus(none, 1, map[string]string{ready: policyv1alpha1.ReasonReady})
}

func TestTemplateRecreated(t *testing.T) {
	w := newWorld(t, 1)
	w.create(w.policy("p", deployments()))
	web := deployment("web", 1, nil)
	w.create(web)
	first := w.waitPlaced("web-deployment", "a=1", scheduled)
	w.delete(web)
	again := deployment("web", 2, nil)
	w.create(again)
	w.eventually("deletion of the first binding", func() error {
		if b := w.binding("web-deployment"); b == nil || b.UID != first.UID || b.DeletionTimestamp.IsZero() {
			return fmt.Errorf("binding is %+v", b)
		}
		return nil
	})
	w.release(first)
	second := w.waitPlaced("web-deployment", "a=2", scheduled)
	if second.UID == first.UID || second.Spec.Resource.UID != again.UID {
		t.Errorf("binding of %s, want %s", second.Spec.Resource.UID, again.UID)
	}
	if _, ok := w.controller.Outcome(first.UID); ok {
		t.Error("the outcome on the first binding is remembered")
	}
}

func TestDeletingTemplate(t *testing.T) {
	w := newWorld(t, 1)
	w.create(w.policy("p", deployments()))
	busy, waiting := deployment("busy", 1, nil), deployment("waiting", 1, nil)
	busy.Finalizers = []string{"example.org/busy"}
	waiting.Finalizers = []string{metav1.FinalizerDeleteDependents}
	for _, d := range []*appsv1.Deployment{busy, waiting} {
		w.create(d)
		w.waitPlaced(d.Name+"-deployment", "a=1", scheduled)
		w.delete(d)
	}
	// One waits for its dependents on the hub only; a finalizer of another writer holds the other.
	w.release(w.binding("waiting-deployment"))
	update(w, busy, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(2)) })
	w.waitPlaced("busy-deployment", "a=2", scheduled)
	for _, d := range []*appsv1.Deployment{busy, waiting} {
		update(w, d, func(d *appsv1.Deployment) { d.Finalizers = nil })
	}
	w.release(w.binding("busy-deployment"))
}

func TestBindingTamperedWith(t *testing.T) {
	w := newWorld(t, 2)
	w.create(w.policy("p", deployments()))
	w.create(deployment("web", 1, nil))
	b := w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
	update(w, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.Clusters = b.Spec.Clusters[:1] })
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)

	second := b.DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Name: "second", Namespace: w.namespace}
	w.create(second)
	w.eventually("deletion of the second binding", func() error {
		if w.binding("second") != nil {
			return fmt.Errorf("it is there")
		}
		return nil
	})

	w.delete(b)
	w.release(b)
	w.waitPlaced("web-deployment", "a=1 b=1", scheduled)
}

func TestNameTaken(t *testing.T) {
	w := newWorld(t, 1)
	api := deployment("api", 1, nil)
	w.create(api)
	w.create(w.policy("p", deployments()))
	w.waitPlaced("api-deployment", "a=1", scheduled)
	// A user renames the binding's template to one whose own binding has another name.
	taken := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "web-deployment", Namespace: w.namespace},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: "example.org/v1", Kind: "Unserved", Name: "x"},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
		},
	}
	w.create(taken)
	w.create(deployment("web", 1, nil))
	w.eventually("a binding of another name", func() error {
		for _, b := range w.all() {
			if b.Spec.Resource.Name == "web" && strings.HasPrefix(b.Name, "web-deployment-") && w.placed(&b) == "a=1" {
				return nil
			}
		}
		return fmt.Errorf("there is none")
	})
	if b := w.binding("web-deployment"); b == nil || b.UID != taken.UID || b.Generation != 1 {
		t.Errorf("the other binding is %+v", b)
	}
}

func TestClusterScoped(t *testing.T) {
	w := newWorld(t, 1)
	name := "team:" + w.namespace
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.create(role)
	w.create(w.clusterPolicy("roles", policyv1alpha1.ResourceSelector{
		APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: name,
	}))
	find := func() (*workv1alpha2.ClusterResourceBinding, error) {
		var list workv1alpha2.ClusterResourceBindingList
		if err := w.client.List(w.ctx, &list); err != nil {
			return nil, err
		}
		for _, b := range list.Items {
			if b.Spec.Resource.Name == name {
				return &b, nil
			}
		}
		return nil, nil
	}
	w.eventually("binding", func() error {
		b, err := find()
		switch {
		case err != nil:
			return err
		case b == nil:
			return errors.New("there is none")
		}
		if got := w.placed(b.Binding()); got != "a" || b.Spec.PolicyRef.Kind != "ClusterPropagationPolicy" {
			return fmt.Errorf("placed %q by %+v", got, b.Spec.PolicyRef)
		}
		return nil
	})
	if err := w.client.Delete(w.ctx, role); err != nil {
		t.Fatal(err)
	}
	w.eventually("the binding goes with its template", func() error {
		b, err := find()
		switch {
		case err != nil || b == nil:
			return err
		case b.DeletionTimestamp == nil:
			return errors.New("it is not deleted")
		}
		b.Finalizers = nil // apply does not run here
		return errors.Join(errors.New("it is being deleted"), w.client.Update(w.ctx, b))
	})
}

func TestKindComesLater(t *testing.T) {
	w := newWorld(t, 1)
	group := w.namespace + ".example.org"
	p := w.policy("p", deployments(), policyv1alpha1.ResourceSelector{APIVersion: group + "/v1", Kind: "Widget"})
	w.create(p)
	w.waitStatus(p, 0, map[string]string{claimed: policyv1alpha1.ReasonKindNotServed}, "resourceSelectors[1]", "Widget")

	w.create(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	})
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"})
	widget.SetNamespace(w.namespace)
	widget.SetName("w")
	w.eventually("widget", func() error { return w.client.Create(w.ctx, widget) })
	w.waitPlaced("w-widget."+group, "a", scheduled)
	w.waitStatus(p, 1, map[string]string{ready: policyv1alpha1.ReasonReady})
}

// TestSelectorOfAnotherVersion selects a kind in a version that the hub does not serve. The objects
// are placed and counted, and the status says so.
func TestSelectorOfAnotherVersion(t *testing.T) {
	w := newWorld(t, 1)
	group := w.namespace + ".example.org"
	version := func(name string) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: name == "v1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		}
	}
	w.create(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gears." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gears", Kind: "Gear"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1"), version("v1beta1")},
		},
	})
	gear := &unstructured.Unstructured{}
	gear.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Gear"})
	gear.SetNamespace(w.namespace)
	gear.SetName("g")
	w.eventually("gear", func() error { return w.client.Create(w.ctx, gear) })
	p := w.policy("p", policyv1alpha1.ResourceSelector{APIVersion: group + "/v2", Kind: "Gear"})
	w.create(p)
	w.waitPlaced("g-gear."+group, "a", scheduled)
	w.waitStatus(p, 1, map[string]string{ready: policyv1alpha1.ReasonReady, claimed: policyv1alpha1.ReasonClaimed, complete: policyv1alpha1.ReasonKindNotServed},
		"resourceSelectors[0]: the hub does not serve Gear of "+group+"/v2; it is taken as "+group+"/v1: write that")

	// A version that the hub serves as well is used unchanged.
	served := w.policy("served", policyv1alpha1.ResourceSelector{APIVersion: group + "/v1beta1", Kind: "Gear", Name: "g"})
	w.create(served)
	w.waitStatus(served, 1, map[string]string{complete: policyv1alpha1.ReasonComplete})
}

func TestBindingName(t *testing.T) {
	long := strings.Repeat("x", 250)
	cases := map[string]struct {
		key    binding.Template
		want   string
		hashed bool // want and a hash
	}{
		"Core":     {key: binding.Template{GroupKind: schema.GroupKind{Kind: "Service"}, Name: "web"}, want: "web-service"},
		"BuiltIn":  {key: binding.Template{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Name: "web"}, want: "web-deployment"},
		"K8sIO":    {key: binding.Template{GroupKind: schema.GroupKind{Group: "networking.k8s.io", Kind: "Ingress"}, Name: "web"}, want: "web-ingress"},
		"Other":    {key: binding.Template{GroupKind: schema.GroupKind{Group: "serving.knative.dev", Kind: "Service"}, Name: "web"}, want: "web-service.serving.knative.dev"},
		"TooLong":  {key: binding.Template{GroupKind: schema.GroupKind{Kind: "Service"}, Name: long}, want: long[:242], hashed: true},
		"NotAName": {key: binding.Template{GroupKind: schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Role"}, Name: "system:A"}, want: "system-a-role", hashed: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := binding.NameFor(tc.key)
			if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 {
				t.Errorf("%q: %v", got, errs)
			}
			if tc.hashed {
				if got = got[:len(got)-len("-0123456789")]; got == tc.want {
					return
				}
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	if a, b := binding.NameFor(binding.Template{GroupKind: schema.GroupKind{Kind: "Role"}, Name: "a:b"}), binding.NameFor(binding.Template{GroupKind: schema.GroupKind{Kind: "Role"}, Name: "a.b:"}); a == b {
		t.Errorf("two templates have the name %s", a)
	}
}

func TestSubscribe(t *testing.T) {
	w := newWorld(t, 1)
	notified := make(chan types.NamespacedName, 100)
	w.controller.Subscribe(func(b types.NamespacedName) {
		select {
		case notified <- b:
		default:
		}
	})
	w.create(w.policy("p", deployments()))
	w.create(deployment("web", 1, nil))
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.eventually("call", func() error {
		select {
		case b := <-notified:
			if b == (types.NamespacedName{Namespace: w.namespace, Name: "web-deployment"}) {
				return nil
			}
		default:
		}
		return fmt.Errorf("nobody called")
	})
}
