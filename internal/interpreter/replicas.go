package interpreter

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Replicas returns how many replicas an object asks for; nil for kinds without. Those of a Job
// are its parallelism, and a Pod is one.
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
		n = 1 // what every such kind defaults to
	}
	return new(int32(n))
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

// Pods returns how many pods an object with replicas or components has, whether they are ready or not, as far as
// its status says: of a Job, and of what has components, those that ended among them. It is 0 where the status does not say.
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
		n, _ = serving(k, o) // a custom kind may count no others
		n = max(n, number(o.Object, "status", "replicas"))
	}
	return int32(min(n, math.MaxInt32))
}

// SetReplicas sets how many replicas an object asks for.
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
	return podSpec(spec)
}

// podSpec is a spec, if it is one of pods; else nil: it is of something else.
func podSpec(spec map[string]any) map[string]any {
	if _, ok := spec["containers"]; !ok {
		return nil
	}
	return spec
}
