package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
)

// group returns a group of clusterAffinities with overflow groups.
func group(name string, clusters []string, overflow ...[]string) policyv1alpha1.ClusterAffinityTerm {
	t := policyv1alpha1.ClusterAffinityTerm{AffinityName: name, ClusterAffinity: *named(clusters...)}
	for i, clusters := range overflow {
		t.OverflowAffinities = append(t.OverflowAffinities, policyv1alpha1.OverflowClusterAffinity{
			AffinityName: fmt.Sprint("overflow-", i), ClusterAffinity: *named(clusters...),
		})
	}
	return t
}

func inGroups(p policyv1alpha1.Placement, groups ...policyv1alpha1.ClusterAffinityTerm) policyv1alpha1.Placement {
	p.ClusterAffinities = groups
	return p
}

func aggregated() policyv1alpha1.Placement {
	p := equally()
	p.ReplicaScheduling.ReplicaDivisionPreference = policyv1alpha1.Aggregated
	return p
}

// limited adds spread constraints, given as field, min, max. An unknown field is a label.
func limited(p policyv1alpha1.Placement, fieldMinMax ...any) policyv1alpha1.Placement {
	for i := 0; i < len(fieldMinMax); i += 3 {
		s := policyv1alpha1.SpreadConstraint{MinGroups: int32(fieldMinMax[i+1].(int)), MaxGroups: int32(fieldMinMax[i+2].(int))}
		switch by := fieldMinMax[i].(string); by {
		case "cluster", "region", "zone", "provider":
			s.SpreadByField = policyv1alpha1.SpreadFieldValue(by)
		default:
			s.SpreadByLabel = by
		}
		p.SpreadConstraints = append(p.SpreadConstraints, s)
	}
	return p
}

// at returns a cluster in a region and zones, written "region,zone+zone". Its provider is the
// region's first letter, its label rack the last zone.
func at(name, where string, capacity int64) *Cluster {
	return with(name, func(c *Cluster) {
		region, zones, _ := strings.Cut(where, ",")
		c.FreeCapacity, c.Region, c.Provider = freeReplicas(capacity), region, where[:1]
		if zones != "" {
			c.Zones = strings.Split(zones, "+")
			c.Labels["rack"] = c.Zones[len(c.Zones)-1]
		}
	})
}

func silent(c *Cluster) *Cluster {
	c.Reachable, c.FreeCapacity = false, nil
	return c
}

