package render

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// Template returns an object of a cluster as a template, without the fields that its cluster
// set and that another cluster sets itself. A manifest that is rendered from the template
// changes nothing in the object. It fails for an object without a name or a kind.
func Template(o *unstructured.Unstructured) (*unstructured.Unstructured, error) { return strip(o) }
