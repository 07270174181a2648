package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PlacementsPath is the path from which a PlacementExplanation (why an object is placed where it
// is) is read: PlacementsPath + "?of=Deployment.apps/shop/web".
const PlacementsPath = "/apis/fleet.orrery.dev/v1alpha1/placements"

// PlacementExplanation explains in which clusters an object of the hub is placed, and why. It
// is read at PlacementsPath with the parameter of=KIND[.GROUP]/NAMESPACE/NAME, or
// KIND[.GROUP]/NAME for an object without a namespace, by users who may get the object.
type PlacementExplanation struct {
	metav1.TypeMeta `json:",inline"`

	// Of is the object, with its current UID and generation.
	Of ExplainedObject `json:"of"`
	// State is Placed, Waiting, Nowhere, Unclaimed, Reserved or Unknown. Message says the same
	// in a sentence.
	State   PlacementState `json:"state"`
	Message string         `json:"message"`
	// Generation of the object for which the placement was decided. 0: there is no placement,
	// or the kind has no generations.
	Generation int64 `json:"generation,omitempty"`
	// Current is true if the decision in effect is based on the current object and the current
	// spec.placement of the policy.
	Current bool `json:"current"`
	// Policy is the policy that claims the object now. Absent: none does.
	Policy *ExplainedPolicy `json:"policy,omitempty"`
	// PlacedBy is the policy by which the object is placed, if that differs from Policy.
	PlacedBy *ExplainedPolicy `json:"placedBy,omitempty"`
	// Lost are the other policies that select the object, in the order in which they would
	// claim it. Reason says why each one lost.
	Lost []ExplainedPolicy `json:"lost,omitempty"`
	// Near are policies that almost select the object, if no policy claims it. Reason says what
	// differs. Only policies that the caller may list are included.
	Near []ExplainedPolicy `json:"near,omitempty"`
	// Decision explains the placement. Absent: no record of the decision exists, for example
	// because the records of the hub were lost. The placement itself is known all the same.
	Decision *ExplainedDecision `json:"decision,omitempty"`
	// Clusters in which the object is placed, from which it moves, or for which the decision has
	// reasons against it, sorted by name.
	Clusters []ExplainedCluster `json:"clusters,omitempty"`
	// Hidden is the number of clusters that have the object, or from which it moves, and that the
	// caller may not see.
	Hidden int `json:"hidden,omitempty"`
	// Waits are the steps that are not done, with what each one waits for.
	Waits []PlacementWait `json:"waits,omitempty"`
	// Overrides are the override policies that select the object, in the order in which they
	// are applied.
	Overrides []ExplainedPolicy `json:"overrides,omitempty"`
	// Follow are the dependencies of the object: objects of its namespace that are placed in
	// its clusters with it. FollowMore is the number of dependencies that are not listed.
	Follow     []ExplainedObject `json:"follow,omitempty"`
	FollowMore int               `json:"followMore,omitempty"`
	// Follows are the first objects that have this object as a dependency, of those that the caller
	// may get.
	Follows []ExplainedObject `json:"follows,omitempty"`
}

// PlacementState says in one word whether an object of the hub is placed in clusters, and why not.
type PlacementState string

// The values of PlacementState.
const (
	// PlacementPlaced means that the object is placed in clusters.
	PlacementPlaced PlacementState = "Placed"
	// PlacementWaiting means that a policy claims the object, and its clusters are not decided yet.
	PlacementWaiting PlacementState = "Waiting"
	// PlacementNowhere means that a policy claims the object, and no cluster fits.
	PlacementNowhere PlacementState = "Nowhere"
	// PlacementUnclaimed means that no policy claims the object, and no placed object depends on it.
	PlacementUnclaimed PlacementState = "Unclaimed"
	// PlacementReserved means that no policy may claim the object. Every cluster creates such an
	// object itself, or the object belongs to the hub.
	PlacementReserved PlacementState = "Reserved"
	// PlacementUnknown means that the state is unknown because the hub has just started.
	PlacementUnknown PlacementState = "Unknown"
)

// ExplainedObject names an object of the hub.
type ExplainedObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// UID and Generation are empty for objects that are only referred to.
	UID        types.UID `json:"uid,omitempty"`
	Generation int64     `json:"generation,omitempty"`
}

