package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/scheduler"
)

// TestConcerned has decisions on bindings that place nothing in the changed cluster.
func TestConcerned(t *testing.T) {
	silent := but("a", func(c *fleet.Cluster) { c.Reachable = false })
	unserved := but("a", func(c *fleet.Cluster) { c.APIs = kinds(presence.Absent) })
	cases := map[string]struct {
		change fleet.Change
		want   []string
	}{
		"BeginsToAnswer":  {fleet.Change{What: fleet.Reachability, Before: silent, After: fine("a")}, []string{"everywhere", "in-a", "moves-out-of-a"}},
		"CeasesToAnswer":  {fleet.Change{What: fleet.Reachability, Before: fine("a"), After: silent}, []string{"moves-out-of-a"}},
		"NoLongerServes":  {fleet.Change{What: fleet.APIs, Before: fine("a"), After: unserved}, []string{"everywhere", "in-a", "moves-out-of-a"}},
		"Joins":           {fleet.Change{What: fleet.Membership, After: fine("a")}, []string{"everywhere", "in-a", "moves-out-of-a"}},
		"IsMeasured":      {fleet.Change{What: fleet.Capacity, Before: fine("a"), After: fine("a")}, []string{"in-a"}},
		"IsMeasuredApart": {fleet.Change{What: fleet.Capacity, Before: fine("z"), After: fine("z")}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ds := newDecisions()
			remember := func(name string, p *scheduler.Placement, reason string, evicting ...string) {
				ds.made(decision{
					uid: types.UID(name), binding: types.NamespacedName{Name: name}, template: binding.Template{Name: name},
					group: group{placement: p}, evicting: evicting, outcome: Outcome{Reason: reason},
				}, 0, &binding.Cache{})
			}
			remember("everywhere", scheduler.Compile(in()), scheduled)
			remember("in-a", scheduler.Compile(in("a")), workv1alpha2.ReasonNoClusterFits)
			remember("in-b", scheduler.Compile(in("b")), scheduled)
			remember("moves-out-of-a", scheduler.Compile(in("b")), scheduled, "a")
			remember("unclaimed", nil, workv1alpha2.ReasonPolicyGone)
			tc.change.Name = "a"
			if tc.change.After.Name == "z" {
				tc.change.Name = "z"
			}
			var got []string
			for _, template := range ds.concerned(tc.change, &binding.Cache{}) {
				got = append(got, template.Name)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" {
				t.Errorf("decided on again (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecisionThatMissedAChange: a decision is made again if a cluster changed meanwhile and the
// change concerns it.
func TestDecisionThatMissedAChange(t *testing.T) {
	ds := newDecisions()
	seen := ds.seen()
	silent := but("a", func(c *fleet.Cluster) { c.Reachable = false })
	ds.concerned(fleet.Change{Name: "a", What: fleet.Reachability, Before: silent, After: fine("a")}, &binding.Cache{})
	decide := func(p *scheduler.Placement, seen uint64) (again bool) {
		_, again = ds.made(decision{uid: "1", group: group{placement: p}, outcome: Outcome{Reason: scheduled}}, seen, &binding.Cache{})
		return again
	}
	if !decide(scheduler.Compile(in()), seen) {
		t.Error("a decision that waits for the cluster is not made again")
	}
	if decide(scheduler.Compile(in("b")), seen) {
		t.Error("a decision is made again that the change does not concern")
	}
	if decide(scheduler.Compile(in()), ds.seen()) {
		t.Error("a decision is made again that saw the change")
	}
	for range mostChanges + 1 {
		ds.concerned(fleet.Change{Name: "a", Before: fine("a"), After: fine("a")}, &binding.Cache{})
	}
	if !decide(scheduler.Compile(in("b")), seen) {
		t.Error("a decision that missed more changes than are remembered is not made again")
	}
}
