// Package interpreter says what a kind means: how many replicas an object asks for and
// what each of them requests, whether it is healthy, which part of its status is worth
// keeping for each cluster, and how those parts add up to the status of its template on
// the hub. It is pure: objects in, values out. A kind that is not in its table is read
// by the conventions that most kinds follow.
package interpreter

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is what one kind means. A nil member means that the kind has no such thing; only
// health then falls back on conventions.
type kind struct {
	replicas  []string // path of the number of replicas
	healthy   func(o *unstructured.Unstructured) bool
	reflect   func(o *unstructured.Unstructured) map[string]any
	aggregate func(template *unstructured.Unstructured, members []member, now string) map[string]any
}

// kinds is the table. It is by group and kind: what a kind means does not change with
// its version.
var kinds = map[schema.GroupKind]kind{
	{Group: appsv1.GroupName, Kind: "Deployment"}: {
		replicas: []string{"spec", "replicas"}, healthy: deploymentHealthy,
		reflect: reflectDeployment, aggregate: aggregateDeployment,
	},
	{Group: appsv1.GroupName, Kind: "StatefulSet"}: {
		replicas: []string{"spec", "replicas"}, healthy: statefulSetHealthy,
		reflect: reflectStatefulSet, aggregate: aggregateStatefulSet,
	},
	{Group: appsv1.GroupName, Kind: "DaemonSet"}: {
		healthy: daemonSetHealthy,
		reflect: reflectDaemonSet, aggregate: aggregateDaemonSet,
	},
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}: {
		replicas: []string{"spec", "replicas"}, healthy: replicaSetHealthy,
		reflect: reflectReplicaSet, aggregate: aggregateReplicaSet,
	},
	jobKind: {
		replicas: []string{"spec", "parallelism"}, healthy: jobHealthy,
		reflect: reflectJob, aggregate: aggregateJob,
	},
	cronJobKind: {healthy: exists},
	{Group: corev1.GroupName, Kind: "Service"}: {
		healthy: serviceHealthy,
		reflect: reflectLoadBalancer, aggregate: aggregateService,
	},
	{Group: networkingv1.GroupName, Kind: "Ingress"}: {
		healthy: hasAddress,
		reflect: reflectLoadBalancer, aggregate: aggregateIngress,
	},
	podKind: {healthy: podHealthy, reflect: reflectPhase},
	{Group: corev1.GroupName, Kind: "PersistentVolumeClaim"}:          {healthy: claimHealthy, reflect: reflectPhase},
	{Group: corev1.GroupName, Kind: "ConfigMap"}:                      {healthy: exists},
	{Group: corev1.GroupName, Kind: "Secret"}:                         {healthy: exists},
	{Group: corev1.GroupName, Kind: "ServiceAccount"}:                 {healthy: exists},
	{Group: autoscalingv2.GroupName, Kind: "HorizontalPodAutoscaler"}: {healthy: autoscalerHealthy},
}

func kindOf(o *unstructured.Unstructured) kind {
	return kinds[o.GroupVersionKind().GroupKind()]
}

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
