package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterTaintPolicy adds taints to Clusters, and removes them, when conditions of the clusters
// become true. The hub taints a cluster only for a ClusterTaintPolicy. A taint with the effect
// NoExecute evicts the objects in the cluster that do not tolerate it; spec.failover of their
// policies says how they leave.
//
// The ClusterTaintPolicies are applied in the order of their names. Taints stay when the policy is
// deleted, and when it no longer selects the cluster: remove them with orrery taint.
//
// Only administrators write ClusterTaintPolicies: the roles edit and admin do not include them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=clustertaintpolicies,categories=orrery
// +kubebuilder:printcolumn:name="Taints",type=string,JSONPath=`.spec.taints`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.spec.targetClusters.clusterNames`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterTaintPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which clusters get which taints, and when.
	// +required
	Spec ClusterTaintPolicySpec `json:"spec"`
}

// ClusterTaintPolicySpec says which clusters get which taints, and when.
type ClusterTaintPolicySpec struct {
	// targetClusters selects the clusters. Unset: every cluster.
	// +optional
	TargetClusters *ClusterAffinity `json:"targetClusters,omitempty"`

	// addOnConditions add the taints to a cluster when all of them match. Empty: the policy
	// adds no taints.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	AddOnConditions []MatchCondition `json:"addOnConditions,omitempty"`

	// removeOnConditions remove the taints from a cluster when all of them match. Taints with
	// the same key and effect are removed, also those that a user added. If addOnConditions
	// match as well, the taints are removed. Empty: the policy removes no taints.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	RemoveOnConditions []MatchCondition `json:"removeOnConditions,omitempty"`

	// taints are added and removed. A cluster has at most one taint with the same key and
	// effect.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +required
	Taints []Taint `json:"taints"`
}

// MatchCondition compares the status of one condition of a cluster.
type MatchCondition struct {
	// conditionType is Ready, Reachable or Joined. These conditions come from the probes of the
	// cluster. They have the names, and not the values, of those in the status of the Cluster.
	// Reachable is True while the cluster answers. When it does not, Reachable is False and also
	// Unknown, so that both values match. Joined is True if status.id of the Cluster is set.
	// Ready is True if both are True. Otherwise it is False, or Unknown if a cluster with
	// syncMode Pull does not answer. No condition matches until the server has probed the
	// cluster, and while the hub cannot judge it: the hub has no usable credentials, the cluster
	// refuses them, its certificate is untrusted or expired, or another cluster answers.
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:XValidation:rule="self in ['Ready', 'Reachable', 'Joined']",message="conditionType is Ready, Reachable or Joined: a ClusterTaintPolicy is about the cluster and not about the hub, whose mirror, certificates and Operations taint no cluster"
	// +required
	ConditionType string `json:"conditionType"`

	// operator is In or NotIn.
	// +required
	Operator MatchConditionOperator `json:"operator"`

	// statusValues are compared with the status of the condition: True, False and Unknown. In
	// matches if the status is among them, NotIn if it is not.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=True;False;Unknown
	// +listType=set
	// +required
	StatusValues []metav1.ConditionStatus `json:"statusValues"`
}

// MatchConditionOperator says how the status of a condition is compared.
// +kubebuilder:validation:Enum=In;NotIn
type MatchConditionOperator string

// The values of MatchConditionOperator.
const (
	MatchConditionOpIn    MatchConditionOperator = "In"    // the status is among the values
	MatchConditionOpNotIn MatchConditionOperator = "NotIn" // the status is not among the values
)

// Taint is a taint that clusters get.
type Taint struct {
	// key of the taint, such as cluster.orrery.dev/not-ready.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="the key of a taint is a name, such as maintenance, or a domain and a name, such as example.org/maintenance"
	// +required
	Key string `json:"key"`

	// effect of the taint. NoSchedule: objects that do not tolerate the taint are not placed in
	// the cluster. NoExecute: they also leave the cluster.
	// +kubebuilder:validation:Enum=NoSchedule;NoExecute
	// +required
	Effect corev1.TaintEffect `json:"effect"`

	// value of the taint.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')",message="the value of a taint has letters, digits, dashes, underscores and dots, and begins and ends with a letter or digit"
	// +optional
	Value string `json:"value,omitempty"`
}

// ClusterTaintPolicyList is a list of ClusterTaintPolicies.
//
// +kubebuilder:object:root=true
type ClusterTaintPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterTaintPolicy `json:"items"`
}
