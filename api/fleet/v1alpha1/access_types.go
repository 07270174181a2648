package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AccessPath is the path on the hub from which a FleetAccess (what the caller may see and change)
// is read.
const AccessPath = "/apis/fleet.orrery.dev/v1alpha1/access"

// FleetAccess lists what the caller may see and change by the roles on the hub. User interfaces
// show only that. It covers a fixed list of types, such as pods, policies and clusters. Every user
// may read it, at AccessPath, for themselves.
type FleetAccess struct {
	metav1.TypeMeta `json:",inline"`

	// User is the caller.
	User string `json:"user"`
	// Namespaces of the hub in which the caller may use verbs of Types beyond those that are
	// allowed everywhere.
	Namespaces []string `json:"namespaces,omitempty"`
	// Types are sorted by group and resource. If a type is missing, the caller may do nothing with it,
	// or FleetAccess does not cover it.
	Types []TypeAccess `json:"types"`
}

// TypeAccess is what the caller of a FleetAccess may do with objects of a type.
type TypeAccess struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	// Verbs that the caller may use in at least one namespace, or everywhere.
	Verbs []VerbAccess `json:"verbs"`
}

// VerbAccess says in which namespaces the caller may use a verb on objects of a type.
type VerbAccess struct {
	// Verb is list, create, update, patch or delete; for the type clusters/proxy, get or
	// create.
	Verb string `json:"verb"`
	// Everywhere is true if the verb is allowed in all namespaces and for cluster-scoped
	// objects.
	Everywhere bool `json:"everywhere,omitempty"`
	// Namespaces in which the verb is allowed, if not everywhere.
	Namespaces []string `json:"namespaces,omitempty"`
}
