package scheduler

import (
	stdcmp "cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
)

// serves gives the same answer for every kind.
type serves presence.Presence

func (s serves) Serves(schema.GroupVersionKind) presence.Presence { return presence.Presence(s) }

// freeReplicas has capacity for that many replicas.
type freeReplicas int64

func (n freeReplicas) Fits(*Claim, bool) (int64, string) { return int64(n), "" }

// Sets counts as if every pod of a component took the capacity of a replica.
func (n freeReplicas) Sets(components []Component, _ bool) (sets int64, lacking, quota string) {
	var each int64
	for _, c := range components {
		if each += c.Replicas; each > int64(n) && lacking == "" {
			lacking = c.Name
		}
	}
	if lacking != "" {
		return 0, lacking, ""
	}
	return int64(n) / max(1, each), "", ""
}

func healthy(name string) *Cluster {
	return &Cluster{
		Name: name, UID: types.UID(name), Reachable: true, APIs: serves(presence.Present), Labels: map[string]string{"name": name},
	}
}

func with(name string, change func(*Cluster)) *Cluster {
	c := healthy(name)
	change(c)
	return c
}

func free(name string, n int64) *Cluster {
	return with(name, func(c *Cluster) { c.FreeCapacity = freeReplicas(n) })
}

// schedule places an object in clusters in any order.
func schedule(clusters []*Cluster, r Request) Result {
	if r.Placement == nil {
		r.Placement = Compile(policyv1alpha1.Placement{})
	}
	return Schedule(ordered(clusters), r)
}

func ordered(clusters []*Cluster) []*Cluster {
	return slices.SortedFunc(slices.Values(clusters), func(a, b *Cluster) int { return strings.Compare(a.Name, b.Name) })
}

func targets(nameReplicas ...any) []workv1alpha2.TargetCluster {
	var all []workv1alpha2.TargetCluster
	for i := 0; i < len(nameReplicas); i += 2 {
		t := workv1alpha2.TargetCluster{Name: nameReplicas[i].(string)}
		if n := nameReplicas[i+1].(int); n >= 0 {
			t.Replicas = new(int32(n))
		}
		all = append(all, t)
	}
	return all
}

func named(names ...string) *policyv1alpha1.ClusterAffinity {
	return &policyv1alpha1.ClusterAffinity{ClusterNames: names}
}

// static weights, as name, weight pairs.
func static(nameWeights ...any) policyv1alpha1.Placement {
	var list []policyv1alpha1.StaticClusterWeight
	for i := 0; i < len(nameWeights); i += 2 {
		list = append(list, policyv1alpha1.StaticClusterWeight{
			TargetCluster: *named(nameWeights[i].(string)), Weight: int64(nameWeights[i+1].(int)),
		})
	}
	p := equally()
	p.ReplicaScheduling.WeightPreference = &policyv1alpha1.ClusterPreferences{StaticWeightList: list}
	return p
}

func equally() policyv1alpha1.Placement {
	return policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.Divided,
	}}
}

func byCapacity() policyv1alpha1.Placement {
	p := equally()
	p.ReplicaScheduling.WeightPreference = &policyv1alpha1.ClusterPreferences{
		DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas,
	}
	return p
}

