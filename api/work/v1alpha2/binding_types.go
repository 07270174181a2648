package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// ResourceBinding binds one namespaced object on the hub, its template, to the clusters
// that it is placed in. It holds a reference, a placement and a compact status, never a
// copy of the template, so it does not grow with manifests.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=orrery,shortName=rb
// +kubebuilder:printcolumn:name="Scheduled",type=string,JSONPath=`.status.conditions[?(@.type=="Scheduled")].status`
// +kubebuilder:printcolumn:name="Applied",type=string,JSONPath=`.status.conditions[?(@.type=="FullyApplied")].status`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.status!="True")].reason`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Clusters",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Scheduled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceBinding struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the placement.
	// +structType=atomic
	// +required
	Spec BindingSpec `json:"spec"`
	// status is what became of it.
	// +structType=atomic
	// +optional
	Status BindingStatus `json:"status,omitzero"`
}

// ClusterResourceBinding binds one cluster-scoped object on the hub to the clusters that
// it is placed in.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=orrery,shortName=crb
// +kubebuilder:printcolumn:name="Scheduled",type=string,JSONPath=`.status.conditions[?(@.type=="Scheduled")].status`
// +kubebuilder:printcolumn:name="Applied",type=string,JSONPath=`.status.conditions[?(@.type=="FullyApplied")].status`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.status!="True")].reason`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Clusters",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Scheduled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterResourceBinding struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the placement.
	// +structType=atomic
	// +required
	Spec BindingSpec `json:"spec"`
	// status is what became of it.
	// +structType=atomic
	// +optional
	Status BindingStatus `json:"status,omitzero"`
}

// Binding returns the binding as the one type that the code works on.
func (b *ResourceBinding) Binding() *ResourceBinding { return b }

// Binding returns the binding as the one type that the code works on; its namespace is
// empty.
func (b *ClusterResourceBinding) Binding() *ResourceBinding { return (*ResourceBinding)(b) }

