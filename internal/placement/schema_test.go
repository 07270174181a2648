package placement

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/testenv"
)

const (
	policyHead   = "apiVersion: policy.orrery.dev/v1alpha1\nkind: PropagationPolicy\nspec:\n"
	selectAll    = "  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]\n"
	overrideHead = "apiVersion: policy.orrery.dev/v1alpha1\nkind: OverridePolicy\nspec:\n"
	bindingHead  = "apiVersion: work.orrery.dev/v1alpha2\nkind: ResourceBinding\nspec:\n"
	bindingRefs  = "  resource: {apiVersion: apps/v1, kind: Deployment, name: web}\n  policyRef: {kind: PropagationPolicy, name: p}\n"
)

// Bad input is refused with the path of the field; good input that looks alike is not.
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
		"DivisionPreference": {
			manifest: placement("{replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Aggregated}}"),
			want:     []string{"spec.placement.replicaScheduling.replicaDivisionPreference"},
		},
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

		"Override":           {manifest: overriders("{imageOverrider: [{component: Tag, operator: replace, value: v2}], plaintext: [{path: /spec/replicas, operator: replace, value: 3}]}")},
		"NoRules":            {manifest: overrideHead + "  overrideRules: []\n", want: []string{"spec.overrideRules"}},
		"NoOverriders":       {manifest: overriders("{}"), want: []string{"spec.overrideRules[0].overriders"}},
		"UnknownOverrider":   {manifest: overriders("{image: []}"), want: []string{"spec.overrideRules[0].overriders.image"}},
		"ImageComponent":     {manifest: overriders("{imageOverrider: [{component: Digest, operator: remove}]}"), want: []string{"overriders.imageOverrider[0].component"}},
		"ImageOperator":      {manifest: overriders("{imageOverrider: [{component: Tag, operator: set, value: a}]}"), want: []string{"overriders.imageOverrider[0].operator"}},
		"ImageWithoutValue":  {manifest: overriders("{imageOverrider: [{component: Tag, operator: replace}]}"), want: []string{"overriders.imageOverrider[0]", "value is required"}},
		"CommandReplace":     {manifest: overriders("{commandOverrider: [{containerName: a, operator: replace, value: [b]}]}"), want: []string{"overriders.commandOverrider[0]", "add or remove"}},
		"LabelsWithoutValue": {manifest: overriders("{labelsOverrider: [{operator: add, value: {}}]}"), want: []string{"overriders.labelsOverrider[0].value"}},
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
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tc.manifest), &o.Object); err != nil {
				t.Fatal(err)
			}
			o.SetGenerateName("test-")
			if !strings.HasPrefix(o.GetKind(), "Cluster") {
				o.SetNamespace(namespace)
			}
			err := c.Create(t.Context(), o, client.DryRunAll)
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
