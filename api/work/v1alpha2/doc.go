// Package v1alpha2 defines the kinds of the group work.orrery.dev: the placement of each
// claimed object, and its status.
//
// +groupName=work.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha2
