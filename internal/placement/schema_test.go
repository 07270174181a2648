package placement

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

const (
	policyHead   = "apiVersion: policy.orrery.dev/v1alpha1\nkind: PropagationPolicy\nspec:\n"
	selectAll    = "  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]\n"
	overrideHead = "apiVersion: policy.orrery.dev/v1alpha1\nkind: OverridePolicy\nspec:\n"
	bindingHead  = "apiVersion: work.orrery.dev/v1alpha2\nkind: ResourceBinding\nspec:\n"
	taintHead    = "apiVersion: policy.orrery.dev/v1alpha1\nkind: ClusterTaintPolicy\nspec:\n"
	bindingRefs  = "  resource: {apiVersion: apps/v1, kind: Deployment, name: web}\n  policyRef: {kind: PropagationPolicy, name: p}\n"
)

// TestSchema: invalid input is refused with the path of the field; similar valid input is accepted.
func TestSchema(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(testenv.Config(0), client.Options{
		Scheme: newScheme(), FieldOwner: "test", FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, testenv.Config(0))
	placement := func(s string) string { return policyHead + selectAll + "  placement: " + s + "\n" }
	overriders := func(s string) string { return overrideHead + "  overrideRules: [{overriders: " + s + "}]\n" }
	purge := func(mode string) string {
		return policyHead + selectAll + "  failover: {cluster: {purgeMode: " + mode + "}}\n"
	}
	condition := func(s string) string {
		return taintHead + "  addOnConditions: [{" + s + "}]\n  taints: [{key: failed, effect: NoSchedule}]\n"
	}
	taints := func(s string) string {
		return taintHead + "  addOnConditions: [{conditionType: Ready, operator: NotIn, statusValues: ['True']}]\n  taints: " + s + "\n"
	}
	task := func(s string) string {
		return bindingHead + bindingRefs + "  clusters: [{name: oak}]\n  gracefulEvictionTasks: [{fromCluster: pine, " + s + "}]\n"
	}

	cases := map[string]struct {
		manifest string
		want     []string // parts of the error; none: accepted
	}{
		"Smallest": {manifest: policyHead + selectAll},
		"Everything": {manifest: policyHead + `
  resourceSelectors:
  - {apiVersion: apps/v1, kind: Deployment, namespace: shop, name: web}
  - {apiVersion: v1, kind: Service, labelSelector: {matchLabels: {app: web}}}
  priority: -3
  conflictResolution: Overwrite
  preserveResourcesOnDeletion: true
  placement:
    clusterAffinity:
      clusterNames: [oak, pine]
      exclude: [elm]
      labelSelector: {matchExpressions: [{key: env, operator: In, values: [prod]}]}
      fieldSelector: {matchExpressions: [{key: zone, operator: Exists}]}
    clusterTolerations: [{key: gpu, operator: Exists}]
    replicaScheduling:
      replicaSchedulingType: Divided
      replicaDivisionPreference: Weighted
      weightPreference: {staticWeightList: [{targetCluster: {clusterNames: [oak]}, weight: 2}]}
`},
		"NoSelectors":      {manifest: policyHead + "  placement: {}\n", want: []string{"spec.resourceSelectors"}},
		"EmptySelectors":   {manifest: policyHead + "  resourceSelectors: []\n", want: []string{"spec.resourceSelectors"}},
		"UnknownField":     {manifest: policyHead + selectAll + "  placemnt: {}\n", want: []string{"spec.placemnt"}},
		"UnknownDeepField": {manifest: placement("{clusterAffinity: {clusterName: [oak]}}"), want: []string{"spec.placement.clusterAffinity.clusterName"}},
		"NoKind":           {manifest: policyHead + "  resourceSelectors: [{apiVersion: v1}]\n", want: []string{"spec.resourceSelectors[0].kind"}},
		"NameAndLabels": {
			manifest: policyHead + "  resourceSelectors: [{apiVersion: v1, kind: Service, name: a, labelSelector: {}}]\n",
			want:     []string{"spec.resourceSelectors[0]", "name and labelSelector exclude each other"},
		},
		"OwnKind": {
			manifest: policyHead + "  resourceSelectors: [{apiVersion: cluster.orrery.dev/v1alpha1, kind: Cluster}]\n",
			want:     []string{"spec.resourceSelectors[0]", "cannot be placed"},
		},
		"ConflictResolution": {manifest: policyHead + selectAll + "  conflictResolution: Force\n", want: []string{"spec.conflictResolution", "Overwrite"}},
		"PriorityIsText":     {manifest: policyHead + selectAll + "  priority: high\n", want: []string{"spec.priority"}},
		"SchedulingType": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Split}}"),
			want:     []string{"spec.placement.replicaScheduling.replicaSchedulingType", "Divided"},
		},
		"EveryPlacementField": {manifest: policyHead + selectAll + `  placement:
    clusterAffinities:
    - affinityName: ours
      clusterNames: [oak]
      overflowAffinities: [{affinityName: cloud, labelSelector: {matchLabels: {env: cloud}}}]
    - affinityName: elsewhere
    spreadConstraints:
    - {spreadByField: cluster, minGroups: 2, maxGroups: 5}
    - {spreadByField: region, minGroups: 2}
    - {spreadByField: zone, minGroups: 9}
    - {spreadByField: provider, maxGroups: 1}
    - {spreadByLabel: rack}
    workloadAffinity: {affinity: {groupByLabelKey: app}, antiAffinity: {groupByLabelKey: tier}}
    replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Aggregated}
`},
		"AggregatedOfDuplicated": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Duplicated, replicaDivisionPreference: Aggregated}}"),
			want:     []string{"spec.placement.replicaScheduling", "replicaDivisionPreference Aggregated needs replicaSchedulingType Divided"},
		},
		"AggregatedWeights": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Aggregated, weightPreference: {dynamicWeight: AvailableReplicas}}}"),
			want:     []string{"spec.placement.replicaScheduling", "Aggregated has no weights"},
		},
		"BothAffinities": {
			manifest: placement("{clusterAffinity: {}, clusterAffinities: [{affinityName: a}]}"),
			want:     []string{"spec.placement", "clusterAffinity and clusterAffinities exclude each other"},
		},
		"GroupWithoutName": {manifest: placement("{clusterAffinities: [{clusterNames: [oak]}]}"), want: []string{"spec.placement.clusterAffinities[0].affinityName"}},
		"GroupsOfOneName": {
			manifest: placement("{clusterAffinities: [{affinityName: a}, {affinityName: a}]}"),
			want:     []string{"spec.placement.clusterAffinities", "every group needs an affinityName of its own"},
		},
		"OverflowOfCopies": {
			manifest: placement("{clusterAffinities: [{affinityName: a, overflowAffinities: [{affinityName: b}]}]}"),
			want:     []string{"spec.placement", "overflowAffinities needs replicas that are divided by free capacity"},
		},
		"OverflowOfWeights": {
			manifest: placement("{clusterAffinities: [{affinityName: a, overflowAffinities: [{affinityName: b}]}], replicaScheduling: {replicaSchedulingType: Divided}}"),
			want:     []string{"spec.placement", "overflowAffinities needs replicas that are divided by free capacity"},
		},
		"OverflowByCapacity": {manifest: placement("{clusterAffinities: [{affinityName: a, overflowAffinities: [{affinityName: b}]}], replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {dynamicWeight: AvailableReplicas}}}")},
		"SpreadByBoth": {
			manifest: placement("{spreadConstraints: [{spreadByField: region, spreadByLabel: rack}]}"),
			want:     []string{"spec.placement.spreadConstraints[0]", "spreadByField and spreadByLabel exclude each other"},
		},
		"SpreadByNothing": {manifest: placement("{spreadConstraints: [{maxGroups: 2}]}")},
		"SpreadField":     {manifest: placement("{spreadConstraints: [{spreadByField: continent}]}"), want: []string{"spec.placement.spreadConstraints[0].spreadByField", "region"}},
		"SpreadNegative":  {manifest: placement("{spreadConstraints: [{minGroups: -1}]}"), want: []string{"spec.placement.spreadConstraints[0].minGroups"}},
		"SpreadMinOverMax": {
			manifest: placement("{spreadConstraints: [{spreadByField: region, minGroups: 3, maxGroups: 2}]}"),
			want:     []string{"spec.placement.spreadConstraints[0]", "minGroups is greater than maxGroups"},
		},
		"SpreadTwice": {
			manifest: placement("{spreadConstraints: [{maxGroups: 2}, {spreadByField: cluster, minGroups: 1}]}"),
			want:     []string{"spec.placement.spreadConstraints", "there is one constraint for each field and each label"},
		},
		"SpreadTooFewClusters": {
			manifest: placement("{spreadConstraints: [{spreadByField: cluster, maxGroups: 2}, {spreadByField: region, minGroups: 3}]}"),
			want:     []string{"spec.placement.spreadConstraints", "each group needs a cluster of its own"},
		},
		"SpreadZonesOfFewClusters": {manifest: placement("{spreadConstraints: [{spreadByField: cluster, maxGroups: 2}, {spreadByField: zone, minGroups: 3}]}")},
		"TogetherAndApart": {
			manifest: placement("{workloadAffinity: {affinity: {groupByLabelKey: app}, antiAffinity: {groupByLabelKey: app}}}"),
			want:     []string{"spec.placement.workloadAffinity", "by the same label contradict each other"},
		},
		"NoGroupKey": {manifest: placement("{workloadAffinity: {affinity: {}}}"), want: []string{"spec.placement.workloadAffinity.affinity.groupByLabelKey"}},
		"WeightsOfDuplicated": {
			manifest: placement("{replicaScheduling: {weightPreference: {dynamicWeight: AvailableReplicas}}}"),
			want:     []string{"spec.placement.replicaScheduling", "weightPreference needs replicaSchedulingType Divided"},
		},
		"BothWeights": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {dynamicWeight: AvailableReplicas, staticWeightList: [{targetCluster: {}, weight: 1}]}}}"),
			want:     []string{"weightPreference", "set one of staticWeightList and dynamicWeight"},
		},
		"NeitherWeights": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {}}}"),
			want:     []string{"weightPreference", "set one of staticWeightList and dynamicWeight"},
		},
		"WeightZero": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {staticWeightList: [{targetCluster: {}, weight: 0}]}}}"),
			want:     []string{"staticWeightList[0].weight"},
		},
		"DynamicWeight": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {dynamicWeight: Free}}}"),
			want:     []string{"weightPreference.dynamicWeight", "AvailableReplicas"},
		},
		"FieldKey": {
			manifest: placement("{clusterAffinity: {fieldSelector: {matchExpressions: [{key: country, operator: Exists}]}}}"),
			want:     []string{"fieldSelector.matchExpressions[0].key", "provider"},
		},
		"FieldOperator": {
			manifest: placement("{clusterAffinity: {fieldSelector: {matchExpressions: [{key: zone, operator: Is}]}}}"),
			want:     []string{"fieldSelector.matchExpressions[0].operator"},
		},
		"FieldWithoutValues": {
			manifest: placement("{clusterAffinity: {fieldSelector: {matchExpressions: [{key: zone, operator: In}]}}}"),
			want:     []string{"fieldSelector.matchExpressions[0]", "values are required"},
		},
		"ClusterNameTwice": {manifest: placement("{clusterAffinity: {clusterNames: [oak, oak]}}"), want: []string{"clusterAffinity.clusterNames[1]"}},
		"ClusterPolicy": {
			manifest: strings.Replace(placement("{replicaScheduling: {weightPreference: {dynamicWeight: AvailableReplicas}}}"), "kind: Prop", "kind: ClusterProp", 1),
			want:     []string{"spec.placement.replicaScheduling"},
		},

		"Override": {manifest: overriders("{imageOverrider: [{component: Tag, operator: replace, value: v2}], plaintext: [{path: /spec/replicas, operator: replace, value: 3}]}")},
		"NoRules":  {manifest: overrideHead + "  overrideRules: []\n", want: []string{"spec.overrideRules", "overrideRules is required"}},
		"OldWayWithoutChanges": {
			manifest: overrideHead + "  overriders: {}\n", want: []string{"spec.overrideRules", "overrideRules is required"},
		},
		"OldOverridersBesideRules": {
			manifest: overrideHead + "  overriders: {labelsOverrider: [{operator: remove, value: {a: b}}]}\n  overrideRules: [{overriders: {imageOverrider: [{component: Tag, operator: remove}]}}]\n",
			want:     []string{"spec.overriders", "would be ignored beside overrideRules"},
		},
		"OldTargetClusterBesideRules": {
			manifest: overrideHead + "  targetCluster: {clusterNames: [oak]}\n  overrideRules: [{overriders: {imageOverrider: [{component: Tag, operator: remove}]}}]\n",
			want:     []string{"spec.targetCluster", "would be ignored beside overrideRules"},
		},
		"OldTargetClusterBesideRulesOfAClusterPolicy": {
			manifest: strings.Replace(overrideHead, "kind: Over", "kind: ClusterOver", 1) + "  targetCluster: {clusterNames: [oak]}\n  overrideRules: [{overriders: {imageOverrider: [{component: Tag, operator: remove}]}}]\n",
			want:     []string{"spec.targetCluster", "would be ignored beside overrideRules"},
		},
		"SuspendedTwice": {
			manifest: policyHead + selectAll + "  suspension: {dispatching: true, dispatchingOnClusters: {clusterNames: [oak]}}\n",
			want:     []string{"spec.suspension", "set one of dispatching and dispatchingOnClusters"},
		},
		"ActivationPreference": {manifest: policyHead + selectAll + "  activationPreference: Eager\n", want: []string{"spec.activationPreference", "Lazy"}},
		"NoOverriders":         {manifest: overriders("{}"), want: []string{"spec.overrideRules[0].overriders"}},
		"UnknownOverrider":     {manifest: overriders("{image: []}"), want: []string{"spec.overrideRules[0].overriders.image"}},
		"ImageComponent":       {manifest: overriders("{imageOverrider: [{component: Digest, operator: remove}]}"), want: []string{"overriders.imageOverrider[0].component"}},
		"ImageOperator":        {manifest: overriders("{imageOverrider: [{component: Tag, operator: set, value: a}]}"), want: []string{"overriders.imageOverrider[0].operator"}},
		"ImageWithoutValue":    {manifest: overriders("{imageOverrider: [{component: Tag, operator: replace}]}"), want: []string{"overriders.imageOverrider[0]", "value is required"}},
		"CommandReplace":       {manifest: overriders("{commandOverrider: [{containerName: a, operator: replace, value: [b]}]}"), want: []string{"overriders.commandOverrider[0]", "add or remove"}},
		"LabelsWithoutValue":   {manifest: overriders("{labelsOverrider: [{operator: add, value: {}}]}"), want: []string{"overriders.labelsOverrider[0].value"}},
		"FieldJSONAndYAML": {
			manifest: overriders("{fieldOverrider: [{fieldPath: /data/a, json: [{subPath: /a, operator: remove}], yaml: [{subPath: /a, operator: remove}]}]}"),
			want:     []string{"overriders.fieldOverrider[0]", "one of json and yaml"},
		},
		"PlaintextPath": {manifest: overriders("{plaintext: [{path: spec.replicas, operator: remove}]}"), want: []string{"overriders.plaintext[0].path"}},

		"Binding":             {manifest: bindingHead + bindingRefs + "  replicas: 3\n  clusters: [{name: oak, replicas: 1}, {name: pine, replicas: 2}]\n"},
		"BindingClusterTwice": {manifest: bindingHead + bindingRefs + "  clusters: [{name: oak}, {name: oak}]\n", want: []string{"spec.clusters[1]"}},
		"BindingReplicas":     {manifest: bindingHead + bindingRefs + "  clusters: [{name: oak, replicas: -1}]\n", want: []string{"spec.clusters[0].replicas"}},
		"BindingWithoutRefs":  {manifest: bindingHead + "  clusters: []\n", want: []string{"spec.resource", "spec.policyRef"}},
		"BindingPolicyKind":   {manifest: bindingHead + strings.Replace(bindingRefs, "PropagationPolicy", "Policy", 1), want: []string{"spec.policyRef.kind"}},
		"BindingUnknownField": {manifest: bindingHead + bindingRefs + "  cluster: []\n", want: []string{"spec.cluster"}},
		"BindingEviction": {
			manifest: task("reason: TaintUntolerated, message: 'taint gpu:NoExecute', purgeMode: Never, creationTimestamp: '2026-01-01T00:00:00Z'"),
		},
		"BindingEvictionPurge":  {manifest: task("purgeMode: Graciously"), want: []string{"spec.gracefulEvictionTasks[0].purgeMode", "Gracefully"}},
		"BindingEvictionReason": {manifest: task("reason: " + strings.Repeat("a", 33)), want: []string{"spec.gracefulEvictionTasks[0].reason"}},
		"BindingEvictionTime":   {manifest: task("creationTimestamp: yesterday"), want: []string{"spec.gracefulEvictionTasks[0].creationTimestamp"}},

		"PurgeGracefully":      {manifest: purge("Gracefully")},
		"PurgeDirectly":        {manifest: purge("Directly")},
		"PurgeNever":           {manifest: purge("Never")},
		"PurgeGraciously":      {manifest: purge("Graciously")},
		"PurgeImmediately":     {manifest: purge("Immediately")},
		"PurgeEmpty":           {manifest: purge("''")},
		"PurgeOther":           {manifest: purge("Later"), want: []string{"spec.failover.cluster.purgeMode", "Gracefully"}},
		"PurgeOfClusterPolicy": {manifest: strings.Replace(purge("Later"), "kind: Prop", "kind: ClusterProp", 1), want: []string{"spec.failover.cluster.purgeMode"}},

		"TaintPolicy": {manifest: taintHead + `
  targetClusters:
    clusterNames: [oak, pine]
    exclude: [elm]
    labelSelector: {matchLabels: {env: prod}}
    fieldSelector: {matchExpressions: [{key: region, operator: In, values: [eu]}]}
  addOnConditions:
  - {conditionType: Ready, operator: NotIn, statusValues: ['True']}
  - {conditionType: Joined, operator: In, statusValues: ['True', Unknown]}
  removeOnConditions:
  - {conditionType: Reachable, operator: In, statusValues: ['True']}
  taints:
  - {key: cluster.orrery.dev/not-ready, effect: NoSchedule}
  - {key: cluster.orrery.dev/not-ready, effect: NoExecute, value: v1.2_a-b}
`},
		"TaintPolicyWithoutConditions": {manifest: taintHead + "  taints: [{key: failed, effect: NoExecute}]\n"},
		"TaintPolicyThatOnlyRemoves": {
			manifest: taintHead + "  removeOnConditions: [{conditionType: Ready, operator: In, statusValues: ['True']}]\n  taints: [{key: failed, effect: NoExecute}]\n",
		},
		"TaintPolicyUnknownField":  {manifest: taintHead + "  taint: []\n", want: []string{"spec.taint"}},
		"TaintPolicyWithoutTaints": {manifest: taintHead + "  targetClusters: {}\n", want: []string{"spec.taints"}},
		"TaintPolicyEmptyTaints":   {manifest: taints("[]"), want: []string{"spec.taints"}},
		"TaintOfTheHub": {
			manifest: condition("conditionType: Mirrored, operator: NotIn, statusValues: ['True']"),
			want:     []string{"spec.addOnConditions[0].conditionType", "a ClusterTaintPolicy is about the cluster and not about the hub"},
		},
		"TaintRemovedByTheHub": {
			manifest: taintHead + "  removeOnConditions: [{conditionType: APIsComplete, operator: In, statusValues: ['True']}]\n  taints: [{key: failed, effect: NoExecute}]\n",
			want:     []string{"spec.removeOnConditions[0].conditionType", "conditionType is Ready, Reachable or Joined"},
		},
		"TaintWithoutType":     {manifest: condition("operator: In, statusValues: ['True']"), want: []string{"spec.addOnConditions[0].conditionType"}},
		"TaintOperator":        {manifest: condition("conditionType: Ready, operator: Exists, statusValues: ['True']"), want: []string{"spec.addOnConditions[0].operator", "NotIn"}},
		"TaintStatus":          {manifest: condition("conditionType: Ready, operator: In, statusValues: [Maybe]"), want: []string{"spec.addOnConditions[0].statusValues[0]", "Unknown"}},
		"TaintWithoutStatuses": {manifest: condition("conditionType: Ready, operator: NotIn, statusValues: []"), want: []string{"spec.addOnConditions[0].statusValues"}},
		"TaintStatusTwice": {
			manifest: condition("conditionType: Ready, operator: In, statusValues: ['False', 'False']"), want: []string{"spec.addOnConditions[0].statusValues[1]"},
		},
		"TaintWithoutEffect": {manifest: taints("[{key: failed}]"), want: []string{"spec.taints[0].effect"}},
		"TaintEffect":        {manifest: taints("[{key: failed, effect: PreferNoSchedule}]"), want: []string{"spec.taints[0].effect", "NoExecute"}},
		"TaintWithoutKey":    {manifest: taints("[{effect: NoSchedule}]"), want: []string{"spec.taints[0].key"}},
		"TaintKey":           {manifest: taints("[{key: 'not ready', effect: NoSchedule}]"), want: []string{"spec.taints[0].key", "such as example.org/maintenance"}},
		"TaintKeyEmpty":      {manifest: taints("[{key: '', effect: NoSchedule}]"), want: []string{"spec.taints[0].key", "such as maintenance"}},
		"TaintKeyDomain":     {manifest: taints("[{key: a..b/c, effect: NoSchedule}]"), want: []string{"spec.taints[0].key", "a domain and a name"}},
		"TaintKeyTooLong":    {manifest: taints("[{key: " + strings.Repeat("a", 64) + ", effect: NoSchedule}]"), want: []string{"spec.taints[0].key"}},
		"TaintValue":         {manifest: taints("[{key: failed, effect: NoSchedule, value: 'a b'}]"), want: []string{"spec.taints[0].value", "begins and ends with a letter or digit"}},
		"TaintValueEmpty":    {manifest: taints("[{key: failed, effect: NoSchedule, value: ''}]")},
		"TaintTwice": {
			manifest: taints("[{key: failed, effect: NoSchedule}, {key: failed, effect: NoSchedule, value: b}]"), want: []string{"spec.taints[1]", "Duplicate value"},
		},
		"TaintKeyWithTwoEffects": {manifest: taints("[{key: failed, effect: NoSchedule}, {key: failed, effect: NoExecute}]")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := create(t, c, namespace, tc.manifest)
			if len(tc.want) == 0 {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

// TestSchedulePriorityNamesAClass: a priority needs the name of a PriorityClass.
func TestSchedulePriorityNamesAClass(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(testenv.Config(0), client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, testenv.Config(0))
	for name, tc := range map[string]struct {
		says policyv1alpha1.SchedulePriority
		want string // of the refusal; empty: accepted
	}{
		"Both":        {policyv1alpha1.SchedulePriority{PriorityClassSource: policyv1alpha1.KubePriorityClass, PriorityClassName: "high"}, ""},
		"Neither":     {policyv1alpha1.SchedulePriority{}, ""},
		"NoName":      {policyv1alpha1.SchedulePriority{PriorityClassSource: policyv1alpha1.KubePriorityClass}, "go together"},
		"NoSource":    {policyv1alpha1.SchedulePriority{PriorityClassName: "high"}, "go together"},
		"OtherSource": {policyv1alpha1.SchedulePriority{PriorityClassSource: "PodPriorityClass", PriorityClassName: "high"}, "Unsupported value"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &policyv1alpha1.PropagationPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"},
				Spec:       policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{deployments()}, SchedulePriority: &tc.says},
			}
			err := c.Create(t.Context(), p, client.DryRunAll)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestKarmadaFields: fields of Karmada that Orrery does not support are refused with a message that
// names them. This holds for clients with strict validation, such as kubectl, and without, such as
// client-go. Values that equal the default behaviour are accepted.
func TestKarmadaFields(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, testenv.Config(0))
	policy := func(s string) string { return policyHead + selectAll + "  " + s + "\n" }
	placement := func(s string) string { return policy("placement: {" + s + "}") }
	override := func(s string) string {
		return overrideHead + "  overrideRules: [{overriders: {imageOverrider: [{component: Tag, operator: remove}]}}]\n  " + s + "\n"
	}
	cluster := func(s string) string {
		return "apiVersion: cluster.orrery.dev/v1alpha1\nkind: Cluster\nspec: {apiEndpoint: 'https://10.0.0.1:6443', secretRef: {namespace: a, name: b}, " + s + "}\n"
	}
	cases := map[string]struct {
		manifest string
		refused  string // the field; empty: accepted
	}{
		"PropagateDeps":            {policy("propagateDeps: true"), ""},
		"PropagateDepsOff":         {policy("propagateDeps: false"), ""},
		"Association":              {policy("association: true"), ""},
		"AssociationOff":           {policy("association: false"), ""},
		"DependentOverrides":       {policy("dependentOverrides: [a]"), ""},
		"NoDependentOverrides":     {policy("dependentOverrides: []"), ""},
		"SchedulerName":            {policy("schedulerName: mine"), "spec.schedulerName"},
		"DefaultScheduler":         {policy("schedulerName: default-scheduler"), ""},
		"PreemptionNever":          {policy("preemption: Never"), ""},
		"PreemptionAlways":         {policy("preemption: Always"), ""},
		"FailoverOfApplications":   {policy("failover: {application: {decisionConditions: {tolerationSeconds: 120}, purgeMode: Graciously, statePreservation: {rules: [{aliasLabelName: a, jsonPath: '{.b}'}]}}}"), "spec.failover.application"},
		"FailoverOfBoth":           {policy("failover: {application: {}, cluster: {purgeMode: Never}}"), "spec.failover.application"},
		"FailoverWithState":        {policy("failover: {cluster: {purgeMode: Directly, statePreservation: {rules: [{aliasLabelName: a, jsonPath: '{.b}'}]}}}"), "spec.failover.cluster.statePreservation"},
		"FailoverWithoutState":     {policy("failover: {cluster: {statePreservation: {rules: []}}}"), ""},
		"FailoverOfClusters":       {policy("failover: {cluster: {purgeMode: Directly}}"), ""},
		"FailoverByDefault":        {policy("failover: {cluster: {}}"), ""},
		"NoFailover":               {policy("failover: {}"), ""},
		"ActivationPreference":     {policy("activationPreference: Lazy"), ""},
		"NoActivationPreference":   {policy("activationPreference: ''"), ""},
		"Suspension":               {policy("suspension: {dispatching: true}"), ""},
		"SuspensionInClusters":     {policy("suspension: {dispatchingOnClusters: {clusterNames: [oak]}}"), ""},
		"NoSuspension":             {policy("suspension: {dispatching: false, dispatchingOnClusters: {clusterNames: []}}"), ""},
		"SchedulePriority":         {policy("schedulePriority: {priorityClassSource: KubePriorityClass, priorityClassName: high}"), ""},
		"NoSchedulePriority":       {policy("schedulePriority: {priorityClassSource: '', priorityClassName: ''}"), ""},
		"Weighted":                 {placement("replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}"), ""},
		"OldOverriders":            {overrideHead + "  overriders: {plaintext: [{path: /spec/replicas, operator: remove}]}\n", ""},
		"OldWay":                   {overrideHead + "  overrideRules: []\n  targetCluster: {clusterNames: [oak]}\n  overriders: {plaintext: [{path: /spec/replicas, operator: remove}]}\n", ""},
		"NoOldOverriders":          {override("overriders: {}"), ""},
		"NoOldTargetCluster":       {override("targetCluster: {}"), ""},
		"ClusterZone":              {cluster("zone: a"), "spec.zone"},
		"ClusterID":                {cluster("id: a"), "spec.id"},
		"ClusterPull":              {cluster("syncMode: Pull"), ""},
		"ClusterPush":              {cluster("syncMode: Push"), ""},
		"ClusterInsecure":          {cluster("insecureSkipTLSVerification: true"), "spec.insecureSkipTLSVerification"},
		"ClusterSecure":            {cluster("insecureSkipTLSVerification: false"), ""},
		"ClusterProxyHeader":       {cluster("proxyHeader: {a: b}"), "spec.proxyHeader"},
		"ClusterResourceModels":    {cluster("resourceModels: [{grade: 0, ranges: [{name: cpu, min: '0', max: '1'}]}]"), "spec.resourceModels"},
		"ClusterScopedPolicy":      {strings.Replace(policy("failover: {application: {}}"), "kind: Prop", "kind: ClusterProp", 1), "spec.failover.application"},
		"EverythingThatIsTheSame":  {policy("propagateDeps: false\n  association: false\n  preemption: Never\n  schedulerName: default-scheduler\n  placement: {replicaScheduling: {replicaSchedulingType: Duplicated}}"), ""},
		"ClusterEverythingTheSame": {cluster("syncMode: Push, id: '', zone: '', proxyHeader: {}, resourceModels: []"), ""},
	}
	for _, validation := range []string{metav1.FieldValidationStrict, metav1.FieldValidationIgnore} {
		c, err := client.New(testenv.Config(0), client.Options{Scheme: newScheme(), FieldOwner: "test", FieldValidation: validation})
		if err != nil {
			t.Fatal(err)
		}
		for name, tc := range cases {
			t.Run(validation+"/"+name, func(t *testing.T) {
				err := create(t, c, namespace, tc.manifest)
				if tc.refused == "" {
					if err != nil {
						t.Errorf("refused: %v", err)
					}
					return
				}
				if err == nil {
					t.Fatal("accepted")
				}
				field := tc.refused[strings.LastIndex(tc.refused, ".")+1:]
				for _, part := range []string{tc.refused + ": ", field, " is not honoured"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("error %q lacks %q", err, part)
					}
				}
			})
		}
	}
}

// TestKarmadaSamples: Karmada's files work after the group is replaced, or the message says what to
// change.
func TestKarmadaSamples(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(testenv.Config(0), client.Options{
		Scheme: newScheme(), FieldOwner: "test", FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, testenv.Config(0))
	cases := map[string]struct{ manifest, refused string }{
		"Nginx": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: nginx-propagation}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: nginx}]
  placement:
    clusterAffinity: {clusterNames: [member1, member2]}
    replicaScheduling:
      replicaDivisionPreference: Weighted
      replicaSchedulingType: Divided
      weightPreference:
        staticWeightList:
        - {targetCluster: {clusterNames: [member1]}, weight: 1}
        - {targetCluster: {clusterNames: [member2]}, weight: 1}
`},
		"CustomResourceDefinition": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: ClusterPropagationPolicy
metadata: {name: example-policy}
spec:
  resourceSelectors: [{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, name: guestbooks.webapp.my.domain}]
  placement: {clusterAffinity: {clusterNames: [member1, member2]}}
`},
		"Override": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: OverridePolicy
