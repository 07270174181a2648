package interpreter

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/resource"
)

// Requirements are what each replica of an object asks of the cluster that it is to run in.
type Requirements struct {
	// Requests is what it requests of a node, and Limits what it may use there.
	Requests, Limits corev1.ResourceList
	// NodeSelector and NodeAffinity say which nodes may take it, nil: each; Tolerations, which of their taints it bears.
	NodeSelector map[string]string
	NodeAffinity *corev1.NodeSelector
	Tolerations  []corev1.Toleration
	// Kind of the object, Namespace, PriorityClassName and Scopes say in which quotas it counts. Scopes are those that
	// the pod is in by itself: by its priority class it may be in others.
	Kind                         schema.GroupVersionKind
	Namespace, PriorityClassName string
	Scopes                       []corev1.ResourceQuotaScope
}

// RequirementsOf are those of an object's replicas; nil of one without, or whose pod spec is none: no cluster can
// schedule that either, and its API server says so better than we could. A custom kind that has its pods elsewhere than most
// requires nothing, as far as is known, and every node may take it.
func RequirementsOf(o *unstructured.Unstructured) *Requirements {
	if Replicas(o) == nil {
		return nil
	}
	return requirementsIn(o, PodSpec(o))
}

// requirementsIn are those of pods of an object with some spec; nil: there is none.
func requirementsIn(o *unstructured.Unstructured, spec map[string]any) *Requirements {
	if spec == nil && !builtIn(o.GroupVersionKind().Group) {
		return &Requirements{
			Kind: o.GroupVersionKind(), Namespace: o.GetNamespace(), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}
	}
	pod := &corev1.Pod{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod.Spec) != nil {
		return nil
	}
	r := requirementsOf(pod)
	r.Kind, r.Namespace = o.GroupVersionKind(), o.GetNamespace()
	return r
}

// requirementsOf are those of a pod. It fills in the requests of its containers.
func requirementsOf(pod *corev1.Pod) *Requirements {
	// The API server does this for pods, but not in the templates of pods.
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			requests := maps.Clone(containers[i].Resources.Limits)
			if requests == nil {
				continue
			}
			maps.Copy(requests, containers[i].Resources.Requests)
			containers[i].Resources.Requests = requests
		}
	}
	r := &Requirements{
		Requests: resource.PodRequests(pod, resource.PodResourcesOptions{}), Limits: resource.PodLimits(pod, resource.PodResourcesOptions{}),
		NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations, PriorityClassName: pod.Spec.PriorityClassName,
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		r.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	r.Scopes = scopes(&pod.Spec, r)
	return r
}

// scopes are those of quotas in which a pod is by itself, as Kubernetes' quota controller sees it.
func scopes(pod *corev1.PodSpec, r *Requirements) []corev1.ResourceQuotaScope {
	in := []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort}
	if pod.ActiveDeadlineSeconds != nil {
		in[0] = corev1.ResourceQuotaScopeTerminating
	}
	if !r.Requests.Cpu().IsZero() || !r.Requests.Memory().IsZero() || !r.Limits.Cpu().IsZero() || !r.Limits.Memory().IsZero() {
		in[1] = corev1.ResourceQuotaScopeNotBestEffort
	}
	if slices.ContainsFunc(podAffinity(pod.Affinity), func(t corev1.PodAffinityTerm) bool {
		return len(t.Namespaces) > 0 || t.NamespaceSelector != nil
	}) {
		in = append(in, corev1.ResourceQuotaScopeCrossNamespacePodAffinity)
	}
	return in
}

// podAffinity are the terms by which a pod is to be near other pods, or away from them.
func podAffinity(a *corev1.Affinity) (terms []corev1.PodAffinityTerm) {
	if a == nil {
		return nil
	}
	var weighted []corev1.WeightedPodAffinityTerm
	if near := a.PodAffinity; near != nil {
		terms = append(terms, near.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, near.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if away := a.PodAntiAffinity; away != nil {
		terms = append(terms, away.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, away.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range weighted {
		terms = append(terms, weighted[i].PodAffinityTerm)
	}
	return terms
}
