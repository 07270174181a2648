// Package interpreter knows what each kind means: how many replicas an object requests and what
// each of them requires, whether it is healthy, which part of its status is kept for each
// cluster, and how those parts are combined into the status of its template on the hub. It is
// pure. A kind that is not in its table is read by the conventions that most kinds follow.
package interpreter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// kind describes one kind: where its objects have replicas, and how their status is judged, kept
// and combined. A nil or empty field means that the kind does not have such a thing.
type kind struct {
	// replicas is the path of the number of replicas in an object. single is true if each object of
	// the kind is one replica, as a Pod is.
	replicas []string
	single   bool
	// health judges an object, see Health.
	health func(o *unstructured.Unstructured) workv1alpha2.ResourceHealth
	// counters are the numbers in the status that are added up over clusters. Those in always are
	// written even if they are zero, because the API server writes them too. A kind with counters also
	// has an observedGeneration.
	counters, always []string
	// reflect adds further parts of the status of an object to its reflected status, see Reflect.
	reflect func(o *unstructured.Unstructured, status map[string]any)
	// whole is true if the whole status of a copy is kept, and is the status of a template that is
	// placed in one cluster only. The volatile fields are left out: they change all the time, or name
	// objects that are not on the hub.
	whole    bool
	volatile []string
	// aggregate adds fields other than the counters to the status of a template, from the reports of
	// the clusters.
	aggregate func(in input, status map[string]any)
}

// kindOf returns the description of the kind of an object, from a table by group and kind: the
// meaning of a kind does not depend on its version. The func custom describes a kind that is not in
// the table.
func kindOf(o *unstructured.Unstructured) kind {
	switch o.GroupVersionKind().GroupKind().String() {
	case "Deployment.apps":
		return kind{
			replicas: []string{"spec", "replicas"}, health: judge(deploymentHealthy),
			counters: []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"},
			reflect:  reflectDeployment, aggregate: aggregateDeployment,
		}
	case "StatefulSet.apps":
		return kind{
			replicas: []string{"spec", "replicas"}, health: judge(statefulSetHealthy),
			counters: []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "currentReplicas"},
			always:   []string{"replicas", "availableReplicas"},
		}
	case "ReplicaSet.apps":
		return kind{
			replicas: []string{"spec", "replicas"}, health: judge(replicaSetHealthy),
			counters: []string{"replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"},
			always:   []string{"replicas"},
		}
	case controllerKind:
		return kind{
			replicas: []string{"spec", "replicas"}, health: judge(replicaSetHealthy),
			counters: []string{"replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"},
			always:   []string{"replicas"},
		}
	case "DaemonSet.apps":
		return kind{
			health: judge(daemonSetHealthy),
			counters: []string{
				"currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady",
				"updatedNumberScheduled", "numberAvailable", "numberUnavailable",
			},
			always: []string{"currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"},
		}
	case jobKind:
		return kind{replicas: []string{"spec", "parallelism"}, health: judge(jobHealthy), reflect: reflectJob, aggregate: aggregateJob}
	case serviceKind:
		return kind{health: judge(serviceHealthy), reflect: reflectService, aggregate: aggregateService}
	case ingressKind:
		return kind{health: judge(hasAddress), reflect: reflectLoadBalancer, aggregate: aggregateIngress}
	case podKind:
		return kind{health: judge(podHealthy), single: true, whole: true, aggregate: aggregatePods}
	case "PersistentVolumeClaim":
		return kind{health: judge(claimHealthy), whole: true, aggregate: aggregateClaims}
	case "PersistentVolume":
		return kind{health: judge(volumeHealthy), whole: true, aggregate: aggregateVolumes}
	case budgetKind:
		return kind{
			health: budgetHealth, whole: true, volatile: []string{"disruptedPods"},
			counters: []string{"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"},
			always:   []string{"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"},
		}
	case "HorizontalPodAutoscaler.autoscaling":
		return kind{
			health: judge(autoscalerHealthy), whole: true,
			volatile: []string{"currentMetrics", "currentCPUUtilizationPercentage"},
			counters: []string{"currentReplicas", "desiredReplicas"}, always: []string{"desiredReplicas"},
		}
	case cronJobKind:
		return kind{health: judge(exists), reflect: reflectCronJob, aggregate: aggregateCronJob}
	case "ConfigMap", "Secret", "ServiceAccount":
		return kind{health: judge(exists)}
	}
	return custom(o)
}

// Group and kind of the kinds that are handled specially in several places, as
// schema.GroupKind.String returns them.
const (
	podKind     = "Pod"
	serviceKind = "Service"
	ingressKind = "Ingress.networking.k8s.io"
	budgetKind  = "PodDisruptionBudget.policy"

	controllerKind = "ReplicationController"
	jobKind        = "Job.batch"
	cronJobKind    = "CronJob.batch"
)

// number returns the whole number at a path in an object; 0 if it is absent or no whole number.
func number(o map[string]any, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(o, path...)
	return n
}

// text returns the string at a path in an object; "" if it is absent or no string.
func text(o map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(o, path...)
	return s
}

// list returns the list at a path in an object, not a copy; nil if it is absent or no list.
func list(o map[string]any, path ...string) []any {
	v, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	l, _ := v.([]any)
	return l
}

// condition returns the condition with the type from a list of conditions; nil if there is none.
func condition(conditions []any, conditionType string) map[string]any {
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == conditionType {
			return c
		}
	}
	return nil
}

// conditionIs reports whether an object has a condition with this type and status.
func conditionIs(o *unstructured.Unstructured, conditionType string, status corev1.ConditionStatus) bool {
	return condition(list(o.Object, "status", "conditions"), conditionType)["status"] == string(status)
}
