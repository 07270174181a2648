package render

import (
	stdjson "encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

const binding = "5e1f7a0c-0000-4000-8000-000000000001"

// object parses YAML as an informer would parse JSON.
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

// overridePolicy returns an override policy with a spec in YAML.
func overridePolicy(t testing.TB, namespace, name, spec string) *policyv1alpha1.OverridePolicy {
	t.Helper()
	p := &policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

func aCluster() *clusterv1alpha1.Cluster {
	return &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "c1", Labels: map[string]string{"env": "prod"}},
		Spec:       clusterv1alpha1.ClusterSpec{Provider: "aws", Region: "eu-1", Zones: []string{"a", "b"}},
	}
}

// bare returns a manifest without our marks, and checks that it had them.
func bare(t *testing.T, o *unstructured.Unstructured, digest string) map[string]any {
	t.Helper()
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels[workv1alpha2.BindingLabel] != binding {
		t.Errorf("label %s is %q, want %q", workv1alpha2.BindingLabel, labels[workv1alpha2.BindingLabel], binding)
	}
	if digest == "" || annotations[workv1alpha2.DigestAnnotation] != digest {
		t.Errorf("annotation %s is %q, want %q", workv1alpha2.DigestAnnotation, annotations[workv1alpha2.DigestAnnotation], digest)
	}
	o = o.DeepCopy()
	delete(labels, workv1alpha2.BindingLabel)
	delete(annotations, workv1alpha2.DigestAnnotation)
	unstructured.RemoveNestedField(o.Object, "metadata", "labels")
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
	if len(labels) > 0 {
		o.SetLabels(labels)
	}
	if len(annotations) > 0 {
		o.SetAnnotations(annotations)
	}
	return o.Object
}

