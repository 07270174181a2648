package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ObjectHistory tells what became of objects. It is read below FleetPath: with the parameter history=true of one object, whose
// changes it tells, cluster by cluster and the latest first; with deleted=true of many, of which it tells those that are gone, the latest first;
// with changedSince=MOMENT of many, of which it tells what is another now than it was then. Names are those in the clusters.
type ObjectHistory struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ObjectChange `json:"items"`
}

// ObjectChange is what a change did, or all changes since a moment together.
type ObjectChange struct {
	Cluster   string     `json:"cluster"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name"`
	UID       types.UID  `json:"uid"`
	Change    ChangeType `json:"change"`
	// Revision numbers the changes of a cluster's objects; of two, the later has the greater. Differences since a moment have none.
	Revision int64 `json:"revision,omitempty"`
	// Time is when the hub heard of the change, the last one if it is many; absent: before there was a history.
	Time *metav1.MicroTime `json:"time,omitempty"`
	// By are the field managers of the change, as the cluster noted them: none of a deletion, of what only took something away, and of what was
	// mirrored before they were.
	By []FieldManager `json:"by,omitempty"`
	// Cause is the annotation kubernetes.io/change-cause, if the change brought it.
	Cause string `json:"cause,omitempty"`
	// Fields are those that changed. Without allFields=true neither status nor metadata that changes with every change are among them.
	Fields []FieldDifference `json:"fields,omitempty"`
	// Object is the state after the change, the last one of what is deleted; with includeObject=Object. Of a Secret there is no data.
	Object json.RawMessage `json:"object,omitempty"`
}

// ChangeType is what a change did.
type ChangeType string

// The values of ChangeType.
const (
	ChangeCreated   ChangeType = "Created"
	ChangeSeen      ChangeType = "Seen" // the first that is known of an object that is older
	ChangeUpdated   ChangeType = "Updated"
	ChangeDeleted   ChangeType = "Deleted"
	ChangeRecreated ChangeType = "Recreated" // another object of the name took its place
)

// FieldManager is who changed an object, by the object's managedFields.
type FieldManager struct {
	Manager     string `json:"manager"`
	Operation   string `json:"operation,omitempty"`   // Apply or Update
	Subresource string `json:"subresource,omitempty"` // such as status
	APIVersion  string `json:"apiVersion,omitempty"`
	Time        string `json:"time,omitempty"` // by the cluster's clock, to the second
}

// FieldDifference is a field that differs.
type FieldDifference struct {
	// Path is as in field selectors, with elements of lists by what names them: spec.containers[name=web].image.
	Path string `json:"path"`
	// Before and After are what it was and is; absent: there was, or is, none.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Hidden says that the values are not told: they are a Secret's data.
	Hidden bool `json:"hidden,omitempty"`
}

// CauseNoHistory is the cause in the details of a refusal: of the type no history is kept.
const CauseNoHistory metav1.CauseType = "NoHistory"
