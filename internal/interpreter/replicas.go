package interpreter

import (
	"fmt"
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/resource"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Replicas returns how many replicas an object asks for and what each of them requests
// of a node. Replicas is nil for kinds without; those of a Job are its parallelism, and a Pod is one.
func Replicas(o *unstructured.Unstructured) (replicas *int32, request corev1.ResourceList) {
	k := kindOf(o)
	if k.single {
		return new(int32(1)), podRequest(o)
	}
	if k.replicas == nil {
		return nil, nil
	}
	n, found, _ := unstructured.NestedInt64(o.Object, k.replicas...)
	if !found {
		n = 1 // what every such kind defaults to
	}
	return new(int32(n)), podRequest(o)
}

// DivisibleBy says whether the replicas of an object can be divided among clusters. Where it
// has replicas, as far as is known here, that cannot be divided, why says so. A kind whose scale
// subresource has its replicas elsewhere than in spec.replicas counts as one without: the
// object does not say so, only its CustomResourceDefinition does.
func DivisibleBy(o *unstructured.Unstructured) (ok bool, why string) {
	if k := kindOf(o); k.replicas != nil || k.single {
		return true, ""
	}
	if is, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicas"); found && !builtIn(o.GroupVersionKind().Group) {
		return false, fmt.Sprintf("spec.replicas of %s %s is %v: only a whole number can be divided", o.GetKind(), o.GetName(), is)
	}
	return false, ""
}

// Availability returns how many replicas an object asks for and how many of them serve. An
// object of a kind without replicas is one of one, and serves while it is healthy. What cannot
// be judged serves by being there: otherwise it could never move.
func Availability(o *unstructured.Unstructured) (asked, available int32) {
	k := kindOf(o)
	if k.replicas == nil || len(k.counters) == 0 {
		if Health(o) != workv1alpha2.ResourceUnhealthy {
			available = 1
		}
		return 1, available
	}
	asked = int32(desired(o)) //nolint:gosec // the API server checks the range
	n, known := serving(k, o)
	if !known && Health(o) != workv1alpha2.ResourceUnhealthy {
		n = int64(asked) // a custom kind that does not count its replicas
	}
	// The status may be of a larger spec.
	return asked, min(asked, int32(n)) //nolint:gosec // the same
}

// serving is how many replicas of an object with replicas serve, if that is known: the status
// of a custom kind need not say so.
func serving(k kind, o *unstructured.Unstructured) (n int64, known bool) {
	if !k.whole {
		return number(o.Object, "status", "availableReplicas"), len(k.counters) > 0
	}
	for _, name := range []string{"availableReplicas", "readyReplicas"} {
		if n, found, err := unstructured.NestedInt64(o.Object, "status", name); found && err == nil {
			return n, true
		}
	}
	return 0, false
}

// Pods returns how many pods an object with replicas has, whether they are ready or not, as far as
// its status says: of a Job those that ended among them. It is 0 where the status does not say.
func Pods(o *unstructured.Unstructured) int32 {
	var n int64
	k := kindOf(o)
	switch {
	case k.single:
		n = 1
	case k.replicas == nil:
	case o.GroupVersionKind().GroupKind().String() == jobKind:
		n = number(o.Object, "status", "active") + number(o.Object, "status", "succeeded") + number(o.Object, "status", "failed")
	default:
		n, _ = serving(k, o) // a custom kind may count no others
		n = max(n, number(o.Object, "status", "replicas"))
	}
	return int32(min(n, math.MaxInt32))
}

