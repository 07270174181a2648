package addon

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ref identifies an object. It has no version, because an object is the same in all versions.
type ref struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns the name of the object in messages.
func (r ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

func (r ref) groupKind() schema.GroupKind { return schema.GroupKind{Group: r.Group, Kind: r.Kind} }

// refOf returns the reference of an object, with namespace as the default. It knows the
// cluster-scoped kinds of Kubernetes. For other kinds only the API server knows the scope, see
// resolve.
func refOf(o *unstructured.Unstructured, namespace string) ref {
	gk := kindOf(o)
	r := ref{Group: gk.Group, Kind: gk.Kind, Namespace: o.GetNamespace(), Name: o.GetName()}
	if r.Namespace == "" {
		r.Namespace = namespace
	}
	if clusterScoped[gk] {
		r.Namespace = ""
	}
	return r
}

func kindOf(o *unstructured.Unstructured) schema.GroupKind { return o.GroupVersionKind().GroupKind() }

// Kinds with a handling of their own.
var (
	kindNamespace  = schema.GroupKind{Kind: "Namespace"}
	kindCRD        = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	kindJob        = schema.GroupKind{Group: "batch", Kind: "Job"}
	kindAPIService = schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
	kindMutating   = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}
	kindValidating = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}
)

var clusterScoped = map[schema.GroupKind]bool{
	kindNamespace:  true,
	kindCRD:        true,
	kindAPIService: true,
	kindMutating:   true,
	kindValidating: true,
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:        true,
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}: true,
}

func isWorkload(o *unstructured.Unstructured) bool {
	gk := kindOf(o)
	return gk.Group == appsv1.GroupName && (gk.Kind == "Deployment" || gk.Kind == "DaemonSet" || gk.Kind == "StatefulSet")
}

// configMap returns a ConfigMap.
func configMap(namespace, name string, labels, data map[string]string) *unstructured.Unstructured {
	content := make(map[string]any, len(data))
	for key, value := range data {
		content[key] = value
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": content}}
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetLabels(labels)
	return o
}