func TestChoosing(t *testing.T) {
	const insufficient, unfit = workv1alpha2.ReasonInsufficient, workv1alpha2.ReasonNoClusterFits
	everywhere := policyv1alpha1.Placement{}
	abc := []*Cluster{free("a", 4), free("b", 6), free("c", 9)}
	primary := []policyv1alpha1.ClusterAffinityTerm{group("first", []string{"a"}), group("second", []string{"b"}), group("third", []string{"c"})}
	overflow := group("dc", []string{"a"}, []string{"b"}, []string{"a", "c"})
	atlas := []*Cluster{
		at("n1", "north,x", 10), at("n2", "north,y", 9), at("n3", "north,z", 8), at("s1", "south,u", 7), at("s2", "south,v", 1), at("w1", "west", 20),
	}
	cases := map[string]struct {
		clusters []*Cluster
		p        policyv1alpha1.Placement
		replicas int // -1: a kind without
		previous []workv1alpha2.TargetCluster
		in       string // the group
		fresh    bool
		want     string
		group    string
		reason   string
		message  string
	}{
		"FirstGroup":        {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 3, want: "a=3", group: "first", message: "1 of 1 clusters of first"},
		"FirstThatFits":     {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 5, want: "b=5", group: "second"},
		"FirstAnswersNot":   {clusters: []*Cluster{silent(healthy("a")), healthy("b"), healthy("c")}, p: inGroups(everywhere, primary...), replicas: 2, want: "b=2", group: "second"},
		"StaysInItsGroup":   {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 3, previous: targets("b", 3), in: "second", want: "b=3", group: "second"},
		"GrowsOutOfItAhead": {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 9, previous: targets("b", 2), in: "second", want: "c=9", group: "third"},
		"ReturnsWhenItMust": {
			clusters: []*Cluster{free("a", 4), with("b", func(c *Cluster) { c.Leaving = true }), free("c", 9)},
			p:        inGroups(byCapacity(), primary...), replicas: 3, previous: targets("b", 3), in: "second", want: "a=3", group: "first",
		},
		"ReturnsFresh":     {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 3, previous: targets("b", 3), in: "second", fresh: true, want: "a=3", group: "first"},
		"SilentKeepsGroup": {clusters: []*Cluster{healthy("a"), silent(healthy("b"))}, p: inGroups(everywhere, primary...), replicas: 2, previous: targets("b", 2), in: "second", want: "b=2", group: "second"},
		"FitsWholeNowhere": {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 12, want: "a=4", group: "first", reason: insufficient, message: "4 of 12 replicas"},
		"PartOfItStays":    {clusters: abc, p: inGroups(byCapacity(), primary...), replicas: 12, previous: targets("b", 2), in: "second", want: "b=8", group: "second", reason: insufficient},
		"PartWhereSomeFit": {clusters: []*Cluster{free("a", 0), free("b", 2)}, p: inGroups(byCapacity(), primary...), replicas: 3, want: "b=2", group: "second", reason: insufficient},
		"NoGroupFits":      {clusters: []*Cluster{silent(healthy("a")), silent(healthy("b"))}, p: inGroups(everywhere, primary...), replicas: 3, reason: unfit, message: "a: it does not answer"},
		"UnknownGroup":     {clusters: abc, p: inGroups(everywhere, primary...), replicas: 1, previous: targets("b", 1), in: "gone", want: "a=1", group: "first"},
		"SilentHoldsItsGroup": {
			clusters: []*Cluster{silent(healthy("a")), free("b", 6)}, p: inGroups(byCapacity(), primary...),
			replicas: 4, previous: targets("a", 3), in: "first", want: "a=3", group: "first", reason: insufficient, message: "the free capacity of a is unknown",
		},
		"UnmeasuredHoldsItsGroup": {
			clusters: []*Cluster{healthy("a"), free("b", 6)}, p: inGroups(aggregated(), primary...),
			replicas: 4, previous: targets("a", 3), in: "first", want: "a=3", group: "first", reason: insufficient,
		},
		"SilentHoldsItsGroupFresh": {
			clusters: []*Cluster{free("a", 1), silent(healthy("b")), free("c", 9)}, p: inGroups(byCapacity(), primary...),
			replicas: 4, previous: targets("b", 3), in: "second", fresh: true, want: "b=3", group: "second", reason: insufficient,
		},
		"SilentHoldsItsGroupUnmet": {
			clusters: []*Cluster{silent(healthy("a")), free("b", 6), free("c", 6)},
			p:        limited(inGroups(byCapacity(), primary[0], group("rest", []string{"b", "c"})), "cluster", 2, 0),
			replicas: 4, previous: targets("a", 3), in: "first", want: "a=4", group: "first", reason: unfit,
		},
		"GrowsBesideSilent": {
			clusters: []*Cluster{silent(healthy("a")), free("b", 6), free("c", 9)}, p: inGroups(byCapacity(), group("first", []string{"a", "b"}), primary[2]),
			replicas: 5, previous: targets("a", 3), in: "first", want: "a=3 b=2", group: "first",
		},
		"ReturnsFromSilentFresh": {
			clusters: []*Cluster{free("a", 4), silent(healthy("b"))}, p: inGroups(byCapacity(), primary...),
			replicas: 3, previous: targets("b", 3), in: "second", fresh: true, want: "a=3", group: "first",
		},
		"SilentKeepsSharesFresh": {
			clusters: []*Cluster{silent(healthy("a")), free("b", 90), free("c", 30)}, p: byCapacity(),
			replicas: 10, previous: targets("a", 6, "c", 4), fresh: true, want: "a=6 b=3 c=1",
		},
		"WithoutReplicas":   {clusters: abc, p: inGroups(everywhere, primary...), replicas: -1, want: "a", group: "first"},
		"OtherGroupVerdict": {clusters: abc, p: inGroups(everywhere, primary...), replicas: 1, want: "a=1", group: "first"},

		"OverflowNotYet":      {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: 4, want: "a=4", group: "dc"},
		"OverflowInOrder":     {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: 12, want: "a=4 b=6 c=2", group: "dc"},
		"OverflowGrows":       {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: 9, previous: targets("a", 1, "c", 2), in: "dc", want: "a=5 b=2 c=2", group: "dc"},
		"OverflowShrinks":     {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: 5, previous: targets("a", 4, "b", 3, "c", 3), in: "dc", want: "a=4 b=1", group: "dc"},
		"OverflowStays":       {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: 3, previous: targets("c", 3), in: "dc", want: "c=3", group: "dc"},
		"OverflowFresh":       {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: 3, previous: targets("c", 3), in: "dc", fresh: true, want: "a=3", group: "dc"},
		"OverflowToAll":       {clusters: abc, p: inGroups(byCapacity(), overflow), replicas: -1, want: "a b c", group: "dc"},
		"OverflowAggregated":  {clusters: abc, p: inGroups(aggregated(), group("dc", []string{"a"}, []string{"b", "c"})), replicas: 6, want: "a=4 c=2", group: "dc"},
		"AggregatedFewest":    {clusters: abc, p: aggregated(), replicas: 9, want: "c=9"},
		"AggregatedNext":      {clusters: abc, p: aggregated(), replicas: 15, want: "b=6 c=9"},
		"AggregatedWhereItIs": {clusters: abc, p: aggregated(), replicas: 5, previous: targets("a", 1), want: "a=5"},
		"AggregatedBeyond":    {clusters: abc, p: aggregated(), replicas: 6, previous: targets("a", 1), want: "a=3 c=3"},
		"AggregatedStays":     {clusters: abc, p: aggregated(), replicas: 6, previous: targets("a", 2, "b", 2, "c", 2), want: "a=2 b=2 c=2"},
		"AggregatedGathers":   {clusters: abc, p: aggregated(), replicas: 6, previous: targets("a", 2, "b", 2, "c", 2), fresh: true, want: "c=6"},
		"AggregatedShrinks":   {clusters: abc, p: aggregated(), replicas: 3, previous: targets("a", 1, "b", 5, "c", 2), want: "b=3"},
		"AggregatedPart":      {clusters: abc, p: aggregated(), replicas: 30, want: "a=4 b=6 c=9", reason: insufficient, message: "19 of 30 replicas"},

		"AtMostClusters":    {clusters: atlas, p: limited(byCapacity(), "cluster", 1, 2), replicas: 6, want: "n1=2 w1=4"},
		"AtMostKeeps":       {clusters: atlas, p: limited(everywhere, "cluster", 1, 2), replicas: 1, previous: targets("n3", 1, "s2", 1), want: "n3=1 s2=1"},
		"AtLeastClusters":   {clusters: atlas[:2], p: limited(everywhere, "cluster", 3, 0), replicas: 1, reason: unfit, message: "too few groups for spreadConstraints: 2 of 3 by cluster"},
		"TooFewButPlaced":   {clusters: atlas[:2], p: limited(everywhere, "cluster", 3, 0), replicas: 2, previous: targets("n1", 1), want: "n1=2", reason: unfit, message: "n1 stays"},
		"ByDefaultClusters": {clusters: atlas, p: policyv1alpha1.Placement{SpreadConstraints: []policyv1alpha1.SpreadConstraint{{MaxGroups: 1}}}, replicas: -1, previous: targets("s2", -1), want: "s2"},
		"OneRegion":         {clusters: atlas, p: limited(everywhere, "region", 1, 1), replicas: 1, previous: targets("s1", 1), want: "s1=1 s2=1"},
		"TwoRegions":        {clusters: atlas, p: limited(byCapacity(), "region", 2, 2, "cluster", 2, 2), replicas: 6, previous: targets("n1", 4), want: "n1=5 w1=1"},
		"RegionsMissing":    {clusters: atlas[:3], p: limited(byCapacity(), "region", 2, 0), replicas: 2, reason: unfit, message: "1 of 2 by region"},
		"ZonesOfOneCluster": {clusters: []*Cluster{at("a", "north,x+y", 1), at("b", "north,x", 9)}, p: limited(byCapacity(), "zone", 2, 2, "cluster", 1, 1), replicas: 1, want: "a=1"},
		"AtMostZones":       {clusters: atlas[:5], p: limited(everywhere, "zone", 2, 2), replicas: 1, previous: targets("n2", 1, "s1", 1), want: "n2=1 s1=1"},
		"ByProvider":        {clusters: atlas, p: limited(byCapacity(), "provider", 3, 0, "cluster", 0, 3), replicas: 3, want: "n1=1 s1=1 w1=1"},
		"ByLabel":           {clusters: atlas[:3], p: limited(byCapacity(), "rack", 2, 2), replicas: 4, previous: targets("n3", 2), want: "n1=1 n3=3"},
		"OneMoves":          {clusters: atlas, p: limited(byCapacity(), "region", 2, 0, "cluster", 1, 2), replicas: 4, previous: targets("n1", 2, "n2", 2), want: "n2=3 w1=1"},
		"FullMovesOn":       {clusters: []*Cluster{at("a", "north", 0), at("b", "north", 1), at("c", "north", 50)}, p: limited(byCapacity(), "cluster", 1, 1), replicas: 9, previous: targets("a", 5), want: "c=9"},
		"FullEverywhere":    {clusters: []*Cluster{at("a", "north", 0), at("b", "north", 1)}, p: limited(byCapacity(), "cluster", 1, 1), replicas: 9, previous: targets("a", 5), want: "a=5", reason: insufficient},
		"SilentMayHaveRoom": {clusters: []*Cluster{silent(at("a", "north", 0)), at("b", "north", 50)}, p: limited(byCapacity(), "cluster", 1, 1), replicas: 9, previous: targets("a", 5), want: "a=5", reason: insufficient},
		"SilentKeptFresh":   {clusters: []*Cluster{silent(at("a", "north", 0)), at("b", "north", 50)}, p: limited(byCapacity(), "cluster", 1, 1), replicas: 5, previous: targets("a", 5), fresh: true, want: "a=5"},
		"AggregatedSpread":  {clusters: atlas, p: limited(aggregated(), "region", 2, 0), replicas: 6, want: "n1=1 w1=5"},
		"MoreGroupsThan":    {clusters: atlas, p: limited(byCapacity(), "region", 3, 3), replicas: 2, want: "n1=1 w1=1"},
		"StaticSpread":      {clusters: atlas, p: limited(static("n1", 10, "n2", 5, "s1", 1), "region", 2, 0, "cluster", 1, 2), replicas: 6, want: "n1=5 s1=1"},
		"StaticSpreadFew":   {clusters: atlas, p: limited(static("n1", 100, "s1", 1), "region", 2, 0), replicas: 2, want: "n1=1 s1=1"},
		"StaticOneRegion":   {clusters: atlas, p: limited(static("n1", 3, "n2", 1, "s1", 2), "region", 1, 1), replicas: 4, want: "n1=3 n2=1"},
		"GreedFails": { // the cluster with two zones leaves none for the other regions
			clusters: []*Cluster{at("a", "north,p+q", 9), at("b", "north,x", 5), at("c", "south,y", 4), at("d", "west,x", 1)},
			p:        limited(everywhere, "zone", 2, 2, "region", 3, 0, "cluster", 3, 3), replicas: 1, want: "b=1 c=1 d=1",
		},
		"NoJointChoice": {
			clusters: []*Cluster{at("a", "north,x", 9), at("b", "south,x", 5), at("c", "north,y", 4)},
			p:        limited(everywhere, "zone", 2, 2, "provider", 2, 2, "cluster", 1, 1), replicas: 1, reason: unfit, message: "meets all spreadConstraints",
		},
		"WithoutRegion": {clusters: append([]*Cluster{healthy("x")}, atlas[0]), p: limited(everywhere, "region", 1, 0), replicas: 1, want: "n1=1", message: "x: it has no region"},
		"WithoutLabel":  {clusters: append([]*Cluster{healthy("x")}, atlas[0]), p: limited(everywhere, "rack", 1, 0), replicas: 1, want: "n1=1", message: "x: it has no label rack"},
		"LosesRegion":   {clusters: append([]*Cluster{healthy("x")}, atlas[0]), p: limited(everywhere, "region", 1, 0), replicas: 1, previous: targets("x", 1), want: "n1=1 x=1"},
		"AsleepSpread":  {clusters: atlas, p: limited(byCapacity(), "cluster", 1, 1), replicas: 0, previous: targets("s1", 2), want: "s1=0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := Request{UID: "u", Placement: Compile(tc.p), Previous: tc.previous, Shared: tc.p.ReplicaScheduling != nil, Group: tc.in, Fresh: tc.fresh}
			if tc.replicas >= 0 {
				r.Replicas = new(int32(tc.replicas))
			}
			got := schedule(tc.clusters, r)
			if where(got.Clusters) != tc.want || got.Group != tc.group {
				t.Errorf("placed %q in %q, want %q in %q: %s", where(got.Clusters), got.Group, tc.want, tc.group, got.Message)
			}
			if want := cmp.Or(tc.reason, workv1alpha2.ReasonScheduled); got.Reason != want {
				t.Errorf("reason %s, want %s", got.Reason, want)
			}
			if !strings.Contains(got.Message, tc.message) {
				t.Errorf("message %q lacks %q", got.Message, tc.message)
			}
		})
	}
}

