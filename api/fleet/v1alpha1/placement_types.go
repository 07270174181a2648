package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PlacementsPath is where a PlacementExplanation is read: PlacementsPath + "?of=Deployment.apps/shop/web".
const PlacementsPath = "/apis/fleet.orrery.dev/v1alpha1/placements"

// PlacementExplanation says where an object of the hub is placed, and why there and not elsewhere. It is read at PlacementsPath with the parameter
// of=KIND[.GROUP]/NAMESPACE/NAME (of what is in no namespace KIND[.GROUP]/NAME) by those who may get the object.
type PlacementExplanation struct {
	metav1.TypeMeta `json:",inline"`

	// Of is the object as it is now.
	Of ExplainedObject `json:"of"`
	// State is Placed, Waiting, Nowhere, Unclaimed, Reserved or Unknown, and Message says the same as a sentence.
	State   PlacementState `json:"state"`
	Message string         `json:"message"`
	// Generation of the object that the placement is about; 0: there is none, or the kind has no generations.
	Generation int64 `json:"generation,omitempty"`
	// Current is true if placement and decision are about the object, and about the policy's placement, as they are now.
	Current bool `json:"current"`
	// Policy is the one that claims the object now; absent: none does.
	Policy *ExplainedPolicy `json:"policy,omitempty"`
	// PlacedBy is the policy by which the object is placed, where that is another one than Policy.
	PlacedBy *ExplainedPolicy `json:"placedBy,omitempty"`
	// Lost are policies that select the object, too, in the order in which they would have it; Reason says why each lost.
	Lost []ExplainedPolicy `json:"lost,omitempty"`
	// Near are policies that nearly select an object that none claims; Reason says what differs. Only policies that the caller may list are among them.
	Near []ExplainedPolicy `json:"near,omitempty"`
	// Decision is what is known of why; absent: that is not known, for instance since the records of the hub were lost. Where the object is placed is known even so.
	Decision *ExplainedDecision `json:"decision,omitempty"`
	// Clusters are those that the object is placed in, moves out of, or was judged for, by name.
	Clusters []ExplainedCluster `json:"clusters,omitempty"`
	// Hidden is the number of other clusters that have the object, or that it leaves, and that the
	// caller may not see.
	Hidden int `json:"hidden,omitempty"`
	// Waits are what is not done yet, and what it waits for.
	Waits []PlacementWait `json:"waits,omitempty"`
	// Overrides are the override policies that select the object, in the order in which they are applied.
	Overrides []ExplainedPolicy `json:"overrides,omitempty"`
	// Follow are the objects of its namespace that follow it into its clusters, and FollowsMore says how many more do.
	Follow     []ExplainedObject `json:"follow,omitempty"`
	FollowMore int               `json:"followMore,omitempty"`
	// Follows are objects that it follows into theirs: the first of them that the caller may get.
	Follows []ExplainedObject `json:"follows,omitempty"`
}

// PlacementState sums up a placement.
type PlacementState string

// The values of PlacementState.
const (
	// PlacementPlaced: it is placed in clusters.
	PlacementPlaced PlacementState = "Placed"
	// PlacementWaiting: a policy claims it, and where it belongs is not decided yet.
	PlacementWaiting PlacementState = "Waiting"
	// PlacementNowhere: a policy claims it, and no cluster fits.
	PlacementNowhere PlacementState = "Nowhere"
	// PlacementUnclaimed: no policy claims it, and nothing that is placed needs it.
	PlacementUnclaimed PlacementState = "Unclaimed"
	// PlacementReserved: no policy may claim it: every cluster makes it for itself, or it is the hub's own.
	PlacementReserved PlacementState = "Reserved"
	// PlacementUnknown: it is not known, for the moment.
	PlacementUnknown PlacementState = "Unknown"
)

// ExplainedObject names an object of the hub.
type ExplainedObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// UID and Generation are not told of objects that are only referred to.
	UID        types.UID `json:"uid,omitempty"`
	Generation int64     `json:"generation,omitempty"`
}

// ExplainedPolicy names a policy.
type ExplainedPolicy struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Generation that is spoken of; 0: it is not known, or the policy is gone.
	Generation int64 `json:"generation,omitempty"`
	// Clusters in which an override policy changes something.
	Clusters []string `json:"clusters,omitempty"`
	// Reason says why it does not count.
	Reason string `json:"reason,omitempty"`
}

