package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/records"
)

// only selects the test's clusters with the letters.
func (w *world) only(letters ...string) *policyv1alpha1.ClusterAffinity {
	a := &policyv1alpha1.ClusterAffinity{}
	for _, letter := range letters {
		a.ClusterNames = append(a.ClusterNames, w.namespace+"-"+letter)
	}
	return a
}

// TestSuspension: the policy suspends dispatching, the binding suspends scheduling.
func TestSuspension(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments())
	p.Spec.Placement.ClusterAffinity = w.only("a")
	p.Spec.Suspension = &policyv1alpha1.Suspension{DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: []string{"oak"}}}
	w.create(p)
	web := deployment("web", 2, nil)
	w.create(web)
	b := w.waitPlaced("web-deployment", "a=2", scheduled)
	if !b.Spec.SuspendedOn("oak") || b.Spec.SuspendedOn("pine") || !b.Spec.Schedules() {
		t.Errorf("suspension is %+v", b.Spec.Suspension)
	}

	update(w, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.Suspension.Scheduling = new(true) })
	w.waitPlaced("web-deployment", "a=2", workv1alpha2.ReasonSuspended)
	update(w, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.Placement.ClusterAffinity = w.only("b")
		p.Spec.Suspension = &policyv1alpha1.Suspension{Dispatching: new(true)}
		p.Spec.PreserveResourcesOnDeletion = new(true)
	})
	w.eventually("the policy counts for all but the clusters", func() error {
		if b = w.binding("web-deployment"); !b.Spec.SuspendedOn("pine") || !b.Spec.PreserveResourcesOnDeletion || b.Spec.Schedules() {
			return fmt.Errorf("it says %+v", b.Spec)
		}
		return nil
	})
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) })
	// Whole: the template's replicas.
	w.waitPlaced("web-deployment", "a=3", workv1alpha2.ReasonSuspended)

	w.stop()
	w.start()
	b = w.waitPlaced("web-deployment", "a=3", workv1alpha2.ReasonSuspended)
	update(w, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.Suspension.Scheduling = nil })
	w.waitPlaced("web-deployment", "b=3 -a=3", scheduled)

	// Deleting the policy resumes nothing.
	w.delete(p)
	b = w.waitPlaced("web-deployment", "b=3 -a=3", workv1alpha2.ReasonPolicyGone)
	if !b.Spec.SuspendedOn("pine") {
		t.Errorf("suspension is %+v", b.Spec.Suspension)
	}
}

// TestSuspendedShares: shares stay while scheduling is suspended, even if the template asks for
// other numbers.
func TestSuspendedShares(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments())
	p.Spec.Placement.ReplicaScheduling = divided(nil)
	w.create(p)
	web := deployment("web", 4, nil)
	w.create(web)
	b := w.waitPlaced("web-deployment", "a=2 b=2", scheduled)
	update(w, b, func(b *workv1alpha2.ResourceBinding) {
		b.Spec.Suspension = &workv1alpha2.Suspension{Scheduling: new(true)}
	})
	w.waitPlaced("web-deployment", "a=2 b=2", workv1alpha2.ReasonSuspended)
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(8)) })
	w.eventually("the binding follows the template", func() error {
		if b = w.binding("web-deployment"); b.Spec.Replicas == nil || *b.Spec.Replicas != 8 {
			return fmt.Errorf("it says %+v", b.Spec)
		}
		return nil
	})
	b = w.waitPlaced("web-deployment", "a=2 b=2", workv1alpha2.ReasonSuspended)
	update(w, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.Suspension = nil })
	w.waitPlaced("web-deployment", "a=4 b=4", scheduled)
}

