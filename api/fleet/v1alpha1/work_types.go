package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorksPath is the path from which a WorkList (the state of an object in its clusters) is read:
// WorksPath + "?of=Deployment.apps/shop/web". The parameter cluster=NAME restricts it to one
// cluster, and adds the manifests.
const WorksPath = "/apis/fleet.orrery.dev/v1alpha1/works"

// WorkList shows the state of an object of the hub in each of its clusters. It is read at WorksPath
// with the parameter of=KIND[.GROUP]/NAMESPACE/NAME, or KIND[.GROUP]/NAME for an object without a
// namespace, by users who may get the object.
type WorkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// Of is the object, with its current UID and generation.
	Of ExplainedObject `json:"of"`
	// Message says why there are no items. Empty: the object is placed, or there is nothing to
	// report.
	Message string `json:"message,omitempty"`
	// Items are the clusters in which the object is placed, from which it moves, or which have
	// a copy of it, sorted by name.
	Items []Work `json:"items"`
	// Hidden is the number of clusters that would be in Items and that the caller may not see.
	Hidden int `json:"hidden,omitempty"`
}

// Work is the state of an object of the hub in one cluster.
type Work struct {
	Cluster string `json:"cluster"`
	// Placed is false for a cluster that has a copy although the object is not placed there
	// now.
	Placed bool `json:"placed"`
	// State says whether the object exists in the cluster. Message says why it does not, or why
	// that is unknown.
	State   WorkState `json:"state"`
	Message string    `json:"message,omitempty"`
	// LastSeen is the time that the known state of the type in the cluster refers to, if it is
	// not current.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// Result of the last attempt to apply the object there. Absent: it is unknown.
	Result *PlacementResult `json:"result,omitempty"`
	// Wanted is the number of replicas that the placement gives the cluster. Asked is the number of
	// replicas that the object in the cluster requests, and Ready the number of them that are
	// available. Absent: the kind has no replicas, or the number is unknown.
	Wanted *int32 `json:"wanted,omitempty"`
	Asked  *int32 `json:"asked,omitempty"`
	Ready  *int32 `json:"ready,omitempty"`
	// Images of the pods, by container.
	Images []WorkImage `json:"images,omitempty"`
	// Health is Healthy, Unhealthy or Unknown. It is absent if the object does not exist there.
	// Cause says why the object is not healthy.
	Health string `json:"health,omitempty"`
	Cause  string `json:"cause,omitempty"`
	// Overrides are the override policies that change the object in this cluster, in the order
	// in which they are applied.
	Overrides []ExplainedPolicy `json:"overrides,omitempty"`
	// Drift are the fields that the hub applies and that have another value in the cluster than
	// in the manifest rendered now. Before is the rendered value, After the live value.
	// DriftUnknown says why the drift is unknown.
	Drift        []FieldDifference `json:"drift,omitempty"`
	DriftUnknown string            `json:"driftUnknown,omitempty"`
	// Rendered is the manifest to apply now, and Live the object in the cluster. They are set
	// only in a request for one cluster. They never have the data of a Secret.
	Rendered json.RawMessage `json:"rendered,omitempty"`
	Live     json.RawMessage `json:"live,omitempty"`
}

// WorkState says whether an object exists in a cluster.
type WorkState string

// The values of WorkState.
const (
	// WorkPresent means that the object exists in the cluster.
	WorkPresent WorkState = "Present"
	// WorkAbsent means that the object does not exist in the cluster.
	WorkAbsent WorkState = "Absent"
	// WorkUnknown means that the cluster does not answer, or that the type is not mirrored or not read
	// yet. The other fields of the Work are the last known state.
	WorkUnknown WorkState = "Unknown"
)

// WorkImage is the image of a container of an object in a cluster, as it should be and as it is.
type WorkImage struct {
	Container string `json:"container"`
	// Wanted is the rendered image, Live the image of the object in the cluster. Empty: there
	// is no such container, or the image is unknown.
	Wanted string `json:"wanted,omitempty"`
	Live   string `json:"live,omitempty"`
}
