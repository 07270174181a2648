package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// FieldRequirement compares one field of an object with a value, as text. A field that an
// object does not have equals the empty string, as in Kubernetes.
type FieldRequirement struct {
	Path     string             // spec.nodeName, metadata.annotations['example.com/team']
	Operator selection.Operator // =, == or !=
	Value    string
}

// Query selects objects of one type. An empty list of names selects every one.
type Query struct {
	Group, Resource             string
	Version                     string // of the stored objects; "": any
	Clusters, Namespaces, Names []string
	// Scopes are the namespaces of each cluster outside of which nothing is selected; of a
	// cluster that is not among them, nothing is. nil: everything.
	Scopes   map[string][]string
	OwnerUID types.UID
	Labels   labels.Selector // nil: everything
	Fields   []FieldRequirement
	Limit    int    // the most rows of a page; 0: all
	Continue string // Page.Continue of the page before
}

// Page is a part of a query's answer.
type Page struct {
	Rows     []Row
	Continue string // "" on the last page
}

func (d *database) list(ctx context.Context, q Query) (Page, error) {
	var page Page
	cond, err := compile(q)
	if err != nil {
		return page, err
	}
	after, err := parseContinue(q)
	if err != nil {
		return page, err
	}
	if cond.nothing {
		return page, nil
	}
	err = d.each(ctx, q, after.Cluster, func(tx *sql.Tx, t target) (bool, error) {
		limit := -1
		if q.Limit > 0 {
			limit = q.Limit - len(page.Rows) + 1 // one more says whether there is a next page
		}
		from := position{}
		if t.cluster == after.Cluster {
			from = after
		}
		query, args := cond.list(t, from, limit)
		if err := scan(ctx, tx, q, t, query, args, &page.Rows); err != nil {
			return false, err
		}
		return q.Limit <= 0 || len(page.Rows) <= q.Limit, nil
	})
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", q.Resource, err)
	}
	if q.Limit > 0 && len(page.Rows) > q.Limit {
		page.Rows = page.Rows[:q.Limit]
		last := page.Rows[q.Limit-1]
		page.Continue = position{Cluster: last.Cluster, Namespace: last.Namespace, Name: last.Name}.token(q)
	}
	return page, nil
}

func (d *database) count(ctx context.Context, q Query) (int64, error) {
	cond, err := compile(q)
	if err != nil || cond.nothing {
		return 0, err
	}
	var total int64
	err = d.each(ctx, q, "", func(tx *sql.Tx, t target) (bool, error) {
		query, args := cond.count(t)
		var n int64
		err := tx.QueryRowContext(ctx, query, args...).Scan(&n)
		total += n
		return true, err
	})
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", q.Resource, err)
	}
	return total, nil
}

// target is one type of one cluster: a range of the object's key.
type target struct {
	cluster         string
	clusterID, kind int64
	namespaces      []string // outside of which nothing is selected; nil: everything
}

// each calls f with the query's clusters from a name on, in their order, on one snapshot,
// until f returns false. Going cluster by cluster keeps every statement a walk along an
// index, whatever the query selects.
func (d *database) each(ctx context.Context, q Query, from string, f func(*sql.Tx, target) (bool, error)) (err error) {
	tx, err := d.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rollback(tx)) }()
	var kind int64
	switch err := tx.QueryRowContext(ctx, "SELECT id FROM type WHERE grp = ? AND resource = ?", q.Group, q.Resource).Scan(&kind); {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	targets, err := clusters(ctx, tx, q.Clusters, from)
	if err != nil {
		return err
	}
	for _, t := range targets {
		t.kind = kind
		if q.Scopes != nil {
			if t.namespaces = q.Scopes[t.cluster]; len(t.namespaces) == 0 {
				continue
			}
		}
		if more, err := f(tx, t); err != nil || !more {
			return err
		}
	}
	return nil
}

func clusters(ctx context.Context, tx *sql.Tx, names []string, from string) ([]target, error) {
	rows, err := tx.QueryContext(ctx, "SELECT id, name FROM cluster WHERE name >= ? ORDER BY name", from)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	var out []target
	for rows.Next() {
		var t target
		if err := rows.Scan(&t.clusterID, &t.cluster); err != nil {
			return nil, err
		}
		if len(names) == 0 || slices.Contains(names, t.cluster) {
			out = append(out, t)
		}
	}
	return out, rows.Err()
}

func scan(ctx context.Context, tx *sql.Tx, q Query, t target, query string, args []any, out *[]Row) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	for rows.Next() {
		r := Row{Cluster: t.cluster, Group: q.Group, Resource: q.Resource}
		var created int64
		var labels string
		if err := rows.Scan(&r.Namespace, &r.Name, &r.Version, &r.Kind, &r.UID, &r.OwnerUID, &created, &r.ResourceVersion, &labels, &r.Body); err != nil {
			return err
		}
		if created != 0 {
			r.Created = time.Unix(created, 0).UTC()
		}
		if labels != "{}" {
			if err := json.Unmarshal([]byte(labels), &r.Labels); err != nil {
				return fmt.Errorf("%w: read labels of %s/%s in cluster %s: %w", errDamaged, r.Namespace, r.Name, t.cluster, err)
			}
		}
		*out = append(*out, r)
	}
	return rows.Err()
}
