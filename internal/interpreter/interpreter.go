// Package interpreter says what a kind means: how many replicas an object asks for and
// what each of them requests, whether it is healthy, which part of its status is worth
// keeping for each cluster, and how those parts add up to the status of its template on
// the hub. It is pure: objects in, values out. A kind that is not in its table is read
// by the conventions that most kinds follow.
package interpreter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// kind is what one kind means. What is nil or empty the kind does not have.
type kind struct {
	// replicas is the path of the number of replicas; single is true of a kind of which each object is one replica.
	replicas []string
	single   bool
	health   func(o *unstructured.Unstructured) workv1alpha2.ResourceHealth
	// counters are the numbers of a workload's status that add up over clusters; those in
	// always are written even when they are zero, for the API server writes them too. A
	// kind with counters has an observedGeneration as well.
	counters, always []string
	// reflect adds what else is kept of an object's status.
	reflect func(o *unstructured.Unstructured, status map[string]any)
	// whole is true when the status of a template that is placed in one cluster is that of its
	// copy, all of it but the volatile fields: those that change all the time, or that name
	// what is not on the hub.
	whole    bool
	volatile []string
	// aggregate adds what else the clusters' reports say of the template.
	aggregate func(in input, status map[string]any)
}

// kindOf is the table. It is by group and kind: what a kind means does not change with
// its version.
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

// The kinds that keep their replicas, their pods or their ports elsewhere than most.
const (
	podKind     = "Pod"
	serviceKind = "Service"
	ingressKind = "Ingress.networking.k8s.io"
	budgetKind  = "PodDisruptionBudget.policy"

	controllerKind = "ReplicationController"
	jobKind        = "Job.batch"
	cronJobKind    = "CronJob.batch"
)

// number reads a number; what is absent or something else is 0.
func number(o map[string]any, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(o, path...)
	return n
}

// text reads a string; what is absent or something else is "".
func text(o map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(o, path...)
	return s
}

// list reads a list; what is absent or something else is empty. It is not a copy.
func list(o map[string]any, path ...string) []any {
	v, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	l, _ := v.([]any)
	return l
}

// condition finds a condition by type in a list of them; nil when there is none.
func condition(conditions []any, conditionType string) map[string]any {
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == conditionType {
			return c
		}
	}
	return nil
}

// conditionIs says whether an object has a condition with that status.
func conditionIs(o *unstructured.Unstructured, conditionType string, status corev1.ConditionStatus) bool {
	return condition(list(o.Object, "status", "conditions"), conditionType)["status"] == string(status)
}
