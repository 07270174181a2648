package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// MirrorPolicy says which types are mirrored from the clusters that it selects, as spec.mirror
// does in one Cluster. Several selections for a cluster add up, and their order does not
// matter. A type is mirrored if a MirrorPolicy or the Cluster selects it and none of them
// excludes it. Types that placement needs are always mirrored.
//
// Only administrators write MirrorPolicies: the roles edit and admin do not include them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=mirrorpolicies,categories=orrery
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.spec.clusterSelector`
// +kubebuilder:printcolumn:name="Groups",type=string,JSONPath=`.spec.mirror.resources[*].group`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MirrorPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which types are mirrored from which clusters.
	// +required
	Spec MirrorPolicySpec `json:"spec"`
}

// MirrorPolicySpec says which types are mirrored from which clusters.
type MirrorPolicySpec struct {
	// clusterSelector selects Clusters by their labels. Empty ({}): every cluster.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator is one of In, NotIn, Exists and DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn need values, Exists and DoesNotExist have none"
	// +required
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector"`

	// mirror says which types are mirrored from these clusters.
	// +required
	Mirror clusterv1alpha1.Mirror `json:"mirror"`
}

// MirrorPolicyList is a list of MirrorPolicies.
//
// +kubebuilder:object:root=true
type MirrorPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MirrorPolicy `json:"items"`
}
