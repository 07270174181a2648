package interpreter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Health reports whether an object works as its spec says. An object that is not there yet is
// Unhealthy. An object of a custom kind is Unknown if its status does not follow a known
// convention.
func Health(o *unstructured.Unstructured) workv1alpha2.ResourceHealth { return kindOf(o).health(o) }

func health(healthy bool) workv1alpha2.ResourceHealth {
	if healthy {
		return workv1alpha2.ResourceHealthy
	}
	return workv1alpha2.ResourceUnhealthy
}

// judge turns a test into a function that returns the health.
func judge(healthy func(o *unstructured.Unstructured) bool) func(*unstructured.Unstructured) workv1alpha2.ResourceHealth {
	return func(o *unstructured.Unstructured) workv1alpha2.ResourceHealth { return health(healthy(o)) }
}

// observed reports whether the controller of an object has seen its current spec.
func observed(o *unstructured.Unstructured) bool {
	return number(o.Object, "status", "observedGeneration") >= o.GetGeneration()
}

func exists(*unstructured.Unstructured) bool { return true }

// desired returns the number of replicas that an object requests.
func desired(o *unstructured.Unstructured) int64 {
	n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if !found {
		return 1
	}
	return n
}

func deploymentHealthy(o *unstructured.Unstructured) bool {
	updated := number(o.Object, "status", "updatedReplicas")
	return observed(o) && updated >= desired(o) &&
		updated == number(o.Object, "status", "replicas") &&
		updated == number(o.Object, "status", "availableReplicas")
}

func statefulSetHealthy(o *unstructured.Unstructured) bool {
	updated := number(o.Object, "status", "updatedReplicas")
	partition := number(o.Object, "spec", "updateStrategy", "rollingUpdate", "partition")
	onDelete := text(o.Object, "spec", "updateStrategy", "type") == "OnDelete"
	return observed(o) && number(o.Object, "status", "availableReplicas") >= desired(o) &&
		(onDelete || updated >= desired(o)-partition)
}

func daemonSetHealthy(o *unstructured.Unstructured) bool {
	pods := number(o.Object, "status", "desiredNumberScheduled")
	onDelete := text(o.Object, "spec", "updateStrategy", "type") == "OnDelete"
	return observed(o) && number(o.Object, "status", "numberAvailable") >= pods &&
		(onDelete || number(o.Object, "status", "updatedNumberScheduled") >= pods)
}

func replicaSetHealthy(o *unstructured.Unstructured) bool {
	return observed(o) && number(o.Object, "status", "availableReplicas") >= desired(o)
}

// jobHealthy: a Job that is still running is healthy.
func jobHealthy(o *unstructured.Unstructured) bool {
	return !conditionIs(o, "Failed", corev1.ConditionTrue)
}

func serviceHealthy(o *unstructured.Unstructured) bool {
	return text(o.Object, "spec", "type") != string(corev1.ServiceTypeLoadBalancer) || hasAddress(o)
}

func hasAddress(o *unstructured.Unstructured) bool {
	return len(list(o.Object, "status", "loadBalancer", "ingress")) > 0
}

func podHealthy(o *unstructured.Unstructured) bool {
	return text(o.Object, "status", "phase") == string(corev1.PodSucceeded) ||
		conditionIs(o, string(corev1.PodReady), corev1.ConditionTrue)
}

func claimHealthy(o *unstructured.Unstructured) bool {
	return text(o.Object, "status", "phase") == string(corev1.ClaimBound)
}

// volumeHealthy: a volume is healthy while it can be claimed, is claimed, or was claimed.
func volumeHealthy(o *unstructured.Unstructured) bool {
	switch corev1.PersistentVolumePhase(text(o.Object, "status", "phase")) {
	case corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased:
		return true
	case corev1.VolumePending, corev1.VolumeFailed:
	}
	return false
}

// budgetHealth: a budget with fewer healthy pods than it requires allows no disruption, and is
// unhealthy.
func budgetHealth(o *unstructured.Unstructured) workv1alpha2.ResourceHealth {
	if number(o.Object, "status", "currentHealthy") < number(o.Object, "status", "desiredHealthy") {
		return workv1alpha2.ResourceUnhealthy
	}
	return conventionalHealth(o)
}

// autoscalerHealthy: an autoscaler whose target was scaled to zero by a user is switched off,
// not broken.
func autoscalerHealthy(o *unstructured.Unstructured) bool {
	active := condition(list(o.Object, "status", "conditions"), "ScalingActive")
	return !conditionIs(o, "AbleToScale", corev1.ConditionFalse) &&
		(active["status"] != string(corev1.ConditionFalse) || active["reason"] == "ScalingDisabled")
}
