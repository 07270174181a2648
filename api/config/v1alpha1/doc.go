// Package v1alpha1 holds the kinds of the config.orrery.dev group: what the hub does for many clusters at once.
//
// +groupName=config.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