// TestLazy: an edit of a Lazy policy takes effect for an object when the object changes. A restart
// is no change.
func TestLazy(t *testing.T) {
	w := newWorld(t, 2)
	p := w.policy("p", deployments(), policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "Service"})
	p.Spec.ActivationPreference = policyv1alpha1.LazyActivation
	p.Spec.Placement.ClusterAffinity = w.only("a")
	web, api := deployment("web", 1, nil), deployment("api", 1, nil)
	w.create(web)
	w.create(api)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	w.create(service)
	w.create(p) // what is not placed yet is placed at once
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.waitPlaced("api-deployment", "a=1", scheduled)
	b := w.waitPlaced("web-service", "a", scheduled)
	if a := b.Spec.Activation; a == nil || a.PolicyUID != p.UID || a.PolicyGeneration != 1 {
		t.Errorf("activation is %+v", a)
	}
	path := "/apis/work.orrery.dev/v1alpha2/namespaces/" + w.namespace + "/resourcebindings"
	writes := len(w.recorder.of(path))

	update(w, p, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Placement.ClusterAffinity = w.only("b") })
	w.waitPlaced("web-deployment", "a=1", workv1alpha2.ReasonPolicyWaits)
	w.waitPlaced("api-deployment", "a=1", workv1alpha2.ReasonPolicyWaits)
	w.waitPlaced("web-service", "a", workv1alpha2.ReasonPolicyWaits)
	// Writes by the hub are no change.
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
	if err := w.client.Status().Update(w.ctx, service); err != nil {
		t.Fatal(err)
	}
	api.Status.Replicas = 1
	if err := w.client.Status().Update(w.ctx, api); err != nil {
		t.Fatal(err)
	}
	if got := w.recorder.of(path); len(got) != writes {
		t.Errorf("an edit that waits writes %v", got[writes:])
	}
	w.stop()
	w.start()
	w.waitPlaced("web-deployment", "a=1", workv1alpha2.ReasonPolicyWaits)
	w.waitPlaced("api-deployment", "a=1", workv1alpha2.ReasonPolicyWaits)
	w.waitPlaced("web-service", "a", workv1alpha2.ReasonPolicyWaits)
	if got := w.recorder.of(path); len(got) > 0 {
		t.Errorf("a restart writes %v", got)
	}

	update(w, web, func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} })
	b = w.waitPlaced("web-deployment", "b=1 -a=1", scheduled)
	if a := b.Spec.Activation; a == nil || a.PolicyGeneration != 2 {
		t.Errorf("activation is %+v", a)
	}
	update(w, service, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	w.waitPlaced("web-service", "b -a", scheduled)
	w.waitPlaced("api-deployment", "a=1", workv1alpha2.ReasonPolicyWaits)

	// Another Lazy policy with a higher priority waits as well; one that is not Lazy does not.
	higher := w.policy("higher", deployments())
	higher.Spec.Priority, higher.Spec.ActivationPreference = 1, policyv1alpha1.LazyActivation
	higher.Spec.Placement.ClusterAffinity = w.only("a", "b")
	w.create(higher)
	w.waitStatus(higher, 2, nil)
	w.waitPlaced("api-deployment", "a=1", workv1alpha2.ReasonPolicyWaits)
	update(w, higher, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.ActivationPreference = "" })
	b = w.waitPlaced("api-deployment", "a=1 b=1", scheduled)
	if b.Spec.Activation != nil {
		t.Errorf("activation is %+v", b.Spec.Activation)
	}
	// The edit that makes a policy Lazy is Lazy itself.
	update(w, higher, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.ActivationPreference, p.Spec.Placement.ClusterAffinity = policyv1alpha1.LazyActivation, w.only("a")
	})
	w.waitPlaced("api-deployment", "a=1 b=1", workv1alpha2.ReasonPolicyWaits)
	update(w, api, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(2)) })
	w.waitPlaced("api-deployment", "a=2 -b=1", scheduled)
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "b"}}
}

// runs sets the status of a binding to: every cluster runs the present template.
func (w *world) runs(name string) {
	w.t.Helper()
	w.eventually("status of "+name, func() error {
		b := w.binding(name)
		for _, condition := range []string{workv1alpha2.ConditionFullyApplied, workv1alpha2.ConditionHealthy} {
			meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
				Type: condition, Status: metav1.ConditionTrue, Reason: condition, ObservedGeneration: b.Generation,
			})
		}
		return w.client.Status().Update(w.ctx, b)
	})
}

