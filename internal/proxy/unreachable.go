package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// unreachable returns the error for a request to a cluster for which Member.Reachable is false: an
// API status 503 that says since when and why. If path belongs to discovery, it also adds the
// message to w as a Warning header. Clients that read discovery ignore the message of an error and
// print warnings.
//
// The answer has no Retry-After header. With that header client-go repeats a request up to ten
// times, and kubectl would print the error only after a minute.
func unreachable(w http.ResponseWriter, cluster *clusterv1alpha1.Cluster, path string) error {
	message := fmt.Sprintf("cluster %q is unreachable", cluster.Name)
	if c := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1alpha1.ConditionReachable); c != nil && c.Status != metav1.ConditionTrue {
		message += fmt.Sprintf(" since %s: %s", c.LastTransitionTime.UTC().Format(time.RFC3339), c.Message)
	}
	if isDiscovery(path) {
		// An error means that the message is no valid header. The body has it nevertheless.
		if warning, err := utilnet.NewWarningHeader(299, "-", strings.Join(strings.Fields(message), " ")); err == nil {
			w.Header().Add("Warning", warning)
		}
	}
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{
		Name: cluster.Name, Group: clusterv1alpha1.GroupVersion.Group, Kind: "clusters",
		Causes: []metav1.StatusCause{{Type: fleetv1alpha1.CauseClusterUnreachable, Message: message}},
	}
	return err
}

// isDiscovery reports whether a path at an API server belongs to discovery: the versions, groups
// and types that it serves, its OpenAPI documents and /version. Clients replace the message of an
// error for such a path by their own.
func isDiscovery(path string) bool {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	switch segments[0] {
	case "api":
		return len(segments) <= 2 //nolint:mnd // api and a version
	case "apis":
		return len(segments) <= 3 //nolint:mnd // apis, a group and a version
	case "openapi", "swagger.json":
		return true
	case "version":
		return len(segments) == 1
	default:
		return false
	}
}
