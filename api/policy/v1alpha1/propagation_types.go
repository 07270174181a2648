package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PropagationPolicy claims objects of its own namespace and says in which clusters they are
// placed.
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

	// spec says which objects are claimed and where they are placed.
	// +required
	Spec PropagationSpec `json:"spec"`
	// status describes the claimed objects.
	// +optional
	Status PropagationStatus `json:"status,omitzero"`
}

// ClusterPropagationPolicy claims objects of every namespace, and cluster-scoped objects, and
// says in which clusters they are placed.
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

	// spec says which objects are claimed and where they are placed.
	// +required
	Spec PropagationSpec `json:"spec"`
	// status describes the claimed objects.
	// +optional
	Status PropagationStatus `json:"status,omitzero"`
}

// Propagation returns the policy itself. It exists so that code can handle both kinds of
// propagation policies as *PropagationPolicy. The two kinds have the same fields: a field that is
// added to only one of them does not compile.
func (p *PropagationPolicy) Propagation() *PropagationPolicy { return p }

// Propagation returns the policy as a *PropagationPolicy with an empty namespace, so that code can
// handle both kinds as one type. It is no copy: changes of the result change p.
func (p *ClusterPropagationPolicy) Propagation() *PropagationPolicy { return (*PropagationPolicy)(p) }

