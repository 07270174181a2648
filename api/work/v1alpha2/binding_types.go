package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// ResourceBinding binds one namespaced object on the hub, its template, to the clusters in
// which it is placed. It has a reference, a placement and a compact status, never a copy of the
// template, so its size does not depend on the manifest.
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
	// status is the status of the placement in the clusters.
	// +structType=atomic
	// +optional
	Status BindingStatus `json:"status,omitzero"`
}

// ClusterResourceBinding binds one cluster-scoped object on the hub to the clusters in which it
// is placed.
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
	// status is the status of the placement in the clusters.
	// +structType=atomic
	// +optional
	Status BindingStatus `json:"status,omitzero"`
}

// Binding returns the binding itself. It exists so that code can handle both kinds of bindings as
// *ResourceBinding.
func (b *ResourceBinding) Binding() *ResourceBinding { return b }

// Binding returns the binding as a *ResourceBinding with an empty namespace, so that code can
// handle both kinds as one type. It is no copy: changes of the result change b.
func (b *ClusterResourceBinding) Binding() *ResourceBinding { return (*ResourceBinding)(b) }

// BindingSpec is the placement of one template.
type BindingSpec struct {
	// resource is the template.
	// +required
	Resource ObjectReference `json:"resource"`
	// policyRef is the policy that claimed the template.
	// +required
	PolicyRef PolicyReference `json:"policyRef"`
	// placementHash is a hash of the placement in the policy. An edit of the policy that keeps
	// the hash moves nothing.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	PlacementHash string `json:"placementHash,omitempty"`
	// replicas that the template requests. Unset for kinds without replicas.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// components of a template whose pods have several pod templates. All components are placed
	// together. Unset for all other kinds.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Components []Component `json:"components,omitempty"`
	// replicaSchedulingType says whether the replicas of each cluster are a share of the
	// template's (Divided) or as many as the template's (Duplicated). Unset for kinds without
	// replicas.
	// +kubebuilder:validation:Enum=Divided;Duplicated
	// +optional
	ReplicaSchedulingType policyv1alpha1.ReplicaSchedulingType `json:"replicaSchedulingType,omitempty"`
	// clusters in which the template is placed.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=name
	// +optional
	Clusters []TargetCluster `json:"clusters,omitempty"`
	// gracefulEvictionTasks are the objects or replicas that move out of clusters. They stay
	// there until as many are available in the clusters of the field clusters, unless purgeMode
	// of the task says otherwise. Replicas that a user scaled down or deleted are not a move.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=fromCluster
	// +optional
	GracefulEvictionTasks []GracefulEvictionTask `json:"gracefulEvictionTasks,omitempty"`
	// schedulerObservedAffinityName is the group of the policy's clusterAffinities to which the
	// clusters belong. Unset if the policy has none.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SchedulerObservedAffinityName string `json:"schedulerObservedAffinityName,omitempty"`
	// workloadAffinityGroups are the groups of the template according to the workloadAffinity
	// of its policy.
	// +optional
	WorkloadAffinityGroups *WorkloadAffinityGroups `json:"workloadAffinityGroups,omitempty"`
	// rescheduleTriggeredAt requests a decision as if nothing were placed yet. A
	// WorkloadRebalancer sets it.
	// +optional
	RescheduleTriggeredAt *metav1.Time `json:"rescheduleTriggeredAt,omitempty"`
	// rescheduledFor is the rescheduleTriggeredAt for which the last such decision was made.
	// +optional
	RescheduledFor *metav1.Time `json:"rescheduledFor,omitempty"`
	// conflictResolution of the policy. Unset: Abort.
	// +optional
	ConflictResolution policyv1alpha1.ConflictResolution `json:"conflictResolution,omitempty"`
	// preserveResourcesOnDeletion of the policy.
	// +optional
	PreserveResourcesOnDeletion bool `json:"preserveResourcesOnDeletion,omitempty"`
	// deletionPropagation is the propagation policy with which the template was deleted, if
	// that is not Background. The copies are deleted with the same policy. Orphan keeps the
	// objects that they own, such as pods; Foreground deletes those first.
	// +kubebuilder:validation:Enum=Foreground;Orphan
	// +optional
	DeletionPropagation metav1.DeletionPropagation `json:"deletionPropagation,omitempty"`
	// ownerReferenced is true once the binding got an owner reference to its template. If the
	// reference is missing later, the garbage collector of the hub removed it, because the
	// template was deleted with propagation Orphan. A server that was down at that time sees it
	// this way.
	// +optional
	OwnerReferenced bool `json:"ownerReferenced,omitempty"`

	// suspension holds back changes. dispatching comes from the policy, scheduling is set by
	// users in the binding.
	// +optional
	Suspension *Suspension `json:"suspension,omitempty"`
	// dependentOverrides are the override policies that must exist before anything is written
	// to a cluster: those that the policy names and, once no policy claims the template any
	// more, those that changed it until then.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	DependentOverrides []OverrideReference `json:"dependentOverrides,omitempty"`
	// schedulePriority says which of the waiting templates are decided first. It is the
	// policy's or, for a dependency, the highest of the templates that depend on it. Unset: 0.
	// +optional
	SchedulePriority *SchedulePriority `json:"schedulePriority,omitempty"`
	// propagateDeps of the policy: the dependencies of the template are placed with it.
	// +optional
	PropagateDeps bool `json:"propagateDeps,omitempty"`
	// dependencies of the template, if they are placed with it: the objects of its namespace
	// that the template refers to, and those that an earlier version referred to, as long as a
	// cluster may still run that version. At most 1000.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Dependencies []DependencyReference `json:"dependencies,omitempty"`
	// requiredBy are the first ten bindings, by name, whose templates depend on this one, so
	// that it is placed in their clusters as well. All such bindings list this template in
	// their dependencies.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=atomic
	// +optional
	RequiredBy []BindingSnapshot `json:"requiredBy,omitempty"`
	// requiredByOrphans are templates that depended on this one and were deleted with
	// propagation Orphan. The objects that they left in clusters, such as pods, still need the
	// copies there. If the placement no longer names such a cluster, the copy stays, without
	// Orrery's marks.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	RequiredByOrphans []OrphaningTemplate `json:"requiredByOrphans,omitempty"`
	// activation is the version of the policy on which the placement is based, if the policy is
	// Lazy.
	// +optional
	Activation *Activation `json:"activation,omitempty"`
}