// uses makes a Deployment refer to ConfigMaps.
func uses(d *appsv1.Deployment, names ...string) {
	c := &d.Spec.Template.Spec.Containers[0]
	c.EnvFrom = nil
	for _, name := range names {
		c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}})
	}
}

// TestDependencies: dependencies of a workload are placed in exactly its clusters, and removed with
// the last workload that needs them.
func TestDependencies(t *testing.T) {
	w := newWorld(t, 3)
	web, api := deployment("web", 1, nil), deployment("api", 1, nil)
	uses(web, "common", "own", "none", "kube-root-ca.crt")
	web.Spec.Template.Spec.ServiceAccountName = "runner"
	web.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	web.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	uses(api, "common")
	place := func(name, letter string) *policyv1alpha1.PropagationPolicy {
		p := w.policy(name, policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: name})
		p.Spec.PropagateDeps, p.Spec.Placement.ClusterAffinity = true, w.only(letter)
		return p
	}
	forWeb, forAPI := place("web", "a"), place("api", "b")
	forAPI.Spec.PropagateDeps, forAPI.Spec.Association = false, true // the older name
	for _, o := range []client.Object{
		web, configMap("common"), configMap("own"), configMap("unused"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "registry"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "runner"}},
		forWeb,
	} {
		w.create(o)
	}
	for _, name := range []string{"web-deployment", "common-configmap", "own-configmap", "registry-secret", "runner-serviceaccount"} {
		where := "a"
		if name == "web-deployment" {
			where = "a=1"
		}
		w.waitPlaced(name, where, scheduled)
	}
	// Dependencies that are created later are placed, too.
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	w.create(claim)
	w.waitPlaced("data-persistentvolumeclaim", "a", scheduled)
	w.create(forAPI)
	w.create(api)
	b := w.waitPlaced("common-configmap", "a b", scheduled)
	want := []workv1alpha2.BindingSnapshot{{Namespace: w.namespace, Name: "api-deployment"}, {Namespace: w.namespace, Name: "web-deployment"}}
	if diff := cmp.Diff(want, b.Spec.RequiredBy); diff != "" {
		t.Errorf("required by (-want +got):\n%s", diff)
	}
	if w.binding("unused-configmap") != nil || w.binding("kube-root-ca.crt-configmap") != nil {
		t.Error("something follows that nobody refers to, or that every cluster has")
	}

	// A restart neither moves nor removes anything.
	w.stop()
	w.start()
	w.waitPlaced("common-configmap", "a b", scheduled)
	w.waitPlaced("own-configmap", "a", scheduled)
	w.waitPlaced("data-persistentvolumeclaim", "a", scheduled)
	update(w, forWeb, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Placement.ClusterAffinity = w.only("c") })
	// The dependencies stay in the old cluster until the move is complete.
	w.waitPlaced("web-deployment", "c=1 -a=1", scheduled)
	w.waitPlaced("own-configmap", "a c", scheduled)
	w.waitPlaced("common-configmap", "a b c", scheduled)
	if got := slices.DeleteFunc(w.recorder.of("/resourcebindings"), func(s string) bool { return s[:3] == "PAT" }); len(got) > 0 {
		t.Errorf("since the restart %v", got)
	}

	// A policy for the dependency adds clusters. What it placed stays when the policy is deleted.
	own := w.policy("own", policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Name: "common"})
	own.Spec.Placement.ClusterAffinity = w.only("a")
	w.create(own)
	w.waitPlaced("common-configmap", "a b c", scheduled)

	// A dependency without references is removed when every cluster runs the new template, and
	// completely with the last reference.
	update(w, web, func(d *appsv1.Deployment) { uses(d, "common") })
	w.eventually("the new generation in the binding", func() error {
		if b := w.binding("web-deployment"); b.Spec.Resource.Generation != 2 {
			return fmt.Errorf("generation %d", b.Spec.Resource.Generation)
		}
		return nil
	})
	if b := w.binding("own-configmap"); b == nil || !b.DeletionTimestamp.IsZero() || len(b.Spec.RequiredBy) == 0 {
		t.Fatalf("it goes while clusters run what refers to it: %v", b)
	}
	w.runs("web-deployment")
	w.release(w.binding("own-configmap"))
	w.delete(api)
	w.release(w.binding("api-deployment"))
	w.waitPlaced("common-configmap", "a c -b", scheduled)
	w.delete(web)
	w.release(w.binding("web-deployment"))
	w.release(w.binding("registry-secret"))
	b = w.waitPlaced("common-configmap", "a -b -c", scheduled)
	if len(b.Spec.RequiredBy) > 0 {
		t.Errorf("it is required by %v", b.Spec.RequiredBy)
	}
}

