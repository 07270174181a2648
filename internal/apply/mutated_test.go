package apply

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

var errNotInForce = errors.New("it is not")

// appliedDigest returns an error until a cluster has a manifest with another digest than old.
func (f *fleet) appliedDigest(b *workv1alpha2.ResourceBinding, cluster, old string) error {
	if r, ok := f.applier.Result(b.UID, cluster); !ok || !r.Applied || r.Digest == old {
		return fmt.Errorf("it is %+v", r)
	}
	return nil
}

func TestMutated(t *testing.T) {
	read := func(text string) *unstructured.Unstructured {
		t.Helper()
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, tc := range map[string]struct {
		manifest, applied string
		want              []string
	}{
		"Same":            {`{spec: {a: 1, b: [x, y], c: {d: true}}}`, `{spec: {a: 1, b: [x, y], c: {d: true}}}`, nil},
		"MoreThanAsked":   {`{spec: {a: 1, b: [x]}}`, `{spec: {a: 1, b: [x, z], c: 2}, status: {}}`, nil},
		"Another":         {`{spec: {a: x}}`, `{spec: {a: y}}`, []string{"spec.a"}},
		"Gone":            {`{spec: {a: x, b: 2}}`, `{spec: {}}`, []string{"spec.a", "spec.b"}},
		"EmptyIsLeftOut":  {`{spec: {a: "", b: 0, c: false, d: [], e: {}, f: null}}`, `{}`, nil},
		"Quantities":      {`{spec: {cpu: 1000m, memory: 1024Mi, storage: 1}}`, `{spec: {cpu: "1", memory: 1Gi, storage: "1"}}`, nil},
		"OtherQuantity":   {`{spec: {cpu: 100m}}`, `{spec: {cpu: "1"}}`, []string{"spec.cpu"}},
		"ElementsByName":  {`{c: [{name: app, image: a}]}`, `{c: [{name: sidecar, image: s}, {name: app, image: a}]}`, nil},
		"NameTwice":       {`{c: [{name: cfg, at: a}, {name: cfg, at: b}]}`, `{c: [{name: cfg, at: a}, {name: cfg, at: b}]}`, nil},
		"NameTwiceThere":  {`{c: [{name: cfg, at: a}]}`, `{c: [{name: cfg, at: a}, {name: cfg, at: b}]}`, nil},
		"ElementIsGone":   {`{c: [{name: app, image: a}]}`, `{c: [{name: sidecar, image: a}]}`, []string{"c[0].image", "c[0].name"}},
		"KeysWithDots":    {`{metadata: {labels: {example.org/team: a}}}`, `{metadata: {labels: {}}}`, []string{`metadata.labels."example.org/team"`}},
		"AnotherShape":    {`{spec: {a: {b: c}}}`, `{spec: {a: [b]}}`, []string{"spec.a.b"}},
		"TrueBecameFalse": {`{spec: {a: true}}`, `{spec: {a: false}}`, []string{"spec.a"}},
		"NumberBecame0":   {`{spec: {replicas: 3}}`, `{spec: {replicas: 0}}`, []string{"spec.replicas"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, mutated(read(tc.manifest), read(tc.applied))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAdded(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest, applied, owned string
		want                     []string
	}{
		"Nothing":                 {`data: {a: x}`, `data: {a: x}`, `{"f:data":{"f:a":{}}}`, nil},
		"AKeyOfAMap":              {`data: {a: x}`, `data: {a: x, b: y}`, `{"f:data":{"f:a":{}}}`, []string{"data.b"}},
		"AKeyOfAnother":           {`data: {a: x}`, `data: {a: x, b: y}`, `{"f:data":{"f:a":{},"f:b":{}}}`, nil},
		"ADefault":                {`spec: {a: x}`, `spec: {a: x, b: y}`, `{"f:spec":{"f:a":{}}}`, nil},
		"AMapAsAWhole":            {`spec: {nodeSelector: {a: x}}`, `spec: {nodeSelector: {a: x, b: y}}`, `{"f:spec":{"f:nodeSelector":{}}}`, []string{"spec.nodeSelector.b"}},
		"AListAsAWhole":           {`spec: {tolerations: [{key: own}]}`, `spec: {tolerations: [{key: own}, {key: injected}]}`, `{"f:spec":{"f:tolerations":{}}}`, []string{"spec.tolerations[injected]"}},
		"ArgumentsOfACommand":     {`spec: {args: [a]}`, `spec: {args: [a, b]}`, `{"f:spec":{"f:args":{}}}`, []string{"spec.args"}},
		"ASidecar":                {`spec: {containers: [{name: a}]}`, `spec: {containers: [{name: a, image: d}, {name: s}]}`, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:name":{}}}}}`, []string{"spec.containers[s]"}},
		"ASidecarOfAnother":       {`spec: {containers: [{name: a}]}`, `spec: {containers: [{name: a}, {name: s}]}`, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:name":{}},"k:{\"name\":\"s\"}":{"f:name":{}}}}}`, nil},
		"AnArgumentInAContainer":  {`spec: {containers: [{name: a, args: [x]}]}`, `spec: {containers: [{name: a, args: [x, y]}]}`, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:name":{},"f:args":{}}}}}`, []string{"spec.containers[a].args"}},
		"NobodyKnowsWhoOwnsThese": {`data: {a: x}`, `data: {a: x, b: y}`, ``, nil},
	} {
		t.Run(name, func(t *testing.T) {
			const head = "apiVersion: v1\nkind: ConfigMap\n"
			applied := parsed(t, head+tc.applied)
			if tc.owned != "" {
				applied.Object["metadata"] = map[string]any{"managedFields": []any{
					parsed(t, head+"entry: {manager: orrery, operation: Apply, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: "+tc.owned+"}").Object["entry"],
				}}
			}
			if diff := cmp.Diff(tc.want, added(parsed(t, head+tc.manifest), applied)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// If a cluster removes our marks, the pause after a rejection applies, even if the object then
// looks unmanaged.
func TestPlanOfWhatLosesItsMarks(t *testing.T) {
	w := Wanted{Decided: true, Object: Object{Name: "x"}, Digest: "d"}
	now := time.Now()
	k := Known{Now: now, Refused: "d", RetryAt: now.Add(time.Minute)}
	for name, at := range map[string]Copy{
		"NoDigest": {Object: mirror.Object{UID: "u", Binding: "b"}, Owner: Binding, Authentic: true, ThisJoin: true},
		"NoLabel":  {Object: mirror.Object{UID: "u"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Plan(w, Seen{Reachable: true, Listed: true, At: presence.Present, AtObject: at}, k)
			if diff := cmp.Diff([]Action{{Verb: Retry, After: time.Minute}}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// mutate creates an admission policy in a member that changes the ConfigMaps of a namespace,
// and waits until it is in force.
func (f *fleet) mutate(api *testenv.API, member client.Client, ns, name, expression string) {
	t := f.t
	t.Helper()
	api.Apply(t, strings.NewReplacer("NAMESPACE", ns, "NAME", name, "EXPRESSION", expression).Replace(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: NAME}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: 'EXPRESSION'}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: NAME}
spec:
  policyName: NAME
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
`))
	t.Cleanup(func() {
		api.Remove(t, "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding", "", name)
		api.Remove(t, "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", "", name)
	})
	// It is in force once it changes an object.
	f.eventually("the policy is in force", func() error {
		probe := configMap(ns, "probe", "1")
		probe.SetUID("")
		probe.SetLabels(map[string]string{workv1alpha2.BindingLabel: "probe"})
		f.must(client.IgnoreNotFound(member.Delete(t.Context(), probe.DeepCopy())))
		f.must(member.Create(t.Context(), probe))
		data, _, _ := unstructured.NestedStringMap(probe.Object, "data")
		if len(data) == 1 && data["key"] == "1" && probe.GetLabels()[workv1alpha2.BindingLabel] == "probe" {
			return errNotInForce
		}
		return nil
	})
}

// The hub does not write against a policy in the member that changes its manifests. It names
// the fields, and writes only when the template is edited.
func TestWhatAMemberChanges(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	api, err := testenv.NewAPI(testenv.Config(oakServer))
	f.must(err)
	mutate := func(ns, name, expression string) {
		t.Helper()
		// Applied before the policy can change it.
		f.result(f.bind(configMap(ns, "first", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
		f.mutate(api, oak, ns, name, expression)
	}

	t.Run("AValue", func(t *testing.T) {
		f.t = t
		defer func() { f.t = f.whole }()
		ns := testenv.Namespace(t, testenv.Config(hubServer))
		mutate(ns, "values-"+ns, `[JSONPatch{op: "replace", path: "/data/key", value: "theirs"}, JSONPatch{op: "add", path: "/data/injected", value: "hidden"}]`)
		before := f.calls("apply")
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		r := f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		if !r.Applied || !strings.Contains(r.Message, "data.key") || !strings.Contains(r.Message, "data.injected") || strings.Contains(r.Message, "theirs") || strings.Contains(r.Message, "hidden") {
			t.Errorf("the result is %+v", r)
		}
		f.data(oak, ns, "a", "theirs")
		f.templates.set(configMap(ns, "a", "2"))
		f.eventually("the edit is applied", func() error { return f.appliedDigest(b, "oak", r.Digest) })
		f.data(oak, ns, "a", "theirs")
		if made := f.calls("apply") - before; made != 2 {
			t.Errorf("%v applies were made for two versions", made)
		}
		// The fields are known after a restart, too.
		f.stop()
		f.start()
		if r := f.result(b, "oak", workv1alpha2.ReasonFullyApplied); !strings.Contains(r.Message, "data.key") {
			t.Errorf("after a restart the result is %+v", r)
		}
		if made := f.calls("apply") - before; made != 2 {
			t.Errorf("%v applies were made for two versions and a restart", made)
		}
		// Without records, the hub reads the copy and finds it as it was applied.
		f.stop()
		f.records = newMemory()
		f.start()
		if r := f.result(b, "oak", workv1alpha2.ReasonFullyApplied); !strings.Contains(r.Message, "data.key") {
			t.Errorf("without records the result is %+v", r)
		}
		if made := f.calls("apply") - before; made != 2 {
			t.Errorf("%v applies were made for two versions and a loss of the records", made)
		}
	})

	t.Run("OurMarks", func(t *testing.T) {
		f.t = t
		defer func() { f.t = f.whole }()
		ns := testenv.Namespace(t, testenv.Config(hubServer))
		mutate(ns, "marks-"+ns, `has(object.metadata.labels) ? [JSONPatch{op: "remove", path: "/metadata/labels"}] : []`)
		before := f.calls("apply")
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		r := f.result(b, "oak", workv1alpha2.ReasonMutated)
		if r.Applied || !strings.Contains(r.Message, `metadata.labels."work.orrery.dev/binding"`) {
			t.Errorf("the result is %+v", r)
		}
		// Planning it again and again causes no write.
		q, ok := f.applier.queue("oak")
		if !ok {
			t.Fatal("there is no queue")
		}
		for range 100 {
			q.reconcile(t.Context(), client.ObjectKeyFromObject(b))
		}
		// It is tried again after 2 s, 4 s and so on.
		if made := f.calls("apply") - before; made > 10 {
			t.Errorf("%v applies were made", made)
		}
	})
	f.unjoin("oak")
}
