package policy

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// Affinity is a compiled ClusterAffinity of a policy: it selects clusters by name, labels,
// provider, region and zones. It is immutable and may be shared.
type Affinity struct {
	all              bool             // every cluster
	names, excluded  sets.Set[string] // nil names: any name
	labels           labels.Selector  // nil: any
	fieldsExpression []policyv1alpha1.FieldSelectorRequirement
}

// CompileAffinity compiles a ClusterAffinity; nil selects every cluster. The error names the field
// that is invalid.
func CompileAffinity(affinity *policyv1alpha1.ClusterAffinity) (*Affinity, error) {
	if affinity == nil {
		return &Affinity{all: true}, nil
	}
	a := &Affinity{excluded: sets.New(affinity.ExcludeClusters...)}
	if len(affinity.ClusterNames) > 0 {
		a.names = sets.New(affinity.ClusterNames...)
	}
	if affinity.LabelSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(affinity.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("labelSelector: %w", err)
		}
		a.labels = selector
	}
	if affinity.FieldSelector == nil {
		return a, nil
	}
	for i, r := range affinity.FieldSelector.MatchExpressions {
		if !slices.Contains([]string{"provider", "region", "zone"}, r.Key) {
			return nil, fmt.Errorf("fieldSelector.matchExpressions[%d].key: %q is none of provider, region and zone", i, r.Key)
		}
		switch r.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		default:
			return nil, fmt.Errorf("fieldSelector.matchExpressions[%d]: operator: %q is none of In, NotIn, Exists and DoesNotExist", i, r.Operator)
		}
	}
	a.fieldsExpression = affinity.FieldSelector.MatchExpressions
	return a, nil
}

// Selects reports whether the affinity selects a cluster with this name and these properties.
// provider and region are "", and zones empty, if the cluster has none. An exclusion by name wins
// over everything else. Selects allocates no memory, because the scheduler calls it for every
// cluster.
func (a *Affinity) Selects(name string, clusterLabels labels.Set, provider, region string, zones []string) bool {
	switch {
	case a.all:
		return true
	case a.excluded.Has(name), a.names != nil && !a.names.Has(name):
		return false
	case a.labels != nil && !a.labels.Matches(clusterLabels):
		return false
	}
	for i := range a.fieldsExpression {
		r := &a.fieldsExpression[i]
		var has, among bool
		switch r.Key {
		case "provider":
			has, among = provider != "", provider != "" && slices.Contains(r.Values, provider)
		case "region":
			has, among = region != "", region != "" && slices.Contains(r.Values, region)
		case "zone":
			has = len(zones) > 0
			for _, zone := range zones {
				among = among || slices.Contains(r.Values, zone)
			}
		}
		matches := among
		switch r.Operator {
		case metav1.LabelSelectorOpNotIn:
			matches = !among
		case metav1.LabelSelectorOpExists:
			matches = has
		case metav1.LabelSelectorOpDoesNotExist:
			matches = !has
		case metav1.LabelSelectorOpIn:
		}
		if !matches {
			return false
		}
	}
	return true
}

// Excludes reports whether the affinity excludes the cluster by its name. It is false for a cluster
// that is not selected for another reason.
func (a *Affinity) Excludes(name string) bool { return a.excluded.Has(name) }
