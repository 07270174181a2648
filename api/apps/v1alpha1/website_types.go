package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Website serves a git repository as a web site: nginx behind a NodePort Service, with
// git-sync keeping the files up to date.
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

	// spec says what is served and how.
	// +required
	Spec WebsiteSpec `json:"spec"`
	// status is how the site fares.
	// +optional
	Status WebsiteStatus `json:"status,omitzero"`
}

// WebsiteSpec says what is served and how.
type WebsiteSpec struct {
	// gitRepo is the URL of the git repository.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^(https?|git|ssh)://[^ ]+$') || self.matches('^[^@ ]+@[^: ]+:[^ ]+$')",message="must be a git URL, such as https://git.example.org/site.git"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[a-z]+://[^/@]*:[^/@]*@')",message="must not hold a password: it would be readable by everyone who may read the Website"
	// +required
	GitRepo string `json:"gitRepo"`
	// deploymentName names the Deployment and the Service. It cannot be changed.
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="deploymentName cannot be changed; create another Website"
	// +required
	DeploymentName string `json:"deploymentName"`
	// replicas of the site.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// branch of the repository. Unset: the repository's default branch.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Branch string `json:"branch,omitempty"`
	// period between two looks at the repository.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	// +optional
	Period *metav1.Duration `json:"period,omitempty"`
	// images of the two containers.
	// +kubebuilder:default={}
	// +optional
	Images WebsiteImages `json:"images,omitzero"`
}

// WebsiteImages are the images of a Website's containers.
type WebsiteImages struct {
	// nginx serves the files, as an unprivileged user on port 8080.
	// +kubebuilder:default="docker.io/nginxinc/nginx-unprivileged:1.29-alpine"
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Nginx string `json:"nginx,omitempty"`
	// gitSync fetches them.
	// +kubebuilder:default="registry.k8s.io/git-sync/git-sync:v4.5.0"
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	GitSync string `json:"gitSync,omitempty"`
}

// WebsiteStatus is how the site fares.
type WebsiteStatus struct {
	// availableReplicas of the site, in all clusters together.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`
	// conditions: Ready sums up Deployed, Exposed and Available.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition types of a Website.
const (
	// ConditionReady is True when every other condition is.
	ConditionReady = "Ready"
	// ConditionDeployed is True when the Deployment is as the spec says.
	ConditionDeployed = "Deployed"
	// ConditionExposed is True when the Service is as the spec says.
	ConditionExposed = "Exposed"
	// ConditionAvailable is True when all replicas are available.
	ConditionAvailable = "Available"
)

// Reasons of a Website's conditions.
const (
	ReasonReady       = "Ready"
	ReasonDeployed    = "Deployed"
	ReasonExposed     = "Exposed"
	ReasonAvailable   = "Available"
	ReasonProgressing = "Progressing" // replicas are still becoming available
	ReasonNameTaken   = "NameTaken"   // an object of that name exists that this Website does not own
)

// WebsiteList is a list of Websites.
//
// +kubebuilder:object:root=true
type WebsiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Website `json:"items"`
}
