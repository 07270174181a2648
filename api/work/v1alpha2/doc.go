// Package v1alpha2 holds the kinds of the work.orrery.dev group: the placement of each claimed object and what became of it.
//
// +groupName=work.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha2