// Suspension holds back changes of a placement.
type Suspension struct {
	policyv1alpha1.Suspension `json:",inline"`

	// scheduling holds back the choice of clusters: the chosen clusters and their replicas
	// stay. Policies neither set nor unset it. The default is false.
	// +optional
	Scheduling *bool `json:"scheduling,omitempty"`
}

// Schedules reports whether the hub may choose other clusters and replicas for the template. It is
// false only while suspension.scheduling is true.
func (s *BindingSpec) Schedules() bool {
	return s.Suspension == nil || s.Suspension.Scheduling == nil || !*s.Suspension.Scheduling
}

// SuspendedOn reports whether changes of the object are held back in the named cluster.
// suspension.scheduling, which holds back the choice of clusters, does not matter.
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

// SchedulePriority is the priority of a template in the queue of decisions.
type SchedulePriority struct {
	// priority: templates with a higher priority are decided first.
	// +optional
	Priority int32 `json:"priority,omitempty"`
}

// Priority returns the priority with which the template waits for a decision; a higher one is
// decided first. It is 0 if it is unset.
func (s *BindingSpec) Priority() int32 {
	if s.SchedulePriority == nil {
		return 0
	}
	return s.SchedulePriority.Priority
}

// DependencyReference names a dependency of a template: an object of the binding's namespace.
type DependencyReference struct {
	// group of the object's kind. Unset: the core group.
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
	// group of the template's kind. Unset: the core group.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`
	// kind of the template. Unset: the entry stands for several templates.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Kind string `json:"kind,omitempty"`
	// name of the template. Unset: the entry stands for several templates.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// clusters in which the template left the objects that it owned.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=set
	// +required
	Clusters []string `json:"clusters"`
}

// BindingSnapshot names a binding whose template depends on another template.
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