func where(clusters []workv1alpha2.TargetCluster) string {
	var words []string
	for _, c := range clusters {
		if c.Replicas == nil {
			words = append(words, c.Name)
		} else {
			words = append(words, fmt.Sprintf("%s=%d", c.Name, *c.Replicas))
		}
	}
	return strings.Join(words, " ")
}

// TestWhyNotChosen: every cluster that fits and was not chosen has its reason.
func TestWhyNotChosen(t *testing.T) {
	clusters := []*Cluster{at("a", "north", 5), at("b", "north", 0), at("c", "north", 3), at("d", "south", 9), healthy("e")}
	p := limited(inGroups(aggregated(), group("all", []string{"a", "b", "c"}), group("rest", []string{"d", "e"})), "region", 1, 1, "cluster", 1, 1)
	got := schedule(clusters, Request{UID: "u", Placement: Compile(p), Replicas: new(int32(4))})
	reasons := map[string]string{}
	for _, c := range clusters {
		for _, v := range got.Verdicts.Of(c.Name) {
			reasons[c.Name] += v.Reason + " "
		}
	}
	want := map[string]string{"b": "NoRoom ", "c": "Spread ", "d": "OtherGroup ", "e": "OtherGroup "}
	if diff := gocmp.Diff(want, reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	var all []string
	for _, v := range got.Verdicts.All() {
		all = append(all, v.Reason+" "+strings.Join(v.Clusters, ","))
	}
	if diff := gocmp.Diff([]string{"OtherGroup d,e", "Spread c", "NoRoom b"}, all); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// TestWhyNothingIsPlaced: if no choice meets the spread constraints, every cluster in which the
// object is not has its reason, and the clusters in which it stays have none.
func TestWhyNothingIsPlaced(t *testing.T) {
	tainted := at("c", "north", 5)
	tainted.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	clusters := []*Cluster{at("a", "north", 5), at("b", "north", 5), tainted, at("d", "north", 0)}
	twoGroups := inGroups(equally(), group("one", []string{"a", "b"}), group("two", []string{"c", "d"}))
	for name, tc := range map[string]struct {
		p        policyv1alpha1.Placement
		previous []workv1alpha2.TargetCluster
		want     []string
	}{
		"New":        {p: equally(), want: []string{"Tainted c", "SpreadUnmet a,b,d"}},
		"Stays":      {p: equally(), previous: targets("b", 4), want: []string{"Tainted c", "SpreadUnmet a,d"}},
		"ByCapacity": {p: byCapacity(), want: []string{"Tainted c", "NoRoom d", "SpreadUnmet a,b"}},
		"InGroups":   {p: twoGroups, want: []string{"Tainted c", "SpreadUnmet a,b", "SpreadUnmet d"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := schedule(clusters, Request{
				UID: "u", Placement: Compile(limited(tc.p, "region", 2, 0)), Replicas: new(int32(4)), Previous: tc.previous, Shared: true,
			})
			if got.Reason != workv1alpha2.ReasonNoClusterFits || where(got.Clusters) != where(tc.previous) {
				t.Fatalf("%s: %s, placed in %q", got.Reason, got.Message, where(got.Clusters))
			}
			var all []string
			of := map[string]string{}
			for _, v := range got.Verdicts.All() {
				all = append(all, v.Reason+" "+strings.Join(v.Clusters, ","))
				for _, c := range v.Clusters {
					of[c] = v.Reason
				}
			}
			if diff := gocmp.Diff(tc.want, all); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
			for _, c := range clusters {
				one := ""
				for _, v := range got.Verdicts.Of(c.Name) {
					one += v.Reason
				}
				if one != of[c.Name] {
					t.Errorf("the verdict of %s is %q, and of all %q", c.Name, one, of[c.Name])
				}
			}
		})
	}
}

// TestSpreadUnmet: the verdict names every spread constraint that is not met and no other one, for
// each group of clusterAffinities.
func TestSpreadUnmet(t *testing.T) {
	const few, none = "the clusters that fit are in too few groups for spreadConstraints: ", "no choice among the clusters that fit meets all spreadConstraints: "
	atlas := []*Cluster{at("a", "north,x", 9), at("b", "north,y", 5), at("c", "south,y", 4)}
	everywhere := policyv1alpha1.Placement{}
	twoGroups := inGroups(everywhere, group("one", []string{"a"}), group("two", []string{"b", "c"}))
	for name, tc := range map[string]struct {
		clusters []*Cluster
		p        policyv1alpha1.Placement
		previous []workv1alpha2.TargetCluster
		in       string
		want     map[string]string // the verdict of each cluster without the object
	}{
		"TooFew": {
			clusters: atlas, p: limited(everywhere, "region", 3, 0),
			want: map[string]string{"a,b,c": "SpreadUnmet: it matches, but " + few + "2 of 3 by region"},
		},
		"SeveralTooFew": {
			clusters: atlas, p: limited(everywhere, "provider", 2, 2, "region", 3, 0, "cluster", 3, 0, "zone", 4, 0, "rack", 3, 3),
			want: map[string]string{"a,b,c": "SpreadUnmet: it matches, but " + few + "2 of 3 by region, 2 of 4 by zone, 2 of 3 by label rack"},
		},
		"NotTogether": {
			clusters: atlas, p: limited(everywhere, "region", 1, 0, "zone", 2, 0, "rack", 1, 1),
			want: map[string]string{"a,b,c": "SpreadUnmet: it matches, but " + none + "by zone, label rack"},
		},
		"InGroups": {
			clusters: atlas, p: limited(twoGroups, "region", 2, 0, "zone", 2, 0),
			want: map[string]string{
				"a":   "SpreadUnmet: it matches, but in one, a group of clusterAffinities, " + few + "1 of 2 by region, 1 of 2 by zone",
				"b,c": "SpreadUnmet: it matches, but in two, a group of clusterAffinities, " + few + "1 of 2 by zone",
			},
		},
		"GroupNotTried": {
			clusters: []*Cluster{silent(healthy("a")), free("b", 6), free("c", 6)}, previous: targets("a", 3), in: "one",
			p: limited(inGroups(byCapacity(), twoGroups.ClusterAffinities...), "cluster", 2, 0),
			want: map[string]string{
				"b,c": "OtherGroup: it matches, but the object does not leave its group of clusterAffinities while free capacity there is unknown",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := schedule(tc.clusters, Request{
				UID: "u", Placement: Compile(tc.p), Replicas: new(int32(4)), Previous: tc.previous, Shared: tc.p.ReplicaScheduling != nil, Group: tc.in,
			})
			all, of := map[string]string{}, map[string]string{}
			for _, v := range got.Verdicts.All() {
				all[strings.Join(v.Clusters, ",")] = v.Reason + ": " + v.Message
				for _, c := range v.Clusters {
					of[c] = v.Reason + ": " + v.Message
				}
			}
			if diff := gocmp.Diff(tc.want, all); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
			for _, c := range tc.clusters {
				one := ""
				for _, v := range got.Verdicts.Of(c.Name) {
					one += v.Reason + ": " + v.Message
				}
				if one != of[c.Name] {
					t.Errorf("the verdict of %s is %q, and of all %q", c.Name, one, of[c.Name])
				}
			}
		})
	}
}

func TestWorkloadAffinity(t *testing.T) {
	fleet := []*Cluster{healthy("a"), healthy("b"), healthy("c")}
	cases := map[string]struct {
		together, apart []string
		previous        []workv1alpha2.TargetCluster
		want            string
		verdict         string // of a
	}{
		"NoOthers":        {want: "a b c"},
		"Together":        {together: []string{"b", "gone"}, want: "b", verdict: ReasonAffinityGroup},
		"TogetherNowhere": {together: []string{"gone"}, verdict: ReasonAffinityGroup},
		"TogetherStays":   {together: []string{"b"}, previous: targets("a", -1), want: "a b"},
		"Apart":           {apart: []string{"a", "c"}, want: "b", verdict: ReasonAntiAffinity},
		"ApartStays":      {apart: []string{"a", "b", "c"}, previous: targets("a", -1), want: "a"},
		"ApartNowhere":    {apart: []string{"a", "b", "c"}, verdict: ReasonAntiAffinity},
		"Both":            {together: []string{"a", "b"}, apart: []string{"a"}, want: "b", verdict: ReasonAntiAffinity},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := schedule(fleet, Request{Together: sets.New(tc.together...), Apart: sets.New(tc.apart...), Previous: tc.previous})
			if where(got.Clusters) != tc.want {
				t.Errorf("placed %q, want %q", where(got.Clusters), tc.want)
			}
			verdict := ""
			for _, v := range got.Verdicts.Of("a") {
				verdict = v.Reason
			}
			if verdict != tc.verdict {
				t.Errorf("verdict of a is %q, want %q", verdict, tc.verdict)
			}
		})
	}
}

