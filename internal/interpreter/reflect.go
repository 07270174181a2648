package interpreter

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Keys of a reflected status (see Reflect) that are not fields of the kind's own status. They
// store, in short form, what Aggregate needs of the metadata and conditions of the object.
const (
	keyObserved  = "observed"  // true: the cluster's controller has seen the object's current spec
	keyAvailable = "available" // true: the Deployment's condition Available is True
	keyStalled   = "stalled"   // true: the Deployment exceeded its progress deadline
	keySuspended = "suspended" // true: the Job's condition Suspended is True
	keyFailure   = "failure"   // the reason for which the Job failed
	keyCause     = "cause"     // why the object is not healthy, in its own words
	keyNodePorts = "nodePorts" // of a Service of type NodePort, by port and protocol

	keyWhole      = "status"     // the object's own status, all of it
	keyGeneration = "generation" // of the object, for the generations in its own status
)

// Reflect returns the reflected status of an object in a cluster: the part of its status that a
// binding keeps for each cluster. It has only what Aggregate needs, without zero values, and the
// cause if the object is unhealthy. It is nil if there is nothing to keep, and shares no memory
// with the object.
func Reflect(o *unstructured.Unstructured) map[string]any {
	k := kindOf(o)
	status := map[string]any{}
	if len(k.counters) > 0 {
		count(o, status, k.counters...)
		if observed(o) {
			status[keyObserved] = true
		}
	}
	if k.reflect != nil {
		k.reflect(o, status)
	}
	if k.whole {
		reflectWhole(k, o, status)
	}
	if Health(o) == workv1alpha2.ResourceUnhealthy && causes(o, status) {
		if c := cause(o); c != "" {
			status[keyCause] = c
		}
	}
	if len(status) == 0 {
		return nil
	}
	return status
}

// count copies the named counters that are not zero from the status of the object to status.
func count(o *unstructured.Unstructured, status map[string]any, counters ...string) {
	for _, name := range counters {
		if n := number(o.Object, "status", name); n != 0 {
			status[name] = n
		}
	}
}

// reflectDeployment adds to status whether a Deployment is available and whether it has exceeded
// its progress deadline.
func reflectDeployment(o *unstructured.Unstructured, status map[string]any) {
	if conditionIs(o, "Available", corev1.ConditionTrue) {
		status[keyAvailable] = true
	}
	if conditionIs(o, "Progressing", corev1.ConditionFalse) {
		status[keyStalled] = true
	}
}

// reflectJob adds the counters and times of a Job to status, and whether the Job failed or is
// suspended.
func reflectJob(o *unstructured.Unstructured, status map[string]any) {
	count(o, status, "active", "ready", "succeeded", "failed")
	copyTexts(o, status, "startTime", "completionTime")
	if c := condition(list(o.Object, "status", "conditions"), "Failed"); c["status"] == string(corev1.ConditionTrue) {
		status[keyFailure] = text(c, "reason")
	}
	if conditionIs(o, "Suspended", corev1.ConditionTrue) {
		status[keySuspended] = true
	}
}

// reflectLoadBalancer adds the addresses of the load balancer of a Service or Ingress to status.
func reflectLoadBalancer(o *unstructured.Unstructured, status map[string]any) {
	if ingress, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress"); len(ingress) > 0 {
		status["loadBalancer"] = map[string]any{"ingress": ingress}
	}
}

// reflectService adds the addresses of the load balancer and the node ports of a Service to status.
func reflectService(o *unstructured.Unstructured, status map[string]any) {
	reflectLoadBalancer(o, status)
	ports := map[string]any{}
	for name, port := range NodePorts(o) {
		ports[name] = port
	}
	if len(ports) > 0 {
		status[keyNodePorts] = ports
	}
}

// NodePorts returns the node ports of a Service of type NodePort. The keys are port and protocol,
// such as 80/TCP. It is nil for all other objects.
func NodePorts(o *unstructured.Unstructured) map[string]int64 {
	if o.GroupVersionKind().GroupKind().String() != serviceKind || text(o.Object, "spec", "type") != string(corev1.ServiceTypeNodePort) {
		return nil
	}
	ports := map[string]int64{}
	for _, p := range list(o.Object, "spec", "ports") {
		if p, ok := p.(map[string]any); ok && number(p, "nodePort") != 0 {
			ports[fmt.Sprintf("%d/%s", number(p, "port"), cmp.Or(text(p, "protocol"), string(corev1.ProtocolTCP)))] = number(p, "nodePort")
		}
	}
	return ports
}

// ReflectedNodePorts returns the node ports that Reflect has stored in a reflected status, with
// keys such as 80/TCP; empty if it has none.
func ReflectedNodePorts(status map[string]any) map[string]int64 {
	ports, _ := status[keyNodePorts].(map[string]any)
	out := make(map[string]int64, len(ports))
	for name := range ports {
		out[name] = number(ports, name)
	}
	return out
}

// reflectCronJob adds lastScheduleTime and lastSuccessfulTime of a CronJob to status.
func reflectCronJob(o *unstructured.Unstructured, status map[string]any) {
	copyTexts(o, status, "lastScheduleTime", "lastSuccessfulTime")
}

// copyTexts copies the named texts that are not empty from the status of the object to status.
func copyTexts(o *unstructured.Unstructured, status map[string]any, names ...string) {
	for _, name := range names {
		if t := text(o.Object, "status", name); t != "" {
			status[name] = t
		}
	}
}
