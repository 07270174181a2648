package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// PlacementReviewsPath is where a PlacementReview is posted.
const PlacementReviewsPath = "/apis/fleet.orrery.dev/v1alpha1/placementreviews"

// PlacementReview asks where an object would be placed now by a policy that need not exist, or what a change moves that nobody made yet. It is posted at
// PlacementReviewsPath by those who may create policies of its scope, or make the change. Nothing is stored.
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
	// Moves asks for something else: which objects would be placed otherwise after a change. With it nothing else of the spec is set.
	Moves *SupposedChange `json:"moves,omitempty"`
}

// SupposedChange is a change that nobody made yet: exactly one of its fields is set.
type SupposedChange struct {
	// Policy that would be made, edited or deleted, by who may do that.
	Policy *SupposedPolicy `json:"policy,omitempty"`
	// Cluster that would leave or be labelled, by who may do that.
	Cluster *SupposedCluster `json:"cluster,omitempty"`
}

// SupposedPolicy is a policy as it would be.
type SupposedPolicy struct {
	// Namespace of a PropagationPolicy; empty: it is a ClusterPropagationPolicy.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Spec that it would have; absent: it would be deleted.
	Spec *policyv1alpha1.PropagationSpec `json:"spec,omitempty"`
}

// SupposedCluster is a cluster as it would be: exactly one of Leaves and Labels is set.
type SupposedCluster struct {
	Name string `json:"name"`
	// Leaves says that it would leave the fleet.
	Leaves bool `json:"leaves,omitempty"`
	// Labels are all that it would have.
	Labels map[string]string `json:"labels,omitempty"`
}

// PlacementMoves are the objects that a change moves. What is placed nowhere yet and comes is among them, but for what is of a kind that the hub does not watch, as nothing of it is
// placed and no policy selects it.
type PlacementMoves struct {
	// Looked is how many objects were decided on, and Moving how many of them would be placed otherwise.
	Looked int `json:"looked"`
	Moving int `json:"moving"`
	// Hidden is how many of those that move the caller may not get.
	Hidden int `json:"hidden,omitempty"`
	// Exact is false if there was no time for all of them, or some are not known: then others may move, too.
	Exact bool `json:"exact"`
	// Items are the first of those that move and that the caller may get, at most 100: first those that lose something.
	Items []PlacementMove `json:"items,omitempty"`
}

// PlacementMove is an object that would be placed otherwise.
type PlacementMove struct {
	Of ExplainedObject `json:"of"`
	// Policy by which it would be placed; absent: none claims it.
	Policy *ExplainedPolicy `json:"policy,omitempty"`
	// Clusters in which it would have something else than now, by name, of those that the caller may see; Hidden counts the others.
	Clusters []MovedCluster `json:"clusters,omitempty"`
	Hidden   int            `json:"hidden,omitempty"`
	// AtOnce: no cluster is left for it, and nothing is waited for.
	AtOnce bool `json:"atOnce,omitempty"`
	// Later: not before the object changes next, as its policy is lazy.
	Later bool `json:"later,omitempty"`
	// Reason and Message are those that the condition Scheduled of its binding would have.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// MovedCluster is what a cluster has of an object and would have.
type MovedCluster struct {
	Name string `json:"name"`
	// From is what it has, and To what it would have; absent: nothing.
	From *MovedShare `json:"from,omitempty"`
	To   *MovedShare `json:"to,omitempty"`
	// Stays: what it loses stays until as much is available in other clusters.
	Stays bool `json:"stays,omitempty"`
}

// MovedShare is what a cluster has of an object.
type MovedShare struct {
	// Replicas; absent of kinds without.
	Replicas *int32 `json:"replicas,omitempty"`
}

// PlacementReviewStatus is what the scheduler would decide now.
type PlacementReviewStatus struct {
	// Time, and Snapshot, the version of what is known of the clusters, for which this holds.
	// Snapshot is 0 for callers who do not see every cluster.
	Time     metav1.MicroTime `json:"time"`
	Snapshot uint64           `json:"snapshot"`
	// State is Placed, Nowhere or, while too little is known of the clusters to decide, Waiting. Of moves it is absent, or Waiting.
	State PlacementState `json:"state,omitempty"`
	// Reason and Message are those that the condition Scheduled of a binding would have.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Replicas that the object asks for; absent of kinds without. Divided says that they would be shared out.
	Replicas *int32 `json:"replicas,omitempty"`
	Divided  bool   `json:"divided,omitempty"`
	// Clusters of the fleet, by name, with their shares and verdicts.
	Clusters []ExplainedCluster `json:"clusters,omitempty"`
	// Hidden is the number of other clusters that have the object, or that it leaves, and that the
	// caller may not see.
	Hidden int `json:"hidden,omitempty"`
	// Moves are what was asked for by spec.moves.
	Moves *PlacementMoves `json:"moves,omitempty"`
}
