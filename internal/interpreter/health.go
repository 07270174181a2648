package interpreter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Health returns whether an object works as its spec says, judged by its status. An object is
// Unhealthy before its controller has written a status. An object of a custom kind is Unknown if
// its status follows no known convention.
func Health(o *unstructured.Unstructured) workv1alpha2.ResourceHealth { return kindOf(o).health(o) }

// health converts a bool to a health.
func health(healthy bool) workv1alpha2.ResourceHealth {
	if healthy {
		return workv1alpha2.ResourceHealthy
	}
	return workv1alpha2.ResourceUnhealthy
}

// judge returns a function that returns Healthy for objects for which the test healthy returns
// true, else Unhealthy.
func judge(healthy func(o *unstructured.Unstructured) bool) func(*unstructured.Unstructured) workv1alpha2.ResourceHealth {
	return func(o *unstructured.Unstructured) workv1alpha2.ResourceHealth { return health(healthy(o)) }
}

// observed reports whether the controller of an object has seen its present spec:
// status.observedGeneration is not less than the generation. Without an observedGeneration it is
// true only if the object has no generation.
func observed(o *unstructured.Unstructured) bool {
	return number(o.Object, "status", "observedGeneration") >= o.GetGeneration()
}

// exists returns true: an object of this kind is healthy because it exists.
func exists(*unstructured.Unstructured) bool { return true }

// desired returns spec.replicas of an object; 1 if that is not set.
func desired(o *unstructured.Unstructured) int64 {
	n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if !found {
		return 1
	}
	return n
}

// deploymentHealthy reports whether all requested replicas of a Deployment are updated and
// available, and no replicas of earlier versions are left.
func deploymentHealthy(o *unstructured.Unstructured) bool {
	updated := number(o.Object, "status", "updatedReplicas")
	return observed(o) && updated >= desired(o) &&
		updated == number(o.Object, "status", "replicas") &&
		updated == number(o.Object, "status", "availableReplicas")
}

// statefulSetHealthy reports whether enough replicas of a StatefulSet are available, and all above
// the partition are updated. With the update strategy OnDelete, replicas need not be updated.
func statefulSetHealthy(o *unstructured.Unstructured) bool {
	updated := number(o.Object, "status", "updatedReplicas")
	partition := number(o.Object, "spec", "updateStrategy", "rollingUpdate", "partition")
	onDelete := text(o.Object, "spec", "updateStrategy", "type") == "OnDelete"
	return observed(o) && number(o.Object, "status", "availableReplicas") >= desired(o) &&
		(onDelete || updated >= desired(o)-partition)
}

// daemonSetHealthy reports whether every scheduled pod of a DaemonSet is available and updated.
// With the update strategy OnDelete, pods need not be updated.
func daemonSetHealthy(o *unstructured.Unstructured) bool {
	pods := number(o.Object, "status", "desiredNumberScheduled")
	onDelete := text(o.Object, "spec", "updateStrategy", "type") == "OnDelete"
	return observed(o) && number(o.Object, "status", "numberAvailable") >= pods &&
		(onDelete || number(o.Object, "status", "updatedNumberScheduled") >= pods)
}

// replicaSetHealthy reports whether enough replicas of a ReplicaSet or ReplicationController are
// available.
func replicaSetHealthy(o *unstructured.Unstructured) bool {
	return observed(o) && number(o.Object, "status", "availableReplicas") >= desired(o)
}

// jobHealthy reports whether a Job has not failed. A Job that is still running is healthy.
func jobHealthy(o *unstructured.Unstructured) bool {
	return !conditionIs(o, "Failed", corev1.ConditionTrue)
}

// serviceHealthy reports whether a Service of type LoadBalancer has an address. Services of other
// types are healthy.
func serviceHealthy(o *unstructured.Unstructured) bool {
	return text(o.Object, "spec", "type") != string(corev1.ServiceTypeLoadBalancer) || hasAddress(o)
}

// hasAddress reports whether the load balancer of an object has an address.
func hasAddress(o *unstructured.Unstructured) bool {
	return len(list(o.Object, "status", "loadBalancer", "ingress")) > 0
}

// podHealthy reports whether a pod is ready or has succeeded.
func podHealthy(o *unstructured.Unstructured) bool {
	return text(o.Object, "status", "phase") == string(corev1.PodSucceeded) ||
		conditionIs(o, string(corev1.PodReady), corev1.ConditionTrue)
}

// claimHealthy reports whether a PersistentVolumeClaim is bound.
func claimHealthy(o *unstructured.Unstructured) bool {
	return text(o.Object, "status", "phase") == string(corev1.ClaimBound)
}

// volumeHealthy reports whether a PersistentVolume is available, bound or released.
func volumeHealthy(o *unstructured.Unstructured) bool {
	switch corev1.PersistentVolumePhase(text(o.Object, "status", "phase")) {
	case corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased:
		return true
	case corev1.VolumePending, corev1.VolumeFailed:
	}
	return false
}

// budgetHealth returns the health of a PodDisruptionBudget: Unhealthy if fewer pods are healthy
// than it requires, so that it allows no disruption, and else that of conventionalHealth.
func budgetHealth(o *unstructured.Unstructured) workv1alpha2.ResourceHealth {
	if number(o.Object, "status", "currentHealthy") < number(o.Object, "status", "desiredHealthy") {
		return workv1alpha2.ResourceUnhealthy
	}
	return conventionalHealth(o)
}

// autoscalerHealthy reports whether a HorizontalPodAutoscaler can scale. If a user scaled its
// target to zero, which disables it, it is healthy.
func autoscalerHealthy(o *unstructured.Unstructured) bool {
	active := condition(list(o.Object, "status", "conditions"), "ScalingActive")
	return !conditionIs(o, "AbleToScale", corev1.ConditionFalse) &&
		(active["status"] != string(corev1.ConditionFalse) || active["reason"] == "ScalingDisabled")
}
