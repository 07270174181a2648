package graph

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Type is a kind of Kubernetes that objects can refer to.
type Type struct {
	Kind       schema.GroupKind
	Resource   string
	Namespaced bool
	short      string
}

// known are the kinds of Kubernetes and its Gateway API that objects can refer to. They are known
// even if no cluster serves or mirrors them.
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

// TypeOf returns the type of a kind; false if it is not a known one.
func TypeOf(kind schema.GroupKind) (Type, bool) {
	i := slices.IndexFunc(known, func(t Type) bool { return t.Kind == kind })
	if i < 0 {
		return Type{}, false
	}
	return known[i], true
}

// TypeFor returns the type of a resource; false if it is not a known one.
func TypeFor(gr schema.GroupResource) (Type, bool) {
	i := slices.IndexFunc(known, func(t Type) bool { return t.Kind.Group == gr.Group && t.Resource == gr.Resource })
	if i < 0 {
		return Type{}, false
	}
	return known[i], true
}

// ParseKind parses the name of a kind that objects can refer to. Known kinds have their singular,
// plural and short names, with or without the group. Other kinds are KIND.GROUP, as in references.
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

// Names returns the singular names of the known kinds, sorted.
func Names() (out []string) {
	for _, t := range known {
		out = append(out, strings.ToLower(t.Kind.Kind))
	}
	slices.Sort(out)
	return out
}
