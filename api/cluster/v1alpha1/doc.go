// Package v1alpha1 holds the kinds of the cluster.orrery.dev group: the clusters of the fleet.
//
// +groupName=cluster.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
