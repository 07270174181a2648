package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/testenv"
)

// clusterWide makes the policy of a binding cluster-wide.
func clusterWide(s *workv1alpha2.BindingSpec) { s.PolicyRef.Kind = "ClusterPropagationPolicy" }

func (f *fleet) unjoin(name string) {
	f.t.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	f.must(f.hub.Delete(f.t.Context(), c))
	f.gone(f.hub, c)
}

// untouched fails the test if an object was deleted or replaced, or its data changed.
func (f *fleet) untouched(c client.Client, before *corev1.ConfigMap) *corev1.ConfigMap {
	f.t.Helper()
	after := &corev1.ConfigMap{}
	f.must(c.Get(f.t.Context(), client.ObjectKeyFromObject(before), after))
	if after.UID != before.UID || !after.DeletionTimestamp.IsZero() || fmt.Sprint(after.Data) != fmt.Sprint(before.Data) {
		f.t.Errorf("%s was %s %v and is %s %v", before.Name, before.UID, before.Data, after.UID, after.Data)
	}
	return after
}

func (f *fleet) marked(c client.Client, before *corev1.ConfigMap, uid types.UID) *corev1.ConfigMap {
	f.t.Helper()
	var after *corev1.ConfigMap
	f.eventually("our marks on "+before.Name, func() error {
		after = f.untouched(c, before)
		if after.Labels[workv1alpha2.BindingLabel] != string(uid) || after.Annotations[workv1alpha2.OrphanAnnotation] != "" {
			return fmt.Errorf("labels %v, annotations %v", after.Labels, after.Annotations)
		}
		return nil
	})
	return after
}

func TestAClusterThatComesBackKeepsWhatItHas(t *testing.T) {
	server := testenv.StartServer(t)
	f := newFleet(t)
	f.loses = true
	f.start()
	f.join("ivy", server.Kubeconfig())
	f.join("oak", testenv.Kubeconfig(oakServer))
	ivy := f.client(server.Config())
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	named := f.bind(configMap(ns, "named", "1"), nil, "ivy", "oak")
	unnamed := f.bind(configMap(ns, "unnamed", "1"), nil, "ivy", "oak")
	f.result(named, "ivy", workv1alpha2.ReasonFullyApplied)
	f.result(unnamed, "ivy", workv1alpha2.ReasonFullyApplied)
	f.result(unnamed, "oak", workv1alpha2.ReasonFullyApplied)
	first, second := f.data(ivy, ns, "named", "1"), f.data(ivy, ns, "unnamed", "1")
	deletes := f.calls("delete")

	// ivy leaves while it does not answer, so our marks stay. When it returns, the bindings
	// name other clusters. Then one of them names ivy again.
	server.Signal(t, syscall.SIGSTOP)
	f.eventually("ivy is lost", func() error {
		if f.reachable("ivy") == nil {
			return errors.New("it is not")
		}
		return nil
	})
	f.unjoin("ivy")
	f.retarget(named, "oak")
	f.retarget(unnamed, "oak")
	server.Signal(t, syscall.SIGCONT)
	f.join("ivy", server.Kubeconfig())
	f.untouched(ivy, first)
	f.retarget(named, "ivy", "oak")
	f.marked(ivy, first, named.UID)
	f.result(named, "ivy", workv1alpha2.ReasonFullyApplied)

	// A copy in a cluster that its binding does not name is an orphan. It stays, and does not
	// block the deletion of the binding.
	f.must(f.hub.Delete(t.Context(), unnamed))
	f.gone(f.hub, unnamed)
	f.untouched(ivy, second)

	// ivy leaves while it answers. One annotation stays, which names this hub and the template.
	f.unjoin("ivy")
	if left := f.untouched(ivy, first); left.Labels[workv1alpha2.BindingLabel] != "" || len(left.Annotations) != 1 {
		t.Errorf("what is left are labels %v and annotations %v", left.Labels, left.Annotations)
	}
	f.join("ivy", server.Kubeconfig())
	f.marked(ivy, first, named.UID)
	n := &corev1.Namespace{}
	f.must(ivy.Get(t.Context(), client.ObjectKey{Name: ns}, n))
	if n.Labels[workv1alpha2.NamespaceLabel] != f.hubID {
		t.Errorf("the namespace that this hub made is not its own again: %v", n.ObjectMeta)
	}
	if made := f.calls("delete") - deletes; made != 1 { // of unnamed in oak
		t.Errorf("%v deletions were made", made)
	}
	f.unjoin("ivy")
	f.unjoin("oak")
}