// dice makes random fleets and placements of every kind.
type dice struct{ *rand.Rand }

func (d dice) cluster(i int) *Cluster {
	return with(fmt.Sprintf("c%02d", i), func(c *Cluster) {
		c.Labels["env"] = []string{"test", "prod"}[d.IntN(2)]
		c.Labels["rack"] = fmt.Sprint(d.IntN(4))
		c.Region, c.Provider = fmt.Sprint("r", d.IntN(3)), fmt.Sprint("p", d.IntN(2))
		for range d.IntN(3) {
			c.Zones = append(c.Zones, fmt.Sprint("z", d.IntN(5)))
		}
		c.FreeCapacity, c.Reachable = d.capacity(), d.IntN(8) > 0
		if d.IntN(8) == 0 {
			c.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}
	})
}

// capacity returns the capacity of a cluster; sometimes nil, for unknown.
func (d dice) capacity() FreeCapacity {
	n := d.IntN(30)
	if n%10 == 9 {
		return nil
	}
	return freeReplicas(n)
}

func (d dice) fleet() []*Cluster {
	var all []*Cluster
	for i := range 1 + d.IntN(12) {
		all = append(all, d.cluster(i))
	}
	return all
}

func (d dice) affinity() policyv1alpha1.ClusterAffinity {
	switch d.IntN(4) {
	case 0:
		return policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	case 1:
		return policyv1alpha1.ClusterAffinity{FieldSelector: &policyv1alpha1.FieldSelector{MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{
			{Key: "region", Operator: metav1.LabelSelectorOpIn, Values: []string{"r0", "r1"}},
		}}}
	case 2:
		return *named("c00", "c03", "c05", "c07")
	}
	return policyv1alpha1.ClusterAffinity{}
}

