package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster is one Kubernetes cluster of the fleet, however it came to be: joined,
// built or discovered.
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
	// status is what was last observed of the cluster.
	// +optional
	Status ClusterStatus `json:"status,omitzero"`
}

// ClusterSpec says how a cluster is reached and what it is.
//
// +kubebuilder:validation:XValidation:rule="has(self.provision) || (has(self.syncMode) && self.syncMode == 'Pull') || (has(self.apiEndpoint) && has(self.secretRef))",message="apiEndpoint and secretRef are needed, unless provision says how to build the cluster, or syncMode is Pull"
// +kubebuilder:validation:XValidation:rule="!has(self.syncMode) || self.syncMode != 'Pull' || !has(self.proxyURL) || size(self.proxyURL) == 0",message="proxyURL is of no use with syncMode Pull: the hub does not dial; give the agent HTTPS_PROXY"
type ClusterSpec struct {
	// syncMode says who dials. Push: the hub dials the cluster's API server. Pull: an agent in the cluster dials the hub, which
	// reaches the API server through it; orrery cluster join --pull sets it up.
	// +kubebuilder:default=Push
	// +optional
	SyncMode SyncMode `json:"syncMode,omitempty"`

	// agent says what the hub may do in the cluster while syncMode is Pull. Unset: everything.
	// +optional
	Agent *Agent `json:"agent,omitempty"`

	// apiEndpoint is the URL of the cluster's API server. It is set once a cluster with
	// provision is built.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() == 'https'",message="must be an https:// URL, such as https://10.0.0.4:6443"
	// +optional
	APIEndpoint string `json:"apiEndpoint,omitempty"`

	// secretRef names the Secret with the hub's credentials in the cluster. Its keys
	// are token, or tls.crt and tls.key; and ca.crt, without which the system's
	// certificate authorities are trusted. It is set once a cluster with provision is built.
	// +optional
	SecretRef SecretReference `json:"secretRef,omitzero"`

	// impersonatorSecretRef names the Secret whose credentials may impersonate users in
	// the cluster; requests through the cluster proxy use it. Its keys are those of
	// secretRef, which is used when this is unset.
	// +optional
	ImpersonatorSecretRef *SecretReference `json:"impersonatorSecretRef,omitempty"`

	// tlsVerification is Skip to accept any certificate of the cluster's API
	// server. The default is Verify.
	// +kubebuilder:default=Verify
	// +optional
	TLSVerification TLSVerification `json:"tlsVerification,omitempty"`

	// tlsServerName is the name expected in the API server's certificate. The default is
	// the host of apiEndpoint.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	TLSServerName string `json:"tlsServerName,omitempty"`

	// proxyURL is an HTTP, HTTPS or SOCKS5 proxy through which apiEndpoint is dialled.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || (isURL(self) && url(self).getScheme() in ['http', 'https', 'socks5'])",message="must be an http://, https:// or socks5:// URL"
	// +optional
	ProxyURL string `json:"proxyURL,omitempty"`

	// provider is who runs the cluster, such as aws.
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

	// taints keep workloads away whose policy does not tolerate them.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Taints []corev1.Taint `json:"taints,omitempty"`

	// mirror says which types of the cluster are mirrored for search, beside those that
	// placement needs and those that MirrorPolicies select. Where nobody selects any: every type that can be listed
	// and watched, but those that change all the time and say little. Of Secrets only the metadata is mirrored, unless
	// secretData says otherwise.
	// +optional
	Mirror *Mirror `json:"mirror,omitempty"`

	// provision says what the cluster is made of, when Orrery builds it. Unset, the cluster is
	// only joined.
	// +optional
	Provision *Provision `json:"provision,omitempty"`

	// deletionPolicy says what becomes of the workloads that Orrery placed in the cluster
	// when this object is deleted. Orphan: they keep running and lose only our marks.
	// Delete: they are deleted.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// id is not honoured: status.id is found by the hub.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="id is not honoured: the hub finds it and shows it in status.id; leave the field out"
	// +optional
	ID string `json:"id,omitempty"`
	// zone is not honoured: zones is.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="size(self) == 0",message="zone is not honoured: use zones, a list"
	// +optional
	Zone string `json:"zone,omitempty"`
	// insecureSkipTLSVerification is not honoured: tlsVerification is.
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
	// max is above the largest quantity.
	// +optional
	Max resource.Quantity `json:"max,omitzero"`
}

