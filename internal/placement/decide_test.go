package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
)

func fine(name string) *fleet.Cluster {
	return &fleet.Cluster{Name: name, UID: types.UID("uid-" + name), Reachable: true, Joined: true, APIs: kinds(presence.Present)}
}

func but(name string, change func(*fleet.Cluster)) *fleet.Cluster {
	c := fine(name)
	change(c)
	return c
}

// claimedTemplate returns the Template of a Deployment, with a claim of a policy that has the
// placement.
func claimedTemplate(replicas int32, placement policyv1alpha1.Placement) Template {
	return ofPolicy(workload("Deployment", map[string]any{"replicas": int64(replicas)}), placement)
}

func workload(kind string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": kind,
		"metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "template", "generation": int64(7)},
		"spec":     spec,
	}}
}

func ofPolicy(o *unstructured.Unstructured, placement policyv1alpha1.Placement) Template {
	p := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Generation: 3},
		Spec:       policyv1alpha1.PropagationSpec{Placement: placement},
	}
	t := Template{
		Object: o, Claims: []policy.Claim{{Policy: p, GVK: o.GroupVersionKind()}},
		Placement: scheduler.Compile(placement), PlacementHash: hash(placement),
	}
	d := demandOf(o)
	t.Replicas, t.Claim, t.Components = interpreter.Replicas(o), d.claim, d.components
	return t
}

func in(clusters ...string) policyv1alpha1.Placement {
	return policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: clusters}}
}

func sharedIn(clusters ...string) policyv1alpha1.Placement {
	p := in(clusters...)
	p.ReplicaScheduling = divided(nil)
	return p
}

// placedBinding returns a binding with a placement written as in world.placed: "a=2 b -c=1".
func placedBinding(kind policyv1alpha1.ReplicaSchedulingType, replicas int32, placement policyv1alpha1.Placement, where string) *workv1alpha2.ResourceBinding {
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment", UID: "binding", Generation: 1},
		Spec: workv1alpha2.BindingSpec{
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"}, PlacementHash: hash(placement),
			Replicas: &replicas, ReplicaSchedulingType: kind,
		},
	}
	if kind == "" {
		b.Spec.Replicas = nil
	}
	for part := range strings.FieldsSeq(where) {
		name, n, counted := strings.Cut(part, "=")
		var replicas *int32
		if counted {
			var parsed int32
			_, _ = fmt.Sscan(n, &parsed)
			replicas = &parsed
		}
		if from, moving := strings.CutPrefix(name, "-"); moving {
			b.Spec.GracefulEvictionTasks = append(b.Spec.GracefulEvictionTasks, workv1alpha2.GracefulEvictionTask{FromCluster: from, Replicas: replicas})
		} else {
			b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: name, Replicas: replicas})
		}
	}
	return b
}

// rescheduled sets when a new placement was requested, and which request was done, in seconds; 0:
// none.
func rescheduled(b *workv1alpha2.ResourceBinding, asked, done int64) *workv1alpha2.ResourceBinding {
	b.Spec.RescheduleTriggeredAt = new(metav1.Unix(asked, 0))
	if done > 0 {
		b.Spec.RescheduledFor = new(metav1.Unix(done, 0))
	}
	return b
}

func where(spec *workv1alpha2.BindingSpec) string {
	return (&world{}).placed(&workv1alpha2.ResourceBinding{Spec: *spec})
}

