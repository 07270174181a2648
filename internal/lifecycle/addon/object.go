package addon

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ref identifies an object in the cluster. It has no version, because an object is the same in all
// versions of its kind.
type ref struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns the kind and the name of the object for messages, such as "ConfigMap
// kube-system/coredns".
func (r ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

func (r ref) groupKind() schema.GroupKind { return schema.GroupKind{Group: r.Group, Kind: r.Kind} }

// refOf returns the identity of an object. namespace is for objects that name none. refOf knows
// that some kinds of Kubernetes are cluster-scoped. For other kinds only the API server knows the
// scope, see cluster.resolve.
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

// Kinds that are applied in another order than others, or in another way.
var (
	kindNamespace  = schema.GroupKind{Kind: "Namespace"}
	kindCRD        = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	kindJob        = schema.GroupKind{Group: "batch", Kind: "Job"}
	kindAPIService = schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
	kindMutating   = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}
	kindValidating = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}
)

// clusterScoped are the cluster-scoped kinds that refOf knows.
var clusterScoped = map[schema.GroupKind]bool{
	kindNamespace:  true,
	kindCRD:        true,
	kindAPIService: true,
	kindMutating:   true,
	kindValidating: true,
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:        true,
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}: true,
}

// isWorkload reports whether an object is a Deployment, DaemonSet or StatefulSet.
func isWorkload(o *unstructured.Unstructured) bool {
	gk := kindOf(o)
	return gk.Group == appsv1.GroupName && (gk.Kind == "Deployment" || gk.Kind == "DaemonSet" || gk.Kind == "StatefulSet")
}

// configMap returns a ConfigMap as an object to apply.
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
