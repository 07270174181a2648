// Package v1alpha1 names the virtual resources of the fleet.orrery.dev group.
// They are served by orrery itself through API aggregation; nothing of the group
// is stored in etcd.
//
// +groupName=fleet.orrery.dev
package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "fleet.orrery.dev", Version: "v1alpha1"}

const (
	// ResourcesPath is the root under which the mirrored objects of every cluster
	// are served as if they were one API server: ResourcesPath + "/api/v1/pods".
	ResourcesPath = "/apis/fleet.orrery.dev/v1alpha1/resources"
	// ClustersPath is the root of the per-cluster endpoints:
	// ClustersPath + "/NAME/proxy/..." reaches the API server of cluster NAME.
	ClustersPath = "/apis/fleet.orrery.dev/v1alpha1/clusters"
)

// ClusterAnnotation is set on every object that the fleet API returns and names
// the cluster that the object lives in.
const ClusterAnnotation = "fleet.orrery.dev/cluster"

// ProxiedHeader is on every answer of the per-cluster proxies and names the cluster. It
// tells a client that talks to a hub, even where something in between rewrites paths.
const ProxiedHeader = "Orrery-Proxied-Cluster"

// Names under which members know callers whose names on the hub mean something else in a member.
const (
	// AdminsGroup is the group of the hub's administrators, system:masters there. It is bound to cluster-admin, by a
	// ClusterRoleBinding of the same name.
	AdminsGroup = "orrery:admins"
	// ServiceAccountPrefix begins the user that a ServiceAccount of the hub is, followed by NAMESPACE:NAME.
	ServiceAccountPrefix = "orrery:sa:"
)