// Activation is the version of a Lazy policy on which a placement is based. An edit of the
// policy, or another Lazy policy, takes effect only when the template changes.
type Activation struct {
	// policyUID is the UID of the policy. Unset: the policy was not Lazy at that time.
	// +optional
	PolicyUID types.UID `json:"policyUID,omitempty"`
	// policyGeneration is the generation of the policy. Unset: the policy was not Lazy at that
	// time.
	// +optional
	PolicyGeneration int64 `json:"policyGeneration,omitempty"`
	// template is a hash of the template at the last decision.
	// +kubebuilder:validation:MaxLength=64
	// +required
	Template string `json:"template"`
}

// ObjectReference names a template, in the namespace of the binding.
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
	// uid of the template. A template of the same name with another uid is another object.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// generation of the template for which the placement was decided. Unset for kinds without
	// generations. A template with a later generation waits for its placement.
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

// Component is one of several pod templates of a template.
type Component struct {
	// name of the component in the template.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// replicas is the number of pods of the component that the template requests.
	// +kubebuilder:validation:Minimum=0
	// +required
	Replicas int32 `json:"replicas"`
}

// TargetCluster is a cluster in which the template is placed.
type TargetCluster struct {
	// name of the cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +required
	Name string `json:"name"`
	// replicas in the cluster. Unset for kinds without replicas.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// attached is true if the template is placed in the cluster only as a dependency of other
	// templates there (requiredBy). It is removed with the last of them, and its own policy
	// decides as if it were not there.
	// +optional
	Attached bool `json:"attached,omitempty"`
}

// GracefulEvictionTask is a move of an object, or of replicas, out of one cluster.
type GracefulEvictionTask struct {
	// fromCluster is the cluster that the object leaves.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +required
	FromCluster string `json:"fromCluster"`
	// replicas that move. Unset: the whole object, of a kind without replicas.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// reason is TaintUntolerated if the object leaves because of a taint that it does not
	// tolerate, or no longer. Unset: a decision chose other clusters.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Reason string `json:"reason,omitempty"`
	// message names the cause, such as the taint.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// purgeMode says when the old copy is removed. Gracefully, or unset: when as much is
	// available in other clusters. Directly: at once if the cluster answers. Never: the copy
	// stays in the cluster, without Orrery's marks.
	// +kubebuilder:validation:Enum=Directly;Gracefully;Never
	// +optional
	PurgeMode policyv1alpha1.PurgeMode `json:"purgeMode,omitempty"`
	// creationTimestamp is when an eviction because of a taint began.
	// +optional
	CreationTimestamp *metav1.Time `json:"creationTimestamp,omitempty"`
}

// ReasonTaintUntolerated is the reason of a GracefulEvictionTask whose object leaves a cluster
// because of a taint that it does not tolerate, or no longer.
const ReasonTaintUntolerated = "TaintUntolerated"

// WorkloadAffinityGroups are groups of templates of one namespace, written as KEY=VALUE of the
// label that defines the group.
type WorkloadAffinityGroups struct {
	// affinityGroup is the group that is placed together.
	// +kubebuilder:validation:MaxLength=381
	// +optional
	AffinityGroup string `json:"affinityGroup,omitempty"`
	// antiAffinityGroup is the group that is placed apart.
	// +kubebuilder:validation:MaxLength=381
	// +optional
	AntiAffinityGroup string `json:"antiAffinityGroup,omitempty"`
}

// ClusterCounts summarizes the clusters of a placement.
type ClusterCounts struct {
	// total is the number of clusters that the placement names.
	Total int32 `json:"total"`
	// applied is the number of them that have the current manifest.
	// +optional
	Applied int32 `json:"applied,omitempty"`
	// healthy is the number of them that have a healthy object.
	// +optional
	Healthy int32 `json:"healthy,omitempty"`
	// unhealthy is the number of them that have an unhealthy object.
	// +optional
	Unhealthy int32 `json:"unhealthy,omitempty"`
}