// ExplainedDecision is the last decision that was recorded.
type ExplainedDecision struct {
	// Time since which the outcome is this one, and Generation of the object, and PolicyGeneration of the policy, for which it was decided first.
	Time             metav1.MicroTime `json:"time"`
	Generation       int64            `json:"generation,omitempty"`
	PolicyGeneration int64            `json:"policyGeneration,omitempty"`
	// Current is false of a decision that is about something else than what the binding says now: it was made before.
	Current bool `json:"current"`
	// Reason and Message are those of the condition Scheduled of the binding. What speaks of clusters that the caller may not see is left out.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Replicas that the object asked for; absent of kinds without. Divided says that they are shared out, and not as many in each cluster.
	Replicas *int32 `json:"replicas,omitempty"`
	Divided  bool   `json:"divided,omitempty"`
}

// ExplainedCluster is a cluster as a placement sees it.
type ExplainedCluster struct {
	Name string `json:"name"`
	// Placed is true if the object is placed there, with Replicas of its own, absent of kinds without. Attached says that it is there only because others need it there.
	Placed   bool   `json:"placed"`
	Replicas *int32 `json:"replicas,omitempty"`
	Attached bool   `json:"attached,omitempty"`
	// Leaves is true if it, or some of its replicas, moves out and stays until as much is available elsewhere; Leaving is how many replicas do.
	Leaves  bool   `json:"leaves,omitempty"`
	Leaving *int32 `json:"leaving,omitempty"`
	// Verdicts say why it is not placed there, or would not be any more; none of a cluster in which it is not: that is not known.
	Verdicts []PlacementVerdict `json:"verdicts,omitempty"`
	// Result is how the last attempt to apply it there ended; absent: that is not known, or there was none yet.
	Result *PlacementResult `json:"result,omitempty"`
}

// PlacementVerdict is what one filter said of a cluster.
type PlacementVerdict struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// PlacementResult is how applying an object in a cluster ended.
type PlacementResult struct {
	Applied bool `json:"applied"`
	// Reason is one of the condition FullyApplied of bindings. Message of what is applied says what the cluster has otherwise.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Current is true if it is about binding, object and overrides as they are now; false: it is about the past, and another attempt is due.
	Current bool `json:"current"`
	// Time of the attempt; absent: it is not known.
	Time *metav1.MicroTime `json:"time,omitempty"`
}

// PlacementWait is something that is not done yet.
type PlacementWait struct {
	// For is Decision, Room, Availability, Cluster, Override, Policy, Suspension, Restore, PriorityClass, Removal or Apply.
	For     WaitReason `json:"for"`
	Message string     `json:"message"`
	// Clusters that are concerned; none: the placement as a whole.
	Clusters []string `json:"clusters,omitempty"`
}

// WaitReason says what is waited for.
type WaitReason string

// The values of WaitReason.
const (
	WaitDecision      WaitReason = "Decision"      // the hub looks at it in a moment
	WaitRoom          WaitReason = "Room"          // fewer replicas fit than are asked for
	WaitAvailability  WaitReason = "Availability"  // what moves stays until as much is available elsewhere
	WaitCluster       WaitReason = "Cluster"       // a cluster does not answer
	WaitOverride      WaitReason = "Override"      // an override policy that the policy names does not exist
	WaitPolicy        WaitReason = "Policy"        // a Lazy policy was edited: its change counts when the object changes
	WaitSuspension    WaitReason = "Suspension"    // somebody holds changes back
	WaitRestore       WaitReason = "Restore"       // the hub was restored from a backup: orrery server confirm-restore
	WaitPriorityClass WaitReason = "PriorityClass" // the policy names a PriorityClass that the hub does not have
	WaitRemoval       WaitReason = "Removal"       // it is deleted, and clusters still have copies
	WaitFinalizer     WaitReason = "Finalizer"     // it is deleted, and finalizers keep it and its copies
	WaitContest       WaitReason = "Contest"       // something in a cluster changes the copy each time the hub puts it back
	WaitApply         WaitReason = "Apply"         // a cluster has not answered yet, or refused
)
