package interpreter

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Hub describes how the API server of the hub treats objects that configure an API server. OnHub
// uses it.
type Hub struct {
	// Embedded is true for Orrery's own API server, which runs only Orrery, and false if the hub is
	// another Kubernetes cluster.
	Embedded bool
	// Webhooks is true if the API server calls admission webhooks.
	Webhooks bool
}

// API groups of kinds that configure an API server.
const (
	admissionGroup = "admissionregistration.k8s.io"
	flowGroup      = "flowcontrol.apiserver.k8s.io"
	rbacGroup      = "rbac.authorization.k8s.io"
)

// OnHub returns a message about the effect that a template has on the hub itself, apart from being
// placed in clusters; "" for most kinds. An API server obeys objects of some kinds, for example
// admission policies, even if they are meant for members only. The caller appends it to another
// message.
func OnHub(o *unstructured.Unstructured, hub Hub) string {
	switch kind := o.GroupVersionKind().GroupKind(); kind {
	case schema.GroupKind{Group: admissionGroup, Kind: "ValidatingAdmissionPolicy"},
		schema.GroupKind{Group: admissionGroup, Kind: "ValidatingAdmissionPolicyBinding"},
		schema.GroupKind{Group: admissionGroup, Kind: "MutatingAdmissionPolicy"},
		schema.GroupKind{Group: admissionGroup, Kind: "MutatingAdmissionPolicyBinding"}:
		return "it is in force on the hub, too: requests to the hub that it matches are decided by it"
	case schema.GroupKind{Group: admissionGroup, Kind: "ValidatingWebhookConfiguration"},
		schema.GroupKind{Group: admissionGroup, Kind: "MutatingWebhookConfiguration"}:
		if hub.Embedded && !hub.Webhooks {
			return ""
		}
		return "it is in force on the hub, too: requests to the hub that it matches fail where the hub cannot reach its webhooks"
	case schema.GroupKind{Group: flowGroup, Kind: "FlowSchema"}, schema.GroupKind{Group: flowGroup, Kind: "PriorityLevelConfiguration"}:
		return "it is in force on the hub, too: it says which requests to the hub wait"
	case schema.GroupKind{Group: rbacGroup, Kind: "RoleBinding"}, schema.GroupKind{Group: rbacGroup, Kind: "ClusterRoleBinding"}:
		role, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
		return fmt.Sprintf("it is in force on the hub, too: its subjects have there what role %q allows", role)
	case schema.GroupKind{Group: rbacGroup, Kind: "ClusterRole"}:
		for label := range o.GetLabels() {
			if into, found := strings.CutPrefix(label, rbacGroup+"/aggregate-to-"); found {
				return fmt.Sprintf("it is in force on the hub, too: its rules become part of role %q there", into)
			}
		}
	case schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}:
		if _, served, _ := unstructured.NestedMap(o.Object, "spec", "service"); !served {
			return ""
		}
		if hub.Embedded {
			return "nothing answers for it on the hub: its API exists there by name only, and kubectl warns of it"
		}
		return "it is in force on the hub, too: unless its Service answers there, its API fails on the hub, and namespaces of the hub cannot be deleted"
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		if strategy, _, _ := unstructured.NestedString(o.Object, "spec", "conversion", "strategy"); strategy == "Webhook" {
			return "the hub converts its objects by the same webhook: unless the hub reaches that, only the version that is stored can be used there"
		}
	}
	return ""
}