metadata: {name: guestbook-sample}
spec:
  resourceSelectors: [{apiVersion: webapp.my.domain/v1, kind: Guestbook}]
  overrideRules:
  - targetCluster: {clusterNames: [member1]}
    overriders:
      plaintext:
      - {path: /spec/size, operator: replace, value: 4}
      - {path: /metadata/annotations, operator: add, value: {foo: bar}}
`},
		"Overriders": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: ClusterOverridePolicy
metadata: {name: example}
spec:
  overrideRules:
  - targetCluster: {fieldSelector: {matchExpressions: [{key: region, operator: In, values: [eu]}]}, exclude: [member3]}
    overriders:
      imageOverrider: [{component: Registry, operator: replace, value: registry.example.org}]
      commandOverrider: [{containerName: nginx, operator: add, value: [--debug]}]
      argsOverrider: [{containerName: nginx, operator: remove, value: [--quiet]}]
      labelsOverrider: [{operator: add, value: {env: skoala}}]
      annotationsOverrider: [{operator: replace, value: {foo: bar}}]
      fieldOverrider: [{fieldPath: /data/db.json, json: [{subPath: /a, operator: replace, value: b}]}]
`},
		// As kubectl get -o yaml prints it on Karmada, with the defaults of its webhooks.
		"Defaulted": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata:
  name: nginx-propagation
  finalizers: [propagationpolicy.karmada.io/x]
  labels: {propagationpolicy.karmada.io/permanent-id: c0a8}
