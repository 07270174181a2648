package interpreter

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// object reads YAML as an informer would.
func object(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// item is what a binding holds of a cluster; the status went through JSON, as it does.
func item(t testing.TB, cluster string, applied bool, status map[string]any) workv1alpha2.AggregatedStatusItem {
	t.Helper()
	i := workv1alpha2.AggregatedStatusItem{ClusterName: cluster, Applied: applied}
	if status != nil {
		raw, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		i.Status = &runtime.RawExtension{Raw: raw}
	}
	return i
}

func TestReplicas(t *testing.T) {
	cases := map[string]struct {
		manifest string
		replicas *int32
		request  corev1.ResourceList
	}{
		"Deployment": {
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 3, template: {spec: {containers: [
				{name: a, resources: {requests: {cpu: 100m, memory: 64Mi}}}, {name: b, resources: {requests: {cpu: 50m}}}]}}}}`,
			replicas: new(int32(3)), request: quantities("cpu", "150m", "memory", "64Mi"),
		},
		"DefaultsToOne": {
			manifest: `{apiVersion: apps/v1, kind: StatefulSet, spec: {template: {spec: {containers: [{name: a}]}}}}`,
			replicas: new(int32(1)),
		},
		"LimitsStandForRequests": {
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 0, template: {spec: {containers: [
				{name: a, resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: 250m}}}]}}}}`,
			replicas: new(int32(0)), request: quantities("cpu", "250m", "memory", "1Gi"),
		},
		"InitContainersCountWhenGreater": {
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {
				initContainers: [{name: i, resources: {requests: {cpu: "2", memory: 1Mi}}}],
				containers: [{name: a, resources: {requests: {cpu: "1", memory: 2Mi}}}]}}}}`,
			replicas: new(int32(1)), request: quantities("cpu", "2", "memory", "2Mi"),
		},
		"SidecarsAndOverheadAdd": {
			manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {
				overhead: {cpu: 10m},
				initContainers: [{name: s, restartPolicy: Always, resources: {requests: {cpu: 100m}}}],
				containers: [{name: a, resources: {requests: {cpu: "1"}}}]}}}}`,
			replicas: new(int32(1)), request: quantities("cpu", "1110m"),
		},
		"JobParallelism": {
			manifest: `{apiVersion: batch/v1, kind: Job, spec: {parallelism: 4, template: {spec: {containers: [{name: a}]}}}}`,
			replicas: new(int32(4)),
		},
		"DaemonSetHasNone":     {manifest: `{apiVersion: apps/v1, kind: DaemonSet, spec: {template: {spec: {containers: []}}}}`},
		"OtherGroupsKind":      {manifest: `{apiVersion: example.org/v1, kind: Deployment, spec: {replicas: 3}}`},
		"PodSpecOfWrongTypes":  {manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: 7}}}}`, replicas: new(int32(1))},
		"NothingWhereAllIsDue": {manifest: `{apiVersion: apps/v1, kind: Deployment}`, replicas: new(int32(1))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			replicas, request := Replicas(object(t, tc.manifest))
			if diff := cmp.Diff(tc.replicas, replicas); diff != "" {
				t.Errorf("replicas: -want +got:\n%s", diff)
			}
			if len(tc.request) == 0 && len(request) == 0 {
				return
			}
			if diff := cmp.Diff(tc.request, request); diff != "" {
				t.Errorf("request: -want +got:\n%s", diff)
			}
		})
	}
}

func quantities(pairs ...string) corev1.ResourceList {
	all := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		all[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return all
}

func TestSetReplicas(t *testing.T) {
	cases := map[string]struct {
		manifest string
		n        int32
		spec     map[string]any
		refused  bool
	}{
		"Deployment":            {`{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 3}}`, 2, map[string]any{"replicas": int64(2)}, false},
		"ReplicasUnset":         {`{apiVersion: apps/v1, kind: Deployment, spec: {}}`, 0, map[string]any{"replicas": int64(0)}, false},
		"CompletionsAreShared":  {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 4, completions: 12}}`, 1, map[string]any{"parallelism": int64(1), "completions": int64(3)}, false},
		"CompletionsRoundUp":    {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 3, completions: 10}}`, 2, map[string]any{"parallelism": int64(2), "completions": int64(7)}, false},
		"WorkQueue":             {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 4}}`, 3, map[string]any{"parallelism": int64(3)}, false},
		"NoParallelismToDivide": {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 0, completions: 5}}`, 0, map[string]any{"parallelism": int64(0), "completions": int64(5)}, false},
		"KindWithout":           {`{apiVersion: v1, kind: ConfigMap, spec: {}}`, 1, map[string]any{}, true},
		"CompletionsNoNumber":   {`{apiVersion: batch/v1, kind: Job, spec: {completions: "5"}}`, 1, map[string]any{"completions": "5"}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := object(t, tc.manifest)
			if err := SetReplicas(o, tc.n); (err != nil) != tc.refused {
				t.Errorf("error = %v, want one: %v", err, tc.refused)
			}
			if diff := cmp.Diff(tc.spec, o.Object["spec"]); diff != "" {
				t.Errorf("spec: -want +got:\n%s", diff)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	const healthy, unhealthy = workv1alpha2.ResourceHealthy, workv1alpha2.ResourceUnhealthy
	cases := map[string]struct {
		manifest string
		want     workv1alpha2.ResourceHealth
	}{
		"DeploymentRolledOut":     {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, availableReplicas: 2}}`, healthy},
		"DeploymentNotObserved":   {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 3}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, availableReplicas: 2}}`, unhealthy},
		"DeploymentRollingOut":    {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 3, updatedReplicas: 2, availableReplicas: 3}}`, unhealthy},
		"DeploymentUnavailable":   {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, availableReplicas: 1}}`, unhealthy},
		"DeploymentScaledToZero":  {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, spec: {replicas: 0}, status: {observedGeneration: 1}}`, healthy},
		"DeploymentOfAllClusters": {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, spec: {replicas: 1}, status: {observedGeneration: 1, replicas: 3, updatedReplicas: 3, availableReplicas: 3}}`, healthy},
		"StatefulSetReady":        {`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, availableReplicas: 2}}`, healthy},
		"StatefulSetPartition":    {`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}, spec: {replicas: 3, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 2}}}, status: {observedGeneration: 1, updatedReplicas: 1, availableReplicas: 3}}`, healthy},
		"StatefulSetOldPods":      {`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}, spec: {replicas: 3}, status: {observedGeneration: 1, updatedReplicas: 1, availableReplicas: 3}}`, unhealthy},
		"StatefulSetOnDelete":     {`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}, spec: {replicas: 3, updateStrategy: {type: OnDelete}}, status: {observedGeneration: 1, availableReplicas: 3}}`, healthy},
		"DaemonSetEverywhere":     {`{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 1}, status: {observedGeneration: 1, desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 2}}`, healthy},
		"DaemonSetMissing":        {`{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 1}, status: {observedGeneration: 1, desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 1}}`, unhealthy},
		"ReplicaSetAvailable":     {`{apiVersion: apps/v1, kind: ReplicaSet, metadata: {generation: 1}, spec: {replicas: 1}, status: {observedGeneration: 1, availableReplicas: 1}}`, healthy},
		"JobWorking":              {`{apiVersion: batch/v1, kind: Job, status: {active: 1}}`, healthy},
		"JobFailed":               {`{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: Failed, status: "True"}]}}`, unhealthy},
		"CronJob":                 {`{apiVersion: batch/v1, kind: CronJob}`, healthy},
		"ServiceClusterIP":        {`{apiVersion: v1, kind: Service, spec: {type: ClusterIP}}`, healthy},
		"ServiceNoAddress":        {`{apiVersion: v1, kind: Service, spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`, unhealthy},
		"ServiceAddress":          {`{apiVersion: v1, kind: Service, spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 10.0.0.1}]}}}`, healthy},
		"IngressNoAddress":        {`{apiVersion: networking.k8s.io/v1, kind: Ingress, status: {loadBalancer: {}}}`, unhealthy},
		"PodReady":                {`{apiVersion: v1, kind: Pod, status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}`, healthy},
		"PodStarting":             {`{apiVersion: v1, kind: Pod, status: {phase: Running, conditions: [{type: Ready, status: "False"}]}}`, unhealthy},
		"PodSucceeded":            {`{apiVersion: v1, kind: Pod, status: {phase: Succeeded, conditions: [{type: Ready, status: "False"}]}}`, healthy},
		"ClaimBound":              {`{apiVersion: v1, kind: PersistentVolumeClaim, status: {phase: Bound}}`, healthy},
		"ClaimPending":            {`{apiVersion: v1, kind: PersistentVolumeClaim, status: {phase: Pending}}`, unhealthy},
		"ConfigMap":               {`{apiVersion: v1, kind: ConfigMap}`, healthy},
		"AutoscalerNew":           {`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler}`, healthy},
		"AutoscalerBlind":         {`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, status: {conditions: [{type: ScalingActive, status: "False", reason: FailedGetResourceMetric}]}}`, unhealthy},
		"AutoscalerSwitchedOff":   {`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, status: {conditions: [{type: ScalingActive, status: "False", reason: ScalingDisabled}]}}`, healthy},
		"OtherWithoutStatus":      {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}}`, healthy},
		"OtherReady":              {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}, status: {observedGeneration: 4, conditions: [{type: Available, status: "False"}, {type: Ready, status: "True"}]}}`, healthy},
		"OtherNotReady":           {`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Ready, status: Unknown}]}}`, unhealthy},
		"OtherAvailable":          {`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Available, status: "True"}]}}`, healthy},
		"OtherNotObserved":        {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}, status: {observedGeneration: 3, conditions: [{type: Ready, status: "True"}]}}`, unhealthy},
		"StatusOfWrongTypes":      {`{apiVersion: example.org/v1, kind: Thing, status: {observedGeneration: x, conditions: 7}}`, healthy},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Health(object(t, tc.manifest)); got != tc.want {
				t.Errorf("Health = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestReflect(t *testing.T) {
	cases := map[string]struct {
		manifest string
		want     map[string]any
	}{
		"Deployment": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, readyReplicas: 1,
				availableReplicas: 1, unavailableReplicas: 1, collisionCount: 0, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "True"}]}}`,
			map[string]any{
				"observed": true, "available": true, "replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": int64(1),
				"availableReplicas": int64(1), "unavailableReplicas": int64(1),
			},
		},
		"DeploymentStalled": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, status: {observedGeneration: 1, conditions: [{type: Available, status: "False"}, {type: Progressing, status: "False"}]}}`,
			map[string]any{"stalled": true},
		},
		"NothingYet": {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, status: {}}`, nil},
		"StatefulSet": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}, status: {observedGeneration: 1, replicas: 1, currentRevision: a, updateRevision: b}}`,
			map[string]any{"observed": true, "replicas": int64(1)},
		},
		"JobFailed": {
			`{apiVersion: batch/v1, kind: Job, status: {failed: 7, startTime: "2026-01-01T00:00:00Z", conditions: [{type: Failed, status: "True", reason: BackoffLimitExceeded}]}}`,
			map[string]any{"failed": int64(7), "startTime": "2026-01-01T00:00:00Z", "failure": "BackoffLimitExceeded"},
		},
		"ServiceWithAddress": {
			`{apiVersion: v1, kind: Service, status: {loadBalancer: {ingress: [{ip: 10.0.0.1, ipMode: VIP}]}}}`,
			map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}}}},
		},
		"ServiceWithout": {`{apiVersion: v1, kind: Service, status: {loadBalancer: {}}}`, nil},
		"Claim":          {`{apiVersion: v1, kind: PersistentVolumeClaim, status: {phase: Bound}}`, map[string]any{"phase": "Bound"}},
		"KindWithout":    {`{apiVersion: v1, kind: ConfigMap, data: {a: b}}`, nil},
		"OtherKind":      {`{apiVersion: example.org/v1, kind: Thing, status: {replicas: 1}}`, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Reflect(object(t, tc.manifest))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The time at which the tests aggregate, and one before it.
const (
	now    = "2026-03-01T12:00:00Z"
	before = "2026-03-01T11:00:00Z"
)

func clock(t testing.TB) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, now)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestAggregateDeployment(t *testing.T) {
	up := map[string]any{"observed": true, "available": true, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}
	coming := map[string]any{"observed": true, "replicas": 2, "updatedReplicas": 2, "unavailableReplicas": 2}
	cond := func(kind, status, reason, message, transition, update string) map[string]any {
		return map[string]any{
			"type": kind, "status": status, "reason": reason, "message": message,
			"lastTransitionTime": transition, "lastUpdateTime": update,
		}
	}
	available := cond("Available", "True", "MinimumReplicasAvailable", "Available in every cluster.", now, now)
	rolledOut := cond("Progressing", "True", "NewReplicaSetAvailable", "Rolled out in every cluster.", now, now)
	rolling := cond("Progressing", "True", "ReplicaSetUpdated", "Being rolled out.", now, now)
	cases := map[string]struct {
		status string // that the template has, at generation 3
		items  []workv1alpha2.AggregatedStatusItem
		want   map[string]any
	}{
		"NothingKnown": {`{}`, []workv1alpha2.AggregatedStatusItem{item(t, "a", false, nil)}, map[string]any{}},
		"Sums": {
			`{}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "b", true, up), item(t, "a", true, up)},
			map[string]any{
				"observedGeneration": int64(3), "replicas": int64(4), "updatedReplicas": int64(4), "readyReplicas": int64(4), "availableReplicas": int64(4),
				"conditions": []any{available, rolledOut},
			},
		},
		"OneClusterHasNotTheManifest": {
			`{observedGeneration: 2}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "a", true, up), item(t, "b", false, up)},
			map[string]any{
				"observedGeneration": int64(2), "replicas": int64(4), "updatedReplicas": int64(4), "readyReplicas": int64(4), "availableReplicas": int64(4),
				"conditions": []any{available, rolling},
			},
		},
		"OneClusterHasNotObserved": {
			`{}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "a", true, up), item(t, "b", true, nil)},
			map[string]any{
				"replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": int64(2), "availableReplicas": int64(2),
				"conditions": []any{
					cond("Available", "False", "MinimumReplicasUnavailable", "Not available in b.", now, now), rolling,
				},
			},
		},
		"TransitionTimeStays": {
			`{conditions: [{type: Available, status: "False", reason: MinimumReplicasUnavailable, message: Not available in b., lastTransitionTime: "` + before + `", lastUpdateTime: "` + before + `"},
				{type: Progressing, status: "True", reason: Other, message: Other, lastTransitionTime: "` + before + `", lastUpdateTime: "` + before + `"}]}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "a", true, up), item(t, "b", true, coming)},
			map[string]any{
				"observedGeneration": int64(3), "replicas": int64(4), "updatedReplicas": int64(4), "readyReplicas": int64(2), "availableReplicas": int64(2), "unavailableReplicas": int64(2),
				"conditions": []any{
					cond("Available", "False", "MinimumReplicasUnavailable", "Not available in b.", before, before),
					cond("Progressing", "True", "ReplicaSetUpdated", "Being rolled out.", before, now),
				},
			},
		},
		"Stalled": {
			`{}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "a", true, map[string]any{"observed": true, "stalled": true})},
			map[string]any{
				"observedGeneration": int64(3),
				"conditions": []any{
					cond("Available", "False", "MinimumReplicasUnavailable", "Not available in a.", now, now),
					cond("Progressing", "False", "ProgressDeadlineExceeded", "No progress in time in a.", now, now),
				},
			},
		},
		"NoClusterLeft": {
			`{observedGeneration: 3, replicas: 2, conditions: [{type: Available, status: "True"}]}`,
			nil,
			map[string]any{
				"observedGeneration": int64(3),
				"conditions": []any{
					cond("Available", "False", "MinimumReplicasUnavailable", "Placed in no cluster.", now, now), rolling,
				},
			},
		},
		"ReportsThatAreNone": {
			`{}`,
			[]workv1alpha2.AggregatedStatusItem{{ClusterName: "a", Applied: true, Status: &runtime.RawExtension{Raw: []byte(`[1]`)}}},
			map[string]any{},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			template := object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, generation: 3}, spec: {replicas: 2}, status: `+tc.status+`}`)
			got, ok := aggregate(template, tc.items, clock(t))
			if !ok {
				t.Fatal("not aggregated")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAggregateOthers(t *testing.T) {
	cases := map[string]struct {
		template string
		items    []workv1alpha2.AggregatedStatusItem
		want     map[string]any
	}{
		"StatefulSet": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "a", true, map[string]any{"observed": true, "replicas": 1, "readyReplicas": 1})},
			map[string]any{"observedGeneration": int64(1), "replicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(0)},
		},
		"DaemonSet": {
			`{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 1}}`,
			[]workv1alpha2.AggregatedStatusItem{
				item(t, "a", true, map[string]any{"observed": true, "desiredNumberScheduled": 2, "numberReady": 1}),
				item(t, "b", true, map[string]any{"observed": true, "desiredNumberScheduled": 3, "numberReady": 3}),
			},
			map[string]any{
				"observedGeneration": int64(1), "currentNumberScheduled": int64(0), "numberMisscheduled": int64(0),
				"desiredNumberScheduled": int64(5), "numberReady": int64(4),
			},
		},
		"ServiceAddressesOnce": {
			`{apiVersion: v1, kind: Service, spec: {type: LoadBalancer}}`,
			[]workv1alpha2.AggregatedStatusItem{
				item(t, "b", true, map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.2"}, map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}}}}),
				item(t, "a", true, map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}, map[string]any{"hostname": "lb.example.org"}}}}),
				item(t, "c", true, nil),
			},
			map[string]any{"loadBalancer": map[string]any{"ingress": []any{
				map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}, map[string]any{"hostname": "lb.example.org"}, map[string]any{"ip": "10.0.0.2", "ipMode": "VIP"},
			}}},
		},
		"ServiceOfAnotherType": {
			`{apiVersion: v1, kind: Service, spec: {type: ClusterIP}}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "a", true, map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1"}}}})},
			map[string]any{"loadBalancer": map[string]any{}},
		},
		"JobWorking": {
			`{apiVersion: batch/v1, kind: Job, status: {succeeded: 2, startTime: "2026-01-01T00:00:05Z"}}`,
			[]workv1alpha2.AggregatedStatusItem{
				item(t, "a", true, map[string]any{"active": 1, "ready": 1, "startTime": "2026-01-01T00:00:03Z"}),
				item(t, "b", true, map[string]any{"succeeded": 1, "startTime": "2026-01-01T00:00:04Z", "completionTime": "2026-01-01T00:00:08Z"}),
			},
			map[string]any{"active": int64(1), "ready": int64(1), "succeeded": int64(2), "startTime": "2026-01-01T00:00:05Z"},
		},
		"JobFinishedStaysFinished": {
			`{apiVersion: batch/v1, kind: Job, status: {succeeded: 2, conditions: [{type: Complete, status: "True"}]}}`,
			[]workv1alpha2.AggregatedStatusItem{item(t, "c", true, map[string]any{"active": 1})},
			map[string]any{"succeeded": int64(2), "conditions": []any{map[string]any{"type": "Complete", "status": "True"}}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := aggregate(object(t, tc.template), tc.items, clock(t))
			if !ok {
				t.Fatal("not aggregated")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, ok := Aggregate(object(t, `{apiVersion: v1, kind: ConfigMap}`), nil); ok {
		t.Error("a ConfigMap's status was aggregated")
	}
}

// FuzzInterpret: nothing that a JSON decoder makes of bytes may panic, or be changed by
// being read.
func FuzzInterpret(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1"}}}]}}}}`), []byte(`{"observed":true}`))
	f.Add([]byte(`{"apiVersion":"batch/v1","kind":"Job","status":{"conditions":[7,{"type":"Failed","status":"True"}]}}`), []byte(`{"failure":7}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Service","spec":{"type":"LoadBalancer"},"status":{"loadBalancer":[]}}`), []byte(`{"loadBalancer":{"ingress":[1,{"ip":2}]}}`))
	f.Add([]byte(`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":7,"status":"x"}`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, raw, status []byte) {
		o := &unstructured.Unstructured{}
		if json.Unmarshal(raw, &o.Object) != nil || o.Object == nil {
			return
		}
		original := o.DeepCopy()
		Health(o)
		Reflect(o)
		Replicas(o)
		Aggregate(o, []workv1alpha2.AggregatedStatusItem{
			{ClusterName: "a", Applied: true, Status: &runtime.RawExtension{Raw: status}}, {ClusterName: "b"},
		})
		if diff := cmp.Diff(original.Object, o.Object); diff != "" {
			t.Errorf("changed by being read:\n%s", diff)
		}
		if err := SetReplicas(o, 3); err == nil {
			if n, _ := Replicas(o); n == nil || *n != 3 {
				t.Errorf("replicas are %v after they were set to 3", n)
			}
		}
	})
}