// ExplainedPolicy names a propagation or override policy that matters for an object.
type ExplainedPolicy struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Generation of the policy that the explanation refers to. 0: it is unknown, or the policy
	// is gone.
	Generation int64 `json:"generation,omitempty"`
	// Clusters in which an override policy changes the object.
	Clusters []string `json:"clusters,omitempty"`
	// Reason says why the policy has no effect.
	Reason string `json:"reason,omitempty"`
}

// ExplainedDecision is the last recorded choice of clusters and replicas for an object.
type ExplainedDecision struct {
	// Time is when the clusters and replicas were first decided as they are now. Generation of
	// the object and PolicyGeneration of the policy are those of that decision.
	Time             metav1.MicroTime `json:"time"`
	Generation       int64            `json:"generation,omitempty"`
	PolicyGeneration int64            `json:"policyGeneration,omitempty"`
	// Current is false if the decision is older than the placement in the binding, and differs
	// from it.
	Current bool `json:"current"`
	// Reason and Message are those of the condition Scheduled of the binding. Parts about
	// clusters that the caller may not see are left out.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Replicas that the object requested. Absent for kinds without replicas. Divided is true if
	// the clusters share them, and false if each cluster gets all of them.
	Replicas *int32 `json:"replicas,omitempty"`
	Divided  bool   `json:"divided,omitempty"`
}

// ExplainedCluster is what a PlacementExplanation says about one cluster.
type ExplainedCluster struct {
	Name string `json:"name"`
	// Placed is true if the object is placed in the cluster, with Replicas (absent for kinds without
	// replicas). Attached is true if it is placed there only because other objects there depend on it.
	Placed   bool   `json:"placed"`
	Replicas *int32 `json:"replicas,omitempty"`
	Attached bool   `json:"attached,omitempty"`
	// Leaves is true if the object or some of its replicas move out of the cluster. They stay
	// until as many are available elsewhere. Leaving is the number of such replicas.
	Leaves  bool   `json:"leaves,omitempty"`
	Leaving *int32 `json:"leaving,omitempty"`
	// Verdicts say why the object is not placed in the cluster, or would not be placed there again. If
	// the object is not in the cluster and there are no verdicts, the reason is unknown.
	Verdicts []PlacementVerdict `json:"verdicts,omitempty"`
	// Result of the last attempt to apply the object in the cluster. Absent: there was none
	// yet, or its result is unknown.
	Result *PlacementResult `json:"result,omitempty"`
}

// PlacementVerdict is one reason against placing an object in a cluster, from one of the checks of
// the decision. Reason is one word.
type PlacementVerdict struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// PlacementResult is the result of an attempt to apply an object in a cluster.
type PlacementResult struct {
	Applied bool `json:"applied"`
	// Reason is a reason of the condition FullyApplied of bindings. If the object is applied,
	// Message lists differences in the cluster.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Current is true if the attempt was for the current binding, object and overrides. If it
	// is false, another attempt follows.
	Current bool `json:"current"`
	// Time of the attempt. Absent: it is unknown.
	Time *metav1.MicroTime `json:"time,omitempty"`
}

// PlacementWait is a step of the placement of an object that is not done yet, with what it waits
// for.
type PlacementWait struct {
	// For is one of the values of WaitReason.
	For     WaitReason `json:"for"`
	Message string     `json:"message"`
	// Clusters that wait. Empty: the whole placement waits.
	Clusters []string `json:"clusters,omitempty"`
}

// WaitReason says what a step of the placement of an object waits for.
type WaitReason string

// The values of WaitReason.
const (
	WaitDecision      WaitReason = "Decision"      // the hub decides in a moment
	WaitRoom          WaitReason = "Room"          // fewer replicas fit than are requested
	WaitAvailability  WaitReason = "Availability"  // replicas leave once others are available
	WaitCluster       WaitReason = "Cluster"       // a cluster does not answer
	WaitOverride      WaitReason = "Override"      // a required override policy is missing
	WaitPolicy        WaitReason = "Policy"        // Lazy policy: waits for a change of the object
	WaitSuspension    WaitReason = "Suspension"    // a user suspended changes
	WaitRestore       WaitReason = "Restore"       // orrery server confirm-restore must be run
	WaitPriorityClass WaitReason = "PriorityClass" // the PriorityClass of the policy is missing
	WaitRemoval       WaitReason = "Removal"       // it is deleted, and clusters still have copies
	WaitFinalizer     WaitReason = "Finalizer"     // it is deleted, but finalizers keep it
	WaitContest       WaitReason = "Contest"       // a client in a cluster keeps changing the copy
	WaitApply         WaitReason = "Apply"         // a cluster has not answered, or refused
)
