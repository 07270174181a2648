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

// Requirements are what each replica of an object requires of its cluster.
type Requirements struct {
	// Requests are the resources that it requests of a node, and Limits those that it may use
	// there.
	Requests, Limits corev1.ResourceList
	// NodeSelector and NodeAffinity say which nodes are suitable; nil: all. Tolerations are those
	// for taints of nodes.
	NodeSelector map[string]string
	NodeAffinity *corev1.NodeSelector
	Tolerations  []corev1.Toleration
	// Kind of the object, Namespace, PriorityClassName and Scopes say for which quotas the replica
	// counts. Scopes are the quota scopes of the pod itself; its priority class may add others.
	Kind                         schema.GroupVersionKind
	Namespace, PriorityClassName string
	Scopes                       []corev1.ResourceQuotaScope
}

// RequirementsOf returns the requirements of the replicas of an object. It is nil for an object
// without replicas, and for an invalid pod spec: no cluster can schedule that, and the API
// server reports it better. A custom kind with its pods in an unknown place has no known
// requirements, and is taken to fit on every node.
func RequirementsOf(o *unstructured.Unstructured) *Requirements {
	if Replicas(o) == nil {
		return nil
	}
	return requirementsIn(o, PodSpec(o))
}

// requirementsIn returns the requirements of the pods of an object with a pod spec; nil if the
// spec is invalid.
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

// requirementsOf returns the requirements of a pod. It sets missing requests of its containers.
func requirementsOf(pod *corev1.Pod) *Requirements {
	// The API server does this for pods, but not for pod templates.
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

// scopes returns the quota scopes of a pod itself, as Kubernetes' quota controller determines
// them.
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

// podAffinity returns the terms by which a pod is to be near other pods, or away from them.
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
