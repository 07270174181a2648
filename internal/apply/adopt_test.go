package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

// fleetOfOne returns a running fleet with the member oak, and a client of oak.
func fleetOfOne(t *testing.T) (*fleet, client.Client) {
	t.Helper()
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	return f, f.client(testenv.Config(oakServer))
}

// adoptable creates a namespace on the hub and in the cluster of c, and returns its name.
// Policies in the hub's namespace may adopt objects of the cluster's.
func (f *fleet) adoptable(c client.Client) string {
	f.t.Helper()
	ns := testenv.Namespace(f.t, testenv.Config(hubServer))
	f.must(client.IgnoreAlreadyExists(c.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})))
	f.must(f.hub.Patch(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+workv1alpha2.AllowTakeOverLabel+`":"true"}}}`))))
	return ns
}

// patched returns a copy of o with the maps of patch merged into it. Unlike in a merge patch,
// null stays as a value.
func (f *fleet) patched(o *unstructured.Unstructured, patch string) *unstructured.Unstructured {
	f.t.Helper()
	o = o.DeepCopy()
	var merge func(into, from map[string]any)
	merge = func(into, from map[string]any) {
		for name, v := range from {
			is, isMap := into[name].(map[string]any)
			of, both := v.(map[string]any)
			if isMap && both {
				merge(is, of)
				continue
			}
			into[name] = v
		}
	}
	merge(o.Object, parsed(f.t, "apiVersion: v1\nkind: Patch\npatch: "+patch).Object["patch"].(map[string]any))
	return o
}

// has creates an object in a cluster with a field manager, as a client of that cluster would.
func (f *fleet) has(c client.Client, o *unstructured.Unstructured, manager string) *unstructured.Unstructured {
	f.t.Helper()
	o = o.DeepCopy()
	o.SetUID("")
	o.SetResourceVersion("")
	f.must(c.Create(f.t.Context(), o, client.FieldOwner(manager)))
	return o
}

// seen waits until the mirror has an object of oak. It returns at once if the mirror has not
// listed the type yet: the first list will contain the object.
func (f *fleet) seen(o *unstructured.Unstructured) {
	f.t.Helper()
	m, _ := f.registry.Member("oak")
	api, _ := m.APIs().Kind(o.GroupVersionKind())
	resource := api.GroupVersionResource().GroupResource()
	if !f.mirror.Synced("oak", resource) {
		return
	}
	f.eventually("the mirror has "+o.GetName(), func() error {
		if is, _ := f.mirror.Lookup("oak", resource, o.GetNamespace(), o.GetName()); is != presence.Present {
			return fmt.Errorf("it is %v", is)
		}
		return nil
	})
}

func overwrites(s *workv1alpha2.BindingSpec) {
	s.ConflictResolution = policyv1alpha1.ConflictOverwrite
}

const podTemplate = `metadata: {labels: {app: x}}, spec: {containers: [{name: web, image: "nginx:1"}]}`

