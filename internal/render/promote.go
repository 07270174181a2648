package render

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// Template returns an object of a cluster as a template for the hub, for orrery promote. It leaves
// out the fields that the object's cluster set and that another cluster sets itself. A manifest
// that is rendered from the template changes nothing in the object. An object without a name or a
// kind is an error.
func Template(o *unstructured.Unstructured) (*unstructured.Unstructured, error) { return strip(o) }
