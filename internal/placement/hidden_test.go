package placement

import (
	stdcmp "cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/policy"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
)

// drawn makes random fleets, placements and bindings.
type drawn struct{ *rand.Rand }

func (r drawn) half() bool { return r.IntN(2) == 0 }

func (r drawn) pick(of ...string) string { return of[r.IntN(len(of))] }

var letters = []string{"a", "b", "c", "d", "e", "f", "g"} // the last is of no cluster

func (r drawn) names() []string {
	names := sets.New[string]()
	for range 1 + r.IntN(3) {
		names.Insert(r.pick(letters...))
	}
	return sets.List(names)
}

func (r drawn) cluster(name string) *fleet.Cluster {
	c := fine(name)
	c.Labels = labels.Set{"env": r.pick("prod", "test"), "secret": r.pick("x", "y")}
	c.Provider, c.Region, c.Zones = r.pick("", "metal", "cloud"), r.pick("", "north", "south"), []string{r.pick("1", "2")}
	c.Expected, c.Leaving = r.half(), r.IntN(6) == 0
	switch r.IntN(6) {
	case 0:
		c.Reachable = false
	case 1:
		c.APIs = kinds(presence.Absent)
	case 2:
		c.APIs = nil
	}
	if r.IntN(4) == 0 {
		c.Taints = []corev1.Taint{{Key: r.pick("gpu", "slow"), Effect: corev1.TaintEffectNoSchedule}}
	}
	if r.IntN(4) > 0 {
		c.FreeCapacity = free(int64(r.IntN(4)))
	}
	return c
}

func (r drawn) affinity() policyv1alpha1.ClusterAffinity {
	var a policyv1alpha1.ClusterAffinity
	if r.half() {
		a.ClusterNames = r.names()
	}
	if r.IntN(3) == 0 {
		a.ExcludeClusters = r.names()
	}
	if r.IntN(3) == 0 {
		a.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{r.pick("env", "secret"): r.pick("prod", "test", "x", "y")}}
	}
	if r.IntN(3) == 0 {
		a.FieldSelector = &policyv1alpha1.FieldSelector{MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{{
			Key: r.pick("provider", "region", "zone", "planet"), Operator: metav1.LabelSelectorOpIn, Values: []string{r.pick("metal", "cloud", "north", "south", "1", "2")},
		}}}
	}
	return a
}

func (r drawn) placement() policyv1alpha1.Placement {
	var p policyv1alpha1.Placement
	switch r.IntN(3) {
	case 0:
		p.ClusterAffinity = new(r.affinity())
	case 1:
		for _, name := range []string{"first", "second"} {
			t := policyv1alpha1.ClusterAffinityTerm{AffinityName: name, ClusterAffinity: r.affinity()}
			if r.half() {
				t.OverflowAffinities = []policyv1alpha1.OverflowClusterAffinity{{AffinityName: "more", ClusterAffinity: r.affinity()}}
			}
			p.ClusterAffinities = append(p.ClusterAffinities, t)
		}
	}
	if r.IntN(3) == 0 {
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{
			SpreadByField: policyv1alpha1.SpreadFieldValue(r.pick("cluster", "region", "zone", "provider")), MinGroups: r.Int32N(3), MaxGroups: r.Int32N(4),
		}}
	}
	if r.half() {
		p.ClusterTolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	}
	switch r.IntN(4) {
	case 0:
		p.ReplicaScheduling = divided(nil)
	case 1:
		p.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas})
	case 2:
		p.ReplicaScheduling = divided(&policyv1alpha1.ClusterPreferences{StaticWeightList: []policyv1alpha1.StaticClusterWeight{{TargetCluster: r.affinity(), Weight: 2}}})
	}
	return p
}

