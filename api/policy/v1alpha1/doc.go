// Package v1alpha1 defines the kinds of the group policy.orrery.dev: which objects are placed
// in which clusters, and how the copies differ.
//
// +groupName=policy.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
