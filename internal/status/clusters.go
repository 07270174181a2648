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

// clusters has the names of the Clusters on the hub. The value of a name is false while the API
// server of the cluster is still being built. It has no names before synced returns true. Several
// goroutines may call its methods.
type clusters struct {
	synced toolscache.InformerSynced

	mu    sync.RWMutex
	built map[string]bool // see member.Built
}

// watchClusters returns the clusters of the hub, which the informers fill once they run. It calls
// changed with the name of each Cluster that is added or deleted, or that gets or loses its API
// server. changed must not block.
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

// set records a Cluster that was added (before is nil), changed or deleted (after is nil). news is
// true unless the Cluster existed before and its API server is as before.
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

// left reports whether the hub has no Cluster with the name. Before c.synced returns true, it is
// true for every name.
func (c *clusters) left(name string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, known := c.built[name]
	return !known
}

// joins reports whether the hub has a Cluster with the name whose API server exists. If such a
// cluster is not a member yet, it becomes one soon, and the registry of members then sends an
// event.
func (c *clusters) joins(name string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.built[name]
}