// retarget changes the clusters of a binding without eviction tasks, as placement does when
// clusters join and leave.
func (f *fleet) retarget(b *workv1alpha2.ResourceBinding, clusters ...string) {
	f.t.Helper()
	f.eventually("retarget", func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		b.Spec.Clusters = targets(clusters)
		return f.hub.Update(f.t.Context(), b)
	})
}

func TestNothingIsDoneInAClusterThatTheDecisionDidNotKnow(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	before := f.data(oak, ns, "a", "1")

	m, _ := f.registry.Member("oak")
	f.decisions.mu.Lock()
	f.decisions.unknown = map[types.UID]bool{m.Cluster().UID: true}
	f.decisions.mu.Unlock()
	f.retarget(b) // the policy matches no cluster any more: this is no move
	f.templates.set(configMap(ns, "a", "2"))
	known := f.bind(configMap(ns, "b", "1"), nil, "oak")
	f.eventually("the applier looked at it", func() error {
		if q, _ := f.applier.queue("oak"); q.items.Retries(item{binding: client.ObjectKeyFromObject(known)}) == 0 {
			return errors.New("it did not")
		}
		return nil
	})
	f.untouched(oak, before)
	if err := oak.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "b"}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("it was placed by a decision about another Cluster: %v", err)
	}
	f.decisions.mu.Lock()
	f.decisions.unknown = nil
	f.decisions.mu.Unlock()
	f.applier.decided(client.ObjectKeyFromObject(b))
	f.applier.decided(client.ObjectKeyFromObject(known))
	f.data(oak, ns, "b", "1")
	f.gone(oak, before)
	f.unjoin("oak")
}

