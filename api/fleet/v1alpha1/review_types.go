package v1alpha1

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// PlacementReviewsPath is the path to which a PlacementReview (where an object would be placed) is
// posted.
const PlacementReviewsPath = "/apis/fleet.orrery.dev/v1alpha1/placementreviews"

// PlacementReview asks where an object would be placed now by a policy, or which objects a
// planned change would move. The policy need not exist. It is posted to PlacementReviewsPath by
// users who may create policies of its scope, or make the change. Nothing is stored.
type PlacementReview struct {
	metav1.TypeMeta `json:",inline"`

	Spec PlacementReviewSpec `json:"spec"`
	// Status is the answer.
	Status *PlacementReviewStatus `json:"status,omitempty"`
}

// PlacementReviewSpec is the question of a PlacementReview.
type PlacementReviewSpec struct {
	// Placement says which clusters are chosen, as spec.placement of a policy.
	Placement policyv1alpha1.Placement `json:"placement"`
	// Namespace of the policy, a PropagationPolicy. Empty: the policy is a
	// ClusterPropagationPolicy.
	Namespace string `json:"namespace,omitempty"`
	// Of is an object of the hub that the caller may get: KIND[.GROUP]/NAMESPACE/NAME. If the
	// object is already placed, the decision starts from its placement, as after an edit of its
	// policy. At most one of Of and Object may be set. With neither, the answer is for an
	// object that every cluster accepts.
	Of string `json:"of,omitempty"`
	// Object is an object that need not exist on the hub.
	Object json.RawMessage `json:"object,omitempty"`
	// Replicas that are requested if neither Of nor Object is set. Their pods request no
	// resources.
	Replicas *int32 `json:"replicas,omitempty"`
	// Moves asks which objects would be placed differently after a change. With it no other
	// field of the spec may be set.
	Moves *SupposedChange `json:"moves,omitempty"`
}

// SupposedChange is a change that a user plans, for PlacementReviewSpec.Moves. Exactly one of its
// fields is set.
type SupposedChange struct {
	// Policy to create, edit or delete. The caller needs the permission to do that.
	Policy *SupposedPolicy `json:"policy,omitempty"`
	// Cluster to remove, to label or to taint. The caller needs the permission to do that.
	Cluster *SupposedCluster `json:"cluster,omitempty"`
}

// SupposedPolicy is a policy as it would be after the planned change.
type SupposedPolicy struct {
	// Namespace of a PropagationPolicy. Empty: the policy is a ClusterPropagationPolicy.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Spec after the change. Absent: the policy is deleted.
	Spec *policyv1alpha1.PropagationSpec `json:"spec,omitempty"`
}

// SupposedCluster is a cluster as it would be after the planned change. Exactly one of Leaves,
// Labels and Taints is set.
type SupposedCluster struct {
	Name string `json:"name"`
	// Leaves is true if the cluster leaves the fleet.
	Leaves bool `json:"leaves,omitempty"`
	// Labels are all labels of the cluster after the change.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are all taints of the cluster after the change. Empty: the cluster has no taints. Nil:
	// the taints do not change. Those with the effect NoExecute count as if tolerationSeconds were
	// over.
	Taints []corev1.Taint `json:"taints,omitzero"`
}

// Changes returns how many of Leaves, Labels and Taints are set. A SupposedCluster is valid if the
// result is 1.
func (c *SupposedCluster) Changes() int {
	n := 0
	for _, isSet := range []bool{c.Leaves, c.Labels != nil, c.Taints != nil} {
		if isSet {
			n++
		}
	}
	return n
}

// PlacementMoves are the objects that a planned change would move. They include objects that are
// placed nowhere yet and would be placed. They leave out kinds that the hub does not watch, because
// no policy selects an object of such a kind.
type PlacementMoves struct {
	// Looked is the number of objects for which clusters were chosen as after the change. Moving is
	// the number of them that would be placed differently.
	Looked int `json:"looked"`
	Moving int `json:"moving"`
	// Hidden is the number of moving objects that the caller may not get.
	Hidden int `json:"hidden,omitempty"`
	// Exact is false if the time did not suffice for all objects, or some are unknown. Then
	// more objects may move.
	Exact bool `json:"exact"`
	// Items are the first moving objects that the caller may get, at most 100. Objects that
	// lose a cluster come first.
	Items []PlacementMove `json:"items,omitempty"`
}

// PlacementMove is an object that would be placed differently after a planned change.
type PlacementMove struct {
	Of ExplainedObject `json:"of"`
	// Policy by which the object would be placed. Absent: no policy claims it.
	Policy *ExplainedPolicy `json:"policy,omitempty"`
	// Clusters in which the object would change, sorted by name, if the caller may see them. Hidden is
	// the number of such clusters that the caller may not see.
	Clusters []MovedCluster `json:"clusters,omitempty"`
	Hidden   int            `json:"hidden,omitempty"`
	// AtOnce is true if the object loses all its clusters, and is removed without waiting.
	AtOnce bool `json:"atOnce,omitempty"`
	// Later is true if the object moves only after its next change, because its policy is Lazy.
	Later bool `json:"later,omitempty"`
	// Reason and Message are those that the condition Scheduled of its binding would have.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// MovedCluster compares what a cluster has of an object before and after a planned change.
type MovedCluster struct {
	Name string `json:"name"`
	// From is the share of the object before, and To the share after the change. Absent: the object is
	// not in the cluster.
	From *MovedShare `json:"from,omitempty"`
	To   *MovedShare `json:"to,omitempty"`
	// Stays is true if the replicas that the cluster loses stay until as many are available in other
	// clusters.
	Stays bool `json:"stays,omitempty"`
	// Unmanaged is true if the old copy stays in the cluster without Orrery's marks, because its
	// policy has the purgeMode Never. The hub does not manage that copy any more.
	Unmanaged bool `json:"unmanaged,omitempty"`
}

// MovedShare is the part of an object that a cluster has.
type MovedShare struct {
	// Replicas in the cluster. Absent for kinds without replicas.
	Replicas *int32 `json:"replicas,omitempty"`
}

// PlacementReviewStatus is the answer to a PlacementReview: the decision that the hub would make
// now.
type PlacementReviewStatus struct {
	// Time of the decision, and Snapshot, the version of the hub's knowledge about the clusters
	// that it used. Snapshot is 0 for callers who may not see every cluster.
	Time     metav1.MicroTime `json:"time"`
	Snapshot uint64           `json:"snapshot"`
	// State is Placed, Nowhere or, while the hub knows too little about the clusters to decide,
	// Waiting. With spec.moves it is absent, or Waiting.
	State PlacementState `json:"state,omitempty"`
	// Reason and Message are those that the condition Scheduled of a binding would have.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Replicas that the object requests. Absent for kinds without replicas. Divided is true if
	// the clusters would share them.
	Replicas *int32 `json:"replicas,omitempty"`
	Divided  bool   `json:"divided,omitempty"`
	// Clusters of the fleet that the caller may see, sorted by name, with their shares and the reasons
	// against them.
	Clusters []ExplainedCluster `json:"clusters,omitempty"`
	// Hidden is the number of clusters that have the object, or from which it would move, and that the
	// caller may not see.
	Hidden int `json:"hidden,omitempty"`
	// Moves is the answer to spec.moves.
	Moves *PlacementMoves `json:"moves,omitempty"`
}
