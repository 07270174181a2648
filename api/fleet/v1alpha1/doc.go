// Package v1alpha1 defines the virtual resources of the group fleet.orrery.dev. Orrery serves
// them through API aggregation. None of them is stored in etcd.
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
	// FleetPath is the root under which the mirrored objects of every cluster are served as if
	// they were in one API server: FleetPath + "/api/v1/pods". API servers treat the
	// subresource proxy as a possible stream, so they do not end watches below it after a
	// minute as they end other requests.
	FleetPath = "/apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy"
	// QualifiedPath is the root under which programs read the same objects as under FleetPath.
	// Namespaces are written NAMESPACE@CLUSTER there, and names of cluster-scoped objects
	// NAME@CLUSTER, so that namespace and name identify an object.
	QualifiedPath = "/apis/fleet.orrery.dev/v1alpha1/resources/qualified/proxy"
	// ClustersPath is the root of the paths for single clusters: ClustersPath + "/NAME/proxy/..."
	// reaches the API server of cluster NAME.
	ClustersPath = "/apis/fleet.orrery.dev/v1alpha1/clusters"
	// ConsoleLinksPath is the path to which a ConsoleLink is posted, to get a link that opens the
	// console.
	ConsoleLinksPath = "/apis/fleet.orrery.dev/v1alpha1/consolelinks"
)

// ClusterAnnotation is an annotation on every object that the fleet API returns. Its value is the
// name of the cluster that has the object.
const ClusterAnnotation = "fleet.orrery.dev/cluster"

// ResourceVersionAnnotation is an annotation on every object whose resourceVersion the fleet API
// has replaced by one of its own. Its value is the resourceVersion that the object has in its
// cluster.
const ResourceVersionAnnotation = "fleet.orrery.dev/resource-version"

// ProxiedHeader is a header of every response of the proxies to single clusters. Its value is the
// name of the cluster. It shows a client, such as another hub, that the server is a hub, even if a
// proxy between them rewrites paths.
const ProxiedHeader = "Orrery-Proxied-Cluster"

// CauseClusterUnreachable is a cause in the details of an error (Status). A proxy to a single
// cluster returns it, without sending the request, if the hub knows that the cluster is
// unreachable.
const CauseClusterUnreachable metav1.CauseType = "ClusterUnreachable"

// Names that a proxy uses in a member for callers whose names on the hub mean another user or group
// there.
const (
	// AdminsGroup is the group in a member for callers that are in system:masters on the hub, the
	// group of the hub's administrators. A ClusterRoleBinding of the same name in the member binds it
	// to cluster-admin.
	AdminsGroup = "orrery:admins"
	// ServiceAccountPrefix is the prefix of the user name in a member of a ServiceAccount of the hub.
	// NAMESPACE:NAME follows the prefix.
	ServiceAccountPrefix = "orrery:sa:"
)