// A move whose target clusters all left removes nothing. Only a binding without clusters and
// without eviction tasks does.
func TestAMoveThatHasNowhereToGo(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	before := f.data(oak, ns, "a", "1")
	f.move(b)
	// Once b is applied, the move of a was planned.
	f.result(f.bind(configMap(ns, "b", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	f.applier.decided(client.ObjectKeyFromObject(b))
	f.result(f.bind(configMap(ns, "c", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	f.untouched(oak, before)
	f.edit(b, func(s *workv1alpha2.BindingSpec) { s.GracefulEvictionTasks = nil })
	f.gone(oak, before)
	f.unjoin("oak")
}

func TestWhatWasThereBefore(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	f.must(oak.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	create := func(name, value string) *corev1.ConfigMap {
		o := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}},
			Data:       map[string]string{"key": value},
		}
		f.must(oak.Create(t.Context(), o))
		return o
	}
	equal, other := create("equal", "1"), create("other", "theirs")
	overwrite := func(s *workv1alpha2.BindingSpec) {
		clusterWide(s)
		s.ConflictResolution = policyv1alpha1.ConflictOverwrite
	}

	adopted := f.bind(configMap(ns, "equal", "1"), clusterWide, "oak")
	f.result(adopted, "oak", workv1alpha2.ReasonFullyApplied)
	if o := f.marked(oak, equal, adopted.UID); o.Annotations[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginAdopted || o.Labels["app.kubernetes.io/managed-by"] == "" {
		t.Errorf("annotations %v, labels %v", o.Annotations, o.Labels)
	}
	web := deployment(ns, "web", 2, "i:1")
	web.SetUID("")
	f.must(oak.Create(t.Context(), web))
	f.result(f.bind(deployment(ns, "web", 2, "i:1"), clusterWide, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	refused := f.bind(configMap(ns, "other", "1"), clusterWide, "oak")
	f.result(refused, "oak", workv1alpha2.ReasonConflict)
	if o := f.untouched(oak, other); o.ResourceVersion != other.ResourceVersion {
		t.Error("an object in conflict was written")
	}
	f.must(f.hub.Delete(t.Context(), refused))
	f.gone(f.hub, refused)
	taken := f.bind(configMap(ns, "other", "1"), overwrite, "oak")
	f.result(taken, "oak", workv1alpha2.ReasonFullyApplied)
	f.data(oak, ns, "other", "1")

	// The objects follow their templates, and stay when the templates are deleted.
	f.templates.set(configMap(ns, "equal", "2"))
	f.data(oak, ns, "equal", "2")
	for name, b := range map[string]*workv1alpha2.ResourceBinding{"equal": adopted, "other": taken} {
		f.must(f.hub.Delete(t.Context(), b))
		f.gone(f.hub, b)
		o := &corev1.ConfigMap{}
		f.must(oak.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, o))
		if !o.DeletionTimestamp.IsZero() || o.Labels[workv1alpha2.BindingLabel] != "" || o.Annotations[workv1alpha2.OriginAnnotation] != "" || o.Annotations[workv1alpha2.OwnedAnnotation] != "" {
			t.Errorf("%s was not left without our marks: %v", name, o.ObjectMeta)
		}
	}
	f.unjoin("oak")
}

func TestNamespacesThatHoldWhatOthersMadeAreKept(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	kept := func(t *testing.T, c client.Client, ns, mark string) {
		t.Helper()
		f.eventually("namespace "+ns+" is kept without our mark", func() error {
			n := &corev1.Namespace{}
			f.must(c.Get(t.Context(), client.ObjectKey{Name: ns}, n))
			if !n.DeletionTimestamp.IsZero() {
				t.Fatal("the namespace is being deleted")
			}
			if n.Labels[mark] != "" {
				return fmt.Errorf("labels %v", n.Labels)
			}
			return nil
		})
	}
	for name, theirs := range map[string]client.Object{
		"ConfigMap": &corev1.ConfigMap{},
		"Claim": &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			b := f.bind(configMap(ns, "a", "1"), nil, "oak")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			theirs.SetNamespace(ns)
			theirs.SetName("theirs")
			f.must(oak.Create(t.Context(), theirs))
			f.must(f.hub.Delete(t.Context(), b))
			f.gone(f.hub, b)
			n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
			f.must(f.hub.Delete(t.Context(), n))
			f.finalizeNamespace(testenv.Config(hubServer), ns)
			kept(t, oak, ns, workv1alpha2.NamespaceLabel)
			f.must(oak.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs))
			f.eventually("an event says so", func() error {
				list := &corev1.EventList{}
				f.must(f.hub.List(t.Context(), list))
				if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
					return e.Reason == "NamespaceKept" && strings.Contains(e.Message, ns) && strings.Contains(e.Message, "theirs")
				}) {
					return errors.New("none does")
				}
				return nil
			})
		})
	}
	t.Run("PlacedNamespaceThatMoves", func(t *testing.T) {
		f.t = t
		defer func() { f.t = f.whole }()
		f.join("elm", testenv.Kubeconfig(elmServer))
		elm := f.client(testenv.Config(elmServer))
		ns := testenv.Namespace(t, testenv.Config(hubServer))
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		o.SetName(ns)
		o.SetUID(types.UID("template-" + ns))
		f.templates.set(o)
		b := &workv1alpha2.ClusterResourceBinding{
			ObjectMeta: metav1.ObjectMeta{Name: ns + "-namespace", Finalizers: []string{workv1alpha2.Finalizer}},
			Spec: workv1alpha2.BindingSpec{
				Resource:  workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: ns, UID: o.GetUID()},
				PolicyRef: workv1alpha2.PolicyReference{Kind: "ClusterPropagationPolicy", Name: "p"},
				Clusters:  targets([]string{"elm", "oak"}),
			},
		}
		f.must(f.hub.Create(t.Context(), b))
		f.cleared(b)
		f.result(b.Binding(), "elm", workv1alpha2.ReasonFullyApplied)
		f.result(b.Binding(), "oak", workv1alpha2.ReasonFullyApplied)
		f.must(elm.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "theirs"}}))
		f.eventually("it moves", func() error {
			if err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
				return err
			}
			b.Spec.Clusters = targets([]string{"oak"})
			b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "elm"}}
			return f.hub.Update(t.Context(), b)
		})
		kept(t, elm, ns, workv1alpha2.BindingLabel)
		f.must(elm.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "theirs"}, &corev1.ConfigMap{}))
		f.unjoin("elm")
	})
	f.unjoin("oak")
}

