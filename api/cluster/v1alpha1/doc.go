// Package v1alpha1 defines the kinds of the group cluster.orrery.dev: the clusters of the
// fleet.
//
// +groupName=cluster.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