func TestFilters(t *testing.T) {
	noSchedule := corev1.Taint{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
	noExecute := corev1.Taint{Key: "down", Effect: corev1.TaintEffectNoExecute}
	cases := map[string]struct {
		cluster   *Cluster
		placement policyv1alpha1.Placement
		placed    bool
		want      []string // reasons
	}{
		"Fits":    {cluster: healthy("oak")},
		"Leaving": {cluster: with("oak", func(c *Cluster) { c.Leaving = true }), placed: true, want: []string{ReasonLeaving}},
		"OtherName": {
			cluster:   healthy("oak"),
			placement: policyv1alpha1.Placement{ClusterAffinity: named("oak2")},
			want:      []string{ReasonNotSelected},
		},
		"Excluded": {
			cluster: healthy("oak"),
			placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{
				ClusterNames: []string{"oak"}, ExcludeClusters: []string{"oak"},
			}},
			want: []string{ReasonNotSelected},
		},
		"Labels": {
			cluster: healthy("oak"),
			placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}},
			}},
			want: []string{ReasonNotSelected},
		},
		"BadLabelSelector": {
			cluster: healthy("oak"),
			placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{
				LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}},
			}},
			want: []string{ReasonAffinityWrong},
		},
		"Fields": {
			cluster: with("oak", func(c *Cluster) { c.Region = "north" }),
			placement: policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{
				FieldSelector: &policyv1alpha1.FieldSelector{MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{
					{Key: "region", Operator: metav1.LabelSelectorOpIn, Values: []string{"south"}},
				}},
			}},
			want: []string{ReasonNotSelected},
		},
		"Tainted":          {cluster: with("oak", func(c *Cluster) { c.Taints = []corev1.Taint{noSchedule} }), want: []string{ReasonTainted}},
		"TaintKeepsPlaced": {cluster: with("oak", func(c *Cluster) { c.Taints = []corev1.Taint{noExecute} }), placed: true},
		"PreferNoSchedule": {cluster: with("oak", func(c *Cluster) {
			c.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}
		})},
		"Tolerated": {
			cluster: with("oak", func(c *Cluster) { c.Taints = []corev1.Taint{noSchedule, noExecute} }),
			placement: policyv1alpha1.Placement{ClusterTolerations: []corev1.Toleration{
				{Key: "gpu", Value: "yes"}, {Key: "down", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			}},
		},
		"ToleratedOtherValue": {
			cluster: with("oak", func(c *Cluster) { c.Taints = []corev1.Taint{noSchedule} }),
			placement: policyv1alpha1.Placement{ClusterTolerations: []corev1.Toleration{
				{Key: "gpu", Value: "no"},
			}},
			want: []string{ReasonTainted},
		},
		"Unreachable":            {cluster: with("oak", func(c *Cluster) { c.Reachable = false }), want: []string{ReasonUnreachable}},
		"UnreachableKeepsPlaced": {cluster: with("oak", func(c *Cluster) { c.Reachable, c.APIs = false, nil }), placed: true},
		"NotServed":              {cluster: with("oak", func(c *Cluster) { c.APIs = serves(presence.Absent) }), want: []string{ReasonAPINotServed}},
		"NotServedKeepsPlaced":   {cluster: with("oak", func(c *Cluster) { c.APIs = serves(presence.Absent) }), placed: true},
		"APIUnknown":             {cluster: with("oak", func(c *Cluster) { c.APIs = serves(presence.Unknown) }), want: []string{ReasonAPIUnknown}},
		"APIUnknownKeepsPlaced":  {cluster: with("oak", func(c *Cluster) { c.APIs = serves(presence.Unknown) }), placed: true},
		"NoWeight":               {cluster: healthy("oak"), placement: static("pine", 1), want: []string{ReasonNoWeight}},
		"EveryReason": {
			cluster: with("oak", func(c *Cluster) {
				c.Leaving, c.Reachable, c.Taints = true, false, []corev1.Taint{noSchedule}
			}),
			placement: policyv1alpha1.Placement{ClusterAffinity: named("pine")},
			want:      []string{ReasonLeaving, ReasonNotSelected, ReasonTainted, ReasonUnreachable},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := Request{Placement: Compile(tc.placement), Replicas: new(int32(1))}
			if tc.placed {
				r.Previous = targets(tc.cluster.Name, 1)
			}
			var got []string
			result := Schedule([]*Cluster{tc.cluster}, r)
			for _, v := range result.Verdicts.Of(tc.cluster.Name) {
				got = append(got, v.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSchedule(t *testing.T) {
	fleet := []*Cluster{healthy("oak"), healthy("pine"), healthy("elm")}
	cases := map[string]struct {
		clusters []*Cluster
		request  Request
		want     []workv1alpha2.TargetCluster
		reason   string // default Scheduled
		message  []string
	}{
		"EveryClusterByDefault": {
			clusters: fleet, request: Request{Replicas: new(int32(2))},
			want: targets("elm", 2, "oak", 2, "pine", 2), message: []string{"3 of 3 clusters"},
		},
		"WithoutReplicasDivisionMeansNothing": {
			clusters: fleet, request: Request{Placement: Compile(static("oak", 1))},
			want: targets("elm", -1, "oak", -1, "pine", -1),
		},
		"UnknownCluster": {
			clusters: fleet,
			request:  Request{Placement: Compile(policyv1alpha1.Placement{ClusterAffinity: named("oak", "yew")})},
			want:     targets("oak", -1), message: []string{"1 of 2 clusters", "yew: UnknownCluster"},
		},
		"OnlyUnknownCluster": {
			clusters: fleet,
			request:  Request{Placement: Compile(policyv1alpha1.Placement{ClusterAffinity: named("yew")})},
			reason:   workv1alpha2.ReasonNoClusterFits, message: []string{"yew: UnknownCluster"},
		},
		"NothingFitsKeepsWhatRuns": {
			clusters: append(slices.Clone(fleet), with("yew", func(c *Cluster) { c.Reachable = false })),
			request: Request{
				Placement: Compile(policyv1alpha1.Placement{ClusterAffinity: named("yew")}), Replicas: new(int32(3)),
				Previous: targets("oak", 2, "gone", 2),
			},
			want: targets("oak", 3), reason: workv1alpha2.ReasonNoClusterFits, message: []string{"oak stays"},
		},
		"NothingIsMeantAnyMore": {
			clusters: fleet,
			request: Request{
				Placement: Compile(policyv1alpha1.Placement{ClusterAffinity: named("yew")}), Replicas: new(int32(3)), Previous: targets("oak", 3),
			},
			reason: workv1alpha2.ReasonNoClusterFits, message: []string{"selects no cluster of the fleet", "yew: UnknownCluster"},
		},
		"NoClusters": {reason: workv1alpha2.ReasonNoClusterFits},
		"ByWeight": {
			clusters: fleet, request: Request{Placement: Compile(static("oak", 2, "pine", 1)), Replicas: new(int32(6))},
			want: targets("oak", 4, "pine", 2), message: []string{"2 of 3 clusters", "elm: no entry"},
		},
		"GreatestWeightCounts": {
			clusters: fleet, request: Request{Placement: Compile(static("oak", 1, "oak", 3, "pine", 1)), Replicas: new(int32(4))},
			want: targets("oak", 3, "pine", 1),
		},
		"NoReplicasNoCopy": {
			clusters: fleet, request: Request{Placement: Compile(static("oak", 100, "pine", 1)), Replicas: new(int32(2))},
			want: targets("oak", 2), message: []string{"1 of 3 clusters"},
		},
		"Equally": {
			clusters: fleet, request: Request{Placement: Compile(equally()), Replicas: new(int32(6))},
			want: targets("elm", 2, "oak", 2, "pine", 2),
		},
		"Asleep": {
			clusters: fleet, request: Request{Placement: Compile(static("oak", 2, "pine", 1)), Replicas: new(int32(0))},
			want: targets("oak", 0, "pine", 0),
		},
		"StaticKeepsUnreachable": {
			clusters: []*Cluster{healthy("oak"), with("pine", func(c *Cluster) { c.Reachable, c.APIs = false, nil })},
			request:  Request{Placement: Compile(equally()), Replicas: new(int32(4)), Previous: targets("oak", 2, "pine", 2)},
			want:     targets("oak", 2, "pine", 2),
		},
		"CapacityFirst": {
			clusters: []*Cluster{free("oak", 30), free("pine", 10)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(4))}, want: targets("oak", 3, "pine", 1),
		},
		"CapacitySteady": {
			clusters: []*Cluster{free("oak", 0), free("pine", 1000)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(4)), Previous: targets("oak", 3, "pine", 1)},
			want:     targets("oak", 3, "pine", 1),
		},
		"CapacityFresh": {
			clusters: []*Cluster{free("oak", 0), free("pine", 8)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(4)), Previous: targets("oak", 3, "pine", 1), Fresh: true},
			want:     targets("oak", 1, "pine", 3),
		},
		"CapacityGrowsByTheNewOnly": {
			clusters: []*Cluster{free("oak", 0), free("pine", 10)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(6)), Previous: targets("oak", 3, "pine", 1)},
			want:     targets("oak", 3, "pine", 3),
		},
		"CapacityShrinksInProportion": {
			clusters: []*Cluster{free("oak", 0), free("pine", 10)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(4)), Previous: targets("oak", 6, "pine", 2)},
			want:     targets("oak", 3, "pine", 1),
		},
		"CapacityUnknownGetsNothingNew": {
			clusters: []*Cluster{healthy("oak"), free("pine", 10)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(6)), Previous: targets("oak", 3, "pine", 1)},
			want:     targets("oak", 3, "pine", 3),
		},
		"CapacityOfUnreachableIsNotTrusted": {
			clusters: []*Cluster{with("oak", func(c *Cluster) { c.Reachable, c.FreeCapacity = false, freeReplicas(100) }), free("pine", 10)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(6)), Previous: targets("oak", 3, "pine", 1)},
			want:     targets("oak", 3, "pine", 3),
		},
		"CapacityMovesFromClusterThatNoLongerFits": {
			clusters: []*Cluster{with("oak", func(c *Cluster) { c.Leaving = true }), free("pine", 10)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(4)), Previous: targets("oak", 3, "pine", 1)},
			want:     targets("pine", 4),
		},
		"InsufficientAtFirst": {
			clusters: []*Cluster{free("oak", 1), free("pine", 1)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(4))},
			want:     targets("oak", 1, "pine", 1),
			reason:   workv1alpha2.ReasonInsufficient, message: []string{"2 of 4 replicas are placed"},
		},
		"InsufficientKeepsWhatRuns": {
			clusters: []*Cluster{free("oak", 1), free("pine", 1)},
			request:  Request{Placement: Compile(byCapacity()), Replicas: new(int32(7)), Previous: targets("oak", 3, "pine", 1), Fresh: true},
			want:     targets("oak", 4, "pine", 2),
			reason:   workv1alpha2.ReasonInsufficient, message: []string{"6 of 7 replicas are placed"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := schedule(tc.clusters, tc.request)
			if diff := cmp.Diff(tc.want, got.Clusters, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("clusters (-want +got):\n%s", diff)
			}
			if want := stdcmp.Or(tc.reason, workv1alpha2.ReasonScheduled); got.Reason != want {
				t.Errorf("reason %s, want %s", got.Reason, want)
			}
			for _, part := range tc.message {
				if !strings.Contains(got.Message, part) {
					t.Errorf("message %q lacks %q", got.Message, part)
				}
			}
		})
	}
}

