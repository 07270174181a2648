// Package v1alpha1 holds the kinds of the lifecycle.orrery.dev group: the runs that build, change and remove clusters on
// hosts.
//
// +groupName=lifecycle.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