// TestDependenciesAfterAnOutage: dependencies of a template that was deleted while the hub was down
// are removed.
func TestDependenciesAfterAnOutage(t *testing.T) {
	w := newWorld(t, 1)
	p := w.policy("p", deployments())
	p.Spec.PropagateDeps = true
	w.create(p)
	web := deployment("web", 1, nil)
	uses(web, "conf")
	w.create(configMap("conf"))
	w.create(web)
	w.waitPlaced("conf-configmap", "a", scheduled)
	w.stop()
	w.delete(web)
	b := w.binding("web-deployment")
	b.Finalizers = nil
	if err := w.client.Update(w.ctx, b); err != nil {
		t.Fatal(err)
	}
	w.delete(b)
	w.start()
	w.release(w.binding("conf-configmap"))
}

// TestPreemption: Never takes no object from the policy that placed it, while that policy selects
// it. Always does, and so does the default.
func TestPreemption(t *testing.T) {
	w := newWorld(t, 2)
	first := w.policy("first", deployments())
	first.Spec.Placement.ClusterAffinity = w.only("a")
	w.create(first)
	w.create(deployment("web", 1, nil))
	w.waitPlaced("web-deployment", "a=1", scheduled)
	never := w.policy("never", deployments())
	never.Spec.Priority, never.Spec.Preemption = 10, policyv1alpha1.PreemptNever
	never.Spec.Placement.ClusterAffinity = w.only("b")
	w.create(never)
	w.waitStatus(never, 0, map[string]string{disputed: policyv1alpha1.ReasonLostClaim}, "overruled by PropagationPolicy "+w.namespace+"/first (it placed the object first")
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.create(deployment("new", 1, nil)) // no policy has it: the priority decides
	w.waitPlaced("new-deployment", "b=1", scheduled)
	w.stop()
	w.start()
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.waitPlaced("new-deployment", "b=1", scheduled)
	update(w, never, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Preemption = policyv1alpha1.PreemptAlways })
	w.waitPlaced("web-deployment", "b=1 -a=1", scheduled)
	update(w, never, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.Preemption, p.Spec.Priority = policyv1alpha1.PreemptNever, -10
	})
	w.waitPlaced("web-deployment", "a=1 -b=1", scheduled) // first may take it: it does not say Never
}

func required(bindings ...*workv1alpha2.ResourceBinding) (all []Dependent) {
	for _, b := range bindings {
		all = append(all, Dependent{Binding: b})
	}
	return all
}

