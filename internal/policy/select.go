package policy

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// Kinds returns the kinds, each in a version, that the selectors of a policy name. Each appears
// once, in the order of the selectors.
func Kinds(p *policyv1alpha1.PropagationPolicy) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	seen := sets.New[schema.GroupVersionKind]()
	for _, s := range p.Spec.ResourceSelectors {
		gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
		if !seen.Has(gvk) {
			seen.Insert(gvk)
			kinds = append(kinds, gvk)
		}
	}
	return kinds
}

// Problems returns an error for each selector of a policy that can never select anything, with the
// path of the field; nil if there are none. It does not check whether the hub or a cluster serves
// the kind.
func Problems(p *policyv1alpha1.PropagationPolicy) []error {
	var problems []error
	for i, s := range p.Spec.ResourceSelectors {
		if err := problem(p, s); err != nil {
			problems = append(problems, fmt.Errorf("resourceSelectors[%d].%w", i, err))
		}
	}
	return problems
}

// problem returns why a selector of the policy p can never select anything, beginning with the name
// of the field; nil if the selector can.
func problem(p *policyv1alpha1.PropagationPolicy, s policyv1alpha1.ResourceSelector) error {
	if p.Namespace != "" && s.Namespace != "" && s.Namespace != p.Namespace {
		return fmt.Errorf("namespace %q selects nothing: a PropagationPolicy selects in its own namespace, %q; use a ClusterPropagationPolicy",
			s.Namespace, p.Namespace)
	}
	if _, err := metav1.LabelSelectorAsSelector(s.LabelSelector); err != nil {
		return fmt.Errorf("labelSelector selects nothing: %w", err)
	}
	return nil
}

// system reports whether a cluster-wide policy must name the namespace of an object to select it:
// the namespace begins with kube- or orrery-. A Namespace object counts if it is such a namespace
// or default, unless the selector names it. selected is the name in the selector, or "".
func system(o *unstructured.Unstructured, selected string) bool {
	namespace := o.GetNamespace()
	if o.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		if selected != "" {
			return false
		}
		if namespace = o.GetName(); namespace == corev1.NamespaceDefault {
			return true
		}
	}
	return strings.HasPrefix(namespace, "kube-") || strings.HasPrefix(namespace, "orrery-")
}

// hubNamespace is the namespace of the hub with its own data: the credentials of the members, and
// data of the servers.
const hubNamespace = "orrery-cluster"

// reserved reports whether an object may not be placed in clusters, by any policy: every Kubernetes
// cluster creates it for itself, or it belongs to the hub.
func reserved(o *unstructured.Unstructured) bool {
	kind, name := o.GroupVersionKind().GroupKind(), o.GetName()
	switch kind {
	case schema.GroupKind{Kind: "Secret"}, schema.GroupKind{Kind: "ConfigMap"}, schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}:
		if o.GetNamespace() == hubNamespace {
			return true // credentials of the members, and data of the servers
		}
	}
	switch kind {
	case schema.GroupKind{Kind: "ConfigMap"}:
		// The hub's certificate authorities, which a member would take for its own, and data of the
		// API server.
		return name == "kube-root-ca.crt" || o.GetNamespace() == metav1.NamespaceSystem &&
			(name == "extension-apiserver-authentication" || name == "kube-apiserver-legacy-service-account-token-tracking")
	case schema.GroupKind{Kind: "ServiceAccount"}:
		return name == "default"
	case schema.GroupKind{Kind: "Secret"}:
		kind, _, _ := unstructured.NestedString(o.Object, "type")
		return kind == string(corev1.SecretTypeServiceAccountToken)
	case schema.GroupKind{Kind: "Service"}, schema.GroupKind{Kind: "Endpoints"}:
		return o.GetNamespace() == corev1.NamespaceDefault && name == "kubernetes" || o.GetNamespace() == "orrery-system" && name == "orrery-fleet"
	case schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}:
		// Every cluster creates the slices of its own Services.
		managed := strings.HasSuffix(o.GetLabels()["endpointslice.kubernetes.io/managed-by"], ".k8s.io")
		return managed || o.GetNamespace() == corev1.NamespaceDefault && name == "kubernetes"
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}, schema.GroupKind{Group: "apps", Kind: "ControllerRevision"}:
		// Every cluster keeps its own history of a workload.
		return metav1.GetControllerOfNoCopy(o) != nil
	case schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}:
		_, managed := o.GetLabels()["kube-aggregator.kubernetes.io/automanaged"]
		return managed || ours(name)
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return ours(name)
	case schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"},
		schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}:
		return ours(name)
	case schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"},
		schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "PriorityLevelConfiguration"}:
		_, managed := o.GetAnnotations()["apf.kubernetes.io/autoupdate-spec"]
		return managed
	case schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:
		return strings.HasPrefix(name, "system-")
	}
	if kind.Group == "rbac.authorization.k8s.io" {
		return o.GetLabels()["kubernetes.io/bootstrapping"] == "rbac-defaults" || strings.HasPrefix(name, "orrery:")
	}
	return false
}

// ours reports whether a name ends with an API group of Orrery, as the names of its
// CustomResourceDefinitions and APIServices do.
func ours(name string) bool { return strings.HasSuffix(name, ".orrery.dev") }
