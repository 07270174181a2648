package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster is one Kubernetes cluster of the fleet, whether it joined or was built by Orrery.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=orrery
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.kubernetesVersion`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodeSummary.total`
// +kubebuilder:printcolumn:name="Region",type=string,priority=1,JSONPath=`.spec.region`
// +kubebuilder:printcolumn:name="Provider",type=string,priority=1,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Mode",type=string,priority=1,JSONPath=`.spec.syncMode`
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.spec.apiEndpoint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 48",message="metadata.name must be a DNS label of at most 48 characters: it is part of label values, URLs and kubeconfig contexts"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['hub', 'fleet', 'api', 'apis', 'clusters', 'version'])",message="metadata.name is taken: hub and fleet are contexts of the kubeconfig; api, apis, clusters and version are paths of the fleet API"
type Cluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says how the cluster is reached and what it is.
	// +required
	Spec ClusterSpec `json:"spec"`
	// status is the state of the cluster when it was last observed.
	// +optional
	Status ClusterStatus `json:"status,omitzero"`
}

// ClusterSpec says how a cluster is reached and what it is.
//
// +kubebuilder:validation:XValidation:rule="has(self.provision) || (has(self.syncMode) && self.syncMode == 'Pull') || (has(self.apiEndpoint) && has(self.secretRef))",message="apiEndpoint and secretRef are needed, unless provision says how to build the cluster, or syncMode is Pull"
// +kubebuilder:validation:XValidation:rule="!has(self.syncMode) || self.syncMode != 'Pull' || !has(self.proxyURL) || size(self.proxyURL) == 0",message="proxyURL is of no use with syncMode Pull: the hub does not dial; give the agent HTTPS_PROXY"
type ClusterSpec struct {
	// syncMode says which side connects. Push: the hub connects to the cluster's API server.
	// Pull: an agent in the cluster connects to the hub, which reaches the API server through
	// the agent; orrery cluster join --pull sets it up. The default is Push.
	// +kubebuilder:default=Push
	// +optional
	SyncMode SyncMode `json:"syncMode,omitempty"`

	// agent says what the hub may do in the cluster while syncMode is Pull. Unset: everything.
	// +optional
	Agent *Agent `json:"agent,omitempty"`

	// apiEndpoint is the URL of the cluster's API server. For a cluster with provision the hub
	// sets it once the cluster is built.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() == 'https'",message="must be an https:// URL, such as https://10.0.0.4:6443"
	// +optional
	APIEndpoint string `json:"apiEndpoint,omitempty"`

	// secretRef names the Secret with the hub's credentials in the cluster. Its keys are token,
	// or tls.crt and tls.key; and ca.crt. Without ca.crt the certificate authorities of the
	// system are trusted. For a cluster with provision the hub sets it once the cluster is
	// built.
	// +optional
	SecretRef SecretReference `json:"secretRef,omitzero"`

	// impersonatorSecretRef names a Secret with credentials that may impersonate users in the
	// cluster. Requests through the cluster proxy use them. Its keys are those of secretRef.
	// Unset: secretRef.
	// +optional
	ImpersonatorSecretRef *SecretReference `json:"impersonatorSecretRef,omitempty"`

	// tlsVerification is Skip to accept any certificate of the cluster's API server. The
	// default is Verify.
	// +kubebuilder:default=Verify
	// +optional
	TLSVerification TLSVerification `json:"tlsVerification,omitempty"`

	// tlsServerName is the name expected in the API server's certificate. The default is the
	// host of apiEndpoint.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	TLSServerName string `json:"tlsServerName,omitempty"`

	// proxyURL is an HTTP, HTTPS or SOCKS5 proxy through which the hub connects to apiEndpoint.
	// Unset: no proxy.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || (isURL(self) && url(self).getScheme() in ['http', 'https', 'socks5'])",message="must be an http://, https:// or socks5:// URL"
	// +optional
	ProxyURL string `json:"proxyURL,omitempty"`

	// provider names who runs the cluster, such as aws.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Provider string `json:"provider,omitempty"`

	// region is the region the cluster is in.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Region string `json:"region,omitempty"`

	// zones are the zones that the cluster's nodes are in.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Zones []string `json:"zones,omitempty"`

	// taints keep out workloads whose policy does not tolerate them. Those with the effect
	// NoExecute also evict workloads, when the toleration that counts from timeAdded is over.
	// The hub sets a missing timeAdded of such a taint. ClusterTaintPolicies add and remove
	// taints.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Taints []corev1.Taint `json:"taints,omitempty"`

	// mirror says which types of the cluster are mirrored for search, in addition to those that
	// placement needs and those that MirrorPolicies select. If neither this field nor a
	// MirrorPolicy selects a type, every type that can be listed and watched is mirrored,
	// except types that change all the time and say little. Of Secrets only the metadata is
	// mirrored, unless secretData says otherwise.
	// +optional
	Mirror *Mirror `json:"mirror,omitempty"`

	// provision describes a cluster that Orrery builds: its hosts and its software. Unset: the
	// cluster exists and only joins the fleet.
	// +optional
	Provision *Provision `json:"provision,omitempty"`

	// deletionPolicy says what happens to the workloads that Orrery placed in the cluster when
	// this object is deleted. Orphan: they keep running, and only Orrery's labels and
	// annotations are removed. Delete: they are deleted. The default is Orphan.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// id is not honoured. The hub finds the ID and shows it in status.id.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="id is not honoured: the hub finds it and shows it in status.id; leave the field out"
	// +optional
	ID string `json:"id,omitempty"`
	// zone is not honoured. Use zones.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="zone is not honoured: use zones, a list"
	// +optional
	Zone string `json:"zone,omitempty"`
	// insecureSkipTLSVerification is not honoured. Use tlsVerification.
	// +kubebuilder:validation:XValidation:rule="!self",message="insecureSkipTLSVerification is not honoured: use tlsVerification, which is Verify or Skip"
	// +optional
	InsecureSkipTLSVerification bool `json:"insecureSkipTLSVerification,omitempty"`
	// proxyHeader is not honoured yet.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="proxyHeader is not honoured yet: a proxy gets no headers of yours; use a proxy that needs none"
	// +optional
	ProxyHeader map[string]string `json:"proxyHeader,omitempty"`
	// resourceModels is not honoured.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="resourceModels is not honoured: free capacity is counted from the nodes and pods themselves; leave the field out"
	// +listType=atomic
	// +optional
	ResourceModels []ResourceModel `json:"resourceModels,omitempty"`
}

