package interpreter_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/testenv"
)

const podTemplate = `{metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: c}]}}`

// TestAggregateIsValid writes aggregated statuses to a real API server, as the hub does, for
// one report of the clusters after the other. The server must accept each status. Aggregate
// must then return the stored status for the same report; otherwise the hub would write it
// again and again.
func TestAggregateIsValid(t *testing.T) {
	cases := map[string]struct {
		resource schema.GroupVersionResource
		manifest string
		reports  [][]string // each is the JSON of every cluster's reflected status
		placing  interpreter.Placing
		cluster  bool     // the kind is cluster-scoped
		rollout  []string // the expected output of kubectl rollout status
	}{
		"Deployment": {
			resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 2, selector: {matchLabels: {app: x}}, template: ` + podTemplate + `}}`,
			reports: [][]string{
				{``, ``},
				{`{"observed":true,"replicas":1,"updatedReplicas":1,"unavailableReplicas":1}`, ``},
				{`{"observed":true,"replicas":1,"updatedReplicas":1,"unavailableReplicas":1}`, `{"observed":true,"available":true,"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}`},
				{`{"observed":true,"available":true,"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}`, `{"observed":true,"available":true,"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}`},
				{`{"observed":true,"stalled":true,"replicas":2,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1,"unavailableReplicas":1}`, `{"observed":true}`},
			},
			rollout: []string{
				"Waiting for deployment spec update to be observed",
				"Waiting for deployment spec update to be observed",
				"1 of 2 updated replicas are available",
				"successfully rolled out",
				"exceeded its progress deadline",
			},
		},
		"StatefulSet": {
			resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"},
			manifest: `{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 2, serviceName: x, selector: {matchLabels: {app: x}}, template: ` + podTemplate + `}}`,
			reports: [][]string{
				{``},
				{`{"observed":true,"replicas":1,"updatedReplicas":1}`, `{"observed":true,"replicas":1,"readyReplicas":1,"updatedReplicas":1,"availableReplicas":1}`},
				{`{"observed":true,"replicas":1,"readyReplicas":1,"availableReplicas":1}`, `{"observed":true,"replicas":1,"readyReplicas":1,"updatedReplicas":1,"availableReplicas":1}`},
				{`{"observed":true,"replicas":1,"readyReplicas":1,"updatedReplicas":1,"availableReplicas":1}`, `{"observed":true,"replicas":1,"readyReplicas":1,"updatedReplicas":1,"availableReplicas":1}`},
			},
			rollout: []string{
				"Waiting for statefulset spec update to be observed",
				"Waiting for 1 pods to be ready",
				"1 out of 2 new pods have been updated",
				"roll out complete",
			},
		},
		"DaemonSet": {
			resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"},
			manifest: `{apiVersion: apps/v1, kind: DaemonSet, spec: {selector: {matchLabels: {app: x}}, template: ` + podTemplate + `}}`,
			reports: [][]string{
				{`{"observed":true,"currentNumberScheduled":1,"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberReady":1,"numberAvailable":1,"numberUnavailable":1}`, `{"observed":true}`},
				{`{"observed":true,"currentNumberScheduled":2,"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberReady":2,"numberAvailable":2}`, `{"observed":true}`},
			},
			rollout: []string{"1 of 2 updated pods are available", "successfully rolled out"},
		},
		"ReplicaSet": {
			resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"},
			manifest: `{apiVersion: apps/v1, kind: ReplicaSet, spec: {replicas: 2, selector: {matchLabels: {app: x}}, template: ` + podTemplate + `}}`,
			reports:  [][]string{{``}, {`{"observed":true,"replicas":2,"fullyLabeledReplicas":2,"readyReplicas":2,"availableReplicas":2}`}},
		},
		"JobCompletes": {
			resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
			manifest: `{apiVersion: batch/v1, kind: Job, spec: {parallelism: 2, completions: 4, template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}`,
			reports: [][]string{
				{``, ``},
				{`{"active":1,"ready":1,"startTime":"2026-01-01T00:00:03Z"}`, ``},
				{`{"active":1,"failed":1,"startTime":"2026-01-01T00:00:03Z"}`, `{"active":1,"ready":1,"startTime":"2026-01-01T00:00:01Z"}`},
				{`{"succeeded":2,"failed":1,"startTime":"2026-01-01T00:00:03Z","completionTime":"2026-01-01T00:00:09Z"}`, `{"active":1,"succeeded":1,"startTime":"2026-01-01T00:00:01Z"}`},
				{`{"active":1,"succeeded":1,"startTime":"2026-01-01T00:00:01Z"}`}, // a cluster left
				{`{"succeeded":2,"failed":1,"startTime":"2026-01-01T00:00:03Z","completionTime":"2026-01-01T00:00:09Z"}`, `{"succeeded":2,"startTime":"2026-01-01T00:00:01Z","completionTime":"2026-01-01T00:00:07Z"}`},
				{`{"active":2,"startTime":"2026-01-02T00:00:00Z"}`, ``}, // the Job moved
			},
		},
		"JobCompletesAtOnce": {
			resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
			manifest: `{apiVersion: batch/v1, kind: Job, spec: {completionMode: Indexed, completions: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}`,
			reports:  [][]string{{`{"succeeded":1,"startTime":"2026-01-01T00:00:03Z","completionTime":"2026-01-01T00:00:03Z"}`}},
		},
		"JobFails": {
			resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
			manifest: `{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}`,
			reports: [][]string{
				{`{"failed":7,"startTime":"2026-01-01T00:00:03Z","failure":"BackoffLimitExceeded"}`, `{"active":1,"ready":1,"startTime":"2026-01-01T00:00:01Z"}`},
				{`{"failed":7,"startTime":"2026-01-01T00:00:03Z","failure":"BackoffLimitExceeded"}`, `{"succeeded":1,"startTime":"2026-01-01T00:00:01Z","completionTime":"2026-01-01T00:00:07Z"}`},
			},
		},
		"JobSuspendedAndResumed": {
			resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"},
			manifest: `{apiVersion: batch/v1, kind: Job, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}`,
			reports:  [][]string{{`{"active":1,"startTime":"2026-01-01T00:00:03Z"}`}, {`{"suspended":true}`}, {`{"active":1,"startTime":"2026-01-01T00:00:05Z"}`}},
		},
		"DeploymentDuplicated": {
			resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 2, selector: {matchLabels: {app: x}}, template: ` + podTemplate + `}}`,
			placing:  interpreter.Placing{Duplicated: true},
			reports: [][]string{
				{`{"observed":true,"available":true,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}`, `{"observed":true,"replicas":2,"updatedReplicas":2,"readyReplicas":1,"unavailableReplicas":2}`},
				{`{"observed":true,"available":true,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}`, `{"observed":true,"available":true,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}`},
			},
			rollout: []string{"0 of 2 updated replicas are available", "successfully rolled out"},
		},
		"DeploymentWithoutRoom": {
			resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 4, selector: {matchLabels: {app: x}}, template: ` + podTemplate + `}}`,
			placing:  interpreter.Placing{Missing: 2},
			reports:  [][]string{{`{"observed":true,"available":true,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}`}},
			rollout:  []string{"2 out of 4 new replicas have been updated"},
		},
		"ReplicationController": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "replicationcontrollers"},
			manifest: `{apiVersion: v1, kind: ReplicationController, spec: {replicas: 2, selector: {app: x}, template: ` + podTemplate + `}}`,
			reports:  [][]string{{``}, {`{"observed":true,"replicas":2,"fullyLabeledReplicas":2,"readyReplicas":2,"availableReplicas":2}`, `{"observed":true,"replicas":1}`}},
		},
		"PodDisruptionBudget": {
			resource: schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
			manifest: `{apiVersion: policy/v1, kind: PodDisruptionBudget, spec: {minAvailable: 1, selector: {matchLabels: {app: x}}}}`,
			reports: [][]string{
				{`{"observed":true,"currentHealthy":2,"desiredHealthy":1,"disruptionsAllowed":1,"expectedPods":2}`, `{"observed":true,"currentHealthy":1}`},
				{`{"observed":true,"generation":7,"status":{"observedGeneration":7,"currentHealthy":2,"desiredHealthy":1,"disruptionsAllowed":1,"expectedPods":2}}`},
			},
		},
		"HorizontalPodAutoscaler": {
			resource: schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
			manifest: `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, spec: {maxReplicas: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]}}`,
			reports: [][]string{
				{`{"observed":true,"currentReplicas":2,"desiredReplicas":2}`, `{"observed":true,"currentReplicas":1,"desiredReplicas":2}`},
				{`{"observed":true,"status":{"currentReplicas":1,"desiredReplicas":2,"conditions":[{"type":"AbleToScale","status":"True","reason":"Ready","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`},
			},
		},
		"PersistentVolumeClaim": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"},
			manifest: `{apiVersion: v1, kind: PersistentVolumeClaim, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
			reports: [][]string{
				{`{"observed":true,"status":{"phase":"Bound"}}`, ``},
				{`{"observed":true,"status":{"phase":"Bound"}}`, `{"observed":true,"status":{"phase":"Bound"}}`},
				{`{"observed":true,"status":{"phase":"Bound","capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"]}}`},
			},
		},
		"CronJob": {
			resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"},
			manifest: `{apiVersion: batch/v1, kind: CronJob, spec: {schedule: "* * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}}}`,
			reports:  [][]string{{`{"lastScheduleTime":"2026-01-01T00:00:00Z"}`, `{"lastScheduleTime":"2026-01-01T00:01:00Z"}`}, {`{"lastScheduleTime":"2026-01-01T00:00:00Z"}`}},
		},
		"Pod": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
			manifest: `{apiVersion: v1, kind: Pod, spec: {automountServiceAccountToken: false, restartPolicy: Never, containers: [{name: c, image: c}]}}`,
			reports: [][]string{
				{`{"observed":true,"status":{"phase":"Running","qosClass":"BestEffort","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`},
				{`{"observed":true,"status":{"phase":"Succeeded","qosClass":"BestEffort","conditions":[{"type":"Ready","status":"False","reason":"PodCompleted","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`},
			},
		},
		"PodsOfSeveralClusters": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
			manifest: `{apiVersion: v1, kind: Pod, spec: {automountServiceAccountToken: false, restartPolicy: Never, containers: [{name: c, image: c}]}}`,
			reports: [][]string{
				{`{"observed":true,"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, ``},
				{`{"observed":true,"generation":1,"status":{"phase":"Running","observedGeneration":1,"conditions":[{"type":"Ready","status":"True"}]}}`, `{"observed":true,"generation":1,"status":{"phase":"Running","observedGeneration":1,"conditions":[{"type":"Ready","status":"False","reason":"ContainersNotReady"}]}}`},
				{`{"observed":true,"generation":1,"status":{"phase":"Succeeded","observedGeneration":1}}`, `{"observed":true,"generation":1,"status":{"phase":"Failed","observedGeneration":1}}`},
			},
		},
		"PersistentVolume": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, cluster: true,
			manifest: `{apiVersion: v1, kind: PersistentVolume, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /x}}}`,
			reports: [][]string{
				{`{"observed":true,"status":{"phase":"Available","lastPhaseTransitionTime":"2026-01-01T00:00:00Z"}}`, `{"observed":true,"status":{"phase":"Bound"}}`},
				{`{"observed":true,"status":{"phase":"Bound","lastPhaseTransitionTime":"2026-01-01T00:00:00Z"}}`, `{"observed":true,"status":{"phase":"Bound"}}`},
				{`{"observed":true,"status":{"phase":"Failed","lastPhaseTransitionTime":"2026-01-01T00:00:00Z","reason":"R","message":"m"}}`},
			},
		},
		"ServiceLoadBalancer": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "services"},
			manifest: `{apiVersion: v1, kind: Service, spec: {type: LoadBalancer, selector: {app: x}, ports: [{port: 80}]}}`,
			reports: [][]string{
				{``},
				{`{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}`, `{"loadBalancer":{"ingress":[{"ip":"10.0.0.1","ipMode":"VIP"},{"hostname":"lb.example.org"}]}}`},
			},
		},
		"ServiceClusterIP": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "services"},
			manifest: `{apiVersion: v1, kind: Service, spec: {selector: {app: x}, ports: [{port: 80}]}}`,
			reports:  [][]string{{``}, {`{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}`}},
		},
		"Ingress": {
			resource: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
			manifest: `{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {defaultBackend: {service: {name: x, port: {number: 80}}}}}`,
			reports:  [][]string{{``}, {`{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}`}},
		},
	}
	server := testenv.StartServer(t)
	config := server.Config()
	hub, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, config)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client := hub.Resource(tc.resource).Namespace(namespace)
			if tc.cluster {
				client = hub.Resource(tc.resource).Namespace("")
			}
			template := create(t, client, strings.ToLower(name), tc.manifest)
			for i, report := range tc.reports {
				reports := reportsOf(t, report)
				status, ok := interpreter.Aggregate(template, tc.placing, reports)
				if !ok {
					t.Fatal("not aggregated")
				}
				template.Object["status"] = status
				written, err := client.UpdateStatus(context.Background(), template, metav1.UpdateOptions{})
				if err != nil {
					t.Fatalf("report %d: the API server refused the status: %v", i, err)
				}
				template = written
				again, _ := interpreter.Aggregate(template, tc.placing, reports)
				if !interpreter.Equal(again, template.Object["status"]) {
					t.Errorf("report %d: the same report makes another status: -present +aggregated:\n%s", i,
						cmp.Diff(template.Object["status"], any(again)))
				}
				if tc.rollout != nil {
					wantRollout(t, kubeconfig, namespace, template, tc.rollout[i])
				}
			}
		})
	}
}

func create(t *testing.T, client dynamic.ResourceInterface, name, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetName(name)
	created, err := client.Create(context.Background(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func reportsOf(t *testing.T, statuses []string) []interpreter.Report {
	t.Helper()
	reports := make([]interpreter.Report, 0, len(statuses))
	for i, status := range statuses {
		r := interpreter.Report{Cluster: string(rune('a' + i)), Current: true}
		if status != "" {
			if err := json.Unmarshal([]byte(status), &r.Status); err != nil {
				t.Fatal(err)
			}
		}
		r.Observed = interpreter.Observed(r.Status)
		reports = append(reports, r)
	}
	return reports
}

// wantRollout checks the output of kubectl rollout status, which users and pipelines wait with.
func wantRollout(t *testing.T, kubeconfig, namespace string, o *unstructured.Unstructured, want string) {
	t.Helper()
	kubectl := exec.CommandContext(t.Context(), testenv.KubeBinary(), "kubectl", "--kubeconfig", kubeconfig, "--namespace", namespace,
		"rollout", "status", "--watch=false", strings.ToLower(o.GetKind())+"/"+o.GetName())
	output, _ := kubectl.CombinedOutput() // a stalled rollout is an error, with this output
	if !strings.Contains(string(output), want) {
		t.Errorf("kubectl rollout status says %q, want %q", output, want)
	}
}
