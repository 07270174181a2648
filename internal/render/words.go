package render

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// overrideWords adds words to a list of a container, in place, or removes them. field is "command"
// or "args". The operator replace is an error. A list that becomes empty is removed. An object
// without that container stays as it is, because one policy may be for many objects.
func overrideWords(o *unstructured.Unstructured, field string, c *policyv1alpha1.CommandArgsOverrider) error {
	remaining := budget(limit) // a custom kind may have many containers with one name
	for _, container := range containers(o) {
		if container["name"] != c.ContainerName {
			continue
		}
		words, ok := container[field].([]any)
		if !ok && container[field] != nil {
			return fmt.Errorf("%s of container %s is not a list", field, c.ContainerName)
		}
		switch c.Operator {
		case policyv1alpha1.OverriderOpAdd:
			for _, word := range c.Value {
				if !remaining.spend(word, 0, 0) {
					return errManifest
				}
				words = append(words, word)
			}
		case policyv1alpha1.OverriderOpRemove:
			words = slices.DeleteFunc(words, func(v any) bool {
				word, ok := v.(string)
				return ok && slices.Contains(c.Value, word)
			})
		case policyv1alpha1.OverriderOpReplace:
			fallthrough
		default:
			return fmt.Errorf("operator: %q is none of add and remove", c.Operator)
		}
		if len(words) == 0 {
			delete(container, field)
			continue
		}
		container[field] = words
	}
	return nil
}

// overrideEntries changes the labels or annotations of an object, in place. field is "labels" or
// "annotations". The operator add sets absent keys, replace sets present keys, and remove removes
// keys. Any other operator is an error.
func overrideEntries(o *unstructured.Unstructured, field string, c *policyv1alpha1.LabelAnnotationOverrider) error {
	entries, _, err := unstructured.NestedStringMap(o.Object, "metadata", field)
	if err != nil {
		return fmt.Errorf("metadata.%s: must be a map of strings", field)
	}
	if entries == nil {
		entries = map[string]string{}
	}
	for key, value := range c.Value {
		_, present := entries[key]
		switch c.Operator {
		case policyv1alpha1.OverriderOpAdd:
			if !present {
				entries[key] = value
			}
		case policyv1alpha1.OverriderOpReplace:
			if present {
				entries[key] = value
			}
		case policyv1alpha1.OverriderOpRemove:
			delete(entries, key)
		default:
			return unknownOperator(c.Operator)
		}
	}
	if len(entries) == 0 {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
		return nil
	}
	return unstructured.SetNestedStringMap(o.Object, entries, "metadata", field)
}
