package render

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// override applies the rules of an override policy that select the cluster, and returns the changed
// object. This may be o itself, changed in place, also after an error. The error names the policy
// and the rule. An invalid policy is an error even if no rule selects the cluster.
func override(o *unstructured.Unstructured, v *Override, cluster *clusterv1alpha1.Cluster) (*unstructured.Unstructured, error) {
	if v.err != nil {
		return nil, v.err
	}
	p := v.Policy
	for i := range v.rules {
		if !v.concerns(i, cluster) {
			continue
		}
		rule := &v.rules[i]
		at := title(p) + ": " + rule.path
		var err error
		before, fence := identity(o), fenced(o, p)
		if o, err = applyOverriders(o, rule.changes); err != nil {
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

// title returns the kind and the name of an override policy, for errors.
func title(policy *policyv1alpha1.OverridePolicy) string {
	if policy.Namespace == "" {
		return "ClusterOverridePolicy " + policy.Name
	}
	return "OverridePolicy " + policy.Namespace + "/" + policy.Name
}

// applyOverriders applies the changes of one rule in the order of the fields of Overriders, and
// returns the changed object. That is o, changed in place, or another object if there are changes
// in Plaintext. The error names the field.
func applyOverriders(o *unstructured.Unstructured, c *policyv1alpha1.Overriders) (*unstructured.Unstructured, error) {
	done := func(field string, i int, err error) error {
		if err == nil {
			err = bounded(o)
		}
		if err != nil {
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		return nil
	}
	for i := range c.ImageOverrider {
		if err := done("imageOverrider", i, overrideImage(o, &c.ImageOverrider[i])); err != nil {
			return nil, err
		}
	}
	for i := range c.CommandOverrider {
		if err := done("commandOverrider", i, overrideWords(o, "command", &c.CommandOverrider[i])); err != nil {
			return nil, err
		}
	}
	for i := range c.ArgsOverrider {
		if err := done("argsOverrider", i, overrideWords(o, "args", &c.ArgsOverrider[i])); err != nil {
			return nil, err
		}
	}
	for i := range c.LabelsOverrider {
		if err := done("labelsOverrider", i, overrideEntries(o, "labels", &c.LabelsOverrider[i])); err != nil {
			return nil, err
		}
	}
	for i := range c.AnnotationsOverrider {
		if err := done("annotationsOverrider", i, overrideEntries(o, "annotations", &c.AnnotationsOverrider[i])); err != nil {
			return nil, err
		}
	}
	for i := range c.FieldOverrider {
		if err := done("fieldOverrider", i, overrideDocument(o, &c.FieldOverrider[i])); err != nil {
			return nil, err
		}
	}
	if len(c.Plaintext) == 0 {
		return o, nil
	}
	return overridePlaintext(o, c.Plaintext)
}

// guard returns an error if an override changed the identity, the status or the marks of a
// manifest: it would become another object, or one that the hub no longer recognizes. before
// is the identity before the override.
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