// Without division and overrides, rendering removes what belongs to the hub.
func TestRenderDropsWhatIsTheHubs(t *testing.T) {
	cases := map[string]struct{ template, want string }{
		"Metadata": {
			template: `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns, generateName: x-, uid: u, resourceVersion: "7", generation: 2, selfLink: /x,
				creationTimestamp: "2026-01-01T00:00:00Z", deletionTimestamp: "2026-01-01T00:00:00Z", deletionGracePeriodSeconds: 0, finalizers: [f],
				ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: u}], managedFields: [{manager: m}], labels: {a: b},
				annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", c: d}}, data: {k: v}}`,
			want: `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns, labels: {a: b}, annotations: {c: d}}, data: {k: v}}`,
		},
		"OurOwnMarksOfACopiedManifest": {
			template: `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, labels: {work.orrery.dev/binding: other}, annotations: {work.orrery.dev/digest: other}}}`,
			want:     `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`,
		},
		"DeploymentRevisionAndStatus": {
			template: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, annotations: {deployment.kubernetes.io/revision: "3"}}, spec: {replicas: 2}, status: {replicas: 2}}`,
			want:     `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {replicas: 2}}`,
		},
		"StatusOfAnAutoscaler": {
			template: `{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: x, annotations: {autoscaling.alpha.kubernetes.io/conditions: "[]",
				autoscaling.alpha.kubernetes.io/current-metrics: "[]", autoscaling.alpha.kubernetes.io/metrics: "[]"}}, spec: {maxReplicas: 2}, status: {currentReplicas: 1}}`,
			want: `{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: x, annotations: {autoscaling.alpha.kubernetes.io/metrics: "[]"}}, spec: {maxReplicas: 2}}`,
		},
		"ServiceAddresses": {
			template: `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: ClusterIP, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80}]}, status: {loadBalancer: {}}}`,
			want:     `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: ClusterIP, ports: [{port: 80}]}}`,
		},
		"ServiceHeadless": {
			template: `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: None, clusterIPs: [None]}}`,
			want:     `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: None, clusterIPs: [None]}}`,
		},
		"ServicePortsThatNobodyKnowsTheOwnerOf": {
			template: `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}}`,
			want:     `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}}`,
		},
		"JobSelectorAndTimeToLive": {
			template: `{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {ttlSecondsAfterFinished: 5, selector: {matchLabels: {batch.kubernetes.io/controller-uid: u}},
				template: {metadata: {labels: {app: a, controller-uid: u, job-name: x, batch.kubernetes.io/controller-uid: u, batch.kubernetes.io/job-name: x}}}}}`,
			want: `{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {template: {metadata: {labels: {app: a}}}}}`,
		},
		"JobManualSelector": {
			template: `{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {manualSelector: true, selector: {matchLabels: {job-name: y}}, template: {metadata: {labels: {job-name: y}}}}}`,
			want:     `{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {manualSelector: true, selector: {matchLabels: {job-name: y}}, template: {metadata: {labels: {job-name: y}}}}}`,
		},
		"ServiceAccountTokens": {
			template: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: x}, secrets: [{name: x-token-abcde}, {name: mine}]}`,
			want:     `{apiVersion: v1, kind: ServiceAccount, metadata: {name: x}, secrets: [{name: mine}]}`,
		},
		"TokenOfTheHub": {
			template: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: x, annotations: {kubernetes.io/service-account.name: s, kubernetes.io/service-account.uid: u}}, data: {token: c2VjcmV0}}`,
			want:     `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: x, annotations: {kubernetes.io/service-account.name: s}}}`,
		},
		"Secret": {
			template: `{apiVersion: v1, kind: Secret, type: Opaque, metadata: {name: x}, data: {token: c2VjcmV0}}`,
			want:     `{apiVersion: v1, kind: Secret, type: Opaque, metadata: {name: x}, data: {token: c2VjcmV0}}`,
		},
		"ClaimBoundByAController": {
			template: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, annotations: {pv.kubernetes.io/bind-completed: "yes", pv.kubernetes.io/bound-by-controller: "yes"}}, spec: {volumeName: pv1, storageClassName: fast}}`,
			want:     `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x}, spec: {storageClassName: fast}}`,
		},
		"ClaimOfAChosenVolume": {
			template: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: pv1}}`,
			want:     `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x}, spec: {volumeName: pv1}}`,
		},
		"VolumeReservedForAClaim": {
			template: `{apiVersion: v1, kind: PersistentVolume, metadata: {name: x}, spec: {claimRef: {namespace: n, name: c, uid: u, resourceVersion: "3"}}}`,
			want:     `{apiVersion: v1, kind: PersistentVolume, metadata: {name: x}, spec: {claimRef: {namespace: n, name: c}}}`,
		},
		"Namespace": {
			template: `{apiVersion: v1, kind: Namespace, metadata: {name: x}, spec: {finalizers: [kubernetes]}, status: {phase: Active}}`,
			want:     `{apiVersion: v1, kind: Namespace, metadata: {name: x}, spec: {}}`,
		},
		"Pod": {
			template: `{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeName: n1, priority: 0, preemptionPolicy: PreemptLowerPriority,
				volumes: [{name: kube-api-access-abcde, projected: {}}], containers: [{name: c, volumeMounts: [{name: kube-api-access-abcde, mountPath: /t}, {name: v, mountPath: /v}]}]}}`,
			want: `{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]}}`,
		},
		"KindOfTheSameNameInAnotherGroup": {
			template: `{apiVersion: serving.example.org/v1, kind: Service, metadata: {name: x}, spec: {clusterIP: 10.0.0.1}}`,
			want:     `{apiVersion: serving.example.org/v1, kind: Service, metadata: {name: x}, spec: {clusterIP: 10.0.0.1}}`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, digest, err := Render(Input{Template: object(t, tc.template), Cluster: aCluster(), Binding: binding})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(object(t, tc.want).Object, bare(t, got, digest)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRenderReplicas(t *testing.T) {
	const (
		deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {replicas: 5}}`
		job        = `{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {parallelism: 3, completions: 10}}`
	)
	cases := map[string]struct {
		template string
		divided  bool
		share    *int32
		want     map[string]any
	}{
		"Job":                {job, true, new(int32(2)), map[string]any{"parallelism": int64(2), "completions": int64(7)}},
		"JobDuplicated":      {job, false, new(int32(3)), map[string]any{"parallelism": int64(3), "completions": int64(10)}},
		"JobNotInNumbers":    {`{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {parallelism: 3, completions: many}}`, true, new(int32(2)), nil},
		"Divided":            {deployment, true, new(int32(2)), map[string]any{"replicas": int64(2)}},
		"DividedToNone":      {deployment, true, new(int32(0)), map[string]any{"replicas": int64(0)}},
		"Duplicated":         {deployment, false, new(int32(2)), map[string]any{"replicas": int64(5)}},
		"KindWithoutDivided": {`{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, spec: {a: b}}`, true, nil, map[string]any{"a": "b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, _, err := Render(Input{
				Template: object(t, tc.template), Cluster: aCluster(), Binding: binding,
				Divided: tc.divided, Target: workv1alpha2.TargetCluster{Name: "c1", Replicas: tc.share},
				Shares: []workv1alpha2.TargetCluster{{Name: "c1", Replicas: tc.share}, {Name: "c2", Replicas: new(int32(1))}},
			})
			if (err != nil) != (tc.want == nil) {
				t.Fatal(err)
			}
			if tc.want == nil {
				return
			}
			if diff := cmp.Diff(tc.want, got.Object["spec"]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	const template = `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, resourceVersion: "1"}, data: {a: b}}`
	digest := func(in Input, manifest string) string {
		t.Helper()
		in.Template, in.Cluster = object(t, manifest), aCluster()
		_, digest, err := Render(in)
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	first := digest(Input{Binding: "b"}, template)
	if again := digest(Input{Binding: "b"}, template); again != first {
		t.Errorf("the same input has digests %s and %s", first, again)
	}
	if same := digest(Input{Binding: "b"}, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, resourceVersion: "2"}, data: {a: b}}`); same != first {
		t.Error("the hub's bookkeeping changes the digest")
	}
	for name, other := range map[string]string{
		"data":    digest(Input{Binding: "b"}, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: c}}`),
		"binding": digest(Input{Binding: "c"}, template),
		"override": digest(Input{Binding: "b", Overrides: compiled(
			overridePolicy(t, "", "p", `{overrideRules: [{overriders: {labelsOverrider: [{operator: add, value: {l: v}}]}}]}`),
		)}, template),
	} {
		if other == first {
			t.Errorf("another %s has the same digest", name)
		}
	}
}