spec:
  conflictResolution: Abort
  preemption: Never
  priority: 0
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: nginx, namespace: default}]
  schedulerName: default-scheduler
  placement:
    clusterTolerations:
    - {effect: NoExecute, key: cluster.karmada.io/not-ready, operator: Exists, tolerationSeconds: 300}
    - {effect: NoExecute, key: cluster.karmada.io/unreachable, operator: Exists, tolerationSeconds: 300}
`},
		"Failover": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: nginx-propagation}
spec:
  failover: {cluster: {purgeMode: Gracefully}}
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: nginx}]
  placement: {clusterAffinity: {clusterNames: [member1, member2]}}
`},
		"ApplicationFailover": {refused: "application failover", manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: nginx-propagation}
spec:
  propagateDeps: true
  failover: {application: {decisionConditions: {tolerationSeconds: 120}, gracePeriodSeconds: 600, purgeMode: Gracefully}}
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: nginx}]
`},
		"TaintPolicy": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: ClusterTaintPolicy
metadata: {name: taint-unhealthy}
spec:
  targetClusters: {clusterNames: [member1, member2]}
  addOnConditions: [{conditionType: Ready, operator: NotIn, statusValues: ["True"]}]
  removeOnConditions: [{conditionType: Ready, operator: In, statusValues: ["True"]}]
  taints:
  - {key: not-ready, effect: NoSchedule}
  - {key: not-ready, effect: NoExecute}
`},
		"OldOverride": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: OverridePolicy
