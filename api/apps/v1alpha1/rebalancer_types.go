package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkloadRebalancer asks the scheduler to place the listed objects again, once, as if they
// were placed nowhere yet. Replicas that move stay in their old cluster until as many are
// available in the new one.
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

	// spec lists the objects.
	// +required
	Spec WorkloadRebalancerSpec `json:"spec"`
	// status has the result for each object.
	// +optional
	Status WorkloadRebalancerStatus `json:"status,omitzero"`
}

// WorkloadRebalancerSpec lists the objects to place again.
type WorkloadRebalancerSpec struct {
	// workloads are the objects. An object that is added to the list later is placed again
	// then. An object that was already placed again is not placed another time.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +required
	Workloads []ObjectReference `json:"workloads"`
	// ttlSecondsAfterFinished is the number of seconds after which a finished
	// WorkloadRebalancer is deleted. Unset: it is never deleted.
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
	// namespace of the object. Unset for kinds without a namespace.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// WorkloadRebalancerStatus has the results.
type WorkloadRebalancerStatus struct {
	// observedWorkloads has one entry for each entry of spec.workloads, in the same order.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	ObservedWorkloads []ObservedWorkload `json:"observedWorkloads,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// finishTime is when every workload had a result.
	// +optional
	FinishTime *metav1.Time `json:"finishTime,omitempty"`
}

// ObservedWorkload is the result for one object.
type ObservedWorkload struct {
	// workload is the object.
	// +required
	Workload ObjectReference `json:"workload"`
	// result is Successful if the object's new placement was requested, and Failed if it cannot
	// be requested.
	// +kubebuilder:validation:Enum=Successful;Failed
	// +optional
	Result RebalanceResult `json:"result,omitempty"`
	// reason says why the result is Failed.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Reason RebalanceFailedReason `json:"reason,omitempty"`
}

// RebalanceResult says whether the new placement of an object was requested.
type RebalanceResult string

// The values of RebalanceResult.
const (
	RebalanceSuccessful RebalanceResult = "Successful" // the hub was asked to place the object again
	RebalanceFailed     RebalanceResult = "Failed"     // the reason says why not
)

// RebalanceFailedReason says why an object is not placed again.
type RebalanceFailedReason string

// The values of RebalanceFailedReason.
const (
	// RebalanceObjectNotFound means that the object is placed nowhere, so it has no binding.
	RebalanceObjectNotFound RebalanceFailedReason = "ReferencedBindingNotFound"
	// RebalanceNoPolicy means that no policy places the object now. It was placed as a dependency of
	// other objects, or its policy is gone.
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
