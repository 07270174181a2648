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

	// schedulePriority says which objects are decided on first where many wait. Unset: priority 0.
	// +kubebuilder:validation:XValidation:rule="(has(self.priorityClassSource) && size(self.priorityClassSource) > 0) == (has(self.priorityClassName) && size(self.priorityClassName) > 0)",message="priorityClassSource and priorityClassName go together: write KubePriorityClass and the name of a PriorityClass of the hub, or leave schedulePriority out"
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

// SchedulePriority says which objects are decided on first where many wait: those of the highest
// priority, and of several the one that came first. It takes nothing from what is placed.
type SchedulePriority struct {
	// priorityClassSource says which kind of class is meant: KubePriorityClass, a PriorityClass of
	// Kubernetes on the hub.
	// +kubebuilder:validation:Enum="";KubePriorityClass
	// +optional
	PriorityClassSource PriorityClassSource `json:"priorityClassSource,omitempty"`
	// priorityClassName is the class, whose value is the priority. While there is none of the name,
	// objects that are not placed yet wait for it, and those that are keep the priority that they have.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}

// PriorityClassSource says which kind of priority class is meant.
type PriorityClassSource string

// KubePriorityClass is a PriorityClass of Kubernetes on the hub.
const KubePriorityClass PriorityClassSource = "KubePriorityClass"

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
//
// +kubebuilder:validation:XValidation:rule="!has(self.clusterAffinity) || !has(self.clusterAffinities) || size(self.clusterAffinities) == 0",message="clusterAffinity and clusterAffinities exclude each other: a single group of clusters is a list of one"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterAffinities) || !self.clusterAffinities.exists(t, has(t.overflowAffinities) && size(t.overflowAffinities) > 0) || (has(self.replicaScheduling) && has(self.replicaScheduling.replicaSchedulingType) && self.replicaScheduling.replicaSchedulingType == 'Divided' && ((has(self.replicaScheduling.replicaDivisionPreference) && self.replicaScheduling.replicaDivisionPreference == 'Aggregated') || (has(self.replicaScheduling.weightPreference) && has(self.replicaScheduling.weightPreference.dynamicWeight))))",message="overflowAffinities needs replicas that are divided by free capacity: set replicaSchedulingType Divided with replicaDivisionPreference Aggregated or dynamicWeight AvailableReplicas"
type Placement struct {
	// clusterAffinity selects clusters. Unset: every cluster.
	// +optional
	ClusterAffinity *ClusterAffinity `json:"clusterAffinity,omitempty"`
	// clusterAffinities are groups of clusters, the most wanted first. An object is placed in
	// clusters of one group: the first in which it fits whole. It stays in its group until it
	// fits there no longer; to an earlier group it returns when it no longer fits where it is,
	// when the placement is edited, or when a WorkloadRebalancer names it. Where it fits whole
	// in no group, it stays in its own with as many replicas as fit.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.affinityName == b.affinityName))",message="every group needs an affinityName of its own"
	// +listType=atomic
	// +optional
	ClusterAffinities []ClusterAffinityTerm `json:"clusterAffinities,omitempty"`
	// clusterTolerations let objects into clusters with matching taints.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ClusterTolerations []corev1.Toleration `json:"clusterTolerations,omitempty"`
	// spreadConstraints bound how many clusters, regions, zones, providers, or groups of
	// clusters with the same value of a label, are chosen; all of them hold at once. As many
	// clusters are chosen as they let. With shares of replicas, by static weights too, every
	// group that minGroups asks for gets a replica as long as there are enough of them. Where
	// no choice of clusters meets them, what is placed stays and nothing new is placed.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, (has(a.spreadByLabel) ? a.spreadByLabel : '') == (has(b.spreadByLabel) ? b.spreadByLabel : '') && (has(a.spreadByField) && size(a.spreadByField) > 0 ? a.spreadByField : 'cluster') == (has(b.spreadByField) && size(b.spreadByField) > 0 ? b.spreadByField : 'cluster')))",message="there is one constraint for each field and each label"
	// +kubebuilder:validation:XValidation:rule="!self.exists(c, !(has(c.spreadByLabel) && size(c.spreadByLabel) > 0) && (!has(c.spreadByField) || c.spreadByField in ['', 'cluster']) && has(c.maxGroups) && c.maxGroups > 0 && self.exists(g, !(has(g.spreadByField) && g.spreadByField == 'zone') && has(g.minGroups) && g.minGroups > c.maxGroups))",message="maxGroups of the clusters is less than minGroups of another constraint: each group needs a cluster of its own"
	// +listType=atomic
	// +optional
	SpreadConstraints []SpreadConstraint `json:"spreadConstraints,omitempty"`
	// workloadAffinity relates the object to others of its namespace.
	// +kubebuilder:validation:XValidation:rule="!has(self.affinity) || !has(self.antiAffinity) || self.affinity.groupByLabelKey != self.antiAffinity.groupByLabelKey",message="affinity and antiAffinity by the same label contradict each other"
	// +optional
	WorkloadAffinity *WorkloadAffinity `json:"workloadAffinity,omitempty"`
	// replicaScheduling says how the replicas of a workload are spread. Unset:
	// Duplicated.
	// +optional
	ReplicaScheduling *ReplicaSchedulingStrategy `json:"replicaScheduling,omitempty"`
}

// ClusterAffinityTerm is a named group of clusters.
type ClusterAffinityTerm struct {
	// affinityName is the name of the group. The binding says in which group an object is.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	AffinityName string `json:"affinityName"`

	ClusterAffinity `json:",inline"`

	// overflowAffinities are more clusters of this group, for the replicas that do not fit
	// into the clusters before: they are filled in this order and emptied in the reverse
	// order. A cluster that several select belongs to the first. Objects without replicas
	// are placed in all of them.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	OverflowAffinities []OverflowClusterAffinity `json:"overflowAffinities,omitempty"`
}

// OverflowClusterAffinity is a group of clusters for what does not fit into another.
type OverflowClusterAffinity struct {
	// affinityName is the name of the group, for people.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	AffinityName string `json:"affinityName"`

	ClusterAffinity `json:",inline"`
}

// SpreadConstraint bounds the number of groups in which clusters are chosen.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.spreadByField) && size(self.spreadByField) > 0 && has(self.spreadByLabel) && size(self.spreadByLabel) > 0)",message="spreadByField and spreadByLabel exclude each other: write two constraints"
// +kubebuilder:validation:XValidation:rule="!has(self.maxGroups) || self.maxGroups == 0 || !has(self.minGroups) || self.minGroups <= self.maxGroups",message="minGroups is greater than maxGroups"
type SpreadConstraint struct {
	// spreadByField is the field that groups clusters: region, zone and provider of the
	// Cluster; cluster, each cluster is a group. A cluster with several zones is in each of
	// them; one without the field is not chosen anew. Unset, without spreadByLabel: cluster.
	// +kubebuilder:validation:Enum="";cluster;region;zone;provider
	// +optional
	SpreadByField SpreadFieldValue `json:"spreadByField,omitempty"`
	// spreadByLabel is the label of the Cluster whose value is the group. A cluster without
	// the label is not chosen anew.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	SpreadByLabel string `json:"spreadByLabel,omitempty"`
	// maxGroups is the largest number of groups. 0: there is no limit.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxGroups int32 `json:"maxGroups,omitempty"`
	// minGroups is the smallest number of groups. 0 means 1.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinGroups int32 `json:"minGroups,omitempty"`
}

// SpreadFieldValue names a field of a cluster.
type SpreadFieldValue string

// The values of SpreadFieldValue.
const (
	SpreadByCluster  SpreadFieldValue = "cluster"
	SpreadByRegion   SpreadFieldValue = "region"
	SpreadByZone     SpreadFieldValue = "zone"
	SpreadByProvider SpreadFieldValue = "provider"
)

// WorkloadAffinity relates the placement of an object to those of the others of its group: the
// objects of its namespace that have the same value of a label, and whose policies say the same
// of that label. It counts when an object gets into a cluster; what is placed stays.
type WorkloadAffinity struct {
	// affinity lets an object only into clusters in which another of its group is placed. As
	// long as no other is placed anywhere, every cluster does.
	// +optional
	Affinity *WorkloadAffinityTerm `json:"affinity,omitempty"`
	// antiAffinity lets an object into no cluster in which another of its group is placed, or
	// from which one is still moving out.
	// +optional
	AntiAffinity *WorkloadAffinityTerm `json:"antiAffinity,omitempty"`
}

// WorkloadAffinityTerm names a group of workloads.
type WorkloadAffinityTerm struct {
	// groupByLabelKey is the label of the object whose value is the group. An object without
	// the label is in no group, and not bound to any.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +required
	GroupByLabelKey string `json:"groupByLabelKey"`
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
// +kubebuilder:validation:XValidation:rule="!has(self.replicaDivisionPreference) || self.replicaDivisionPreference != 'Aggregated' || self.replicaSchedulingType == 'Divided'",message="replicaDivisionPreference Aggregated needs replicaSchedulingType Divided"
// +kubebuilder:validation:XValidation:rule="!has(self.replicaDivisionPreference) || self.replicaDivisionPreference != 'Aggregated' || !has(self.weightPreference)",message="replicaDivisionPreference Aggregated has no weights: leave weightPreference out, or use Weighted"
type ReplicaSchedulingStrategy struct {
	// replicaSchedulingType is Duplicated, every cluster gets all replicas; or Divided,
	// the clusters share them.
	// +kubebuilder:validation:Enum=Duplicated;Divided
	// +kubebuilder:default=Duplicated
	// +optional
	ReplicaSchedulingType ReplicaSchedulingType `json:"replicaSchedulingType,omitempty"`
	// replicaDivisionPreference says how shares are found: Weighted, in proportion to
	// weights; or Aggregated, in as few clusters as have room, those first in which the
	// object is already.
	// +kubebuilder:validation:Enum=Aggregated;Weighted
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
	// ConditionClaimed is True when the policy places at least one object, and its PriorityClass exists.
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
	ReasonNoPriorityClass = "NoPriorityClass" // the hub has no PriorityClass of the name in schedulePriority
	ReasonUndisputed      = "Undisputed"
	ReasonLostClaim       = "LostClaim" // another policy comes first for some objects
	ReasonComplete        = "Complete"
	ReasonSelectorInvalid = "SelectorInvalid" // a selector can never select anything
	ReasonSystemNamespace = "SystemNamespace" // a cluster-wide selector must name a system namespace to reach into it
	ReasonReservedObject  = "ReservedObject"  // a selector names an object that every cluster makes for itself, or the hub's own
	ReasonClusterScoped   = "ClusterScoped"   // a selector of a policy in a namespace names a kind that is in none
	ReasonUnknownCluster  = "UnknownCluster"  // the placement names a cluster that the hub does not have
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