metadata: {name: foo}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, namespace: default, name: deployment-1}]
  targetCluster: {labelSelector: {matchLabels: {failuredomain.kubernetes.io/region: dc1}}}
  overriders:
    plaintext: [{path: /spec/template/spec/containers/0/image, operator: replace, value: dc1.registry.io/nginx:1.17.0-alpine}]
`},
		"WithLabelSelector": {refused: "schedulerName", manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: foo}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {app: nginx}}}]
  association: true
  placement:
    clusterAffinity: {labelSelector: {matchLabels: {dc: shanghai}}}
    spreadConstraints: [{maxGroups: 2, minGroups: 1, spreadByLabel: failuredomain.kubernetes.io/zone}]
  schedulerName: default
`},
		"Groups": {manifest: `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: foo}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]
  placement:
    clusterAffinities:
    - {affinityName: primary, clusterNames: [member1], overflowAffinities: [{affinityName: cloud, clusterNames: [member3]}]}
    - {affinityName: backup, labelSelector: {matchLabels: {a: b}}}
    replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Aggregated}
`},
		"Cluster": {refused: "zone", manifest: `
apiVersion: cluster.karmada.io/v1alpha1
kind: Cluster
metadata: {name: cluster-foo}
spec:
  syncMode: Push
  apiEndpoint: https://10.0.0.1:6443
  secretRef: {namespace: foo, name: secret-foo}
  provider: huaweicloud
  region: ap-southeast-1
  zone: az-1
`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := create(t, c, namespace, strings.Replace(tc.manifest, "karmada.io", "orrery.dev", 1))
			if tc.refused == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.refused+" is not honoured") {
				t.Errorf("error %v does not name %s", err, tc.refused)
			}
		})
	}
}

