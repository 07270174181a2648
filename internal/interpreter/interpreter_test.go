package interpreter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// object parses YAML into the types that an informer uses.
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

// report returns a Report of a cluster whose status was encoded as JSON and decoded, as in a
// binding.
func report(t testing.TB, cluster string, current bool, status map[string]any) Report {
	t.Helper()
	r := Report{Cluster: cluster, Current: current, Observed: Observed(status)}
	if status != nil {
		raw, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &r.Status); err != nil {
			t.Fatal(err)
		}
	}
	return r
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
		"DaemonSetHasNone":  {manifest: `{apiVersion: apps/v1, kind: DaemonSet, spec: {template: {spec: {containers: []}}}}`},
		"CustomKind":        {manifest: `{apiVersion: example.org/v1, kind: Deployment, spec: {replicas: 3}}`, replicas: new(int32(3))},
		"CustomKindWithout": {manifest: `{apiVersion: example.org/v1, kind: Deployment, spec: {replicas: {min: 1}}}`},
		"CustomKindMost":    {manifest: `{apiVersion: example.org/v1, kind: Deployment, spec: {replicas: 2147483647}}`, replicas: new(int32(math.MaxInt32))},
		"CustomKindTooMany": {manifest: `{apiVersion: example.org/v1, kind: Deployment, spec: {replicas: 4294967297}}`},
		"CustomKindTooFew":  {manifest: `{apiVersion: example.org/v1, kind: Deployment, spec: {replicas: -1}}`},
		"ReplicationController": {
			manifest: `{apiVersion: v1, kind: ReplicationController, spec: {replicas: 6, template: {spec: {containers: [{name: a, resources: {requests: {cpu: 50m}}}]}}}}`,
			replicas: new(int32(6)), request: quantities("cpu", "50m"),
		},
		"Pod": {
			manifest: `{apiVersion: v1, kind: Pod, spec: {containers: [{name: a, resources: {requests: {cpu: 50m}}}]}}`,
			replicas: new(int32(1)), request: quantities("cpu", "50m"),
		},
		"PodSpecOfWrongTypes":  {manifest: `{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: 7}}}}`, replicas: new(int32(1))},
		"NothingWhereAllIsDue": {manifest: `{apiVersion: apps/v1, kind: Deployment}`, replicas: new(int32(1))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := object(t, tc.manifest)
			if diff := cmp.Diff(tc.replicas, Replicas(o)); diff != "" {
				t.Errorf("replicas: -want +got:\n%s", diff)
			}
			var request corev1.ResourceList
			if r := RequirementsOf(o); r != nil {
				request = r.Requests
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

func TestRequirementsOf(t *testing.T) {
	notBestEffort := []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort}
	for name, tc := range map[string]struct {
		manifest string
		want     *Requirements
	}{
		"Deployment": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: shop}, spec: {template: {spec: {
				nodeSelector: {disk: fast}, priorityClassName: high, tolerations: [{key: gpu, operator: Exists}],
				affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}}},
				containers: [{name: a, resources: {requests: {cpu: 50m}}}]}}}}`,
			&Requirements{
				Requests: quantities("cpu", "50m"), Limits: quantities(), NodeSelector: map[string]string{"disk": "fast"}, Namespace: "shop", PriorityClassName: "high",
				Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Scopes: notBestEffort,
				Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
				NodeAffinity: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
					Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"},
				}}}}},
			},
		},
		"Pod": {
			`{apiVersion: v1, kind: Pod, metadata: {namespace: shop}, spec: {nodeSelector: {disk: fast}, containers: [{name: a, resources: {limits: {memory: 1Mi}}}]}}`,
			&Requirements{
				Requests: quantities("memory", "1Mi"), Limits: quantities("memory", "1Mi"), NodeSelector: map[string]string{"disk": "fast"}, Namespace: "shop",
				Kind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Scopes: notBestEffort,
			},
		},
		"InScopes": {
			`{apiVersion: batch/v1, kind: Job, metadata: {namespace: shop}, spec: {template: {spec: {activeDeadlineSeconds: 7, containers: [{name: a, resources: {requests: {example.com/gpu: "1"}}}],
				affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: z}}, {weight: 1, podAffinityTerm: {topologyKey: z, namespaces: [other]}}]}}}}}}`,
			&Requirements{
				Requests: quantities("example.com/gpu", "1"), Limits: quantities(), Namespace: "shop", Kind: schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"},
				Scopes: []corev1.ResourceQuotaScope{"Terminating", "BestEffort", "CrossNamespacePodAffinity"},
			},
		},
		"NearOthersOfItsNamespace": {
			`{apiVersion: apps/v1, kind: ReplicaSet, metadata: {namespace: shop}, spec: {template: {spec: {containers: [{name: a, resources: {limits: {cpu: "1"}, requests: {cpu: "0"}}}],
				affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z}]}}}}}}`,
			&Requirements{
				Requests: quantities("cpu", "0"), Limits: quantities("cpu", "1"), Namespace: "shop", Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, Scopes: notBestEffort,
			},
		},
		"CustomKind": {
			`{apiVersion: example.org/v1, kind: Thing, metadata: {namespace: shop}, spec: {replicas: 2, template: {spec: {containers: [{name: a, resources: {requests: {cpu: 50m}}}]}}}}`,
			&Requirements{
				Requests: quantities("cpu", "50m"), Limits: quantities(), Namespace: "shop", Kind: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"}, Scopes: notBestEffort,
			},
		},
		"CustomKindWithItsPodsElsewhere": {
			`{apiVersion: example.org/v1, kind: Thing, metadata: {namespace: shop}, spec: {replicas: 2}}`,
			&Requirements{
				Namespace: "shop", Kind: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		},
		"DaemonSet":  {`{apiVersion: apps/v1, kind: DaemonSet, spec: {template: {spec: {containers: [{name: a}]}}}}`, nil},
		"WrongTypes": {`{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: 7}}}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, RequirementsOf(object(t, tc.manifest))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
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
		"Job":                   {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 4, completions: 12}}`, 1, map[string]any{"parallelism": int64(1), "completions": int64(12)}, false},
		"ReplicationController": {`{apiVersion: v1, kind: ReplicationController, spec: {replicas: 6}}`, 2, map[string]any{"replicas": int64(2)}, false},
		"CustomKind":            {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 6}}`, 4, map[string]any{"replicas": int64(4)}, false},
		"KindWithout":           {`{apiVersion: v1, kind: ConfigMap, spec: {}}`, 1, map[string]any{}, true},
		"Pod":                   {`{apiVersion: v1, kind: Pod, spec: {}}`, 1, map[string]any{}, false},
		"NoPod":                 {`{apiVersion: v1, kind: Pod, spec: {}}`, 0, map[string]any{}, true},
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

