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

// keepAnnotation is how the author of a chart says that an object outlives it.
const keepAnnotation, keepValue = "helm.sh/resource-policy", "keep"

// Prune removes what was applied and is in none of the groups, and returns its names. The groups are all that the
// cluster has: a group that is missing is removed whole.
//
// Namespaces and custom resource definitions stay, because what others keep in them would go with them, and so does
// what a chart marks to be kept, and what is no longer labelled as the group's.
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

// leftover is an object that was applied and is in no group any more.
type leftover struct {
	ref  ref
	live *metav1.PartialObjectMetadata
}

// stale finds what Prune removes, in the order that it is removed in: the reverse of that in which kinds sort, by group.
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

// wanted are the objects of each group.
func (c *cluster) wanted(ctx context.Context, groups []Group) (map[string]refs, error) {
	all := make(map[string]refs, len(groups))
	for _, g := range groups {
		all[g.Name] = make(refs, len(g.Objects))
		for _, o := range g.Objects {
			// A kind that is not there has no objects that could be removed.
			r, err := c.resolve(ctx, o, g.Namespace)
			if err != nil && !meta.IsNoMatchError(err) {
				return nil, fmt.Errorf("look at %s: %w", r, err)
			}
			all[g.Name][r] = true
		}
	}
	return all, nil
}

// owned reads an object if it is there, is still the group's and is not to be kept.
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

// forget takes what is in no group out of the inventories.
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
