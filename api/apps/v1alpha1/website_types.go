package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Website serves a git repository as a web site. It runs nginx behind a NodePort Service, and
// git-sync keeps the files up to date.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=orrery
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableReplicas`
// +kubebuilder:printcolumn:name="Repository",type=string,priority=1,JSONPath=`.spec.gitRepo`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Website struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which repository is served, and how.
	// +required
	Spec WebsiteSpec `json:"spec"`
	// status is the state of the site.
	// +optional
	Status WebsiteStatus `json:"status,omitzero"`
}

// WebsiteSpec says which repository is served, and how.
type WebsiteSpec struct {
	// gitRepo is the URL of the git repository.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^(https?|git|ssh)://[^ ]+$') || self.matches('^[^@ ]+@[^: ]+:[^ ]+$')",message="must be a git URL, such as https://git.example.org/site.git"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[a-z]+://[^/@]*:[^/@]*@')",message="must not hold a password: it would be readable by everyone who may read the Website"
	// +required
	GitRepo string `json:"gitRepo"`
	// deploymentName is the name of the Deployment and of the Service. It cannot be changed.
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="deploymentName cannot be changed; create another Website"
	// +required
	DeploymentName string `json:"deploymentName"`
	// replicas is the number of pods that serve the site. The default is 1.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// branch of the repository that is served. Unset: the default branch of the repository.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Branch string `json:"branch,omitempty"`
	// period between two checks of the repository for changes. The default is 30s, the minimum
	// 1s.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	// +optional
	Period *metav1.Duration `json:"period,omitempty"`
	// images of the two containers. Each has a default.
	// +kubebuilder:default={}
	// +optional
	Images WebsiteImages `json:"images,omitzero"`
}

// WebsiteImages are the images of a Website's containers.
type WebsiteImages struct {
	// nginx is the image that serves the files, as an unprivileged user on port 8080.
	// +kubebuilder:default="docker.io/nginxinc/nginx-unprivileged:1.29-alpine"
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Nginx string `json:"nginx,omitempty"`
	// gitSync is the image that fetches the files.
	// +kubebuilder:default="registry.k8s.io/git-sync/git-sync:v4.5.0"
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	GitSync string `json:"gitSync,omitempty"`
}

// WebsiteStatus is the state of the site.
type WebsiteStatus struct {
	// availableReplicas is the number of available replicas, summed over all clusters.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`
	// conditions: Ready summarizes Deployed, Exposed and Available.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition types of a Website.
const (
	// ConditionReady is True when Deployed, Exposed and Available are True.
	ConditionReady = "Ready"
	// ConditionDeployed is True when the Deployment of the Website matches its spec.
	ConditionDeployed = "Deployed"
	// ConditionExposed is True when the Service of the Website matches its spec.
	ConditionExposed = "Exposed"
	// ConditionAvailable is True when all replicas of the Deployment are available.
	ConditionAvailable = "Available"
)

// Reasons of a Website's conditions.
const (
	ReasonReady       = "Ready"
	ReasonDeployed    = "Deployed"
	ReasonExposed     = "Exposed"
	ReasonAvailable   = "Available"
	ReasonProgressing = "Progressing" // replicas are still becoming available
	ReasonNameTaken   = "NameTaken"   // an object not owned by the Website has this name
)

// WebsiteList is a list of Websites.
//
// +kubebuilder:object:root=true
type WebsiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Website `json:"items"`
}
