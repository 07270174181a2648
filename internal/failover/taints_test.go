package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/fleet"
)

// tainting returns a policy that adds a taint while the conditions add match, and removes it while
// remove match.
func tainting(name string, t policyv1alpha1.Taint, add, remove []policyv1alpha1.MatchCondition) *policyv1alpha1.ClusterTaintPolicy {
	p := &policyv1alpha1.ClusterTaintPolicy{}
	p.Name = name
	p.Spec.AddOnConditions, p.Spec.RemoveOnConditions, p.Spec.Taints = add, remove, []policyv1alpha1.Taint{t}
	return p
}

// in returns a condition that matches statuses, and notIn one that matches others.
func in(condition string, statuses ...metav1.ConditionStatus) policyv1alpha1.MatchCondition {
	return policyv1alpha1.MatchCondition{ConditionType: condition, Operator: policyv1alpha1.MatchConditionOpIn, StatusValues: statuses}
}

func notIn(condition string, statuses ...metav1.ConditionStatus) policyv1alpha1.MatchCondition {
	return policyv1alpha1.MatchCondition{ConditionType: condition, Operator: policyv1alpha1.MatchConditionOpNotIn, StatusValues: statuses}
}

func all(conditions ...policyv1alpha1.MatchCondition) []policyv1alpha1.MatchCondition {
	return conditions
}

// evicting is the taint that most policies in tests set.
var evicting = policyv1alpha1.Taint{Key: clusterv1alpha1.TaintUnreachable, Effect: corev1.TaintEffectNoExecute}

// whileLost returns a policy as users have it: the taint evicting is there while the cluster is not
// ready.
func whileLost(name string) *policyv1alpha1.ClusterTaintPolicy {
	return tainting(name, evicting, all(notIn("Ready", metav1.ConditionTrue)), all(in("Ready", metav1.ConditionTrue)))
}

// tainted returns a taint that was added at a time; zero: it has none.
func tainted(key, value string, effect corev1.TaintEffect, at time.Time) corev1.Taint {
	t := corev1.Taint{Key: key, Value: value, Effect: effect}
	if !at.IsZero() {
		t.TimeAdded = new(metav1.NewTime(at))
	}
	return t
}

