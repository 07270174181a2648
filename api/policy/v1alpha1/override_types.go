package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OverridePolicy changes the copies of objects of its own namespace in some clusters.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,categories=orrery,shortName=op
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type OverridePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which objects are changed in which clusters, and how.
	// +required
	Spec OverrideSpec `json:"spec"`
}

// ClusterOverridePolicy changes the copies of objects of every namespace, and of cluster-scoped
// objects, in some clusters. It is applied before the OverridePolicies of the object's
// namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=orrery,shortName=cop
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterOverridePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says which objects are changed in which clusters, and how.
	// +required
	Spec OverrideSpec `json:"spec"`
}

// Override returns the policy itself. It exists so that code can handle both kinds of override
// policies as *OverridePolicy.
func (p *OverridePolicy) Override() *OverridePolicy { return p }

// Override returns the policy as an *OverridePolicy with an empty namespace, so that code can
// handle both kinds as one type. It is no copy: changes of the result change p.
func (p *ClusterOverridePolicy) Override() *OverridePolicy { return (*OverridePolicy)(p) }

// OverrideSpec says which objects are changed in which clusters, and how.
//
// +kubebuilder:validation:XValidation:rule="has(self.overrideRules) && size(self.overrideRules) > 0 || has(self.overriders) && (has(self.overriders.imageOverrider) || has(self.overriders.commandOverrider) || has(self.overriders.argsOverrider) || has(self.overriders.labelsOverrider) || has(self.overriders.annotationsOverrider) || has(self.overriders.fieldOverrider) || has(self.overriders.plaintext))",message="overrideRules is required: a list of targetCluster and overriders",fieldPath=".overrideRules",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="!(has(self.overrideRules) && size(self.overrideRules) > 0) || !(has(self.overriders) && (has(self.overriders.imageOverrider) || has(self.overriders.commandOverrider) || has(self.overriders.argsOverrider) || has(self.overriders.labelsOverrider) || has(self.overriders.annotationsOverrider) || has(self.overriders.fieldOverrider) || has(self.overriders.plaintext)))",message="overriders would be ignored beside overrideRules: make it one of the rules",fieldPath=".overriders"
// +kubebuilder:validation:XValidation:rule="!(has(self.overrideRules) && size(self.overrideRules) > 0) || !(has(self.targetCluster) && (has(self.targetCluster.labelSelector) || has(self.targetCluster.fieldSelector) || has(self.targetCluster.clusterNames) || has(self.targetCluster.exclude)))",message="targetCluster would be ignored beside overrideRules: it stands in each of the rules",fieldPath=".targetCluster"
type OverrideSpec struct {
	// resourceSelectors select the objects. Unset: every object in the policy's scope.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	ResourceSelectors []ResourceSelector `json:"resourceSelectors,omitempty"`
	// overrideRules are applied in order. At least one is required.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	OverrideRules []RuleWithCluster `json:"overrideRules,omitempty"`

	// targetCluster and overriders are an older form of a single rule.
	// +optional
	TargetCluster *ClusterAffinity `json:"targetCluster,omitempty"`
	// overriders are the changes of that rule.
	// +optional
	Overriders *Overriders `json:"overriders,omitempty"`
}

// Rules returns the rules of the policy: overrideRules. If that is empty, it returns one rule from
// targetCluster and overriders, the older form; nil if these are not set.
func (s *OverrideSpec) Rules() []RuleWithCluster {
	if len(s.OverrideRules) == 0 && s.Overriders != nil {
		return []RuleWithCluster{{TargetCluster: s.TargetCluster, Overriders: *s.Overriders}}
	}
	return s.OverrideRules
}

// RuleWithCluster changes the copies of objects in some clusters.
type RuleWithCluster struct {
	// targetCluster selects the clusters. Unset: every cluster.
	// +optional
	TargetCluster *ClusterAffinity `json:"targetCluster,omitempty"`
	// overriders are the changes. At least one is required.
	// +kubebuilder:validation:XValidation:rule="has(self.imageOverrider) || has(self.commandOverrider) || has(self.argsOverrider) || has(self.labelsOverrider) || has(self.annotationsOverrider) || has(self.fieldOverrider) || has(self.plaintext)",message="at least one change is required, such as imageOverrider or plaintext"
	// +required
	Overriders Overriders `json:"overriders"`
}

// Overriders are changes of an object. They are applied in the order of the fields here.
type Overriders struct {
	// imageOverrider changes parts of container images.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ImageOverrider []ImageOverrider `json:"imageOverrider,omitempty"`
	// commandOverrider changes containers' commands.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	CommandOverrider []CommandArgsOverrider `json:"commandOverrider,omitempty"`
	// argsOverrider changes containers' arguments.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	ArgsOverrider []CommandArgsOverrider `json:"argsOverrider,omitempty"`
	// labelsOverrider changes labels.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	LabelsOverrider []LabelAnnotationOverrider `json:"labelsOverrider,omitempty"`
	// annotationsOverrider changes annotations.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	AnnotationsOverrider []LabelAnnotationOverrider `json:"annotationsOverrider,omitempty"`
	// fieldOverrider changes JSON or YAML documents that are the text of a field.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	FieldOverrider []FieldOverrider `json:"fieldOverrider,omitempty"`
	// plaintext changes any field by JSON patch (RFC 6902).
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Plaintext []PlaintextOverrider `json:"plaintext,omitempty"`
}