func (d dice) placement() policyv1alpha1.Placement {
	p := []policyv1alpha1.Placement{{}, equally(), byCapacity(), aggregated(), static("c00", 3, "c01", 1, "c02", 2, "c03", 7, "c05", 1, "c08", 4)}[d.IntN(5)]
	if d.IntN(2) == 0 {
		p.ClusterAffinity = new(d.affinity())
	} else {
		for i := range 1 + d.IntN(3) {
			term := policyv1alpha1.ClusterAffinityTerm{AffinityName: fmt.Sprint("g", i), ClusterAffinity: d.affinity()}
			for j := range d.IntN(3) {
				term.OverflowAffinities = append(term.OverflowAffinities, policyv1alpha1.OverflowClusterAffinity{AffinityName: fmt.Sprint(j), ClusterAffinity: d.affinity()})
			}
			if p.ReplicaScheduling == nil || Compile(p).ByCapacity() == false {
				term.OverflowAffinities = nil
			}
			p.ClusterAffinities = append(p.ClusterAffinities, term)
		}
	}
	for _, by := range []string{"cluster", "region", "zone", "provider", "rack"} {
		if d.IntN(4) == 0 {
			least := d.IntN(3)
			most := d.IntN(4)
			if most > 0 {
				most = max(most, least)
			}
			p = limited(p, by, least, most)
		}
	}
	return p
}