// ResourceModel is a class of nodes.
type ResourceModel struct {
	// grade of the class.
	// +optional
	Grade int32 `json:"grade,omitempty"`
	// ranges of resources that a node of the class has.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Ranges []ResourceModelRange `json:"ranges,omitempty"`
}

// ResourceModelRange is a range of one resource.
type ResourceModelRange struct {
	// name of the resource.
	// +optional
	Name corev1.ResourceName `json:"name,omitempty"`
	// min is the smallest quantity.
	// +optional
	Min resource.Quantity `json:"min,omitzero"`
	// max is an exclusive upper bound of the quantity.
	// +optional
	Max resource.Quantity `json:"max,omitzero"`
}

// SyncMode says which side connects, the hub or the cluster.
// +kubebuilder:validation:Enum=Push;Pull
type SyncMode string

// The values of SyncMode.
const (
	Push SyncMode = "Push" // the hub connects to the cluster
	Pull SyncMode = "Pull" // an agent in the cluster connects to the hub
)

// Agent says what the hub may do in a cluster whose agent connects to the hub. The agent's
// manifest grants these rights in the cluster, and no others. After a change, apply the
// manifest again: see orrery cluster rejoin.
//
// +kubebuilder:validation:XValidation:rule="(has(self.profile) && self.profile == 'Placement') == has(self.namespaces)",message="namespaces are those of profile Placement: name them there, and nowhere else"
type Agent struct {
	// profile says what the hub may do. All: everything, also on behalf of users. Placement:
	// mirror the cluster, but Secrets only from namespaces, and place workloads in namespaces.
	// Mirror: mirror the cluster without Secrets, and change nothing. The default is All.
	// +kubebuilder:default=All
	// +optional
	Profile AgentProfile `json:"profile,omitempty"`
	// namespaces in which the hub may place workloads. Required with the profile Placement,
	// forbidden otherwise.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
}

// AgentProfile says what the hub may do in a cluster whose agent connects to the hub.
// +kubebuilder:validation:Enum=All;Placement;Mirror
type AgentProfile string

// The values of AgentProfile.
const (
	AgentProfileAll       AgentProfile = "All"       // the hub may do everything
	AgentProfilePlacement AgentProfile = "Placement" // it may read, and place in some namespaces
	AgentProfileMirror    AgentProfile = "Mirror"    // it may only read, and no Secrets
)

