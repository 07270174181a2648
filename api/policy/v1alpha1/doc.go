// Package v1alpha1 defines the kinds of the group policy.orrery.dev: which objects are placed
// in which clusters, how the copies differ, and which taints the hub gives to clusters.
//
// +groupName=policy.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
