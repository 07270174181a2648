package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// manifestOf returns the template that a text describes, in a namespace.
func (f *fleet) manifestOf(ns, text string) *unstructured.Unstructured {
	f.t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(text, "NAMESPACE", ns)))
	f.must(err)
	o := &unstructured.Unstructured{}
	f.must(o.UnmarshalJSON(raw))
	o.SetUID(types.UID("template-" + ns + o.GetName()))
	return o
}

// live returns the object of a template in a cluster.
func (f *fleet) live(c client.Client, o *unstructured.Unstructured) *unstructured.Unstructured {
	f.t.Helper()
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(o.GroupVersionKind())
	f.must(c.Get(f.t.Context(), client.ObjectKeyFromObject(o), found))
	return found
}

func fieldsOf(o *unstructured.Unstructured, paths ...string) map[string]any {
	values := map[string]any{}
	for _, path := range paths {
		v, _, _ := unstructured.NestedFieldCopy(o.Object, strings.Split(path, ".")...)
		values[path] = v
	}
	return values
}

// Fields that a cluster's API server, controllers or users set in a copy stay when the template
// is edited. Each kind has its own case.
func TestWhatAClusterGivesACopyStays(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	clientset, err := kubernetes.NewForConfig(testenv.Config(oakServer))
	f.must(err)
	const pods = `metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}`

	for name, tc := range map[string]struct {
		manifest string
		// given acts as the controllers or users of the cluster; nil: only the API server acts.
		given func(ctx context.Context, ns string, o *unstructured.Unstructured) error
		// kept are the fields that must be set, and must stay.
		kept []string
		// edit changes the template, beside the label that each edit sets; nil: only the label.
		edit func(o *unstructured.Unstructured)
	}{
		"Pod": {
			manifest: `{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: NAMESPACE}, spec: {containers: [{name: c, image: i}]}}`,
			given: func(ctx context.Context, ns string, o *unstructured.Unstructured) error {
				return clientset.CoreV1().Pods(ns).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: o.GetName()}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, metav1.CreateOptions{})
			},
			kept: []string{"spec.nodeName", "spec.tolerations"},
			edit: func(o *unstructured.Unstructured) {
				_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "c", "image": "j"}}, "spec", "containers")
			},
		},
		"Service": {
			manifest: `{apiVersion: v1, kind: Service, metadata: {name: x, namespace: NAMESPACE}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: x}, ports: [{port: 80, protocol: TCP}]}}`,
			kept:     []string{"spec.clusterIP", "spec.clusterIPs", "spec.healthCheckNodePort", "spec.ports", "spec.ipFamilies"},
		},
		"PersistentVolumeClaim": {
			manifest: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, namespace: NAMESPACE}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedField(o.Object, "volume", "spec", "volumeName")
				return oak.Update(ctx, o, client.FieldOwner("kube-controller-manager"))
			},
			kept: []string{"spec.volumeName"},
		},
		"GrownPersistentVolumeClaim": {
			manifest: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x, namespace: NAMESPACE}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedField(o.Object, "volume", "spec", "volumeName")
				if err := oak.Update(ctx, o, client.FieldOwner("kube-controller-manager")); err != nil {
					return err
				}
				o.Object["status"] = map[string]any{"phase": "Bound", "capacity": map[string]any{"storage": "1Gi"}, "accessModes": []any{"ReadWriteOnce"}}
				if err := oak.Status().Update(ctx, o, client.FieldOwner("kube-controller-manager")); err != nil {
					return err
				}
				_ = unstructured.SetNestedField(o.Object, "5Gi", "spec", "resources", "requests", "storage")
				if err := oak.Update(ctx, o, client.FieldOwner("kubectl")); err != nil {
					return err
				}
				o.Object["status"].(map[string]any)["capacity"] = map[string]any{"storage": "5Gi"}
				return oak.Status().Update(ctx, o, client.FieldOwner("kube-controller-manager"))
			},
			kept: []string{"spec.resources.requests"},
		},
		"PersistentVolume": {
			manifest: `{apiVersion: v1, kind: PersistentVolume, metadata: {name: x-NAMESPACE}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /x}, claimRef: {namespace: shop, name: reserved}}}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedField(o.Object, "the-uid-of-the-claim", "spec", "claimRef", "uid")
				return oak.Update(ctx, o, client.FieldOwner("kube-controller-manager"))
			},
			kept: []string{"spec.claimRef"},
		},
		"ServiceAccount": {
			manifest: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NAMESPACE}, secrets: [{name: ours}]}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "ours"}, map[string]any{"name": "x-token-7k2p"}}, "secrets")
				_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "theirs"}}, "imagePullSecrets")
				return oak.Update(ctx, o, client.FieldOwner("kube-controller-manager"))
			},
			kept: []string{"secrets", "imagePullSecrets"},
		},
		"Secret": {
			manifest: `{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: NAMESPACE}, data: {ours: YQ==}}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedField(o.Object, "Yg==", "data", "theirs")
				return oak.Update(ctx, o, client.FieldOwner("injector"))
			},
			kept: []string{"data"},
		},
		"Job": {
			manifest: `{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: NAMESPACE}, spec: {parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`,
			kept:     []string{"spec.selector", "spec.template.metadata.labels"},
			edit: func(o *unstructured.Unstructured) {
				_ = unstructured.SetNestedField(o.Object, int64(3), "spec", "parallelism")
			},
		},
		"JobWithCompletions": {
			manifest: `{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: NAMESPACE}, spec: {parallelism: 2, completions: 7, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`,
			kept:     []string{"spec.completions"},
			edit: func(o *unstructured.Unstructured) { // another share of both
				_ = unstructured.SetNestedField(o.Object, int64(3), "spec", "parallelism")
				_ = unstructured.SetNestedField(o.Object, int64(9), "spec", "completions")
			},
		},
		"Ingress": {
			manifest: `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: x, namespace: NAMESPACE}, spec: {defaultBackend: {service: {name: x, port: {number: 80}}}}}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedField(o.Object, "theirs", "spec", "ingressClassName")
				return oak.Update(ctx, o, client.FieldOwner("kubectl"))
			},
			kept: []string{"spec.ingressClassName"},
		},
		"HorizontalPodAutoscaler": {
			manifest: `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: x, namespace: NAMESPACE}, spec: {maxReplicas: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}}`,
			given: func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
				_ = unstructured.SetNestedField(o.Object, int64(2), "spec", "minReplicas")
				return oak.Update(ctx, o, client.FieldOwner("kubectl"))
			},
			kept: []string{"spec.minReplicas", "spec.metrics"},
		},
		"DeploymentThatIsScaled": {
			manifest: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: NAMESPACE, labels: {resourcetemplate.orrery.dev/retain-replicas: "true"}}, spec: {replicas: 3, selector: {matchLabels: {app: x}}, template: {` + pods + `}}}`,
			given:    scaled(oak, 7),
			kept:     []string{"spec.replicas"},
			edit: func(o *unstructured.Unstructured) {
				_ = unstructured.SetNestedField(o.Object, int64(4), "spec", "replicas")
			},
		},
		"DeploymentThatIsNotScaledYet": {
			manifest: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: NAMESPACE, labels: {resourcetemplate.orrery.dev/retain-replicas: "true"}}, spec: {replicas: 3, selector: {matchLabels: {app: x}}, template: {` + pods + `}}}`,
			kept:     []string{"spec.replicas"},
		},
		"StatefulSetThatIsScaled": {
			manifest: `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, namespace: NAMESPACE, labels: {resourcetemplate.orrery.dev/retain-replicas: "true"}}, spec: {replicas: 3, serviceName: x, selector: {matchLabels: {app: x}}, template: {` + pods + `}}}`,
			given:    scaled(oak, 5),
			kept:     []string{"spec.replicas"},
		},
		"ControllerThatIsScaled": {
			manifest: `{apiVersion: v1, kind: ReplicationController, metadata: {name: x, namespace: NAMESPACE, labels: {resourcetemplate.orrery.dev/retain-replicas: "true"}}, spec: {replicas: 3, selector: {app: x}, template: {` + pods + `}}}`,
			given:    scaled(oak, 2),
			kept:     []string{"spec.replicas"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			template := f.manifestOf(ns, tc.manifest)
			result := f.place(template, "oak")
			result(workv1alpha2.ReasonFullyApplied)
			if tc.given != nil {
				f.eventually("the cluster does its part", func() error { return tc.given(t.Context(), ns, f.live(oak, template)) })
			}
			before := f.live(oak, template)
			want := fieldsOf(before, tc.kept...)
			for path, value := range want {
				if value == nil {
					t.Fatalf("%s was never set: %v", path, before.Object)
				}
			}

			edited := template.DeepCopy()
			edited.SetLabels(withLabel(edited.GetLabels(), "edited", "yes"))
			if tc.edit != nil {
				tc.edit(edited)
			}
			f.templates.set(edited)
			f.eventually("the edit arrives", func() error {
				if f.live(oak, template).GetLabels()["edited"] != "yes" {
					return errors.New("it has not")
				}
				return nil
			})
			after := f.live(oak, template)
			if diff := cmp.Diff(want, fieldsOf(after, tc.kept...)); diff != "" {
				t.Errorf("what the cluster gave was changed: -before +after:\n%s", diff)
			}
			if after.GetUID() != before.GetUID() {
				t.Error("it was made anew")
			}
			// And again, because we may own other fields after the first edit.
			again := edited.DeepCopy()
			again.SetLabels(withLabel(again.GetLabels(), "edited", "twice"))
			f.templates.set(again)
			f.eventually("the next edit arrives", func() error {
				if f.live(oak, template).GetLabels()["edited"] != "twice" {
					return errors.New("it has not")
				}
				return nil
			})
			if diff := cmp.Diff(want, fieldsOf(f.live(oak, template), tc.kept...)); diff != "" {
				t.Errorf("what the cluster gave was changed by the next edit: -before +after:\n%s", diff)
			}
			result(workv1alpha2.ReasonFullyApplied)
		})
	}
	f.unjoin("oak")
}

func withLabel(labels map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range labels {
		if k != key {
			out[k] = v
		}
	}
	return out
}

// scaled returns a function that scales a copy as an autoscaler does.
func scaled(c client.Client, replicas int64) func(context.Context, string, *unstructured.Unstructured) error {
	return func(ctx context.Context, _ string, o *unstructured.Unstructured) error {
		scale := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": replicas}}}
		scale.SetAPIVersion("autoscaling/v1")
		scale.SetKind("Scale")
		scale.SetNamespace(o.GetNamespace())
		scale.SetName(o.GetName())
		return c.SubResource("scale").Update(ctx, o, client.WithSubResourceBody(scale))
	}
}

// place binds a template of either scope, and returns a function that waits for a result.
func (f *fleet) place(o *unstructured.Unstructured, cluster string) (result func(reason string) Result) {
	f.t.Helper()
	if o.GetNamespace() != "" {
		b := f.bind(o, nil, cluster)
		return func(reason string) Result { return f.result(b, cluster, reason) }
	}
	f.templates.set(o)
	b := &workv1alpha2.ClusterResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Name: o.GetName(), Finalizers: []string{workv1alpha2.Finalizer}},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID()},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "ClusterPropagationPolicy", Name: "p"},
			Clusters:  targets([]string{cluster}),
		},
	}
	f.must(f.hub.Create(f.t.Context(), b))
	f.cleared(b)
	return func(reason string) Result { return f.result(b.Binding(), cluster, reason) }
}

// nodePorts returns the node ports of a Service in a cluster by port.
func (f *fleet) nodePorts(c client.Client, ns, name string) map[int32]int32 {
	f.t.Helper()
	s := &corev1.Service{}
	f.must(c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: name}, s))
	ports := map[int32]int32{}
	for _, p := range s.Spec.Ports {
		ports[p.Port] = p.NodePort
	}
	return ports
}

// TestNodePorts requests node ports below 30086. The API server chooses ports above, so the
// other Services of the cluster do not have these.
func TestNodePorts(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	service := func(ns, name string, nodePorts ...int) *unstructured.Unstructured {
		var ports []string
		for i, p := range nodePorts {
			ports = append(ports, fmt.Sprintf("{name: p%d, port: %d, protocol: TCP, nodePort: %d}", i, 80+i, p))
		}
		return f.manifestOf(ns, "{apiVersion: v1, kind: Service, metadata: {name: "+name+", namespace: NAMESPACE}, spec: {type: NodePort, selector: {app: x}, ports: ["+strings.Join(ports, ", ")+"]}}")
	}
	run := func(name string, test func(t *testing.T, ns string)) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			test(t, testenv.Namespace(t, testenv.Config(hubServer)))
		})
	}
	edited := func(c client.Client, o *unstructured.Unstructured) {
		f.t.Helper()
		o.SetLabels(withLabel(o.GetLabels(), "edited", "yes"))
		f.templates.set(o)
		f.eventually("the edit arrives", func() error {
			if f.live(c, o).GetLabels()["edited"] != "yes" {
				return errors.New("it has not")
			}
			return nil
		})
	}

	run("TheHubsWhereTheyAreFree", func(t *testing.T, ns string) {
		f.place(service(ns, "x", 30001, 30002), "oak")(workv1alpha2.ReasonFullyApplied)
		if diff := cmp.Diff(map[int32]int32{80: 30001, 81: 30002}, f.nodePorts(oak, ns, "x")); diff != "" {
			t.Error(diff)
		}
		moved := service(ns, "x", 30003, 30002)
		edited(oak, moved) // a node port from the hub follows the hub
		if diff := cmp.Diff(map[int32]int32{80: 30003, 81: 30002}, f.nodePorts(oak, ns, "x")); diff != "" {
			t.Error(diff)
		}
	})

	run("ItsOwnWhereTheyAreTaken", func(t *testing.T, ns string) {
		f.must(client.IgnoreAlreadyExists(oak.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})))
		theirs := service(ns, "theirs", 30011, 30013)
		theirs.SetUID("")
		f.must(oak.Create(t.Context(), theirs))
		result := f.place(service(ns, "x", 30011, 30012, 30013), "oak")
		result(workv1alpha2.ReasonFullyApplied)
		got := f.nodePorts(oak, ns, "x")
		if got[80] == 30011 || got[80] == 0 || got[81] != 30012 || got[82] == 30013 || got[82] == 0 {
			t.Errorf("the node ports are %v", got)
		}
		f.must(oak.Delete(t.Context(), theirs)) // free now, but the Service is in use
		edited(oak, service(ns, "x", 30011, 30012, 30013))
		result(workv1alpha2.ReasonFullyApplied)
		if diff := cmp.Diff(got, f.nodePorts(oak, ns, "x")); diff != "" {
			t.Errorf("a running Service did not keep its node ports:\n%s", diff)
		}
		taken := service(ns, "taken", 30014)
		taken.SetUID("")
		f.must(oak.Create(t.Context(), taken))
		// The hub asks for another port, which is taken: the Service keeps the one that it has.
		edited2 := service(ns, "x", 30011, 30014, 30013)
		edited2.SetLabels(map[string]string{"edited": "yes", "more": "yes"})
		f.templates.set(edited2)
		f.eventually("the edit arrives", func() error {
			if f.live(oak, edited2).GetLabels()["more"] != "yes" {
				return errors.New("it has not")
			}
			return nil
		})
		if diff := cmp.Diff(got, f.nodePorts(oak, ns, "x")); diff != "" {
			t.Errorf("a running Service did not keep its node ports:\n%s", diff)
		}
	})

	run("ItsOwnWhereTheyAreOutOfRange", func(t *testing.T, ns string) {
		f.place(service(ns, "x", 20080), "oak")(workv1alpha2.ReasonFullyApplied)
		if got := f.nodePorts(oak, ns, "x"); got[80] == 20080 || got[80] == 0 {
			t.Errorf("the node ports are %v", got)
		}
	})

	run("OtherErrorsAreNotHidden", func(t *testing.T, ns string) {
		o := service(ns, "x", 30021)
		_ = unstructured.SetNestedField(o.Object, "Nowhere", "spec", "sessionAffinity")
		if r := f.place(o, "oak")(workv1alpha2.ReasonRejected); !strings.Contains(r.Message, "sessionAffinity") {
			t.Errorf("the result says %q", r.Message)
		}
		found := &corev1.Service{}
		if err := oak.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "x"}, found); !apierrors.IsNotFound(err) {
			t.Errorf("there is %v (%v)", found, err)
		}
	})
	f.unjoin("oak")
}

func TestRetained(t *testing.T) {
	read := func(text string) *unstructured.Unstructured {
		t.Helper()
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		raw, err := o.MarshalJSON()
		if err == nil {
			err = o.UnmarshalJSON(raw) // integers, as an informer has them
		}
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	const service = `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {type: NodePort, ports: [{port: 80, protocol: TCP, nodePort: 31000}, {port: 80, protocol: UDP, nodePort: 31001}]}}`
	for name, tc := range map[string]struct {
		live string
		want []int64 // 0: none is sent
	}{
		"SameAsTheHub":  {`{apiVersion: v1, kind: Service, spec: {type: NodePort, ports: [{port: 80, protocol: TCP, nodePort: 31000}, {port: 80, protocol: UDP, nodePort: 31001}]}}`, []int64{31000, 31001}},
		"OneOfItsOwn":   {`{apiVersion: v1, kind: Service, spec: {type: NodePort, ports: [{port: 80, protocol: TCP, nodePort: 32000}, {port: 80, protocol: UDP, nodePort: 31001}]}}`, []int64{0, 31001}},
		"NoneYet":       {`{apiVersion: v1, kind: Service, spec: {type: ClusterIP, ports: [{port: 80, protocol: TCP}]}}`, []int64{31000, 31001}},
		"ANewPort":      {`{apiVersion: v1, kind: Service, spec: {type: NodePort, ports: [{port: 80, protocol: TCP, nodePort: 32000}]}}`, []int64{0, 31001}},
		"ItCameFromUs":  {`{apiVersion: v1, kind: Service, metadata: {managedFields: [{manager: orrery, operation: Apply, fieldsV1: {"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:nodePort": {}}}}}}]}, spec: {type: NodePort, ports: [{port: 80, protocol: TCP, nodePort: 32000}]}}`, []int64{31000, 31001}},
		"AnothersFrom":  {`{apiVersion: v1, kind: Service, metadata: {managedFields: [{manager: kubectl, operation: Update, fieldsV1: {"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:nodePort": {}}}}}}]}, spec: {type: NodePort, ports: [{port: 80, protocol: TCP, nodePort: 32000}]}}`, []int64{0, 31001}},
		"NotEvenPorts":  {`{apiVersion: v1, kind: Service, spec: {type: NodePort, ports: 7}}`, []int64{31000, 31001}},
		"OtherProtocol": {`{apiVersion: v1, kind: Service, spec: {type: NodePort, ports: [{port: 80, protocol: SCTP, nodePort: 32000}]}}`, []int64{31000, 31001}},
	} {
		t.Run(name, func(t *testing.T) {
			manifest := read(service)
			sent := retained(manifest, read(tc.live))
			if diff := cmp.Diff(read(service).Object, manifest.Object); diff != "" {
				t.Errorf("the manifest was changed:\n%s", diff)
			}
			ports, _, _ := unstructured.NestedSlice(sent.Object, "spec", "ports")
			var got []int64
			for _, p := range ports {
				n, _, _ := unstructured.NestedInt64(p.(map[string]any), "nodePort")
				got = append(got, n)
			}
			if !slices.Equal(tc.want, got) {
				t.Errorf("node ports %v are sent, want %v", got, tc.want)
			}
		})
	}
}

// An apply to an existing Job sends the completions that the Job has: a change would be
// refused.
func TestRetainedCompletions(t *testing.T) {
	job := func(completions int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "batch/v1", "kind": "Job", "spec": map[string]any{"parallelism": int64(2), "completions": completions},
		}}
	}
	manifest := job(4)
	sent := retained(manifest, job(7))
	if diff := cmp.Diff(job(7).Object, sent.Object); diff != "" || !retains(manifest) {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(job(4).Object, manifest.Object); diff != "" {
		t.Errorf("the manifest was changed:\n%s", diff)
	}
}
