package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
)

// TestComponentsTogether places a head and five workers, which need the capacity of six replicas.
func TestComponentsTogether(t *testing.T) {
	const scheduled, insufficient = workv1alpha2.ReasonScheduled, workv1alpha2.ReasonInsufficient
	six := []Component{{Name: "head", Replicas: 1}, {Name: "workers", Replicas: 5}}
	one := func(p policyv1alpha1.Placement) policyv1alpha1.Placement { return limited(p, "cluster", 1, 1) }
	everywhere := policyv1alpha1.Placement{}
	fleet := []*Cluster{free("a", 5), free("b", 19), free("c", 7)}
	full := []*Cluster{free("a", 5), free("b", 0), free("c", 3)}
	for name, tc := range map[string]struct {
		clusters []*Cluster
		p        policyv1alpha1.Placement
		previous []workv1alpha2.TargetCluster
		fresh    bool
		want     string
		reason   string
		message  string
	}{
		"ByCapacity":         {clusters: fleet, p: byCapacity(), want: "b", reason: scheduled, message: "1 of 3 clusters"},
		"Aggregated":         {clusters: fleet, p: aggregated(), want: "b", reason: scheduled},
		"OneCluster":         {clusters: fleet, p: one(everywhere), want: "b", reason: scheduled},
		"OneClusterDivided":  {clusters: fleet, p: one(equally()), want: "b", reason: scheduled},
		"OneClusterAtMost":   {clusters: fleet, p: limited(everywhere, "cluster", 0, 1), want: "b", reason: scheduled},
		"ByWeight":           {clusters: full, p: static("a", 1, "c", 9), want: "c", reason: scheduled},
		"OneClusterByWeight": {clusters: full, p: one(static("a", 1, "c", 9)), want: "c", reason: scheduled},
		"InEach":             {clusters: full, p: everywhere, want: "a b c", reason: scheduled},
		"Stays":              {clusters: full, p: one(everywhere), previous: targets("a", 0), want: "a", reason: scheduled},
		"StaysSilent":        {clusters: []*Cluster{silent(healthy("a")), free("b", 13)}, p: byCapacity(), previous: targets("a", 0), want: "a", reason: scheduled},
		"MovesFresh":         {clusters: fleet, p: one(everywhere), previous: targets("c", 0), fresh: true, want: "b", reason: scheduled},
		"StaysFresh":         {clusters: full, p: one(everywhere), previous: targets("c", 0), fresh: true, want: "c", reason: scheduled},
		"FirstGroupWithRoom": {clusters: fleet, p: inGroups(byCapacity(), group("first", []string{"a"}), group("second", []string{"c"})), want: "c", reason: scheduled, message: "1 of 1 clusters of second"},
		"Overflows":          {clusters: fleet, p: inGroups(byCapacity(), group("dc", []string{"a"}, []string{"c"}, []string{"b"})), want: "c", reason: scheduled},
		"NoRoom": {
			clusters: full, p: one(everywhere), want: "", reason: insufficient,
			message: "no cluster has free capacity for all of its components together; nothing is left for head in b; nothing is left for workers in a, c",
		},
		"NoRoomByCapacity": {
			clusters: []*Cluster{free("a", 5), with("b", func(c *Cluster) { c.FreeCapacity = existingOnly{} })}, p: byCapacity(), want: "", reason: insufficient,
			message: "no cluster has free capacity for all of its components together; nothing is left for workers in a; ResourceQuota shop/objects limits how many fit in b",
		},
		"NoRoomKnown":   {clusters: []*Cluster{healthy("a")}, p: one(everywhere), want: "", reason: insufficient, message: "no cluster has free capacity for all of its components together"},
		"NotServed":     {clusters: []*Cluster{with("a", func(c *Cluster) { c.FreeCapacity, c.APIs = freeReplicas(9), serves(presence.Absent) })}, p: one(everywhere), want: "", reason: workv1alpha2.ReasonNoClusterFits},
		"OneOfTheThree": {clusters: fleet, p: one(everywhere), previous: targets("a", 0, "b", 0, "c", 0), want: "c", reason: scheduled},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.previous {
				tc.previous[i].Replicas = nil
			}
			r := Request{UID: "uid", Placement: Compile(tc.p), Components: six, Previous: tc.previous, Fresh: tc.fresh}
			got := schedule(tc.clusters, r)
			var names string
			for i, c := range got.Clusters {
				if c.Replicas != nil {
					t.Errorf("%s has %d replicas of a kind without", c.Name, *c.Replicas)
				}
				if i > 0 {
					names += " "
				}
				names += c.Name
			}
			if names != tc.want || got.Reason != tc.reason || got.Shared {
				t.Errorf("placed in %q: %s, shared %t, want %q: %s", names, got.Reason, got.Shared, tc.want, tc.reason)
			}
			if tc.message != "" && got.Message != tc.message {
				t.Errorf("it says %q, want %q", got.Message, tc.message)
			}
			r.Previous, r.Group, r.Fresh = got.Clusters, got.Group, false
			if again := schedule(tc.clusters, r); where(again.Clusters) != where(got.Clusters) {
				t.Errorf("the next decision is %q", where(again.Clusters))
			}
		})
	}

	got := schedule(full, Request{UID: "uid", Placement: Compile(one(everywhere)), Components: six})
	want := []Verdict{
		{Reason: ReasonNoRoom, Message: "it matches, but has no known free capacity for all components together: nothing is left for head", Clusters: []string{"b"}},
		{Reason: ReasonNoRoom, Message: "it matches, but has no known free capacity for all components together: nothing is left for workers", Clusters: []string{"a", "c"}},
	}
	if diff := cmp.Diff(want, got.Verdicts.All()); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// TestGroupsWithTheMostCapacity: a constraint that admits few groups admits those with the most