// TestCompletions: the completions of the clusters add up to those of the template, for all
// shares, and are in proportion to the shares.
func TestCompletions(t *testing.T) {
	const job = `{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {parallelism: 4, completions: %s}}`
	all := func(manifest string, shares ...int32) (got []int64, err error) {
		var targets []workv1alpha2.TargetCluster
		for i, n := range shares {
			targets = append(targets, workv1alpha2.TargetCluster{Name: string(rune('a' + i)), Replicas: new(n)})
		}
		for _, target := range targets {
			n, failed := Completions(object(t, manifest), targets, target.Name)
			if failed != nil {
				return nil, failed
			}
			if n == nil {
				got = append(got, -1)
			} else {
				got = append(got, *n)
			}
		}
		return got, nil
	}
	for name, tc := range map[string]struct {
		manifest string
		shares   []int32
		want     []int64
	}{
		"Even":                {fmt.Sprintf(job, "12"), []int32{1, 3}, []int64{3, 9}},
		"LargestRemainder":    {fmt.Sprintf(job, "10"), []int32{1, 2}, []int64{3, 7}},
		"ByName":              {fmt.Sprintf(job, "10"), []int32{1, 1, 1}, []int64{4, 3, 3}},
		"TheGreaterShare":     {fmt.Sprintf(job, "2"), []int32{1, 3}, []int64{0, 2}},
		"FewerThanClusters":   {fmt.Sprintf(job, "2"), []int32{1, 1, 1}, []int64{1, 1, 0}},
		"LessIsPlaced":        {fmt.Sprintf(job, "9"), []int32{2}, []int64{9}},
		"NoShare":             {fmt.Sprintf(job, "9"), []int32{2, 0}, []int64{9, 0}},
		"Large":               {fmt.Sprintf(job, "2147483647"), []int32{2147483646, 1}, []int64{2147483646, 1}},
		"Asleep":              {fmt.Sprintf(job, "9"), []int32{0, 0}, []int64{-1, -1}},
		"WorkQueue":           {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 4}}`, []int32{3, 1}, []int64{-1, -1}},
		"OtherKind":           {`{apiVersion: apps/v1, kind: Deployment, spec: {completions: 4}}`, []int32{3, 1}, []int64{-1, -1}},
		"CompletionsNoNumber": {fmt.Sprintf(job, `"5"`), []int32{1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := all(tc.manifest, tc.shares...)
			if (err != nil) != (tc.want == nil) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if n, err := Completions(object(t, fmt.Sprintf(job, "9")), []workv1alpha2.TargetCluster{{Name: "a", Replicas: new(int32(1))}}, "b"); err == nil {
		t.Errorf("a cluster without a share has %d", *n)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		shares, completions := make([]int32, 1+dice.IntN(9)), dice.Int64N(1000)
		for i := range shares {
			shares[i] = 1 + dice.Int32N(50)
		}
		got, err := all(fmt.Sprintf(job, fmt.Sprint(completions)), shares...)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for i, n := range got {
			sum += n
			if parts := completions * int64(shares[i]); n < parts/total(shares) || n > parts/total(shares)+1 {
				t.Fatalf("%d completions by %v are %v: not in proportion", completions, shares, got)
			}
		}
		if sum != completions {
			t.Fatalf("%d completions by %v are %v, which is %d", completions, shares, got, sum)
		}
	}
}

func total(shares []int32) (sum int64) {
	for _, n := range shares {
		sum += int64(n)
	}
	return sum
}

// TestFixedCompletions: a Job in a cluster keeps its completions, unless the API server allows
// changing them.
func TestFixedCompletions(t *testing.T) {
	const job = `{apiVersion: batch/v1, kind: Job, spec: {%s}}`
	for name, tc := range map[string]struct {
		manifest, live string
		want           *int64
	}{
		"Other":              {fmt.Sprintf(job, "parallelism: 2, completions: 4"), fmt.Sprintf(job, "parallelism: 2, completions: 7"), new(int64(7))},
		"Elastic":            {fmt.Sprintf(job, "parallelism: 4, completions: 4"), fmt.Sprintf(job, "completionMode: Indexed, parallelism: 7, completions: 7"), nil},
		"IndexedNotElastic":  {fmt.Sprintf(job, "parallelism: 2, completions: 4"), fmt.Sprintf(job, "completionMode: Indexed, parallelism: 7, completions: 7"), new(int64(7))},
		"NotIndexed":         {fmt.Sprintf(job, "parallelism: 4, completions: 4"), fmt.Sprintf(job, "completionMode: NonIndexed, parallelism: 7, completions: 7"), new(int64(7))},
		"ItHasNone":          {fmt.Sprintf(job, "parallelism: 4, completions: 4"), fmt.Sprintf(job, "parallelism: 7"), nil},
		"ItShallHaveNone":    {fmt.Sprintf(job, "parallelism: 4"), fmt.Sprintf(job, "completions: 7"), nil},
		"SomeoneElse's kind": {`{apiVersion: example.org/v1, kind: Job, spec: {completions: 4}}`, `{apiVersion: example.org/v1, kind: Job, spec: {completions: 7}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, FixedCompletions(object(t, tc.manifest), object(t, tc.live))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	const healthy, unhealthy, unknown = workv1alpha2.ResourceHealthy, workv1alpha2.ResourceUnhealthy, workv1alpha2.ResourceUnknown
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
		"VolumePending":           {`{apiVersion: v1, kind: PersistentVolume, status: {phase: Pending}}`, unhealthy},
		"VolumeAvailable":         {`{apiVersion: v1, kind: PersistentVolume, status: {phase: Available}}`, healthy},
		"VolumeReleased":          {`{apiVersion: v1, kind: PersistentVolume, status: {phase: Released}}`, healthy},
		"VolumeFailed":            {`{apiVersion: v1, kind: PersistentVolume, status: {phase: Failed}}`, unhealthy},
		"BudgetKept":              {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}, status: {observedGeneration: 1, currentHealthy: 2, desiredHealthy: 2}}`, healthy},
		"BudgetBroken":            {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}, status: {observedGeneration: 1, currentHealthy: 1, desiredHealthy: 2}}`, unhealthy},
		"BudgetNotObserved":       {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 2}, status: {observedGeneration: 1, currentHealthy: 2, desiredHealthy: 2}}`, unhealthy},
		"ServiceAccount":          {`{apiVersion: v1, kind: ServiceAccount}`, healthy},
		"Secret":                  {`{apiVersion: v1, kind: Secret}`, healthy},
		"ConfigMap":               {`{apiVersion: v1, kind: ConfigMap}`, healthy},
		"AutoscalerNew":           {`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler}`, healthy},
		"AutoscalerBlind":         {`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, status: {conditions: [{type: ScalingActive, status: "False", reason: FailedGetResourceMetric}]}}`, unhealthy},
		"AutoscalerSwitchedOff":   {`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, status: {conditions: [{type: ScalingActive, status: "False", reason: ScalingDisabled}]}}`, healthy},
		"OtherWithoutStatus":      {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}}`, unknown},
		"OtherObserved":           {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}, status: {observedGeneration: 4}}`, healthy},
		"OtherStatusOfItsOwn":     {`{apiVersion: example.org/v1, kind: Thing, status: {mood: good}}`, unknown},
		"OtherStalled":            {`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Stalled, status: "True"}]}}`, unhealthy},
		"OtherReplicasShort":      {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {readyReplicas: 2}}`, unhealthy},
		"OtherReplicasReady":      {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {readyReplicas: 3}}`, healthy},
		"OtherOfADottedGroup":     {`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway}`, unknown},
		"BuiltInWithoutStatus":    {`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role}`, healthy},
		"DefinitionNotServed":     {`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, status: {conditions: [{type: Established, status: "False"}]}}`, unhealthy},
		"ControllerAvailable":     {`{apiVersion: v1, kind: ReplicationController, metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, availableReplicas: 2}}`, healthy},
		"ControllerOfNobody":      {`{apiVersion: v1, kind: ReplicationController, metadata: {generation: 1}, spec: {replicas: 6}, status: {replicas: 0}}`, unhealthy},
		"OtherReady":              {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}, status: {observedGeneration: 4, conditions: [{type: Available, status: "False"}, {type: Ready, status: "True"}]}}`, healthy},
		"OtherNotReady":           {`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Ready, status: Unknown}]}}`, unhealthy},
		"OtherAvailable":          {`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Available, status: "True"}]}}`, healthy},
		"OtherNotObserved":        {`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 4}, status: {observedGeneration: 3, conditions: [{type: Ready, status: "True"}]}}`, unhealthy},
		"StatusOfWrongTypes":      {`{apiVersion: example.org/v1, kind: Thing, status: {observedGeneration: x, conditions: 7}}`, unknown},
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
				"availableReplicas": int64(1), "unavailableReplicas": int64(1), "cause": "being rolled out",
			},
		},
		"DeploymentStalled": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, status: {observedGeneration: 1, conditions: [{type: Available, status: "False"}, {type: Progressing, status: "False"}]}}`,
			map[string]any{"stalled": true, "cause": "0 of 1 replicas available: its controller has not seen the last change"},
		},
		"NothingYet": {`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, status: {}}`, nil},
		"StatefulSet": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}, status: {observedGeneration: 1, replicas: 1, currentRevision: a, updateRevision: b}}`,
			map[string]any{"observed": true, "replicas": int64(1), "cause": "0 of 1 replicas available"},
		},
		"JobFailed": {
			`{apiVersion: batch/v1, kind: Job, status: {failed: 7, startTime: "2026-01-01T00:00:00Z", conditions: [{type: Failed, status: "True", reason: BackoffLimitExceeded}]}}`,
			map[string]any{"failed": int64(7), "startTime": "2026-01-01T00:00:00Z", "failure": "BackoffLimitExceeded", "cause": "BackoffLimitExceeded"},
		},
		"ServiceWithAddress": {
			`{apiVersion: v1, kind: Service, status: {loadBalancer: {ingress: [{ip: 10.0.0.1, ipMode: VIP}]}}}`,
			map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}}}},
		},
		"ServiceOfNodePorts": {
			`{apiVersion: v1, kind: Service, spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}, {port: 53, protocol: UDP, nodePort: 30053}, {port: 54}]}}`,
			map[string]any{"nodePorts": map[string]any{"80/TCP": int64(30080), "53/UDP": int64(30053)}},
		},
		"ServiceWithout": {`{apiVersion: v1, kind: Service, status: {loadBalancer: {}}}`, nil},
		"Claim":          {`{apiVersion: v1, kind: PersistentVolumeClaim, status: {phase: Bound}}`, map[string]any{"observed": true, "status": map[string]any{"phase": "Bound"}}},
		"KindWithout":    {`{apiVersion: v1, kind: ConfigMap, data: {a: b}}`, nil},
		"BuiltInOther":   {`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, status: {storedVersions: [v1]}}`, nil},
		"CustomKind": {
			`{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 3}, spec: {replicas: 2}, status: {observedGeneration: 3, replicas: 1, conditions: [{type: Ready, status: "False", reason: Cold, message: it is cold}]}}`,
			map[string]any{
				"observed": true, "replicas": int64(1), "generation": int64(3), "cause": "Cold: it is cold",
				"status": map[string]any{"observedGeneration": int64(3), "replicas": int64(1), "conditions": []any{
					map[string]any{"type": "Ready", "status": "False", "reason": "Cold", "message": "it is cold"},
				}},
			},
		},
		"CustomKindOfManyWords": {
			`{apiVersion: example.org/v1, kind: Thing, status: {log: ` + strings.Repeat("x", 9000) + `, conditions: [{type: Ready, status: "True"}]}}`,
			map[string]any{"observed": true, "status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}},
		},
		"PodThatCannotPull": {
			`{apiVersion: v1, kind: Pod, status: {phase: Pending, containerStatuses: [{name: app, state: {waiting: {reason: ImagePullBackOff, message: no such image}}}]}}`,
			map[string]any{"observed": true, "cause": "app: ImagePullBackOff: no such image", "status": map[string]any{
				"phase": "Pending", "containerStatuses": []any{map[string]any{"name": "app", "state": map[string]any{
					"waiting": map[string]any{"reason": "ImagePullBackOff", "message": "no such image"},
				}}},
			}},
		},
		"DeploymentOverQuota": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, spec: {replicas: 3}, status: {observedGeneration: 1, availableReplicas: 1, conditions: [
				{type: Available, status: "False", reason: MinimumReplicasUnavailable}, {type: ReplicaFailure, status: "True", reason: FailedCreate, message: exceeded quota}]}}`,
			map[string]any{"observed": true, "availableReplicas": int64(1), "cause": "1 of 3 replicas available: FailedCreate: exceeded quota"},
		},
		"Autoscaler": {
			`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, status: {currentReplicas: 2, desiredReplicas: 3, currentMetrics: [{type: Resource}]}}`,
			map[string]any{
				"observed": true, "currentReplicas": int64(2), "desiredReplicas": int64(3),
				"status": map[string]any{"currentReplicas": int64(2), "desiredReplicas": int64(3)},
			},
		},
		"CronJob": {
			`{apiVersion: batch/v1, kind: CronJob, status: {lastScheduleTime: "2026-01-01T00:00:00Z", active: [{name: x}]}}`,
			map[string]any{"lastScheduleTime": "2026-01-01T00:00:00Z"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Reflect(object(t, tc.manifest))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// now is the time at which the tests aggregate, and before is an hour earlier.
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
		c := map[string]any{
			"type": kind, "status": status, "reason": reason, "lastTransitionTime": transition, "lastUpdateTime": update,
		}
		if message != "" {
			c["message"] = message
		}
		return c
	}
	available := cond("Available", "True", "MinimumReplicasAvailable", "", now, now)
	rolledOut := cond("Progressing", "True", "NewReplicaSetAvailable", "", now, now)
	rolling := cond("Progressing", "True", "ReplicaSetUpdated", "Being rolled out.", now, now)
	waiting := cond("Progressing", "True", "ReplicaSetUpdated", "Not yet applied in b.", now, now)
	cases := map[string]struct {
		status string // the template's status at generation 3
		items  []Report
		want   map[string]any
	}{
		"NothingKnown": {`{}`, []Report{report(t, "a", false, nil)}, map[string]any{}},
		"Sums": {
			`{}`,
			[]Report{report(t, "b", true, up), report(t, "a", true, up)},
			map[string]any{
				"observedGeneration": int64(3), "replicas": int64(4), "updatedReplicas": int64(4), "readyReplicas": int64(4), "availableReplicas": int64(4),
				"conditions": []any{available, rolledOut},
			},
		},
		"OneClusterHasNotTheManifest": {
			`{observedGeneration: 2}`,
			[]Report{report(t, "a", true, up), report(t, "b", false, up)},
			map[string]any{
				"observedGeneration": int64(2), "replicas": int64(4), "updatedReplicas": int64(2), "readyReplicas": int64(4), "availableReplicas": int64(4),
				"conditions": []any{available, waiting},
			},
		},
		"OneClusterHasNotObserved": {
			`{}`,
			[]Report{report(t, "a", true, up), report(t, "b", true, nil)},
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
			[]Report{report(t, "a", true, up), report(t, "b", true, coming)},
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
			[]Report{report(t, "a", true, map[string]any{"observed": true, "stalled": true})},
			map[string]any{
				"observedGeneration": int64(3),
				"conditions": []any{
					cond("Available", "False", "MinimumReplicasUnavailable", "Not available in a.", now, now),
					cond("Progressing", "False", "ProgressDeadlineExceeded", "No progress in time in a.", now, now),
				},
			},
		},
		"StalledOnWhatWasBefore": {
			`{observedGeneration: 2}`,
			[]Report{report(t, "b", false, map[string]any{"observed": true, "available": true, "stalled": true})},
			map[string]any{"observedGeneration": int64(2), "conditions": []any{available, waiting}},
		},
		"ObservedGenerationDoesNotGoBack": {
			`{observedGeneration: 4}`,
			[]Report{report(t, "a", true, up)},
			map[string]any{
				"observedGeneration": int64(4), "replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": int64(2), "availableReplicas": int64(2),
				"conditions": []any{available, rolledOut},
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
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			template := object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, generation: 3}, spec: {replicas: 2}, status: `+tc.status+`}`)
			got, ok := aggregate(template, Placing{}, tc.items, clock(t))
			if !ok {
				t.Fatal("not aggregated")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestAggregatePlacing: a rollout with replicas that are placed in no cluster is not finished.
// If each cluster has all replicas, they are counted as those of the template.
func TestAggregatePlacing(t *testing.T) {
	up := map[string]any{"observed": true, "available": true, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}
	one := map[string]any{"observed": true, "available": true, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 1}
	five := map[string]any{"observed": true, "available": true, "replicas": 5, "updatedReplicas": 5, "readyReplicas": 5, "availableReplicas": 5}
	asks := func(r Report, n int32) Report { r.Asked = &n; return r }
	type numbers struct {
		Replicas, Updated, Ready, Available int64
		Progressing, Message                string
	}
	cases := map[string]struct {
		placing Placing
		reports []Report
		want    numbers
	}{
		"DividedSums":        {Placing{}, []Report{report(t, "a", true, up), report(t, "b", true, up)}, numbers{4, 4, 4, 4, "NewReplicaSetAvailable", ""}},
		"NoRoomForSome":      {Placing{Missing: 1}, []Report{report(t, "a", true, up)}, numbers{2, 2, 2, 2, "ReplicaSetUpdated", "1 of 2 replicas are placed in no cluster."}},
		"NotAllMadeYet":      {Placing{}, []Report{asks(report(t, "a", true, up), 3)}, numbers{2, 2, 2, 2, "ReplicaSetUpdated", "Being rolled out."}},
		"Duplicated":         {Placing{Duplicated: true}, []Report{report(t, "a", true, up), report(t, "b", true, up)}, numbers{2, 2, 2, 2, "NewReplicaSetAvailable", ""}},
		"DuplicatedOneLacks": {Placing{Duplicated: true}, []Report{report(t, "a", true, up), report(t, "b", true, one)}, numbers{2, 2, 1, 1, "ReplicaSetUpdated", "Being rolled out."}},
		"DuplicatedNoReport": {Placing{Duplicated: true}, []Report{report(t, "a", true, up), report(t, "b", true, nil)}, numbers{2, 0, 0, 0, "ReplicaSetUpdated", "Being rolled out."}},
		"DuplicatedOldOnes":  {Placing{Duplicated: true}, []Report{report(t, "a", true, up), report(t, "b", false, up)}, numbers{2, 0, 2, 2, "ReplicaSetUpdated", "Not yet applied in b."}},
		"MovingCountsWhatStays": {
			Placing{},
			[]Report{report(t, "a", true, one), {Cluster: "b", Leaving: true, Observed: true, Status: report(t, "b", true, up).Status}},
			numbers{4, 2, 3, 3, "ReplicaSetUpdated", "Being rolled out."},
		},
		"DuplicatedButOneIsScaledThere": {
			Placing{Duplicated: true},
			[]Report{asks(report(t, "a", true, up), 2), asks(report(t, "b", true, five), 5)},
			numbers{2, 2, 2, 2, "NewReplicaSetAvailable", ""},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			template := object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, generation: 3}, spec: {replicas: 2}}`)
			s, ok := aggregate(template, tc.placing, tc.reports, clock(t))
			if !ok {
				t.Fatal("not aggregated")
			}
			p := condition(list(s, "conditions"), "Progressing")
			got := numbers{
				number(s, "replicas"), number(s, "updatedReplicas"), number(s, "readyReplicas"), number(s, "availableReplicas"),
				text(p, "reason"), text(p, "message"),
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestAggregateWhole: a template in one cluster has the status of its copy. A template in
// several clusters has only the fields that can be combined.
func TestAggregateWhole(t *testing.T) {
	const thing = `{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 5}, status: {observedGeneration: 4}}`
	copied := func(cluster string, current bool, manifest string) Report {
		return report(t, cluster, current, Reflect(object(t, manifest)))
	}
	ready := func(status string) string {
		return `{apiVersion: example.org/v1, kind: Thing, metadata: {generation: 2}, status: {observedGeneration: 2, phase: Up, conditions: [
			{type: Ready, status: "` + status + `", reason: R, message: m, observedGeneration: 2, lastTransitionTime: "` + before + `"}]}}`
	}
	claim := func(phase string) string {
		return `{apiVersion: v1, kind: PersistentVolumeClaim, status: {phase: ` + phase + `, capacity: {storage: 1Gi}}}`
	}
	volume := func(phase string) string {
		return `{apiVersion: v1, kind: PersistentVolume, status: {phase: ` + phase + `, lastPhaseTransitionTime: "` + before + `"}}`
	}
	pod := func(phase, ready string) string {
		return `{apiVersion: v1, kind: Pod, status: {phase: ` + phase + `, conditions: [{type: Ready, status: "` + ready + `", reason: R, message: m}]}}`
	}
	condition := func(status, reason, message string, generation int64, since string) map[string]any {
		c := map[string]any{"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
		if generation >= 0 {
			c["observedGeneration"] = generation
		}
		return c
	}
	cases := map[string]struct {
		template string
		reports  []Report
		want     map[string]any // nil: nothing is written
	}{
		"CustomOnce": {thing, []Report{copied("a", true, ready("True"))}, map[string]any{
			"observedGeneration": int64(5), "phase": "Up", "conditions": []any{condition("True", "R", "m", 5, before)},
		}},
		"CustomOnceOfWhatWasBefore": {thing, []Report{copied("a", false, ready("True"))}, map[string]any{
			"observedGeneration": int64(4), "phase": "Up", "conditions": []any{condition("True", "R", "m", 0, before)},
		}},
		"CustomNotReportedYet": {thing, []Report{{Cluster: "a"}}, nil},
		"CustomTwiceTheSame": {thing, []Report{copied("a", true, ready("True")), copied("b", true, ready("True"))}, map[string]any{
			"observedGeneration": int64(5), "conditions": []any{condition("True", "R", "m", -1, now)},
		}},
		"CustomTwiceWorseCounts": {thing, []Report{copied("a", true, ready("True")), copied("b", false, ready("False"))}, map[string]any{
			"observedGeneration": int64(4), "conditions": []any{condition("False", "ClustersDiffer", "False in b; True in a", -1, now)},
		}},
		"ClaimOnce":  {claim("Pending"), []Report{copied("a", true, claim("Bound"))}, map[string]any{"phase": "Bound", "capacity": map[string]any{"storage": "1Gi"}}},
		"ClaimTwice": {claim("Pending"), []Report{copied("a", true, claim("Bound")), copied("b", true, claim("Bound"))}, map[string]any{"phase": "Bound"}},
		"ClaimLost":  {claim("Pending"), []Report{copied("a", true, claim("Bound")), copied("b", true, claim("Lost")), {Cluster: "c"}}, map[string]any{"phase": "Lost"}},
		"VolumeOnce": {volume("Pending"), []Report{copied("a", true, volume("Bound"))}, map[string]any{"phase": "Bound", "lastPhaseTransitionTime": before}},
		"VolumeTwice": {
			volume("Available"),
			[]Report{copied("a", true, volume("Bound")), copied("b", true, volume("Available"))},
			map[string]any{"phase": "Available", "lastPhaseTransitionTime": before},
		},
		"VolumeFailed":      {volume("Available"), []Report{copied("a", true, volume("Bound")), copied("b", true, volume("Failed"))}, map[string]any{"phase": "Failed"}},
		"ClaimHalf":         {claim("Pending"), []Report{copied("a", true, claim("Bound")), {Cluster: "b"}}, map[string]any{"phase": "Pending"}},
		"PodNotReportedYet": {`{apiVersion: v1, kind: Pod}`, []Report{{Cluster: "a"}, {Cluster: "b"}}, nil},
		"PodHalf": {
			`{apiVersion: v1, kind: Pod, status: {qosClass: BestEffort}}`,
			[]Report{copied("a", true, pod("Running", "True")), {Cluster: "b"}},
			map[string]any{"phase": "Pending", "qosClass": "BestEffort", "conditions": []any{condition("Unknown", "ClustersDiffer", "True in a; Unknown in b", -1, now)}},
		},
		"PodTwice": {
			`{apiVersion: v1, kind: Pod}`,
			[]Report{copied("a", true, pod("Running", "True")), copied("b", true, pod("Running", "False"))},
			map[string]any{"phase": "Running", "conditions": []any{condition("False", "ClustersDiffer", "False in b; True in a", -1, now)}},
		},
		"PodsFail": {
			`{apiVersion: v1, kind: Pod}`,
			[]Report{copied("a", true, pod("Succeeded", "False")), copied("b", true, pod("Failed", "False"))},
			map[string]any{"phase": "Failed", "conditions": []any{condition("False", "R", "m", -1, now)}},
		},
		"BudgetTwice": {
			`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}}`,
			[]Report{
				copied("a", true, `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}, status: {observedGeneration: 1, currentHealthy: 2, desiredHealthy: 1, expectedPods: 2, disruptionsAllowed: 1}}`),
				copied("b", true, `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {generation: 1}, status: {observedGeneration: 1, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1, disruptionsAllowed: 0}}`),
			},
			map[string]any{"observedGeneration": int64(1), "currentHealthy": int64(3), "desiredHealthy": int64(2), "expectedPods": int64(3), "disruptionsAllowed": int64(1)},
		},
		"CronJobTwice": {
			`{apiVersion: batch/v1, kind: CronJob}`,
			[]Report{report(t, "a", true, map[string]any{"lastScheduleTime": before}), report(t, "b", true, map[string]any{"lastScheduleTime": now})},
			map[string]any{"lastScheduleTime": now},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			template := object(t, tc.template)
			got, ok := aggregate(template, Placing{}, tc.reports, clock(t))
			if ok != (tc.want != nil) {
				t.Fatalf("aggregated: %v, want %v", ok, tc.want != nil)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestBrief(t *testing.T) {
	got := Brief(map[string]any{"observed": true, "status": map[string]any{
		"phase": "Up", "secretWords": "many", "conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "R", "message": "long"}},
	}})
	want := map[string]any{"observed": true, "status": map[string]any{
		"phase": "Up", "conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "R"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAvailability(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest         string
		asked, available int32
	}{
		"Controller":         {`{apiVersion: v1, kind: ReplicationController, spec: {replicas: 3}, status: {availableReplicas: 2}}`, 3, 2},
		"Custom":             {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {availableReplicas: 1}}`, 3, 1},
		"CustomReady":        {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {readyReplicas: 2}}`, 3, 2},
		"CustomHealthy":      {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {conditions: [{type: Ready, status: "True"}]}}`, 3, 3},
		"CustomUnhealthy":    {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {conditions: [{type: Ready, status: "False"}]}}`, 3, 0},
		"CustomNotJudged":    {`{apiVersion: example.org/v1, kind: Thing}`, 1, 1},
		"CustomTooMany":      {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 4294967297}}`, 1, 1},
		"CustomManyServe":    {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {availableReplicas: 4294967295}}`, 3, 3},
		"CustomFewerServe":   {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {availableReplicas: -1}}`, 3, 0},
		"ReplicasNotCounted": {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}}`, 3, 3},
		"ClaimPending":       {`{apiVersion: v1, kind: PersistentVolumeClaim, status: {phase: Pending}}`, 1, 0},
		"ConfigMap":          {`{apiVersion: v1, kind: ConfigMap}`, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if asked, available := Availability(object(t, tc.manifest)); asked != tc.asked || available != tc.available {
				t.Errorf("%d of %d, want %d of %d", available, asked, tc.available, tc.asked)
			}
		})
	}
}

// TestPods: all existing pods count, whether they are ready or not.
func TestPods(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		want     int32
	}{
		"Deployment":    {`{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 3}, status: {replicas: 4, availableReplicas: 1}}`, 4},
		"NotYet":        {`{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 3}}`, 0},
		"Job":           {`{apiVersion: batch/v1, kind: Job, spec: {parallelism: 5}, status: {active: 2, succeeded: 2, failed: 1}}`, 5},
		"Custom":        {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {replicas: 2}}`, 2},
		"CustomReady":   {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {readyReplicas: 1}}`, 1},
		"CustomWrong":   {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {availableReplicas: -2, replicas: -1}}`, 0},
		"CustomSilent":  {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}, status: {phase: Up}}`, 0},
		"Pod":           {`{apiVersion: v1, kind: Pod}`, 1},
		"WithoutCopies": {`{apiVersion: v1, kind: ConfigMap}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Pods(object(t, tc.manifest)); got != tc.want {
				t.Errorf("%d pods, want %d", got, tc.want)
			}
		})
	}
}

