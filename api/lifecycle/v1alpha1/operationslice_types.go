package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OperationSlice has the records of an Operation's steps on one host, or a part of them. An
// Operation on a thousand hosts has tens of thousands of records: slices keep the Operation
// small. An OperationSlice is deleted with its Operation. Only the hub writes it.
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
	// host on which the steps ran. "cluster" stands for the steps that are done through the API
	// server.
	// +kubebuilder:validation:MaxLength=63
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an OperationSlice is of one host"
	Host string `json:"host"`
	// part numbers the slices of a host, from 0. Every slice but the last has 100 steps.
	// +kubebuilder:validation:Minimum=0
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an OperationSlice is one part"
	Part int32 `json:"part"`
	// attempt of the Operation at the last write of this slice.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// epoch of the Operation at the last write of this slice. A run that finds a higher epoch,
	// or a higher attempt, writes nothing more.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// steps are the records of the steps, in the order in which the steps started.
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