func TestKeep(t *testing.T) {
	fleet := ordered([]*Cluster{healthy("oak"), healthy("pine"), with("elm", func(c *Cluster) { c.Leaving = true })})
	cases := map[string]struct {
		previous []workv1alpha2.TargetCluster
		shared   bool
		replicas *int32
		want     []workv1alpha2.TargetCluster
	}{
		"Unchanged":     {previous: targets("oak", 2, "pine", 1), shared: true, replicas: new(int32(3)), want: targets("oak", 2, "pine", 1)},
		"NoReplicas":    {previous: targets("oak", -1, "pine", -1), want: targets("oak", -1, "pine", -1)},
		"Copied":        {previous: targets("oak", 2, "pine", 2), replicas: new(int32(5)), want: targets("oak", 5, "pine", 5)},
		"SharedEqually": {previous: targets("oak", 2, "pine", 2), shared: true, replicas: new(int32(6)), want: targets("oak", 3, "pine", 3)},
		"SharedGrows":   {previous: targets("oak", 2, "pine", 1), shared: true, replicas: new(int32(6)), want: targets("oak", 4, "pine", 2)},
		"SharedByOne":   {previous: targets("oak", 1), shared: true, replicas: new(int32(10)), want: targets("oak", 10)},
		"SharedAsleep":  {previous: targets("oak", 2, "pine", 1), shared: true, replicas: new(int32(0)), want: targets("oak", 0, "pine", 0)},
		"SharedAwake":   {previous: targets("oak", 0, "pine", 0), shared: true, replicas: new(int32(4)), want: targets("oak", 2, "pine", 2)},
		"Gone":          {previous: targets("ash", 2, "elm", 2, "oak", 2), replicas: new(int32(2)), want: targets("oak", 2)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Keep(fleet, "uid", tc.previous, tc.shared, tc.replicas)); diff != "" {
				t.Errorf("clusters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdicts(t *testing.T) {
	taint := func(key string) func(*Cluster) {
		return func(c *Cluster) { c.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	p := static("ash", 1, "elm", 1, "fir", 1, "oak", 1, "pine", 1)
	p.ClusterAffinity = &policyv1alpha1.ClusterAffinity{
		ClusterNames: []string{"ash", "elm", "fir", "oak", "pine", "yew"}, ExcludeClusters: []string{"fir"},
	}
	got := schedule([]*Cluster{
		healthy("ash"), with("elm", taint("gpu")), healthy("fir"), with("lime", taint("gpu")), with("oak", taint("arm")), healthy("pine"),
	}, Request{UID: "u", Placement: Compile(p), Replicas: new(int32(1))})
	want := []Verdict{
		{Reason: ReasonUnknownCluster, Clusters: []string{"yew"}},
		{Reason: ReasonNotSelected, Message: "clusterAffinity does not select it", Clusters: []string{"fir", "lime"}},
		{Reason: ReasonNoWeight, Message: "no entry of staticWeightList selects it", Clusters: []string{"lime"}},
		{Reason: ReasonTainted, Message: "taint gpu:NoSchedule is not tolerated", Clusters: []string{"elm", "lime"}},
		{Reason: ReasonTainted, Message: "taint arm:NoSchedule is not tolerated", Clusters: []string{"oak"}},
		{Reason: ReasonNoReplicas, Clusters: []string{map[string]string{"ash": "pine", "pine": "ash"}[got.Clusters[0].Name]}},
	}
	want[0].Message, want[5].Message = unknownMessage, noReplicasMessage
	if diff := cmp.Diff(want, got.Verdicts.All()); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func TestConcerns(t *testing.T) {
	oak := healthy("oak")
	change := func(f func(*Cluster)) *Cluster { return with("oak", f) }
	taint := change(func(c *Cluster) { c.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} })
	silent := change(func(c *Cluster) { c.Reachable = false })
	unserved := change(func(c *Cluster) { c.APIs = serves(presence.Absent) })
	labelled := change(func(c *Cluster) { c.Labels = map[string]string{"env": "prod"} })
	again := change(func(c *Cluster) { c.UID = "other" })
	everywhere := policyv1alpha1.Placement{}
	prod := policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}},
	}}
	cases := map[string]struct {
		placement     policyv1alpha1.Placement
		before, after *Cluster
		placed, want  bool
	}{
		"Nothing":            {everywhere, oak, oak, false, false},
		"Joined":             {everywhere, nil, oak, false, true},
		"JoinedElsewhere":    {prod, nil, oak, false, false},
		"JoinedByName":       {policyv1alpha1.Placement{ClusterAffinity: named("oak")}, nil, oak, false, true},
		"JoinedAgain":        {everywhere, oak, again, true, true},
		"Gone":               {prod, oak, nil, true, true},
		"GoneElsewhere":      {prod, oak, nil, false, false},
		"Leaving":            {everywhere, oak, change(func(c *Cluster) { c.Leaving = true }), true, true},
		"Silent":             {everywhere, oak, silent, false, false},
		"SilentPlaced":       {everywhere, oak, silent, true, false},
		"Answers":            {everywhere, silent, oak, false, true},
		"AnswersElsewhere":   {prod, silent, oak, false, false},
		"AnswersPlaced":      {everywhere, silent, oak, true, false},
		"Tainted":            {everywhere, oak, taint, false, true},
		"TaintedPlaced":      {everywhere, oak, taint, true, false},
		"Unserved":           {everywhere, oak, unserved, false, true},
		"UnservedPlaced":     {everywhere, oak, unserved, true, false},
		"SelectedNow":        {prod, oak, labelled, false, true},
		"NoLongerSelected":   {prod, labelled, oak, true, true},
		"LabelNobodyAsksFor": {everywhere, oak, labelled, true, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Compile(tc.placement).Concerns(tc.before, tc.after, schema.GroupVersionKind{}, nil, tc.placed); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// TestMessageIgnoresOtherClusters: a message does not change when a cluster joins that the policy
// does not select.
func TestMessageIgnoresOtherClusters(t *testing.T) {
	r := Request{Placement: Compile(policyv1alpha1.Placement{ClusterAffinity: named("oak")})}
	before := schedule([]*Cluster{healthy("oak")}, r).Message
	after := schedule([]*Cluster{healthy("oak"), healthy("pine")}, r).Message
	if before != after {
		t.Errorf("message became %q, was %q", after, before)
	}
}

// TestTiesAreSpread: small workloads with equal weights do not all go to one cluster.
func TestTiesAreSpread(t *testing.T) {
	fleet := []*Cluster{healthy("oak"), healthy("pine"), healthy("elm")}
	landed := map[string]int{}
	for i := range 300 {
		got := schedule(fleet, Request{UID: types.UID(fmt.Sprint(i)), Placement: Compile(equally()), Replicas: new(int32(1))})
		landed[got.Clusters[0].Name]++
	}
	for _, c := range fleet {
		if landed[c.Name] < 60 {
			t.Errorf("%d of 300 landed in %s: %v", landed[c.Name], c.Name, landed)
		}
	}
}

func sum(all []workv1alpha2.TargetCluster) (total int64) {
	for _, t := range all {
		total += current(t)
	}
	return total
}

// FuzzStatic: the shares add up for every order of the clusters, and more weight never means fewer
// replicas.
func FuzzStatic(f *testing.F) {
	f.Add(uint64(1), uint8(3), int32(10))
	f.Add(uint64(2), uint8(40), int32(2_000_000_000))
	f.Add(uint64(3), uint8(1), int32(0))
	f.Fuzz(func(t *testing.T, seed uint64, clusters uint8, replicas int32) {
		if clusters == 0 || replicas < 0 {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		candidates := make([]candidate, clusters)
		for i := range candidates {
			candidates[i] = candidate{name: fmt.Sprint("c", i), weight: 1 + random.Int64N(1_000_000)}
		}
		got := share("uid", candidates, replicas)
		if sum(got) != int64(replicas) {
			t.Fatalf("the shares of %d add up to %d", replicas, sum(got))
		}
		if slices.ContainsFunc(got, func(t workv1alpha2.TargetCluster) bool { return *t.Replicas <= 0 }) {
			t.Fatalf("a share is not positive: %v", got)
		}
		shuffled := slices.Clone(candidates)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if diff := cmp.Diff(got, share("uid", shuffled, replicas)); diff != "" {
			t.Fatalf("another order gives (-want +got):\n%s", diff)
		}
		of := func(all []workv1alpha2.TargetCluster, name string) int64 {
			for _, t := range all {
				if t.Name == name {
					return current(t)
				}
			}
			return 0
		}
		heavier := random.IntN(len(candidates))
		name := candidates[heavier].name
		candidates[heavier].weight += 1 + random.Int64N(1000)
		if before, after := of(got, name), of(share("uid", candidates, replicas), name); after < before {
			t.Fatalf("%s had %d and has %d with more weight", name, before, after)
		}
	})
}

// FuzzDynamic: replicas add up or nothing moves, no cluster gets more than fits, and a workload
// that grows loses no replica.
func FuzzDynamic(f *testing.F) {
	f.Add(uint64(1), uint8(3), int32(10))
	f.Add(uint64(9), uint8(9), int32(100))
	f.Fuzz(func(t *testing.T, seed uint64, count uint8, replicas int32) {
		if count == 0 || replicas <= 0 {
			return
		}
		replicas %= 10_000
		random := rand.New(rand.NewPCG(seed, 0))
		var fleet []*Cluster
		var previous []workv1alpha2.TargetCluster
		had := map[string]int64{}
		capacity := map[string]int64{}
		for i := range int(count) {
			c := free(fmt.Sprint("c", i), random.Int64N(1000))
			fleet = append(fleet, c)
			capacity[c.Name] = int64(c.FreeCapacity.(freeReplicas))
			if n := random.IntN(100); n > 50 {
				previous = append(previous, targets(c.Name, n)...)
				had[c.Name] = int64(n)
			}
		}
		got := schedule(fleet, Request{UID: "uid", Placement: Compile(byCapacity()), Replicas: &replicas, Previous: previous})
		var most int64
		for _, c := range fleet {
			most += had[c.Name] + capacity[c.Name]
		}
		if want := min(int64(replicas), most); replicas > 0 && sum(got.Clusters) != want {
			t.Fatalf("%d replicas placed, want %d", sum(got.Clusters), want)
		}
		if less := int64(replicas) > most; less != (got.Reason == workv1alpha2.ReasonInsufficient) {
			t.Fatalf("reason %s, and %d of %d replicas fit", got.Reason, most, replicas)
		}
		for _, c := range got.Clusters {
			if current(c) > had[c.Name]+capacity[c.Name] {
				t.Fatalf("%s got %d, had %d and room for %d", c.Name, current(c), had[c.Name], capacity[c.Name])
			}
			if int64(replicas) >= sum(previous) && current(c) < had[c.Name] {
				t.Fatalf("%s lost replicas: had %d, has %d", c.Name, had[c.Name], current(c))
			}
		}
	})
}

// existingOnly has capacity only for objects that are in the cluster already.
type existingOnly struct{}

func (existingOnly) Fits(_ *Claim, there bool) (int64, string) {
	if there {
		return 5, ""
	}
	return 0, "shop/objects"
}

func (c existingOnly) Sets(_ []Component, there bool) (sets int64, lacking, quota string) {
	sets, quota = c.Fits(nil, there)
	return sets, "", quota
}

// TestCapacityForExistingObjects: where no new objects are admitted, existing ones grow.
func TestCapacityForExistingObjects(t *testing.T) {
	var clusters []*Cluster
	for _, name := range []string{"a", "b"} {
		c := free(name, 0)
		c.FreeCapacity = existingOnly{}
		clusters = append(clusters, c)
	}
	r := Request{UID: "uid", Placement: Compile(byCapacity()), Replicas: new(int32(4)), Shared: true}
	if got := Schedule(clusters, r); len(got.Clusters) > 0 || got.Reason != workv1alpha2.ReasonInsufficient {
		t.Errorf("a new one is placed in %v: %s", got.Clusters, got.Reason)
	}
	// The verdict names the quota.
	got := Schedule(clusters, r)
	if want := "0 of 4 replicas are placed, and no more fit; ResourceQuota shop/objects limits how many fit in a, b"; got.Message != want {
		t.Errorf("it says %q, want %q", got.Message, want)
	}
	want := []Verdict{{Reason: ReasonNoRoom, Message: "it matches, but ResourceQuota shop/objects of the cluster allows no replica", Clusters: []string{"a", "b"}}}
	if diff := cmp.Diff(want, got.Verdicts.All()); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Verdict{{Reason: want[0].Reason, Message: want[0].Message, Clusters: []string{"b"}}}, got.Verdicts.Of("b")); diff != "" {
		t.Errorf("verdict on b (-want +got):\n%s", diff)
	}
	for _, had := range []int32{2, 0} { // 0: it had 0 replicas
		for _, fresh := range []bool{false, true} {
			r.Previous, r.Fresh = []workv1alpha2.TargetCluster{{Name: "b", Replicas: new(had)}}, fresh
			got := Schedule(clusters, r)
			if len(got.Clusters) != 1 || got.Clusters[0].Name != "b" || current(got.Clusters[0]) != 4 || got.Reason != workv1alpha2.ReasonScheduled {
				t.Errorf("had %d, fresh %t: it is placed in %v: %s", had, fresh, got.Clusters, got.Message)
			}
		}
	}
}

func BenchmarkSchedule(b *testing.B) {
	var fleet []*Cluster
	for i := range 3000 {
		fleet = append(fleet, free(fmt.Sprintf("cluster-%d", i), int64(i)))
	}
	for name, p := range map[string]policyv1alpha1.Placement{"Duplicated": {}, "Equally": equally(), "ByCapacity": byCapacity()} {
		b.Run(name, func(b *testing.B) {
			r := Request{UID: "uid", Placement: Compile(p), Replicas: new(int32(10_000))}
			clusters := ordered(fleet)
			b.ReportAllocs()
			for b.Loop() {
				Schedule(clusters, r)
			}
		})
	}
}

// TestBounds: an object is placed only where the profile of the cluster's agent admits it. It stays
// where it was placed before.
func TestBounds(t *testing.T) {
	bounded := func(name string, namespaces ...string) *Cluster {
		return with(name, func(c *Cluster) { c.Bounds = &Bounds{Profile: "Placement", Namespaces: namespaces} })
	}
	none := with("none", func(c *Cluster) { c.Bounds = &Bounds{Profile: "Mirror"} })
	clusters := []*Cluster{healthy("all"), bounded("shop", "shop", "lab"), bounded("lab", "lab"), none}
	for name, tc := range map[string]struct {
		namespace string
		previous  []workv1alpha2.TargetCluster
		want      []workv1alpha2.TargetCluster
		refused   map[string]string
	}{
		"Inside":        {namespace: "lab", want: targets("all", -1, "lab", -1, "shop", -1), refused: map[string]string{"none": "Mirror lets the hub place nothing"}},
		"OneOfThem":     {namespace: "shop", want: targets("all", -1, "shop", -1), refused: map[string]string{"none": "rejoin", "lab": "only objects of the namespaces lab;"}},
		"ClusterScoped": {namespace: "", want: targets("all", -1), refused: map[string]string{"none": "nothing", "lab": "namespaces lab", "shop": "namespaces shop, lab"}},
		"Placed":        {namespace: "", previous: targets("none", -1), want: targets("all", -1, "none", -1), refused: map[string]string{"lab": "Placement"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := schedule(clusters, Request{Namespace: tc.namespace, Previous: tc.previous})
			if diff := cmp.Diff(tc.want, r.Clusters); diff != "" {
				t.Errorf("clusters (-want +got):\n%s", diff)
			}
			for cluster, says := range tc.refused {
				of := r.Verdicts.Of(cluster)
				if len(of) != 1 || of[0].Reason != ReasonOutOfBounds || !strings.Contains(of[0].Message, says) {
					t.Errorf("%s: %v, want %s saying %q", cluster, of, ReasonOutOfBounds, says)
				}
			}
		})
	}
	// A profile that changes concerns what is placed there and what is not.
	p := Compile(policyv1alpha1.Placement{})
	for _, placed := range []bool{true, false} {
		if !p.Concerns(bounded("a", "x"), bounded("a", "y"), schema.GroupVersionKind{Kind: "Gear"}, nil, placed) {
			t.Errorf("other bounds concern nobody (placed: %t)", placed)
		}
	}
}

// TestReasonsAreDocumented: docs/commands.md explains every reason of a verdict, and no other one.
func TestReasonsAreDocumented(t *testing.T) {
	reasons := func(file, after, pattern string) (found []string) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), after)
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(rest, -1) {
			found = append(found, match[1])
		}
		return found
	}
	want := reasons("filter.go", "// Reasons of verdicts.", `(?m)^\tReason\w+ += "(\w+)"`)
	got := reasons("../../docs/commands.md", "\n## why\n", "(?m)^\\| `(\\w+)` \\|")
	if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
		t.Errorf("reasons (-code +docs/commands.md):\n%s", diff)
	}
}