// supersets has a template for each kind, a patch that adds something to it (more), and the
// path of the addition as messages name it (field).
var supersets = map[string]struct{ template, more, field string }{
	"Deployment": {
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: NAMESPACE}, spec: {selector: {matchLabels: {app: x}}, template: {` + podTemplate + `}}}`,
		`{spec: {template: {spec: {containers: [{name: web, image: "nginx:1"}, {name: miner, image: m, securityContext: {privileged: true}}]}}}}`, "spec.template.spec.containers[miner]",
	},
	"DaemonSet": {
		`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: x, namespace: NAMESPACE}, spec: {selector: {matchLabels: {app: x}}, template: {` + podTemplate + `}}}`,
		`{spec: {template: {spec: {initContainers: [{name: i, image: m}]}}}}`, "spec.template.spec.initContainers",
	},
	"StatefulSet": {
		`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, namespace: NAMESPACE}, spec: {serviceName: x, selector: {matchLabels: {app: x}}, template: {` + podTemplate + `}}}`,
		`{spec: {template: {spec: {hostNetwork: true}}}}`, "spec.template.spec.hostNetwork",
	},
	"CronJob": {
		`{apiVersion: batch/v1, kind: CronJob, metadata: {name: x, namespace: NAMESPACE}, spec: {schedule: "1 1 1 1 1", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}`,
		`{spec: {timeZone: Europe/Rome}}`, "spec.timeZone",
	},
	"Job": {
		`{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: NAMESPACE}, spec: {completions: 3, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`,
		`{spec: {activeDeadlineSeconds: 700}}`, "spec.activeDeadlineSeconds",
	},
	"NetworkPolicy": {
		`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x, namespace: NAMESPACE}, spec: {podSelector: {matchLabels: {app: x}}, policyTypes: [Ingress]}}`,
		`{spec: {ingress: [{}]}}`, "spec.ingress",
	},
	"ConfigMap": {
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NAMESPACE}, data: {a: "1"}}`, `{data: {old: "2"}}`, "data.old",
	},
	"Ingress": {
		`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: x, namespace: NAMESPACE}, spec: {defaultBackend: {service: {name: x, port: {number: 80}}}}}`,
		`{spec: {tls: [{hosts: [a.example.org], secretName: s}]}}`, "spec.tls",
	},
	"ServiceAccount": {
		`{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NAMESPACE}}`,
		`{metadata: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/admin"}}}`, `metadata.annotations."eks.amazonaws.com/role-arn"`,
	},
	"HorizontalPodAutoscaler": {
		`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: x, namespace: NAMESPACE}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}, minReplicas: 1, maxReplicas: 5}}`,
		`{spec: {behavior: {scaleDown: {selectPolicy: Disabled}}}}`, "spec.behavior",
	},
	"Service": {
		`{apiVersion: v1, kind: Service, metadata: {name: x, namespace: NAMESPACE}, spec: {selector: {app: x}, ports: [{name: http, port: 80, protocol: TCP}]}}`,
		`{spec: {ports: [{name: http, port: 80, protocol: TCP}, {name: debug, port: 6060, protocol: TCP}]}}`, "spec.ports[debug]",
	},
	"LoadBalancer": {
		`{apiVersion: v1, kind: Service, metadata: {name: x, namespace: NAMESPACE}, spec: {type: LoadBalancer, selector: {app: x}, ports: [{name: http, port: 80, protocol: TCP}]}}`,
		`{spec: {externalIPs: [10.9.9.9]}}`, "spec.externalIPs",
	},
	"Role": {
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: x, namespace: NAMESPACE}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`,
		`{rules: [{apiGroups: [""], resources: [pods], verbs: [get]}, {apiGroups: [""], resources: [secrets], verbs: [get]}]}`, "rules",
	},
}

// A PersistentVolumeClaim that requests more than its template was enlarged in its cluster. It
// is adopted, and keeps its request.
func TestAGrownClaimIsAdopted(t *testing.T) {
	f, oak := fleetOfOne(t)
	template := f.manifestOf(f.adoptable(oak), `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, namespace: NAMESPACE}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
	was := f.has(oak, f.patched(template, `{spec: {resources: {requests: {storage: 5Gi}}}}`), "kubectl-create")
	b := f.bind(template, nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	now := f.live(oak, template)
	if got, _ := storage(now); got.String() != "5Gi" || now.GetUID() != was.GetUID() || now.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginAdopted {
		t.Errorf("it requests %s, and its annotations are %v", got.String(), now.GetAnnotations())
	}
	f.unjoin("oak")
}