// deployment returns a template of a Deployment.
func deployment(namespace, name string, replicas int64, image string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"replicas": replicas,
		"selector": map[string]any{"matchLabels": map[string]any{"app": name}},
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": name}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": image}}},
		},
	}}}
	o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetUID(types.UID("template-" + name))
	return o
}

// becomesAvailable waits until a Deployment asks for the replicas, and sets its status as the
// controllers of a member do.
func (f *fleet) becomesAvailable(c client.Client, ns, name string, replicas, available int32) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%d of %d replicas of %s serve", available, replicas, name), func() error {
		d := &appsv1.Deployment{}
		if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: name}, d); err != nil {
			return err
		}
		if *d.Spec.Replicas != replicas {
			return fmt.Errorf("%d are asked for", *d.Spec.Replicas)
		}
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: replicas, UpdatedReplicas: replicas,
			ReadyReplicas: available, AvailableReplicas: available,
		}
		return c.Status().Update(f.t.Context(), d)
	})
}

// shares changes the shares of a binding, and the replicas that move out of clusters.
func (f *fleet) shares(b *workv1alpha2.ResourceBinding, shares, moving map[string]int32) {
	f.t.Helper()
	f.eventually("new shares", func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		set(&b.Spec, shares, moving)
		return f.hub.Update(f.t.Context(), b)
	})
}

func set(s *workv1alpha2.BindingSpec, shares, moving map[string]int32) {
	s.ReplicaSchedulingType, s.Clusters, s.GracefulEvictionTasks = policyv1alpha1.Divided, nil, nil
	var sum int32
	for _, name := range []string{"elm", "oak"} {
		if n, ok := shares[name]; ok {
			s.Clusters = append(s.Clusters, workv1alpha2.TargetCluster{Name: name, Replicas: new(n)})
			sum += n
		}
		if n, ok := moving[name]; ok {
			s.GracefulEvictionTasks = append(s.GracefulEvictionTasks, workv1alpha2.GracefulEvictionTask{FromCluster: name, Replicas: new(n)})
		}
	}
	s.Replicas = new(sum)
}