// TestStoredPolicyStaysEditable: an object that was stored before a field was refused can still be
// changed.
func TestStoredPolicyStaysEditable(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(testenv.Config(0), client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	p := &policyv1alpha1.PropagationPolicy{}
	if err := yaml.Unmarshal([]byte(policyHead+selectAll+"  placement: {replicaScheduling: {replicaSchedulingType: Divided}}\n"), p); err != nil {
		t.Fatal(err)
	}
	p.Name, p.Namespace = "p", testenv.Namespace(t, testenv.Config(0))
	if err := c.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	before := hash(p.Spec.Placement)
	p.Spec.Priority = 1
	if err := c.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	// Missing fields stay missing: nothing moves.
	if after := hash(p.Spec.Placement); after != before {
		t.Errorf("placement %+v", p.Spec.Placement)
	}
}

// create creates an object from a manifest in a dry run.
func create(t *testing.T, c client.Client, namespace, manifest string) error {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetName("")
	o.SetGenerateName("test-")
	if !strings.HasPrefix(o.GetKind(), "Cluster") {
		o.SetNamespace(namespace)
	}
	return c.Create(t.Context(), o, client.DryRunAll)
}

// TestColumns: the columns of kubectl get for a binding are consistent. Reason comes from the first
// condition that is not True, and is empty if all are True.
func TestColumns(t *testing.T) {
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(testenv.Config(0), client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	namespace := testenv.Namespace(t, testenv.Config(0))
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}
	}
	scheduledTrue := condition(workv1alpha2.ConditionScheduled, metav1.ConditionTrue, workv1alpha2.ReasonScheduled)
	appliedTrue := condition(workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
	healthyTrue := condition(workv1alpha2.ConditionHealthy, metav1.ConditionTrue, workv1alpha2.ReasonHealthy)
	cases := map[string]struct {
		conditions []metav1.Condition
		want       []any // Scheduled, Applied, Healthy, Reason
	}{
		"new":     {want: []any{nil, nil, nil, nil}},
		"healthy": {conditions: []metav1.Condition{scheduledTrue, appliedTrue, healthyTrue}, want: []any{"True", "True", "True", nil}},
		"unhealthy": {
			conditions: []metav1.Condition{scheduledTrue, appliedTrue, condition(workv1alpha2.ConditionHealthy, metav1.ConditionFalse, workv1alpha2.ReasonUnhealthy)},
			want:       []any{"True", "True", "False", workv1alpha2.ReasonUnhealthy},
		},
		"conflict": {
			conditions: []metav1.Condition{
				scheduledTrue, condition(workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonConflict),
				condition(workv1alpha2.ConditionHealthy, metav1.ConditionUnknown, workv1alpha2.ReasonClusterUnreachable),
			},
			want: []any{"True", "False", "Unknown", workv1alpha2.ReasonConflict},
		},
	}
	for name, tc := range cases {
		b := &workv1alpha2.ResourceBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec: workv1alpha2.BindingSpec{
				Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
				PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
			},
		}
		if err := c.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		b.Status.Conditions = tc.conditions
		if err := c.Status().Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	rows := table(t, "/apis/work.orrery.dev/v1alpha2/namespaces/"+namespace+"/resourcebindings", "Scheduled", "Applied", "Healthy", "Reason")
	for name, tc := range cases {
		if diff := cmp.Diff(tc.want, rows[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	p := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace},
		Spec:       policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{deployments()}},
	}
	if err := c.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	p.Status = policyv1alpha1.PropagationStatus{Claimed: 3, Conditions: []metav1.Condition{
		condition(policyv1alpha1.ConditionReady, metav1.ConditionFalse, policyv1alpha1.ReasonLostClaim),
		condition(policyv1alpha1.ConditionComplete, metav1.ConditionTrue, policyv1alpha1.ReasonComplete),
	}}
	if err := c.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	rows = table(t, "/apis/policy.orrery.dev/v1alpha1/namespaces/"+namespace+"/propagationpolicies", "Ready", "Reason", "Claimed", "Complete")
	if diff := cmp.Diff([]any{"False", policyv1alpha1.ReasonLostClaim, 3.0, "True"}, rows["p"]); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

// table returns the columns that kubectl get prints, by the name of the object.
func table(t *testing.T, path string, columns ...string) map[string][]any {
	t.Helper()
	server, err := rest.HTTPClientFor(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, testenv.Config(0).Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := server.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var got metav1.Table
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	rows := map[string][]any{}
	for _, row := range got.Rows {
		name, _ := row.Cells[0].(string)
		for _, column := range columns {
			i := slices.IndexFunc(got.ColumnDefinitions, func(d metav1.TableColumnDefinition) bool { return d.Name == column })
			if i < 0 {
				t.Fatalf("no column %s among %v", column, got.ColumnDefinitions)
			}
			rows[name] = append(rows[name], row.Cells[i])
		}
	}
	return rows
}
