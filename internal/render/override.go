package render

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
)

// override applies the rules of a policy that are for the cluster. The object may be
// changed; the result may be another.
func override(o *unstructured.Unstructured, p *policyv1alpha1.OverridePolicy, cluster *clusterv1alpha1.Cluster) (*unstructured.Unstructured, error) {
	for i, s := range p.Spec.ResourceSelectors {
		if s.LabelSelector == nil {
			continue
		}
		if _, err := metav1.LabelSelectorAsSelector(s.LabelSelector); err != nil {
			return nil, fmt.Errorf("%s: spec.resourceSelectors[%d].labelSelector: %w", title(p), i, err)
		}
	}
	for i, rule := range p.Spec.OverrideRules {
		at := fmt.Sprintf("%s: spec.overrideRules[%d]", title(p), i)
		matches, err := policy.MatchCluster(rule.TargetCluster,
			cluster.Name, cluster.Labels, cluster.Spec.Provider, cluster.Spec.Region, cluster.Spec.Zones)
		if err != nil {
			return nil, fmt.Errorf("%s.targetCluster.%w", at, err)
		}
		if !matches {
			continue
		}
		before, fence := identity(o), fenced(o, p)
		if o, err = applyOverriders(o, &rule.Overriders); err != nil {
			return nil, fmt.Errorf("%s.overriders.%w", at, err)
		}
		if err := guard(o, before); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if err := fence.check(o, p); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	return o, nil
}

// title names a policy in errors.
func title(policy *policyv1alpha1.OverridePolicy) string {
	if policy.Namespace == "" {
		return "ClusterOverridePolicy " + policy.Name
	}
	return "OverridePolicy " + policy.Namespace + "/" + policy.Name
}

// applyOverriders applies the changes in the order of the fields.
func applyOverriders(o *unstructured.Unstructured, c *policyv1alpha1.Overriders) (*unstructured.Unstructured, error) {
	for i := range c.ImageOverrider {
		if err := overrideImage(o, &c.ImageOverrider[i]); err != nil {
			return nil, fmt.Errorf("imageOverrider[%d]: %w", i, err)
		}
	}
	for i := range c.CommandOverrider {
		if err := overrideWords(o, "command", &c.CommandOverrider[i]); err != nil {
			return nil, fmt.Errorf("commandOverrider[%d]: %w", i, err)
		}
	}
	for i := range c.ArgsOverrider {
		if err := overrideWords(o, "args", &c.ArgsOverrider[i]); err != nil {
			return nil, fmt.Errorf("argsOverrider[%d]: %w", i, err)
		}
	}
	for i := range c.LabelsOverrider {
		if err := overrideEntries(o, "labels", &c.LabelsOverrider[i]); err != nil {
			return nil, fmt.Errorf("labelsOverrider[%d]: %w", i, err)
		}
	}
	for i := range c.AnnotationsOverrider {
		if err := overrideEntries(o, "annotations", &c.AnnotationsOverrider[i]); err != nil {
			return nil, fmt.Errorf("annotationsOverrider[%d]: %w", i, err)
		}
	}
	for i := range c.FieldOverrider {
		if err := overrideDocument(o, &c.FieldOverrider[i]); err != nil {
			return nil, fmt.Errorf("fieldOverrider[%d]: %w", i, err)
		}
	}
	if len(c.Plaintext) == 0 {
		return o, nil
	}
	return overridePlaintext(o, c.Plaintext)
}

// guard refuses a manifest whose identity, status or marks an override touched: it would
// be another object, or one that we no longer know to be ours.
func guard(o *unstructured.Unstructured, before [4]string) error {
	if identity(o) != before {
		return errors.New("an override cannot change apiVersion, kind, metadata.name or metadata.namespace")
	}
	if _, ok := o.Object["status"]; ok {
		return errors.New("an override cannot set status: it is what the cluster reports")
	}
	metadata, _ := o.Object["metadata"].(map[string]any)
	for key := range metadata {
		if !slices.Contains([]string{"name", "namespace", "labels", "annotations", "finalizers", "ownerReferences"}, key) {
			return fmt.Errorf("an override cannot set metadata.%s: the cluster's API server does", key)
		}
	}
	for _, name := range []string{"labels", "annotations"} {
		entries, found, err := unstructured.NestedStringMap(o.Object, "metadata", name)
		if err != nil || found && metadata[name] == nil {
			return fmt.Errorf("metadata.%s: must be a map of strings", name)
		}
		for key := range entries {
			if isMark(key) {
				return fmt.Errorf("an override cannot set metadata.%s[%s]: it is Orrery's mark", name, key)
			}
		}
	}
	return nil
}