func (d dice) request() Request {
	r := Request{UID: types.UID(fmt.Sprint(d.IntN(1000))), Placement: Compile(d.placement()), Shared: true}
	if d.IntN(6) > 0 {
		r.Replicas = new(int32(d.IntN(60)))
	}
	if d.IntN(6) == 0 {
		r.Together = sets.New(fmt.Sprintf("c%02d", d.IntN(12)), fmt.Sprintf("c%02d", d.IntN(12)))
	}
	if d.IntN(6) == 0 {
		r.Apart = sets.New(fmt.Sprintf("c%02d", d.IntN(12)))
	}
	return r
}

// known returns the capacity of a cluster; 0 if it is unknown.
func known(c *Cluster) int64 {
	if n, measured := c.FreeCapacity.(freeReplicas); measured && c.Reachable {
		return int64(n)
	}
	return 0
}

// follow returns the next request after a result. The placed replicas take capacity.
func follow(clusters []*Cluster, r Request, got Result) ([]*Cluster, Request) {
	had := map[string]int64{}
	for _, t := range r.Previous {
		had[t.Name] = current(t)
	}
	next := slices.Clone(clusters)
	for i, c := range next {
		for _, t := range got.Clusters {
			if n := current(t) - had[c.Name]; t.Name == c.Name && n != 0 && c.FreeCapacity != nil && r.byCapacity() {
				copied := *c
				copied.FreeCapacity = freeReplicas(max(0, int64(c.FreeCapacity.(freeReplicas))-n))
				next[i] = &copied
			}
		}
	}
	r.Previous, r.Group, r.Shared, r.Fresh = got.Clusters, got.Group, got.Shared, false
	return next, r
}

