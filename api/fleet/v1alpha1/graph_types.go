package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ObjectGraph says what objects use, and what uses them, as far as the caller may list both. It is read at the path "graph" below FleetPath.
type ObjectGraph struct {
	metav1.TypeMeta `json:",inline"`

	// Roots are the places in Nodes of what was asked for: of one name there may be an object in each cluster and namespace.
	Roots []int       `json:"roots"`
	Nodes []GraphNode `json:"nodes"`
	Edges []GraphEdge `json:"edges"`
	// Cut says why there may be more, and how to ask for it; "": this is all within the depth.
	Cut string `json:"cut,omitempty"`
}

// GraphNode is an object, or an image.
type GraphNode struct {
	// Cluster is empty of images, which are those of all clusters.
	Cluster  string `json:"cluster,omitempty"`
	Group    string `json:"group,omitempty"`
	Version  string `json:"version,omitempty"`
	Resource string `json:"resource,omitempty"` // empty of images
	// Kind of images is Image, of no group.
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	// State is empty of what is mirrored.
	State GraphState `json:"state,omitempty"`
}

// GraphState says what is known of a node that is not mirrored.
type GraphState string

// The values of GraphState.
const (
	// GraphMissing: something refers to it, and there is no such object.
	GraphMissing GraphState = "Missing"
	// GraphUnknown: something refers to it, and whether there is such an object is not known: not every object of its type is mirrored, or read yet.
	GraphUnknown GraphState = "Unknown"
)

// GraphEdge says that one node uses another.
type GraphEdge struct {
	// From is the place in Nodes of what uses, To of what is used.
	From int `json:"from"`
	To   int `json:"to"`
	// Relation is how: owner, selector, mount, env, pull, account, image, node, class, storage, route, tls, scale, binding, webhook, endpoints or event.
	Relation string `json:"relation"`
}