func TestDivisibleBy(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest string
		ok, why  bool
	}{
		"Deployment":      {`{apiVersion: apps/v1, kind: Deployment}`, true, false},
		"Custom":          {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 3}}`, true, false},
		"CustomWithout":   {`{apiVersion: example.org/v1, kind: Thing}`, false, false},
		"CustomOtherwise": {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: {min: 1}}}`, false, true},
		"CustomTooMany":   {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: 4294967297}}`, false, true},
		"CustomTooFew":    {`{apiVersion: example.org/v1, kind: Thing, spec: {replicas: -1}}`, false, true},
		"Pod":             {`{apiVersion: v1, kind: Pod}`, true, false},
		"ConfigMap":       {`{apiVersion: v1, kind: ConfigMap}`, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if ok, why := DivisibleBy(object(t, tc.manifest)); ok != tc.ok || (why != "") != tc.why {
				t.Errorf("%v, %q; want %v, a reason: %v", ok, why, tc.ok, tc.why)
			}
		})
	}
}

func TestAggregateOthers(t *testing.T) {
	cases := map[string]struct {
		template string
		items    []Report
		want     map[string]any
	}{
		"StatefulSet": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {generation: 1}}`,
			[]Report{report(t, "a", true, map[string]any{"observed": true, "replicas": 1, "readyReplicas": 1})},
			map[string]any{"observedGeneration": int64(1), "replicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(0)},
		},
		"DaemonSet": {
			`{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 1}}`,
			[]Report{
				report(t, "a", true, map[string]any{"observed": true, "desiredNumberScheduled": 2, "numberReady": 1}),
				report(t, "b", true, map[string]any{"observed": true, "desiredNumberScheduled": 3, "numberReady": 3}),
			},
			map[string]any{
				"observedGeneration": int64(1), "currentNumberScheduled": int64(0), "numberMisscheduled": int64(0),
				"desiredNumberScheduled": int64(5), "numberReady": int64(4),
			},
		},
		"ServiceAddressesOnce": {
			`{apiVersion: v1, kind: Service, spec: {type: LoadBalancer}}`,
			[]Report{
				report(t, "b", true, map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.2"}, map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}}}}),
				report(t, "a", true, map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}, map[string]any{"hostname": "lb.example.org"}}}}),
				report(t, "c", true, nil),
			},
			map[string]any{"loadBalancer": map[string]any{"ingress": []any{
				map[string]any{"ip": "10.0.0.1", "ipMode": "VIP"}, map[string]any{"hostname": "lb.example.org"}, map[string]any{"ip": "10.0.0.2", "ipMode": "VIP"},
			}}},
		},
		"ServiceOfAnotherType": {
			`{apiVersion: v1, kind: Service, spec: {type: ClusterIP}}`,
			[]Report{report(t, "a", true, map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1"}}}})},
			map[string]any{"loadBalancer": map[string]any{}},
		},
		"JobWorking": {
			`{apiVersion: batch/v1, kind: Job, status: {succeeded: 2, startTime: "2026-01-01T00:00:05Z"}}`,
			[]Report{
				report(t, "a", true, map[string]any{"active": 1, "ready": 1, "startTime": "2026-01-01T00:00:03Z"}),
				report(t, "b", true, map[string]any{"succeeded": 1, "startTime": "2026-01-01T00:00:04Z", "completionTime": "2026-01-01T00:00:08Z"}),
			},
			map[string]any{"active": int64(1), "ready": int64(1), "succeeded": int64(2), "startTime": "2026-01-01T00:00:05Z"},
		},
		"JobFailsSomewhere": {
			`{apiVersion: batch/v1, kind: Job, status: {startTime: "2026-01-01T00:00:05Z"}}`,
			[]Report{
				report(t, "a", true, map[string]any{"failed": 1, "failure": "BackoffLimitExceeded", "startTime": "2026-01-01T00:00:05Z"}),
				report(t, "b", true, map[string]any{"active": 1, "ready": 1, "startTime": "2026-01-01T00:00:06Z"}),
				report(t, "c", true, map[string]any{"succeeded": 1, "completionTime": "2026-01-01T00:00:08Z"}),
			},
			map[string]any{
				"active": int64(1), "ready": int64(1), "succeeded": int64(1), "failed": int64(1), "startTime": "2026-01-01T00:00:05Z",
				"conditions": []any{jobCondition("FailureTarget", now)},
			},
		},
		"JobFailsBesideAClusterThatSaysNothing": {
			`{apiVersion: batch/v1, kind: Job, status: {startTime: "2026-01-01T00:00:05Z"}}`,
			[]Report{report(t, "a", true, map[string]any{"failed": 1, "failure": "BackoffLimitExceeded"}), report(t, "c", false, nil)},
			map[string]any{"failed": int64(1), "startTime": "2026-01-01T00:00:05Z", "conditions": []any{jobCondition("FailureTarget", now)}},
		},
		"JobFailed": {
			`{apiVersion: batch/v1, kind: Job, status: {failed: 1, startTime: "2026-01-01T00:00:05Z", conditions: [
				{type: FailureTarget, status: "True", reason: BackoffLimitExceeded, message: Failed in a., lastTransitionTime: "2026-01-01T00:00:07Z", lastProbeTime: "2026-01-01T00:00:07Z"}]}}`,
			[]Report{
				report(t, "a", true, map[string]any{"failed": 1, "failure": "BackoffLimitExceeded", "startTime": "2026-01-01T00:00:05Z"}),
				report(t, "b", true, map[string]any{"succeeded": 1, "completionTime": "2026-01-01T00:00:08Z"}),
			},
			map[string]any{"succeeded": int64(1), "failed": int64(1), "startTime": "2026-01-01T00:00:05Z", "conditions": []any{
				jobCondition("FailureTarget", "2026-01-01T00:00:07Z"), jobCondition("Failed", now),
			}},
		},
		// As with Failed, the API server does not allow removing FailureTarget.
		"JobFailedInAClusterThatLeft": {
			`{apiVersion: batch/v1, kind: Job, status: {failed: 1, startTime: "2026-01-01T00:00:05Z", conditions: [
				{type: FailureTarget, status: "True", reason: BackoffLimitExceeded, message: Failed in a., lastTransitionTime: "2026-01-01T00:00:07Z", lastProbeTime: "2026-01-01T00:00:07Z"}]}}`,
			[]Report{
				{Cluster: "a", Leaving: true},
				report(t, "b", true, map[string]any{"succeeded": 1, "completionTime": "2026-01-01T00:00:08Z"}),
			},
			map[string]any{"succeeded": int64(1), "failed": int64(1), "startTime": "2026-01-01T00:00:05Z", "conditions": []any{
				jobCondition("FailureTarget", "2026-01-01T00:00:07Z"), jobCondition("Failed", now),
			}},
		},
		"JobOfAnEarlierVersionFailed": {
			`{apiVersion: batch/v1, kind: Job, status: {startTime: "2026-01-01T00:00:05Z"}}`,
			[]Report{report(t, "a", false, map[string]any{"failed": 1, "failure": "BackoffLimitExceeded"}), report(t, "b", true, nil)},
			map[string]any{"failed": int64(1), "startTime": "2026-01-01T00:00:05Z"},
		},
		"JobFinishedStaysFinished": {
			`{apiVersion: batch/v1, kind: Job, status: {succeeded: 2, conditions: [{type: Complete, status: "True"}]}}`,
			[]Report{report(t, "c", true, map[string]any{"active": 1})},
			map[string]any{"succeeded": int64(2), "conditions": []any{map[string]any{"type": "Complete", "status": "True"}}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := aggregate(object(t, tc.template), Placing{}, tc.items, clock(t))
			if !ok {
				t.Fatal("not aggregated")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, ok := Aggregate(object(t, `{apiVersion: v1, kind: ConfigMap}`), Placing{}, nil); ok {
		t.Error("a ConfigMap's status was aggregated")
	}
}

// jobCondition returns a condition of the hub's status for a Job that failed in cluster a.
func jobCondition(kind, at string) map[string]any {
	return map[string]any{"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "Failed in a.", "lastTransitionTime": at, "lastProbeTime": at}
}

// FuzzInterpret: no decoded JSON causes a panic, and reading an object does not change it.
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
		var reflected map[string]any
		_ = json.Unmarshal(status, &reflected) // anything but an object counts as no report
		for _, placing := range []Placing{{}, {Duplicated: true}, {Missing: 1}} {
			one := Report{Cluster: "a", Current: true, Observed: Observed(reflected), Status: reflected}
			Aggregate(o, placing, []Report{one})
			Aggregate(o, placing, []Report{one, {Cluster: "b"}})
		}
		Brief(reflected)
		Availability(o)
		if diff := cmp.Diff(original.Object, o.Object); diff != "" {
			t.Errorf("changed by being read:\n%s", diff)
		}
		if err := SetReplicas(o, 3); err == nil {
			if n := Replicas(o); n == nil || *n != 3 {
				t.Errorf("replicas are %v after they were set to 3", n)
			}
		}
	})
}