// BindingSpec is the placement of one template.
type BindingSpec struct {
	// resource is the template.
	// +required
	Resource ObjectReference `json:"resource"`
	// policyRef is the policy that claimed the template.
	// +required
	PolicyRef PolicyReference `json:"policyRef"`
	// placementHash identifies what the policy says about where: while it stays, an edit of the
	// policy moves nothing.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	PlacementHash string `json:"placementHash,omitempty"`
	// replicas that the template asks for; unset for kinds without replicas.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// components of the template, of a kind whose pods have several templates: they are placed
	// together. Unset for all other kinds.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Components []Component `json:"components,omitempty"`
	// replicaSchedulingType says whether the clusters' replicas are shares of the template's
	// (Divided) or each as many as the template's (Duplicated); unset for kinds without replicas.
	// +kubebuilder:validation:Enum=Divided;Duplicated
	// +optional
	ReplicaSchedulingType policyv1alpha1.ReplicaSchedulingType `json:"replicaSchedulingType,omitempty"`
	// clusters that the template is placed in.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=name
	// +optional
	Clusters []TargetCluster `json:"clusters,omitempty"`
	// gracefulEvictionTasks are what moves out of clusters: it stays there until as much is
	// available where clusters wants it. What a user scaled down or deleted is no move.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=fromCluster
	// +optional
	GracefulEvictionTasks []GracefulEvictionTask `json:"gracefulEvictionTasks,omitempty"`
	// schedulerObservedAffinityName is the group of the policy's clusterAffinities that the
	// clusters are of; unset where the policy has none.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SchedulerObservedAffinityName string `json:"schedulerObservedAffinityName,omitempty"`
	// workloadAffinityGroups are the groups that the template is in by the workloadAffinity of
	// its policy.
	// +optional
	WorkloadAffinityGroups *WorkloadAffinityGroups `json:"workloadAffinityGroups,omitempty"`
	// rescheduleTriggeredAt asks for a decision that is made as if nothing were placed yet. A
	// WorkloadRebalancer sets it.
	// +optional
	RescheduleTriggeredAt *metav1.Time `json:"rescheduleTriggeredAt,omitempty"`
	// rescheduledFor is the rescheduleTriggeredAt for which that decision was made.
	// +optional
	RescheduledFor *metav1.Time `json:"rescheduledFor,omitempty"`
	// conflictResolution as the policy says; unset: Abort.
	// +optional
	ConflictResolution policyv1alpha1.ConflictResolution `json:"conflictResolution,omitempty"`
	// preserveResourcesOnDeletion as the policy says.
	// +optional
	PreserveResourcesOnDeletion bool `json:"preserveResourcesOnDeletion,omitempty"`
	// deletionPropagation is the propagation with which the template was deleted, if it is not
	// Background: its copies are deleted with the same. Orphan keeps what they own, such as pods;
	// Foreground deletes that first.
	// +kubebuilder:validation:Enum=Foreground;Orphan
	// +optional
	DeletionPropagation metav1.DeletionPropagation `json:"deletionPropagation,omitempty"`
	// ownerReferenced is true once the binding was given an owner reference to its template. If the
	// reference is missing then, the garbage collector of the hub has removed it, because the template
	// was deleted with propagation Orphan. A server that was down meanwhile learns it so.
	// +optional
	OwnerReferenced bool `json:"ownerReferenced,omitempty"`

	// suspension holds changes back: dispatching as the policy says, scheduling as you say here.
	// +optional
	Suspension *Suspension `json:"suspension,omitempty"`
	// dependentOverrides are the override policies without which nothing is written to a cluster:
	// those that the policy names and, once no policy claims the template any more, those that
	// changed it until then.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	DependentOverrides []OverrideReference `json:"dependentOverrides,omitempty"`
	// schedulePriority says which of the templates that wait are decided on first: as the policy says
	// or, of one that follows others, as the highest of theirs. Unset: 0.
	// +optional
	SchedulePriority *SchedulePriority `json:"schedulePriority,omitempty"`
	// propagateDeps as the policy says: what the template refers to follows it.
	// +optional
	PropagateDeps bool `json:"propagateDeps,omitempty"`
	// dependencies are what follows the template, if it is propagated with it: the objects of its
	// namespace that it refers to, and those that it referred to as long as a cluster may still run
	// it so. At most 1000 do.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Dependencies []DependencyReference `json:"dependencies,omitempty"`
	// requiredBy are bindings whose templates refer to this one, so that it follows them into their
	// clusters: the first ten by name. Which others there are is said by theirs, in dependencies.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=atomic
	// +optional
	RequiredBy []BindingSnapshot `json:"requiredBy,omitempty"`
	// requiredByOrphans are templates that referred to this one and were deleted with propagation Orphan:
	// what they left in clusters, such as pods, needs the copies there. Where the placement does not name
	// such a cluster any more, the copy stays, without marks.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	RequiredByOrphans []OrphaningTemplate `json:"requiredByOrphans,omitempty"`
	// activation says by which version of a policy the placement is, if the policy is Lazy.
	// +optional
	Activation *Activation `json:"activation,omitempty"`
}

// Suspension holds changes of a placement back.
type Suspension struct {
	policyv1alpha1.Suspension `json:",inline"`

	// scheduling holds the choice of clusters back: those that are chosen stay, with the replicas
	// that they have. No policy sets it, and none unsets it.
	// +optional
	Scheduling *bool `json:"scheduling,omitempty"`
}

// Schedules says whether clusters are chosen for the template.
func (s *BindingSpec) Schedules() bool {
	return s.Suspension == nil || s.Suspension.Scheduling == nil || !*s.Suspension.Scheduling
}

// SuspendedOn says whether changes are held back from a cluster.
func (s *BindingSpec) SuspendedOn(cluster string) bool {
	return s.Suspension != nil && s.Suspension.On(cluster)
}