// TLSVerification says whether the API server's certificate is verified.
// +kubebuilder:validation:Enum=Verify;Skip
type TLSVerification string

// The values of TLSVerification.
const (
	TLSVerify TLSVerification = "Verify" // the certificate must be valid
	TLSSkip   TLSVerification = "Skip"   // any certificate is accepted
)

// DeletionPolicy says what happens to placed workloads when their cluster leaves.
// +kubebuilder:validation:Enum=Orphan;Delete
type DeletionPolicy string

// The values of DeletionPolicy.
const (
	DeletionOrphan DeletionPolicy = "Orphan" // workloads, or a built cluster, stay
	DeletionDelete DeletionPolicy = "Delete" // workloads, or a built cluster, are deleted
)

// SecretReference names a Secret on the hub.
type SecretReference struct {
	// namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// Mirror says which types of a cluster are mirrored, in addition to those that placement needs.
// resources and customResources select types. A Mirror with neither of them selects none: then
// the other selections for the cluster decide or, if there are none, the default. The default
// is every type that can be listed and watched, except types that change all the time and say
// little (Leases, Endpoints, Events of events.k8s.io).
//
// +kubebuilder:validation:XValidation:rule="has(self.resources) || has(self.customResources) || has(self.exclude) || has(self.eventsLife)",message="say what is mirrored: resources, customResources, exclude or eventsLife"
type Mirror struct {
	// resources select the types to mirror.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Resources []MirrorResources `json:"resources,omitempty"`

	// customResources is All to mirror every custom resource, as soon as its
	// CustomResourceDefinition exists. Unset, or Selected: only those that resources selects.
	// +optional
	CustomResources MirrorCustomResources `json:"customResources,omitempty"`

	// exclude are types that are not mirrored, even if another selection names them. Types that
	// placement needs are mirrored all the same.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Exclude []MirrorExclusion `json:"exclude,omitempty"`

	// eventsLife is how long Events stay in the mirror after they last happened, from 1m to
	// 24h. The default is 1h. If several selections for a cluster set it, the longest applies.
	// The cluster itself deletes Events as well, by default after an hour.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="must be from 1m to 24h, such as 30m"
	// +optional
	EventsLife *metav1.Duration `json:"eventsLife,omitempty"`
}

// MirrorCustomResources says which custom resources are mirrored.
// +kubebuilder:validation:Enum=Selected;All
type MirrorCustomResources string

// The values of MirrorCustomResources.
const (
	MirrorCustomResourcesSelected MirrorCustomResources = "Selected" // those that resources select
	MirrorCustomResourcesAll      MirrorCustomResources = "All"      // those of every type
)

// MirrorResources selects types of one API group, or of all groups.
//
// +kubebuilder:validation:XValidation:rule="!('*' in self.resources) || size(self.resources) == 1",message="resources: * is every one: leave the others out"
// +kubebuilder:validation:XValidation:rule="!has(self.group) || self.group != '*' || !has(self.versions)",message="versions: name the group that has them, or leave them out"
// +kubebuilder:validation:XValidation:rule="!has(self.secretData) || self.secretData == 'Metadata' || (!has(self.group) || size(self.group) == 0) && size(self.resources) == 1 && 'secrets' in self.resources",message="secretData: name secrets of the core group, and nothing else beside them"
type MirrorResources struct {
	// group is the API group. The empty string is the core group, "*" is every group.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	// +optional
	Group string `json:"group"`
	// versions of the group, in order of preference. Unset: the version that the cluster
	// prefers. A type is mirrored in one version: the one that placement needs, else the first
	// named one, else the one that the cluster prefers.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Versions []string `json:"versions,omitempty"`
	// resources are plural resource names, such as pods. "*" is every resource of the group. If
	// group is "*" as well, types that change all the time and say little are left out.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`
	// +listType=set
	// +required
	Resources []string `json:"resources"`
	// namespaces whose objects are mirrored. If set, types without namespaces are not selected.
	// Unset: all namespaces.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// labelSelector selects the objects that are mirrored. Unset: all objects.
	// +optional
	LabelSelector *MirrorLabelSelector `json:"labelSelector,omitempty"`
	// secretData says which part of the selected Secrets is mirrored. Unset, or Metadata: only
	// metadata. Encrypted: also the data. The mirror's database stores the data encrypted with
	// the server's key, and users who may read Secrets on the hub can read it. Several
	// selections add up. Encrypted is an error if anything but secrets is selected.
	// +optional
	SecretData MirrorSecretData `json:"secretData,omitempty"`
}

// MirrorSecretData says which part of Secrets is mirrored.
// +kubebuilder:validation:Enum=Metadata;Encrypted
type MirrorSecretData string

// The values of MirrorSecretData.
const (
	MirrorSecretDataMetadata  MirrorSecretData = "Metadata"  // without their data
	MirrorSecretDataEncrypted MirrorSecretData = "Encrypted" // with their data, encrypted
)

// MirrorLabelSelector selects objects by their labels. All of its conditions must hold.
//
// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) || has(self.matchExpressions)",message="say which labels: matchLabels or matchExpressions; leave labelSelector out for every object"
type MirrorLabelSelector struct {
	// matchLabels are labels with the value that each must have.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*$'))",message="a key of a label is a name, such as app, or a domain and a name, such as app.kubernetes.io/name"
	// +optional
	MatchLabels map[string]MirrorLabelValue `json:"matchLabels,omitempty"`
	// matchExpressions are conditions on labels.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	MatchExpressions []MirrorLabelExpression `json:"matchExpressions,omitempty"`
}

// MirrorLabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type MirrorLabelValue string

// MirrorLabelExpression is a condition on a label.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == has(self.values)",message="In and NotIn need values, Exists and DoesNotExist have none"
type MirrorLabelExpression struct {
	// key of the label.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +required
	Key string `json:"key"`
	// operator is In, NotIn, Exists or DoesNotExist.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	// +required
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// values to compare with. Required with In and NotIn, forbidden with the other operators.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	Values []MirrorLabelValue `json:"values,omitempty"`
}

// MirrorExclusion names types that are not mirrored.
//
// +kubebuilder:validation:XValidation:rule="!('*' in self.resources) || size(self.resources) == 1",message="resources: * is every one: leave the others out"
type MirrorExclusion struct {
	// group is the API group. The empty string is the core group, "*" is every group.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	// +optional
	Group string `json:"group"`
	// resources are plural resource names, such as pods. "*" is every resource of the group.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`
	// +listType=set
	// +required
	Resources []string `json:"resources"`
}

// ClusterStatus is the state of a cluster when it was last observed.
type ClusterStatus struct {
	// kubernetesVersion is the version of the cluster's API server, such as v1.36.3.
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	// id is the UID of the cluster's kube-system namespace. A cluster with the same name and
	// another id is a different cluster, and is refused.
	// +optional
	ID string `json:"id,omitempty"`
	// apis summarizes the APIs that the cluster serves. The full list is at
	// /apis/fleet.orrery.dev/v1alpha1/clusters/NAME/proxy/apis.
	// +optional
	APIs *APISummary `json:"apis,omitempty"`
	// nodeSummary counts the cluster's nodes.
	// +optional
	NodeSummary *NodeSummary `json:"nodeSummary,omitempty"`
	// resourceSummary adds up what the nodes offer and what the pods request. It is written
	// after a change, at most every 30 seconds. The scheduler reads the mirror instead.
	// +optional
	ResourceSummary *ResourceSummary `json:"resourceSummary,omitempty"`
	// provision is the state of a cluster that Orrery built.
	// +optional
	Provision *ProvisionStatus `json:"provision,omitempty"`
	// agent describes the connected agents of a cluster with syncMode Pull. It is written when
	// an agent connects, disconnects or changes; the number of spares at most every 30 seconds.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`
	// conditions: Ready summarizes Provisioned, Reachable, Joined, APIsComplete and Mirrored.
	// CertificatesExpiring, CredentialsExpiring and AgentConnected do not affect Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AgentStatus describes the connected agents of a cluster with syncMode Pull.
type AgentStatus struct {
	// version of the agents. If they differ, it is the oldest.
	// +optional
	Version string `json:"version,omitempty"`
	// address from which the latest agent connected. Behind proxies it is the address of the
	// last proxy in front of the hub.
	// +optional
	Address string `json:"address,omitempty"`
	// replicas is the number of connected agents.
	Replicas int32 `json:"replicas"`
	// spares is the number of idle connections that the agents keep ready for the hub.
	Spares int32 `json:"spares"`
	// connectedSince is when the first of the agents that are connected now connected.
	// +optional
	ConnectedSince *metav1.Time `json:"connectedSince,omitempty"`
	// certificateExpires is when the agents' certificate expires. The agents renew it
	// themselves.
	// +optional
	CertificateExpires *metav1.Time `json:"certificateExpires,omitempty"`
}

// APISummary summarizes the list of APIs of a cluster.
type APISummary struct {
	// count of the resource types that the cluster serves.
	Count int32 `json:"count"`
	// hash of the list. It changes exactly when the list changes.
	Hash string `json:"hash"`
	// completeness is Complete, or Partial while an aggregated API of the cluster does not
	// answer. With Partial, a type that is not in the list may exist.
	// +kubebuilder:validation:Enum=Complete;Partial
	Completeness APICompleteness `json:"completeness"`
}

// APICompleteness says whether the list of APIs is complete.
type APICompleteness string

// The values of APICompleteness.
const (
	APIsComplete APICompleteness = "Complete" // every served type is known
	APIsPartial  APICompleteness = "Partial"  // an API did not answer
)

// NodeSummary counts nodes.
type NodeSummary struct {
	// total number of nodes.
	Total int32 `json:"total"`
	// ready is the number of nodes whose Ready condition is True.
	Ready int32 `json:"ready"`
}

// ResourceSummary adds up the cluster's capacity.
type ResourceSummary struct {
	// allocatable is the capacity for pods of all nodes that are ready and schedulable.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// allocated is the sum of the requests of all pods that are bound to nodes.
	// +optional
	Allocated corev1.ResourceList `json:"allocated,omitempty"`
	// allocating is the sum of the requests of all pods that wait for a node.
	// +optional
	Allocating corev1.ResourceList `json:"allocating,omitempty"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Cluster `json:"items"`
}

// Condition types of a Cluster. Reachable comes first: while it is not True, the other
// conditions keep their status, because the state of an unreachable cluster is unknown, not
// empty.
const (
	// ConditionProvisioned is True when the hosts of a cluster that Orrery builds match its
	// spec.
	ConditionProvisioned = "Provisioned"
	// ConditionCertificatesExpiring is True when certificates of a cluster that Orrery builds
	// are due for renewal or have expired. Ready does not depend on it.
	ConditionCertificatesExpiring = "CertificatesExpiring"
	// ConditionCredentialsExpiring is True when the renewal of the hub's token in the cluster
	// is overdue, or the token has expired. Ready does not depend on it.
	ConditionCredentialsExpiring = "CredentialsExpiring"
	// ConditionAgentConnected is True while an agent of a cluster with syncMode Pull is
	// connected, and Unknown otherwise. Ready does not depend on it: Reachable says whether the
	// API server answers.
	ConditionAgentConnected = "AgentConnected"
	// ConditionReady is True when Provisioned (of a cluster that Orrery builds), Reachable, Joined,
	// APIsComplete and Mirrored are True. Otherwise it is a copy of the first of these conditions,
	// in this order, that is not True.
	ConditionReady = "Ready"
	// ConditionReachable is True when the API server answers. After the failure threshold it
	// becomes Unknown, never False: the hub cannot tell a failed cluster from a failed
	// connection.
	ConditionReachable = "Reachable"
	// ConditionJoined is True when the credentials suffice and the cluster has the same ID as
	// before.
	ConditionJoined = "Joined"
	// ConditionAPIsComplete is True when discovery lists every API of the cluster.
	ConditionAPIsComplete = "APIsComplete"
	// ConditionMirrored is True when every selected type was listed at least once and no
	// repeated list is overdue. It stays True while the watch of a type is interrupted: searches
	// then warn, and the ClusterMirror of the cluster has the age of the data (lagSeconds).
	ConditionMirrored = "Mirrored"
	// ConditionWorkloadsLeft exists only while a Cluster is being deleted. It is True once the
	// hub has finished its work in the cluster. Its reason says what happened to the placed
	// workloads.
	ConditionWorkloadsLeft = "WorkloadsLeft"
)

// Reasons of a Cluster's conditions.
const (
	ReasonReady               = "Ready"               // every condition that Ready requires is True
	ReasonAPIServerReady      = "APIServerReady"      // the API server answers
	ReasonUnreachable         = "Unreachable"         // no answer, or not from the API server
	ReasonUnauthorized        = "Unauthorized"        // the credentials were refused
	ReasonForbidden           = "Forbidden"           // the credentials lack permissions
	ReasonSecretInvalid       = "SecretInvalid"       // the Secret is missing or unusable
	ReasonSecretNotBound      = "SecretNotBound"      // not stored for this Cluster and address
	ReasonUnverifiedTLS       = "UnverifiedTLS"       // a token needs a verified server certificate
	ReasonIdentityChanged     = "IdentityChanged"     // another cluster answers at the endpoint
	ReasonAlreadyJoined       = "AlreadyJoined"       // the same cluster joined under another name
	ReasonIsHub               = "IsHub"               // the endpoint is the hub itself
	ReasonThroughHub          = "ThroughHub"          // the endpoint is behind the proxy of a hub
	ReasonBindingAdmins       = "BindingAdmins"       // administrators are being granted rights
	ReasonJoined              = "Joined"              // // the cluster is a member
	ReasonComplete            = "Complete"            // // every API of the cluster is known
	ReasonPartial             = "Partial"             // an aggregated API does not answer
	ReasonMirroring           = "Mirroring"           // lists are in progress
	ReasonMirrored            = "Mirrored"            // // the mirror has every selected type
	ReasonNotStored           = "NotStored"           // storing fails, or lost data is read again
	ReasonUnjoining           = "Unjoining"           // the cluster is being removed from the fleet
	ReasonLeavingWorkloads    = "LeavingWorkloads"    // placed workloads are orphaned or deleted
	ReasonUndoingHosts        = "UndoingHosts"        // the installation on the hosts is removed
	ReasonForgetting          = "Forgetting"          // stored data of the cluster is deleted
	ReasonOrphaned            = "Orphaned"            // workloads run on, without Orrery's marks
	ReasonDeleted             = "Deleted"             // the workloads were deleted
	ReasonMarksLeft           = "MarksLeft"           // workloads run on, with Orrery's marks
	ReasonWaitingForReachable = "WaitingForReachable" // an earlier condition must be True first
	ReasonProvisioning        = "Provisioning"        // an Operation makes the hosts match the spec
	ReasonProvisioned         = "Provisioned"         // // the hosts match the spec
	ReasonOperationFailed     = "OperationFailed"     // an Operation failed and is tried again
	ReasonPaused              = "Paused"              // an Operation is paused
	ReasonCanceled            = "Canceled"            // an Operation was canceled
	ReasonInvalid             = "Invalid"             // spec.provision is invalid
	ReasonExpiringSoon        = "ExpiringSoon"        // certificates or an authority expire soon
	ReasonExpired             = "Expired"             // certificates on the hosts have expired
	ReasonValid               = "Valid"               // no certificate or token expires soon
	ReasonAgentConnected      = "AgentConnected"      // an agent is connected
	ReasonNoAgent             = "NoAgent"             // no agent of the cluster is connected
	ReasonWaitingForAgent     = "WaitingForAgent"     // no agent has redeemed the join token yet
)

// Finalizer is the finalizer that keeps a deleted Cluster until its workloads are orphaned or
// deleted and the hub has removed what it has of the cluster.
const Finalizer = "cluster.orrery.dev/unjoin"

// TaintUnschedulable is the key of the taint, with effect NoSchedule, of a cluster that gets no
// new workloads.
const TaintUnschedulable = "cluster.orrery.dev/unschedulable"

// Keys of the taints that ClusterTaintPolicies conventionally give to clusters that fail. The same
// keys in the domain cluster.karmada.io have the same meaning. Workloads without a matching
// toleration tolerate these taints for 300 seconds.
const (
	TaintNotReady    = "cluster.orrery.dev/not-ready"   // Ready is False
	TaintUnreachable = "cluster.orrery.dev/unreachable" // the cluster does not answer
)

// Annotations of a Secret with a cluster's credentials. The hub uses the credentials only for
// the Cluster and the address that they name.
const (
	// AnnotationForCluster is the name of the Cluster. Secrets with credentials of hosts have
	// it as well.
	AnnotationForCluster = "cluster.orrery.dev/for-cluster"
	// AnnotationForAddress says where the hub may send the credentials: spec.apiEndpoint of the
	// Cluster, followed by those of tlsServerName=…, tlsVerification=Skip, proxyURL=… and
	// syncMode=Pull whose fields are set, in this order and separated by spaces.
	AnnotationForAddress = "cluster.orrery.dev/for-address"
)

// NamesAnnotation is on the namespace with the credentials of the clusters. It lists the names of
// all clusters, separated by commas. The hub's API server uses it to warn about policies that name
// an unknown cluster. It may lag behind briefly.
const NamesAnnotation = "cluster.orrery.dev/names"

// SecretNamespace is the only namespace whose Secrets are read as credentials of clusters.
const SecretNamespace = "orrery-cluster" //nolint:gosec // a namespace, no secret
