package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Operation is one run that builds, changes or removes a cluster on hosts: what is to be done, and a record of what was
// done on each host. On the hub it is an object; without one, the same is kept in a file.
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

	// spec says what is to be done.
	// +required
	Spec OperationSpec `json:"spec"`
	// status records what was done.
	// +optional
	Status OperationStatus `json:"status,omitzero"`
}

// OperationSpec says what is to be done: what every action takes, and beside it the one member that is named like the action, with
// what only that takes. Only paused and canceled may be changed.
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
	// action that is run.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Action Action `json:"action"`
	// planHash is the hash of the plan that is to be run. If the plan that is made when the
	// Operation starts has another, nothing is done. Unset, the plan is not compared.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	PlanHash string `json:"planHash,omitempty"`
	// deadline of the whole run. Unset, there is none.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// attempts is how often a host's failed step is tried in all. The default is 3.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Attempts int32 `json:"attempts,omitempty"`
	// paused stops the run after the steps that are under way.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// canceled ends the run after the steps that are under way. What was done stays.
	// +optional
	Canceled bool `json:"canceled,omitempty"`

	// create is what action Create takes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Create *CreateAction `json:"create,omitempty"`
	// apply is what action Apply takes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Apply *ApplyAction `json:"apply,omitempty"`
	// addNode is what action AddNode takes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	AddNode *AddNodeAction `json:"addNode,omitempty"`
	// deleteNode is what action DeleteNode takes. It is required there.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	DeleteNode *DeleteNodeAction `json:"deleteNode,omitempty"`
	// delete is what action Delete takes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	Delete *DeleteAction `json:"delete,omitempty"`
	// renewCertificates is what action RenewCertificates takes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="only paused and canceled can be changed; cancel it and make another Operation"
	RenewCertificates *RenewCertificatesAction `json:"renewCertificates,omitempty"`
}

// CreateAction is what action Create takes.
type CreateAction struct {
	Rollout `json:",inline"`
}

// ApplyAction is what action Apply takes.
type ApplyAction struct {
	Rollout `json:",inline"`
}

// AddNodeAction is what action AddNode takes.
type AddNodeAction struct {
	// hosts that are added.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Hosts []string `json:"hosts,omitempty"`

	Rollout `json:",inline"`
}

// DeleteNodeAction is what action DeleteNode takes.
type DeleteNodeAction struct {
	// hosts that are taken out.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +required
	Hosts []string `json:"hosts"`
	// unreachable says what to do about hosts to delete that cannot be reached, or that have lost
	// the record of what was done on them. Refuse stops. Forget removes their nodes and etcd
	// members; what is on the hosts stays.
	// +kubebuilder:default=Refuse
	// +optional
	Unreachable UnreachablePolicy `json:"unreachable,omitempty"`

	Rollout `json:",inline"`
}

// DeleteAction is what action Delete takes.
type DeleteAction struct {
	// unreachable says what to do about hosts that cannot be reached, or that have lost the record
	// of what was done on them. Refuse stops. Forget leaves what is on them.
	// +kubebuilder:default=Refuse
	// +optional
	Unreachable UnreachablePolicy `json:"unreachable,omitempty"`
}

// RenewCertificatesAction is what action RenewCertificates takes.
type RenewCertificatesAction struct {
	// maxUnavailable is how many workers restart what uses their certificates at a time. The
	// default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
}

// Rollout says in which order hosts are changed that are part of a cluster already, and how long is waited.
type Rollout struct {
	// maxUnavailable is how many workers are changed at a time in a way that disturbs what
	// runs on them. The default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
	// pauseBetween is how long to wait between two waves of hosts that are disturbed. Unset,
	// there is no pause.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	PauseBetween *metav1.Duration `json:"pauseBetween,omitempty"`
	// haltAfter is after how many hosts that failed nothing more is begun. Until then those that
	// failed are left out and the others go on; the run fails in the end. The default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	HaltAfter int32 `json:"haltAfter,omitempty"`
	// drainTimeout is how long a drain waits for pods whose disruption budget forbids
	// eviction. The default is 5 minutes.
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
	// ActionRenewCertificates renews the certificates that are due, and changes nothing else.
	ActionRenewCertificates Action = "RenewCertificates"
)

// UnreachablePolicy says what to do about hosts to delete that cannot be reached.
// +kubebuilder:validation:Enum=Refuse;Forget
type UnreachablePolicy string

// The values of UnreachablePolicy.
const (
	UnreachableRefuse UnreachablePolicy = "Refuse"
	UnreachableForget UnreachablePolicy = "Forget"
)

