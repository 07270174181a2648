package interpreter

import "testing"

// TestCauses: an unhealthy object has a cause, also for kinds whose health depends on more than
// conditions.
func TestCauses(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"ControllerOfNobody": {
			`{apiVersion: v1, kind: ReplicationController, metadata: {generation: 1}, spec: {replicas: 3}, status: {replicas: 0}}`,
			"0 of 3 replicas available",
		},
		"Controller": {
			`{apiVersion: v1, kind: ReplicationController, metadata: {generation: 1}, spec: {replicas: 3}, status: {observedGeneration: 1, replicas: 3, availableReplicas: 2}}`,
			"2 of 3 replicas available",
		},
		"APIService": {
			`{apiVersion: apiregistration.k8s.io/v1, kind: APIService, status: {conditions: [{type: Available, status: "False", reason: FailedDiscoveryCheck, message: no response}]}}`,
			"FailedDiscoveryCheck: no response",
		},
		"LoadBalancer": {`{apiVersion: v1, kind: Service, spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`, "its load balancer has no address"},
		"Ingress":      {`{apiVersion: networking.k8s.io/v1, kind: Ingress, status: {loadBalancer: {}}}`, "its load balancer has no address"},
		"Budget": {
			`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}, status: {observedGeneration: 1, currentHealthy: 0, desiredHealthy: 1,
			  conditions: [{type: DisruptionAllowed, status: "False", reason: InsufficientPods, message: ""}]}}`,
			"0 of 1 pods healthy: InsufficientPods",
		},
		"BudgetKept": {
			`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}, status: {observedGeneration: 1, currentHealthy: 1, desiredHealthy: 1,
			  conditions: [{type: DisruptionAllowed, status: "False", reason: InsufficientPods, message: ""}]}}`, "",
		},
		"OnlyApplied": {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, spec: {replicas: 3}, status: {}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Cause(Reflect(object(t, tc.object))); got != tc.want {
				t.Errorf("cause %q, want %q", got, tc.want)
			}
		})
	}
}
