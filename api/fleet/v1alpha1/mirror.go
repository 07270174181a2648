package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterMirror lists the types of a cluster that the hub mirrors (copies to its database), with
// the age of the data. It also lists the types that are not mirrored, with the reason. Users who
// may get the Cluster and clusters/mirror read it at ClustersPath + "/NAME/mirror".
type ClusterMirror struct {
	metav1.TypeMeta `json:",inline"`

	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// Reachable is false while the cluster does not answer. All values are then the last known
	// ones.
	Reachable bool `json:"reachable"`
	// LagSeconds is the age of the oldest data: the maximum of LagSeconds of the types.
	LagSeconds int64 `json:"lagSeconds"`
	// Types that are mirrored, sorted by group and resource.
	Types []MirroredType `json:"types"`
	// Refused are types that the cluster serves and that are not mirrored.
	Refused []RefusedType `json:"refused,omitempty"`
	// Problems are the parts of the Cluster's spec.mirror and of the MirrorPolicies that have
	// no effect, with the reason.
	Problems []string `json:"problems,omitempty"`
}

// MirroredType is a type of a cluster that is mirrored.
type MirroredType struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	// Objects describes the namespaces and labels of the mirrored objects. Empty: all objects.
	Objects string `json:"objects,omitempty"`
	// Life is how long objects, such as Events, are kept after their last occurrence, such as 1h0m0s.
	// Empty: as long as they exist in the cluster.
	Life string `json:"life,omitempty"`
	// Reason says which setting or part of the hub selected the type.
	Reason string `json:"reason,omitempty"`
	// State is Current, Reading or Stale.
	State MirrorState `json:"state"`
	// Message says why the type is not current.
	Message string `json:"message,omitempty"`
	// LastSeen is the time that the known state of the type refers to. At that time a watch was
	// open and the cluster answered.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// LagSeconds is the age of the known state of the type. It is 0 for a current type.
	LagSeconds int64 `json:"lagSeconds"`
}

// MirrorState says how current the mirrored data of a type is.
type MirrorState string

// The values of MirrorState.
const (
	// MirrorCurrent means that the cluster reports each change of the type.
	MirrorCurrent MirrorState = "Current"
	// MirrorReading means that the type has not been read completely yet.
	MirrorReading MirrorState = "Reading"
	// MirrorStale means that the type was read, but the cluster does not report changes at present.
	MirrorStale MirrorState = "Stale"
)

// RefusedType is a type that the cluster serves and the hub does not mirror, with the reason.
type RefusedType struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	Reason   string `json:"reason"`
}

// LastSeenAnnotation is an annotation that the fleet API adds to objects of a type whose mirrored
// data is not current. Its value is the last time, in UTC and RFC 3339, at which the data was
// current: a watch was open and the cluster answered. An annotation of this name that the object
// has in its cluster is removed.
const LastSeenAnnotation = "fleet.orrery.dev/last-seen"

// IncompleteAnnotation is an annotation on objects that the fleet API returns without some fields,
// because the database of the mirror cannot store these. Its value names the missing fields. An
// annotation of this name in a cluster is not mirrored.
const IncompleteAnnotation = "fleet.orrery.dev/incomplete"