func TestTaints(t *testing.T) {
	const noExecute, noSchedule = corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule
	earlier := start.Add(-time.Hour)
	unprobed, unjoined, labelled := answering("a"), answering("a"), lostSince("a", earlier)
	unprobed.Reachable, unprobed.Since = false, time.Time{}
	unjoined.Joined = false
	labelled.Labels, labelled.Region = labels.Set{"env": "test"}, "north"
	lost := lostSince("a", earlier)
	evicts := tainted(evicting.Key, "", noExecute, start)
	ready, reachable, joined := clusterv1alpha1.ConditionReady, clusterv1alpha1.ConditionReachable, clusterv1alpha1.ConditionJoined
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	valued := func(value string) policyv1alpha1.Taint {
		return policyv1alpha1.Taint{Key: "k", Value: value, Effect: noExecute}
	}
	only := func(p *policyv1alpha1.ClusterTaintPolicy, a policyv1alpha1.ClusterAffinity) *policyv1alpha1.ClusterTaintPolicy {
		p.Spec.TargetClusters = &a
		return p
	}
	several := whileLost("p")
	several.Spec.Taints = append(several.Spec.Taints, valued("v"), policyv1alpha1.Taint{Key: "k", Effect: noSchedule})

	for name, c := range map[string]struct {
		cluster  *fleet.Cluster // nil: lost
		pull     bool
		policies []*policyv1alpha1.ClusterTaintPolicy
		stored   []corev1.Taint
		last     []corev1.Taint // what the taints were last
		want     []corev1.Taint
	}{
		"NoPolicies":   {},
		"Lost":         {policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")}, want: []corev1.Taint{evicts}},
		"LostPull":     {pull: true, policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")}, want: []corev1.Taint{evicts}},
		"Unjoined":     {cluster: unjoined, policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")}, want: []corev1.Taint{evicts}},
		"Answers":      {cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")}},
		"AnswersAgain": {cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")}, stored: []corev1.Taint{tainted(evicting.Key, "x", noExecute, earlier)}},
		"Several": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{several},
			want:     []corev1.Taint{evicts, tainted("k", "v", noExecute, start), tainted("k", "", noSchedule, start)},
		},
		"SeveralRemoved": {
			cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{several},
			stored: []corev1.Taint{tainted("k", "", noSchedule, time.Time{}), tainted("own", "", noSchedule, time.Time{}), tainted("k", "w", noExecute, earlier)},
			want:   []corev1.Taint{tainted("own", "", noSchedule, time.Time{})},
		},

		// Before the first probe nothing is added or removed.
		"Unprobed": {cluster: unprobed, policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")}},
		"UnprobedStays": {
			cluster: unprobed, policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, nil, all(notIn(ready, yes)))},
			stored: []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier)}, want: []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier)},
		},
		"UnprobedStamped": {
			cluster: unprobed, policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")},
			stored: []corev1.Taint{tainted("own", "", noExecute, time.Time{})}, want: []corev1.Taint{tainted("own", "", noExecute, start)},
		},

		// Conditions.
		"FalsePush":           {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(ready, no)), nil)}, want: []corev1.Taint{evicts}},
		"FalsePull":           {pull: true, policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(ready, no)), nil)}},
		"UnknownPush":         {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(ready, unknown)), nil)}},
		"UnknownPull":         {pull: true, policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(ready, unknown)), nil)}, want: []corev1.Taint{evicts}},
		"ReachableFalse":      {pull: true, policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(reachable, no)), nil)}, want: []corev1.Taint{evicts}},
		"ReachableTrue":       {cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(reachable, yes)), nil)}, want: []corev1.Taint{evicts}},
		"ReachableUnknown":    {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(reachable, unknown)), nil)}, want: []corev1.Taint{evicts}},
		"ReachableNotTrue":    {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn(reachable, yes)), nil)}, want: []corev1.Taint{evicts}},
		"ReachableNotFalse":   {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn(reachable, no)), nil)}},
		"ReachableNotUnknown": {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn(reachable, unknown)), nil)}},
		"AnswersUnknown":      {cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(reachable, unknown)), nil)}},
		"AnswersNotUnknown":   {cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn(reachable, unknown)), nil)}, want: []corev1.Taint{evicts}},
		"Joined":              {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in(joined, yes, no), notIn(joined, no)), nil)}, want: []corev1.Taint{evicts}},
		"OneDoesNotMatch":     {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn(ready, yes), in(joined, no)), nil)}},
		"TypeUnknown":         {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn("Mirrored", yes)), nil)}},
		"TypeEmpty":           {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(in("", "")), nil)}},
		"OperatorUnknown":     {policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, []policyv1alpha1.MatchCondition{{ConditionType: ready, StatusValues: []metav1.ConditionStatus{no}}}, nil)}},
		"NoConditions": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, nil, nil), tainting("q", valued("v"), nil, nil)},
			stored:   []corev1.Taint{tainted("k", "w", noExecute, earlier)}, want: []corev1.Taint{tainted("k", "w", noExecute, earlier)},
		},
		"RemovalWins": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", evicting, all(notIn(ready, yes)), all(notIn(ready, yes)))},
			stored:   []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier)},
		},

		// Taints that are there already.
		"StaysWithItsTime": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")},
			stored:   []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier)}, want: []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier)},
		},
		"ValueReplaced": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", valued("v"), all(in(reachable, no)), nil)},
			stored:   []corev1.Taint{tainted("k", "w", noExecute, earlier), tainted("k", "w", noSchedule, earlier)},
			want:     []corev1.Taint{tainted("k", "v", noExecute, earlier), tainted("k", "w", noSchedule, earlier)},
		},
		"PersonsOwn": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")},
			stored:   []corev1.Taint{tainted("own", "x", noExecute, earlier), tainted(evicting.Key, "x", noSchedule, time.Time{})},
			want:     []corev1.Taint{tainted("own", "x", noExecute, earlier), tainted(evicting.Key, "x", noSchedule, time.Time{}), evicts},
		},
		"PersonsOwnStamped": {
			cluster: answering("a"),
			stored: []corev1.Taint{
				tainted("own", "", noExecute, time.Time{}), tainted("own", "", noSchedule, time.Time{}), tainted("own", "", corev1.TaintEffectPreferNoSchedule, time.Time{}),
				{Key: "null", Effect: noExecute, TimeAdded: &metav1.Time{}},
			},
			want: []corev1.Taint{
				tainted("own", "", noExecute, start), tainted("own", "", noSchedule, time.Time{}), tainted("own", "", corev1.TaintEffectPreferNoSchedule, time.Time{}),
				tainted("null", "", noExecute, start),
			},
		},
		"AddedWithoutTime": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")},
			stored:   []corev1.Taint{tainted(evicting.Key, "", noExecute, time.Time{})}, want: []corev1.Taint{evicts},
		},

		// Taints that an update of the Cluster dropped.
		"Dropped": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{several},
			last:     []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier), tainted("k", "", noSchedule, earlier)},
			want: []corev1.Taint{
				tainted(evicting.Key, "", noExecute, earlier), tainted("k", "v", noExecute, start), tainted("k", "", noSchedule, earlier),
			},
		},
		"DroppedAndNotDemanded": {
			cluster: answering("a"), policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")},
			last: []corev1.Taint{tainted(evicting.Key, "", noExecute, earlier), tainted("own", "", noExecute, earlier)},
		},
		"DroppedOtherValue": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{whileLost("p")},
			last:     []corev1.Taint{tainted(evicting.Key, "x", noExecute, earlier), tainted(evicting.Key, "", noSchedule, earlier)}, want: []corev1.Taint{evicts},
		},
		"DroppedTime": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("p", valued("v"), all(in(reachable, no)), nil)},
			last:     []corev1.Taint{tainted("own", "", noExecute, earlier), tainted("k", "v", noExecute, earlier), tainted("own", "", noSchedule, earlier)},
			stored:   []corev1.Taint{tainted("own", "", noExecute, time.Time{}), tainted("k", "w", noExecute, time.Time{}), tainted("own", "", noSchedule, time.Time{})},
			want:     []corev1.Taint{tainted("own", "", noExecute, earlier), tainted("k", "v", noExecute, earlier), tainted("own", "", noSchedule, time.Time{})},
		},
		"AnotherTime": { // a user sets another time
			last: []corev1.Taint{tainted("own", "", noExecute, earlier)}, stored: []corev1.Taint{tainted("own", "", noExecute, start)},
			want: []corev1.Taint{tainted("own", "", noExecute, start)},
		},

		// Several policies.
		"LastNameDecides": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{
				tainting("c", valued("3"), all(in(ready, yes)), nil), tainting("b", valued("2"), all(in(ready, no)), nil), tainting("a", valued("1"), all(in(ready, no)), nil),
			},
			want: []corev1.Taint{tainted("k", "2", noExecute, start)},
		},
		"RemovedByTheLast": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("b", valued(""), nil, all(in(ready, no))), tainting("a", valued("1"), all(in(ready, no)), nil)},
		},
		"AddedByTheLast": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{tainting("b", valued("2"), all(in(ready, no)), nil), tainting("a", valued(""), nil, all(in(ready, no)))},
			stored:   []corev1.Taint{tainted("k", "1", noExecute, earlier), tainted("own", "", noSchedule, earlier)},
			want:     []corev1.Taint{tainted("k", "2", noExecute, earlier), tainted("own", "", noSchedule, earlier)},
		},

		// Target clusters.
		"Named":        {policies: []*policyv1alpha1.ClusterTaintPolicy{only(whileLost("p"), policyv1alpha1.ClusterAffinity{ClusterNames: []string{"b", "a"}})}, want: []corev1.Taint{evicts}},
		"AnotherNamed": {policies: []*policyv1alpha1.ClusterTaintPolicy{only(whileLost("p"), policyv1alpha1.ClusterAffinity{ClusterNames: []string{"b"}})}},
		"Excluded":     {policies: []*policyv1alpha1.ClusterTaintPolicy{only(whileLost("p"), policyv1alpha1.ClusterAffinity{ExcludeClusters: []string{"a"}})}},
		"Labelled": {
			cluster: labelled, want: []corev1.Taint{evicts},
			policies: []*policyv1alpha1.ClusterTaintPolicy{only(whileLost("p"), policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}})},
		},
		"AnotherLabel": {
			cluster:  labelled,
			policies: []*policyv1alpha1.ClusterTaintPolicy{only(whileLost("p"), policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}})},
		},
		"TargetInvalid": {
			policies: []*policyv1alpha1.ClusterTaintPolicy{only(whileLost("p"), policyv1alpha1.ClusterAffinity{
				LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Like"}}},
			})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := c.cluster
			if cluster == nil {
				cluster = lost
			}
			before := make([]corev1.Taint, 0, len(c.stored))
			for _, taint := range c.stored {
				before = append(before, *taint.DeepCopy())
			}
			got := Taints(cluster, c.pull, c.policies, c.stored, timesOf(c.last), start.Add(300*time.Millisecond))
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, c.stored, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the stored taints were changed (-before +after):\n%s", diff)
			}
			// The result is stable: nothing is written again and again.
			if diff := cmp.Diff(got, Taints(cluster, c.pull, c.policies, got, timesOf(got), start.Add(time.Hour))); diff != "" {
				t.Errorf("an hour later (-before +after):\n%s", diff)
			}
		})
	}
}

// TestMostTaints: Taints adds no more than the schema of a Cluster allows, and removes from any
// number.
func TestMostTaints(t *testing.T) {
	p := whileLost("p")
	p.Spec.Taints = append(p.Spec.Taints, policyv1alpha1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule})
	full := make([]corev1.Taint, 0, mostTaints)
	for i := range mostTaints {
		full = append(full, tainted(fmt.Sprintf("own%d", i), "", corev1.TaintEffectNoSchedule, time.Time{}))
	}
	policies, lost := []*policyv1alpha1.ClusterTaintPolicy{p}, lostSince("a", start)
	for stored, want := range map[int]int{mostTaints: mostTaints, mostTaints - 1: mostTaints, mostTaints - 2: mostTaints, mostTaints - 3: mostTaints - 1} {
		got := Taints(lost, false, policies, full[:stored], nil, start)
		if len(got) != want || cmp.Diff(full[:stored], got[:stored]) != "" {
			t.Errorf("of %d taints: %d, want %d", stored, len(got), want)
		}
		if got := Taints(answering("a"), false, policies, got, nil, start); len(got) != stored {
			t.Errorf("of %d taints %d are left, want %d", want, len(got), stored)
		}
	}
}