// TestProperties: for all requests, replicas add up, no constraint is broken, and no cluster gets
// more than fits. The order of the clusters does not matter, and a decision repeats itself.
func TestProperties(t *testing.T) {
	placed := map[string]int{}
	for seed := range uint64(6000) {
		d := dice{rand.New(rand.NewPCG(seed, 1))}
		clusters, r := d.fleet(), d.request()
		for step := range 4 {
			got := schedule(clusters, r)
			placed[got.Reason]++
			say := func(format string, args ...any) {
				t.Helper()
				t.Fatalf("seed %d, step %d: %s\nplaced %q of %q before: %s", seed, step, fmt.Sprintf(format, args...), where(got.Clusters), where(r.Previous), got.Message)
			}
			check(clusters, &r, &got, say)
			shuffled := slices.Clone(clusters)
			d.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if other := schedule(shuffled, r); where(other.Clusters) != where(got.Clusters) || other.Message != got.Message {
				say("in another order %q", where(other.Clusters))
			}
			if got.Unmatched {
				break
			}
			clusters, r = follow(clusters, r, got)
			if again := schedule(clusters, r); where(again.Clusters) != where(got.Clusters) || again.Group != got.Group {
				say("the next decision is %q", where(again.Clusters))
			}
			switch d.IntN(4) { // what happens next
			case 0:
				if r.Replicas != nil {
					r.Replicas = new(int32(d.IntN(60)))
				}
			case 1:
				i := d.IntN(len(clusters))
				clusters = slices.Clone(clusters)
				changed := d.cluster(i)
				changed.Name, changed.UID = clusters[i].Name, clusters[i].UID
				clusters[i] = changed
			case 2:
				r.Placement, r.Fresh = Compile(d.placement()), true
			case 3:
				r.Fresh = true
			}
		}
	}
	for _, reason := range []string{workv1alpha2.ReasonScheduled, workv1alpha2.ReasonInsufficient, workv1alpha2.ReasonNoClusterFits} {
		if placed[reason] < 500 {
			t.Errorf("only %d decisions were %s: the dice are loaded", placed[reason], reason)
		}
	}
}

func check(clusters []*Cluster, r *Request, got *Result, say func(string, ...any)) {
	names := map[string]*Cluster{}
	for _, c := range clusters {
		names[c.Name] = c
	}
	previous := map[string]int64{}
	for _, t := range r.Previous {
		previous[t.Name] = current(t)
	}
	if !slices.IsSortedFunc(got.Clusters, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) }) {
		say("the clusters are not in order")
	}
	if got.Reason == workv1alpha2.ReasonNoClusterFits {
		for _, c := range got.Clusters {
			if _, was := previous[c.Name]; !was {
				say("%s is new although no cluster fits", c.Name)
			}
		}
		return
	}
	p := r.Placement
	term := p.term(got.Group)
	var fits int64
	for _, c := range clusters {
		has, was := previous[c.Name]
		if p.terms[term].tier(c) == noTier || !was && (!c.Reachable || r.untolerated(c) != nil) || c.Leaving {
			continue
		}
		fits += has + known(c)
	}
	for _, c := range got.Clusters {
		_, was := previous[c.Name]
		cluster := names[c.Name]
		switch {
		case cluster == nil || p.terms[term].tier(cluster) == noTier:
			say("%s is not of the group %q", c.Name, got.Group)
		case !was && (!cluster.Reachable || r.untolerated(cluster) != nil || r.Apart.Has(c.Name) || len(r.Together) > 0 && !r.Together.Has(c.Name)):
			say("%s takes nothing new", c.Name)
		case !r.byCapacity() && !was && p.ungrouped(cluster) != nil:
			say("%s is in no group of a constraint", c.Name)
		case r.byCapacity() && current(c) > max(previous[c.Name], 0) && current(c) > previous[c.Name]+known(cluster):
			say("%s has no room for %d", c.Name, current(c))
		}
	}
	if r.byCapacity() && sum(r.Previous) <= int64(*r.Replicas) {
		checkUnknown(clusters, r, got, say)
	}
	total := sum(got.Clusters)
	switch {
	case r.Replicas == nil:
	case !r.divided():
		if total != int64(*r.Replicas)*int64(len(got.Clusters)) {
			say("the copies have %d replicas in all", total)
		}
	case got.Reason == workv1alpha2.ReasonScheduled && total != int64(*r.Replicas), total > int64(*r.Replicas):
		say("%d replicas are placed of %d", total, *r.Replicas)
	case got.Reason == workv1alpha2.ReasonInsufficient && len(p.limits) == 0 && total != min(fits, int64(*r.Replicas)) && len(r.Together)+len(r.Apart) == 0:
		say("%d replicas are placed of %d, and %d fit", total, *r.Replicas, fits)
	}
	for i := range p.limits {
		limit := &p.limits[i]
		groups := sets.New[string]()
		for _, c := range got.Clusters {
			if limit.field == policyv1alpha1.SpreadByZone {
				groups.Insert(names[c.Name].Zones...)
			} else if g := limit.group(names[c.Name]); g != "" {
				groups.Insert(g)
			}
		}
		least := limit.min
		if r.divided() && *r.Replicas > 0 {
			least = min(least, int(total)) // each replica is in one cluster
		}
		if limit.max > 0 && groups.Len() > limit.max || groups.Len() < least && got.Reason == workv1alpha2.ReasonScheduled && limit.field != policyv1alpha1.SpreadByZone && enough(r, total) {
			say("%d groups by %s, want %d to %d", groups.Len(), limit.what(), limit.min, limit.max)
		}
	}
}

// checkUnknown checks what is placed in clusters with unknown capacity. An object that does not
// shrink loses nothing there and stays in its group, unless a constraint or a fresh decision moves
// it.
func checkUnknown(clusters []*Cluster, r *Request, got *Result, say func(string, ...any)) {
	p := r.Placement
	own, term := p.term(r.Group), p.term(got.Group)
	if slices.ContainsFunc(p.limits, func(l limit) bool { return l.max > 0 }) {
		return
	}
	has := map[string]int64{}
	for _, c := range got.Clusters {
		has[c.Name] = current(c)
	}
	for _, was := range r.Previous {
		i := slices.IndexFunc(clusters, func(c *Cluster) bool { return c.Name == was.Name })
		if i < 0 || current(was) == 0 || clusters[i].Reachable && clusters[i].FreeCapacity != nil || p.terms[own].tier(clusters[i]) == noTier {
			continue
		}
		switch {
		case term > own, term != own && (!r.Fresh || got.Reason != workv1alpha2.ReasonScheduled):
			say("it left the group %q although the room of %s is not known", r.Group, was.Name)
		case term == own && len(p.limits) == 0 && has[was.Name] < current(was):
			say("%s has %d, and had %d, although its room is not known", was.Name, has[was.Name], current(was))
		}
	}
}

