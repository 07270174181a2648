package placement

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/scheduler"
)

// fleet is what placement asks about the clusters beyond their objects on the hub.
type fleet interface {
	// Serves says whether a cluster answers, and whether it serves a kind. Clusters that
	// nobody has asked yet do not answer.
	Serves(cluster string, gvk schema.GroupVersionKind) (reachable bool, api presence.Presence)
	// Fits says how many more replicas with a request fit; false when that is not known.
	Fits(cluster string, request corev1.ResourceList) (int64, bool)
	// Require has a kind mirrored from every cluster.
	Require(gvk schema.GroupVersionKind)
	// Subscribe calls f after changes that matter to where something is placed.
	Subscribe(f func())
}

// members is the fleet.
type members struct {
	registry *member.Registry
	mirror   *mirror.Mirror
}

func (m members) Serves(cluster string, gvk schema.GroupVersionKind) (bool, presence.Presence) {
	c, ok := m.registry.Member(cluster)
	if !ok {
		return false, presence.Unknown
	}
	_, api := c.APIs().Kind(gvk)
	return c.Reachable(), api
}

func (m members) Fits(cluster string, request corev1.ResourceList) (int64, bool) {
	return m.mirror.Fits(cluster, request)
}

func (m members) Require(gvk schema.GroupVersionKind) { m.mirror.Require(gvk) }

func (m members) Subscribe(f func()) { m.registry.Subscribe(func(member.Event) { f() }) }

// clusters is what the scheduler shall know of the fleet. Capacity is looked up when it
// matters. settling is true while something is not known that was known when the hub's
// last process ended: it will be again in a moment.
func (c *Controller) clusters(ctx context.Context, gvk schema.GroupVersionKind, request corev1.ResourceList, capacity bool) (
	clusters []scheduler.Cluster, settling bool, err error,
) {
	var list clusterv1alpha1.ClusterList
	if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, fmt.Errorf("list clusters: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		known := scheduler.Cluster{
			Name: o.Name, Labels: o.Labels, Provider: o.Spec.Provider, Region: o.Spec.Region,
			Zones: o.Spec.Zones, Taints: o.Spec.Taints, Leaving: !o.DeletionTimestamp.IsZero(),
		}
		known.Reachable, known.API = c.fleet.Serves(o.Name, gvk)
		if capacity {
			if n, ok := c.fleet.Fits(o.Name, request); ok {
				known.Available = &n
			}
		}
		unknown := !known.Reachable || known.API == presence.Unknown || capacity && known.Available == nil
		settling = settling || unknown && meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionReady)
		clusters = append(clusters, known)
	}
	return slices.Clip(clusters), settling, nil
}
