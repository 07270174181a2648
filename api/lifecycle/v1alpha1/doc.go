// Package v1alpha1 defines the kinds of the group lifecycle.orrery.dev: the runs that build,
// change and remove clusters on hosts.
//
// +groupName=lifecycle.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