func TestAMoveLosesNoAvailableReplica(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("elm", testenv.Kubeconfig(elmServer))
	f.join("oak", testenv.Kubeconfig(oakServer))
	elm, oak := f.client(testenv.Config(elmServer)), f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	settings := f.bind(configMap(ns, "settings", "1"), nil, "elm")
	b := f.bind(deployment(ns, "web", 10, "i:1"), func(s *workv1alpha2.BindingSpec) { set(s, map[string]int32{"elm": 5, "oak": 5}, nil) })
	f.becomesAvailable(elm, ns, "web", 5, 5)
	f.becomesAvailable(oak, ns, "web", 5, 4) // one does not start
	f.data(elm, ns, "settings", "1")
	seen := func() {
		t.Helper()
		f.eventually("the mirror has seen what serves", func() error {
			for _, o := range f.mirror.Placed(b.UID) {
				d := &appsv1.Deployment{}
				f.must(map[string]client.Client{"elm": elm, "oak": oak}[o.Cluster].Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, d))
				if o.ResourceVersion != d.ResourceVersion {
					return fmt.Errorf("%s is at %s, not %s", o.Cluster, o.ResourceVersion, d.ResourceVersion)
				}
			}
			return nil
		})
	}

	// All replicas move to oak. elm keeps its five, and the ConfigMap that they need, until ten
	// are available in oak.
	f.shares(b, map[string]int32{"oak": 10}, map[string]int32{"elm": 5})
	f.move(settings, "oak")
	f.data(oak, ns, "settings", "1")
	f.becomesAvailable(oak, ns, "web", 10, 9)
	seen()
	f.result(settings, "oak", workv1alpha2.ReasonFullyApplied)
	still := &appsv1.Deployment{}
	f.must(elm.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, still))
	if *still.Spec.Replicas != 5 || !still.DeletionTimestamp.IsZero() {
		t.Errorf("elm has %d replicas while nine of ten serve in oak", *still.Spec.Replicas)
	}
	f.must(elm.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "settings"}, &corev1.ConfigMap{}))
	f.becomesAvailable(oak, ns, "web", 10, 10)
	f.gone(elm, still)
	f.gone(elm, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "settings"}})

	// Six of ten move back: oak scales down only as replicas become available in elm.
	f.shares(b, map[string]int32{"elm": 6, "oak": 4}, map[string]int32{"oak": 6})
	f.becomesAvailable(elm, ns, "web", 6, 2)
	f.becomesAvailable(oak, ns, "web", 8, 8)
	f.becomesAvailable(elm, ns, "web", 6, 6)
	f.becomesAvailable(oak, ns, "web", 4, 4)

	// A scale-down by a user is no move, even if no replica of a cluster is available.
	f.becomesAvailable(elm, ns, "web", 6, 0)
	fewer := deployment(ns, "web", 3, "i:1")
	fewer.SetGeneration(1)
	f.templates.set(fewer)
	f.eventually("the placement is of the template as it is", func() error {
		if err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		b.Spec.Resource.Generation = 1
		set(&b.Spec, map[string]int32{"elm": 2, "oak": 1}, nil)
		return f.hub.Update(t.Context(), b)
	})
	f.becomesAvailable(oak, ns, "web", 1, 1)
	f.becomesAvailable(elm, ns, "web", 2, 1)

	// Without an eviction task, too, replicas move: a restored hub knows other shares than the
	// clusters have.
	f.shares(b, map[string]int32{"oak": 3}, nil)
	f.becomesAvailable(oak, ns, "web", 3, 1)
	seen()
	f.becomesAvailable(elm, ns, "web", 2, 2)
	f.becomesAvailable(oak, ns, "web", 3, 3)
	f.gone(elm, still)
	f.shares(b, map[string]int32{"elm": 2, "oak": 1}, nil)
	f.becomesAvailable(elm, ns, "web", 2, 0)
	seen()
	f.becomesAvailable(oak, ns, "web", 3, 3)
	f.becomesAvailable(elm, ns, "web", 2, 2)
	f.becomesAvailable(oak, ns, "web", 1, 1)

	// So do those of an orphan that is taken back with more replicas than the share of its
	// cluster.
	f.unjoin("elm")
	f.shares(b, map[string]int32{"oak": 3}, nil)
	f.becomesAvailable(oak, ns, "web", 3, 1)
	f.join("elm", testenv.Kubeconfig(elmServer))
	f.shares(b, map[string]int32{"elm": 1, "oak": 2}, nil)
	f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
	f.must(elm.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, still))
	if *still.Spec.Replicas != 2 {
		t.Errorf("elm was taken back with %d replicas while one of three serves in oak", *still.Spec.Replicas)
	}
	f.becomesAvailable(oak, ns, "web", 3, 3)
	f.becomesAvailable(elm, ns, "web", 1, 1)
	f.becomesAvailable(oak, ns, "web", 2, 2)
	f.unjoin("elm")
	f.unjoin("oak")
}

