package policy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

func TestAffinity(t *testing.T) {
	expression := func(key string, operator metav1.LabelSelectorOperator, values ...string) *policyv1alpha1.ClusterAffinity {
		return &policyv1alpha1.ClusterAffinity{FieldSelector: &policyv1alpha1.FieldSelector{
			MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{{Key: key, Operator: operator, Values: values}},
		}}
	}
	cases := map[string]struct {
		affinity *policyv1alpha1.ClusterAffinity
		want     bool
		refused  bool
	}{
		"None":                {nil, true, false},
		"Empty":               {&policyv1alpha1.ClusterAffinity{}, true, false},
		"Named":               {&policyv1alpha1.ClusterAffinity{ClusterNames: []string{"c0", "c1"}}, true, false},
		"NotNamed":            {&policyv1alpha1.ClusterAffinity{ClusterNames: []string{"c0"}}, false, false},
		"Excluded":            {&policyv1alpha1.ClusterAffinity{ClusterNames: []string{"c1"}, ExcludeClusters: []string{"c1"}}, false, false},
		"Labels":              {&policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}, true, false},
		"OtherLabels":         {&policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}}, false, false},
		"EmptyLabelSelector":  {&policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{}}, true, false},
		"ProviderIn":          {expression("provider", "In", "gcp", "aws"), true, false},
		"ProviderNotIn":       {expression("provider", "NotIn", "aws"), false, false},
		"RegionIn":            {expression("region", "In", "us-1"), false, false},
		"RegionExists":        {expression("region", "Exists"), true, false},
		"AnyZoneIn":           {expression("zone", "In", "b", "c"), true, false},
		"NoZoneMayBeNotIn":    {expression("zone", "NotIn", "b"), false, false},
		"ZoneNotIn":           {expression("zone", "NotIn", "c"), true, false},
		"ZoneDoesNotExist":    {expression("zone", "DoesNotExist"), false, false},
		"UnknownField":        {expression("colour", "In", "red"), false, true},
		"UnknownOperator":     {expression("zone", "Near", "a"), false, true},
		"UnreadableSelector":  {&policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}, false, true},
		"EveryPartMustSelect": {&policyv1alpha1.ClusterAffinity{ClusterNames: []string{"c1"}, FieldSelector: expression("zone", "In", "c").FieldSelector}, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := &clusterv1alpha1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Name: "c1", Labels: map[string]string{"env": "prod"}},
				Spec:       clusterv1alpha1.ClusterSpec{Provider: "aws", Region: "eu-1", Zones: []string{"a", "b"}},
			}
			a, err := CompileAffinity(tc.affinity)
			got := err == nil && a.Selects(c.Name, c.Labels, c.Spec.Provider, c.Spec.Region, c.Spec.Zones)
			if got != tc.want || (err != nil) != tc.refused {
				t.Errorf("got %v, %v; want %v, refused %v", got, err, tc.want, tc.refused)
			}
		})
	}
}
