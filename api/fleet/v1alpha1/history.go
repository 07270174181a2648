package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ObjectHistory lists changes of the mirrored objects of the fleet. It is read below FleetPath with
// one of three parameters. history=true, for one object: its changes, by cluster and with the
// latest first. deleted=true, for a list: the deleted objects, with the latest deletion first.
// changedSince=MOMENT, for a list: the objects that differ from their state at that moment. Names
// and namespaces are those in the clusters, without @CLUSTER.
type ObjectHistory struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ObjectChange `json:"items"`
}

// ObjectChange is one change of an object or, with changedSince, the sum of all its changes since
// that moment.
type ObjectChange struct {
	Cluster   string     `json:"cluster"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name"`
	UID       types.UID  `json:"uid"`
	Change    ChangeType `json:"change"`
	// Revision numbers the changes of the objects of a cluster. A later change has a greater
	// revision. It is 0 for differences since a moment.
	Revision int64 `json:"revision,omitempty"`
	// Time is when the hub received the change, or the last of several changes. Absent: the
	// change is older than the history.
	Time *metav1.MicroTime `json:"time,omitempty"`
	// By are the field managers of the change, as the cluster recorded them. It is empty for a
	// deletion, for a change that only removed fields, and for a change that was mirrored
	// before field managers were.
	By []FieldManager `json:"by,omitempty"`
	// Cause is the annotation kubernetes.io/change-cause, if this change set it.
	Cause string `json:"cause,omitempty"`
	// Fields that changed. They include status, and metadata that changes with every change,
	// only with the parameter allFields=true.
	Fields []FieldDifference `json:"fields,omitempty"`
	// Object is the state after the change, or the last state of a deleted object. It is set
	// only with includeObject=Object. The data of a Secret is left out.
	Object json.RawMessage `json:"object,omitempty"`
}

// ChangeType is what a change did to an object, such as Created or Deleted.
type ChangeType string

// The values of ChangeType.
const (
	ChangeCreated   ChangeType = "Created"
	ChangeSeen      ChangeType = "Seen" // the first known state of an object that is older
	ChangeUpdated   ChangeType = "Updated"
	ChangeDeleted   ChangeType = "Deleted"
	ChangeRecreated ChangeType = "Recreated" // an object of the same name with another UID
)

// FieldManager is an entry of the object's managedFields: the client that made a change.
type FieldManager struct {
	Manager     string `json:"manager"`
	Operation   string `json:"operation,omitempty"`   // Apply or Update
	Subresource string `json:"subresource,omitempty"` // such as status
	APIVersion  string `json:"apiVersion,omitempty"`
	Time        string `json:"time,omitempty"` // by the cluster's clock, to the second
}

// FieldDifference is a field of an object whose values before and after a change differ.
type FieldDifference struct {
	// Path of the field, as in field selectors. Elements of lists are identified by their key:
	// spec.containers[name=web].image.
	Path string `json:"path"`
	// Before and After are the values before and after the change. Absent: the field was, or
	// is, not set.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Hidden is true if the values are left out because they are data of a Secret.
	Hidden bool `json:"hidden,omitempty"`
}

// CauseNoHistory is a cause in the details of an error (Status): a request for an ObjectHistory is
// refused because the hub keeps no history of the type.
const CauseNoHistory metav1.CauseType = "NoHistory"
