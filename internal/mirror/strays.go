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

// Rows that should have been deleted before the process ended are found at the next start. Types
// that the store has a record of are compared with the types that are to be mirrored, like types
// that this process mirrored. Types with stored rows but without a record are called strays. Stored
// clusters are compared with the Clusters of the hub.

// followClusters keeps m.onHub, the names of the Clusters on the hub, up to date. It must be called
// before Start.
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

// absentFor is how long after a start the rows of a stored cluster are kept if the hub has no
// Cluster with its name. Searches do not return such rows. They are kept because the hub may have
// been restored from an old backup, or the database may belong to another hub.
const absentFor = 24 * time.Hour

// dropAbsent hides the rows of stored clusters that are not on the hub from searches. It schedules
// their deletion after absentFor, for those that are still not on the hub then. First it waits
// until the clusters of the hub and of the store are known; it does nothing if ctx ends before
// that. If Follow was not called, it does nothing.
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

// dropStillAbsent deletes the rows of a cluster, unless the hub has a Cluster with that name by
// now. It retries until that succeeds or ctx ends.
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

// dropUntilDone tries to delete the rows of a cluster until that succeeds, a cluster with that name
// is mirrored, or ctx ends. For a cluster that is mirrored, the store deletes the old rows itself
// before it stores new ones.
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

// setStrays replaces m.strays: the types with stored rows but without a record in the store, by
// cluster. The caller holds m.mu.
func (m *Mirror) setStrays(strays []store.Stray) {
	m.strays = map[string][]schema.GroupResource{}
	for _, s := range strays {
		m.strays[s.Cluster] = append(m.strays[s.Cluster], s.Resource)
	}
}

// takeStrays returns the strays of a cluster (types with stored rows and without a record in the
// store), and removes them from m. It takes m.mu.
func (m *Mirror) takeStrays(name string) []schema.GroupResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	strays := m.strays[name]
	delete(m.strays, name)
	return strays
}

// dropStrays deletes the rows of the cluster's strays: types with stored rows but without a record
// in the store. A stray stays in c.strays until it is certain that it is not to be mirrored. Only
// run calls dropStrays.
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
			return true // the type has a table, and is mirrored or deleted like others
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

// readStored returns the types that the store has a record of, and the strays: those with rows but
// no record. If err is not nil, the results are incomplete.
func (m *Mirror) readStored(ctx context.Context) (stored []store.Type, strays []store.Stray, err error) {
	stored, err = m.store.Types(ctx)
	if err == nil {
		strays, err = m.store.Strays(ctx)
	}
	return stored, strays, err
}
