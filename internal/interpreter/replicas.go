package interpreter

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Replicas returns the number of replicas that an object requests; nil for kinds without replicas.
// For a Job it is the parallelism, and for a Pod 1. If the object does not set the number, it is 1.
func Replicas(o *unstructured.Unstructured) *int32 {
	k := kindOf(o)
	if k.single {
		return new(int32(1))
	}
	if k.replicas == nil {
		return nil
	}
	n, found, _ := unstructured.NestedInt64(o.Object, k.replicas...)
	if !found {
		n = 1 // the default of every such kind
	}
	return new(bounded(n))
}

// bounded returns n, limited to between 0 and math.MaxInt32. It is for numbers that an API server
// checks only in built-in kinds.
func bounded(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// DivisibleBy reports whether the replicas of an object can be divided among clusters; the single
// replica of a Pod can. why is a message if the object has spec.replicas that cannot be divided
// because it is not a whole number, or out of range; else "". A custom kind with its replicas at
// another path counts as a kind without replicas, because only its CustomResourceDefinition shows
// the path.
func DivisibleBy(o *unstructured.Unstructured) (ok bool, why string) {
	if k := kindOf(o); k.replicas != nil || k.single {
		return true, ""
	}
	if is, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicas"); found && !builtIn(o.GroupVersionKind().Group) {
		return false, fmt.Sprintf("spec.replicas of %s %s is %v: only a whole number from 0 to %d can be divided", o.GetKind(), o.GetName(), is, math.MaxInt32)
	}
	return false, ""
}

// Availability returns how many replicas an object requests, and how many of them are available,
// which is never more. A Job, and an object of a kind without replicas, counts as one replica,
// which is available unless the object is unhealthy. So an object with unknown health is available.
// Otherwise it could never move to another cluster.
func Availability(o *unstructured.Unstructured) (asked, available int32) {
	k := kindOf(o)
	if k.replicas == nil || len(k.counters) == 0 {
		if Health(o) != workv1alpha2.ResourceUnhealthy {
			available = 1
		}
		return 1, available
	}
	asked = bounded(desired(o))
	n, known := serving(k, o)
	if !known && Health(o) != workv1alpha2.ResourceUnhealthy {
		n = int64(asked) // the status of a custom kind may not count its replicas
	}
	// The status may be about an earlier spec with more replicas.
	return asked, min(asked, bounded(n))
}

// serving returns the number of available replicas of an object of the kind k. known is false if
// the status does not show it, as for some custom kinds.
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

// Pods returns how many pods of an object exist according to its status, ready or not. For a Job,
// and for an object with components, it includes pods that ended. It is 0 for a kind without
// replicas and components, and if the status does not show it.
func Pods(o *unstructured.Unstructured) int32 {
	var n int64
	k := kindOf(o)
	switch {
	case k.single:
		n = 1
	case k.replicas == nil:
		if c := composites[o.GroupVersionKind().GroupKind()]; c.pods != nil {
			n = c.pods(o.Object)
		}
	case o.GroupVersionKind().GroupKind().String() == jobKind:
		n = number(o.Object, "status", "active") + number(o.Object, "status", "succeeded") + number(o.Object, "status", "failed")
	default:
		n, _ = serving(k, o) // the status of a custom kind may have only these counters
		n = max(n, number(o.Object, "status", "replicas"))
	}
	return bounded(n)
}

// SetReplicas sets, in place, the number of replicas that an object requests. It is an error for a
// kind without replicas. For a Pod, any number other than 1 is an error.
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
	if err := unstructured.SetNestedField(o.Object, int64(n), path...); err != nil {
		return fmt.Errorf("set replicas of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// KeepsReplicas reports whether the copies of a template keep the number of replicas that they have
// in their clusters: the template has the label resourcetemplate.orrery.dev/retain-replicas=true,
// and its kind has replicas. The number in the template is then only the initial one of a copy.
func KeepsReplicas(template *unstructured.Unstructured) bool {
	return template.GetLabels()[workv1alpha2.RetainReplicasLabel] == "true" && kindOf(template).replicas != nil
}

// ReplicasField returns the path of the number of replicas in an object; nil for a kind without
// replicas, and for a Pod.
func ReplicasField(o *unstructured.Unstructured) []string { return kindOf(o).replicas }

// PodSpec returns the pod spec of an object, not a copy: the spec of a Pod, or that in the pod
// template of another kind. It is nil if there is none at the usual path, or it has no containers.
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
	return podSpec(spec)
}

// podSpec returns spec if it is a pod spec, which has containers, and else nil.
func podSpec(spec map[string]any) map[string]any {
	if _, ok := spec["containers"]; !ok {
		return nil
	}
	return spec
}
