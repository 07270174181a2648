package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// owed has the pending deletions of clusters, and of types in clusters. Queries return none of
// their rows. DropCluster and DropType delete the rows when they are called again, and a write to
// the cluster or type deletes them first.
type owed struct {
	mu  sync.RWMutex
	set map[owedKey]bool
}

// owedKey is a type of a cluster; without a resource, the whole cluster.
type owedKey struct {
	cluster string
	groupResource
}

func (o *owed) add(k owedKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.set == nil {
		o.set = map[owedKey]bool{}
	}
	o.set[k] = true
}

// remove removes a type of a cluster or, without a resource, the cluster with all its types.
func (o *owed) remove(k owedKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for one := range o.set {
		if one.cluster == k.cluster && (k.resource == "" || one == k) {
			delete(o.set, one)
		}
	}
}

// has reports whether there is a pending deletion of the whole cluster, and of a type in it.
func (o *owed) has(cluster string, gr groupResource) (whole, typed bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.set[owedKey{cluster: cluster}], o.set[owedKey{cluster, gr}]
}

// leaveOut moves the clusters with a pending deletion of the type from known, which is sorted, to
// dropped.
func (o *owed) leaveOut(known, dropped []string, gr groupResource) (left, out []string) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if len(o.set) == 0 {
		return known, dropped
	}
	for _, cluster := range known {
		if o.set[owedKey{cluster: cluster}] || o.set[owedKey{cluster, gr}] {
			dropped = append(dropped, cluster)
		} else {
			left = append(left, cluster)
		}
	}
	slices.Sort(dropped)
	return left, dropped
}

// shown returns the name of a cluster; "" while the cluster, or the type in it, is being dropped.
func (d *database) shown(cluster string, kind int64) string {
	if whole, typed := d.owed.has(cluster, d.kindOf(kind)); whole || typed {
		return ""
	}
	return d.visible(cluster)
}

// deleteOwed completes the pending deletions of the clusters and types that changes write to. The
// caller holds d.mu.
func (d *database) deleteOwed(ctx context.Context, changes []Change) error {
	for i := range changes {
		if err := d.deleteOwedOne(ctx, changes[i].Cluster, groupResource{changes[i].Group, changes[i].Resource}); err != nil {
			return err
		}
	}
	return nil
}

// deleteOwedOne is deleteOwed for one type of a cluster.
func (d *database) deleteOwedOne(ctx context.Context, cluster string, gr groupResource) error {
	whole, typed := d.owed.has(cluster, gr)
	if !whole && !typed {
		return nil
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
	d.owed.remove(owedKey{cluster: cluster})
	return nil
}

// deleteType deletes the rows of a type in a cluster, and its record.
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
	d.owed.remove(owedKey{cluster, gr})
	return nil
}

// owe adds a pending deletion of a type in a cluster or, without a resource, of the whole
// cluster. Until it is completed, queries do not return the rows.
func (s *Store) owe(cluster string, gr schema.GroupResource) {
	s.owed.add(owedKey{cluster, groupResource{gr.Group, gr.Resource}})
}