// TestFollowTheLiving: a dependency of several templates belongs to the only one that still has its
// policy. An override that is deleted after the other policies has no effect any more. The
// dependency gets no more rights than before.
func TestFollowTheLiving(t *testing.T) {
	w := newWorld(t, 2)
	w.create(configMap("conf"))
	policies := map[string]*policyv1alpha1.PropagationPolicy{}
	for name, letter := range map[string]string{"api": "a", "web": "b"} {
		d := deployment(name, 1, nil)
		uses(d, "conf")
		w.create(d)
		p := w.policy(name, policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: name})
		p.Spec.PropagateDeps, p.Spec.Placement.ClusterAffinity = true, w.only(letter)
		if name == "web" {
			p.Spec.ConflictResolution = policyv1alpha1.ConflictOverwrite
		}
		w.create(p)
		policies[name] = p
	}
	b := w.waitPlaced("conf-configmap", "a b", scheduled)
	by := func(name string) {
		t.Helper()
		w.eventually("the policy by which it follows", func() error {
			b = w.binding("conf-configmap")
			if b.Spec.PolicyRef.Name != name || b.Spec.ConflictResolution != "" || len(b.Spec.DependentOverrides) > 0 {
				return fmt.Errorf("it says %+v", b.Spec)
			}
			return nil
		})
	}
	by("api") // which may do less
	w.delete(policies["api"])
	w.waitPlaced("api-deployment", "a=1", workv1alpha2.ReasonPolicyGone)
	by("web")
	w.delete(policies["web"])
	w.waitPlaced("web-deployment", "b=1", workv1alpha2.ReasonPolicyGone)
	by("api")
}

// TestAttachedLeaves: a cluster that an object is in only as a dependency is not kept when the
// object's own policy is deleted.
func TestAttachedLeaves(t *testing.T) {
	w := newWorld(t, 2)
	w.create(configMap("conf"))
	web := deployment("web", 1, nil)
	uses(web, "conf")
	w.create(web)
	own := w.policy("own", policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Name: "conf"})
	own.Spec.Placement.ClusterAffinity = w.only("a")
	w.create(own)
	p := w.policy("p", deployments())
	p.Spec.PropagateDeps, p.Spec.Placement.ClusterAffinity = true, w.only("b")
	w.create(p)
	w.waitPlaced("conf-configmap", "a b", scheduled)
	w.delete(own)
	w.waitPlaced("conf-configmap", "a b", workv1alpha2.ReasonPolicyGone)
	w.delete(web)
	w.release(w.binding("web-deployment"))
	w.waitPlaced("conf-configmap", "a -b", workv1alpha2.ReasonPolicyGone)
}

// TestDependenciesOfAnEarlierVersion: bindings of an earlier version do not list their
// dependencies. The dependencies stay until these bindings are decided.
func TestDependenciesOfAnEarlierVersion(t *testing.T) {
	w := newWorld(t, 1)
	p := w.policy("p", deployments())
	p.Spec.PropagateDeps = true
	w.create(p)
	w.create(configMap("conf"))
	web := deployment("web", 1, nil)
	uses(web, "conf")
	w.create(web)
	w.waitPlaced("conf-configmap", "a", scheduled)
	uid := w.binding("conf-configmap").UID
	w.stop()
	update(w, w.binding("web-deployment"), func(b *workv1alpha2.ResourceBinding) { b.Spec.Dependencies = nil })
	update(w, w.binding("conf-configmap"), func(b *workv1alpha2.ResourceBinding) { b.Spec.Clusters[0].Attached = false })
	w.start()
	w.eventually("what it needs in its binding", func() error {
		if b := w.binding("web-deployment"); len(b.Spec.Dependencies) != 1 {
			return fmt.Errorf("it says %+v", b.Spec)
		}
		return nil
	})
	if b := w.waitPlaced("conf-configmap", "a", scheduled); b.UID != uid || !b.Spec.Clusters[0].Attached {
		t.Errorf("it was deleted meanwhile, or says %+v", b.Spec.Clusters)
	}
	if got := slices.DeleteFunc(w.recorder.of("/resourcebindings"), func(s string) bool { return s[:3] == "PAT" }); len(got) > 0 {
		t.Errorf("since the restart %v", got)
	}
}

