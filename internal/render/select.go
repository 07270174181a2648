package render

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// Overrides returns the policies that select a template, in the order in which they
// are applied: cluster-wide ones first, then those of the template's namespace, each by
// name. A policy that selects the kind by labels that cannot be read is among them, and
// Render refuses it: an object that may not leave without its override must not leave.
func Overrides(all []*policyv1alpha1.OverridePolicy, template *unstructured.Unstructured) []*policyv1alpha1.OverridePolicy {
	var selecting []*policyv1alpha1.OverridePolicy
	for _, policy := range all {
		if policy.Namespace != "" && policy.Namespace != template.GetNamespace() {
			continue
		}
		selectors := policy.Spec.ResourceSelectors
		if len(selectors) == 0 || slices.ContainsFunc(selectors, func(s policyv1alpha1.ResourceSelector) bool {
			return selects(s, template)
		}) {
			selecting = append(selecting, policy)
		}
	}
	slices.SortFunc(selecting, func(a, b *policyv1alpha1.OverridePolicy) int {
		// The namespace of a cluster-wide policy is empty, so it sorts first.
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return selecting
}

// selects says whether a selector selects a template in the policy's scope.
func selects(s policyv1alpha1.ResourceSelector, template *unstructured.Unstructured) bool {
	if s.APIVersion != template.GetAPIVersion() || s.Kind != template.GetKind() ||
		s.Namespace != "" && s.Namespace != template.GetNamespace() ||
		s.Name != "" && s.Name != template.GetName() {
		return false
	}
	if s.LabelSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
	return err != nil || selector.Matches(labels.Set(template.GetLabels()))
}
