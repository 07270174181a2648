package render_test

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/render"
	"orrery.dev/orrery/internal/testenv"
)

// onlineBoutique returns the objects of a public application, as its authors wrote them.
func onlineBoutique(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testenv.Root(), "test", "e2e", "testdata", "online-boutique.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, raw)
}

func objects(t *testing.T, raw []byte) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		var document stdjson.RawMessage
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(document) == 0 {
			continue // comments
		}
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal(document, &o.Object); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

func input(template *unstructured.Unstructured, overrides ...*policyv1alpha1.OverridePolicy) render.Input {
	return render.Input{
		Template: template, Binding: "5e1f7a0c-0000-4000-8000-000000000001", Overrides: render.NewOverrides(overrides...).Of(template),
		Cluster: &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}},
	}
}

// A manifest is what the users wrote, apart from our marks.
func TestRenderKeepsWhatUsersWrote(t *testing.T) {
	for _, template := range onlineBoutique(t) {
		got, digest, err := render.Render(input(template))
		if err != nil {
			t.Fatal(err)
		}
		want := template.DeepCopy()
		setEntry(t, want, "labels", workv1alpha2.BindingLabel, "5e1f7a0c-0000-4000-8000-000000000001")
		setEntry(t, want, "annotations", workv1alpha2.DigestAnnotation, digest)
		if diff := cmp.Diff(want.Object, got.Object); diff != "" {
			t.Errorf("%s %s: -written +rendered:\n%s", template.GetKind(), template.GetName(), diff)
		}
	}
}

func setEntry(t *testing.T, o *unstructured.Unstructured, field, key, value string) {
	t.Helper()
	if err := unstructured.SetNestedField(o.Object, value, "metadata", field, key); err != nil {
		t.Fatal(err)
	}
}

// One override moves every image of the application to another registry.
func TestRenderImagesOfARealApplication(t *testing.T) {
	mirror := &policyv1alpha1.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "mirror"},
		Spec: policyv1alpha1.OverrideSpec{OverrideRules: []policyv1alpha1.RuleWithCluster{{
			Overriders: policyv1alpha1.Overriders{ImageOverrider: []policyv1alpha1.ImageOverrider{
				{Component: policyv1alpha1.ImageRegistry, Operator: policyv1alpha1.OverriderOpReplace, Value: "mirror.local:5000"},
			}},
		}}},
	}
	images := 0
	for _, template := range onlineBoutique(t) {
		got, _, err := render.Render(input(template, mirror))
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"containers", "initContainers"} {
			containers, _, err := unstructured.NestedSlice(got.Object, "spec", "template", "spec", field)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range containers {
				container, _ := c.(map[string]any)
				image, _ := container["image"].(string)
				if images++; !strings.HasPrefix(image, "mirror.local:5000/") || strings.Contains(image, "docker.pkg.dev") {
					t.Errorf("%s %s: image %s", template.GetKind(), template.GetName(), image)
				}
			}
		}
	}
	if images == 0 {
		t.Error("no images were seen")
	}
}

// allocating are templates in which the hub's API server sets more than defaults.
const allocating = `
{apiVersion: v1, kind: Service, metadata: {name: asked}, spec: {type: NodePort, selector: {app: x}, ports: [{name: a, port: 80, nodePort: 30777}, {name: b, port: 81}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: local}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: x}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: family}, spec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], selector: {app: x}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, selector: {app: x}, ports: [{port: 80}]}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: once}, spec: {ttlSecondsAfterFinished: 60, template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: often}, spec: {schedule: "* * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: disk}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: pod}, spec: {containers: [{name: c, image: c}]}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: set}, spec: {serviceName: headless, selector: {matchLabels: {app: s}}, template: {metadata: {labels: {app: s}}, spec: {containers: [{name: c, image: c}]}},
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}
`

// TestRenderedAppliesToARealCluster applies objects as one API server stored them to another
// one, several times. A repeated apply must not write, or the applier would never come to rest.
func TestRenderedAppliesToARealCluster(t *testing.T) {
	hub, member := newCluster(t), newCluster(t)
	rendered, given := map[string]*unstructured.Unstructured{}, map[string]any{}
	for _, o := range append(onlineBoutique(t), objects(t, []byte(allocating))...) {
		template := hub.create(t, o)
		untouched := template.DeepCopy()
		given[o.GetName()], _, _ = unstructured.NestedSlice(untouched.Object, "spec", "ports")
		manifest, digest, err := render.Render(input(template))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(untouched, template); diff != "" {
			t.Fatalf("the template was changed:\n%s", diff)
		}
		render.Trim(template)
		if _, trimmed, err := render.Render(input(template)); err != nil || trimmed != digest {
			t.Errorf("%s %s: digest %s, from a trimmed template %s (%v)", o.GetKind(), o.GetName(), digest, trimmed, err)
		}
		member.apply(t, manifest)
		// An API server may write an object differently than it stored it at creation: the
		// first update of a claim writes the same content.
		second := member.apply(t, manifest)
		if third := member.apply(t, manifest); third.GetResourceVersion() != second.GetResourceVersion() {
			t.Errorf("%s %s: applied again, it was written again:\n%s", o.GetKind(), o.GetName(), cmp.Diff(second, third))
		}
		rendered[o.GetName()] = manifest
	}

	for name, want := range map[string][]any{
		// The ports as the hub has them, even those that it allocated.
		"asked":             given["asked"].([]any),
		"frontend-external": {map[string]any{"name": "http", "port": int64(80), "protocol": "TCP", "targetPort": int64(8080)}},
	} {
		got, _, err := unstructured.NestedSlice(rendered[name].Object, "spec", "ports")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ports of Service %s: -asked for +rendered:\n%s", name, diff)
		}
	}
	for name, want := range map[string]map[string]any{
		"local":    {},
		"family":   {"ipFamilyPolicy": "SingleStack", "ipFamilies": []any{"IPv4"}},
		"headless": {"clusterIP": "None", "clusterIPs": []any{"None"}},
	} {
		spec, _, err := unstructured.NestedMap(rendered[name].Object, "spec")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		for _, field := range []string{"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "healthCheckNodePort"} {
			if v, ok := spec[field]; ok {
				got[field] = v
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("addresses of Service %s: -asked for +rendered:\n%s", name, diff)
		}
	}
}

// cluster is the namespace of one API server, which is not shared.
type cluster struct{ client client.Client }

// namespace has the same name in every cluster.
const namespace = "shop"

func newCluster(t *testing.T) cluster {
	t.Helper()
	c, err := client.New(testenv.StartServer(t).Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	return cluster{client: c}
}

// create creates an object and returns it as the API server stored it.
func (c cluster) create(t *testing.T, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	o = o.DeepCopy()
	o.SetNamespace(namespace)
	if err := c.client.Create(t.Context(), o, client.FieldOwner("kubectl")); err != nil {
		t.Fatal(err)
	}
	return o
}

// apply applies a manifest as the applier does, and returns the object as it is stored then.
func (c cluster) apply(t *testing.T, manifest *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	o := manifest.DeepCopy()
	err := c.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(workv1alpha2.FieldManager))
	if err != nil {
		t.Fatalf("apply %s %s: %v", manifest.GetKind(), manifest.GetName(), err)
	}
	return o
}
