package store

import (
	"context"
	"database/sql"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Stray is a type of a cluster that has stored objects, but was not recorded with SaveType. Types
// does not return it.
type Stray struct {
	Cluster  string
	Resource schema.GroupResource
}

// Strays returns the types of clusters that have stored objects, but were not recorded with
// SaveType. They are sorted by cluster, group and resource. Clusters and types with a pending
// deletion are left out.
func (s *Store) Strays(ctx context.Context) (out []Stray, err error) {
	err = s.do(ctx, func(d *database) error {
		out, err = d.strays(ctx)
		return err
	})
	return out, err
}

// Clusters returns the names of the clusters to which objects or types were written, sorted.
// Clusters with a pending deletion are left out.
func (s *Store) Clusters(ctx context.Context) (names []string, err error) {
	err = s.do(ctx, func(d *database) error {
		known, _ := d.names()
		for _, name := range known {
			if whole, _ := d.pendingDeletions.has(name, groupResource{}); !whole {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

func (d *database) strays(ctx context.Context) (out []Stray, err error) {
	if err := each(ctx, d.read, `SELECT DISTINCT y.cluster, t.grp, t.resource
		FROM tally y JOIN type t ON t.id = y.type JOIN cluster c ON c.name = y.cluster
		WHERE y.objects > 0 AND c.dropped = 0 AND NOT EXISTS (SELECT 1 FROM served s WHERE s.cluster = y.cluster AND s.type = y.type)
		ORDER BY y.cluster, t.grp, t.resource`, func(rows *sql.Rows) error {
		var one Stray
		err := rows.Scan(&one.Cluster, &one.Resource.Group, &one.Resource.Resource)
		if whole, typed := d.pendingDeletions.has(one.Cluster, groupResource{one.Resource.Group, one.Resource.Resource}); err == nil && !whole && !typed {
			out = append(out, one)
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("list types that are stored and were not saved: %w", err)
	}
	return out, nil
}
