package mirror

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// Rows that the store could not delete before the process ended are found at the next start.
// Types that the store has recorded are compared with the plan, like types that were mirrored in
// this process. Types with stored objects and no record are called strays. Stored clusters are
// compared with those of the hub.

// followClusters keeps the set of clusters of the hub up to date.
func (m *Mirror) followClusters(ctx context.Context, informers cache.Informers) error {
	informer, err := informers.GetInformer(ctx, &clusterv1alpha1.Cluster{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch Clusters: %w", err)
	}
	set := func(o any, there bool) {
		if c, ok := o.(*clusterv1alpha1.Cluster); ok {
			m.mu.Lock()
			defer m.mu.Unlock()
			if delete(m.onHub, c.Name); there {
				m.onHub[c.Name] = true
			}
		}
	}
	handlers, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { set(o, true) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			set(o, false)
		},
	})
	if err != nil {
		return fmt.Errorf("watch Clusters: %w", err)
	}
	m.onHub, m.hubKnown = map[string]bool{}, handlers.HasSynced
	return nil
}

// absentFor is how long the rows of a cluster that is not on the hub are kept after a start.
// Searches do not return them. They are kept because the hub may have been restored from an old
// backup, or the database may belong to another hub.
const absentFor = 24 * time.Hour

// dropAbsent hides stored clusters that are not on the hub, and deletes them if they still are
// not after absentFor. Without a hub it does nothing.
func (m *Mirror) dropAbsent(ctx context.Context) {
	if m.hubKnown == nil || !toolscache.WaitForCacheSync(ctx.Done(), m.hubKnown) {
		return
	}
	var stored []string
	if !repeat(ctx, func() (err error) {
		stored, err = m.store.Clusters(ctx)
		return err
	}) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range stored {
		if m.onHub[name] || m.cluster(name) != nil {
			continue
		}
		m.store.HideCluster(name)
		m.log.Info("Cluster is stored, and the hub does not have it: no search has its rows, and they are deleted unless it joins", "cluster", name, "in", absentFor)
		m.run(func(ctx context.Context) {
			select {
			case <-m.absent():
				m.dropStillAbsent(ctx, name)
			case <-ctx.Done():
			}
		})
	}
}

// dropStillAbsent deletes a cluster unless it has joined.
func (m *Mirror) dropStillAbsent(ctx context.Context, name string) {
	m.mu.Lock()
	joined := m.onHub[name] || m.cluster(name) != nil
	if !joined {
		m.forget(name)
	}
	m.mu.Unlock()
	if !joined {
		m.dropUntilDone(ctx, name)
	}
}

// dropUntilDone deletes the rows of a cluster until that succeeds or a cluster of that name
// joins. In that case the store deletes the old rows before it stores new ones.
func (m *Mirror) dropUntilDone(ctx context.Context, name string) {
	repeat(ctx, func() error {
		done, ok := m.reserve(name)
		if !ok {
			return nil
		}
		defer done()
		return m.store.DropCluster(ctx, name)
	})
}

// setStrays stores the types with stored rows that the store has no record of, by cluster. The
// caller holds m.mu.
func (m *Mirror) setStrays(strays []store.Stray) {
	m.strays = map[string][]schema.GroupResource{}
	for _, s := range strays {
		m.strays[s.Cluster] = append(m.strays[s.Cluster], s.Resource)
	}
}

// takeStrays returns the strays of a cluster, and removes them from m.
func (m *Mirror) takeStrays(name string) []schema.GroupResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	strays := m.strays[name]
	delete(m.strays, name)
	return strays
}

// dropStrays deletes strays, once it is certain that they are not to be mirrored.
func (c *cluster) dropStrays(ctx context.Context) {
	c.strays = append(c.strays, c.mirror.takeStrays(c.name)...)
	if len(c.strays) == 0 {
		return
	}
	c.mu.Lock()
	_, complete := c.source.serves()
	var drop []schema.GroupResource
	c.strays = slices.DeleteFunc(c.strays, func(gr schema.GroupResource) bool {
		if c.tables[gr] != nil {
			return true // it is mirrored, or deleted like other types
		}
		if !c.planned || c.decided.unsure || !complete(gr.Group) {
			return false
		}
		drop = append(drop, gr)
		return true
	})
	c.mu.Unlock()
	for _, gr := range drop {
		c.drops.try(ctx, c, gr)
	}
}

// readStored reads the types and the strays that the store has.
func (m *Mirror) readStored(ctx context.Context) (stored []store.Type, strays []store.Stray, err error) {
	stored, err = m.store.Types(ctx)
	if err == nil {
		strays, err = m.store.Strays(ctx)
	}
	return stored, strays, err
}
