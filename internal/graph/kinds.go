package graph

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Type is a kind of Kubernetes that objects can refer to, with its resource and scope. short is its
// short name in kubectl; "": none.
type Type struct {
	Kind       schema.GroupKind
	Resource   string
	Namespaced bool
	short      string
}

// known are the kinds of Kubernetes and of the Gateway API that objects can refer to. The graph
// knows them even if no cluster has the kind.
var known = []Type{
	{configMapKind, "configmaps", true, "cm"},
	{secretKind, "secrets", true, ""},
	{serviceKind, "services", true, "svc"},
	{serviceAccountKind, "serviceaccounts", true, "sa"},
	{claimKind, "persistentvolumeclaims", true, "pvc"},
	{volumeKind, "persistentvolumes", false, "pv"},
	{nodeKind, "nodes", false, "no"},
	{podKind, "pods", true, "po"},
	{storageClassKind, "storageclasses", false, "sc"},
	{priorityClassKind, "priorityclasses", false, "pc"},
	{runtimeClassKind, "runtimeclasses", false, ""},
	{ingressClassKind, "ingressclasses", false, ""},
	{gatewayKind, "gateways", true, "gtw"},
	{gatewayClassKind, "gatewayclasses", false, "gc"},
	{roleKind, "roles", true, ""},
	{clusterRoleKind, "clusterroles", false, ""},
	{schema.GroupKind{Group: "apps", Kind: "Deployment"}, "deployments", true, "deploy"},
	{schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, "statefulsets", true, "sts"},
	{schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}, "replicasets", true, "rs"},
	{schema.GroupKind{Group: "apps", Kind: "DaemonSet"}, "daemonsets", true, "ds"},
	{schema.GroupKind{Kind: "ReplicationController"}, "replicationcontrollers", true, "rc"},
}

// TypeOf returns the type of a kind; false if the kind is not among the known ones of this package.
func TypeOf(kind schema.GroupKind) (Type, bool) {
	i := slices.IndexFunc(known, func(t Type) bool { return t.Kind == kind })
	if i < 0 {
		return Type{}, false
	}
	return known[i], true
}

// TypeFor returns the type of a resource; false if the resource is not among the known ones of this
// package.
func TypeFor(gr schema.GroupResource) (Type, bool) {
	i := slices.IndexFunc(known, func(t Type) bool { return t.Kind.Group == gr.Group && t.Resource == gr.Resource })
	if i < 0 {
		return Type{}, false
	}
	return known[i], true
}

// ParseKind parses the name of a kind, as users write it in uses:KIND/NAME. A known kind may be
// singular, plural or short, in any case, with or without its group. Any other kind must be
// KIND.GROUP, and keeps its case. It returns false for any other text.
func ParseKind(text string) (schema.GroupKind, bool) {
	name, group, grouped := strings.Cut(text, ".")
	lower := strings.ToLower(name)
	for _, t := range known {
		if (!grouped || strings.EqualFold(group, t.Kind.Group)) && lower != "" && (lower == t.Resource || lower == t.short || lower == strings.ToLower(t.Kind.Kind)) {
			return t.Kind, true
		}
	}
	return schema.GroupKind{Group: group, Kind: name}, grouped && group != "" && name != ""
}

// Names returns the singular names of the known kinds in lower case, sorted, for messages to users.
func Names() (out []string) {
	for _, t := range known {
		out = append(out, strings.ToLower(t.Kind.Kind))
	}
	slices.Sort(out)
	return out
}