func TestDecide(t *testing.T) {
	const whole, shares = policyv1alpha1.Duplicated, policyv1alpha1.Divided
	silent := func(c *fleet.Cluster) { c.Reachable, c.APIs = false, nil }
	unserved := func(c *fleet.Cluster) { c.APIs = kinds(presence.Absent) }
	tainted := func(c *fleet.Cluster) { c.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}} }
	leaving := func(c *fleet.Cluster) { c.Leaving = true }
	withCapacity := func(n int64) func(*fleet.Cluster) { return func(c *fleet.Cluster) { c.FreeCapacity = free(n) } }
	byCapacity := in("a", "b")
	byCapacity.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	edited := byCapacity
	edited.ClusterTolerations = []corev1.Toleration{{Key: "k"}}
	weighted := sharedIn("a", "b")
	weighted.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{StaticWeightList: []policyv1alpha1.StaticClusterWeight{
		{TargetCluster: *in("a").ClusterAffinity, Weight: 1},
	}})
	groups := policyv1alpha1.Placement{ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{
		{AffinityName: "first", ClusterAffinity: *in("a").ClusterAffinity}, {AffinityName: "second", ClusterAffinity: *in("b").ClusterAffinity},
	}}
	unclaimed := claimedTemplate(4, in())
	unclaimed.Claims, unclaimed.Placement, unclaimed.PlacementHash = nil, nil, ""
	secret := ofPolicy(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s", "namespace": "shop", "uid": "s"},
	}}, sharedIn("a", "b"))
	deleting := claimedTemplate(4, in("b"))
	deleting.Object.SetDeletionTimestamp(&metav1.Time{})
	now := metav1.Now()
	deleting.Object.SetDeletionTimestamp(&now)

	cases := map[string]struct {
		fleet    []*fleet.Cluster
		template Template
		binding  *workv1alpha2.ResourceBinding
		want     string
		kind     policyv1alpha1.ReplicaSchedulingType
		reason   string // of the condition Scheduled
		message  string
	}{
		"First": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: claimedTemplate(4, sharedIn("a", "b")),
			want: "a=2 b=2", kind: shares, message: "2 of 2 clusters",
		},
		"FirstWhole": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: claimedTemplate(4, in("a", "b")), want: "a=4 b=4", kind: whole,
		},
		// In a single cluster the numbers do not show whether they are shares.
		"OneShare": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: claimedTemplate(1, sharedIn("a")), want: "a=1", kind: shares,
		},
		"NothingToDivide": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: secret, want: "a b", message: "Secret s has no replicas to divide",
		},
		"SilentStays": {
			fleet: []*fleet.Cluster{fine("a"), but("b", silent)}, template: claimedTemplate(4, sharedIn("a", "b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "a=2 b=2", kind: shares,
		},
		"UnservedStays": {
			fleet: []*fleet.Cluster{fine("a"), but("b", unserved)}, template: claimedTemplate(4, sharedIn("a", "b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "a=2 b=2", kind: shares,
		},
		"UnservedGetsNothingNew": {
			fleet: []*fleet.Cluster{fine("a"), but("b", unserved)}, template: claimedTemplate(4, in("a", "b")),
			want: "a=4", kind: whole, message: "b: it does not serve the kind",
		},
		"TaintedStays": {
			fleet: []*fleet.Cluster{fine("a"), but("b", tainted)}, template: claimedTemplate(4, sharedIn("a", "b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "a=2 b=2", kind: shares,
		},
		"FullStays": {
			fleet: []*fleet.Cluster{but("a", withCapacity(0)), but("b", withCapacity(100))}, template: claimedTemplate(4, byCapacity),
			binding: placedBinding(shares, 4, byCapacity, "a=3 b=1"), want: "a=3 b=1", kind: shares,
		},
		"EditedPlacementSharesAnew": {
			fleet: []*fleet.Cluster{but("a", withCapacity(0)), but("b", withCapacity(9))}, template: claimedTemplate(4, edited),
			binding: placedBinding(shares, 4, byCapacity, "a=3 b=1"), want: "a=1 b=3 -a=2", kind: shares,
		},
		"LeavingGoes": {
			fleet: []*fleet.Cluster{but("a", leaving), fine("b")}, template: claimedTemplate(4, sharedIn("a", "b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "b=4", kind: shares,
		},
		"GoneGoes": {
			fleet: []*fleet.Cluster{fine("b")}, template: claimedTemplate(4, sharedIn("a", "b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "b=4", kind: shares,
		},
		"NotSelectedMoves": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: claimedTemplate(4, sharedIn("b")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "b=4 -a=2", kind: shares,
		},
		"NoWeightMoves": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: claimedTemplate(4, weighted),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=2"), want: "a=4 -b=2", kind: shares,
		},
		"NothingIsMeantGoes": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: claimedTemplate(4, sharedIn("yew")),
			binding: placedBinding(shares, 4, sharedIn("a", "b"), "a=2 b=1 -a=1"), kind: shares, reason: workv1alpha2.ReasonNoClusterFits, message: "selects no cluster of the fleet",
		},
		"PartIsPlaced": {
			fleet: []*fleet.Cluster{but("a", withCapacity(3)), but("b", withCapacity(0))}, template: claimedTemplate(4, byCapacity),
			want: "a=3", kind: shares, reason: workv1alpha2.ReasonInsufficient, message: "3 of 4 replicas are placed",
		},
		"PartMoves": {
			fleet: []*fleet.Cluster{fine("a"), but("b", withCapacity(1)), fine("c")}, template: claimedTemplate(4, byCapacity),
			binding: placedBinding(shares, 4, byCapacity, "c=4"), want: "b=1 -c=4", kind: shares, reason: workv1alpha2.ReasonInsufficient,
		},
		"PartShrinksAsItMoves": {
			fleet: []*fleet.Cluster{but("a", withCapacity(9)), fine("b"), fine("c")}, template: claimedTemplate(2, byCapacity),
			binding: placedBinding(shares, 6, byCapacity, "c=3"), want: "a=2 -c=2", kind: shares,
		},
		"Rescheduled": {
			fleet: []*fleet.Cluster{but("a", withCapacity(0)), but("b", withCapacity(9))}, template: claimedTemplate(4, byCapacity),
			binding: rescheduled(placedBinding(shares, 4, byCapacity, "a=3 b=1"), 1, 0), want: "a=1 b=3 -a=2", kind: shares,
		},
		"RescheduledBefore": {
			fleet: []*fleet.Cluster{but("a", withCapacity(0)), but("b", withCapacity(9))}, template: claimedTemplate(4, byCapacity),
			binding: rescheduled(placedBinding(shares, 4, byCapacity, "a=3 b=1"), 1, 1), want: "a=3 b=1", kind: shares,
		},
		"OtherGroup": {
			fleet: []*fleet.Cluster{but("a", leaving), fine("b")}, template: claimedTemplate(4, groups),
			binding: placedBinding(whole, 4, groups, "a=4"), want: "b=4", kind: whole, message: "1 of 1 clusters of second",
		},
		"NothingFitsStays": {
			fleet: []*fleet.Cluster{fine("a"), but("b", silent)}, template: claimedTemplate(4, in("b")),
			binding: placedBinding(shares, 4, sharedIn("a"), "a=4"), want: "a=4", kind: shares, reason: workv1alpha2.ReasonNoClusterFits,
		},
		"UnclaimedStays": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: unclaimed,
			binding: placedBinding(shares, 2, sharedIn("a", "b"), "a=1 b=1"), want: "a=2 b=2", kind: shares, reason: workv1alpha2.ReasonPolicyGone,
		},
		"UnclaimedOneShare": {
			fleet: []*fleet.Cluster{fine("a")}, template: unclaimed,
			binding: placedBinding(shares, 1, sharedIn("a"), "a=1"), want: "a=4", kind: shares, reason: workv1alpha2.ReasonPolicyGone,
		},
		"UnclaimedStillMoves": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: unclaimed,
			binding: placedBinding(shares, 4, sharedIn("b"), "b=4 -a=2"), want: "b=4 -a=2", kind: shares, reason: workv1alpha2.ReasonPolicyGone,
		},
		// A template that is being deleted is removed; nothing of it waits for a move.
		"DeletedDoesNotMove": {
			fleet: []*fleet.Cluster{fine("a"), fine("b")}, template: deleting,
			binding: placedBinding(whole, 4, in("a"), "a=4"), want: "b=4", kind: whole,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := fleet.NewSnapshot(5, tc.fleet...)
			d := Decide(s, tc.template, CurrentState{Binding: tc.binding})
			if got := where(d.Spec); got != tc.want {
				t.Errorf("placed %q, want %q", got, tc.want)
			}
			if d.Spec.ReplicaSchedulingType != tc.kind {
				t.Errorf("replicas are %q, want %q", d.Spec.ReplicaSchedulingType, tc.kind)
			}
			if want := cmpOr(tc.reason, scheduled); d.Outcome.Reason != want {
				t.Errorf("reason %s, want %s", d.Outcome.Reason, want)
			}
			if !strings.Contains(d.Outcome.Message, tc.message) {
				t.Errorf("message %q lacks %q", d.Outcome.Message, tc.message)
			}
			if d.Spec.Resource.Generation != tc.template.Object.GetGeneration() {
				t.Errorf("generation %d", d.Spec.Resource.Generation)
			}
			// A decision on a decided binding changes nothing.
			again := &workv1alpha2.ResourceBinding{Spec: *d.Spec}
			if d.Outcome.Reason == workv1alpha2.ReasonInsufficient {
				return // the placed replicas take capacity that the snapshot still has
			}
			if diff := cmp.Diff(d.Spec, Decide(s, tc.template, CurrentState{Binding: again}).Spec, cmpopts.EquateEmpty()); diff != "" && tc.template.Object.GetDeletionTimestamp() == nil {
				t.Errorf("the next decision is another (-first +second):\n%s", diff)
			}
		})
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func TestDecideWaitsForTheFleet(t *testing.T) {
	expected := but("b", func(c *fleet.Cluster) { c.Reachable, c.APIs, c.Expected = false, nil, true })
	s := fleet.NewSnapshot(1, fine("a"), expected)
	shares, whole := claimedTemplate(4, sharedIn("a", "b")), claimedTemplate(4, in("a", "b"))
	if d := Decide(s, shares, CurrentState{Starting: true}); d.Spec != nil || d.RetryAfter == 0 {
		t.Errorf("placed %q while the fleet is not known yet", where(d.Spec))
	}
	if d := Decide(s, shares, CurrentState{}); where(d.Spec) != "a=4" {
		t.Errorf("placed %q", where(d.Spec))
	}
	if d := Decide(s, whole, CurrentState{Starting: true}); where(d.Spec) != "a=4" {
		t.Errorf("placed %q", where(d.Spec))
	}

	inOne := in("a", "b")
	inOne.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MaxGroups: 1}}
	groups := policyv1alpha1.Placement{ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{
		{AffinityName: "primary", ClusterAffinity: *in("b").ClusterAffinity}, {AffinityName: "backup", ClusterAffinity: *in("a").ClusterAffinity},
	}}
	settings := func(p policyv1alpha1.Placement) Template {
		return ofPolicy(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "web", "namespace": "shop", "uid": "m"},
		}}, p)
	}
	const divides, copies = policyv1alpha1.Divided, policyv1alpha1.Duplicated
	cases := map[string]struct {
		template Template
		binding  *workv1alpha2.ResourceBinding
		want     string // placed at once, during the settling time
		settled  string // placed after the settling time
	}{
		"Groups":            {template: claimedTemplate(4, groups), settled: "a=4"},
		"GroupsNoReplicas":  {template: settings(groups), settled: "a"},
		"Spread":            {template: claimedTemplate(4, inOne), settled: "a=4"},
		"SpreadNoReplicas":  {template: settings(inOne), settled: "a"},
		"NothingToChoose":   {template: settings(sharedIn("a", "b")), want: "a", settled: "a"},
		"Placed":            {template: claimedTemplate(4, groups), binding: placedBinding(copies, 4, groups, "b=4"), want: "b=4", settled: "b=4"},
		"Scaled":            {template: claimedTemplate(6, sharedIn("a", "b")), binding: placedBinding(divides, 4, sharedIn("a", "b"), "a=4"), want: "a=6", settled: "a=6"},
		"Edited":            {template: claimedTemplate(4, sharedIn("a", "b")), binding: placedBinding(divides, 4, in(), "c=4"), settled: "a=4"},
		"EditedToGroups":    {template: claimedTemplate(4, groups), binding: placedBinding(copies, 4, in(), "a=4"), settled: "a=4"},
		"EditedNoChoice":    {template: claimedTemplate(4, in("a")), binding: placedBinding(copies, 4, groups, "b=4"), want: "a=4 -b=4", settled: "a=4 -b=4"},
		"Rescheduled":       {template: claimedTemplate(4, inOne), binding: rescheduled(placedBinding(copies, 4, inOne, "a=4"), 1, 0), settled: "a=4"},
		"RescheduledBefore": {template: claimedTemplate(4, inOne), binding: rescheduled(placedBinding(copies, 4, inOne, "a=4"), 1, 1), want: "a=4", settled: "a=4"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for starting, want := range map[bool]string{true: tc.want, false: tc.settled} {
				switch d := Decide(s, tc.template, CurrentState{Starting: starting, Binding: tc.binding}); {
				case d.Spec == nil && (want != "" || d.RetryAfter == 0):
					t.Errorf("starting %v: it waits, want %q", starting, want)
				case d.Spec != nil && where(d.Spec) != want:
					t.Errorf("starting %v: placed %q, want %q", starting, where(d.Spec), want)
				}
			}
		})
	}
}

