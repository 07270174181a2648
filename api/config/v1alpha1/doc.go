// Package v1alpha1 defines the kinds of the group config.orrery.dev: settings of the hub for
// many clusters at once.
//
// +groupName=config.orrery.dev
// +kubebuilder:object:generate=true
package v1alpha1
