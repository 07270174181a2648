// Package v1alpha1 holds the kinds of the policy.orrery.dev group: what is placed where, and how it differs there.
//
// +groupName=policy.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
