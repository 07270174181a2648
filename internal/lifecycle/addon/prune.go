package addon

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// keepAnnotation with the value keepValue is set by charts on objects that must outlive the chart.
const keepAnnotation, keepValue = "helm.sh/resource-policy", "keep"

// Prune deletes applied objects that the groups no longer have, and returns their names, such as
// "ConfigMap kube-system/coredns", also with an error. It does not wait until they are gone. groups
// must be all groups of the cluster: a missing group is removed completely.
//
// Prune keeps namespaces and custom resource definitions, because other objects would be deleted
// with them. It also keeps objects with keepAnnotation, and objects without the label of their
// group. It removes kept and deleted objects from the inventories.
func Prune(ctx context.Context, cfg *rest.Config, groups []Group) (removed []string, err error) {
	c, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	inventories, err := c.inventories(ctx)
	if err != nil {
		return nil, err
	}
	wanted, err := c.wanted(ctx, groups)
	if err != nil {
		return nil, err
	}
	stale, err := c.stale(ctx, inventories, wanted)
	if err != nil {
		return nil, err
	}
	for _, o := range stale {
		if err := c.remove(ctx, o.live); err != nil {
			return removed, fmt.Errorf("remove %s: %w", o.ref, err)
		}
		removed = append(removed, o.ref.String())
	}
	return removed, c.forget(ctx, inventories, wanted)
}

// leftover is an object in the cluster that was applied for a group and that the group no longer
// has.
type leftover struct {
	ref  ref
	live *metav1.PartialObjectMetadata
}

// stale returns the objects that Prune deletes, in the order of deletion: by group, and within a
// group in the reverse order of ref.compare. wanted are the objects that each group has now.
func (c *cluster) stale(ctx context.Context, inventories map[string]inventory, wanted map[string]refs) ([]leftover, error) {
	var all []leftover
	for _, group := range sortedKeys(inventories) {
		sorted := slices.SortedFunc(maps.Keys(inventories[group]), func(a, b ref) int { return -a.compare(b) })
		for _, r := range sorted {
			if wanted[group][r] || r.groupKind() == kindNamespace || r.groupKind() == kindCRD {
				continue
			}
			live, err := c.owned(ctx, r, group)
			if err != nil {
				return nil, fmt.Errorf("look at %s: %w", r, err)
			}
			if live != nil {
				all = append(all, leftover{ref: r, live: live})
			}
		}
	}
	return all, nil
}

// refs is a set of object identities.
type refs map[ref]bool

// wanted returns the identities of the objects of each group, by the name of the group, as the API
// server sees them.
func (c *cluster) wanted(ctx context.Context, groups []Group) (map[string]refs, error) {
	all := make(map[string]refs, len(groups))
	for _, g := range groups {
		all[g.Name] = make(refs, len(g.Objects))
		for _, o := range g.Objects {
			// An unknown kind is no error: the cluster has no objects of that kind to remove.
			r, err := c.resolve(ctx, o, g.Namespace)
			if err != nil && !meta.IsNoMatchError(err) {
				return nil, fmt.Errorf("look at %s: %w", r, err)
			}
			all[g.Name][r] = true
		}
	}
	return all, nil
}

// owned returns the metadata of an object that Prune may delete. Such an object exists, has the
// label of the group, has no keepAnnotation, and is not being deleted. Otherwise owned returns nil,
// also if the API server does not have the kind.
func (c *cluster) owned(ctx context.Context, r ref, group string) (*metav1.PartialObjectMetadata, error) {
	var mapping *meta.RESTMapping
	err := retry(ctx, func() (err error) {
		mapping, err = c.client.RESTMapper().RESTMapping(r.groupKind())
		return err
	})
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(mapping.GroupVersionKind)
	there, err := c.get(ctx, live, r.Namespace, r.Name)
	if err != nil || !there || live.Labels[groupLabel] != group ||
		live.Annotations[keepAnnotation] == keepValue || live.DeletionTimestamp != nil {
		return nil, err
	}
	return live, nil
}

// forget removes objects that no group has any more from the inventories in the cluster. It deletes
// an inventory that is empty then. wanted are the objects that each group has now.
func (c *cluster) forget(ctx context.Context, inventories map[string]inventory, wanted map[string]refs) error {
	for _, group := range sortedKeys(inventories) {
		inv := inventories[group].clone()
		maps.DeleteFunc(inv, func(r ref, _ record) bool { return !wanted[group][r] })
		if len(inv) == len(inventories[group]) {
			continue
		}
		if err := c.save(ctx, group, inv); err != nil {
			return err
		}
	}
	return nil
}
