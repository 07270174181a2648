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

// What the store could not drop before the process ended is found again at the start: types that
// the store remembers are compared with the plan as those are that were mirrored in this process;
// types that it has objects of and does not remember are strays; clusters are compared with those
// of the hub.

// followClusters has the mirror know which clusters the hub has.
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

// absentFor is how long the rows of a cluster that the hub does not have are kept after a start. No
// search has them. They are kept because the hub may have been restored from too old a backup, or
// the database may be that of another hub.
const absentFor = 24 * time.Hour

// dropAbsent hides the clusters that are stored and that the hub does not have, and drops those that
// it does not have either after absentFor. It does nothing without a hub.
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

// dropStillAbsent drops a cluster unless it has joined.
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

// dropUntilDone drops a cluster that left, until the store has done it or a cluster joins under the
// name: the store deletes what is left before it stores anything of that one.
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

// setStrays notes the types that are stored of clusters, and that the store does not remember. m.mu
// must be held.
func (m *Mirror) setStrays(strays []store.Stray) {
	m.strays = map[string][]schema.GroupResource{}
	for _, s := range strays {
		m.strays[s.Cluster] = append(m.strays[s.Cluster], s.Resource)
	}
}

// takeStrays returns the strays of a cluster, and forgets them.
func (m *Mirror) takeStrays(name string) []schema.GroupResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	strays := m.strays[name]
	delete(m.strays, name)
	return strays
}

// dropStrays drops the types that are stored and not mirrored, as far as it is known that they are
// not to be.
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
			return true // it is mirrored, or dropped as any other type
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

// readStored asks the store which types it has.
func (m *Mirror) readStored(ctx context.Context) (stored []store.Type, strays []store.Stray, err error) {
	stored, err = m.store.Types(ctx)
	if err == nil {
		strays, err = m.store.Strays(ctx)
	}
	return stored, strays, err
}