// PropagationSpec says which objects are claimed and where they are placed. Fields of Karmada
// that are not honoured are declared, so that they are refused with a reason. An API server
// drops undeclared fields silently, unless a client asks for validation.
type PropagationSpec struct {
	// resourceSelectors select the objects. An object is selected if at least one of them
	// matches.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +required
	ResourceSelectors []ResourceSelector `json:"resourceSelectors"`

	// placement says in which clusters the objects are placed. Unset: every cluster.
	// +optional
	Placement Placement `json:"placement,omitzero"`

	// priority decides between policies of the same scope that select the same object: the
	// higher wins. Between equal priorities the more specific selector wins, then the name. A
	// namespaced policy always wins against a cluster-wide policy. The default is 0.
	// +kubebuilder:default=0
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// conflictResolution says what happens if a cluster already has an object of the same name
	// that this hub did not place. Abort: the object stays unchanged, and the binding reports
	// the conflict. Overwrite: the hub takes the object over. The default is Abort.
	// +kubebuilder:default=Abort
	// +optional
	ConflictResolution ConflictResolution `json:"conflictResolution,omitempty"`

	// preserveResourcesOnDeletion keeps the copies in the clusters when the object is
	// deleted on the hub. The default is false.
	// +optional
	PreserveResourcesOnDeletion *bool `json:"preserveResourcesOnDeletion,omitempty"`

	// preemption says whether the policy may claim objects that another policy already places.
	// Never: an object stays with the policy that placed it first as long as that policy
	// selects it, regardless of priorities. Always, or unset: the policy that wins claims the
	// object, even if another policy placed it before.
	// +kubebuilder:validation:Enum=Always;Never
	// +optional
	Preemption PreemptionBehavior `json:"preemption,omitempty"`

	// schedulerName is not honoured: there is one scheduler.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self in ['', 'default-scheduler']",message="schedulerName is not honoured: there is one scheduler, default-scheduler; leave the field out"
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`

	// propagateDeps places the dependencies of the objects in exactly the same clusters: the
	// ConfigMaps, Secrets, ServiceAccounts and PersistentVolumeClaims of pods, the Service that
	// a StatefulSet names, and the Secrets and Services of an Ingress. Their copies are removed
	// when no object in the cluster depends on them. The default is false.
	// +optional
	PropagateDeps bool `json:"propagateDeps,omitempty"`

	// association is an older name of propagateDeps. Setting one of them is enough.
	// +optional
	Association bool `json:"association,omitempty"`

	// dependentOverrides names override policies that must exist before anything is written to
	// a cluster: OverridePolicies of the policy's namespace or, in a ClusterPropagationPolicy,
	// ClusterOverridePolicies. While one of them is missing, the copies stay as they are.
	// Override policies that are not named apply as well, but placement does not wait for them.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	DependentOverrides []string `json:"dependentOverrides,omitempty"`

	// failover says how the objects leave clusters that fail.
	// +optional
	Failover *FailoverBehavior `json:"failover,omitempty"`

	// activationPreference says when an edit of the policy takes effect. Unset: at once. Lazy:
	// for each object when that object changes. Until then the placement of the object stays as
	// it is. An object that is not placed yet is placed at once.
	// +kubebuilder:validation:Enum="";Lazy
	// +optional
	ActivationPreference ActivationPreference `json:"activationPreference,omitempty"`

	// suspension holds back changes of copies. Objects that are deleted on the hub are deleted
	// in the clusters all the same.
	// +kubebuilder:validation:XValidation:rule="!(has(self.dispatching) && self.dispatching) || !(has(self.dispatchingOnClusters) && has(self.dispatchingOnClusters.clusterNames) && size(self.dispatchingOnClusters.clusterNames) > 0)",message="dispatching already holds changes back from every cluster: set one of dispatching and dispatchingOnClusters"
	// +optional
	Suspension *Suspension `json:"suspension,omitempty"`

	// schedulePriority says which of the waiting objects are decided first. Unset: priority 0.
	// +kubebuilder:validation:XValidation:rule="(has(self.priorityClassSource) && size(self.priorityClassSource) > 0) == (has(self.priorityClassName) && size(self.priorityClassName) > 0)",message="priorityClassSource and priorityClassName go together: write KubePriorityClass and the name of a PriorityClass of the hub, or leave schedulePriority out"
	// +optional
	SchedulePriority *SchedulePriority `json:"schedulePriority,omitempty"`
}

// PreemptionBehavior says whether a policy may claim objects that another policy already
// places.
type PreemptionBehavior string

// The values of PreemptionBehavior.
const (
	PreemptAlways PreemptionBehavior = "Always" // the policy that wins claims the object
	PreemptNever  PreemptionBehavior = "Never"  // the policy that places the object keeps it
)

// ActivationPreference says when an edit of a policy takes effect.
type ActivationPreference string

// LazyActivation delays the effect of an edit of a policy on an object until the object
// changes.
const LazyActivation ActivationPreference = "Lazy"

// FailoverBehavior says how objects leave clusters that fail.
type FailoverBehavior struct {
	// application is not honoured yet.
	// +kubebuilder:validation:XValidation:rule="false",message="application failover is not honoured yet: an unhealthy copy stays in its cluster, and only a taint with the effect NoExecute evicts it; leave the field out"
	// +optional
	Application *ApplicationFailoverBehavior `json:"application,omitempty"`
	// cluster says how the objects leave a cluster because of a taint with the effect NoExecute,
	// once they no longer tolerate that taint. Unset: as with purgeMode Gracefully.
	// +optional
	Cluster *ClusterFailoverBehavior `json:"cluster,omitempty"`
}

// ClusterPurge returns when an old copy is removed from the cluster that it leaves because of a
// taint: PurgeGracefully, PurgeDirectly or PurgeNever. For a deprecated value it returns the value
// that replaces it. The default, also for a nil FailoverBehavior, is PurgeGracefully.
func (f *FailoverBehavior) ClusterPurge() PurgeMode {
	if f == nil || f.Cluster == nil {
		return PurgeGracefully
	}
	switch f.Cluster.PurgeMode {
	case PurgeDirectly, PurgeImmediately:
		return PurgeDirectly
	case PurgeNever:
		return PurgeNever
	default:
		return PurgeGracefully
	}
}

// ApplicationFailoverBehavior says how an unhealthy application moves.
type ApplicationFailoverBehavior struct {
	// decisionConditions must be met before the application moves.
	// +optional
	DecisionConditions DecisionConditions `json:"decisionConditions,omitzero"`
	// purgeMode says when the application is removed from the cluster in which it failed.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	PurgeMode PurgeMode `json:"purgeMode,omitempty"`
	// gracePeriodSeconds is how long to wait for the application in its new cluster, in
	// seconds.
	// +optional
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
	// statePreservation says which part of the application's state moves with it.
	// +optional
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// ClusterFailoverBehavior says how objects leave a cluster because of a taint.
type ClusterFailoverBehavior struct {
	// purgeMode says when the old copy is removed. Gracefully: when as much is available in
	// other clusters; in a cluster that does not answer, after it answers again. Directly: at
	// once if the cluster answers, without waiting for the replacement. Never: the old copy
	// stays beside its replacement, without Orrery's marks. Graciously and Immediately are
	// deprecated names of Gracefully and Directly. The default is Gracefully.
	// +kubebuilder:validation:Enum="";Directly;Gracefully;Never;Immediately;Graciously
	// +kubebuilder:default=Gracefully
	// +optional
	PurgeMode PurgeMode `json:"purgeMode,omitempty"`
	// statePreservation is not honoured yet.
	// +kubebuilder:validation:XValidation:rule="!has(self.rules) || size(self.rules) == 0",message="statePreservation is not honoured yet: a replacement starts without the state of the old copy; leave the field out"
	// +optional
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// DecisionConditions must be met before an application moves.
type DecisionConditions struct {
	// tolerationSeconds is how long the application must have been unhealthy, in seconds.
	// +optional
	TolerationSeconds *int32 `json:"tolerationSeconds,omitempty"`
}

// PurgeMode says when an old copy is removed from the cluster that it leaves.
type PurgeMode string

// The values of PurgeMode.
const (
	// PurgeGracefully removes the old copy when as much is available in other clusters.
	PurgeGracefully PurgeMode = "Gracefully"
	// PurgeDirectly removes the old copy at once.
	PurgeDirectly PurgeMode = "Directly"
	// PurgeNever leaves the old copy in its cluster.
	PurgeNever PurgeMode = "Never"
	// PurgeImmediately is a deprecated name of PurgeDirectly.
	PurgeImmediately PurgeMode = "Immediately"
	// PurgeGraciously is a deprecated name of PurgeGracefully.
	PurgeGraciously PurgeMode = "Graciously"
)

// StatePreservation says which part of an application's state moves with it.
type StatePreservation struct {
	// rules has one entry for each part of the state.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Rules []StatePreservationRule `json:"rules,omitempty"`
}

// StatePreservationRule moves one part of the state.
type StatePreservationRule struct {
	// aliasLabelName is the label that transports the value.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	AliasLabelName string `json:"aliasLabelName,omitempty"`
	// jsonPath of the value, below the object's status.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	JSONPath string `json:"jsonPath,omitempty"`
}

// Suspension holds back changes. While it is set, changes of a template, a placement or an
// override create, change and delete nothing in the suspended clusters. When it ends, the
// clusters get the state that is wanted at that time.
type Suspension struct {
	// dispatching holds back changes in every cluster. The default is false.
	// +optional
	Dispatching *bool `json:"dispatching,omitempty"`
	// dispatchingOnClusters holds back changes in the named clusters.
	// +optional
	DispatchingOnClusters *SuspendClusters `json:"dispatchingOnClusters,omitempty"`
}

// On reports whether the policy holds back changes of its objects in the named cluster. It is false
// for a nil Suspension.
func (s *Suspension) On(cluster string) bool {
	if s == nil {
		return false
	}
	return s.Dispatching != nil && *s.Dispatching ||
		s.DispatchingOnClusters != nil && slices.Contains(s.DispatchingOnClusters.ClusterNames, cluster)
}

// Held reports whether the policy holds back changes of its objects in at least one cluster. It is
// false for a nil Suspension. It does not check whether the named clusters exist.
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

// SchedulePriority says which of the waiting objects are decided first: those with the highest
// priority and, among equal priorities, those that were queued first. It does not affect
// objects that are already placed.
type SchedulePriority struct {
	// priorityClassSource is the kind of the class: KubePriorityClass, a PriorityClass of
	// Kubernetes on the hub.
	// +kubebuilder:validation:Enum="";KubePriorityClass
	// +optional
	PriorityClassSource PriorityClassSource `json:"priorityClassSource,omitempty"`
	// priorityClassName is the name of the class. The value of the class is the priority. While
	// the class does not exist, objects that are not placed yet wait for it, and placed objects
	// keep their priority.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}

// PriorityClassSource is a kind of priority class.
type PriorityClassSource string

// KubePriorityClass means that the priority comes from a PriorityClass of Kubernetes on the hub. It
// is the only kind.
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
	// namespace of the objects. Unset: the policy's own namespace, or every namespace for a
	// cluster-wide policy.
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

// Placement says in which clusters objects are placed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.clusterAffinity) || !has(self.clusterAffinities) || size(self.clusterAffinities) == 0",message="clusterAffinity and clusterAffinities exclude each other: a single group of clusters is a list of one"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterAffinities) || !self.clusterAffinities.exists(t, has(t.overflowAffinities) && size(t.overflowAffinities) > 0) || (has(self.replicaScheduling) && has(self.replicaScheduling.replicaSchedulingType) && self.replicaScheduling.replicaSchedulingType == 'Divided' && ((has(self.replicaScheduling.replicaDivisionPreference) && self.replicaScheduling.replicaDivisionPreference == 'Aggregated') || (has(self.replicaScheduling.weightPreference) && has(self.replicaScheduling.weightPreference.dynamicWeight))))",message="overflowAffinities needs replicas that are divided by free capacity: set replicaSchedulingType Divided with replicaDivisionPreference Aggregated or dynamicWeight AvailableReplicas"
type Placement struct {
	// clusterAffinity selects clusters. Unset: every cluster.
	// +optional
	ClusterAffinity *ClusterAffinity `json:"clusterAffinity,omitempty"`
	// clusterAffinities are groups of clusters, in order of preference. An object is placed in
	// the first group that can take all of its replicas, and stays there until the group
	// cannot. It returns to an earlier group when it no longer fits in its own, when the
	// placement is edited, or when a WorkloadRebalancer names it. If no group can take all
	// replicas, the object stays in its group with as many replicas as fit.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.affinityName == b.affinityName))",message="every group needs an affinityName of its own"
	// +listType=atomic
	// +optional
	ClusterAffinities []ClusterAffinityTerm `json:"clusterAffinities,omitempty"`
	// clusterTolerations allow objects in clusters with matching taints.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ClusterTolerations []corev1.Toleration `json:"clusterTolerations,omitempty"`
	// spreadConstraints limit how many clusters, regions, zones, providers, or groups of
	// clusters with the same value of a label are chosen. All constraints must hold, and as
	// many clusters are chosen as they allow. If replicas are divided, also by static weights,
	// each group that minGroups requires gets a replica as long as there are enough. If no
	// choice of clusters meets the constraints, placed objects stay and nothing new is placed.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, (has(a.spreadByLabel) ? a.spreadByLabel : '') == (has(b.spreadByLabel) ? b.spreadByLabel : '') && (has(a.spreadByField) && size(a.spreadByField) > 0 ? a.spreadByField : 'cluster') == (has(b.spreadByField) && size(b.spreadByField) > 0 ? b.spreadByField : 'cluster')))",message="there is one constraint for each field and each label"
	// +kubebuilder:validation:XValidation:rule="!self.exists(c, !(has(c.spreadByLabel) && size(c.spreadByLabel) > 0) && (!has(c.spreadByField) || c.spreadByField in ['', 'cluster']) && has(c.maxGroups) && c.maxGroups > 0 && self.exists(g, !(has(g.spreadByField) && g.spreadByField == 'zone') && has(g.minGroups) && g.minGroups > c.maxGroups))",message="maxGroups of the clusters is less than minGroups of another constraint: each group needs a cluster of its own"
	// +listType=atomic
	// +optional
	SpreadConstraints []SpreadConstraint `json:"spreadConstraints,omitempty"`
	// workloadAffinity relates the object to other objects of its namespace.
	// +kubebuilder:validation:XValidation:rule="!has(self.affinity) || !has(self.antiAffinity) || self.affinity.groupByLabelKey != self.antiAffinity.groupByLabelKey",message="affinity and antiAffinity by the same label contradict each other"
	// +optional
	WorkloadAffinity *WorkloadAffinity `json:"workloadAffinity,omitempty"`
	// replicaScheduling says how the replicas of a workload are spread over the clusters.
	// Unset: Duplicated.
	// +optional
	ReplicaScheduling *ReplicaSchedulingStrategy `json:"replicaScheduling,omitempty"`
}

// ClusterAffinityTerm is a named group of clusters.
type ClusterAffinityTerm struct {
	// affinityName is the name of the group. The binding names the group in which an object is.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +required
	AffinityName string `json:"affinityName"`

	ClusterAffinity `json:",inline"`

	// overflowAffinities are additional clusters of this group, for replicas that do not fit in
	// the clusters before them. They are filled in this order and emptied in reverse order. A
	// cluster that several entries select belongs to the first. Objects without replicas are
	// placed in all of them.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	OverflowAffinities []OverflowClusterAffinity `json:"overflowAffinities,omitempty"`
}

// OverflowClusterAffinity is a group of clusters for replicas that do not fit in the groups
// before it.
type OverflowClusterAffinity struct {
	// affinityName is the name of the group, for users.
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
	// spreadByField is the field of the Cluster by which clusters are grouped: region, zone or
	// provider; or cluster, with which each cluster is its own group. A cluster with several
	// zones belongs to the group of each. A cluster without the field is not newly chosen.
	// Unset, and without spreadByLabel: cluster.
	// +kubebuilder:validation:Enum="";cluster;region;zone;provider
	// +optional
	SpreadByField SpreadFieldValue `json:"spreadByField,omitempty"`
	// spreadByLabel is the label of the Cluster by whose value clusters are grouped. A cluster
	// without the label is not newly chosen.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	SpreadByLabel string `json:"spreadByLabel,omitempty"`
	// maxGroups is the maximum number of groups. 0: no limit.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxGroups int32 `json:"maxGroups,omitempty"`
	// minGroups is the minimum number of groups. 0 means 1.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinGroups int32 `json:"minGroups,omitempty"`
}

// SpreadFieldValue names a field of a cluster.
type SpreadFieldValue string

// The values of SpreadFieldValue.
const (
	SpreadByCluster  SpreadFieldValue = "cluster"  // each cluster is a group of its own
	SpreadByRegion   SpreadFieldValue = "region"   // by spec.region of the Cluster
	SpreadByZone     SpreadFieldValue = "zone"     // by spec.zones of the Cluster
	SpreadByProvider SpreadFieldValue = "provider" // by spec.provider of the Cluster
)

// WorkloadAffinity relates the placement of an object to that of the other objects of its
// group. A group has the objects of one namespace with the same value of a label, whose
// policies have the same rule for that label. The rule applies when an object is newly placed
// in a cluster; placed objects stay.
type WorkloadAffinity struct {
	// affinity allows an object only in clusters in which another object of its group is
	// placed. While no other object of the group is placed anywhere, every cluster is allowed.
	// +optional
	Affinity *WorkloadAffinityTerm `json:"affinity,omitempty"`
	// antiAffinity allows an object only in clusters in which no other object of its group is
	// placed, and from which none is still moving out.
	// +optional
	AntiAffinity *WorkloadAffinityTerm `json:"antiAffinity,omitempty"`
}

// WorkloadAffinityTerm names a group of workloads.
type WorkloadAffinityTerm struct {
	// groupByLabelKey is the label of the object whose value names the group. An object without
	// the label is in no group, so the rule does not apply to it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +required
	GroupByLabelKey string `json:"groupByLabelKey"`
}

// ClusterAffinity selects clusters. Every part that is set must match.
type ClusterAffinity struct {
	// labelSelector selects clusters by their labels.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// fieldSelector selects clusters by provider, region and zone.
	// +optional
	FieldSelector *FieldSelector `json:"fieldSelector,omitempty"`
	// clusterNames are the names of the clusters to choose from. Unset: every cluster.
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
	// operator compares the field with the values. A cluster with several zones matches In if
	// any zone is among the values, and NotIn if none is.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	// +required
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// values to compare with. Required with In and NotIn, forbidden with Exists and
	// DoesNotExist.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Values []string `json:"values,omitempty"`
}

// ReplicaSchedulingStrategy says how replicas are spread over the clusters.
//
// +kubebuilder:validation:XValidation:rule="!has(self.weightPreference) || self.replicaSchedulingType == 'Divided'",message="weightPreference needs replicaSchedulingType Divided"
// +kubebuilder:validation:XValidation:rule="!has(self.replicaDivisionPreference) || self.replicaDivisionPreference != 'Aggregated' || self.replicaSchedulingType == 'Divided'",message="replicaDivisionPreference Aggregated needs replicaSchedulingType Divided"
// +kubebuilder:validation:XValidation:rule="!has(self.replicaDivisionPreference) || self.replicaDivisionPreference != 'Aggregated' || !has(self.weightPreference)",message="replicaDivisionPreference Aggregated has no weights: leave weightPreference out, or use Weighted"
type ReplicaSchedulingStrategy struct {
	// replicaSchedulingType is Duplicated (every cluster gets all replicas) or Divided (the
	// clusters share the replicas). The default is Duplicated.
	// +kubebuilder:validation:Enum=Duplicated;Divided
	// +kubebuilder:default=Duplicated
	// +optional
	ReplicaSchedulingType ReplicaSchedulingType `json:"replicaSchedulingType,omitempty"`
	// replicaDivisionPreference says how replicas are divided. Weighted: in proportion to
	// weights. Aggregated: in as few clusters as have the capacity, starting with those that
	// already have the object. The default is Weighted.
	// +kubebuilder:validation:Enum=Aggregated;Weighted
	// +kubebuilder:default=Weighted
	// +optional
	ReplicaDivisionPreference ReplicaDivisionPreference `json:"replicaDivisionPreference,omitempty"`
	// weightPreference sets the weights. Unset: all clusters have the same weight.
	// +optional
	WeightPreference *ClusterPreferences `json:"weightPreference,omitempty"`
}

// ReplicaSchedulingType says whether each cluster gets all replicas or a share of them.
type ReplicaSchedulingType string

// The values of ReplicaSchedulingType.
const (
	Duplicated ReplicaSchedulingType = "Duplicated" // each cluster gets all replicas
	Divided    ReplicaSchedulingType = "Divided"    // the clusters share the replicas
)

// ReplicaDivisionPreference says how replicas are divided.
type ReplicaDivisionPreference string

// The values of ReplicaDivisionPreference.
const (
	// Weighted divides replicas in proportion to weights.
	Weighted ReplicaDivisionPreference = "Weighted"
	// Aggregated fills the free capacity of as few clusters as possible.
	Aggregated ReplicaDivisionPreference = "Aggregated"
)

// ClusterPreferences set the weights of clusters.
//
// +kubebuilder:validation:XValidation:rule="has(self.staticWeightList) != has(self.dynamicWeight)",message="set one of staticWeightList and dynamicWeight"
type ClusterPreferences struct {
	// staticWeightList has fixed weights. A cluster that no entry selects gets no replicas. A
	// cluster that several entries select has the greatest of their weights.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	StaticWeightList []StaticClusterWeight `json:"staticWeightList,omitempty"`
	// dynamicWeight is AvailableReplicas: the weight of a cluster is the number of additional
	// replicas that fit in its free capacity.
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

// DynamicWeightFactor names a measured value that is used as weight.
type DynamicWeightFactor string

// DynamicWeightByAvailableReplicas gives each cluster the number of additional replicas that fit
// into its free capacity as its weight.
const DynamicWeightByAvailableReplicas DynamicWeightFactor = "AvailableReplicas"

// ConflictResolution says what happens to an object that a cluster already has.
// +kubebuilder:validation:Enum=Abort;Overwrite
type ConflictResolution string

// The values of ConflictResolution.
const (
	ConflictAbort     ConflictResolution = "Abort"     // the object stays unchanged
	ConflictOverwrite ConflictResolution = "Overwrite" // the object is overwritten
)

// PropagationStatus describes the objects that a policy claims.
type PropagationStatus struct {
	// claimed is the number of objects that this policy places.
	// +optional
	Claimed int32 `json:"claimed"`
	// conditions: Ready summarizes Claimed and Undisputed. Complete is False if the policy
	// leaves out objects.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition types of both propagation policies.
const (
	// ConditionReady is True when Claimed and Undisputed are True.
	ConditionReady = "Ready"
	// ConditionComplete is False when the policy leaves out objects or kinds that its selectors
	// name: a selector that cannot select anything, a kind that the hub does not serve, objects
	// of system namespaces, objects that every cluster creates itself, or the hub's own
	// objects. Its message lists them, and says what to do.
	ConditionComplete = "Complete"
	// ConditionClaimed is True when the policy places at least one object and its PriorityClass
	// exists.
	ConditionClaimed = "Claimed"
	// ConditionUndisputed is False when another policy places objects that this policy selects.
	// The message names that policy.
	ConditionUndisputed = "Undisputed"
)

// Reasons of the policies' conditions.
const (
	ReasonReady           = "Ready"           // all that Ready requires is True
	ReasonClaimed         = "Claimed"         // the policy places objects
	ReasonNothingSelected = "NothingSelected" // no object matches the selectors
	ReasonKindNotServed   = "KindNotServed"   // the hub serves no such kind
	ReasonNoPriorityClass = "NoPriorityClass" // schedulePriority names a missing PriorityClass
	ReasonUndisputed      = "Undisputed"      // no other policy places its objects
	ReasonLostClaim       = "LostClaim"       // another policy wins some of the objects
	ReasonComplete        = "Complete"        // the policy leaves out nothing
	ReasonSelectorInvalid = "SelectorInvalid" // a selector can never select anything
	ReasonSystemNamespace = "SystemNamespace" // a cluster-wide selector must name such a namespace
	ReasonReservedObject  = "ReservedObject"  // each cluster creates the object, or the hub owns it
	ReasonClusterScoped   = "ClusterScoped"   // a namespaced policy names a kind without namespaces
	ReasonUnknownCluster  = "UnknownCluster"  // the placement names a cluster that does not exist
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