// TestFollow: a dependency of several templates is placed where any of them is, is suspended where
// all of them are, and needs the overrides of each.
func TestFollow(t *testing.T) {
	dependent := func(name string, change func(*workv1alpha2.BindingSpec), clusters string) *workv1alpha2.ResourceBinding {
		b := placedBinding(policyv1alpha1.Duplicated, 1, in(), clusters)
		b.Name = name
		b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
		b.Spec.PropagateDeps = true
		change(&b.Spec)
		return b
	}
	suspended := func(clusters ...string) *workv1alpha2.Suspension {
		return &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: clusters}}}
	}
	first := dependent("api", func(s *workv1alpha2.BindingSpec) {
		s.Suspension = suspended("a", "b")
		s.DependentOverrides = []workv1alpha2.OverrideReference{{Kind: "OverridePolicy", Name: "x"}}
	}, "a b leaving")
	second := dependent("web", func(s *workv1alpha2.BindingSpec) {
		s.PolicyRef.Name, s.ConflictResolution = "other", policyv1alpha1.ConflictOverwrite
		s.PreserveResourcesOnDeletion = true
		s.Suspension = suspended("c")
		s.DependentOverrides = []workv1alpha2.OverrideReference{{Kind: "OverridePolicy", Name: "w"}, {Kind: "OverridePolicy", Name: "x"}}
	}, "b c gone")
	o := workload("ConfigMap", nil)
	o.SetAPIVersion("v1")
	s := fleet.NewSnapshot(1, fine("a"), fine("b"), fine("c"), but("leaving", func(c *fleet.Cluster) { c.Leaving = true }))
	tmpl := Template{Object: o, RequiredBy: required(first, second)}
	d := Decide(s, tmpl, CurrentState{})
	if got := where(d.Spec); got != "a b c" || d.Outcome.Reason != scheduled || d.Outcome.Message != "placed with Deployment shop/api and 1 more" {
		t.Errorf("placed %q, %+v", got, d.Outcome)
	}
	if got := d.Spec; got.PolicyRef.Name != "p" || got.ConflictResolution != "" || !got.PreserveResourcesOnDeletion || got.PlacementHash != "" {
		t.Errorf("by whose right: %+v", got)
	}
	for cluster, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if d.Spec.SuspendedOn(cluster) != want {
			t.Errorf("suspended on %s: %v, want %v", cluster, !want, want)
		}
	}
	if diff := cmp.Diff([]workv1alpha2.OverrideReference{{Kind: "OverridePolicy", Name: "w"}, {Kind: "OverridePolicy", Name: "x"}}, d.Spec.DependentOverrides); diff != "" {
		t.Errorf("dependent overrides (-want +got):\n%s", diff)
	}
	// A template that moves needs the dependency in the old cluster until the move is complete.
	moving := dependent("moving", func(s *workv1alpha2.BindingSpec) {
		s.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "a"}}
	}, "b")
	if got := where(Decide(s, Template{Object: o, RequiredBy: required(moving)}, CurrentState{}).Spec); got != "a b" {
		t.Errorf("placed %q while what needs it moves from a to b", got)
	}
	// A cluster that another policy adds has the weaker rights of both.
	whole := dependent("whole", func(s *workv1alpha2.BindingSpec) {
		s.PolicyRef.Kind, s.ConflictResolution = "ClusterPropagationPolicy", policyv1alpha1.ConflictOverwrite
	}, "a")
	part := dependent("part", func(s *workv1alpha2.BindingSpec) {
		s.PolicyRef.Kind, s.ConflictResolution = "PropagationPolicy", policyv1alpha1.ConflictOverwrite
	}, "b")
	both := Decide(s, Template{Object: o, RequiredBy: required(part, whole)}, CurrentState{}).Spec
	if both.PolicyRef.Kind != "PropagationPolicy" || both.ConflictResolution != policyv1alpha1.ConflictOverwrite {
		t.Errorf("by the right of %v, %s", both.PolicyRef, both.ConflictResolution)
	}
	// When their policies are gone, the overrides that shaped the copies must stay.
	for i := range tmpl.RequiredBy {
		tmpl.RequiredBy[i].Orphaned = true
	}
	tmpl.Overrides = []records.Policy{{Kind: "ClusterOverridePolicy", Name: "c"}}
	d = Decide(s, tmpl, CurrentState{})
	if got := d.Spec.DependentOverrides; len(got) != 3 || got[0] != (workv1alpha2.OverrideReference{Kind: "ClusterOverridePolicy", Name: "c"}) {
		t.Errorf("dependent overrides %v", got)
	}
}
