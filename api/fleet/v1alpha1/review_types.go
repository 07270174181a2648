package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// PlacementReviewsPath is where a PlacementReview is posted.
const PlacementReviewsPath = "/apis/fleet.orrery.dev/v1alpha1/placementreviews"

// PlacementReview asks where an object would be placed now by a policy that need not exist. It is posted at PlacementReviewsPath by those who may
// create policies of its scope. Nothing is stored.
type PlacementReview struct {
	metav1.TypeMeta `json:",inline"`

	Spec PlacementReviewSpec `json:"spec"`
	// Status is the answer.
	Status *PlacementReviewStatus `json:"status,omitempty"`
}

// PlacementReviewSpec is the question.
type PlacementReviewSpec struct {
	// Placement as in the spec of a policy.
	Placement policyv1alpha1.Placement `json:"placement"`
	// Namespace of the policy, a PropagationPolicy; empty: it is a ClusterPropagationPolicy.
	Namespace string `json:"namespace,omitempty"`
	// Of is an object of the hub, KIND[.GROUP]/NAMESPACE/NAME, which the caller may get. If it is placed already, it is placed on from there, as when its policy is edited. At most one of Of and Object may be set; with neither the answer is
	// about an object that every cluster takes.
	Of string `json:"of,omitempty"`
	// Object is one that the hub need not have.
	Object json.RawMessage `json:"object,omitempty"`
	// Replicas that an object asks for which neither Of nor Object gives: replicas that request nothing.
	Replicas *int32 `json:"replicas,omitempty"`
}

// PlacementReviewStatus is what the scheduler would decide now.
type PlacementReviewStatus struct {
	// Time, and Snapshot, the version of what is known of the clusters, for which this holds.
	Time     metav1.MicroTime `json:"time"`
	Snapshot uint64           `json:"snapshot"`
	// State is Placed, Nowhere or, while too little is known of the clusters to decide, Waiting.
	State PlacementState `json:"state"`
	// Reason and Message are those that the condition Scheduled of a binding would have.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Replicas that the object asks for; absent of kinds without. Divided says that they would be shared out.
	Replicas *int32 `json:"replicas,omitempty"`
	Divided  bool   `json:"divided,omitempty"`
	// Clusters of the fleet, by name, with their shares and verdicts.
	Clusters []ExplainedCluster `json:"clusters,omitempty"`
	// Hidden is how many other clusters there are which the caller may not see.
	Hidden int `json:"hidden,omitempty"`
}
