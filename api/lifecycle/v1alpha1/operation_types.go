package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Operation is one run that builds, changes or removes a cluster on hosts. It has the request,
// and a record of the steps on each host. On the hub it is an object; without a hub a file has
// the same content.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=orrery,shortName=oper
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.action`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.stepsDone`
// +kubebuilder:printcolumn:name="Steps",type=integer,JSONPath=`.status.stepsTotal`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Operation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the request.
	// +required
	Spec OperationSpec `json:"spec"`
	// status records what was done.
	// +optional
	Status OperationStatus `json:"status,omitzero"`
}

// OperationSpec is the request. It has the fields of every action, and a member with the name
// of the action for the parameters of that action. Only paused and canceled can be changed.
// +kubebuilder:validation:XValidation:rule="has(self.planHash) == has(oldSelf.planHash) && has(self.deadline) == has(oldSelf.deadline) && has(self.attempts) == has(oldSelf.attempts) && has(self.create) == has(oldSelf.create) && has(self.apply) == has(oldSelf.apply) && has(self.addNode) == has(oldSelf.addNode) && has(self.deleteNode) == has(oldSelf.deleteNode) && has(self.delete) == has(oldSelf.delete) && has(self.renewCertificates) == has(oldSelf.renewCertificates)",message="only paused and canceled can be changed; cancel it and make another Operation"
// +kubebuilder:validation:XValidation:rule="!has(self.create) || self.action == 'Create'",message="create is for action Create only"
// +kubebuilder:validation:XValidation:rule="!has(self.apply) || self.action == 'Apply'",message="apply is for action Apply only"
// +kubebuilder:validation:XValidation:rule="!has(self.addNode) || self.action == 'AddNode'",message="addNode is for action AddNode only"
// +kubebuilder:validation:XValidation:rule="!has(self.deleteNode) || self.action == 'DeleteNode'",message="deleteNode is for action DeleteNode only"
// +kubebuilder:validation:XValidation:rule="!has(self.delete) || self.action == 'Delete'",message="delete is for action Delete only"
// +kubebuilder:validation:XValidation:rule="!has(self.renewCertificates) || self.action == 'RenewCertificates'",message="renewCertificates is for action RenewCertificates only"
// +kubebuilder:validation:XValidation:rule="self.action != 'DeleteNode' || has(self.deleteNode)",message="action DeleteNode takes the hosts in deleteNode.hosts"
type OperationSpec struct {
	// cluster is the name of the Cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Cluster string `json:"cluster"`
	// action to run.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Action Action `json:"action"`
	// planHash is the expected hash of the plan. If the plan made at the start of the Operation
	// has another hash, nothing is done. Unset: the hash is not compared.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	PlanHash string `json:"planHash,omitempty"`
	// deadline is the maximum duration of the whole run. Unset: there is none.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// attempts is how often a step is tried on a host until it succeeds, the first try
	// included. The default is 3.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Attempts int32 `json:"attempts,omitempty"`
	// paused stops the run once the steps in progress have ended. The run continues when paused
	// is false again.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// canceled ends the run once the steps in progress have ended. What was done stays.
	// +optional
	Canceled bool `json:"canceled,omitempty"`

	// create has the parameters of action Create.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Create *CreateAction `json:"create,omitempty"`
	// apply has the parameters of action Apply.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Apply *ApplyAction `json:"apply,omitempty"`
	// addNode has the parameters of action AddNode.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	AddNode *AddNodeAction `json:"addNode,omitempty"`
	// deleteNode has the parameters of action DeleteNode, which requires it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	DeleteNode *DeleteNodeAction `json:"deleteNode,omitempty"`
	// delete has the parameters of action Delete.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Delete *DeleteAction `json:"delete,omitempty"`
	// renewCertificates has the parameters of action RenewCertificates.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	RenewCertificates *RenewCertificatesAction `json:"renewCertificates,omitempty"`
}

// CreateAction has the parameters of action Create.
type CreateAction struct {
	Rollout `json:",inline"`
}

// ApplyAction has the parameters of action Apply.
type ApplyAction struct {
	Rollout `json:",inline"`
}

// AddNodeAction has the parameters of action AddNode.
type AddNodeAction struct {
	// hosts to add.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Hosts []string `json:"hosts,omitempty"`

	Rollout `json:",inline"`
}