// OperationStatus records what was done.
type OperationStatus struct {
	// phase of the run.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// message says in a sentence where the run is, or why it ended.
	// +kubebuilder:validation:MaxLength=32768
	// +optional
	Message string `json:"message,omitempty"`
	// planHash is the hash of the plan that is run.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	PlanHash string `json:"planHash,omitempty"`
	// plan is what this attempt is to do, as the command line prints it without details: hosts that get the same stand
	// together. What a cluster of very many unlike hosts has beyond 64 KiB is counted.
	// +kubebuilder:validation:MaxItems=1001
	// +listType=atomic
	// +optional
	Plan []PlannedChanges `json:"plan,omitempty"`
	// specHash identifies the spec that this Operation brings about. It is fixed by the first
	// attempt: a later one does that, or nothing.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	SpecHash string `json:"specHash,omitempty"`
	// attempt counts the processes that ran this Operation; more than 1 is a resumed run.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// epoch fences hosts: a host refuses a run with a lower one than it saw last.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// started and finished are the times of the run.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// +optional
	Finished *metav1.MicroTime `json:"finished,omitempty"`
	// estimate is when the run should be finished.
	// +optional
	Estimate *metav1.MicroTime `json:"estimate,omitempty"`
	// stepsDone and stepsTotal count the steps of all hosts.
	// +optional
	StepsDone int32 `json:"stepsDone,omitempty"`
	// +optional
	StepsTotal int32 `json:"stepsTotal,omitempty"`
	// hosts sums up the run on each host.
	// +kubebuilder:validation:MaxItems=1001
	// +listType=map
	// +listMapKey=name
	// +optional
	Hosts []HostRun `json:"hosts,omitempty"`
	// steps are the records of the steps, in the order they were started. On the hub they are at most 100: those that
	// failed, those under way, and those that ended last; all are in OperationSlices. In a file they are all, of which
	// beyond 4,000 those that succeeded are dropped first; the counts of hosts remain.
	// +kubebuilder:validation:MaxItems=4000
	// +listType=atomic
	// +optional
	Steps []StepRecord `json:"steps,omitempty"`
	// conditions: Succeeded is True or False when the run has ended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Phase is where a run is.
// +kubebuilder:validation:Enum=Pending;Running;Paused;Succeeded;Failed;Canceled
type Phase string

// The phases. Pending, Running and Paused runs can go on; a Failed one can be resumed.
const (
	PhasePending   Phase = "Pending"
	PhaseRunning   Phase = "Running"
	PhasePaused    Phase = "Paused"
	PhaseSucceeded Phase = "Succeeded"
	PhaseFailed    Phase = "Failed"
	PhaseCanceled  Phase = "Canceled"
)

// PlannedChanges is what is to be done on hosts, on each the same.
type PlannedChanges struct {
	// hosts on which it is done; "cluster" is what is done to the cluster as a whole.
	// +kubebuilder:validation:MaxItems=1001
	// +listType=atomic
	// +required
	Hosts []string `json:"hosts"`
	// changes, a line each: + what is added, ~ changed, ! repaired, - undone and * done to the cluster, then its kind, what is
	// changed, and in brackets how that disturbs what runs there.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Changes []string `json:"changes,omitempty"`
	// left is how many more there are that are not listed.
	// +optional
	Left int32 `json:"left,omitempty"`
}

// HostRun sums up a run on one host.
type HostRun struct {
	// name of the host; "cluster" is what is done through the API server.
	Name string `json:"name"`
	// stage that is run, or was run last.
	// +optional
	Stage string `json:"stage,omitempty"`
	// state of the host.
	State StepState `json:"state"`
	// done and total count the host's steps.
	// +optional
	Done int32 `json:"done,omitempty"`
	// +optional
	Total int32 `json:"total,omitempty"`
	// roundTrips is how often the host was spoken to.
	// +optional
	RoundTrips int32 `json:"roundTrips,omitempty"`
	// message says why the host failed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// StepRecord is what became of one step on one host.
type StepRecord struct {
	// host that the step ran on.
	Host string `json:"host"`
	// id of the step, a constant such as kubelet/config.
	ID string `json:"id"`
	// state of the step.
	State StepState `json:"state"`
	// attempt counts how often it was tried.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// started and finished are the times of the last attempt.
	// +optional
	Started metav1.MicroTime `json:"started,omitzero"`
	// +optional
	Finished metav1.MicroTime `json:"finished,omitzero"`
	// inputHash is the hash of what the step was to do.
	// +optional
	InputHash string `json:"inputHash,omitempty"`
	// message is why the step failed, with the tail of its output.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// StepState is what became of a step.
// +kubebuilder:validation:Enum=Pending;Running;Unchanged;Changed;Reverted;Failed
type StepState string

// The states. Unchanged: the host was already as the step wants it.
const (
	StepPending   StepState = "Pending"
	StepRunning   StepState = "Running"
	StepUnchanged StepState = "Unchanged"
	StepChanged   StepState = "Changed"
	StepReverted  StepState = "Reverted"
	StepFailed    StepState = "Failed"
)

// ConditionSucceeded is True or False when a run has ended; its reason is the phase.
const ConditionSucceeded = "Succeeded"

// OperationList is a list of Operations.
//
// +kubebuilder:object:root=true
type OperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Operation `json:"items"`
}
