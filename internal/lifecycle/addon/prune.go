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

// keepAnnotation with keepValue is Helm's mark for objects that outlive their chart.
const keepAnnotation, keepValue = "helm.sh/resource-policy", "keep"

// Prune removes applied objects that are in none of the groups, and returns their names. groups
// must be all groups of the cluster: a missing group is removed completely.
//
// It keeps namespaces and custom resource definitions, because objects of others would be deleted
// with them. It also keeps objects that a chart marks, and objects without the label of the group.
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

// leftover is an applied object that is in no group any more.
type leftover struct {
	ref  ref
	live *metav1.PartialObjectMetadata
}

// stale returns what Prune removes, in the order of removal: by group, kinds in reverse order.
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

// refs is a set of objects.
type refs map[ref]bool

// wanted returns the objects of each group.
func (c *cluster) wanted(ctx context.Context, groups []Group) (map[string]refs, error) {
	all := make(map[string]refs, len(groups))
	for _, g := range groups {
		all[g.Name] = make(refs, len(g.Objects))
		for _, o := range g.Objects {
			// A kind that the API server does not have has no objects to remove.
			r, err := c.resolve(ctx, o, g.Namespace)
			if err != nil && !meta.IsNoMatchError(err) {
				return nil, fmt.Errorf("look at %s: %w", r, err)
			}
			all[g.Name][r] = true
		}
	}
	return all, nil
}

// owned returns an object that exists, has the label of the group, is not marked to be kept, and is
// not being deleted. Otherwise it returns nil.
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

// forget removes objects that are in no group from the inventories.
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
