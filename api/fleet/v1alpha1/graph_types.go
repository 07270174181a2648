package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ObjectGraph shows which objects use which others, restricted to objects that the caller may
// list. It is read at the path "graph" below FleetPath.
type ObjectGraph struct {
	metav1.TypeMeta `json:",inline"`

	// Roots are the requested objects, as indexes into Nodes. One name can have an object in each
	// cluster and namespace.
	Roots []int       `json:"roots"`
	Nodes []GraphNode `json:"nodes"`
	Edges []GraphEdge `json:"edges"`
	// Cut says why the graph may be incomplete, and how to request the rest. Empty: the graph
	// is complete within the requested depth.
	Cut string `json:"cut,omitempty"`
}

// GraphNode is an object, or an image.
type GraphNode struct {
	// Cluster is empty for images, which are shared by all clusters.
	Cluster  string `json:"cluster,omitempty"`
	Group    string `json:"group,omitempty"`
	Version  string `json:"version,omitempty"`
	Resource string `json:"resource,omitempty"` // empty for images
	// Kind is Image for images, which have no group.
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	// State is empty for objects that are mirrored, whose existence is known.
	State GraphState `json:"state,omitempty"`
}

// GraphState is the state of a node of an ObjectGraph that is not mirrored.
type GraphState string

// The values of GraphState.
const (
	// GraphMissing means that another object refers to the object of the node, which does not exist.
	GraphMissing GraphState = "Missing"
	// GraphUnknown means that another object refers to the object of the node, and it is unknown
	// whether that exists. Not all objects of its type are mirrored, or they are not read yet.
	GraphUnknown GraphState = "Unknown"
)

// GraphEdge says that one node of an ObjectGraph uses another.
type GraphEdge struct {
	// From is the index in Nodes of the object that uses the other, To the index of the used
	// object.
	From int `json:"from"`
	To   int `json:"to"`
	// Relation is how From uses To: owner, selector, mount, env, pull, account, image, node,
	// class, storage, route, tls, scale, binding, webhook, endpoints or event.
	Relation string `json:"relation"`
}