// SyncMode says who dials whom.
// +kubebuilder:validation:Enum=Push;Pull
type SyncMode string

// The values of SyncMode.
const (
	Push SyncMode = "Push"
	Pull SyncMode = "Pull"
)

// Agent says what the hub may do in a cluster whose agent dials in. The agent's manifest gives these rights in the cluster, and no
// others: after a change it is to be applied again, see orrery cluster rejoin.
//
// +kubebuilder:validation:XValidation:rule="(has(self.profile) && self.profile == 'Placement') == has(self.namespaces)",message="namespaces are those of profile Placement: name them there, and nowhere else"
type Agent struct {
	// profile is what the hub may do. All: everything, in the name of users, too. Placement: mirror the cluster, but of Secrets
	// only those of namespaces, and place workloads in namespaces. Mirror: mirror the cluster, without Secrets, and change nothing.
	// +kubebuilder:default=All
	// +optional
	Profile AgentProfile `json:"profile,omitempty"`
	// namespaces in which workloads may be placed, with the profile Placement.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
}

// AgentProfile is what the hub may do in a cluster whose agent dials in.
// +kubebuilder:validation:Enum=All;Placement;Mirror
type AgentProfile string

// The values of AgentProfile.
const (
	AgentProfileAll       AgentProfile = "All"
	AgentProfilePlacement AgentProfile = "Placement"
	AgentProfileMirror    AgentProfile = "Mirror"
)

// TLSVerification says whether the API server's certificate is verified.
// +kubebuilder:validation:Enum=Verify;Skip
type TLSVerification string

// The values of TLSVerification.
const (
	TLSVerify TLSVerification = "Verify"
	TLSSkip   TLSVerification = "Skip"
)

// DeletionPolicy says what becomes of placed workloads when their cluster leaves.
// +kubebuilder:validation:Enum=Orphan;Delete
type DeletionPolicy string

