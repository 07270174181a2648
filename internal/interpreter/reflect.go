package interpreter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Keys of a reflected status that are not fields of the kind's own status. They hold in
// one word what Aggregate needs of the object's metadata and conditions.
const (
	keyObserved  = "observed"  // true: the cluster's controller has seen the object's current spec
	keyAvailable = "available" // true: the Deployment's condition Available is True
	keyStalled   = "stalled"   // true: the Deployment exceeded its progress deadline
	keySuspended = "suspended" // true: the Job's condition Suspended is True
	keyFailure   = "failure"   // the reason for which the Job failed
)

// The counters that each kind's status consists of.
var (
	deploymentCounters  = []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"}
	statefulSetCounters = []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "currentReplicas"}
	replicaSetCounters  = []string{"replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"}
	daemonSetCounters   = []string{
		"currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady",
		"updatedNumberScheduled", "numberAvailable", "numberUnavailable",
	}
	jobCounters = []string{"active", "ready", "succeeded", "failed"}
)

// Reflect returns the part of an object's status that bindings keep for each cluster, in
// as few bytes as Aggregate can do with: what is zero is left out. It is nil when there
// is nothing to keep, and shares nothing with the object.
func Reflect(o *unstructured.Unstructured) map[string]any {
	reflect := kindOf(o).reflect
	if reflect == nil {
		return nil
	}
	status := reflect(o)
	if len(status) == 0 {
		return nil
	}
	return status
}

// counters copies the counters that are not zero.
func counters(o *unstructured.Unstructured, names []string) map[string]any {
	status := map[string]any{}
	for _, name := range names {
		if n := number(o.Object, "status", name); n != 0 {
			status[name] = n
		}
	}
	return status
}

// workload copies the counters, and whether they speak of the current spec.
func workload(o *unstructured.Unstructured, names []string) map[string]any {
	status := counters(o, names)
	if observed(o) {
		status[keyObserved] = true
	}
	return status
}

func reflectDeployment(o *unstructured.Unstructured) map[string]any {
	status := workload(o, deploymentCounters)
	if conditionIs(o, "Available", corev1.ConditionTrue) {
		status[keyAvailable] = true
	}
	if conditionIs(o, "Progressing", corev1.ConditionFalse) {
		status[keyStalled] = true
	}
	return status
}

func reflectStatefulSet(o *unstructured.Unstructured) map[string]any {
	return workload(o, statefulSetCounters)
}

func reflectDaemonSet(o *unstructured.Unstructured) map[string]any {
	return workload(o, daemonSetCounters)
}

func reflectReplicaSet(o *unstructured.Unstructured) map[string]any {
	return workload(o, replicaSetCounters)
}

func reflectJob(o *unstructured.Unstructured) map[string]any {
	status := counters(o, jobCounters)
	for _, name := range []string{"startTime", "completionTime"} {
		if t := text(o.Object, "status", name); t != "" {
			status[name] = t
		}
	}
	if c := condition(list(o.Object, "status", "conditions"), "Failed"); c["status"] == string(corev1.ConditionTrue) {
		status[keyFailure] = text(c, "reason")
	}
	if conditionIs(o, "Suspended", corev1.ConditionTrue) {
		status[keySuspended] = true
	}
	return status
}

func reflectLoadBalancer(o *unstructured.Unstructured) map[string]any {
	ingress, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress")
	if len(ingress) == 0 {
		return nil
	}
	return map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}
}

func reflectPhase(o *unstructured.Unstructured) map[string]any {
	phase := text(o.Object, "status", "phase")
	if phase == "" {
		return nil
	}
	return map[string]any{"phase": phase}
}
