package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterMirror says what is mirrored of a cluster, how old that is, and what is not mirrored, and why. It is read at
// ClustersPath + "/NAME/mirror" by those who may get the Cluster.
type ClusterMirror struct {
	metav1.TypeMeta `json:",inline"`

	// Cluster is its name.
	Cluster string `json:"cluster"`
	// Reachable is false while the cluster does not answer: everything is the last known then.
	Reachable bool `json:"reachable"`
	// LagSeconds is the largest of the types'.
	LagSeconds int64 `json:"lagSeconds"`
	// Types are those that are mirrored, by group and resource.
	Types []MirroredType `json:"types"`
	// Refused are those that the cluster serves and that are not mirrored.
	Refused []RefusedType `json:"refused,omitempty"`
	// Problems are what of the Cluster's spec.mirror and the MirrorPolicies counts for nothing, and why.
	Problems []string `json:"problems,omitempty"`
}

// MirroredType is a type of a cluster that is mirrored.
type MirroredType struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	// Objects says which are mirrored, by namespaces and labels; "" is all of them.
	Objects string `json:"objects,omitempty"`
	// Life is how long objects stay after they last happened, such as 1h0m0s; "": as long as in the cluster.
	Life string `json:"life,omitempty"`
	// Reason says who wants it.
	Reason string `json:"reason,omitempty"`
	// State is Current, Reading or Stale.
	State MirrorState `json:"state"`
	// Message says why it is not current.
	Message string `json:"message,omitempty"`
	// LastSeen is as of when the type is known: until then a watch was open and the cluster answered.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// LagSeconds is how old what is known is; 0 of a current type.
	LagSeconds int64 `json:"lagSeconds"`
}

// MirrorState says how current a mirrored type is.
type MirrorState string

// The values of MirrorState.
const (
	// MirrorCurrent: the cluster tells each change.
	MirrorCurrent MirrorState = "Current"
	// MirrorReading: it was not read whole yet.
	MirrorReading MirrorState = "Reading"
	// MirrorStale: it was, and the cluster does not tell changes at present.
	MirrorStale MirrorState = "Stale"
)

// RefusedType is a type that is not mirrored.
type RefusedType struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	Reason   string `json:"reason"`
}

// LastSeenAnnotation is set on objects that the fleet API returns of a type that is stale in its cluster, and says as of
// when it is known: until then a watch of it was open and the cluster answered.
const LastSeenAnnotation = "fleet.orrery.dev/last-seen"

// IncompleteAnnotation is set on objects that the fleet API returns without a part that the mirror's database cannot store, and
// names the fields that are missing. What a cluster says under that name is not mirrored.
const IncompleteAnnotation = "fleet.orrery.dev/incomplete"
