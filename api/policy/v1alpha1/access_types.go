package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterAccess says which clusters the selected namespaces of the hub may use. Objects in such
// a namespace are placed in no other cluster, and a permission in the namespace shows nothing
// of another cluster. The clusters of several ClusterAccesses that select a namespace add up. A
// namespace that none selects may use every cluster, or no cluster if the server runs with
// --default-cluster-access=none. Templates without a namespace are not restricted.
//
// Only administrators write ClusterAccesses: the roles edit and admin do not include them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=clusteraccesses,categories=orrery
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaceSelector.matchLabels`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.spec.clusterAffinity.clusterNames`
// +kubebuilder:printcolumn:name="Labels",type=string,JSONPath=`.spec.clusterAffinity.labelSelector.matchLabels`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterAccess struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which namespaces may use which clusters.
	// +required
	Spec ClusterAccessSpec `json:"spec"`
}

// ClusterAccessSpec says which namespaces may use which clusters.
type ClusterAccessSpec struct {
	// namespaceSelector selects namespaces of the hub by their labels. Empty ({}): every
	// namespace. Users who may change the labels of a namespace can choose its ClusterAccesses.
	// Nobody can change the label kubernetes.io/metadata.name, which selects by name.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator is one of In, NotIn, Exists and DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn need values, Exists and DoesNotExist have none"
	// +required
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`

	// clusterAffinity selects the clusters that the namespaces may use. Unset: every cluster.
	// +optional
	ClusterAffinity *ClusterAffinity `json:"clusterAffinity,omitempty"`

	// clusterTolerations are the taints of these clusters that policies of the namespaces may
	// tolerate. A toleration in a PropagationPolicy counts only for a taint that a toleration
	// here matches as well. Unset: none. Tolerations of a ClusterPropagationPolicy always
	// count.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ClusterTolerations []corev1.Toleration `json:"clusterTolerations,omitempty"`
}

// ClusterAccessList is a list of ClusterAccesses.
//
// +kubebuilder:object:root=true
type ClusterAccessList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterAccess `json:"items"`
}