func TestARestoredHubDeletesAndRollsBackNothingUntilThatIsConfirmed(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	changed := f.bind(configMap(ns, "changed", "1"), nil, "oak")
	removed := f.bind(configMap(ns, "removed", "1"), nil, "oak")
	f.result(changed, "oak", workv1alpha2.ReasonFullyApplied)
	f.result(removed, "oak", workv1alpha2.ReasonFullyApplied)

	// The lost hub wrote a later version of the template after the backup.
	later := f.data(oak, ns, "changed", "1")
	from, err := f.applier.key().Verify(later.Annotations[workv1alpha2.SourceAnnotation])
	f.must(err)
	from.Version += 1 << 40
	f.rewrite(oak, later, func(o *corev1.ConfigMap) {
		o.Data["key"] = "later"
		o.Annotations[workv1alpha2.DigestAnnotation] = "later"
		o.Annotations[workv1alpha2.SourceAnnotation] = f.applier.key().Sign(from)
	})
	f.result(changed, "oak", workv1alpha2.ReasonHubRestored)
	state := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: RestoreConfigMap}
	f.must(f.hub.Get(t.Context(), key, state))
	if state.Data["state"] != RestoreSuspected || !strings.Contains(state.Data["reason"], "changed") {
		t.Errorf("the hub says %v", state.Data)
	}

	deletes := f.calls("delete")
	f.must(f.hub.Delete(t.Context(), removed))
	f.bind(configMap(ns, "new", "1"), nil, "oak") // a new template is placed all the same
	f.data(oak, ns, "new", "1")
	f.stop()
	f.start() // the suspicion survives a restart
	f.eventually("oak is reachable", func() error { return f.reachable("oak") })
	f.templates.set(configMap(ns, "changed", "2"))
	f.result(changed, "oak", workv1alpha2.ReasonHubRestored)
	f.data(oak, ns, "changed", "later")
	f.data(oak, ns, "removed", "1")
	if made := f.calls("delete") - deletes; made != 0 {
		t.Errorf("%v deletions were made", made)
	}

	f.must(f.hub.Get(t.Context(), key, state))
	state.Data["state"] = RestoreConfirmed
	f.must(f.hub.Update(t.Context(), state))
	f.data(oak, ns, "changed", "2")
	f.gone(f.hub, removed)
	f.gone(oak, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "removed"}})
	f.result(changed, "oak", workv1alpha2.ReasonFullyApplied)

	// A member can replay its own marks, but no mark that it forges makes the hub suspect a
	// restore.
	f.rewrite(oak, f.data(oak, ns, "changed", "2"), func(o *corev1.ConfigMap) {
		o.Annotations[workv1alpha2.SourceAnnotation] = mark.Key("a key that somebody made up").Sign(from)
		o.Annotations[workv1alpha2.DigestAnnotation] = "forged"
	})
	f.eventually("the mark is put right", func() error {
		o := f.data(oak, ns, "changed", "2")
		_, err := f.applier.key().Verify(o.Annotations[workv1alpha2.SourceAnnotation])
		return err
	})
	f.must(f.hub.Get(t.Context(), key, state))
	if state.Data["state"] != RestoreConfirmed {
		t.Error("a forged mark makes the hub suspect a restore")
	}
	f.must(f.hub.Delete(t.Context(), state))
	f.unjoin("oak")
}

func TestDriftMadeWhileTheHubWasDownIsRepaired(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	f.stop()
	o := f.data(oak, ns, "a", "1")
	o.Data["key"] = "edited"
	f.must(oak.Update(t.Context(), o))
	f.start()
	f.data(oak, ns, "a", "1")
	f.unjoin("oak")
}
