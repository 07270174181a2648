package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OperationSlice has the records of the steps of an Operation on one host, or a part of them. An Operation over a thousand
// hosts has tens of thousands: they are kept beside it, so that it stays small. It belongs to its Operation and is deleted with
// it. Only the hub writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=opslice
// +kubebuilder:printcolumn:name="Operation",type=string,JSONPath=`.operation`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.host`
// +kubebuilder:printcolumn:name="Part",type=integer,JSONPath=`.part`,priority=1
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.attempt`
// +kubebuilder:printcolumn:name="Running",type=string,JSONPath=`.steps[?(@.state=="Running")].id`
// +kubebuilder:printcolumn:name="Failed",type=string,JSONPath=`.steps[?(@.state=="Failed")].id`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type OperationSlice struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// operation is the name of the Operation.
	// +kubebuilder:validation:MaxLength=253
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an OperationSlice is of one Operation"
	Operation string `json:"operation"`
	// host that the steps ran on; "cluster" is what is done through the API server.
	// +kubebuilder:validation:MaxLength=63
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an OperationSlice is of one host"
	Host string `json:"host"`
	// part counts the slices of a host, from 0. Each but the last has 100 steps.
	// +kubebuilder:validation:Minimum=0
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an OperationSlice is one part"
	Part int32 `json:"part"`
	// attempt is that of the Operation when this was written last.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// epoch is that of the Operation when this was written last. A run that finds a higher one, or a higher attempt,
	// writes nothing any more.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// steps are the records of the steps, in the order they were started.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Steps []StepRecord `json:"steps,omitempty"`
}

// OperationSliceList is a list of OperationSlices.
//
// +kubebuilder:object:root=true
type OperationSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OperationSlice `json:"items"`
}
