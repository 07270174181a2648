package interpreter

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Replicas returns the number of replicas that an object requests; nil for kinds without
// replicas. It is the parallelism of a Job, and 1 for a Pod.
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
	return new(int32(n))
}

// DivisibleBy reports whether the replicas of an object can be divided among clusters. If the
// object has known replicas that cannot be divided, why says so. A kind with a scale
// subresource whose replicas are not in spec.replicas counts as one without: only its
// CustomResourceDefinition has the path.
func DivisibleBy(o *unstructured.Unstructured) (ok bool, why string) {
	if k := kindOf(o); k.replicas != nil || k.single {
		return true, ""
	}
	if is, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicas"); found && !builtIn(o.GroupVersionKind().Group) {
		return false, fmt.Sprintf("spec.replicas of %s %s is %v: only a whole number can be divided", o.GetKind(), o.GetName(), is)
	}
	return false, ""
}

// Availability returns how many replicas an object requests, and how many of them are
// available. A Job, and an object of a kind without replicas, counts as one replica, which is
// available unless it is unhealthy. So an object that cannot be judged is available: otherwise
// it could never move.
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
	// The status may be for a larger spec.
	return asked, min(asked, int32(n)) //nolint:gosec // the same
}

// serving returns the number of available replicas of an object. known is false if the status
// does not show that, as for some custom kinds.
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

// Pods returns the number of pods of an object with replicas or components, ready or not,
// according to its status. For a Job, and an object with components, it includes the pods that
// ended. It is 0 if the status does not show it.
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
		n, _ = serving(k, o) // a custom kind may count only these
		n = max(n, number(o.Object, "status", "replicas"))
	}
	return int32(min(n, math.MaxInt32))
}

// SetReplicas sets the number of replicas that an object requests. It fails for a kind without
// replicas, and for a number other than 1 of a kind whose objects are one replica each.
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

// KeepsReplicas reports whether a template has the label
// resourcetemplate.orrery.dev/retain-replicas. Its number of replicas is only the initial one
// of a copy. Afterwards the number belongs to the cluster, where it is scaled.
func KeepsReplicas(template *unstructured.Unstructured) bool {
	return template.GetLabels()[workv1alpha2.RetainReplicasLabel] == "true" && kindOf(template).replicas != nil
}

// ReplicasField returns the path of the number of replicas of an object; nil for kinds without.
func ReplicasField(o *unstructured.Unstructured) []string { return kindOf(o).replicas }

// PodSpec returns the pod spec of an object: its own spec for a Pod, else that of its pod
// template. It is not a copy. It is nil if there is none.
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

// podSpec returns a spec if it is one of pods, and else nil.
func podSpec(spec map[string]any) map[string]any {
	if _, ok := spec["containers"]; !ok {
		return nil
	}
	return spec
}
