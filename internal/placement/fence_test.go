package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
)

// letsInto returns a ClusterAccess for the namespaces with the label tenant=NAME.
func letsInto(name string, clusters ...string) *policyv1alpha1.ClusterAccess {
	return &policyv1alpha1.ClusterAccess{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1alpha1.ClusterAccessSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": name}},
			ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: clusters},
		},
	}
}

// fenced returns a fleet in which the namespace shop belongs to the tenant of that name.
func fenced(t *testing.T, s *fleet.Snapshot, accesses ...*policyv1alpha1.ClusterAccess) *fleet.Snapshot {
	t.Helper()
	rules := access.NewRules(access.All)
	rules.Namespace("shop", labels.Set{"tenant": "shop"})
	for _, a := range accesses {
		if _, err := rules.Access(a); err != nil {
			t.Fatal(err)
		}
	}
	return s.WithAccess(rules.Set())
}

func TestDecideBehindAFence(t *testing.T) {
	const whole, shares = policyv1alpha1.Duplicated, policyv1alpha1.Divided
	gpu := func(c *fleet.Cluster) { c.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}} }
	tolerating := policyv1alpha1.Placement{ClusterTolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
	granting := letsInto("shop", "a", "b")
	granting.Spec.ClusterTolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	wide := claimedTemplate(4, tolerating)
	wide.Claims[0].Policy = wide.Claims[0].Policy.DeepCopy()
	wide.Claims[0].Policy.Namespace, wide.Placement = "", wide.Placement.Trusted()
	role := ofPolicy(workload("ClusterRole", nil), in())
	role.Object.SetNamespace("")
	elsewhere := claimedTemplate(4, in())
	elsewhere.Object.SetNamespace("unheard-of")

	cases := map[string]struct {
		fleet    []*fleet.Cluster // clusters a, b and c
		accesses []*policyv1alpha1.ClusterAccess
		template Template
		binding  *workv1alpha2.ResourceBinding
		want     string // "early": no decision yet
		reason   string // of the condition Scheduled
		message  string
		verdicts map[string]string // verdicts about the fence: clusters by reason
	}{
		"OtherNamespaces": {accesses: []*policyv1alpha1.ClusterAccess{letsInto("other", "a")}, template: claimedTemplate(4, in()), want: "a=4 b=4 c=4"},
		"One": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: claimedTemplate(4, policyv1alpha1.Placement{}), want: "a=4",
			message: "1 of 1 clusters", verdicts: map[string]string{scheduler.ReasonFenced: "b c"},
		},
		"Shares": {accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a", "c")}, template: claimedTemplate(4, sharedIn("a", "b", "c")), want: "a=2 c=2", verdicts: map[string]string{scheduler.ReasonFenced: "b"}},
		"Named": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: claimedTemplate(4, in("b")), want: "",
			reason:   workv1alpha2.ReasonNoClusterFits,
			message:  "the policy selects no cluster that the namespace may use; b: UnknownCluster, no cluster that the namespace may use has this name: correct the policy, or join the cluster",
			verdicts: map[string]string{scheduler.ReasonFenced: "b c"},
		},
		// Placed replicas stay, with a message; nothing moves.
		"Closed": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: claimedTemplate(4, sharedIn("a", "b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "a=2 b=2",
			message:  "b: the namespace may not use it any more, and what was placed there before stays",
			verdicts: map[string]string{scheduler.ReasonFenced: "c", scheduler.ReasonStaysFenced: "b"},
		},
		"ClosedEverywhere": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop")}, template: claimedTemplate(4, in("a")),
			binding: placedBinding(whole, 4, in("a"), "a=4"), want: "a=4",
		},
		"ClosedAndNotMeant": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: claimedTemplate(4, in("a")),
			binding: placedBinding(whole, 4, in("a", "b"), "a=4 b=4"), want: "a=4 -b=4", verdicts: map[string]string{scheduler.ReasonFenced: "c"},
		},
		"TolerationNotGranted": {
			fleet: []*fleet.Cluster{fine("a"), but("b", gpu), fine("c")}, accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a", "b")},
			template: claimedTemplate(4, tolerating), want: "a=4", message: "may not be tolerated: no ClusterAccess grants that in clusterTolerations",
			verdicts: map[string]string{scheduler.ReasonFenced: "c"},
		},
		"TolerationGranted": {
			fleet: []*fleet.Cluster{fine("a"), but("b", gpu), fine("c")}, accesses: []*policyv1alpha1.ClusterAccess{granting},
			template: claimedTemplate(4, tolerating), want: "a=4 b=4", verdicts: map[string]string{scheduler.ReasonFenced: "c"},
		},
		"GrantedIsNotTolerated": {
			fleet: []*fleet.Cluster{fine("a"), but("b", gpu), fine("c")}, accesses: []*policyv1alpha1.ClusterAccess{granting},
			template: claimedTemplate(4, policyv1alpha1.Placement{}), want: "a=4", verdicts: map[string]string{scheduler.ReasonFenced: "c"},
		},
		"TolerationWithoutAFence": {
			fleet: []*fleet.Cluster{fine("a"), but("b", gpu), fine("c")}, template: claimedTemplate(4, tolerating), want: "a=4 b=4 c=4",
		},
		// An administrator's tolerations need no grant. The namespace still needs access.
		"ClusterPolicy": {
			fleet: []*fleet.Cluster{fine("a"), but("b", gpu), fine("c")}, accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a", "b")},
			template: wide, want: "a=4 b=4", verdicts: map[string]string{scheduler.ReasonFenced: "c"},
		},
		"ClusterScoped":        {accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: role, want: "a b c"},
		"NamespaceNotKnownYet": {accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: elsewhere, want: "early"},
		"NamespaceNotKnownStands": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: elsewhere,
			binding: placedBinding(whole, 4, in("a"), "a=4"), want: "early",
		},
		// A closed cluster looks like a missing one, also to an object that is in another
		// cluster.
		"MovesToAClosedCluster": {
			accesses: []*policyv1alpha1.ClusterAccess{letsInto("shop", "a")}, template: claimedTemplate(4, in("b")),
			binding: placedBinding(whole, 4, in("a"), "a=4"), want: "", reason: workv1alpha2.ReasonNoClusterFits,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clusters := tc.fleet
			if clusters == nil {
				clusters = []*fleet.Cluster{fine("a"), fine("b"), fine("c")}
			}
			s := fenced(t, fleet.NewSnapshot(5, clusters...), tc.accesses...)
			d := Decide(s, tc.template, CurrentState{Binding: tc.binding})
			if d.Spec == nil {
				if tc.want != "early" || d.RetryAfter == 0 {
					t.Errorf("no decision, and the next after %s", d.RetryAfter)
				}
				return
			}
			if got := where(d.Spec); got != tc.want {
				t.Errorf("placed %q, want %q", got, tc.want)
			}
			if want := cmpOr(tc.reason, scheduled); d.Outcome.Reason != want {
				t.Errorf("reason %s, want %s", d.Outcome.Reason, want)
			}
			if !strings.Contains(d.Outcome.Message, tc.message) {
				t.Errorf("message %q lacks %q", d.Outcome.Message, tc.message)
			}
			if tc.verdicts != nil {
				if diff := cmp.Diff(tc.verdicts, fencedVerdicts(d.Record)); diff != "" {
					t.Errorf("verdicts of the fence (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// fencedVerdicts returns the clusters of verdicts about the fence, by reason.
func fencedVerdicts(d records.Decision) map[string]string {
	said := map[string]string{}
	for _, v := range d.Verdicts {
		if v.Reason == scheduler.ReasonFenced || v.Reason == scheduler.ReasonStaysFenced {
			said[v.Reason] = strings.Join(v.Clusters, " ")
		}
	}
	return said
}

// TestFenceConcerns: a fence by labels of a cluster concerns the objects behind it.
func TestFenceConcerns(t *testing.T) {
	labelled := but("a", func(c *fleet.Cluster) { c.Labels = labels.Set{"env": "prod"} })
	prod := letsInto("shop")
	prod.Spec.ClusterAffinity = &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	fence := schedulerFence(fenced(t, fleet.NewSnapshot(1), prod).Fence("shop"))
	everywhere, kind := scheduler.Compile(policyv1alpha1.Placement{}), workload("Deployment", nil).GroupVersionKind()
	for name, tc := range map[string]struct {
		before, after *fleet.Cluster
		fence         scheduler.Fence
		placed, want  bool
	}{
		"Opens":        {fine("a"), labelled, fence, false, true},
		"Closes":       {labelled, fine("a"), fence, false, true},
		"ClosesPlaced": {labelled, fine("a"), fence, true, true},
		"NoFence":      {labelled, fine("a"), nil, false, false},
		"Stays":        {labelled, labelled, fence, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := everywhere.Concerns(tc.before, tc.after, kind, tc.fence, tc.placed); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// TestFenceChanges: changes of ClusterAccesses and of labels of namespaces take effect, and no
// other template is decided again.
func TestFenceChanges(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.clusters[0], w.clusters[1]
	w.create(w.policy("p", deployments()))
	w.create(deployment("first", 1, nil))
	w.waitPlaced("first-deployment", "a=1 b=1", scheduled)

	fence := letsInto(w.namespace, a)
	w.create(fence)
	namespace := &corev1.Namespace{}
	label := func(change func(map[string]string)) {
		t.Helper()
		namespace.Name = w.namespace
		update(w, namespace, func(n *corev1.Namespace) { change(n.Labels) })
	}
	label(func(l map[string]string) { l["tenant"] = w.namespace })
	// The object stays in b, with a message.
	w.eventually("the outcome on what stands", func() error {
		binding := w.waitPlaced("first-deployment", "a=1 b=1", scheduled)
		if v, _ := w.controller.Outcome(binding.UID); !strings.Contains(v.Message, b+": the namespace may not use it any more") || strings.Contains(v.Message, "ClusterAccess") {
			return fmt.Errorf("message %q", v.Message)
		}
		return nil
	})
	w.create(deployment("second", 1, nil))
	w.waitPlaced("second-deployment", "a=1", scheduled)

	// An edit of the ClusterAccess opens the closed cluster, for this namespace only.
	other := deployment("other", 1, nil)
	other.Namespace = w.namespace + "-other"
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other.Namespace}})
	p := w.policy("p", deployments())
	p.Namespace = other.Namespace
	w.create(p)
	w.create(other)
	w.eventually("the other namespace", func() error {
		found := &workv1alpha2.ResourceBinding{}
		if err := w.client.Get(w.ctx, client.ObjectKey{Namespace: other.Namespace, Name: "other-deployment"}, found); err != nil {
			return err
		}
		if got := w.placed(found); got != "a=1 b=1" {
			return fmt.Errorf("placed %q", got)
		}
		return nil
	})
	notified := make(chan sets.Set[string], 16)
	w.controller.fleet.SubscribeFences(func(namespaces sets.Set[string]) { notified <- namespaces })
	update(w, fence, func(o *policyv1alpha1.ClusterAccess) { o.Spec.ClusterAffinity.ClusterNames = []string{a, b} })
	w.waitPlaced("second-deployment", "a=1 b=1", scheduled)
	if diff := cmp.Diff(sets.New(w.namespace), <-notified); diff != "" {
		t.Errorf("namespaces that are decided on again (-want +got):\n%s", diff)
	}

	// Without the label the ClusterAccess does not select the namespace. Without any ClusterAccess
	// it may use every cluster.
	update(w, fence, func(o *policyv1alpha1.ClusterAccess) { o.Spec.ClusterAffinity.ClusterNames = []string{"none"} })
	w.create(deployment("third", 1, nil))
	w.waitPlaced("third-deployment", "", workv1alpha2.ReasonNoClusterFits)
	label(func(l map[string]string) { delete(l, "tenant") })
	w.waitPlaced("third-deployment", "a=1 b=1", scheduled)
}

// TestPolicyOfAClosedCluster: the status of a policy reports a cluster that is closed to the
// policy's namespace as a cluster that the hub does not have, until the cluster is opened.
func TestPolicyOfAClosedCluster(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.clusters[0], w.clusters[1]
	fence := letsInto(w.namespace, a)
	w.create(fence)
	namespace := &corev1.Namespace{}
	namespace.Name = w.namespace
	update(w, namespace, func(n *corev1.Namespace) { n.Labels["tenant"] = w.namespace })
	p := w.policy("p", deployments())
	p.Spec.Placement.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ClusterNames: []string{a, b, w.namespace + "-none"}}
	w.create(p)
	const says = "the hub has no cluster that the namespace may use with the name "
	w.waitStatus(p, 0, map[string]string{complete: policyv1alpha1.ReasonUnknownCluster}, says+b+"; "+w.namespace+"-none")
	update(w, fence, func(o *policyv1alpha1.ClusterAccess) { o.Spec.ClusterAffinity.ClusterNames = []string{a, b} })
	w.waitStatus(p, 0, map[string]string{complete: policyv1alpha1.ReasonUnknownCluster}, says+w.namespace+"-none")
}

// TestClusterAccessIsValidated: invalid ClusterAccesses are refused.
func TestClusterAccessIsValidated(t *testing.T) {
	w := newWorld(t, 0)
	for name, tc := range map[string]struct {
		change func(*policyv1alpha1.ClusterAccessSpec)
		says   string
	}{
		"NoSelector": {func(s *policyv1alpha1.ClusterAccessSpec) { s.NamespaceSelector = nil }, "spec.namespaceSelector"},
		"Operator": {func(s *policyv1alpha1.ClusterAccessSpec) {
			s.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like", Values: []string{"b"}}}
		}, "operator is one of"},
		"NoValues": {func(s *policyv1alpha1.ClusterAccessSpec) {
			s.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn}}
		}, "need values"},
		"Values": {func(s *policyv1alpha1.ClusterAccessSpec) {
			s.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpExists, Values: []string{"b"}}}
		}, "have none"},
	} {
		t.Run(name, func(t *testing.T) {
			o := letsInto(w.namespace)
			tc.change(&o.Spec)
			if err := w.client.Create(w.ctx, o); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want an error that says %q", err, tc.says)
			}
		})
	}
}

// TestDecideBehindAFenceAllocates: a decision allocates nothing for each cluster behind a fence.
func TestDecideBehindAFenceAllocates(t *testing.T) {
	prod := letsInto("shop")
	prod.Spec.ClusterAffinity = &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "7"}}}
	s, template := fenced(t, thousand(), prod), claimedTemplate(10, policyv1alpha1.Placement{})
	b := &workv1alpha2.ResourceBinding{Spec: *Decide(s, template, CurrentState{}).Spec}
	chosen := len(b.Spec.Clusters)
	if chosen != 10 {
		t.Fatalf("%d clusters chosen, want 10", chosen)
	}
	if got, most := testing.AllocsPerRun(20, func() { Decide(s, template, CurrentState{Binding: b}) }), float64(50+2*chosen); got > most {
		t.Errorf("%v allocations, want at most %v", got, most)
	}
}
