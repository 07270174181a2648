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

// strip returns a copy of a template without what the hub made or what only makes sense
// there. Of the metadata only what users write is kept: name, labels and annotations.
func strip(template *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if template.GetAPIVersion() == "" || template.GetKind() == "" || template.GetName() == "" {
		return nil, fmt.Errorf("render %s %s: a template needs apiVersion, kind and metadata.name", template.GetKind(), template.GetName())
	}
	// Top-level fields are shared with the template until here; only what stays is copied.
	o := &unstructured.Unstructured{Object: maps.Clone(template.Object)}
	delete(o.Object, "status")
	delete(o.Object, "metadata")
	o = copyOf(o)

	o.SetName(template.GetName())
	if namespace := template.GetNamespace(); namespace != "" {
		o.SetNamespace(namespace)
	}
	// A template may be a copy of an object in a cluster, marks and all.
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

// IsHubs says whether an annotation speaks of the object on the hub, or of what a
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

// isMark says whether the key of a label or annotation is one of our marks.
func isMark(key string) bool {
	switch key {
	case workv1alpha2.BindingLabel, workv1alpha2.DigestAnnotation, workv1alpha2.NamespaceLabel,
		workv1alpha2.SourceAnnotation, workv1alpha2.OriginAnnotation, workv1alpha2.OrphanAnnotation, workv1alpha2.RerunAnnotation,
		workv1alpha2.OwnedAnnotation:
		return true
	}
	return false
}

// stripKind drops from some kinds what the hub's API server or a controller there filled
// in and another cluster fills in for itself.
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
		remove(o, "spec", "finalizers") // every API server puts its own hold on namespaces
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

// field reads a field without copying it; nil when it is not there.
func field(o map[string]any, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	return v
}

// stripVolume keeps the claim that a user reserved a volume for, but not which one it
// was on the hub.
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

// boundByController says whether claim and volume were brought together on the hub.
func boundByController(template *unstructured.Unstructured) bool {
	return template.GetAnnotations()["pv.kubernetes.io/bound-by-controller"] != ""
}

// stripService drops the addresses that the hub gave a Service. A headless one stays so.
func stripService(o *unstructured.Unstructured) {
	if field(o.Object, "spec", "clusterIP") != corev1.ClusterIPNone {
		remove(o, "spec", "clusterIP")
		remove(o, "spec", "clusterIPs")
	}
}

// stripJob drops the selector that the API server generates from the Job's UID, and the
// labels that go with it. It also drops the time to live: a cluster that deleted a
// finished Job would be given, and run, it again. The Job on the hub has it still, and
// takes the copies with it.
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

// stripPod drops what admission and the scheduler filled in. A priority that is not what
// the cluster's own priority classes say would be refused.
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

// filter drops elements from a list, and the list when none is left.
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

// stripSecret drops the hub's own token from a Secret that asks for one: it would hand
// access to the hub to every cluster. The cluster's token controller fills it in again.
func stripSecret(o *unstructured.Unstructured) {
	if o.Object["type"] == string(corev1.SecretTypeServiceAccountToken) {
		delete(o.Object, "data")
	}
}

// stripServiceAccount drops references to token Secrets that the hub generated.
func stripServiceAccount(o *unstructured.Unstructured) {
	filter(o.Object, "secrets", func(v any) bool {
		ref, _ := v.(map[string]any)
		name, _ := ref["name"].(string)
		return strings.HasPrefix(name, o.GetName()+"-token-")
	})
}