// The values of DeletionPolicy.
const (
	DeletionOrphan DeletionPolicy = "Orphan"
	DeletionDelete DeletionPolicy = "Delete"
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

// Mirror says which types of a cluster are mirrored, beside those that placement needs. It selects types by resources and
// customResources; what does neither leaves the selection to others, or to the default: every type that can be listed and
// watched, but those that change all the time and say little (Leases, Endpoints, Events of events.k8s.io).
//
// +kubebuilder:validation:XValidation:rule="has(self.resources) || has(self.customResources) || has(self.exclude) || has(self.eventsLife)",message="say what is mirrored: resources, customResources, exclude or eventsLife"
type Mirror struct {
	// resources are the types to be mirrored.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Resources []MirrorResources `json:"resources,omitempty"`

	// customResources is All to mirror every custom resource, as its CustomResourceDefinition appears. Unset, or Selected:
	// those that resources selects.
	// +optional
	CustomResources MirrorCustomResources `json:"customResources,omitempty"`

	// exclude are types that are not mirrored, whoever selects them, unless placement needs them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Exclude []MirrorExclusion `json:"exclude,omitempty"`

	// eventsLife is how long Events stay in the mirror after they were last seen to happen, from 1m to 24h; the default is
	// 1h. The longest that is said of a cluster counts. A cluster forgets Events itself, after an hour where nobody said otherwise.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="must be from 1m to 24h, such as 30m"
	// +optional
	EventsLife *metav1.Duration `json:"eventsLife,omitempty"`
}

// MirrorCustomResources says which custom resources are mirrored.
// +kubebuilder:validation:Enum=Selected;All
type MirrorCustomResources string

// The values of MirrorCustomResources.
const (
	MirrorCustomResourcesSelected MirrorCustomResources = "Selected"
	MirrorCustomResourcesAll      MirrorCustomResources = "All"
)

// MirrorResources selects types of one API group, or of all.
//
// +kubebuilder:validation:XValidation:rule="!('*' in self.resources) || size(self.resources) == 1",message="resources: * is every one: leave the others out"
// +kubebuilder:validation:XValidation:rule="!has(self.group) || self.group != '*' || !has(self.versions)",message="versions: name the group that has them, or leave them out"
// +kubebuilder:validation:XValidation:rule="!has(self.secretData) || self.secretData == 'Metadata' || (!has(self.group) || size(self.group) == 0) && size(self.resources) == 1 && 'secrets' in self.resources",message="secretData: name secrets of the core group, and nothing else beside them"
type MirrorResources struct {
	// group is the API group; the empty string is the core group, "*" is every group.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	// +optional
	Group string `json:"group"`
	// versions of the group, best first. Unset: the version that the cluster prefers. A type is mirrored in one version:
	// the one that placement needs, or that is named first, or that the cluster prefers.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Versions []string `json:"versions,omitempty"`
	// resources are plural resource names, such as pods; "*" is every one of the group, and, where group is "*", every one but those
	// that change all the time and say little.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`
	// +listType=set
	// +required
	Resources []string `json:"resources"`
	// namespaces are those whose objects are mirrored. Types without namespaces are then not selected. Unset: all.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// labelSelector selects the objects that are mirrored. Unset: all.
	// +optional
	LabelSelector *MirrorLabelSelector `json:"labelSelector,omitempty"`
	// secretData says what is mirrored of the Secrets that this selects. Unset, or Metadata: their metadata. Encrypted: their data, too,
	// which is kept in the mirror's database only encrypted, with the key of the server, and shown to who may read Secrets on the hub.
	// Several selections add up. It is an error where anything but secrets is selected.
	// +optional
	SecretData MirrorSecretData `json:"secretData,omitempty"`
}

// MirrorSecretData says what is mirrored of Secrets.
// +kubebuilder:validation:Enum=Metadata;Encrypted
type MirrorSecretData string

// The values of MirrorSecretData.
const (
	MirrorSecretDataMetadata  MirrorSecretData = "Metadata"
	MirrorSecretDataEncrypted MirrorSecretData = "Encrypted"
)

// MirrorLabelSelector selects objects by their labels: by all that it says.
//
// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) || has(self.matchExpressions)",message="say which labels: matchLabels or matchExpressions; leave labelSelector out for every object"
type MirrorLabelSelector struct {
	// matchLabels are labels with the value that they must have.
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
	// values of In and NotIn.
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
	// group is the API group; the empty string is the core group, "*" is every group.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	// +optional
	Group string `json:"group"`
	// resources are plural resource names, such as pods; "*" is every one of the group.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`
	// +listType=set
	// +required
	Resources []string `json:"resources"`
}

// ClusterStatus is what was last observed of a cluster.
type ClusterStatus struct {
	// kubernetesVersion is the version of the cluster's API server, such as v1.36.3.
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	// id is the UID of the cluster's kube-system namespace. The same name with another id
	// is another cluster, and is refused.
	// +optional
	ID string `json:"id,omitempty"`
	// apis sums up what the cluster serves; the list itself is at
	// /apis/fleet.orrery.dev/v1alpha1/clusters/NAME/proxy/apis.
	// +optional
	APIs *APISummary `json:"apis,omitempty"`
	// nodeSummary counts the cluster's nodes.
	// +optional
	NodeSummary *NodeSummary `json:"nodeSummary,omitempty"`
	// resourceSummary adds up what the nodes offer and the pods request. It is written
	// when it changed, at most every 30 seconds; the scheduler reads the mirror instead.
	// +optional
	ResourceSummary *ResourceSummary `json:"resourceSummary,omitempty"`
	// provision is what is known of a cluster that Orrery built.
	// +optional
	Provision *ProvisionStatus `json:"provision,omitempty"`
	// agent is what is known of the agents of a cluster that dial in. It is written when they come, go or
	// change; the number of spares at most every 30 seconds.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`
	// conditions: Ready sums up Provisioned, Reachable, Joined, APIsComplete and Mirrored;
	// CertificatesExpiring, CredentialsExpiring and AgentConnected tell more.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AgentStatus is what is known of the agents of a cluster that dial in.
type AgentStatus struct {
	// version of the agents; of several, the oldest.
	// +optional
	Version string `json:"version,omitempty"`
	// address from which one of them came last: that of the last proxy in front of the hub.
	// +optional
	Address string `json:"address,omitempty"`
	// replicas that are connected.
	Replicas int32 `json:"replicas"`
	// spares are the connections that they keep for the hub to use.
	Spares int32 `json:"spares"`
	// connectedSince is when the first of those that are connected came.
	// +optional
	ConnectedSince *metav1.Time `json:"connectedSince,omitempty"`
	// certificateExpires is when the certificate of the agents does. They renew it themselves.
	// +optional
	CertificateExpires *metav1.Time `json:"certificateExpires,omitempty"`
}

// APISummary sums up a cluster's API list.
type APISummary struct {
	// count of the resource types that the cluster serves.
	Count int32 `json:"count"`
	// hash of the list; it changes when and only when the list does.
	Hash string `json:"hash"`
	// completeness is Complete, or Partial while an aggregated API of the cluster does not
	// answer: types that are not in the list are then unknown, not absent.
	// +kubebuilder:validation:Enum=Complete;Partial
	Completeness APICompleteness `json:"completeness"`
}

// APICompleteness says whether an API list is whole.
type APICompleteness string

// The values of APICompleteness.
const (
	APIsComplete APICompleteness = "Complete"
	APIsPartial  APICompleteness = "Partial"
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
	// allocatable is what the ready, schedulable nodes offer to pods.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// allocated is what the pods that are bound to nodes request.
	// +optional
	Allocated corev1.ResourceList `json:"allocated,omitempty"`
	// allocating is what the pods that wait for a node request.
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

// Condition types of a Cluster. Reachable comes first: while it is not True the
// others keep the status they had, for an unreachable cluster is unknown, never
// empty.
const (
	// ConditionProvisioned is True when the hosts of a cluster that Orrery builds are as its
	// spec says.
	ConditionProvisioned = "Provisioned"
	// ConditionCertificatesExpiring is True when certificates of a cluster that Orrery builds
	// are to be renewed, or have ended. Ready does not depend on it.
	ConditionCertificatesExpiring = "CertificatesExpiring"
	// ConditionCredentialsExpiring is True when the hub's token in the cluster should have been renewed by now, or has
	// ended. Ready does not depend on it.
	ConditionCredentialsExpiring = "CredentialsExpiring"
	// ConditionAgentConnected is True while an agent of a cluster with syncMode Pull is connected, and Unknown otherwise.
	// Ready does not depend on it: Reachable says whether the API server answers.
	ConditionAgentConnected = "AgentConnected"
	// ConditionReady is True when every other condition is that it sums up.
	ConditionReady = "Ready"
	// ConditionReachable is True when the API server answers. It becomes Unknown after
	// the failure threshold, never False: we cannot tell a dead cluster from a cut line.
	ConditionReachable = "Reachable"
	// ConditionJoined is True when the credentials suffice and the cluster is who it was.
	ConditionJoined = "Joined"
	// ConditionAPIsComplete is True when discovery lists every API of the cluster.
	ConditionAPIsComplete = "APIsComplete"
	// ConditionMirrored is True when every selected type was listed at least once, and no list
	// that is repeated is overdue.
	ConditionMirrored = "Mirrored"
	// ConditionWorkloadsLeft is there while a Cluster leaves: True once nothing more is done
	// in the cluster, with a reason that says what became of what was placed there.
	ConditionWorkloadsLeft = "WorkloadsLeft"
)

// Reasons of a Cluster's conditions.
const (
	ReasonReady               = "Ready"
	ReasonAPIServerReady      = "APIServerReady"
	ReasonUnreachable         = "Unreachable"         // no answer, or an answer that is not the API server's
	ReasonUnauthorized        = "Unauthorized"        // the credentials were refused
	ReasonForbidden           = "Forbidden"           // the credentials do not suffice
	ReasonSecretInvalid       = "SecretInvalid"       // the Secret is missing or unusable
	ReasonSecretNotBound      = "SecretNotBound"      // the Secret was not stored for this Cluster and this address
	ReasonUnverifiedTLS       = "UnverifiedTLS"       // a token is not sent to a server whose certificate is not verified
	ReasonIdentityChanged     = "IdentityChanged"     // another cluster answers at the endpoint
	ReasonAlreadyJoined       = "AlreadyJoined"       // the same cluster is joined under another name
	ReasonIsHub               = "IsHub"               // the endpoint is the hub itself
	ReasonThroughHub          = "ThroughHub"          // the endpoint leads through the proxy of a hub
	ReasonBindingAdmins       = "BindingAdmins"       // the hub's administrators are being given their rights in the cluster
	ReasonJoined              = "Joined"              //
	ReasonComplete            = "Complete"            //
	ReasonPartial             = "Partial"             // some aggregated API does not answer
	ReasonMirroring           = "Mirroring"           // lists are under way
	ReasonMirrored            = "Mirrored"            //
	ReasonNotStored           = "NotStored"           // what is observed cannot be stored, or was lost and is read again
	ReasonUnjoining           = "Unjoining"           // the cluster is leaving
	ReasonLeavingWorkloads    = "LeavingWorkloads"    // what was placed in the cluster is being left or deleted
	ReasonUndoingHosts        = "UndoingHosts"        // the hosts are being undone
	ReasonForgetting          = "Forgetting"          // what was stored of the cluster is being dropped
	ReasonOrphaned            = "Orphaned"            // the workloads keep running, without our marks
	ReasonDeleted             = "Deleted"             // the workloads were deleted
	ReasonMarksLeft           = "MarksLeft"           // the workloads keep running, with our marks
	ReasonWaitingForReachable = "WaitingForReachable" // an earlier condition must be True first
	ReasonProvisioning        = "Provisioning"        // an Operation is to bring the hosts to the spec
	ReasonProvisioned         = "Provisioned"         //
	ReasonOperationFailed     = "OperationFailed"     // an Operation failed; it is tried again
	ReasonPaused              = "Paused"              // an Operation is paused
	ReasonCanceled            = "Canceled"            // an Operation was canceled
	ReasonInvalid             = "Invalid"             // spec.provision cannot be brought about
	ReasonExpiringSoon        = "ExpiringSoon"        // certificates on the hosts, or an authority, end soon
	ReasonExpired             = "Expired"             // certificates on the hosts have ended
	ReasonValid               = "Valid"               // no certificate on the hosts, or no token, ends soon
	ReasonAgentConnected      = "AgentConnected"      // an agent of the cluster is connected
	ReasonNoAgent             = "NoAgent"             // no agent of the cluster is connected
	ReasonWaitingForAgent     = "WaitingForAgent"     // no agent has redeemed the token of the join yet
)

// Finalizer keeps a Cluster until its workloads are orphaned or deleted.
const Finalizer = "cluster.orrery.dev/unjoin"

// TaintUnschedulable is the key of the taint of a cluster that gets nothing new, with the effect NoSchedule.
const TaintUnschedulable = "cluster.orrery.dev/unschedulable"

// Annotations of a Secret with the credentials of a cluster, which is used for nothing but what they say.
const (
	// AnnotationForCluster is the name of the Cluster. A Secret with credentials of hosts has it, too.
	AnnotationForCluster = "cluster.orrery.dev/for-cluster"
	// AnnotationForAddress is where the credentials may be sent: spec.apiEndpoint of the Cluster, and after it, separated by
	// spaces and in this order, tlsServerName=…, tlsVerification=Skip, proxyURL=… and syncMode=Pull, of these fields those that are set.
	AnnotationForAddress = "cluster.orrery.dev/for-address"
)

// NamesAnnotation on the namespace of the clusters' credentials has the names of all clusters, separated by commas: with it the hub's API server warns of policies that
// name another. It may be a moment behind.
const NamesAnnotation = "cluster.orrery.dev/names"

// SecretNamespace is where the credentials of clusters are. Others are not read.
const SecretNamespace = "orrery-cluster" //nolint:gosec // a namespace, no secret
