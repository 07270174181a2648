package search

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	listpager "k8s.io/client-go/tools/pager"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

const convertible = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: every, annotations: {mine: "1"}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 2
  maxReplicas: 9
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 100Mi}}}
  - {type: ContainerResource, containerResource: {name: cpu, container: web, target: {type: Utilization, averageUtilization: 50}}}
  - {type: Pods, pods: {metric: {name: requests, selector: {matchLabels: {a: b}}}, target: {type: AverageValue, averageValue: "10"}}}
  - {type: Object, object: {describedObject: {apiVersion: v1, kind: Service, name: web}, metric: {name: hits}, target: {type: Value, value: 2k}}}
  - {type: External, external: {metric: {name: queue}, target: {type: Value, value: "30"}}}
  behavior:
    scaleDown: {stabilizationWindowSeconds: 60, selectPolicy: Min, policies: [{type: Pods, value: 4, periodSeconds: 60}]}
status:
  observedGeneration: 1
  lastScaleTime: "2026-01-01T00:00:00Z"
  currentReplicas: 3
  desiredReplicas: 4
  conditions:
  - {type: AbleToScale, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z", reason: Ready, message: ready}
  currentMetrics:
  - {type: Resource, resource: {name: cpu, current: {averageUtilization: 61, averageValue: 100m}}}
  - {type: ContainerResource, containerResource: {name: cpu, container: web, current: {averageUtilization: 40, averageValue: 50m}}}
  - {type: Pods, pods: {metric: {name: requests}, current: {averageValue: "12"}}}
  - {type: Object, object: {describedObject: {apiVersion: v1, kind: Service, name: web}, metric: {name: hits}, current: {value: 1k}}}
  - {type: External, external: {metric: {name: queue}, current: {value: "3", averageValue: "1"}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: plain}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 2
---
apiVersion: v1
kind: Event
metadata: {name: old}
involvedObject: {apiVersion: v1, kind: Pod, name: web, namespace: NAMESPACE, uid: u1}
reason: Pulled
message: it was pulled
source: {component: kubelet, host: n1}
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-02T00:00:00Z"
count: 3
type: Normal
---
apiVersion: v1
kind: Event
metadata: {name: new}
involvedObject: {apiVersion: v1, kind: Pod, name: db, namespace: NAMESPACE}
related: {apiVersion: v1, kind: Node, name: n1}
reason: Failed
message: it failed
eventTime: "2026-01-02T00:00:00.000001Z"
reportingComponent: example.org/scheduler
reportingInstance: scheduler-0
action: Binding
series: {count: 2, lastObservedTime: "2026-01-02T00:00:01.000001Z"}
type: Warning
`

// TestConversion: an object that is shown in another type than the mirrored one is what the API
// server returns for that type.
func TestConversion(t *testing.T) {
	config := testenv.Config(0)
	namespace := testenv.Namespace(t, config)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, "elm", "oak")
	resources := map[string]string{"HorizontalPodAutoscaler": "horizontalpodautoscalers", "Event": "events"}
	for _, c := range conversions {
		f.serve(c.from, c.resource, true, "elm", "oak")
	}
	for manifest := range strings.SplitSeq(strings.ReplaceAll(convertible, "NAMESPACE", namespace), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &o.Object); err != nil {
			t.Fatal(err)
		}
		r := client.Resource(o.GroupVersionKind().GroupVersion().WithResource(resources[o.GetKind()])).Namespace(namespace)
		status := o.Object["status"]
		if o, err = r.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if status != nil {
			o.Object["status"] = status
			if o, err = r.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		f.put(t, "oak", resources[o.GetKind()], o)
	}
	for _, c := range conversions {
		gvr := c.to.GroupVersion().WithResource(c.resource)
		want, err := client.Resource(gvr).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		path := "/apis/" + c.to.GroupVersion().String() + "/" + c.resource
		_, body := f.ask(t, http.MethodGet, path, "")
		if body["kind"] != c.to.Kind+"List" || body["apiVersion"] != c.to.GroupVersion().String() {
			t.Fatalf("%s: %v", path, body)
		}
		items, err := (&unstructured.Unstructured{Object: body}).ToList()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(compared(t, want.Items), compared(t, items.Items)); diff != "" || len(items.Items) != 2 {
			t.Errorf("%s (-API server, +fleet):\n%s", path, diff)
		}
		_, one := f.ask(t, http.MethodGet, "/clusters/oak"+strings.TrimSuffix(path, c.resource)+"namespaces/"+namespace+"/"+c.resource+"/"+items.Items[0].GetName(), "")
		if diff := cmp.Diff(items.Items[0].Object, one); diff != "" {
			t.Errorf("one (-list, +it):\n%s", diff)
		}
		if last := f.asked[len(f.asked)-1]; last.Group != c.to.Group || last.Version != c.to.Version {
			t.Errorf("%s needs a right to %+v", path, last)
		}
		if !slices.Contains(f.inMany(t, "/apis"), line(c.to.Group, c.to.Version, c.resource, true)) {
			t.Errorf("%s is not discovered", gvr)
		}
	}
	t.Run("Selected", func(t *testing.T) {
		_, body := f.ask(t, http.MethodGet, "/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Ddb,type%3DWarning", "")
		if got := found(body); !slices.Equal(got, []string{"oak/" + namespace + "/new"}) {
			t.Errorf("%v: %v", got, body)
		}
		for path, says := range map[string]string{
			"/apis/events.k8s.io/v1/events?fieldSelector=note%3Dx":                                                "regarding.name",
			"/apis/autoscaling/v1/horizontalpodautoscalers?fieldSelector=spec.targetCPUUtilizationPercentage%3D1": "autoscaling/v2",
			"/apis/events.k8s.io/v1/events?filter=object.note+%3D%3D+'x'":                                         "those of v1",
		} {
			if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body["message"].(string), says) {
				t.Errorf("%s: %d %v", path, resp.StatusCode, body["message"])
			}
		}
	})
	t.Run("TypedClient", func(t *testing.T) {
		fleet, err := kubernetes.NewForConfig(&rest.Config{Host: f.url, ContentConfig: rest.ContentConfig{ContentType: mediaProtobuf, AcceptContentTypes: mediaProtobuf}})
		if err != nil {
			t.Fatal(err)
		}
		list, err := fleet.AutoscalingV1().HorizontalPodAutoscalers("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 || *list.Items[0].Spec.TargetCPUUtilizationPercentage != 70 {
			t.Fatalf("%v %v", list, err)
		}
		w, err := fleet.EventsV1().Events("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "regarding.name=web"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		e := <-w.ResultChan()
		if where(e.Object) != "oak/"+namespace+"/old" || e.Object.(interface{ GetName() string }).GetName() != "old" {
			t.Errorf("%v", e)
		}
		f.remove(t, "oak", "events", namespace, "old")
		if e := <-w.ResultChan(); e.Type != "DELETED" || where(e.Object) != "oak/"+namespace+"/old" {
			t.Errorf("%v", e)
		}
	})
}

// compared returns objects without the fields that the fleet and time change. JSON in
// annotations is parsed.
func compared(t *testing.T, items []unstructured.Unstructured) (out []map[string]any) {
	t.Helper()
	for _, o := range items {
		o := o.DeepCopy()
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		annotations := o.GetAnnotations()
		delete(annotations, fleetv1alpha1.ClusterAnnotation)
		delete(annotations, fleetv1alpha1.ResourceVersionAnnotation)
		parsed := map[string]any{}
		for name, value := range annotations {
			var v any = value
			if strings.HasPrefix(name, "autoscaling.") {
				if err := json.Unmarshal([]byte(value), &v); err != nil {
					t.Fatal(err)
				}
			}
			parsed[name] = withoutNull(v)
		}
		o.SetAnnotations(nil)
		raw, err := json.Marshal(map[string]any{"annotations": parsed, "object": withoutNull(o.Object)})
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := json.Unmarshal(raw, &object); err != nil {
			t.Fatal(err)
		}
		out = append(out, object)
	}
	return out
}

func withoutNull(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, field := range v {
			if field != nil {
				out[name] = withoutNull(field)
			}
		}
		return out
	case []any:
		for i := range v {
			v[i] = withoutNull(v[i])
		}
	}
	return value
}

// TestInterchangeable: interchangeable versions have the same fields, of the same types.
func TestInterchangeable(t *testing.T) {
	kinds := map[string]string{}
	for gvk := range known.AllKnownTypes() {
		plural := strings.ToLower(gvk.Kind) + "s"
		if strings.HasSuffix(gvk.Kind, "s") {
			plural = strings.ToLower(gvk.Kind) + "es"
		} else if strings.HasSuffix(gvk.Kind, "y") {
			plural = strings.TrimSuffix(strings.ToLower(gvk.Kind), "y") + "ies"
		}
		kinds[gvk.Group+"/"+plural] = gvk.Kind
	}
	for gr, versions := range interchangeable {
		kind := kinds[gr.Group+"/"+gr.Resource]
		var shapes []map[string]any
		for _, v := range versions {
			o, err := known.New(schema.GroupVersionKind{Group: gr.Group, Version: v, Kind: kind})
			if err != nil {
				t.Fatalf("%s: %v", gr, err)
			}
			shapes = append(shapes, shape(reflect.TypeOf(o)).(map[string]any))
		}
		for _, other := range shapes[1:] {
			if diff := cmp.Diff(shapes[0], other); diff != "" || len(shapes[0]) < 3 {
				t.Errorf("%s: %s", gr, diff)
			}
		}
	}
}

// shape returns the structure of the JSON of a type.
func shape(t reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case strings.Contains(t.PkgPath(), "apimachinery"):
		return t.String()
	case t.Kind() == reflect.Struct:
		out := map[string]any{}
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			out[name+f.Type.Kind().String()] = shape(f.Type)
		}
		return out
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Map:
		return []any{t.Kind().String(), shape(t.Elem())}
	default:
		return t.Kind().String()
	}
}

// TestVersionsThatAreTheSame: for interchangeable versions, the objects of all clusters are
// shown in the requested version. Objects of other versions are left out, and a warning names
// their version.
func TestVersionsThatAreTheSame(t *testing.T) {
	f := newFleet(t, "ash", "elm", "oak")
	class := schema.GroupVersionKind{Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttributesClass"}
	older := schema.GroupVersionKind{Group: class.Group, Version: "v1beta1", Kind: class.Kind}
	odd := schema.GroupVersionKind{Group: class.Group, Version: "v9", Kind: class.Kind}
	for cluster, gvk := range map[string]schema.GroupVersionKind{"oak": class, "elm": older, "ash": odd} {
		f.serve(gvk, "volumeattributesclasses", false, cluster)
		f.put(t, cluster, "volumeattributesclasses", newObject(gvk, "", "gold", "driverName=d"))
	}
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		path := "/apis/storage.k8s.io/" + version + "/volumeattributesclasses"
		resp, body := f.ask(t, http.MethodGet, path, "")
		if diff := cmp.Diff([]string{"elm//gold", "oak//gold"}, found(body)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
		for _, item := range body["items"].([]any) {
			o := unstructured.Unstructured{Object: item.(map[string]any)}
			if o.GetAPIVersion() != "storage.k8s.io/"+version || o.Object["driverName"] != "d" {
				t.Errorf("%s: %v", path, o)
			}
		}
		if warnings := strings.Join(resp.Header.Values("Warning"), " "); !strings.Contains(warnings, "ash are left out: they are in version v9") || strings.Contains(warnings, "elm") {
			t.Errorf("%s: %s", path, warnings)
		}
	}
	w := f.watch(t, "/apis/storage.k8s.io/v1/volumeattributesclasses?watch=1&resourceVersion="+f.version(t, "/apis/storage.k8s.io/v1/volumeattributesclasses"))
	f.put(t, "elm", "volumeattributesclasses", newObject(older, "", "silver"))
	f.put(t, "ash", "volumeattributesclasses", newObject(odd, "", "silver"))
	f.put(t, "oak", "volumeattributesclasses", newObject(class, "", "silver"))
	w.expect("ADDED elm//silver", "ADDED oak//silver")
	if resp, body := f.ask(t, http.MethodGet, "/apis/storage.k8s.io/v2/volumeattributesclasses", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("%d %v", resp.StatusCode, body)
	}
}

// TestVersionsThatAreNot: a list has no objects of a version that is not interchangeable with
// the requested one, also while a cluster changes from one version to the other. Requests for
// every version return each object once.
func TestVersionsThatAreNot(t *testing.T) {
	f := newFleet(t, "ash", "elm", "oak")
	claim := schema.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"}
	older, oldest := claim, claim
	older.Version, oldest.Version = "v1beta2", "v1beta1"
	f.serve(claim, "resourceclaims", true, "oak", "ash")
	f.serve(older, "resourceclaims", true, "elm")
	f.put(t, "oak", "resourceclaims", newObject(claim, "shop", "c"))
	f.put(t, "elm", "resourceclaims", newObject(older, "shop", "c"))
	// ash has not listed the objects of v1 yet.
	f.put(t, "ash", "resourceclaims", newObject(oldest, "shop", "c"))
	want := []string{"elm/shop/c", "oak/shop/c"}
	for _, path := range []string{"/apis/resource.k8s.io/v1/resourceclaims", "/apis/resource.k8s.io/v1beta2/resourceclaims", "/apis/resource.k8s.io/v1/resourceclaims?limit=5"} {
		_, body := f.ask(t, http.MethodGet, path, "")
		if diff := cmp.Diff(want, found(body)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
		_, raw := f.get(t, path, mediaProtobuf)
		if items := asJSON(t, mediaProtobuf, raw)["items"].([]any); len(items) != 2 {
			t.Errorf("%s: %d in protobuf", path, len(items))
		}
	}
	w := f.watch(t, "/apis/resource.k8s.io/v1/resourceclaims?watch=1")
	w.expect("ADDED elm/shop/c", "ADDED oak/shop/c")
	f.put(t, "ash", "resourceclaims", newObject(oldest, "shop", "d"), newObject(claim, "shop", "c"))
	w.expect("ADDED ash/shop/c")
	for _, path := range []string{"/search?q=kind:ResourceClaim", collectionPath + "any?resources=resourceclaims.resource.k8s.io"} {
		_, body := f.ask(t, http.MethodGet, path, "")
		got := found(body)
		slices.Sort(got)
		if diff := cmp.Diff([]string{"ash/shop/c", "elm/shop/c", "oak/shop/c"}, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

// TestPagesWhileVersionsChange: a cluster that joins with an interchangeable version between
// two pages does not end the list. If the queried clusters change, the token expires, and
// pagers list again.
func TestPagesWhileVersionsChange(t *testing.T) {
	f := newFleet(t, "ash", "elm", "oak")
	class := schema.GroupVersionKind{Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttributesClass"}
	older := schema.GroupVersionKind{Group: class.Group, Version: "v1beta1", Kind: class.Kind}
	odd := schema.GroupVersionKind{Group: class.Group, Version: "v9", Kind: class.Kind}
	f.serve(class, "volumeattributesclasses", false, "oak")
	f.put(t, "oak", "volumeattributesclasses", newObject(class, "", "gold"), newObject(class, "", "iron"))
	const path = "/apis/storage.k8s.io/v1/volumeattributesclasses?limit=1"
	next := func(token string) (reply, []string, string) {
		resp, body := f.ask(t, http.MethodGet, path+"&continue="+token, "")
		list := unstructured.UnstructuredList{Object: body}
		if resp.StatusCode != http.StatusOK {
			return resp, nil, ""
		}
		return resp, found(body), list.GetContinue()
	}
	_, first, token := next("")
	f.serve(older, "volumeattributesclasses", false, "elm")
	resp, second, _ := next(token)
	if want := []string{"oak//gold", "oak//iron"}; resp.StatusCode != http.StatusOK || !slices.Equal(append(first, second...), want) {
		t.Errorf("%d %v %v", resp.StatusCode, first, second)
	}
	f.serve(odd, "volumeattributesclasses", false, "ash")
	resp, body := f.ask(t, http.MethodGet, path+"&continue="+token, "")
	if resp.StatusCode != http.StatusGone || body["reason"] != string(metav1.StatusReasonExpired) {
		t.Errorf("%d %v", resp.StatusCode, body)
	}
	client, err := dynamic.NewForConfig(&rest.Config{Host: f.url})
	if err != nil {
		t.Fatal(err)
	}
	resource := client.Resource(class.GroupVersion().WithResource("volumeattributesclasses"))
	pages := listpager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list, err := resource.List(ctx, o)
		f.mirror.served["ash"] = nil // between the first page and the second
		return list, err
	})
	pages.PageSize = 1
	list, _, err := pages.List(t.Context(), metav1.ListOptions{})
	if err != nil || meta.LenList(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
}
