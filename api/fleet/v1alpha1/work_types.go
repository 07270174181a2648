package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorksPath is where a WorkList is read: WorksPath + "?of=Deployment.apps/shop/web", with "&cluster=NAME" of one cluster with its manifests.
const WorksPath = "/apis/fleet.orrery.dev/v1alpha1/works"

// WorkList says how an object of the hub fares in each of its clusters. It is read at WorksPath, with the parameter of as for a PlacementExplanation,
// by those who may get the object.
type WorkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// Of is the object as it is now.
	Of ExplainedObject `json:"of"`
	// Message says why there are no items; empty: it is placed, or nothing is to be said.
	Message string `json:"message,omitempty"`
	// Items are the clusters that the object is placed in or moves out of, and those that have copies of it, by name.
	Items []Work `json:"items"`
	// Hidden is the number of other such clusters, which the caller may not see.
	Hidden int `json:"hidden,omitempty"`
}

// Work is an object in one cluster.
type Work struct {
	Cluster string `json:"cluster"`
	// Placed is false of a cluster that the object is not placed in any more, or never was, and which has a copy.
	Placed bool `json:"placed"`
	// State says whether the object is there, and Message why it is not, or why that is not known.
	State   WorkState `json:"state"`
	Message string    `json:"message,omitempty"`
	// LastSeen is as of when the type is known in the cluster, if that is not now.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// Result is how the last attempt to apply it there ended; absent: that is not known.
	Result *PlacementResult `json:"result,omitempty"`
	// Wanted is how many replicas the placement gives the cluster, Asked how many the object there asks for, and Ready how many of them serve. Absent: the kind
	// has none, or it is not known.
	Wanted *int32 `json:"wanted,omitempty"`
	Asked  *int32 `json:"asked,omitempty"`
	Ready  *int32 `json:"ready,omitempty"`
	// Images of the pods, by container.
	Images []WorkImage `json:"images,omitempty"`
	// Health is Healthy, Unhealthy or Unknown, absent of what is not there, and Cause says why it is not healthy.
	Health string `json:"health,omitempty"`
	Cause  string `json:"cause,omitempty"`
	// Overrides are the override policies that change it in this cluster, in the order in which they are applied.
	Overrides []ExplainedPolicy `json:"overrides,omitempty"`
	// Drift are the fields that the hub applies whose value in the cluster is another than what is rendered now: Before is rendered, After is live.
	// DriftUnknown says why that is not known.
	Drift        []FieldDifference `json:"drift,omitempty"`
	DriftUnknown string            `json:"driftUnknown,omitempty"`
	// Rendered is the manifest that is to be there now, and Live the object that is there; of one cluster only. Of a Secret they have no data.
	Rendered json.RawMessage `json:"rendered,omitempty"`
	Live     json.RawMessage `json:"live,omitempty"`
}

// WorkState says whether an object is in a cluster.
type WorkState string

// The values of WorkState.
const (
	// WorkPresent: it is there.
	WorkPresent WorkState = "Present"
	// WorkAbsent: it is known not to be there.
	WorkAbsent WorkState = "Absent"
	// WorkUnknown: the cluster does not answer, or the type is not mirrored or not read yet. What is told is the last that was seen.
	WorkUnknown WorkState = "Unknown"
)

// WorkImage is the image of a container.
type WorkImage struct {
	Container string `json:"container"`
	// Wanted is what is rendered, and Live what the object there has; empty: there is no such container, or it is not known.
	Wanted string `json:"wanted,omitempty"`
	Live   string `json:"live,omitempty"`
}