// SetReplicas sets how many replicas an object asks for.
//
// The completions of a Job are shared out with its parallelism, rounded up: a cluster
// cannot know what the others have rounded, and a Job may do a little more than it was
// asked but not less. The sum is exact when the shares are whole numbers.
func SetReplicas(o *unstructured.Unstructured, n int32) error {
	k := kindOf(o)
	path := k.replicas
	switch {
	case k.single && n == 1:
		return nil
	case k.single:
		return fmt.Errorf("set replicas of %s %s to %d: it is always one", o.GetKind(), o.GetName(), n)
	case path == nil:
		return fmt.Errorf("set replicas of %s %s: the kind has none", o.GetKind(), o.GetName())
	}
	if o.GroupVersionKind().GroupKind().String() == jobKind {
		if err := shareCompletions(o, int64(n)); err != nil {
			return fmt.Errorf("set completions of Job %s: %w", o.GetName(), err)
		}
	}
	if err := unstructured.SetNestedField(o.Object, int64(n), path...); err != nil {
		return fmt.Errorf("set replicas of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

func shareCompletions(job *unstructured.Unstructured, n int64) error {
	completions, found, err := unstructured.NestedInt64(job.Object, "spec", "completions")
	total, _ := Replicas(job)
	if err != nil || !found || *total <= 0 {
		return err // without completions the pods of a work queue know when they are done
	}
	share := (completions*n + int64(*total) - 1) / int64(*total)
	return unstructured.SetNestedField(job.Object, share, "spec", "completions")
}

// KeepsReplicas is true of a template with the label resourcetemplate.orrery.dev/retain-replicas: its number of replicas is where a copy begins. Once that
// is there the number is its cluster's own, for somebody scales it there.
func KeepsReplicas(template *unstructured.Unstructured) bool {
	return template.GetLabels()[workv1alpha2.RetainReplicasLabel] == "true" && kindOf(template).replicas != nil
}

// ReplicasField is the path of the number of replicas of an object; nil for kinds without.
func ReplicasField(o *unstructured.Unstructured) []string { return kindOf(o).replicas }

// PodSpec returns where an object keeps the spec of its pods: its own spec for a Pod,
// else its pod template's. It is not a copy; nil when there is none.
func PodSpec(o *unstructured.Unstructured) map[string]any {
	path := []string{"spec", "template", "spec"}
	switch o.GroupVersionKind().GroupKind().String() {
	case podKind:
		path = []string{"spec"}
	case cronJobKind:
		path = []string{"spec", "jobTemplate", "spec", "template", "spec"}
	}
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	spec, _ := v.(map[string]any)
	if _, ok := spec["containers"]; !ok {
		return nil // a template of something else
	}
	return spec
}

// Requirements are what each replica of an object asks of the cluster that it is to run in.
type Requirements struct {
	// Requests is what it requests of a node.
	Requests corev1.ResourceList
	// NodeSelector and NodeAffinity say which nodes may take it, nil: each; Tolerations, which of their taints it bears.
	NodeSelector map[string]string
	NodeAffinity *corev1.NodeSelector
	Tolerations  []corev1.Toleration
	// Namespace and PriorityClassName say against which quotas it counts.
	Namespace, PriorityClassName string
}

// RequirementsOf are those of an object's replicas; nil of one without, or whose pod spec is none.
func RequirementsOf(o *unstructured.Unstructured) *Requirements {
	pod, ok := podOf(o)
	if replicas, _ := Replicas(o); replicas == nil || !ok {
		return nil
	}
	r := &Requirements{
		Requests: requestOf(pod), NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations,
		Namespace: o.GetNamespace(), PriorityClassName: pod.Spec.PriorityClassName,
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		r.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return r
}

// podOf is a pod as an object makes them, an empty one if it makes none. It is not ok where the pod spec is none: no cluster can schedule that
// either, and its API server says so better than we could.
func podOf(o *unstructured.Unstructured) (pod *corev1.Pod, ok bool) {
	pod = &corev1.Pod{}
	return pod, runtime.DefaultUnstructuredConverter.FromUnstructured(PodSpec(o), &pod.Spec) == nil
}

// podRequest is what one pod of an object requests of a node; nil where its pod spec is none.
func podRequest(o *unstructured.Unstructured) corev1.ResourceList {
	pod, ok := podOf(o)
	if !ok {
		return nil
	}
	return requestOf(pod)
}

// requestOf is what a pod requests of a node. It fills in the requests of its containers.
func requestOf(pod *corev1.Pod) corev1.ResourceList {
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
	return resource.PodRequests(pod, resource.PodResourcesOptions{})
}