// An object with one field more than its template is not adopted, and the result names the
// field. If the policy overwrites, that field is removed. An equal object is adopted.
func TestAdoptedMeansEqual(t *testing.T) {
	f, oak := fleetOfOne(t)
	for name, tc := range supersets {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := f.adoptable(oak)
			template := f.manifestOf(ns, tc.template)
			was := f.has(oak, f.patched(template, tc.more), "kubectl-create")
			f.seen(was)
			b := f.bind(template, nil, "oak")
			r := f.result(b, "oak", workv1alpha2.ReasonConflict)
			if !strings.Contains(r.Message, tc.field) {
				t.Errorf("the message is %q, want one that names %s", r.Message, tc.field)
			}
			if now := f.live(oak, template); now.GetResourceVersion() != was.GetResourceVersion() && name != "Job" {
				t.Error("it was written")
			}
			f.edit(b, overwrites)
			path := strings.Split(strings.ReplaceAll(tc.field, `"`, ""), ".")
			if name == "Job" { // the template of its pods is immutable, unlike this field
				path = []string{"spec", "activeDeadlineSeconds"}
			}
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			now := f.live(oak, template)
			_, element, named := strings.Cut(tc.field, "[")
			if text := string(encoded(now.Object)); named && strings.Contains(text, `"`+strings.TrimSuffix(element, "]")+`"`) {
				t.Errorf("%s did not go: %s", tc.field, text)
			} else if name == "ServiceAccount" && strings.Contains(text, "role-arn\":\"") {
				t.Errorf("the annotation did not go: %s", text)
			} else if _, left, _ := unstructured.NestedFieldNoCopy(now.Object, path...); left && name != "Role" {
				t.Errorf("%s did not go", tc.field)
			} else if strings.Contains(text, "secrets") && name == "Role" {
				t.Errorf("the rule did not go: %s", text)
			}
			if now.GetUID() != was.GetUID() || now.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginTakenOver {
				t.Errorf("UID %s, want %s; annotations %v", now.GetUID(), was.GetUID(), now.GetAnnotations())
			}

			equal := template.DeepCopy()
			equal.SetName("equal")
			equal.SetUID(types.UID("equal-" + ns))
			marked := f.patched(equal, `{metadata: {labels: {app.kubernetes.io/managed-by: Helm, propagationpolicy.karmada.io/name: p}, annotations: {meta.helm.sh/release-name: r, kubectl.kubernetes.io/last-applied-configuration: "{}"}}}`)
			before := f.has(oak, marked, "kubectl-client-side-apply")
			f.seen(before)
			f.result(f.bind(equal, nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
			after := f.live(oak, equal)
			if after.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginAdopted {
				t.Errorf("what is equal has annotations %v", after.GetAnnotations())
			}
			if after.GetAnnotations()["meta.helm.sh/release-name"] != "r" || after.GetLabels()["propagationpolicy.karmada.io/name"] != "p" {
				t.Errorf("the marks of others went: %v %v", after.GetLabels(), after.GetAnnotations())
			}
			if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" && name != "Job" || before.GetUID() != after.GetUID() {
				t.Errorf("adoption changed it:\n%s", diff)
			}
		})
	}
	f.unjoin("oak")
}

// A field manager is only a name. Containers do not belong to a controller because an entry of
// managedFields names kube-controller-manager.
func TestAForgedManagerOwnsNoPods(t *testing.T) {
	f, oak := fleetOfOne(t)
	ns := f.adoptable(oak)
	f.level(f.hub, ns, "baseline")
	template := f.manifestOf(ns, supersets["Deployment"].template)
	was := f.has(oak, f.patched(template, supersets["Deployment"].more), "kube-controller-manager")
	b := f.bind(template, nil, "oak")
	if r := f.result(b, "oak", workv1alpha2.ReasonConflict); !strings.Contains(r.Message, "containers[miner]") {
		t.Errorf("the message is %q", r.Message)
	}
	if now := f.live(oak, template); now.GetResourceVersion() != was.GetResourceVersion() {
		t.Errorf("it was written: %v", now.GetAnnotations())
	}
	f.edit(b, overwrites)
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	if text := string(encoded(f.live(oak, template).Object)); strings.Contains(text, `"miner"`) {
		t.Errorf("what it ran is left: %s", text)
	}
	f.unjoin("oak")
}

