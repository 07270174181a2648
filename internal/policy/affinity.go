package policy

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// MatchCluster says whether an affinity selects a cluster. No affinity selects every
// cluster. An error says what of the affinity cannot be read.
func MatchCluster(
	affinity *policyv1alpha1.ClusterAffinity,
	name string, clusterLabels map[string]string, provider, region string, zones []string,
) (bool, error) {
	if affinity == nil {
		return true, nil
	}
	if slices.Contains(affinity.ExcludeClusters, name) {
		return false, nil
	}
	if len(affinity.ClusterNames) > 0 && !slices.Contains(affinity.ClusterNames, name) {
		return false, nil
	}
	if affinity.LabelSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(affinity.LabelSelector)
		if err != nil {
			return false, fmt.Errorf("labelSelector: %w", err)
		}
		if !selector.Matches(labels.Set(clusterLabels)) {
			return false, nil
		}
	}
	if affinity.FieldSelector == nil {
		return true, nil
	}
	fields := map[string][]string{"provider": one(provider), "region": one(region), "zone": zones}
	for i, requirement := range affinity.FieldSelector.MatchExpressions {
		has, known := fields[requirement.Key]
		if !known {
			return false, fmt.Errorf("fieldSelector.matchExpressions[%d].key: %q is none of provider, region and zone", i, requirement.Key)
		}
		matches, err := matchField(has, requirement)
		if err != nil {
			return false, fmt.Errorf("fieldSelector.matchExpressions[%d]: %w", i, err)
		}
		if !matches {
			return false, nil
		}
	}
	return true, nil
}

// one is the values of a field that has at most one.
func one(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

func matchField(has []string, r policyv1alpha1.FieldSelectorRequirement) (bool, error) {
	among := slices.ContainsFunc(has, func(v string) bool { return slices.Contains(r.Values, v) })
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return among, nil
	case metav1.LabelSelectorOpNotIn:
		return !among, nil
	case metav1.LabelSelectorOpExists:
		return len(has) > 0, nil
	case metav1.LabelSelectorOpDoesNotExist:
		return len(has) == 0, nil
	}
	return false, fmt.Errorf("operator: %q is none of In, NotIn, Exists and DoesNotExist", r.Operator)
}
