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

// strip returns a copy of a template without what the hub added or what is valid only on the hub.
// Of the metadata it keeps what users write: name, namespace, labels and annotations. A template
// without apiVersion, kind or name is an error.
func strip(template *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if template.GetAPIVersion() == "" || template.GetKind() == "" || template.GetName() == "" {
		return nil, fmt.Errorf("render %s %s: a template needs apiVersion, kind and metadata.name", template.GetKind(), template.GetName())
	}
	// The status and the metadata are removed before the deep copy, so that they are not copied.
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

// IsHubs reports whether an annotation key is one with which kubectl, the API server or a
// controller on the hub describes the object there. Copies do not get such annotations.
func IsHubs(annotation string) bool {
	switch annotation {
	case corev1.LastAppliedConfigAnnotation, corev1.ServiceAccountUIDKey,
		conditionsAnnotation, currentMetricsAnnotation,
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

// isMark reports whether the key of a label or annotation is a mark of Orrery on copies, or a
// request to run a template's work again.
func isMark(key string) bool {
	switch key {
	case workv1alpha2.BindingLabel, workv1alpha2.DigestAnnotation, workv1alpha2.NamespaceLabel,
		workv1alpha2.SourceAnnotation, workv1alpha2.OriginAnnotation, workv1alpha2.OrphanAnnotation, workv1alpha2.RerunAnnotation,
		workv1alpha2.OwnedAnnotation:
		return true
	}
	return false
}

// stripKind removes from o, in place, what the hub's API server or a controller there set and
// another cluster sets itself. The fields depend on the kind; most kinds have none. template has
// the annotations of o before these were removed.
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

// remove removes the field at a path, in place, if it exists.
func remove(o *unstructured.Unstructured, path ...string) {
	unstructured.RemoveNestedField(o.Object, path...)
}

// field returns a field without copying it; nil if it does not exist.
func field(o map[string]any, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	return v
}

// stripVolume removes the claim from a PersistentVolume, in place, if a controller of the hub bound
// the two. It keeps the claim for which a user reserved the volume, without the UID and
// resourceVersion of that claim.
func stripVolume(o, template *unstructured.Unstructured) {
	remove(o, "spec", "claimRef", "uid")
	remove(o, "spec", "claimRef", "resourceVersion")
	if boundByController(template) {
		remove(o, "spec", "claimRef")
	}
}

// stripClaim removes the volume from a PersistentVolumeClaim, in place, if a controller of the hub
// chose the volume. It keeps the volume that a user chose.
func stripClaim(o, template *unstructured.Unstructured) {
	if boundByController(template) {
		remove(o, "spec", "volumeName")
	}
}

// boundByController reports whether a controller of the hub bound a PersistentVolume or
// PersistentVolumeClaim, according to its annotation.
func boundByController(template *unstructured.Unstructured) bool {
	return template.GetAnnotations()["pv.kubernetes.io/bound-by-controller"] != ""
}

// stripService removes from a Service, in place, the addresses that the hub allocated. A headless
// Service stays headless.
func stripService(o *unstructured.Unstructured) {
	if field(o.Object, "spec", "clusterIP") != corev1.ClusterIPNone {
		remove(o, "spec", "clusterIP")
		remove(o, "spec", "clusterIPs")
	}
}

// stripJob removes from a Job, in place, the selector that the API server generates from its UID,
// and the labels for that selector. It also removes the time to live. A cluster that deleted a
// finished Job would get the Job again, and run it again. The Job on the hub keeps the time to
// live, and takes the copies with it when it is deleted.
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

// stripPod removes from a Pod, in place, what admission and the scheduler of the hub set: node,
// priority and the volume of the ServiceAccount token. A cluster refuses a priority that differs
// from its own priority classes.
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

// filter removes the elements for which drop is true from the list with this name in o, and the
// whole list when it becomes empty. The list is changed in place. It does nothing if there is no
// list.
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

// stripSecret removes, in place, the data of a Secret that requests a token of a ServiceAccount.
// The data is a token for the hub, so every cluster would get access to the hub. The token
// controller of the cluster sets its own token.
func stripSecret(o *unstructured.Unstructured) {
	if o.Object["type"] == string(corev1.SecretTypeServiceAccountToken) {
		delete(o.Object, "data")
	}
}

// stripServiceAccount removes from a ServiceAccount, in place, the references to token Secrets that
// the hub generated.
func stripServiceAccount(o *unstructured.Unstructured) {
	filter(o.Object, "secrets", func(v any) bool {
		ref, _ := v.(map[string]any)
		name, _ := ref["name"].(string)
		return strings.HasPrefix(name, o.GetName()+"-token-")
	})
}
