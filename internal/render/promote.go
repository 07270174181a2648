package render

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// Template returns an object of a cluster as a template of it: without what its cluster made, which another makes for itself.
// What is rendered from it changes nothing of the object. The error says what an object without a name or a kind lacks.
func Template(o *unstructured.Unstructured) (*unstructured.Unstructured, error) { return strip(o) }
