package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PropagationPolicy claims objects of its own namespace and says which clusters they
// are placed in.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=orrery,shortName=pp
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Claimed",type=integer,JSONPath=`.status.claimed`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="Priority",type=integer,priority=1,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PropagationPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says what is claimed and where it is placed.
	// +required
	Spec PropagationSpec `json:"spec"`
	// status is what the policy claims.
	// +optional
	Status PropagationStatus `json:"status,omitzero"`
}

// ClusterPropagationPolicy claims objects of every namespace, and cluster-scoped ones,
// and says which clusters they are placed in.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=orrery,shortName=cpp
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Claimed",type=integer,JSONPath=`.status.claimed`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="Priority",type=integer,priority=1,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterPropagationPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says what is claimed and where it is placed.
	// +required
	Spec PropagationSpec `json:"spec"`
	// status is what the policy claims.
	// +optional
	Status PropagationStatus `json:"status,omitzero"`
}

// Propagation returns the policy as the one type that the code works on. The two kinds
// have the same fields, so a field added to one alone does not compile.
func (p *PropagationPolicy) Propagation() *PropagationPolicy { return p }

// Propagation returns the policy as the one type that the code works on; its namespace
// is empty.
func (p *ClusterPropagationPolicy) Propagation() *PropagationPolicy { return (*PropagationPolicy)(p) }

