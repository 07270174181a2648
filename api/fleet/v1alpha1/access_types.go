package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AccessPath is where a FleetAccess is read.
const AccessPath = "/apis/fleet.orrery.dev/v1alpha1/access"

// FleetAccess says what the caller may see and change, of the types that user interfaces have menus for, by the hub's roles. It is read at AccessPath
// by everybody of themselves.
type FleetAccess struct {
	metav1.TypeMeta `json:",inline"`

	// User is the caller.
	User string `json:"user"`
	// Namespaces of the hub in which the caller may do any of what Types say, beside what holds everywhere.
	Namespaces []string `json:"namespaces,omitempty"`
	// Types in the order of their groups and resources. Nothing may be done with a type that is missing.
	Types []TypeAccess `json:"types"`
}

// TypeAccess is what may be done with objects of a type.
type TypeAccess struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	// Verbs are those that the caller may do somewhere.
	Verbs []VerbAccess `json:"verbs"`
}

// VerbAccess says where something may be done.
type VerbAccess struct {
	// Verb is list, create, update, patch or delete; of the type clusters/proxy get and create.
	Verb string `json:"verb"`
	// Everywhere is true if it may be done in all namespaces, and with what is in none.
	Everywhere bool `json:"everywhere,omitempty"`
	// Namespaces in which it may be done, if not everywhere.
	Namespaces []string `json:"namespaces,omitempty"`
}
