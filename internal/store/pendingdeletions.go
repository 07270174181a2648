package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pendingDeletions are the clusters, and the types in clusters, whose rows were requested to be
// deleted and still exist. Queries leave these rows out. DropCluster and DropType delete the rows
// when they are called again, and a write to the cluster or type deletes them first. They are only
// in memory. The zero value has none. It may be used from several goroutines.
type pendingDeletions struct {
	mu  sync.RWMutex
	set map[deletionKey]bool
}

// deletionKey names what is deleted: a type in a cluster or, without a resource, the whole cluster.
type deletionKey struct {
	cluster string
	groupResource
}

func (p *pendingDeletions) add(k deletionKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		p.set = map[deletionKey]bool{}
	}
	p.set[k] = true
}

// remove removes the pending deletion of a type in a cluster. For a key without a resource, it
// removes that of the cluster and those of all its types.
func (p *pendingDeletions) remove(k deletionKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for one := range p.set {
		if one.cluster == k.cluster && (k.resource == "" || one == k) {
			delete(p.set, one)
		}
	}
}

// has returns whether the deletion of the whole cluster is pending, and whether that of the type in
// the cluster is.
func (p *pendingDeletions) has(cluster string, gr groupResource) (whole, typed bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.set[deletionKey{cluster: cluster}], p.set[deletionKey{cluster, gr}]
}

// leaveOut moves clusters from known to dropped if their deletion, or that of the type in them, is
// pending. known must be sorted. It returns what is left of known, and the greater list dropped,
// both sorted. Without pending deletions it returns its arguments.
func (p *pendingDeletions) leaveOut(known, dropped []string, gr groupResource) (left, out []string) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if len(p.set) == 0 {
		return known, dropped
	}
	for _, cluster := range known {
		if p.set[deletionKey{cluster: cluster}] || p.set[deletionKey{cluster, gr}] {
			dropped = append(dropped, cluster)
		} else {
			left = append(left, cluster)
		}
	}
	slices.Sort(dropped)
	return left, dropped
}

// shown returns the name of a cluster for a query. It returns "", for which no rows exist, while
// the cluster or the type in it is being dropped. kind is the number of the type.
func (d *database) shown(cluster string, kind int64) string {
	if whole, typed := d.pendingDeletions.has(cluster, d.kindOf(kind)); whole || typed {
		return ""
	}
	return d.visible(cluster)
}

// completeDeletions completes the pending deletions of the clusters and types that the changes
// write to. Deletions of other clusters and types stay pending. The caller holds d.mu.
func (d *database) completeDeletions(ctx context.Context, changes []Change) error {
	for i := range changes {
		if err := d.completeDeletion(ctx, changes[i].Cluster, groupResource{changes[i].Group, changes[i].Resource}); err != nil {
			return err
		}
	}
	return nil
}

// completeDeletion deletes the rows of a type in a cluster if that deletion is pending. If the
// deletion of the whole cluster is pending, it deletes the rows of the cluster. A running salvage
// then stores no more of their history. If neither is pending, it does nothing. The caller holds
// d.mu.
func (d *database) completeDeletion(ctx context.Context, cluster string, gr groupResource) error {
	whole, typed := d.pendingDeletions.has(cluster, gr)
	if !whole && !typed {
		return nil
	}
	of := gr
	if whole {
		of = groupResource{}
	}
	if err := d.stopSalvage(ctx, cluster, of, d.transact); err != nil {
		return fmt.Errorf("delete what was to be dropped of cluster %s: %w", cluster, err)
	}
	if !whole {
		if err := d.deleteType(ctx, cluster, gr, d.transact); err != nil {
			return fmt.Errorf("delete what was to be dropped of cluster %s: %w", cluster, err)
		}
		if kind := d.kind(gr); kind != 0 {
			d.forgetIncomplete(cluster, kind)
		}
		return nil
	}
	d.known.Lock()
	_, known := d.clusters[cluster]
	if known {
		d.clusters[cluster] = true
	}
	d.known.Unlock()
	if known {
		err := d.transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
			_, err := tx.ExecContext(ctx, say(d.dialect, "UPDATE cluster SET dropped = 1 WHERE name = ?"), cluster)
			return err
		})
		if err == nil {
			err = d.sweepOne(ctx, cluster, d.transact)
		}
		if err != nil {
			return fmt.Errorf("delete cluster %s, which was to be dropped: %w", cluster, err)
		}
		d.forgetIncomplete(cluster, 0)
	}
	d.pendingDeletions.remove(deletionKey{cluster: cluster})
	return nil
}

// deleteType deletes the rows of a type in a cluster with their history, what SaveType recorded,
// and the checkpoint. Then it removes the pending deletion. transact is d.transact if the caller
// holds d.mu, else d.locked.
func (d *database) deleteType(ctx context.Context, cluster string, gr groupResource, transact transaction) error {
	if kind := d.kind(gr); kind != 0 {
		exec := func(text string) error {
			return transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
				_, err := tx.ExecContext(ctx, say(d.dialect, text), cluster, kind)
				return err
			})
		}
		// An interrupted deletion must not leave rows with a checkpoint.
		err := exec("UPDATE served SET checkpoint = NULL WHERE cluster = ? AND type = ?")
		if err == nil {
			err = d.deleteRows(ctx, cluster, kind, transact)
		}
		if err == nil {
			err = exec("DELETE FROM served WHERE cluster = ? AND type = ?")
		}
		if err != nil {
			return err
		}
	}
	d.pendingDeletions.remove(deletionKey{cluster, gr})
	return nil
}

// addPendingDeletion makes queries leave out the rows of a type in a cluster. If gr is empty, they
// leave out all rows of the cluster. It lasts until the rows are deleted.
func (s *Store) addPendingDeletion(cluster string, gr schema.GroupResource) {
	s.pendingDeletions.add(deletionKey{cluster, groupResource{gr.Group, gr.Resource}})
}