// PropagationSpec says what is claimed and where it is placed. Fields of Karmada's that are not
// honoured are declared so that they are refused with the reason: an API server drops what is
// not declared, without a word to clients that do not ask for it.
type PropagationSpec struct {
	// resourceSelectors select the objects. An object that matches any of them is
	// selected.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +required
	ResourceSelectors []ResourceSelector `json:"resourceSelectors"`

	// placement says which clusters the objects are placed in. Unset: every cluster.
	// +optional
	Placement Placement `json:"placement,omitzero"`

	// priority decides between policies of the same scope that select the same object:
	// the higher wins. Namespaced policies come before cluster-wide ones whatever the
	// priority; between equals the more specific selector wins, then the name.
	// +kubebuilder:default=0
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// conflictResolution says what happens when an object of the same name exists in a
	// cluster and was not placed there by this hub. Abort: it is left alone and the
	// binding says so. Overwrite: it is taken over.
	// +kubebuilder:default=Abort
	// +optional
	ConflictResolution ConflictResolution `json:"conflictResolution,omitempty"`

	// preserveResourcesOnDeletion keeps the copies in the clusters when the object is
	// deleted on the hub. The default is false.
	// +optional
	PreserveResourcesOnDeletion *bool `json:"preserveResourcesOnDeletion,omitempty"`

	// preemption says whether the policy takes objects that another one places already. Never: an
	// object stays with the policy that placed it first for as long as that selects it, whatever
	// the priority. Always, and unset: the policy that comes first places an object, whoever
	// placed it before.
	// +kubebuilder:validation:Enum=Always;Never
	// +optional
	Preemption PreemptionBehavior `json:"preemption,omitempty"`

	// schedulerName is not honoured: there is one scheduler.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self in ['', 'default-scheduler']",message="schedulerName is not honoured: there is one scheduler, default-scheduler; leave the field out"
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`

	// propagateDeps has what the objects refer to follow them into exactly their clusters: the
	// ConfigMaps, Secrets, ServiceAccounts and PersistentVolumeClaims of pods, the Service that a
	// StatefulSet names, the Secrets and Services of an Ingress. They leave again when nothing
	// needs them there. The default is false.
	// +optional
	PropagateDeps bool `json:"propagateDeps,omitempty"`

	// association is an older name of propagateDeps: one of them is enough.
	// +optional
	Association bool `json:"association,omitempty"`

	// dependentOverrides names the override policies without which nothing is written to a
	// cluster: OverridePolicies of the policy's namespace or, of a ClusterPropagationPolicy,
	// ClusterOverridePolicies. While one of them does not exist, what is in the clusters stays as
	// it is. Override policies that are not named count as well, but nothing waits for them.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	DependentOverrides []string `json:"dependentOverrides,omitempty"`

	// failover is not honoured yet.
	// +kubebuilder:validation:XValidation:rule="!has(self.application) && !has(self.cluster)",message="failover is not honoured yet: what is placed in a cluster stays there, healthy or not, reachable or not; leave the field out"
	// +optional
	Failover *FailoverBehavior `json:"failover,omitempty"`

	// activationPreference says when an edit of the policy takes effect. Unset: at once. Lazy: on
	// each object when that changes; until then its placement stays as it is. What is not placed
	// yet is placed at once.
	// +kubebuilder:validation:Enum="";Lazy
	// +optional
	ActivationPreference ActivationPreference `json:"activationPreference,omitempty"`

	// suspension holds changes back from clusters. Objects that are deleted on the hub are
	// deleted in the clusters all the same.
	// +kubebuilder:validation:XValidation:rule="!(has(self.dispatching) && self.dispatching) || !(has(self.dispatchingOnClusters) && has(self.dispatchingOnClusters.clusterNames) && size(self.dispatchingOnClusters.clusterNames) > 0)",message="dispatching already holds changes back from every cluster: set one of dispatching and dispatchingOnClusters"
	// +optional
	Suspension *Suspension `json:"suspension,omitempty"`

	// schedulePriority is not honoured yet.
	// +kubebuilder:validation:XValidation:rule="!has(self.priorityClassName) || size(self.priorityClassName) == 0",message="schedulePriority is not honoured yet: no object waits for another to be scheduled; leave the field out"
	// +optional
	SchedulePriority *SchedulePriority `json:"schedulePriority,omitempty"`
}

// PreemptionBehavior says whether a policy takes objects that another one claimed before.
type PreemptionBehavior string

// The values of PreemptionBehavior.
const (
	PreemptAlways PreemptionBehavior = "Always"
	PreemptNever  PreemptionBehavior = "Never"
)

// ActivationPreference says when an edit of a policy takes effect.
type ActivationPreference string

// LazyActivation lets an edit of a policy wait until an object changes.
const LazyActivation ActivationPreference = "Lazy"

// FailoverBehavior says what moves when an application or a cluster fails.
type FailoverBehavior struct {
	// application that fails.
	// +optional
	Application *ApplicationFailoverBehavior `json:"application,omitempty"`
	// cluster that fails.
	// +optional
	Cluster *ClusterFailoverBehavior `json:"cluster,omitempty"`
}

// ApplicationFailoverBehavior says how an application moves that is not healthy.
type ApplicationFailoverBehavior struct {
	// decisionConditions must be met before it moves.
	// +optional
	DecisionConditions DecisionConditions `json:"decisionConditions,omitzero"`
	// purgeMode says when it leaves the cluster in which it fails.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	PurgeMode PurgeMode `json:"purgeMode,omitempty"`
	// gracePeriodSeconds is how long it is waited for at its new place.
	// +optional
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
	// statePreservation says what of its state goes with it.
	// +optional
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// ClusterFailoverBehavior says how an application leaves a cluster that fails.
type ClusterFailoverBehavior struct {
	// purgeMode says when it leaves the cluster.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	PurgeMode PurgeMode `json:"purgeMode,omitempty"`
	// statePreservation says what of its state goes with it.
	// +optional
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// DecisionConditions must be met before an application moves.
type DecisionConditions struct {
	// tolerationSeconds is how long it must have been unhealthy.
	// +optional
	TolerationSeconds *int32 `json:"tolerationSeconds,omitempty"`
}

// PurgeMode says when an application leaves the cluster from which it moves.
type PurgeMode string

// StatePreservation says what of an application's state moves with it.
type StatePreservation struct {
	// rules, one for each piece of state.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Rules []StatePreservationRule `json:"rules,omitempty"`
}

// StatePreservationRule moves one piece of state.
type StatePreservationRule struct {
	// aliasLabelName is the label that carries it.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	AliasLabelName string `json:"aliasLabelName,omitempty"`
	// jsonPath of the state, below the object's status.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	JSONPath string `json:"jsonPath,omitempty"`
}

// Suspension holds changes back: while it lasts, nothing is created, changed or deleted in the
// clusters that it is about because of a template, a placement or an override. When it ends, they
// get what is wanted then.
type Suspension struct {
	// dispatching holds changes back from every cluster.
	// +optional
	Dispatching *bool `json:"dispatching,omitempty"`
	// dispatchingOnClusters holds changes back from some clusters.
	// +optional
	DispatchingOnClusters *SuspendClusters `json:"dispatchingOnClusters,omitempty"`
}

// On says whether changes are held back from a cluster.
func (s *Suspension) On(cluster string) bool {
	if s == nil {
		return false
	}
	return s.Dispatching != nil && *s.Dispatching ||
		s.DispatchingOnClusters != nil && slices.Contains(s.DispatchingOnClusters.ClusterNames, cluster)
}

// Held says whether changes are held back from any cluster.
func (s *Suspension) Held() bool {
	return s != nil && (s.Dispatching != nil && *s.Dispatching ||
		s.DispatchingOnClusters != nil && len(s.DispatchingOnClusters.ClusterNames) > 0)
}

// SuspendClusters names clusters.
type SuspendClusters struct {
	// clusterNames are the clusters.
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=48
	// +listType=atomic
	// +optional
	ClusterNames []string `json:"clusterNames,omitempty"`
}

// SchedulePriority says which objects are scheduled first.
type SchedulePriority struct {
	// priorityClassSource says which kind of class is meant.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	PriorityClassSource PriorityClassSource `json:"priorityClassSource,omitempty"`
	// priorityClassName is the class.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}

// PriorityClassSource says which kind of priority class is meant.
type PriorityClassSource string

// ResourceSelector selects objects by kind and optionally by name or labels.
//
// +kubebuilder:validation:XValidation:rule="!has(self.name) || size(self.name) == 0 || !has(self.labelSelector)",message="name and labelSelector exclude each other: a name already selects one object"
// +kubebuilder:validation:XValidation:rule="!(self.apiVersion.startsWith('policy.orrery.dev/') || self.apiVersion.startsWith('work.orrery.dev/') || self.apiVersion.startsWith('cluster.orrery.dev/'))",message="Orrery's own policies, bindings and clusters cannot be placed"
type ResourceSelector struct {
	// apiVersion of the objects, such as apps/v1.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +required
	APIVersion string `json:"apiVersion"`
	// kind of the objects, such as Deployment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// namespace of the objects. Unset: the policy's own namespace; in a cluster-wide
	// policy, every namespace.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the object. Unset: any name.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// labelSelector selects objects by label. Unset: any labels.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// Placement says which clusters objects are placed in.
type Placement struct {
	// clusterAffinity selects clusters. Unset: every cluster.
	// +optional
	ClusterAffinity *ClusterAffinity `json:"clusterAffinity,omitempty"`
	// clusterTolerations let objects into clusters with matching taints.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ClusterTolerations []corev1.Toleration `json:"clusterTolerations,omitempty"`
	// replicaScheduling says how the replicas of a workload are spread. Unset:
	// Duplicated.
	// +optional
	ReplicaScheduling *ReplicaSchedulingStrategy `json:"replicaScheduling,omitempty"`

	// clusterAffinities is not honoured yet.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="clusterAffinities is not honoured yet: there is one group of clusters and none to fall back on; use clusterAffinity"
	// +listType=atomic
	// +optional
	ClusterAffinities []ClusterAffinityTerm `json:"clusterAffinities,omitempty"`
	// spreadConstraints is not honoured yet.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="spreadConstraints is not honoured yet: every cluster that clusterAffinity selects is chosen; name as many as you want in clusterAffinity.clusterNames"
	// +listType=atomic
	// +optional
	SpreadConstraints []SpreadConstraint `json:"spreadConstraints,omitempty"`
	// workloadAffinity is not honoured yet.
	// +kubebuilder:validation:XValidation:rule="!has(self.affinity) && !has(self.antiAffinity)",message="workloadAffinity is not honoured yet: a placement does not look at other workloads; name the clusters in clusterAffinity"
	// +optional
	WorkloadAffinity *WorkloadAffinity `json:"workloadAffinity,omitempty"`
}

// ClusterAffinityTerm is a named group of clusters.
type ClusterAffinityTerm struct {
	// affinityName is the name of the group.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	AffinityName string `json:"affinityName,omitempty"`

	ClusterAffinity `json:",inline"`

	// overflowAffinities is not honoured yet.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="overflowAffinities is not honoured yet: there is one group of clusters and none to fall back on; use clusterAffinity"
	// +listType=atomic
	// +optional
	OverflowAffinities []OverflowClusterAffinity `json:"overflowAffinities,omitempty"`
}

// OverflowClusterAffinity is a group of clusters for what does not fit into another.
type OverflowClusterAffinity struct {
	// affinityName is the name of the group.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	AffinityName string `json:"affinityName,omitempty"`

	ClusterAffinity `json:",inline"`
}

// SpreadConstraint bounds the groups of clusters that are chosen.
type SpreadConstraint struct {
	// spreadByField is the field that groups clusters.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	SpreadByField SpreadFieldValue `json:"spreadByField,omitempty"`
	// spreadByLabel is the label that groups clusters.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	SpreadByLabel string `json:"spreadByLabel,omitempty"`
	// maxGroups is the largest number of groups.
	// +optional
	MaxGroups int32 `json:"maxGroups,omitempty"`
	// minGroups is the smallest number of groups.
	// +optional
	MinGroups int32 `json:"minGroups,omitempty"`
}

// SpreadFieldValue names a field of a cluster.
type SpreadFieldValue string

// WorkloadAffinity relates a placement to those of other workloads.
type WorkloadAffinity struct {
	// affinity chooses clusters in which the workloads of a group are.
	// +optional
	Affinity *WorkloadAffinityTerm `json:"affinity,omitempty"`
	// antiAffinity avoids clusters in which the workloads of a group are.
	// +optional
	AntiAffinity *WorkloadAffinityTerm `json:"antiAffinity,omitempty"`
}

// WorkloadAffinityTerm names a group of workloads.
type WorkloadAffinityTerm struct {
	// groupByLabelKey is the label whose value is the group.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	GroupByLabelKey string `json:"groupByLabelKey,omitempty"`
}

// ClusterAffinity selects clusters; every part that is set must match.
type ClusterAffinity struct {
	// labelSelector selects clusters by their labels.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// fieldSelector selects clusters by provider, region and zone.
	// +optional
	FieldSelector *FieldSelector `json:"fieldSelector,omitempty"`
	// clusterNames are the clusters to choose from. Unset: every cluster.
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=48
	// +listType=set
	// +optional
	ClusterNames []string `json:"clusterNames,omitempty"`
	// exclude names clusters that are never chosen.
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=48
	// +listType=set
	// +optional
	ExcludeClusters []string `json:"exclude,omitempty"`
}

// FieldSelector selects clusters by their fields.
type FieldSelector struct {
	// matchExpressions must all match. The keys are provider, region and zone.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	MatchExpressions []FieldSelectorRequirement `json:"matchExpressions,omitempty"`
}

// FieldSelectorRequirement is one condition on a cluster's field.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",message="values are required with In and NotIn, and must be empty with Exists and DoesNotExist"
type FieldSelectorRequirement struct {
	// key is the field.
	// +kubebuilder:validation:Enum=provider;region;zone
	// +required
	Key string `json:"key"`
	// operator relates the field to the values. A cluster with several zones matches In
	// when any of them is among the values, and NotIn when none is.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	// +required
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// values to compare with.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Values []string `json:"values,omitempty"`
}

// ReplicaSchedulingStrategy says how replicas are spread over clusters.
//
// +kubebuilder:validation:XValidation:rule="!has(self.weightPreference) || self.replicaSchedulingType == 'Divided'",message="weightPreference needs replicaSchedulingType Divided"
type ReplicaSchedulingStrategy struct {
	// replicaSchedulingType is Duplicated, every cluster gets all replicas; or Divided,
	// the clusters share them.
	// +kubebuilder:validation:Enum=Duplicated;Divided
	// +kubebuilder:default=Duplicated
	// +optional
	ReplicaSchedulingType ReplicaSchedulingType `json:"replicaSchedulingType,omitempty"`
	// replicaDivisionPreference says how shares are found: Weighted. Aggregated is not
	// honoured yet.
	// +kubebuilder:validation:Enum=Aggregated;Weighted
	// +kubebuilder:validation:XValidation:rule="self != 'Aggregated'",message="replicaDivisionPreference Aggregated is not honoured yet: replicas are shared out by weight; use Weighted, with dynamicWeight AvailableReplicas to follow free capacity"
	// +kubebuilder:default=Weighted
	// +optional
	ReplicaDivisionPreference ReplicaDivisionPreference `json:"replicaDivisionPreference,omitempty"`
	// weightPreference gives the weights. Unset: every cluster weighs the same.
	// +optional
	WeightPreference *ClusterPreferences `json:"weightPreference,omitempty"`
}

// ReplicaSchedulingType says whether replicas are copied or shared out.
type ReplicaSchedulingType string

// The values of ReplicaSchedulingType.
const (
	Duplicated ReplicaSchedulingType = "Duplicated"
	Divided    ReplicaSchedulingType = "Divided"
)

// ReplicaDivisionPreference says how shares are found.
type ReplicaDivisionPreference string

// The values of ReplicaDivisionPreference.
const (
	// Weighted shares replicas out in proportion to weights.
	Weighted ReplicaDivisionPreference = "Weighted"
	// Aggregated fills as few clusters as possible.
	Aggregated ReplicaDivisionPreference = "Aggregated"
)

// ClusterPreferences weigh clusters.
//
// +kubebuilder:validation:XValidation:rule="has(self.staticWeightList) != has(self.dynamicWeight)",message="set one of staticWeightList and dynamicWeight"
type ClusterPreferences struct {
	// staticWeightList weighs clusters by fixed numbers. A cluster that no entry selects
	// gets no replicas; one that several select gets the greatest weight.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	StaticWeightList []StaticClusterWeight `json:"staticWeightList,omitempty"`
	// dynamicWeight is AvailableReplicas: clusters are weighed by how many more replicas
	// fit into their free capacity.
	// +kubebuilder:validation:Enum=AvailableReplicas
	// +optional
	DynamicWeight DynamicWeightFactor `json:"dynamicWeight,omitempty"`
}

// StaticClusterWeight is the weight of some clusters.
type StaticClusterWeight struct {
	// targetCluster selects the clusters.
	// +required
	TargetCluster ClusterAffinity `json:"targetCluster"`
	// weight of each of them.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +required
	Weight int64 `json:"weight"`
}

// DynamicWeightFactor names a measured weight.
type DynamicWeightFactor string

// DynamicWeightByAvailableReplicas weighs clusters by free capacity.
const DynamicWeightByAvailableReplicas DynamicWeightFactor = "AvailableReplicas"

// ConflictResolution says what happens to an object that is already there.
// +kubebuilder:validation:Enum=Abort;Overwrite
type ConflictResolution string

// The values of ConflictResolution.
const (
	ConflictAbort     ConflictResolution = "Abort"
	ConflictOverwrite ConflictResolution = "Overwrite"
)

// PropagationStatus is what a policy claims.
type PropagationStatus struct {
	// claimed is the number of objects that this policy places.
	// +optional
	Claimed int32 `json:"claimed"`
	// conditions: Ready sums up Claimed and Undisputed; Complete says what is left out.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition types of both propagation policies.
const (
	// ConditionReady is True when Claimed and Undisputed are.
	ConditionReady = "Ready"
	// ConditionComplete is False when the policy leaves something out that its selectors name:
	// a selector that can select nothing, a kind that the hub does not serve, objects of system
	// namespaces, objects that every cluster makes for itself, the hub's own. Its message says
	// which, and the way out.
	ConditionComplete = "Complete"
	// ConditionClaimed is True when the policy places at least one object.
	ConditionClaimed = "Claimed"
	// ConditionUndisputed is False when objects that this policy selects are placed by
	// another policy, which the message names.
	ConditionUndisputed = "Undisputed"
)

// Reasons of the policies' conditions.
const (
	ReasonReady           = "Ready"
	ReasonClaimed         = "Claimed"
	ReasonNothingSelected = "NothingSelected" // no object matches the selectors
	ReasonKindNotServed   = "KindNotServed"   // the hub serves no such kind
	ReasonUndisputed      = "Undisputed"
	ReasonLostClaim       = "LostClaim" // another policy comes first for some objects
	ReasonComplete        = "Complete"
	ReasonSelectorInvalid = "SelectorInvalid" // a selector can never select anything
	ReasonSystemNamespace = "SystemNamespace" // a cluster-wide selector must name a system namespace to reach into it
	ReasonReservedObject  = "ReservedObject"  // a selector names an object that every cluster makes for itself, or the hub's own
)

// PropagationPolicyList is a list of PropagationPolicies.
//
// +kubebuilder:object:root=true
type PropagationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PropagationPolicy `json:"items"`
}

// ClusterPropagationPolicyList is a list of ClusterPropagationPolicies.
//
// +kubebuilder:object:root=true
type ClusterPropagationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterPropagationPolicy `json:"items"`
}
