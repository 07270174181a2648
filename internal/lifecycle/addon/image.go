package addon

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Rewrite returns the reference from which hosts pull an image. With a private registry this is the
// same path in that registry. If the registry has a namespace override, it replaces the first part
// of a path with several parts.
//
// The reference stays as it is if there is no private registry, or if it already names that.
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

// isRegistry reports whether the first part of an image reference is the host of a registry, by the
// rule of container runtimes.
func isRegistry(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost"
}

// rewriteImages replaces the images in the pods of a workload by those of the private registry, in
// place. It does nothing for other objects, or without a private registry.
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

// containersOf returns the init containers and containers in the pods of a workload. They are the
// maps in o itself, so that changes of them change o. The result is nil for other objects.
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

// podSpecOf returns the pod spec in a Pod, Deployment, DaemonSet, StatefulSet, Job or CronJob, as
// the map in o itself. It is nil for other objects.
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
