package addon

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ref names an object. The version is no part of it: an object is the same in each.
type ref struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is what messages call the object.
func (r ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

func (r ref) groupKind() schema.GroupKind { return schema.GroupKind{Group: r.Group, Kind: r.Kind} }

// refOf names an object whose namespace, if it has none, is the one given. Cluster-scoped objects of the kinds that
// Kubernetes has are known; of others, only the API server can tell.
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

// Kinds that are treated in a way of their own.
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

// objects turns typed objects of ours into what is applied.
func objects(typed ...runtime.Object) []*unstructured.Unstructured {
	all := make([]*unstructured.Unstructured, len(typed))
	for i, o := range typed {
		all[i] = object(o)
	}
	return all
}

// object turns a typed object of ours into what is applied: without the status and without the empty values that Go
// has for fields that were not set, because to apply a field is to own it.
func object(typed runtime.Object) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil { // the types are those of Kubernetes, and the values are ours
		panic(fmt.Sprintf("convert %T: %v", typed, err))
	}
	delete(content, "status")
	dropEmpty(content)
	return &unstructured.Unstructured{Object: content}
}

// dropEmpty removes nulls and empty maps, at every depth.
func dropEmpty(content map[string]any) {
	for key, value := range content {
		switch v := value.(type) {
		case map[string]any:
			dropEmpty(v)
			if len(v) == 0 {
				delete(content, key)
			}
		case []any:
			for _, item := range v {
				if m, ok := item.(map[string]any); ok {
					dropEmpty(m)
				}
			}
		case nil:
			delete(content, key)
		}
	}
}

// The rest are typed objects as they are mostly made: with a name, a namespace and labels.

func named(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{TypeMeta: core("Namespace"), ObjectMeta: named("", name, labels)}
}

func serviceAccount(namespace, name string, labels map[string]string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{TypeMeta: core("ServiceAccount"), ObjectMeta: named(namespace, name, labels)}
}

func configMap(namespace, name string, labels, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: core("ConfigMap"), ObjectMeta: named(namespace, name, labels), Data: data}
}

func clusterRole(name string, labels map[string]string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: named("", name, labels), Rules: rules}
}

func clusterRoleBinding(name, role string, labels map[string]string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: named("", name, labels),
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: subjects,
	}
}

func core(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: kind}
}

func apps(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kind}
}

func rbac(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

func policy(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: kind}
}