// DeleteNodeAction has the parameters of action DeleteNode.
type DeleteNodeAction struct {
	// hosts to remove from the cluster.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +required
	Hosts []string `json:"hosts"`
	// unreachable says what happens with named hosts that cannot be reached or have lost their
	// record of the installed parts. Refuse: the run stops. Forget: their nodes and etcd
	// members are removed, and what is on the hosts stays. The default is Refuse.
	// +kubebuilder:default=Refuse
	// +optional
	Unreachable UnreachablePolicy `json:"unreachable,omitempty"`

	Rollout `json:",inline"`
}

// DeleteAction has the parameters of action Delete.
type DeleteAction struct {
	// unreachable says what happens with hosts that cannot be reached or have lost their record
	// of the installed parts. Refuse: the run stops. Forget: what is on them stays. The default
	// is Refuse.
	// +kubebuilder:default=Refuse
	// +optional
	Unreachable UnreachablePolicy `json:"unreachable,omitempty"`
}

// RenewCertificatesAction has the parameters of action RenewCertificates.
type RenewCertificatesAction struct {
	// maxUnavailable is the number of workers on which the components that use the certificates
	// restart at the same time. The default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
}

// Rollout limits how many hosts of an existing cluster are changed at the same time, and how
// long the run waits.
type Rollout struct {
	// maxUnavailable is the number of workers that are changed at the same time in a way that
	// disrupts their workloads. The default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
	// pauseBetween is the wait between two waves of hosts that are disrupted. Unset: there is
	// none.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	PauseBetween *metav1.Duration `json:"pauseBetween,omitempty"`
	// haltAfter is the number of failed hosts after which the run begins nothing more. Below
	// that number the other hosts continue without the failed ones, and the run fails at the
	// end. The default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	HaltAfter int32 `json:"haltAfter,omitempty"`
	// drainTimeout is how long a drain waits for pods that their disruption budget protects
	// from eviction. The default is 5 minutes.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
}

// Action is what an Operation does.
// +kubebuilder:validation:Enum=Create;Apply;AddNode;DeleteNode;Delete;RenewCertificates
type Action string

// The actions.
const (
	ActionCreate     Action = "Create"
	ActionApply      Action = "Apply"
	ActionAddNode    Action = "AddNode"
	ActionDeleteNode Action = "DeleteNode"
	ActionDelete     Action = "Delete"
	// ActionRenewCertificates renews the certificates that are due for renewal, and changes nothing
	// else.
	ActionRenewCertificates Action = "RenewCertificates"
)

// UnreachablePolicy says what happens with hosts to delete that cannot be reached.
// +kubebuilder:validation:Enum=Refuse;Forget
type UnreachablePolicy string

// The values of UnreachablePolicy.
const (
	UnreachableRefuse UnreachablePolicy = "Refuse" // the run stops
	UnreachableForget UnreachablePolicy = "Forget" // what is on the hosts stays
)