// OverriderOperator says how a value is changed.
// +kubebuilder:validation:Enum=add;remove;replace
type OverriderOperator string

// The values of OverriderOperator.
const (
	OverriderOpAdd     OverriderOperator = "add"     // adds the value
	OverriderOpRemove  OverriderOperator = "remove"  // removes the value
	OverriderOpReplace OverriderOperator = "replace" // replaces the value
)

// ImageOverrider changes one part of images, [registry/]repository[:tag][@digest].
//
// +kubebuilder:validation:XValidation:rule="self.operator == 'remove' || (has(self.value) && size(self.value) > 0)",message="value is required with add and replace"
type ImageOverrider struct {
	// predicate selects the images. Unset: the images of every container and init container of
	// a Pod, or of a workload's pod template.
	// +optional
	Predicate *ImagePredicate `json:"predicate,omitempty"`
	// component is the part to change. A change of Registry or Repository keeps the tag and the
	// digest. Tag is the tag and the digest together.
	// +kubebuilder:validation:Enum=Registry;Repository;Tag
	// +required
	Component ImageComponent `json:"component"`
	// operator is add (append to the part), remove or replace.
	// +required
	Operator OverriderOperator `json:"operator"`
	// value to append or to replace the part with. Required with add and replace.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Value string `json:"value,omitempty"`
}

// ImagePredicate says which field has the image.
type ImagePredicate struct {
	// path is a JSON pointer (RFC 6901) to a field that has an image as its value.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Path string `json:"path"`
}

// ImageComponent is a part of an image.
type ImageComponent string

// The values of ImageComponent. Tag is the tag and the digest: a change of the tag removes the
// digest, or replaces both with a digest. A change of the registry or the repository keeps the tag
// and the digest.
const (
	ImageRegistry   ImageComponent = "Registry"
	ImageRepository ImageComponent = "Repository"
	ImageTag        ImageComponent = "Tag"
)

// CommandArgsOverrider changes a container's command or arguments.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['add', 'remove']",message="operator is add or remove"
type CommandArgsOverrider struct {
	// containerName is the name of the container or init container.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	ContainerName string `json:"containerName"`
	// operator is add (append) or remove.
	// +required
	Operator OverriderOperator `json:"operator"`
	// value is the list of words to append or remove.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Value []string `json:"value,omitempty"`
}

// LabelAnnotationOverrider changes labels or annotations.
type LabelAnnotationOverrider struct {
	// operator is add (sets keys that are absent), replace (sets keys that are present) or
	// remove (removes the keys, regardless of the values).
	// +required
	Operator OverriderOperator `json:"operator"`
	// value has the keys and their values.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +required
	Value map[string]string `json:"value"`
}

// FieldOverrider changes a JSON or YAML document that is the text of a field, such as a key of
// a ConfigMap.
//
// +kubebuilder:validation:XValidation:rule="has(self.json) != has(self.yaml)",message="set one of json and yaml"
type FieldOverrider struct {
	// fieldPath is a JSON pointer (RFC 6901) to the text.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	FieldPath string `json:"fieldPath"`
	// json are changes of a JSON document.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	JSON []FieldPatchOperation `json:"json,omitempty"`
	// yaml are changes of a YAML document.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	YAML []FieldPatchOperation `json:"yaml,omitempty"`
}

// FieldPatchOperation is one change inside a document.
type FieldPatchOperation struct {
	// subPath is a JSON pointer (RFC 6901) inside the document.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	SubPath string `json:"subPath"`
	// operator is add, remove or replace.
	// +required
	Operator OverriderOperator `json:"operator"`
	// value to add or to replace with, as any JSON. Required with add and replace. CEL cannot
	// check a value of any type, so rendering refuses an override without it.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// PlaintextOverrider changes a field.
type PlaintextOverrider struct {
	// path is a JSON pointer (RFC 6901) to the field, such as /spec/replicas.
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Path string `json:"path"`
	// operator is add, remove or replace.
	// +required
	Operator OverriderOperator `json:"operator"`
	// value to add or to replace with, as any JSON. Required with add and replace. CEL cannot
	// check a value of any type, so rendering refuses an override without it.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// OverridePolicyList is a list of OverridePolicies.
//
// +kubebuilder:object:root=true
type OverridePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OverridePolicy `json:"items"`
}

// ClusterOverridePolicyList is a list of ClusterOverridePolicies.
//
// +kubebuilder:object:root=true
type ClusterOverridePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterOverridePolicy `json:"items"`
}