// If the replicas belong to the cluster, the manifest has the number for a new copy, and its
// digest does not depend on that number.
func TestDigestWithoutReplicas(t *testing.T) {
	render := func(manifest string) (*unstructured.Unstructured, string) {
		t.Helper()
		o, digest, err := Render(Input{Template: object(t, manifest), Cluster: aCluster(), Binding: "b"})
		if err != nil {
			t.Fatal(err)
		}
		return o, digest
	}
	const kept = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, labels: {resourcetemplate.orrery.dev/retain-replicas: "true"}}, spec: {paused: true, replicas: `
	three, first := render(kept + `3}}`)
	_, second := render(kept + `4}}`)
	if first != second {
		t.Error("another number of replicas has another digest")
	}
	without := WithoutReplicas(three)
	if diff := cmp.Diff(map[string]any{"paused": true}, without.Object["spec"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"paused": true, "replicas": int64(3)}, three.Object["spec"]); diff != "" {
		t.Errorf("the manifest was changed:\n%s", diff)
	}
	const refused = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, labels: {resourcetemplate.orrery.dev/retain-replicas: "false"}}, spec: {replicas: `
	_, first = render(refused + `3}}`)
	if _, second = render(refused + `4}}`); first == second {
		t.Error("without the label another number of replicas has the same digest")
	}
}

// FuzzRender: for all objects that an API server may store, rendering does not panic, does not
// change its input, and returns the same result twice.
func FuzzRender(f *testing.F) {
	for _, seed := range hostile {
		f.Add([]byte(seed), "/spec/template/spec/containers/0/image", `{"a":1}`)
		f.Add([]byte(seed), "/metadata", `null`)
	}
	f.Fuzz(func(t *testing.T, raw []byte, path, value string) {
		o := &unstructured.Unstructured{}
		if json.Unmarshal(raw, &o.Object) == nil && o.Object != nil {
			checkRender(t, o, path, value)
		}
	})
}

// TestRenderMutants checks the same for good templates with random values in random places.
func TestRenderMutants(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	values := []any{nil, true, "", "x", int64(0), int64(-1), 1.5, []any{}, []any{nil, "x", int64(1)}, map[string]any{}, map[string]any{"name": int64(1)}}
	paths := []string{"/metadata", "/metadata/labels", "/spec", "/spec/text", "/spec/template/spec/containers/0", "/spec/ports/-", "/", "/a~1b"}
	for range 3000 {
		o := object(t, hostile[random.IntN(len(hostile))])
		for range 1 + random.IntN(3) {
			mutate(random, o.Object, runtime.DeepCopyJSONValue(values[random.IntN(len(values))]))
		}
		checkRender(t, o, paths[random.IntN(len(paths))], []string{`{"a":1}`, `null`, `7`, `"text"`, `[]`}[random.IntN(5)])
	}
}

// mutate sets a random place in a tree to a value.
func mutate(random *rand.Rand, at any, value any) {
	for {
		var next any
		var store func()
		switch node := at.(type) {
		case map[string]any:
			if len(node) == 0 {
				return
			}
			key := slices.Sorted(maps.Keys(node))[random.IntN(len(node))]
			next, store = node[key], func() { node[key] = value }
		case []any:
			if len(node) == 0 {
				return
			}
			i := random.IntN(len(node))
			next, store = node[i], func() { node[i] = value }
		default:
			return
		}
		if random.IntN(4) == 0 {
			store()
			return
		}
		at = next
	}
}

