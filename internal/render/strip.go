package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// strip returns a copy of a template without what the hub added or what is valid only there. Of
// the metadata it keeps what users write: name, namespace, labels and annotations. It fails
// without apiVersion, kind or name.
func strip(template *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if template.GetAPIVersion() == "" || template.GetKind() == "" || template.GetName() == "" {
		return nil, fmt.Errorf("render %s %s: a template needs apiVersion, kind and metadata.name", template.GetKind(), template.GetName())
	}
	// Until here the top-level fields are shared with the template. Only the remaining fields are
	// copied.
	o := &unstructured.Unstructured{Object: maps.Clone(template.Object)}
	delete(o.Object, "status")
	delete(o.Object, "metadata")
	o = copyOf(o)

	o.SetName(template.GetName())
	if namespace := template.GetNamespace(); namespace != "" {
		o.SetNamespace(namespace)
	}
	// A template may be a copy of an object in a cluster, with its marks.
	labels, annotations := template.GetLabels(), template.GetAnnotations()
	maps.DeleteFunc(labels, func(key, _ string) bool { return isMark(key) })
	maps.DeleteFunc(annotations, func(key, _ string) bool { return isMark(key) || IsHubs(key) })
	if len(labels) > 0 {
		o.SetLabels(labels)
	}
	if len(annotations) > 0 {
		o.SetAnnotations(annotations)
	}

	dropAllocated(o, template)
	stripKind(o, template)
	return o, nil
}

// IsHubs reports whether an annotation is about the object on the hub, or about what a
// controller there did to it.
func IsHubs(annotation string) bool {
	switch annotation {
	case corev1.LastAppliedConfigAnnotation, corev1.ServiceAccountUIDKey,
		"deployment.kubernetes.io/revision",
		"pv.kubernetes.io/bind-completed",
		"pv.kubernetes.io/bound-by-controller",
		"volume.beta.kubernetes.io/storage-provisioner",
		"volume.kubernetes.io/storage-provisioner",
		"volume.kubernetes.io/selected-node":
		return true
	}
	return false
}

// isMark reports whether the key of a label or annotation is one of our marks.
func isMark(key string) bool {
	switch key {
	case workv1alpha2.BindingLabel, workv1alpha2.DigestAnnotation, workv1alpha2.NamespaceLabel,
		workv1alpha2.SourceAnnotation, workv1alpha2.OriginAnnotation, workv1alpha2.OrphanAnnotation, workv1alpha2.RerunAnnotation,
		workv1alpha2.OwnedAnnotation:
		return true
	}
	return false
}

// stripKind removes, from objects of some kinds, what the hub's API server or a controller
// there set and another cluster sets itself.
func stripKind(o, template *unstructured.Unstructured) {
	switch o.GroupVersionKind().GroupKind().String() {
	case "APIService.apiregistration.k8s.io":
		stripCABundle(o.Object, "spec")
	case "CustomResourceDefinition.apiextensions.k8s.io":
		stripCABundle(o.Object, "spec", "conversion", "webhook", "clientConfig")
	case "Job.batch":
		stripJob(o)
	case "MutatingWebhookConfiguration.admissionregistration.k8s.io", "ValidatingWebhookConfiguration.admissionregistration.k8s.io":
		stripWebhooks(o)
	case "Namespace":
		remove(o, "spec", "finalizers") // every API server sets its own finalizer
	case "PersistentVolume":
		stripVolume(o, template)
	case "PersistentVolumeClaim":
		stripClaim(o, template)
	case "Pod":
		stripPod(o)
	case "Secret":
		stripSecret(o)
	case "Service":
		stripService(o)
	case "ServiceAccount":
		stripServiceAccount(o)
	}
}

func remove(o *unstructured.Unstructured, path ...string) {
	unstructured.RemoveNestedField(o.Object, path...)
}

// field returns a field without copying it; nil if it does not exist.
func field(o map[string]any, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	return v
}

// stripVolume keeps the claim for which a user reserved a volume, without the identity of that
// claim on the hub.
func stripVolume(o, template *unstructured.Unstructured) {
	remove(o, "spec", "claimRef", "uid")
	remove(o, "spec", "claimRef", "resourceVersion")
	if boundByController(template) {
		remove(o, "spec", "claimRef")
	}
}

// stripClaim keeps the volume that a user chose for a claim.
func stripClaim(o, template *unstructured.Unstructured) {
	if boundByController(template) {
		remove(o, "spec", "volumeName")
	}
}

// boundByController reports whether a controller of the hub bound the claim and the volume.
func boundByController(template *unstructured.Unstructured) bool {
	return template.GetAnnotations()["pv.kubernetes.io/bound-by-controller"] != ""
}

// stripService removes the addresses that the hub allocated for a Service. A headless Service
// stays headless.
func stripService(o *unstructured.Unstructured) {
	if field(o.Object, "spec", "clusterIP") != corev1.ClusterIPNone {
		remove(o, "spec", "clusterIP")
		remove(o, "spec", "clusterIPs")
	}
}

// stripJob removes the selector that the API server generates from the UID of the Job, and the
// labels for that selector. It also removes the time to live: a cluster that deleted a finished
// Job would get it, and run it, again. The Job on the hub keeps it, and deletes the copies with
// itself.
func stripJob(o *unstructured.Unstructured) {
	remove(o, "spec", "ttlSecondsAfterFinished")
	if field(o.Object, "spec", "manualSelector") == true {
		return
	}
	remove(o, "spec", "selector")
	for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"} {
		remove(o, "spec", "template", "metadata", "labels", label)
	}
}

// stripPod removes what admission and the scheduler set. A cluster refuses a priority that
// differs from its own priority classes.
func stripPod(o *unstructured.Unstructured) {
	for _, name := range []string{"nodeName", "priority", "preemptionPolicy"} {
		remove(o, "spec", name)
	}
	const tokenVolume = "kube-api-access-"
	isToken := func(v any) bool {
		o, _ := v.(map[string]any)
		name, _ := o["name"].(string)
		return strings.HasPrefix(name, tokenVolume)
	}
	spec, _ := field(o.Object, "spec").(map[string]any)
	filter(spec, "volumes", isToken)
	for _, name := range []string{"initContainers", "containers"} {
		containers, _ := spec[name].([]any)
		for _, c := range containers {
			container, _ := c.(map[string]any)
			filter(container, "volumeMounts", isToken)
		}
	}
}

// filter removes elements from a list, and the list when it becomes empty.
func filter(o map[string]any, name string, drop func(any) bool) {
	l, ok := o[name].([]any)
	if !ok {
		return
	}
	if l = slices.DeleteFunc(l, drop); len(l) == 0 {
		delete(o, name)
		return
	}
	o[name] = l
}

// stripSecret removes the hub's own token from a Secret that requests one: otherwise every
// cluster would get access to the hub. The token controller of the cluster sets its own.
func stripSecret(o *unstructured.Unstructured) {
	if o.Object["type"] == string(corev1.SecretTypeServiceAccountToken) {
		delete(o.Object, "data")
	}
}

// stripServiceAccount removes references to token Secrets that the hub generated.
func stripServiceAccount(o *unstructured.Unstructured) {
	filter(o.Object, "secrets", func(v any) bool {
		ref, _ := v.(map[string]any)
		name, _ := ref["name"].(string)
		return strings.HasPrefix(name, o.GetName()+"-token-")
	})
}
