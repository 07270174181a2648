// Package v1alpha1 holds the kinds of the apps.orrery.dev group: applications made of other objects.
//
// +groupName=apps.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
