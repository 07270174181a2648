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

// Requirements is what each replica of an object requires of its cluster. The scheduler compares it
// with the free capacity.
type Requirements struct {
	// Requests are the resources that a replica requests of a node, and Limits those that it may use
	// on the node.
	Requests, Limits corev1.ResourceList
	// NodeSelector and NodeAffinity say which nodes are suitable; nil: all nodes. Tolerations say
	// which taints of nodes the replica tolerates.
	NodeSelector map[string]string
	NodeAffinity *corev1.NodeSelector
	Tolerations  []corev1.Toleration
	// Kind, the kind of the object, Namespace, PriorityClassName and Scopes say which ResourceQuotas
	// count the replica. Scopes are the quota scopes of the pod without those by priority class.
	Kind                         schema.GroupVersionKind
	Namespace, PriorityClassName string
	Scopes                       []corev1.ResourceQuotaScope
}

// RequirementsOf returns what each replica of an object requires. It is nil for an object without
// replicas, and for an invalid pod spec, which no cluster can schedule. A custom kind without a pod
// spec at the usual path counts as if it fits on every node: the result has no requests, and
// tolerates every taint.
func RequirementsOf(o *unstructured.Unstructured) *Requirements {
	if Replicas(o) == nil {
		return nil
	}
	return requirementsIn(o, PodSpec(o))
}

// requirementsIn returns what each pod of an object requires by its pod spec; nil if the spec is
// invalid. If spec is nil and the kind is a custom one, the result has no requests, and tolerates
// every taint.
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

// requirementsOf returns what a pod requires, without Kind and Namespace. In pod, it sets missing
// requests of containers to their limits.
func requirementsOf(pod *corev1.Pod) *Requirements {
	// The API server sets missing requests to the limits in pods, but not in pod templates.
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

// scopes returns the quota scopes of a pod with the requirements r, without those by priority
// class, as Kubernetes' quota controller determines them.
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

// podAffinity returns all terms of pod affinity and pod anti-affinity in a, required and preferred
// ones; nil if a is nil.
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
