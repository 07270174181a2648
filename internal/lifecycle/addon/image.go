package addon

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Rewrite returns the reference from which an image is pulled. With a private registry, that is the
// same path there. The namespace override replaces the first part of the path.
func Rewrite(ref string, r clusterv1alpha1.Registry) string {
	if r.PrivateRegistry == "" || ref == "" || strings.HasPrefix(ref, r.PrivateRegistry+"/") {
		return ref
	}
	path := ref
	if first, rest, found := strings.Cut(ref, "/"); found && isRegistry(first) {
		path = rest
	} else if !found {
		path = "library/" + ref // Docker Hub's meaning of a bare name
	}
	if r.NamespaceOverride != "" {
		if _, rest, found := strings.Cut(path, "/"); found {
			path = rest
		}
		path = r.NamespaceOverride + "/" + path
	}
	return r.PrivateRegistry + "/" + path
}

// isRegistry reports whether the first part of a reference is a host, by the rule of container
// runtimes.
func isRegistry(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost"
}

// rewriteImages rewrites the images of a workload's pods.
func rewriteImages(o *unstructured.Unstructured, r clusterv1alpha1.Registry) {
	if r.PrivateRegistry == "" {
		return
	}
	for _, c := range containersOf(o) {
		if image, ok := c["image"].(string); ok {
			c["image"] = Rewrite(image, r)
		}
	}
}

// containersOf returns the init containers and containers of a workload's pods. It is empty for
// other objects.
func containersOf(o *unstructured.Unstructured) []map[string]any {
	spec := podSpecOf(o)
	var all []map[string]any
	for _, field := range []string{"initContainers", "containers"} {
		list, _ := spec[field].([]any)
		for _, item := range list {
			if c, ok := item.(map[string]any); ok {
				all = append(all, c)
			}
		}
	}
	return all
}

// podSpecOf returns the spec of a workload's pods, or nil.
func podSpecOf(o *unstructured.Unstructured) map[string]any {
	var path []string
	switch gk := kindOf(o); {
	case gk.Group == "" && gk.Kind == "Pod":
		path = []string{"spec"}
	case isWorkload(o), gk == kindJob:
		path = []string{"spec", "template", "spec"}
	case gk.Group == kindJob.Group && gk.Kind == "CronJob":
		path = []string{"spec", "jobTemplate", "spec", "template", "spec"}
	default:
		return nil
	}
	at := o.Object
	for _, name := range path {
		at, _ = at[name].(map[string]any)
	}
	return at
}