// A field that is removed from an adopted template is removed in the cluster. An edit arrives
// even if it would be invalid beside the former fields.
func TestAnAdoptedObjectIsTheTemplate(t *testing.T) {
	f, oak := fleetOfOne(t)
	for name, manager := range map[string]string{"Applied": "kubectl-client-side-apply", "Created": "kubectl-create"} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := f.adoptable(oak)
			deployment := f.manifestOf(ns, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: legacy, namespace: NAMESPACE, labels: {tier: old, team: a}}, spec: {selector: {matchLabels: {app: x}},
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}},
  template: {metadata: {labels: {app: x}}, spec: {containers: [{name: web, image: "nginx:1", env: [{name: A, value: "1"}, {name: DEBUG, value: "true"}]}, {name: sidecar, image: b}]}}}}`)
			service := f.manifestOf(ns, `{apiVersion: v1, kind: Service, metadata: {name: legacy, namespace: NAMESPACE}, spec: {selector: {app: x}, ports: [{name: http, port: 80, protocol: TCP, targetPort: 8080}]}}`)
			config := f.manifestOf(ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: legacy, namespace: NAMESPACE}, data: {feature-x: "on", feature-y: "on"}}`)
			config.SetUID("config-" + types.UID(ns))
			service.SetUID("service-" + types.UID(ns))
			deployment.SetUID("deployment-" + types.UID(ns))
			bindings := map[string]*workv1alpha2.ResourceBinding{}
			for i, o := range []*unstructured.Unstructured{deployment, service, config} {
				f.has(oak, o, manager)
				o = o.DeepCopy()
				f.templates.set(o)
				b := &workv1alpha2.ResourceBinding{
					ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("b%d", i), Finalizers: []string{workv1alpha2.Finalizer}},
					Spec: workv1alpha2.BindingSpec{
						Resource:  workv1alpha2.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID()},
						PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"}, Clusters: targets([]string{"oak"}),
					},
				}
				f.must(f.hub.Create(t.Context(), b))
				bindings[o.GetKind()] = b
				f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			}
			edit := func(o *unstructured.Unstructured, patch string) {
				f.t.Helper()
				o = f.patched(o, patch)
				for _, name := range []string{"labels", "data"} {
					at := o.Object
					if name == "labels" {
						at = o.Object["metadata"].(map[string]any)
					}
					if m, ok := at[name].(map[string]any); ok {
						for k, v := range m {
							if v == nil {
								delete(m, k)
							}
						}
					}
				}
				digest := f.live(oak, o).GetAnnotations()[workv1alpha2.DigestAnnotation]
				f.templates.set(o)
				f.eventually("the edit of "+o.GetKind(), func() error { return f.appliedDigest(bindings[o.GetKind()], "oak", digest) })
			}
			edit(deployment, `{metadata: {labels: {tier: null}}, spec: {strategy: {type: Recreate, rollingUpdate: null}, template: {spec: {containers: [{name: web, image: "nginx:2", env: [{name: A, value: "1"}]}]}}}}`)
			edit(service, `{spec: {ports: [{name: http, port: 8080, protocol: TCP, targetPort: 8080}]}}`)
			edit(config, `{data: {feature-y: null}}`)
			now := f.live(oak, deployment)
			text := string(encoded(now.Object["spec"]))
			for _, gone := range []string{"sidecar", "DEBUG", "rollingUpdate", "nginx:1"} {
				if strings.Contains(text, gone) {
					t.Errorf("%s is left: %s", gone, text)
				}
			}
			if labels := now.GetLabels(); labels["tier"] != "" || labels["team"] != "a" {
				t.Errorf("the labels are %v", labels)
			}
			ports, _, _ := unstructured.NestedSlice(f.live(oak, service).Object, "spec", "ports")
			if len(ports) != 1 || ports[0].(map[string]any)["port"] != int64(8080) {
				t.Errorf("the ports are %v", ports)
			}
			if diff := cmp.Diff(map[string]any{"feature-x": "on"}, f.live(oak, config).Object["data"]); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("MadeAnewWithOurMarks", func(t *testing.T) {
		f.t = t
		defer func() { f.t = f.whole }()
		ns := f.adoptable(oak)
		template := f.manifestOf(ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NAMESPACE}, data: {a: "1", b: "2"}}`)
		b := f.bind(template, func(s *workv1alpha2.BindingSpec) {}, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.stop()
		saved := f.live(oak, template)
		f.must(oak.Delete(t.Context(), saved.DeepCopy()))
		saved.SetManagedFields(nil)
		saved.SetResourceVersion("")
		f.has(oak, saved, "kubectl-create")
		f.start()
		f.eventually("it is the hub's", func() error {
			if ownSet(f.live(oak, template), "v1") == nil {
				return errors.New("it is not")
			}
			return nil
		})
		digest := f.live(oak, template).GetAnnotations()[workv1alpha2.DigestAnnotation]
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.templates.set(f.manifestOf(ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NAMESPACE}, data: {a: "1"}}`))
		f.eventually("the edit", func() error { return f.appliedDigest(b, "oak", digest) })
		if diff := cmp.Diff(map[string]any{"a": "1"}, f.live(oak, template).Object["data"]); diff != "" {
			t.Errorf("data (-want +got):\n%s", diff)
		}
	})
	f.unjoin("oak")
}