// TestHiddenIsAbsent decides on random templates in two fleets: one with clusters that are closed
// to the namespace, one without them. The binding, the outcome and what was recorded of the other
// clusters are equal. Clusters that have the object already are in both.
func TestHiddenIsAbsent(t *testing.T) {
	const seed = 3
	r := drawn{rand.New(rand.NewPCG(seed, seed))}
	closed, early := 0, 0
	for round := range 20_000 {
		var all, others []*fleet.Cluster
		grant := letsInto("shop")
		grant.Spec.ClusterAffinity = new(r.affinity())
		if r.half() {
			grant.Spec.ClusterTolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
		}
		if _, err := policy.CompileAffinity(grant.Spec.ClusterAffinity); err != nil {
			continue
		}
		for _, name := range letters[:6] {
			all = append(all, r.cluster(name))
		}
		before := r.placement()
		template := claimedTemplate(int32(r.IntN(6)), before)
		var b *workv1alpha2.ResourceBinding
		if r.half() {
			if r.half() {
				before = r.placement() // the policy was edited
			}
			kind := policyv1alpha1.Duplicated
			if before.ReplicaScheduling != nil {
				kind = policyv1alpha1.Divided
			}
			text := ""
			for _, name := range r.names() {
				text += fmt.Sprintf(" %s=%d", name, 1+r.IntN(3))
			}
			b = placedBinding(kind, 4, before, text)
		}
		whole := fenced(t, fleet.NewSnapshot(5, all...), grant)
		for _, c := range all {
			if whole.Allowed("shop", c.Name) || has(b, c.Name) {
				others = append(others, c)
			}
		}
		closed += len(all) - len(others)
		part := fenced(t, fleet.NewSnapshot(5, others...), grant)

		now := CurrentState{Binding: b, Starting: r.half()}
		if len(others) > 0 && r.IntN(4) == 0 {
			now.Together = sets.New(others[0].Name)
		}
		if len(others) > 1 && r.IntN(4) == 0 {
			now.Apart = sets.New(others[1].Name)
		}
		seen := func(s *fleet.Snapshot) Decision {
			d := Decide(s, template, now)
			if d.Spec == nil {
				early++
			}
			d.Record.Verdicts = slices.DeleteFunc(d.Record.Verdicts, func(v records.Verdict) bool { return v.Reason == scheduler.ReasonUnknownCluster })
			for i := range d.Record.Verdicts {
				d.Record.Verdicts[i].Clusters = slices.DeleteFunc(d.Record.Verdicts[i].Clusters, func(name string) bool {
					return !slices.ContainsFunc(others, func(c *fleet.Cluster) bool { return c.Name == name })
				})
			}
			d.Record.Verdicts = slices.DeleteFunc(d.Record.Verdicts, func(v records.Verdict) bool { return len(v.Clusters) == 0 })
			if len(d.Record.Verdicts) == 0 {
				d.Record.Verdicts = nil
			}
			slices.SortFunc(d.Record.Verdicts, func(a, b records.Verdict) int { // they are shown by cluster
				return stdcmp.Or(strings.Compare(a.Reason, b.Reason), strings.Compare(a.Message, b.Message))
			})
			return d
		}
		if diff := cmp.Diff(seen(part), seen(whole), cmp.AllowUnexported(Decision{})); diff != "" {
			t.Fatalf("seed %d, round %d, placement %+v, access %+v (-absent +hidden):\n%s", seed, round, template.Claims[0].Policy.Spec.Placement, grant.Spec, diff)
		}
	}
	if closed < 10_000 || early == 0 {
		t.Errorf("%d clusters were closed, and %d decisions too early", closed, early)
	}
}

// TestHiddenConcernsNobody: a change of a cluster that is closed to the namespace leads to no new
// decision, unless the object is there.
func TestHiddenConcernsNobody(t *testing.T) {
	fence := schedulerFence(fenced(t, fleet.NewSnapshot(1), letsInto("shop", "b")).Fence("shop"))
	kind := workload("Deployment", nil).GroupVersionKind()
	for name, change := range map[string]struct{ before, after *fleet.Cluster }{
		"Joins":  {nil, fine("a")},
		"Leaves": {fine("a"), nil},
		"Again":  {fine("a"), but("a", func(c *fleet.Cluster) { c.UID = "another" })},
		"Labels": {fine("a"), but("a", func(c *fleet.Cluster) { c.Labels = labels.Set{"env": "prod"} })},
		"Taints": {fine("a"), but("a", func(c *fleet.Cluster) { c.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}} })},
	} {
		for what, p := range map[string]policyv1alpha1.Placement{
			"everywhere": {}, "by name": in("a", "b"),
			"by label": {ClusterAffinity: &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}},
		} {
			if scheduler.Compile(p).Concerns(change.before, change.after, kind, fence, false) {
				t.Errorf("%s, placed %s: it concerns an object that cannot be there", name, what)
			}
		}
	}
	leaves := but("a", func(c *fleet.Cluster) { c.Leaving = true })
	if !scheduler.Compile(in("a")).Concerns(fine("a"), leaves, kind, fence, true) {
		t.Error("a cluster that has the object leaves, and that concerns nobody")
	}
}