func TestRecord(t *testing.T) {
	template := claimedTemplate(4, in("a", "b", "yew"))
	lost := template.Claims[0]
	lost.Policy = lost.Policy.DeepCopy()
	lost.Policy.Namespace, lost.Policy.Name, lost.Policy.Generation = "", "wide", 2
	template.Claims = append(template.Claims, lost)
	template.Overrides = []records.Policy{{Kind: "OverridePolicy", Namespace: "shop", Name: "o", Generation: 1}}
	s := fleet.NewSnapshot(9, fine("a"), fine("c"), but("b", func(c *fleet.Cluster) { c.Reachable = false }))
	d := Decide(s, template, CurrentState{Binding: placedBinding(policyv1alpha1.Duplicated, 4, in("c"), "c=4")})
	want := records.Decision{
		Template: records.Template{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "template", Generation: 7},
		Snapshot: 9, Claimed: records.Policy{Kind: "PropagationPolicy", Namespace: "shop", Name: "p", Generation: 3},
		PlacementHash: template.PlacementHash, Lost: []records.Policy{{Kind: "ClusterPropagationPolicy", Name: "wide", Generation: 2}},
		Overrides: template.Overrides, Reason: scheduled, Message: d.Outcome.Message, Replicas: new(int32(4)),
		Targets:   []records.Target{{Cluster: "a", Replicas: new(int32(4))}},
		Evictions: []records.Target{{Cluster: "c", Replicas: new(int32(4))}},
		Verdicts: []records.Verdict{
			{Reason: scheduler.ReasonUnknownCluster, Clusters: []string{"yew"}},
			{Reason: scheduler.ReasonNotSelected, Clusters: []string{"c"}},
			{Reason: scheduler.ReasonUnreachable, Clusters: []string{"b"}},
		},
	}
	if diff := cmp.Diff(want, d.Record, cmpopts.IgnoreFields(records.Verdict{}, "Message")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestEvictions(t *testing.T) {
	const whole, shares = policyv1alpha1.Duplicated, policyv1alpha1.Divided
	type copied map[string]int32
	cases := map[string]struct {
		before, after string // replicas and placement
		kind          policyv1alpha1.ReplicaSchedulingType
		asked, asks   int32
		was           policyv1alpha1.ReplicaSchedulingType // kind
		copies        copied
		want          string
	}{
		"Nothing":               {kind: shares, asked: 10, asks: 10, before: "a=5 b=5", after: "a=5 b=5"},
		"Moved":                 {kind: shares, asked: 10, asks: 10, before: "a=5 b=5", after: "b=10", want: "-a=5"},
		"MovedWithin":           {kind: shares, asked: 10, asks: 10, before: "a=8 b=2", after: "a=2 b=8", want: "-a=6"},
		"Grown":                 {kind: shares, asked: 4, asks: 10, before: "a=2 b=2", after: "a=5 b=5"},
		"ScaledDown":            {kind: shares, asked: 10, asks: 4, before: "a=5 b=5", after: "a=2 b=2"},
		"ScaledDownAway":        {kind: shares, asked: 2, asks: 1, before: "a=1 b=1", after: "a=1"},
		"ScaledToNothing":       {kind: shares, asked: 10, asks: 0, before: "a=5 b=5", after: "a=0 b=0"},
		"ScaledDownWhileMoving": {kind: shares, asked: 10, asks: 8, before: "a=5 b=5", after: "c=8", want: "-a=4 -b=4"},
		"MovedAndScaledDown":    {kind: shares, asked: 10, asks: 6, before: "a=4 b=6", after: "b=3 c=3", want: "-a=3"},
		"LargestRemainder":      {kind: shares, asked: 9, asks: 8, before: "a=3 b=3 c=3", after: "a=1 b=1 c=1 d=5", want: "-a=2 -b=2 -c=1"},
		"Stands":                {kind: shares, asked: 10, asks: 10, before: "b=10 -a=5", after: "b=10", want: "-a=5"},
		"StandsWithin":          {kind: shares, asked: 10, asks: 10, before: "a=2 b=8 -a=6", after: "a=2 b=8", want: "-a=6"},
		"StandsThroughScale":    {kind: shares, asked: 10, asks: 8, before: "b=10 -a=5", after: "b=8", want: "-a=5"},
		"MovesOn":               {kind: shares, asked: 10, asks: 10, before: "b=10 -a=5", after: "c=10", want: "-a=5 -b=10"},
		"MovesBack":             {kind: shares, asked: 10, asks: 10, before: "b=10 -a=5", after: "a=5 b=5", want: "-b=5"},
		"WithinAndAway":         {kind: shares, asked: 10, asks: 10, before: "a=2 b=8 -a=6", after: "b=10", want: "-a=8"},
		"Released":              {kind: shares, asked: 10, asks: 10, before: "b=10 -a=5", after: "b=10", copies: copied{"a": 0}},
		"ReleasedWithin":        {kind: shares, asked: 10, asks: 10, before: "a=2 b=8 -a=6", after: "a=2 b=8", copies: copied{"a": 2}},
		"NotReleasedYet":        {kind: shares, asked: 10, asks: 10, before: "a=2 b=8 -a=6", after: "a=2 b=8", copies: copied{"a": 3}, want: "-a=6"},
		"WasNeverThere":         {kind: shares, asked: 10, asks: 10, before: "a=5 b=5", after: "b=10", copies: copied{"a": 0}},
		"OutOfLeaving":          {kind: shares, asked: 10, asks: 10, before: "b=5 leaving=5", after: "b=10"},
		"OutOfGone":             {kind: shares, asked: 10, asks: 10, before: "b=5 gone=5", after: "b=10"},
		"StandsInLeaving":       {kind: shares, asked: 10, asks: 10, before: "b=10 -leaving=5", after: "b=10"},
		"WholeMoved":            {kind: whole, asked: 3, asks: 3, before: "a=3 b=3", after: "b=3 c=3", want: "-a=3"},
		"WholeScaled":           {kind: whole, asked: 3, asks: 1, before: "a=3 b=3", after: "a=1 b=1"},
		"WholeMovedAndScaled":   {kind: whole, asked: 3, asks: 1, before: "a=3 b=3", after: "b=1", want: "-a=3"},
		"WholeNamedAgain":       {kind: whole, asked: 3, asks: 3, before: "b=3 -a=3", after: "a=3 b=3"},
		"WholeReleased":         {kind: whole, asked: 3, asks: 3, before: "b=3 -a=3", after: "b=3", copies: copied{"a": 0}},
		"NoReplicas":            {before: "a b", after: "b", want: "-a"},
		"NoReplicasStands":      {before: "b -a", after: "b", copies: copied{"a": 1}, want: "-a"},
		"NoReplicasReleased":    {before: "b -a", after: "b", copies: copied{"a": 0}},
		"WholeToShares":         {was: whole, kind: shares, asked: 10, asks: 10, before: "a=10 b=10", after: "a=5 b=5", want: "-a=5 -b=5"},
		"SharesToWhole":         {was: shares, kind: whole, asked: 10, asks: 10, before: "a=5 b=5", after: "b=10", want: "-a=5"},
	}
	s := fleet.NewSnapshot(1, fine("a"), fine("b"), fine("c"), fine("d"), but("leaving", func(c *fleet.Cluster) { c.Leaving = true }))
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			was := tc.was
			if was == "" {
				was = tc.kind
			}
			before := placedBinding(was, tc.asked, in(), tc.before).Spec
			want := placedBinding(tc.kind, tc.asks, in(), tc.after).Spec
			want.GracefulEvictionTasks = evictions(s, &before, &want, func(cluster string) (int32, presence.Presence) {
				n, known := tc.copies[cluster]
				switch {
				case !known:
					return 0, presence.Unknown
				case n == 0:
					return 0, presence.Absent
				}
				return n, presence.Present
			}, func(string) bool { return false })
			expected := strings.TrimSpace(tc.after + " " + tc.want)
			if got := where(&want); got != expected {
				t.Errorf("placed %q, want %q", got, expected)
			}
		})
	}
}