// BindingStatus is the status of a placement in the clusters.
type BindingStatus struct {
	// counts summarizes all clusters, including those that aggregatedStatus leaves out.
	// +optional
	Counts *ClusterCounts `json:"counts,omitempty"`
	// aggregatedStatus has the status of the template in the first 100 clusters. Clusters in
	// which it is not applied or not healthy come first; then follows the order of names.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=clusterName
	// +optional
	AggregatedStatus []AggregatedStatusItem `json:"aggregatedStatus,omitempty"`
	// runs record the progress, in each cluster, of a template whose work ends, such as a Job.
	// Work that has ended in a cluster does not run there again when the copy is missing.
	// +kubebuilder:validation:MaxItems=5000
	// +listType=map
	// +listMapKey=clusterName
	// +optional
	Runs []Run `json:"runs,omitempty"`
	// conditions: Scheduled, FullyApplied and Healthy. HubNodePorts: only for a Service of type
	// NodePort. DeletionWaits: while the deletion of the template waits. Contested: while a
	// client in a cluster changes a copy again and again.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AggregatedStatusItem is the status of the template in one cluster.
type AggregatedStatusItem struct {
	// clusterName is the cluster.
	// +kubebuilder:validation:MaxLength=48
	// +required
	ClusterName string `json:"clusterName"`
	// applied is true if the cluster has the current manifest.
	// +optional
	Applied bool `json:"applied,omitempty"`
	// appliedMessage says why the manifest is not applied. If the cluster refused it, it is the
	// message of the cluster's API server. If the manifest is applied, it names the fields that
	// differ in the cluster.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	AppliedMessage string `json:"appliedMessage,omitempty"`
	// health of the object in the cluster. Unknown while the cluster is unreachable.
	// +optional
	Health ResourceHealth `json:"health,omitempty"`
	// status is the part of the object's own status that the interpreter of its kind keeps.
	// While health is Unknown, it is the last known status.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	Status *runtime.RawExtension `json:"status,omitempty"`
}

// Run is the progress, in one cluster, of a template whose work ends.
type Run struct {
	// clusterName is the cluster.
	// +kubebuilder:validation:MaxLength=48
	// +required
	ClusterName string `json:"clusterName"`
	// clusterID is the UID of the namespace kube-system of the cluster. Another cluster that
	// joins under the same name runs unfinished work again. Unset: an earlier version wrote the
	// entry, and it applies to any cluster with this name.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// templateUID is the UID of the template. A template with another UID starts its work
	// again.
	// +required
	TemplateUID types.UID `json:"templateUID"`
	// phase is the progress of the work.
	// +required
	Phase RunPhase `json:"phase"`
	// copyUID is the UID of the copy. Unset until the copy was seen.
	// +optional
	CopyUID types.UID `json:"copyUID,omitempty"`
	// replacedUID is the UID of the copy of an earlier run. Reports about that copy are ignored
	// for this run.
	// +optional
	ReplacedUID types.UID `json:"replacedUID,omitempty"`
	// since is the earliest resourceVersion of the cluster at which the copy can have been
	// created.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Since string `json:"since,omitempty"`
	// completions of a Job that are the share of the cluster. Unset: unknown, or completions
	// are not shared.
	// +optional
	Completions *int64 `json:"completions,omitempty"`
	// succeeded is the number of completions that had succeeded when the Job ended or left the
	// cluster.
	// +optional
	Succeeded *int64 `json:"succeeded,omitempty"`
	// succeededBefore is the number of completions that had succeeded before the Job left the
	// cluster and returned, or in another cluster of the same name. They do not run again.
	// +optional
	SucceededBefore *int64 `json:"succeededBefore,omitempty"`
	// rerun is the request for another run that this run serves.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Rerun string `json:"rerun,omitempty"`
	// removed is true once the placement does not name the cluster any more. If the copy is
	// missing then, the hub deleted it.
	// +optional
	Removed bool `json:"removed,omitempty"`
	// time is when the phase began.
	// +required
	Time metav1.Time `json:"time"`
}

// RunPhase is the progress, in a cluster, of a template whose work ends.
// +kubebuilder:validation:Enum=Began;Refused;Skipped;Complete;Failed
type RunPhase string

// The values of RunPhase.
const (
	RunBegan    RunPhase = "Began"    // the copy was created, or is about to be
	RunRefused  RunPhase = "Refused"  // the cluster refused the copy
	RunSkipped  RunPhase = "Skipped"  // the template had ended when the cluster was added
	RunComplete RunPhase = "Complete" // the work ended successfully
	RunFailed   RunPhase = "Failed"   // the work ended with a failure
)

// Ended reports whether the work of the template has ended in the cluster: Complete, Failed or
// Skipped. After that, only a request for another run starts the work again.
func (p RunPhase) Ended() bool { return p == RunComplete || p == RunFailed || p == RunSkipped }

// ResourceHealth says whether an object works as intended.
// +kubebuilder:validation:Enum=Healthy;Unhealthy;Unknown
type ResourceHealth string

// The values of ResourceHealth.
const (
	ResourceHealthy   ResourceHealth = "Healthy"   // it works as intended
	ResourceUnhealthy ResourceHealth = "Unhealthy" // it does not
	ResourceUnknown   ResourceHealth = "Unknown"   // its status does not show it, or cannot be read
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
	// ConditionScheduled is True when clusters were found for the template. Its message gives
	// the reason for each cluster that was not chosen.
	ConditionScheduled = "Scheduled"
	// ConditionFullyApplied is True when every cluster has the current manifest.
	ConditionFullyApplied = "FullyApplied"
	// ConditionHealthy is True when the object is healthy in every cluster, and Unknown when a
	// cluster does not answer.
	ConditionHealthy = "Healthy"
	// ConditionHubNodePorts is True when the clusters serve a Service of type NodePort at the
	// node ports that it has on the hub. It is False if a cluster gave the Service other node
	// ports, because the hub's were taken or out of its range, or because the Service had
	// others before. Bindings of other objects do not have it.
	ConditionHubNodePorts = "HubNodePorts"
	// ConditionDeletionWaits is True while a deleted template and its copies wait: for
	// finalizers of the template, or, after a deletion with propagation Orphan, until the
	// bindings of its dependencies record that the dependencies stay. Bindings of other
	// templates do not have it.
	ConditionDeletionWaits = "DeletionWaits"
	// ConditionContested is True while a client in a cluster changes or deletes a copy each
	// time after the hub restores it. Its message names the cluster, the object, the fields and
	// their manager. Other bindings do not have it.
	ConditionContested = "Contested"
)

// Reasons of the bindings' conditions.
const (
	ReasonScheduled          = "Scheduled"          // clusters were chosen
	ReasonNoClusterFits      = "NoClusterFits"      // no cluster fits, or spread constraints fail
	ReasonInsufficient       = "Insufficient"       // fewer replicas fit than are requested
	ReasonPolicyGone         = "PolicyGone"         // no policy claims it now; its placement stays
	ReasonPolicyWaits        = "PolicyWaits"        // an edited Lazy policy waits for the template
	ReasonSuspended          = "Suspended"          // changes or the choice of clusters suspended
	ReasonOverrideMissing    = "OverrideMissing"    // a policy in dependentOverrides is missing
	ReasonFullyApplied       = "FullyApplied"       // // every cluster has the manifest
	ReasonApplying           = "Applying"           // some cluster has not answered yet
	ReasonConflict           = "Conflict"           // an unmanaged object of that name exists
	ReasonRejected           = "Rejected"           // a cluster refused the manifest
	ReasonAPINotServed       = "APINotServed"       // a cluster does not serve the kind
	ReasonRunUnknown         = "RunUnknown"         // work that began is gone, its result unknown
	ReasonMutated            = "Mutated"            // a cluster removes Orrery's marks from copies
	ReasonRenderFailed       = "RenderFailed"       // an override does not fit the template
	ReasonPodSecurity        = "PodSecurity"        // pods violate the level of their namespace
	ReasonClusterUnreachable = "ClusterUnreachable" // a cluster does not answer
	ReasonListFails          = "ListFails"          // a cluster cannot list the kind of the copies
	ReasonHubRestored        = "HubRestored"        // after a restore from a backup, unconfirmed
	ReasonRemoving           = "Removing"           // deleted, but some cluster still has its copy
	ReasonHealthy            = "Healthy"            // // healthy in every cluster
	ReasonUnhealthy          = "Unhealthy"          // // unhealthy in some cluster
	ReasonProgressing        = "Progressing"        // not healthy yet
	ReasonCannotJudge        = "CannotJudge"        // the kind's status does not show its health
	ReasonHubNodePorts       = "HubNodePorts"       // // every cluster has the hub's node ports
	ReasonFinalizersRemain   = "FinalizersRemain"   // a deleted template has finalizers
	ReasonDependenciesBehind = "DependenciesBehind" // deleted with Orphan, dependencies not kept
	ReasonFieldsChanged      = "FieldsChanged"      // another manager keeps changing fields
	ReasonCopyDeleted        = "CopyDeleted"        // a client deletes a copy again and again
	ReasonOtherHub           = "OtherHub"           // another Orrery hub applies the same object
	ReasonOwnNodePorts       = "OwnNodePorts"       // a cluster has other node ports than the hub
)

// RebalancedByAnnotation names the WorkloadRebalancer that set rescheduleTriggeredAt of a
// binding, as CREATED/UID. It distinguishes WorkloadRebalancers that were created in the same
// second.
const RebalancedByAnnotation = "work.orrery.dev/rebalanced-by"

// Labels, annotations and field managers of the objects that the hub places in members. Users'
// objects on the hub have none of these.
const (
	// BindingLabel is the label with the UID of the binding that placed the object.
	BindingLabel = "work.orrery.dev/binding"
	// DigestAnnotation is the annotation with the digest of the manifest that was applied.
	DigestAnnotation = "work.orrery.dev/digest"
	// SourceAnnotation holds the version of the template, the Cluster and the resourceVersion
	// of the hub for which a copy was rendered, authenticated with the hub's key.
	SourceAnnotation = "work.orrery.dev/source"
	// OriginAnnotation marks an object that existed in the member before this hub placed it. It
	// stays, and is not deleted, when its template is deleted. Its value is OriginAdopted or
	// OriginTakenOver.
	OriginAnnotation = "work.orrery.dev/origin"
	// OwnedAnnotation is "true" on an object with OriginAnnotation once the hub owns the fields that
	// other managers owned before.
	OwnedAnnotation = "work.orrery.dev/owned"
	// OrphanAnnotation is an annotation on objects that stayed in a member after the hub gave them up.
	// Its value is HUB-ID/ and the value of SourceAnnotation, which begins with the template's UID. At
	// the next join the hub recognizes such an object as its own.
	OrphanAnnotation = "work.orrery.dev/orphan"
	// NamespaceLabel marks a namespace in a member that was created for placed objects. Its
	// value is the hub's ID, the UID of its kube-system namespace.
	NamespaceLabel = "work.orrery.dev/created-by"
	// FieldManager is the field manager with which the hub applies objects in members.
	FieldManager = "orrery"
	// ReplicasFieldManager is a second field manager of the hub, for spec.replicas of copies whose
	// template has RetainReplicasLabel. It owns the replicas, with or without FieldManager, until
	// another client scales the copy.
	ReplicasFieldManager = "orrery-replicas"
)

// RerunAnnotation on a template whose work has ended requests another run: BINDING-UID/ID, with
// a new ID for each request. A binding that was created again ignores requests to the earlier
// binding.
const RerunAnnotation = "work.orrery.dev/rerun"

// AllowTakeOverLabel on a Namespace of the hub, set to true, allows its PropagationPolicies to
// adopt and take over objects, in members' namespaces of the same name, that this hub did not
// create.
const AllowTakeOverLabel = "work.orrery.dev/allow-takeover"

// Labels with which users control how Orrery treats their objects in members. Those of Karmada
// differ only in the domain.
const (
	// RetainReplicasLabel on a template, set to true, leaves the replicas of existing copies to
	// the clients that scale them in their clusters.
	RetainReplicasLabel = "resourcetemplate.orrery.dev/retain-replicas"
	// SkipNamespaceLabel on a Namespace of the hub, set to true, excludes it from orrery server
	// --namespaces=All: the namespace is not created in members in which nothing is placed in
	// it.
	SkipNamespaceLabel = "namespace.orrery.dev/skip-auto-propagation"
)

// Values of OriginAnnotation.
const (
	OriginAdopted   = "Adopted"   // it was equal to the manifest to be placed
	OriginTakenOver = "TakenOver" // it was overwritten, as conflictResolution allowed
)

// Finalizer is the finalizer that keeps a deleted binding until its objects are deleted or orphaned
// in every cluster.
const Finalizer = "work.orrery.dev/placed"