// OverrideReference names an override policy.
type OverrideReference struct {
	// kind is OverridePolicy, in the binding's namespace, or ClusterOverridePolicy.
	// +kubebuilder:validation:Enum=OverridePolicy;ClusterOverridePolicy
	// +required
	Kind string `json:"kind"`
	// name of the override policy.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// SchedulePriority is the priority with which a template is decided on.
type SchedulePriority struct {
	// priority: the higher is decided on first.
	// +optional
	Priority int32 `json:"priority,omitempty"`
}

// Priority is the priority with which the template is decided on; 0 where nothing says so.
func (s *BindingSpec) Priority() int32 {
	if s.SchedulePriority == nil {
		return 0
	}
	return s.SchedulePriority.Priority
}

// DependencyReference names an object of the binding's namespace that follows its template.
type DependencyReference struct {
	// group of the object's kind; unset: the core API.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`
	// kind of the object.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// name of the object.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// OrphaningTemplate names a template that was deleted with propagation Orphan.
type OrphaningTemplate struct {
	// group of the template's kind; unset: the core API.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`
	// kind of the template; unset: the entry stands for several templates.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Kind string `json:"kind,omitempty"`
	// name of the template; unset: the entry stands for several templates.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// clusters in which it left what it owned.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=set
	// +required
	Clusters []string `json:"clusters"`
}

// BindingSnapshot names a binding whose template needs another.
type BindingSnapshot struct {
	// namespace of the binding; unset for a ClusterResourceBinding.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the binding.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// Activation says which version of a Lazy policy a placement is by. An edit of the policy, and
// another Lazy policy, wait for the template to change.
type Activation struct {
	// policyUID of the policy; unset: of a policy that was not Lazy then.
	// +optional
	PolicyUID types.UID `json:"policyUID,omitempty"`
	// policyGeneration of the policy; unset: of a policy that was not Lazy then.
	// +optional
	PolicyGeneration int64 `json:"policyGeneration,omitempty"`
	// template identifies what the template said when this was last decided.
	// +kubebuilder:validation:MaxLength=64
	// +required
	Template string `json:"template"`
}

// ObjectReference names a template. The namespace is the binding's own.
type ObjectReference struct {
	// apiVersion of the template.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +required
	APIVersion string `json:"apiVersion"`
	// kind of the template.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// name of the template.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// uid of the template; a template of the same name with another uid is another object.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// generation of the template that the placement is about; unset for kinds without. A
	// template that is ahead of it waits for its placement.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// PolicyReference names the policy that claimed a template.
type PolicyReference struct {
	// kind is PropagationPolicy, in the binding's namespace, or ClusterPropagationPolicy.
	// +kubebuilder:validation:Enum=PropagationPolicy;ClusterPropagationPolicy
	// +required
	Kind string `json:"kind"`
	// name of the policy.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// Component is one of several kinds of pods that a template has.
type Component struct {
	// name of the component in the template.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// replicas is how many pods of the component the template asks for.
	// +kubebuilder:validation:Minimum=0
	// +required
	Replicas int32 `json:"replicas"`
}

// TargetCluster is a cluster that the template is placed in.
type TargetCluster struct {
	// name of the cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +required
	Name string `json:"name"`
	// replicas there; unset for kinds without replicas.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// attached says that the template is there only because others that are there need it
	// (requiredBy): it leaves with the last of them, and its own policy decides as if it were not there.
	// +optional
	Attached bool `json:"attached,omitempty"`
}

// GracefulEvictionTask is what moves out of one cluster.
type GracefulEvictionTask struct {
	// fromCluster is the cluster that it moves out of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +required
	FromCluster string `json:"fromCluster"`
	// replicas that move; unset: the whole object, of a kind without replicas.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
}

// WorkloadAffinityGroups are groups of templates of one namespace, each written KEY=VALUE after
// the label that makes them one.
type WorkloadAffinityGroups struct {
	// affinityGroup is placed together.
	// +kubebuilder:validation:MaxLength=381
	// +optional
	AffinityGroup string `json:"affinityGroup,omitempty"`
	// antiAffinityGroup is placed apart.
	// +kubebuilder:validation:MaxLength=381
	// +optional
	AntiAffinityGroup string `json:"antiAffinityGroup,omitempty"`
}

// ClusterCounts sums up the clusters of a placement.
type ClusterCounts struct {
	// total is how many clusters the placement names.
	Total int32 `json:"total"`
	// applied is how many of them have the manifest as rendered now.
	// +optional
	Applied int32 `json:"applied,omitempty"`
	// healthy is how many of them have a healthy object.
	// +optional
	Healthy int32 `json:"healthy,omitempty"`
	// unhealthy is how many of them have an object that is not healthy.
	// +optional
	Unhealthy int32 `json:"unhealthy,omitempty"`
}

// BindingStatus is what became of a placement.
type BindingStatus struct {
	// counts sums up all clusters, those among them that aggregatedStatus leaves out.
	// +optional
	Counts *ClusterCounts `json:"counts,omitempty"`
	// aggregatedStatus says how the template fares in each of the first 100 clusters: those
	// that are not applied or not healthy come first, then by name.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=clusterName
	// +optional
	AggregatedStatus []AggregatedStatusItem `json:"aggregatedStatus,omitempty"`
	// runs say how far the work of a template that ends, such as a Job's, has come in each cluster:
	// what ended in a cluster is not run there again because its copy is gone.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=clusterName
	// +optional
	Runs []Run `json:"runs,omitempty"`
	// conditions: Scheduled, FullyApplied, Healthy; of a Service of type NodePort also HubNodePorts; of a template whose deletion waits also
	// DeletionWaits; while something in a cluster changes a copy again and again also Contested.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AggregatedStatusItem says how the template fares in one cluster.
type AggregatedStatusItem struct {
	// clusterName is the cluster.
	// +kubebuilder:validation:MaxLength=48
	// +required
	ClusterName string `json:"clusterName"`
	// applied is true when the cluster has the manifest as rendered.
	// +optional
	Applied bool `json:"applied,omitempty"`
	// appliedMessage says why it has not: the API server's own words where it refused. Of a cluster that has
	// it, it names the fields that the cluster has otherwise.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	AppliedMessage string `json:"appliedMessage,omitempty"`
	// health of the object there. Unknown while the cluster is unreachable.
	// +optional
	Health ResourceHealth `json:"health,omitempty"`
	// status is the part of the object's own status that its kind's interpreter keeps; it
	// is the last one seen while health is Unknown.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	Status *runtime.RawExtension `json:"status,omitempty"`
}

// Run says how far the work of a template that ends has come in one cluster.
type Run struct {
	// clusterName is the cluster.
	// +kubebuilder:validation:MaxLength=48
	// +required
	ClusterName string `json:"clusterName"`
	// clusterID is the UID of the cluster's namespace kube-system. Another cluster that joined under the
	// same name runs anew what is not finished; unset: of an earlier version, for any cluster of the name.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// templateUID is the template whose work it is: one of another UID begins anew.
	// +required
	TemplateUID types.UID `json:"templateUID"`
	// phase is how far it has come.
	// +required
	Phase RunPhase `json:"phase"`
	// copyUID is the copy that runs, or ran; unset until it was seen.
	// +optional
	CopyUID types.UID `json:"copyUID,omitempty"`
	// replacedUID is the copy of an earlier run: what is still heard of it is not about this one.
	// +optional
	ReplacedUID types.UID `json:"replacedUID,omitempty"`
	// since is the resourceVersion of the cluster from which on the copy can have been made.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Since string `json:"since,omitempty"`
	// completions of a Job that fell to the cluster; unset: not known, or none are shared out.
	// +optional
	Completions *int64 `json:"completions,omitempty"`
	// succeeded is how many completions had succeeded when the Job ended, or left the cluster.
	// +optional
	Succeeded *int64 `json:"succeeded,omitempty"`
	// succeededBefore is how many completions had succeeded before the Job left the cluster and came
	// back, or in another cluster of the same name: they are not run again.
	// +optional
	SucceededBefore *int64 `json:"succeededBefore,omitempty"`
	// rerun is the request to run again for which it runs, or ran.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Rerun string `json:"rerun,omitempty"`
	// removed is true once the placement does not name the cluster any more: if the copy is not
	// there, the hub has deleted it.
	// +optional
	Removed bool `json:"removed,omitempty"`
	// time is when the phase began.
	// +required
	Time metav1.Time `json:"time"`
}

// RunPhase is how far the work of a template that ends has come in a cluster.
// +kubebuilder:validation:Enum=Began;Refused;Skipped;Complete;Failed
type RunPhase string

// The values of RunPhase.
const (
	RunBegan    RunPhase = "Began"    // the copy was made, or is about to be
	RunRefused  RunPhase = "Refused"  // the cluster did not take the copy
	RunSkipped  RunPhase = "Skipped"  // the template had ended when the cluster was added
	RunComplete RunPhase = "Complete" // it ended well
	RunFailed   RunPhase = "Failed"   // it ended, not well
)

// Ended is true of a phase after which nothing runs but on request.
func (p RunPhase) Ended() bool { return p == RunComplete || p == RunFailed || p == RunSkipped }

// ResourceHealth says whether an object does its job.
// +kubebuilder:validation:Enum=Healthy;Unhealthy;Unknown
type ResourceHealth string

// The values of ResourceHealth.
const (
	ResourceHealthy   ResourceHealth = "Healthy"
	ResourceUnhealthy ResourceHealth = "Unhealthy"
	ResourceUnknown   ResourceHealth = "Unknown"
)

// ResourceBindingList is a list of ResourceBindings.
//
// +kubebuilder:object:root=true
type ResourceBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceBinding `json:"items"`
}

// ClusterResourceBindingList is a list of ClusterResourceBindings.
//
// +kubebuilder:object:root=true
type ClusterResourceBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterResourceBinding `json:"items"`
}

// Condition types of both bindings.
const (
	// ConditionScheduled is True when clusters were found for the template. Its message
	// says of each cluster that was not chosen why not.
	ConditionScheduled = "Scheduled"
	// ConditionFullyApplied is True when every cluster has the manifest as rendered.
	ConditionFullyApplied = "FullyApplied"
	// ConditionHealthy is True when the object is healthy in every cluster, Unknown when
	// some cluster cannot be asked.
	ConditionHealthy = "Healthy"
	// ConditionHubNodePorts is True when the clusters serve a Service of type NodePort at the node ports that it has on the hub. Bindings of
	// other objects do not have it.
	ConditionHubNodePorts = "HubNodePorts"
	// ConditionDeletionWaits is True while the template is deleted and finalizers keep it, and with it its copies, or while it is deleted with
	// propagation Orphan and bindings of what follows it do not say yet that it stays. Bindings of other templates do not have it.
	ConditionDeletionWaits = "DeletionWaits"
	// ConditionContested is True while something in a cluster changes or deletes a copy each time the hub puts it back. Its message names
	// the cluster, the object, the fields and their manager. Other bindings do not have it.
	ConditionContested = "Contested"
)

// Reasons of the bindings' conditions.
const (
	ReasonScheduled          = "Scheduled"
	ReasonNoClusterFits      = "NoClusterFits"      // every cluster was filtered out, or no choice of them meets the spread constraints
	ReasonInsufficient       = "Insufficient"       // fewer replicas fit than are asked for
	ReasonPolicyGone         = "PolicyGone"         // no policy claims the template any more; its placement stays
	ReasonPolicyWaits        = "PolicyWaits"        // a Lazy policy was edited and waits for the template to change; its placement stays
	ReasonSuspended          = "Suspended"          // changes are held back from a cluster, or the choice of clusters is
	ReasonOverrideMissing    = "OverrideMissing"    // an override policy that the policy names in dependentOverrides does not exist
	ReasonFullyApplied       = "FullyApplied"       //
	ReasonApplying           = "Applying"           // some cluster has not answered yet
	ReasonConflict           = "Conflict"           // an object that is not ours is in the way
	ReasonRejected           = "Rejected"           // a cluster refused the manifest
	ReasonAPINotServed       = "APINotServed"       // a cluster does not serve the kind
	ReasonRunUnknown         = "RunUnknown"         // what was begun in a cluster is gone, and whether it ended is not known
	ReasonMutated            = "Mutated"            // a cluster takes our marks off what is applied there
	ReasonRenderFailed       = "RenderFailed"       // an override does not fit the template
	ReasonPodSecurity        = "PodSecurity"        // its pods are not for the level of their namespace
	ReasonClusterUnreachable = "ClusterUnreachable" // a cluster cannot be asked
	ReasonListFails          = "ListFails"          // a cluster answers and cannot list the kind, so its copies are not known
	ReasonHubRestored        = "HubRestored"        // the hub was restored from a backup, and nobody confirmed that yet
	ReasonRemoving           = "Removing"           // deleted; some cluster still has its copy
	ReasonHealthy            = "Healthy"            //
	ReasonUnhealthy          = "Unhealthy"          //
	ReasonProgressing        = "Progressing"        // not healthy yet
	ReasonCannotJudge        = "CannotJudge"        // the status of its kind does not say whether it is healthy
	ReasonHubNodePorts       = "HubNodePorts"       //
	ReasonFinalizersRemain   = "FinalizersRemain"   // the template is deleted and has finalizers
	ReasonDependenciesBehind = "DependenciesBehind" // the template is deleted with propagation Orphan, and what follows it cannot be kept yet
	ReasonFieldsChanged      = "FieldsChanged"      // another field manager changes fields of a copy each time the hub puts them back
	ReasonCopyDeleted        = "CopyDeleted"        // something deletes a copy each time the hub creates it
	ReasonOtherHub           = "OtherHub"           // another hub of Orrery applies the same object
	ReasonOwnNodePorts       = "OwnNodePorts"       // a cluster has given other node ports: the hub's were taken, out of its range, or the Service had others before
)

// RebalancedByAnnotation names the WorkloadRebalancer that set rescheduleTriggeredAt of a binding, as CREATED/UID. It tells apart two
// that were created in the same second.
const RebalancedByAnnotation = "work.orrery.dev/rebalanced-by"

// Marks on the objects in members. User objects on the hub get none.
const (
	// BindingLabel holds the UID of the binding that placed an object.
	BindingLabel = "work.orrery.dev/binding"
	// DigestAnnotation holds the digest of the manifest as rendered.
	DigestAnnotation = "work.orrery.dev/digest"
	// SourceAnnotation says of which version of its template, for which Cluster and at which
	// resourceVersion of the hub a copy was rendered, authenticated by the hub's key.
	SourceAnnotation = "work.orrery.dev/source"
	// OriginAnnotation is on what was in the member before this hub: it is left, not deleted,
	// when its template goes. Its value is OriginAdopted or OriginTakenOver.
	OriginAnnotation = "work.orrery.dev/origin"
	// OwnedAnnotation is "true" on such an object once the hub owns the fields that others owned before.
	OwnedAnnotation = "work.orrery.dev/owned"
	// OrphanAnnotation is what orphaning leaves: HUB-ID/ and the value of SourceAnnotation, which
	// begins with the template's UID. An object that carries it is this hub's again at the next join.
	OrphanAnnotation = "work.orrery.dev/orphan"
	// NamespaceLabel marks a namespace in a member that was created for placed objects;
	// its value is the hub's id, the UID of its kube-system namespace.
	NamespaceLabel = "work.orrery.dev/created-by"
	// FieldManager owns the fields of placed objects.
	FieldManager = "orrery"
	// ReplicasFieldManager owns, beside or instead of FieldManager, the replicas of copies whose template has RetainReplicasLabel, until somebody scales them.
	ReplicasFieldManager = "orrery-replicas"
)

// RerunAnnotation on a template whose work has ended has it run again: BINDING-UID/ID, with an ID of its
// own for each request. A binding that was made anew takes no request to the one before.
const RerunAnnotation = "work.orrery.dev/rerun"

// AllowTakeOverLabel on a Namespace of the hub, set to true, lets the PropagationPolicies in it
// adopt and take over objects in members' namespaces of its name that this hub did not make.
const AllowTakeOverLabel = "work.orrery.dev/allow-takeover"

// Labels by which users say what becomes of an object of the hub in members. Those of Karmada are the same but for the domain.
const (
	// RetainReplicasLabel on a template, set to true, leaves the replicas of copies that are there to whoever scales them in their clusters.
	RetainReplicasLabel = "resourcetemplate.orrery.dev/retain-replicas"
	// SkipNamespaceLabel on a Namespace of the hub, set to true, keeps orrery server --namespaces=All from making it in members where nothing
	// is placed in it.
	SkipNamespaceLabel = "namespace.orrery.dev/skip-auto-propagation"
)

// Values of OriginAnnotation.
const (
	OriginAdopted   = "Adopted"   // it was equal to what was to be placed
	OriginTakenOver = "TakenOver" // it was overwritten, as conflictResolution allowed
)

// Finalizer keeps a binding until its objects are gone from every cluster, or orphaned.
const Finalizer = "work.orrery.dev/placed"
