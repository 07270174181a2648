// Package v1alpha1 defines the kinds of the group apps.orrery.dev: applications that consist of
// other objects.
//
// +groupName=apps.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