// The replicas that an autoscaler set never become those of the template: not if the hub stops
// between the two writes of an adoption, not when the copy is repaired, not when its image
// changes, and not when it is taken back after its cluster was out of the fleet.
func TestAnAutoscalersReplicasStay(t *testing.T) {
	f := newFleet(t)
	var mu sync.Mutex
	var verbs []string
	die := make(chan struct{})
	block := false
	f.start()
	f.join("oak", f.door(oakServer, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/deployments/x") {
			return false
		}
		mu.Lock()
		verbs = append(verbs, r.Header.Get("Content-Type"))
		blocked := block && r.Header.Get("Content-Type") == string(types.ApplyPatchType)
		if blocked {
			block = false
			close(die)
		}
		mu.Unlock()
		if blocked {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return blocked
	}))
	oak := f.client(testenv.Config(oakServer))
	ns := f.adoptable(oak)
	template := f.manifestOf(ns, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: NAMESPACE}, spec: {replicas: 2, selector: {matchLabels: {app: x}}, template: {`+podTemplate+`}}}`)
	was := f.has(oak, template, "kubectl-create")
	f.must(scaled(oak, 5)(t.Context(), ns, was))
	replicas := func(when string, want int64) {
		t.Helper()
		if n, _, _ := unstructured.NestedInt64(f.live(oak, template).Object, "spec", "replicas"); n != want {
			t.Errorf("%s there are %d replicas, want %d", when, n, want)
		}
	}
	f.eventually("the hub has seen the object", func() error {
		is, _ := f.mirror.Lookup("oak", schema.GroupResource{Group: "apps", Resource: "deployments"}, ns, "x")
		if is != presence.Present {
			return errors.New("it has not")
		}
		return nil
	})
	mu.Lock()
	block = true
	mu.Unlock()
	b := f.bind(template, nil, "oak")
	<-die
	f.stop()
	replicas("after a hub died", 5)
	f.start()
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	replicas("adopted", 5)
	mu.Lock()
	if verbs[0] != string(types.JSONPatchType) {
		t.Errorf("the writes are %v, want the fields to be handed over first", verbs)
	}
	mu.Unlock()

	image := func(o *unstructured.Unstructured) string {
		return string(encoded(o.Object["spec"].(map[string]any)["template"]))
	}
	edited := f.live(oak, template)
	f.must(oak.Patch(t.Context(), edited, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"edited"}]`))))
	f.eventually("it is repaired", func() error {
		if strings.Contains(image(f.live(oak, template)), "edited") {
			return errors.New("it is not")
		}
		return nil
	})
	replicas("repaired", 5)

	f.must(scaled(oak, 7)(t.Context(), ns, f.live(oak, template)))
	digest := f.live(oak, template).GetAnnotations()[workv1alpha2.DigestAnnotation]
	f.templates.set(f.patched(template, `{spec: {template: {spec: {containers: [{name: web, image: "nginx:2"}]}}}}`))
	f.eventually("the edit", func() error { return f.appliedDigest(b, "oak", digest) })
	replicas("edited", 7)
	f.unjoin("oak")

	// An object that the hub created is scaled while its cluster is out of the fleet.
	f.join("yew", testenv.Kubeconfig(oakServer))
	own := f.patched(template, `{metadata: {name: own, uid: own}}`)
	c := f.bind(own, nil, "yew")
	f.result(c, "yew", workv1alpha2.ReasonFullyApplied)
	f.unjoin("yew")
	f.must(scaled(oak, 6)(t.Context(), ns, f.live(oak, own)))
	f.join("yew", testenv.Kubeconfig(oakServer))
	f.result(c, "yew", workv1alpha2.ReasonFullyApplied)
	if n, _, _ := unstructured.NestedInt64(f.live(oak, own).Object, "spec", "replicas"); n != 6 {
		t.Errorf("taken back it has %d replicas, want 6", n)
	}
	f.unjoin("yew")
}

