package status

import (
	"context"
	"fmt"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
)

// clusters holds the names of the hub's Clusters. The value is false while a Cluster has no API
// server yet.
type clusters struct {
	synced toolscache.InformerSynced

	mu    sync.RWMutex
	built map[string]bool
}

// watchClusters follows the hub's Clusters and calls changed for each that comes, goes, or gets
// its API server.
func watchClusters(ctx context.Context, informers cache.Informers, changed func(cluster string)) (*clusters, error) {
	c := &clusters{built: map[string]bool{}}
	convert := func(o any) *clusterv1alpha1.Cluster {
		cluster, _ := o.(*clusterv1alpha1.Cluster)
		return cluster
	}
	var err error
	c.synced, err = binding.Watch(ctx, informers, &clusterv1alpha1.Cluster{}, convert, func(before, after *clusterv1alpha1.Cluster) {
		if c.set(before, after) {
			if after == nil {
				after = before
			}
			changed(after.Name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watch clusters: %w", err)
	}
	return c, nil
}

func (c *clusters) set(before, after *clusterv1alpha1.Cluster) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if after == nil {
		delete(c.built, before.Name)
		return true
	}
	was, known := c.built[after.Name]
	is := member.Built(after)
	c.built[after.Name] = is
	return !known || was != is
}

// left reports whether the hub has no such Cluster.
func (c *clusters) left(name string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, known := c.built[name]
	return !known
}

// joins reports whether a cluster that is not a member yet becomes one. The registry reports
// when.
func (c *clusters) joins(name string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.built[name]
}