// total capacity. The first decision places as much as any choice of groups could.
func TestGroupsWithTheMostCapacity(t *testing.T) {
	for seed := range uint64(4000) {
		d := dice{rand.New(rand.NewPCG(seed, 5))}
		var clusters []*Cluster
		for i := range 1 + d.IntN(9) {
			clusters = append(clusters, with(fmt.Sprint("c", i), func(c *Cluster) {
				c.FreeCapacity, c.Region, c.Provider = freeReplicas(d.IntN(10)), fmt.Sprint("r", d.IntN(4)), fmt.Sprint("p", d.IntN(3))
			}))
		}
		p := []policyv1alpha1.Placement{byCapacity(), aggregated()}[d.IntN(2)]
		most := 1 + d.IntN(2)
		p = limited(p, []string{"region", "provider"}[d.IntN(2)], d.IntN(most+1), most)
		if most == 1 && d.IntN(2) == 0 {
			p = limited(p, "cluster", 0, 1+d.IntN(3))
		}
		r := Request{UID: "uid", Placement: Compile(p), Replicas: new(int32(1 + d.IntN(40))), Shared: true}
		best := int64(0)
		for chosen := range 1 << len(clusters) {
			groups, in, capacity := map[string]bool{}, 0, int64(0)
			for i, c := range clusters {
				if chosen&(1<<i) != 0 {
					groups[r.Placement.limits[0].group(c)] = true
					in, capacity = in+1, capacity+known(c)
				}
			}
			if len(groups) <= most && (len(r.Placement.limits) == 1 || in <= r.Placement.limits[1].max) {
				best = max(best, capacity)
			}
		}
		if got := schedule(clusters, r); got.Reason == workv1alpha2.ReasonNoClusterFits {
			continue // fewer groups than the minimum
		} else if n := sum(got.Clusters); n != min(best, int64(*r.Replicas)) {
			t.Fatalf("seed %d: %d of %d replicas are placed, and %d fit: %s", seed, n, *r.Replicas, best, where(got.Clusters))
		}
	}
}