// hostile are templates with wrong values, or with values that mutate can make wrong.
var hostile = []string{
	`{"apiVersion":"v1","kind":"Service","metadata":{"name":"x","managedFields":[{"manager":"m","fieldsV1":{"f:spec":{"f:ports":{"k:{}":{}}}}}]},"spec":{"clusterIP":"1.2.3.4","ports":[{"port":80,"nodePort":3},7]}}`,
	`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","labels":{"a":"1"}},"spec":{"nodeName":"n","containers":[7,{"name":"c","image":"a/b:c","command":["x"],"volumeMounts":[{"name":"kube-api-access-x"}]}],"volumes":[null,{"name":"kube-api-access-x"}]}}`,
	`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"x"},"spec":{"parallelism":3,"completions":4,"selector":{},"template":{"metadata":{"labels":{"job-name":"x"}},"spec":{"containers":[]}}}}`,
	`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x","annotations":{"a":"b"}},"spec":{"replicas":2,"template":{"spec":{"containers":[{"name":"c","image":"a@b:c/d","args":["1"]}]}},"text":"a: b"},"status":{}}`,
	`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"x","annotations":{"pv.kubernetes.io/bound-by-controller":"yes"}},"spec":{"claimRef":{"uid":"x"}}}`,
	`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"x"},"secrets":[{"name":"x-token-1"}]}`,
	`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"ns"},"spec":{"text":"{}"}}`,
	`{"apiVersion":"v1","kind":"Secret","type":"kubernetes.io/service-account-token","metadata":{"name":"x"},"data":{"token":"x"}}`,
	`{"apiVersion":7,"kind":{},"metadata":[],"status":1}`,
}

// checkRender renders a template without overrides and with overrides of every kind.
func checkRender(t *testing.T, o *unstructured.Unstructured, path, value string) {
	t.Helper()
	change := apiextensionsv1.JSON{Raw: []byte(value)}
	if !stdjson.Valid(change.Raw) {
		return // no API server stores invalid JSON
	}
	rules := []policyv1alpha1.Overriders{
		{
			ImageOverrider:   []policyv1alpha1.ImageOverrider{{Component: "Tag", Operator: "add", Value: path}},
			CommandOverrider: []policyv1alpha1.CommandArgsOverrider{{ContainerName: "c", Operator: "add", Value: []string{value}}},
			ArgsOverrider:    []policyv1alpha1.CommandArgsOverrider{{ContainerName: "c", Operator: "remove", Value: []string{value}}},
			LabelsOverrider:  []policyv1alpha1.LabelAnnotationOverrider{{Operator: "add", Value: map[string]string{path: value}}},
		},
		{ImageOverrider: []policyv1alpha1.ImageOverrider{{Predicate: &policyv1alpha1.ImagePredicate{Path: path}, Component: "Repository", Operator: "add", Value: value}}},
		{FieldOverrider: []policyv1alpha1.FieldOverrider{{FieldPath: "/spec/text", YAML: []policyv1alpha1.FieldPatchOperation{{SubPath: path, Operator: "add", Value: &change}}}}},
		{Plaintext: []policyv1alpha1.PlaintextOverrider{{Path: path, Operator: "add", Value: &change}}},
	}
	in := Input{
		Template: o, Cluster: aCluster(), Binding: binding,
		Divided: true, Target: workv1alpha2.TargetCluster{Name: "c1", Replicas: new(int32(2))},
	}
	checkInput(t, in)
	in.Divided = false
	checkInput(t, in)
	for _, rule := range rules {
		in.Overrides = compiled(&policyv1alpha1.OverridePolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec:       policyv1alpha1.OverrideSpec{OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: rule}}},
		})
		checkInput(t, in)
	}
	Trim(o)
}

func checkInput(t *testing.T, in Input) {
	t.Helper()
	template, before := in.Template.DeepCopy(), policies(in.Overrides)
	one, digest, err := Render(in)
	if diff := cmp.Diff(template.Object, in.Template.Object); diff != "" {
		t.Fatalf("the template was changed:\n%s", diff)
	}
	if diff := cmp.Diff(before, policies(in.Overrides)); diff != "" {
		t.Fatalf("the overrides were changed:\n%s", diff)
	}
	two, again, err2 := Render(in)
	if digest != again || (err == nil) != (err2 == nil) {
		t.Fatalf("rendered to %s (%v), then to %s (%v)", digest, err, again, err2)
	}
	if diff := cmp.Diff(one, two); diff != "" {
		t.Fatalf("rendered twice: -first +second:\n%s", diff)
	}
	if err == nil && (identity(one) != identity(in.Template) || one.GetLabels()[workv1alpha2.BindingLabel] != binding || digest == "") {
		t.Fatalf("rendered %v to %v with labels %v and digest %q", identity(in.Template), identity(one), one.GetLabels(), digest)
	}
}

// policies returns copies of the policies of overrides.
func policies(overrides []*Override) []*policyv1alpha1.OverridePolicy {
	copies := make([]*policyv1alpha1.OverridePolicy, 0, len(overrides))
	for _, v := range overrides {
		copies = append(copies, v.Policy.DeepCopy())
	}
	return copies
}
