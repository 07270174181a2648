// Package v1alpha1 names the virtual resources of the fleet.orrery.dev group.
// They are served by orrery itself through API aggregation; nothing of the group
// is stored in etcd.
//
// +groupName=fleet.orrery.dev
// +kubebuilder:skip
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "fleet.orrery.dev", Version: "v1alpha1"}

const (
	// FleetPath is the root under which the mirrored objects of every cluster are served as if they were one
	// API server: FleetPath + "/api/v1/pods". API servers know by the name proxy that what is below may be a stream: watches
	// are not cut off after a minute as other requests are.
	FleetPath = "/apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy"
	// QualifiedPath is the same for programs, to which two objects of one namespace and name are one: namespaces are
	// NAMESPACE@CLUSTER, and names of what is in no namespace are NAME@CLUSTER.
	QualifiedPath = "/apis/fleet.orrery.dev/v1alpha1/resources/qualified/proxy"
	// ClustersPath is the root of the per-cluster endpoints:
	// ClustersPath + "/NAME/proxy/..." reaches the API server of cluster NAME.
	ClustersPath = "/apis/fleet.orrery.dev/v1alpha1/clusters"
	// ConsoleLinksPath is where a ConsoleLink is created.
	ConsoleLinksPath = "/apis/fleet.orrery.dev/v1alpha1/consolelinks"
)

// ClusterAnnotation is set on every object that the fleet API returns and names
// the cluster that the object lives in.
const ClusterAnnotation = "fleet.orrery.dev/cluster"

// ResourceVersionAnnotation is set on every object that the fleet API returns, whose own resourceVersion is one of the fleet. It has the
// resourceVersion that the object has in its cluster.
const ResourceVersionAnnotation = "fleet.orrery.dev/resource-version"

// ProxiedHeader is on every answer of the per-cluster proxies and names the cluster. It
// tells a client that talks to a hub, even where something in between rewrites paths.
const ProxiedHeader = "Orrery-Proxied-Cluster"

// CauseClusterUnreachable is the cause in the details of a Status by which a per-cluster proxy
// answers for a cluster that the hub knows to be unreachable. The cluster was not asked.
const CauseClusterUnreachable metav1.CauseType = "ClusterUnreachable"

// Names under which members know callers whose names on the hub mean something else in a member.
const (
	// AdminsGroup is the group of the hub's administrators, system:masters there. It is bound to cluster-admin, by a
	// ClusterRoleBinding of the same name.
	AdminsGroup = "orrery:admins"
	// ServiceAccountPrefix begins the user that a ServiceAccount of the hub is, followed by NAMESPACE:NAME.
	ServiceAccountPrefix = "orrery:sa:"
)