// A copy that an earlier version of the hub adopted is not written after an upgrade. The result
// names the fields that the next change of the template will remove.
func TestACopyThatAnEarlierVersionAdopted(t *testing.T) {
	f, oak := fleetOfOne(t)
	ns := f.adoptable(oak)
	template := f.manifestOf(ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NAMESPACE}, data: {a: "1"}}`)
	f.has(oak, template, "kubectl-create")
	b := f.bind(template, nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	f.stop()
	// The copy as an earlier version left it: its creator owns a field that the template lacks.
	o := f.live(oak, template)
	var entries []metav1.ManagedFieldsEntry
	for _, e := range o.GetManagedFields() {
		if isOurs(e) {
			e.FieldsV1 = encodedSet(merge(fieldsIn(e), nil))
			entries = append(entries, e)
		}
	}
	entries = append(entries, metav1.ManagedFieldsEntry{
		Manager: "kubectl-create", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: entries[0].Time, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:data":{".":{},"f:a":{},"f:old":{}}}`),
	}, metav1.ManagedFieldsEntry{
		Manager: "injector", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: entries[0].Time, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:theirs":{}}}`),
	})
	f.must(oak.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"data":{"old":"2","theirs":"3"}}`)), client.FieldOwner("injector")))
	patch, err := json.Marshal([]map[string]any{
		{"op": "remove", "path": "/metadata/annotations/" + strings.ReplaceAll(workv1alpha2.OwnedAnnotation, "/", "~1")},
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
	})
	f.must(err)
	f.must(oak.Patch(t.Context(), o, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner("kubectl-create")))
	writes := f.calls("") + f.calls("own")
	says := func() {
		t.Helper()
		f.eventually("the binding says what goes", func() error {
			r, _ := f.applier.Result(b.UID, "oak")
			if !r.Applied || !strings.Contains(r.Message, "data.old") || strings.Contains(r.Message, "theirs") {
				return fmt.Errorf("the result is %+v", r)
			}
			return nil
		})
	}
	f.records = newMemory() // because our fields of the copy are not the recorded ones
	f.start()
	says()
	f.stop()
	kept, err := f.records.Results(t.Context(), b.UID)
	f.must(err)
	for i := range kept {
		kept[i].Message = "" // earlier versions recorded no message
	}
	f.records.Applied(kept...)
	f.start()
	says()
	want := map[string]any{"a": "1", "old": "2", "theirs": "3"}
	if diff := cmp.Diff(want, f.live(oak, template).Object["data"]); diff != "" || f.calls("")+f.calls("own") != writes {
		t.Errorf("the upgrade wrote to it:\n%s", diff)
	}
	digest := o.GetAnnotations()[workv1alpha2.DigestAnnotation]
	f.templates.set(f.manifestOf(ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: NAMESPACE}, data: {a: "2"}}`))
	f.eventually("the edit", func() error { return f.appliedDigest(b, "oak", digest) })
	if diff := cmp.Diff(map[string]any{"a": "2", "theirs": "3"}, f.live(oak, template).Object["data"]); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	if r, _ := f.applier.Result(b.UID, "oak"); r.Message != "" {
		t.Errorf("it says %q still", r.Message)
	}
	f.unjoin("oak")
}

// Controllers copy annotations to the objects that they create. Our marks on an object that a
// controller owns do not make it a copy.
func TestMarksThatAControllerCopied(t *testing.T) {
	f, oak := fleetOfOne(t)
	ns := f.adoptable(oak)
	template := f.manifestOf(ns, `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: x, namespace: NAMESPACE}, spec: {selector: {matchLabels: {app: x}}, template: {`+podTemplate+`}}}`)
	theirs := template.DeepCopy()
	theirs.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "x", UID: "d", Controller: new(true)}})
	source := f.applier.key().Sign(mark.Source{Template: template.GetUID()})
	theirs.SetAnnotations(map[string]string{
		workv1alpha2.SourceAnnotation: source, workv1alpha2.OriginAnnotation: workv1alpha2.OriginAdopted, workv1alpha2.DigestAnnotation: "d",
		workv1alpha2.OrphanAnnotation: mark.Orphan{Hub: f.hubID, Template: template.GetUID()}.String(),
	})
	was := f.has(oak, theirs, "kube-controller-manager")
	b := f.bind(template, nil, "oak")
	// The first conflict may only say that the mirror is behind.
	f.eventually("the conflict names the owner references", func() error {
		if r, _ := f.applier.Result(b.UID, "oak"); r.Reason != workv1alpha2.ReasonConflict || !strings.Contains(r.Message, "metadata.ownerReferences") {
			return fmt.Errorf("the result is %+v", r)
		}
		return nil
	})
	if now := f.live(oak, template); now.GetResourceVersion() != was.GetResourceVersion() {
		t.Errorf("it was written: %v", now.GetAnnotations())
	}
	f.unjoin("oak")
}