// enough reports whether there are as many replicas as all constraints together may require.
func enough(r *Request, total int64) bool {
	if !r.divided() || *r.Replicas <= 0 {
		return true
	}
	var need int64
	for i := range r.Placement.limits {
		need += int64(r.Placement.limits[i].min)
	}
	return total >= need
}

// TestSteady: nothing moves without a reason. A workload that grows loses no replica. One that
// keeps its size stays as it is when capacity changes.
func TestSteady(t *testing.T) {
	for seed := range uint64(3000) {
		d := dice{rand.New(rand.NewPCG(seed, 2))}
		clusters, r := d.fleet(), d.request()
		if r.Replicas == nil || !r.Placement.ByCapacity() || len(r.Placement.limits) > 0 {
			continue
		}
		before := schedule(clusters, r)
		if before.Reason != workv1alpha2.ReasonScheduled {
			continue
		}
		clusters, r = follow(clusters, r, before)
		for i, c := range clusters {
			copied := *c
			copied.FreeCapacity = d.capacity()
			clusters[i] = &copied
		}
		if got := schedule(clusters, r); where(got.Clusters) != where(before.Clusters) {
			t.Fatalf("seed %d: %q became %q because of room", seed, where(before.Clusters), where(got.Clusters))
		}
		r.Replicas = new(*r.Replicas + int32(d.IntN(10)))
		got := schedule(clusters, r)
		if got.Group != before.Group {
			continue // it fits no longer in its group
		}
		has := map[string]int64{}
		for _, c := range got.Clusters {
			has[c.Name] = current(c)
		}
		for _, c := range before.Clusters {
			if has[c.Name] < current(c) {
				t.Fatalf("seed %d: %q became %q as it grew", seed, where(before.Clusters), where(got.Clusters))
			}
		}
	}
}

// TestConcernsIsComplete: a change of a cluster that concerns no decision changes no decision.
func TestConcernsIsComplete(t *testing.T) {
	kind := schema.GroupVersionKind{Kind: "Deployment"}
	same, changed := 0, 0
	for seed := range uint64(20_000) {
		d := dice{rand.New(rand.NewPCG(seed, 3))}
		clusters, r := d.fleet(), d.request()
		r.Kind = kind
		first := schedule(clusters, r)
		if first.Unmatched {
			continue
		}
		clusters, r = follow(clusters, r, first)
		i := d.IntN(len(clusters))
		before := clusters[i]
		after := *before
		after.Labels = maps.Clone(before.Labels)
		switch other := d.cluster(i); d.IntN(9) {
		case 0:
			after.Labels["env"] = other.Labels["env"]
		case 1:
			after.Labels["rack"] = other.Labels["rack"]
		case 2:
			after.Region = other.Region
		case 3:
			after.Zones = other.Zones
		case 4:
			after.Provider = other.Provider
		case 5:
			after.Taints = other.Taints
		case 6:
			after.Reachable = true
		case 7:
			after.Leaving = true
		case 8:
			after.APIs = serves(presence.Absent)
		}
		placed := slices.ContainsFunc(r.Previous, func(t workv1alpha2.TargetCluster) bool { return t.Name == before.Name })
		// An object that does not fit is tried again all the time.
		waits := first.Reason == workv1alpha2.ReasonInsufficient || first.Reason != workv1alpha2.ReasonScheduled && after.Reachable && r.Placement.Selects(&after)
		next := slices.Clone(clusters)
		next[i] = &after
		got := schedule(next, r)
		if where(got.Clusters) == where(first.Clusters) && got.Group == first.Group {
			same++
			continue
		}
		changed++
		if !waits && !r.Placement.Concerns(before, &after, kind, nil, placed) {
			t.Fatalf("seed %d: %q became %q, and the change of %s concerned nobody", seed, where(first.Clusters), where(got.Clusters), before.Name)
		}
	}
	if changed < 300 || same < 1000 {
		t.Errorf("%d changes of the fleet changed decisions, %d did not: the dice are loaded", changed, same)
	}
}

// TestSelectionFollowsTheFleet: a placement never uses the cached selection of another fleet.
func TestSelectionFollowsTheFleet(t *testing.T) {
	for seed := range uint64(500) {
		d := dice{rand.New(rand.NewPCG(seed, 4))}
		p := Compile(d.placement())
		clusters := ordered(d.fleet())
		for range 10 {
			fresh := *p
			fresh.memo = &memo{}
			if diff := gocmp.Diff(fresh.selection(clusters), p.selection(clusters), gocmp.AllowUnexported(selection{}), cmpopts.IgnoreTypes(Cluster{})); diff != "" {
				t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
			}
			next := slices.Clone(clusters)
			switch i := d.IntN(len(next)); d.IntN(3) {
			case 0:
				next[i] = d.cluster(d.IntN(12))
			case 1:
				next = slices.Insert(next, i, d.cluster(d.IntN(12)))
			case 2:
				if len(next) > 1 {
					next = slices.Delete(next, i, i+1)
				}
			}
			clusters = next
		}
	}
}
