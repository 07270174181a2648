package apply

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

func TestDifferences(t *testing.T) {
	const controller = `managedFields: [{manager: kube-controller-manager, operation: Update, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: `
	for name, tc := range map[string]struct {
		kind, manifest, created, live string
		want                          difference
	}{
		"Same":             {"ConfigMap", `data: {a: x}`, `data: {a: x}`, `data: {a: x}`, difference{}},
		"WhatWritesChange": {"ConfigMap", `{}`, `metadata: {name: t, uid: a, generation: 1}`, `{metadata: {name: x, uid: b, resourceVersion: "7", generation: 4, finalizers: [f]}, status: {a: b}}`, difference{}},
		"More":             {"ConfigMap", `data: {a: x}`, `data: {a: x}`, `data: {a: x, b: y}`, difference{Excess: []string{"data.b"}}},
		"Less":             {"ConfigMap", `data: {a: x}`, `data: {a: x}`, `{}`, difference{Other: []string{"data"}}},
		"Other":            {"ConfigMap", `data: {a: x}`, `data: {a: x}`, `data: {a: y}`, difference{Other: []string{"data.a"}}},
		"AnotherOrder":     {"Thing", `{}`, `spec: {env: [{name: a}, {name: b}]}`, `spec: {env: [{name: b}, {name: a}]}`, difference{Other: []string{"spec.env"}}},
		"AnEmptyMapSays":   {"Thing", `{}`, `spec: {from: [{pods: {}}]}`, `spec: {from: [{pods: {}, namespaces: {}}]}`, difference{Excess: []string{"spec.from[0].namespaces"}}},
		"MarksOfOthers": {
			"Thing", `{}`, `metadata: {}`, `metadata: {labels: {app.kubernetes.io/managed-by: Helm, helm.sh/chart: c, work.karmada.io/x: y}, annotations: {kubectl.kubernetes.io/last-applied-configuration: z}}`, difference{},
		},
		"StatusOfAnAutoscaler": {
			"HorizontalPodAutoscaler", `{}`, `metadata: {annotations: {a: b}}`, `metadata: {annotations: {a: b, autoscaling.alpha.kubernetes.io/conditions: "[]", autoscaling.alpha.kubernetes.io/current-metrics: "[]"}}`, difference{},
		},
		"ManagedByAnother": {
			"Thing", `{}`, `metadata: {}`, `metadata: {labels: {app.kubernetes.io/managed-by: me}}`, difference{Excess: []string{`metadata.labels."app.kubernetes.io/managed-by"`}},
		},
		"RestartedThere":         {"Thing", `{}`, `spec: {template: {metadata: {annotations: {a: b}}}}`, `spec: {template: {metadata: {annotations: {a: b, kubectl.kubernetes.io/restartedAt: now}}}}`, difference{}},
		"RestartedByTheTemplate": {"Thing", `{}`, `spec: {template: {metadata: {annotations: {kubectl.kubernetes.io/restartedAt: x}}}}`, `spec: {template: {metadata: {annotations: {kubectl.kubernetes.io/restartedAt: y}}}}`, difference{Other: []string{`spec.template.metadata.annotations."kubectl.kubernetes.io/restartedAt"`}}},
		"OfAController": {
			"Thing", `{}`, `{metadata: {}, spec: {replicas: 1}}`, `{metadata: {annotations: {a: b}, ` + controller + `{"f:metadata":{"f:annotations":{"f:a":{}}},"f:spec":{"f:replicas":{}}}}]}, spec: {replicas: 5}}`, difference{},
		},
		"PodsOfAController": {
			"Thing", `{}`, `spec: {template: {spec: {a: b}}}`, `{metadata: {` + controller + `{"f:spec":{"f:template":{"f:spec":{"f:hostNetwork":{}}}}}}]}, spec: {template: {spec: {a: b, hostNetwork: true}}}}`,
			difference{Excess: []string{"spec.template.spec.hostNetwork"}},
		},
		"OwnedByAController": {
			"Thing", `{}`, `{}`, `metadata: {ownerReferences: [{name: d, uid: u}], ` + controller + `{"f:metadata":{"f:ownerReferences":{".":{},"k:{\"uid\":\"u\"}":{}}}}}]}`,
			difference{Excess: []string{"metadata.ownerReferences[d]"}},
		},
		"ItsOwnAddress": {"Service", `spec: {}`, `spec: {clusterIP: 10.0.0.1, ports: [{port: 80, nodePort: 1}]}`, `spec: {clusterIP: 10.0.0.2, ports: [{port: 80, nodePort: 2}]}`, difference{}},
		"WithoutAnAddress": {
			"Service", `spec: {clusterIP: None}`, `spec: {clusterIP: None}`, `spec: {clusterIP: 10.0.0.2}`, difference{Other: []string{"spec.clusterIP"}},
		},
		"WithAnAddress": {"Service", `spec: {}`, `spec: {clusterIP: 10.0.0.2}`, `spec: {clusterIP: None}`, difference{Other: []string{"spec.clusterIP"}}},
		"ATokenOfAPod": {
			"Pod", `{}`, `spec: {volumes: [{name: kube-api-access-a}], containers: [{name: c, volumeMounts: [{name: kube-api-access-a, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}]}`,
			`spec: {nodeName: n, volumes: [{name: kube-api-access-b}], containers: [{name: c, volumeMounts: [{name: kube-api-access-b, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}]}`,
			difference{},
		},
		"BundleOfAnInjector": {
			"ValidatingWebhookConfiguration", `{apiVersion: admissionregistration.k8s.io/v1, webhooks: [{name: a, clientConfig: {url: u}}]}`, `webhooks: [{name: a, clientConfig: {url: u}}]`,
			`webhooks: [{name: a, clientConfig: {url: u, caBundle: x}}]`,
			difference{},
		},
		"BundleOfTheTemplate": {
			"ValidatingWebhookConfiguration", `{apiVersion: admissionregistration.k8s.io/v1, webhooks: [{name: a, clientConfig: {url: u, caBundle: y}}]}`,
			`webhooks: [{name: a, clientConfig: {url: u, caBundle: y}}]`, `webhooks: [{name: a, clientConfig: {url: u, caBundle: x}}]`,
			difference{Other: []string{"webhooks[a].clientConfig.caBundle"}},
		},
		"ABoundClaim": {"PersistentVolumeClaim", `spec: {}`, `spec: {size: 1}`, `spec: {size: 1, volumeName: v}`, difference{}},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(text string) *unstructured.Unstructured {
				if !strings.HasPrefix(text, "{") {
					text = "{" + text + "}"
				}
				o := parsed(t, "apiVersion: v1\nkind: "+tc.kind+"\nfields: "+text)
				fields, _ := o.Object["fields"].(map[string]any)
				delete(o.Object, "fields")
				maps.Copy(o.Object, fields)
				return o
			}
			got := differences(of(tc.manifest), of(tc.created), of(tc.live))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFreeName(t *testing.T) {
	for name, want := range map[string]string{
		"web": "web-abcde", strings.Repeat("a", 63): strings.Repeat("a", 57) + "-abcde", strings.Repeat("a", 33) + "..." + strings.Repeat("b", 4): strings.Repeat("a", 33) + "-abcde",
	} {
		if got := freeName(name, "abcde"); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// handOver transfers all fields that others own to the hub, except those that the cluster keeps
// and those of controllers.
func TestHandOver(t *testing.T) {
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, version, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: operation, APIVersion: version, Subresource: subresource, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	live := parsed(t, "{apiVersion: v1, kind: Service, metadata: {labels: {a: b}}, spec: {x: y, ports: [{port: 80, protocol: TCP, nodePort: 30000, name: n}]}}")
	live.SetManagedFields([]metav1.ManagedFieldsEntry{
		entry("kubectl", metav1.ManagedFieldsOperationUpdate, "v1", "", `{"f:metadata":{"f:annotations":{"f:meta.helm.sh/release-name":{}},"f:labels":{"f:a":{}}},"f:spec":{"f:clusterIP":{},"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:nodePort":{},"f:name":{}}}}}`),
		entry("helm", metav1.ManagedFieldsOperationApply, "v0", "", `{"f:spec":{"f:x":{},"f:old":{}}}`),
		entry("kube-controller-manager", metav1.ManagedFieldsOperationUpdate, "v1", "status", `{"f:status":{}}`),
		entry("kube-controller-manager", metav1.ManagedFieldsOperationUpdate, "v1", "", `{"f:spec":{"f:x":{}}}`),
	})
	got, changed := handOver(parsed(t, "{apiVersion: v1, kind: Service, spec: {}}"), live, everybodys, time.Unix(0, 0))
	if !changed {
		t.Fatal("nothing is handed over")
	}
	said := map[string]string{}
	for _, e := range got {
		said[e.Manager+" "+string(e.Operation)+" "+e.Subresource] = string(e.FieldsV1.GetRawBytes())
	}
	want := map[string]string{
		workv1alpha2.FieldManager + " Apply ":   `{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{}}},"f:x":{}}}`,
		"kubectl Update ":                       `{"f:metadata":{"f:annotations":{"f:meta.helm.sh/release-name":{}}},"f:spec":{"f:clusterIP":{},"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{"f:nodePort":{}}}}}`,
		"kube-controller-manager Update status": `{"f:status":{}}`,
		"kube-controller-manager Update ":       `{"f:spec":{"f:x":{}}}`,
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	live.SetManagedFields(got)
	if _, again := handOver(parsed(t, "{apiVersion: v1, kind: Service, spec: {}}"), live, everybodys, time.Unix(0, 0)); again {
		t.Error("the next one changes something, too")
	}
}