// OperationStatus is the record of the run.
type OperationStatus struct {
	// phase of the run.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// message is a sentence about the state of the run, or the reason why it ended.
	// +kubebuilder:validation:MaxLength=32768
	// +optional
	Message string `json:"message,omitempty"`
	// planHash is the hash of the plan of the run.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	PlanHash string `json:"planHash,omitempty"`
	// plan is what this attempt does, as the command line prints it without details. Hosts with
	// equal changes share an entry. If the plan of a very large cluster with many different
	// hosts exceeds 64 KiB, the rest is only counted.
	// +kubebuilder:validation:MaxItems=1001
	// +listType=atomic
	// +optional
	Plan []PlannedChanges `json:"plan,omitempty"`
	// specHash identifies the spec that this Operation applies. The first attempt sets it: a
	// later attempt applies the same spec, or nothing.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	SpecHash string `json:"specHash,omitempty"`
	// attempt counts the processes that ran this Operation. More than 1 means that the run was
	// resumed.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// epoch is a fencing token: a host refuses a run whose epoch is lower than the last one
	// that it saw.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// started and finished are the times when the run began and ended.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// +optional
	Finished *metav1.MicroTime `json:"finished,omitempty"`
	// estimate is when the run is expected to end.
	// +optional
	Estimate *metav1.MicroTime `json:"estimate,omitempty"`
	// stepsDone and stepsTotal are numbers of steps, summed over all hosts.
	// +optional
	StepsDone int32 `json:"stepsDone,omitempty"`
	// +optional
	StepsTotal int32 `json:"stepsTotal,omitempty"`
	// hosts summarizes the run on each host.
	// +kubebuilder:validation:MaxItems=1001
	// +listType=map
	// +listMapKey=name
	// +optional
	Hosts []HostRun `json:"hosts,omitempty"`
	// steps are the records of the steps, in the order in which the steps started. On the hub
	// there are at most 100: failed steps, steps in progress, and the steps that ended last.
	// The OperationSlices have all records. A file has all records up to 4,000; beyond that,
	// those of succeeded steps are dropped first. The counts in hosts remain.
	// +kubebuilder:validation:MaxItems=4000
	// +listType=atomic
	// +optional
	Steps []StepRecord `json:"steps,omitempty"`
	// conditions: Succeeded is True or False once the run has ended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Phase is the state of a run.
// +kubebuilder:validation:Enum=Pending;Running;Paused;Succeeded;Failed;Canceled
type Phase string

// The phases. Runs that are Pending, Running or Paused can continue; a Failed run can be
// resumed.
const (
	PhasePending   Phase = "Pending"
	PhaseRunning   Phase = "Running"
	PhasePaused    Phase = "Paused"
	PhaseSucceeded Phase = "Succeeded"
	PhaseFailed    Phase = "Failed"
	PhaseCanceled  Phase = "Canceled"
)

// PlannedChanges are the equal changes of one or more hosts.
type PlannedChanges struct {
	// hosts that get the changes. "cluster" stands for changes of the cluster as a whole.
	// +kubebuilder:validation:MaxItems=1001
	// +listType=atomic
	// +required
	Hosts []string `json:"hosts"`
	// changes has a line for each change. It begins with a sign: + added, ~ changed, !
	// repaired, - removed, * done to the cluster. Then follow the kind, the name and, in
	// brackets, how the change disrupts the workloads.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Changes []string `json:"changes,omitempty"`
	// left is the number of changes that are not listed.
	// +optional
	Left int32 `json:"left,omitempty"`
}

// HostRun summarizes the run on one host.
type HostRun struct {
	// name of the host. "cluster" stands for the steps that are done through the API server.
	Name string `json:"name"`
	// stage in progress, or the last one.
	// +optional
	Stage string `json:"stage,omitempty"`
	// state of the host.
	State StepState `json:"state"`
	// done and total are numbers of the host's steps.
	// +optional
	Done int32 `json:"done,omitempty"`
	// +optional
	Total int32 `json:"total,omitempty"`
	// roundTrips is the number of requests sent to the host.
	// +optional
	RoundTrips int32 `json:"roundTrips,omitempty"`
	// message says why the host failed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// StepRecord is the result of one step on one host.
type StepRecord struct {
	// host that the step ran on.
	Host string `json:"host"`
	// id of the step, a constant such as kubelet/config.
	ID string `json:"id"`
	// state of the step.
	State StepState `json:"state"`
	// attempt is how often the step was tried.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// started and finished are the times of the last attempt.
	// +optional
	Started metav1.MicroTime `json:"started,omitzero"`
	// +optional
	Finished metav1.MicroTime `json:"finished,omitzero"`
	// inputHash is the hash of the input of the step.
	// +optional
	InputHash string `json:"inputHash,omitempty"`
	// message says why the step failed, with the end of its output.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// StepState is the state of a step.
// +kubebuilder:validation:Enum=Pending;Running;Unchanged;Changed;Reverted;Failed
type StepState string

// The states. Unchanged: the host already had the wanted state.
const (
	StepPending   StepState = "Pending"
	StepRunning   StepState = "Running"
	StepUnchanged StepState = "Unchanged"
	StepChanged   StepState = "Changed"
	StepReverted  StepState = "Reverted"
	StepFailed    StepState = "Failed"
)

// ConditionSucceeded is the condition of an Operation that is True or False once its run has ended.
// Its reason is the phase.
const ConditionSucceeded = "Succeeded"

// OperationList is a list of Operations.
//
// +kubebuilder:object:root=true
type OperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Operation `json:"items"`
}