// thousand returns a fleet of a thousand clusters.
func thousand() *fleet.Snapshot {
	clusters := make([]*fleet.Cluster, 1000)
	for i := range clusters {
		clusters[i] = but(fmt.Sprintf("cluster-%03d", i), func(c *fleet.Cluster) {
			c.Labels = map[string]string{"env": []string{"test", "prod"}[i%2], "tier": fmt.Sprint(i % 100)}
			c.FreeCapacity = free(100)
			c.Region, c.Zones = fmt.Sprint("region-", i/100), []string{fmt.Sprint("zone-", i/50)}
			if i%10 == 0 {
				c.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			}
		})
	}
	return fleet.NewSnapshot(1, clusters...)
}

// few returns a placement that selects five clusters of thousand.
func few() policyv1alpha1.Placement {
	return policyv1alpha1.Placement{
		ClusterAffinity: &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}, MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"7"}},
		}}},
		ReplicaScheduling: divided(nil),
	}
}

// TestDecideAllocates: a decision allocates for the chosen clusters, not for the rejected ones.
func TestDecideAllocates(t *testing.T) {
	s, template := thousand(), claimedTemplate(10, few())
	b := &workv1alpha2.ResourceBinding{Spec: *Decide(s, template, CurrentState{}).Spec}
	chosen := len(b.Spec.Clusters)
	if chosen != 10 {
		t.Fatalf("%d clusters chosen, want 10", chosen)
	}
	if got, most := testing.AllocsPerRun(20, func() { Decide(s, template, CurrentState{Binding: b}) }), float64(50+2*chosen); got > most {
		t.Errorf("%v allocations, want at most %v", got, most)
	}
}

