package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkloadRebalancer has some objects placed anew, once, as if they were placed nowhere yet: what
// moves stays until as much is available where it goes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=orrery
// +kubebuilder:printcolumn:name="Finished",type=date,JSONPath=`.status.finishTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkloadRebalancer struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which objects.
	// +required
	Spec WorkloadRebalancerSpec `json:"spec"`
	// status says what became of each.
	// +optional
	Status WorkloadRebalancerStatus `json:"status,omitzero"`
}

// WorkloadRebalancerSpec says which objects are placed anew.
type WorkloadRebalancerSpec struct {
	// workloads are the objects. One that is added later is placed anew then; one that was
	// is not placed anew again.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +required
	Workloads []ObjectReference `json:"workloads"`
	// ttlSecondsAfterFinished is after how many seconds a finished WorkloadRebalancer is
	// deleted. Unset: never.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// ObjectReference names an object on the hub.
type ObjectReference struct {
	// apiVersion of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +required
	APIVersion string `json:"apiVersion"`
	// kind of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// namespace of the object; unset for kinds without.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// WorkloadRebalancerStatus says what became of the objects.
type WorkloadRebalancerStatus struct {
	// observedWorkloads has an entry for each of the workloads, in their order.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	ObservedWorkloads []ObservedWorkload `json:"observedWorkloads,omitempty"`
	// observedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// finishTime is when every workload had a result.
	// +optional
	FinishTime *metav1.Time `json:"finishTime,omitempty"`
}

// ObservedWorkload is what became of one object.
type ObservedWorkload struct {
	// workload is the object.
	// +required
	Workload ObjectReference `json:"workload"`
	// result is Successful when it was asked to be placed anew, and Failed when it cannot be.
	// +kubebuilder:validation:Enum=Successful;Failed
	// +optional
	Result RebalanceResult `json:"result,omitempty"`
	// reason says why it failed.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Reason RebalanceFailedReason `json:"reason,omitempty"`
}

// RebalanceResult says whether an object is placed anew.
type RebalanceResult string

// The values of RebalanceResult.
const (
	RebalanceSuccessful RebalanceResult = "Successful"
	RebalanceFailed     RebalanceResult = "Failed"
)

// RebalanceFailedReason says why an object is not placed anew.
type RebalanceFailedReason string

// The values of RebalanceFailedReason.
const (
	// RebalanceObjectNotFound is the reason of an object that is placed nowhere: it has no binding.
	RebalanceObjectNotFound RebalanceFailedReason = "ReferencedBindingNotFound"
	// RebalanceNoPolicy is the reason of an object that is placed, and that no policy places: it
	// follows others that refer to it, or its policy is gone.
	RebalanceNoPolicy RebalanceFailedReason = "NotPlacedByPolicy"
)

// WorkloadRebalancerList is a list of WorkloadRebalancers.
//
// +kubebuilder:object:root=true
type WorkloadRebalancerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkloadRebalancer `json:"items"`
}