func BenchmarkDecide(b *testing.B) {
	s := thousand()
	everywhere := policyv1alpha1.Placement{}
	everything := few() // every feature is on
	everything.ClusterAffinities = []policyv1alpha1.ClusterAffinityTerm{
		// The object does not fit there.
		{AffinityName: "none", ClusterAffinity: *in("cluster-001", "cluster-003").ClusterAffinity},
		{AffinityName: "few", ClusterAffinity: *few().ClusterAffinity, OverflowAffinities: []policyv1alpha1.OverflowClusterAffinity{
			{AffinityName: "more", ClusterAffinity: policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "9"}}}},
		}},
	}
	everything.ClusterAffinity = nil
	everything.ReplicaScheduling = divided(nil)
	everything.ReplicaScheduling.ReplicaDivisionPreference = policyv1alpha1.Aggregated
	everything.SpreadConstraints = []policyv1alpha1.SpreadConstraint{
		{SpreadByField: policyv1alpha1.SpreadByCluster, MinGroups: 2, MaxGroups: 6},
		{SpreadByField: policyv1alpha1.SpreadByRegion, MinGroups: 2},
		{SpreadByField: policyv1alpha1.SpreadByZone, MinGroups: 2},
		{SpreadByLabel: "tier", MaxGroups: 2},
	}
	byCapacity := few()
	byCapacity.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	for name, p := range map[string]policyv1alpha1.Placement{
		"Few": few(), "FewByCapacity": byCapacity, "Everywhere": everywhere, "Everything": everything,
	} {
		b.Run(name, func(b *testing.B) {
			template := claimedTemplate(10, p)
			if name == "Everything" {
				template = claimedTemplate(250, p)
			}
			binding := &workv1alpha2.ResourceBinding{Spec: *Decide(s, template, CurrentState{}).Spec}
			current := CurrentState{Binding: binding}
			if name == "Everything" {
				current.Apart, current.Together = sets.New("cluster-007"), sets.New(clusterNames(binding)...)
			}
			b.ReportAllocs()
			for b.Loop() {
				Decide(s, template, current)
			}
		})
	}
}

func clusterNames(b *workv1alpha2.ResourceBinding) []string {
	var names []string
	for _, c := range b.Spec.Clusters {
		names = append(names, c.Name)
	}
	return names
}
