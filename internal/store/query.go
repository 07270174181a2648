package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// FieldRequirement compares one field of an object with a value, as text. A field that an
// object does not have equals the empty string, as in Kubernetes.
type FieldRequirement struct {
	Path     string             // spec.nodeName, metadata.annotations['example.com/team'], FieldImages
	Operator selection.Operator // =, == or !=
	Value    string
}

// Order is that of the rows of an answer.
type Order int

// Orders of rows. Those of time are by when objects were created, to the second, and then by when the store heard of them.
const (
	ByKey  Order = iota // by cluster, namespace and name
	Newest              // created last
	Oldest              // created first
	ByName              // by name, cluster and namespace
)

// Query selects objects of one type. An empty list of names selects every one.
type Query struct {
	Group, Resource             string
	Version                     string // of the stored objects; "": any
	Clusters, Namespaces, Names []string
	NamePrefix                  string // what names begin with
	// Scopes are the namespaces of each cluster outside of which nothing is selected; of a
	// cluster that is not among them, nothing is. nil: everything.
	Scopes   map[string][]string
	OwnerUID types.UID
	Labels   labels.Selector // nil: everything
	Fields   []FieldRequirement
	Order    Order
	At       time.Time // the moment whose state is selected, as far back as there is a history; zero: now
	Limit    int       // the most rows of a page; 0: all
	Continue string    // Page.Continue of the page before

	Slim // more that must hold
}

// Page is a part of a query's answer.
type Page struct {
	Rows []Row
	// Version is one that the rows are at least of: what changed since may be in them or not.
	Version  Version
	Continue string // "" on the last page

	query  Query
	places []position // of the rows
}

// After is what continues after the row with an index, as Continue does after the last one; "": nothing comes after it.
func (p Page) After(i int) string {
	if i == len(p.Rows)-1 {
		return p.Continue
	}
	return p.places[i].token(p.query)
}

func (d *database) list(ctx context.Context, q Query) (Page, error) {
	var page Page
	after, err := parseContinue(q)
	if err != nil {
		return page, err
	}
	if !q.At.IsZero() {
		return d.listAt(ctx, q, after)
	}
	p, err := d.plan(q, after, false)
	if err != nil || p == nil {
		return page, err
	}
	if q.Limit > 0 {
		p.limit = q.Limit + 1 // one more says whether there is a next page
	}
	rows, err := d.page(ctx, d.read, q, p)
	if err != nil {
		return Page{}, err
	}
	return pageOf(rows, q), nil
}

// pageOf makes the rows those of one page.
func pageOf(rows []found, q Query) (page Page) {
	if q.Limit > 0 && len(rows) > q.Limit {
		rows = rows[:q.Limit]
		page.Continue = rows[q.Limit-1].at().token(q)
	}
	for i := range rows {
		page.Rows, page.places = append(page.Rows, rows[i].Row), append(page.places, rows[i].at())
	}
	page.query = q
	return page
}

// page reads the rows of a plan.
func (d *database) page(ctx context.Context, db querier, q Query, p *plan) (out []found, err error) {
	s := &statement{dialect: d.dialect}
	d.dialect.list(s, p)
	if err := s.fits(); err != nil {
		return nil, err
	}
	var last position
	if err := each(ctx, db, s.text.String(), func(rows *sql.Rows) error {
		r, err := d.scanRow(rows, q)
		now := r.at()
		if err == nil && len(out) > 0 && q.Order.compare(last, now) >= 0 {
			err = fmt.Errorf("%s/%s of cluster %s came after %s/%s of cluster %s", r.Namespace, r.Name, r.Cluster, last.Namespace, last.Name, last.Cluster)
		}
		out, last = append(out, r), now
		return err
	}, s.args...); err != nil {
		return nil, fmt.Errorf("list %s: %w", q.Resource, err)
	}
	return out, nil
}

func (d *database) count(ctx context.Context, q Query) (n int64, err error) {
	if !q.At.IsZero() {
		q.Limit = 0
		page, err := d.listAt(ctx, q, position{})
		return int64(len(page.Rows)), err
	}
	q.Order = ByKey
	if q.NamePrefix != "" {
		q.Order = ByName // the index of names leads
	}
	p, err := d.plan(q, position{}, true)
	if err != nil || p == nil {
		return 0, err
	}
	s := &statement{dialect: d.dialect}
	d.dialect.count(s, p)
	if err := s.fits(); err != nil {
		return 0, err
	}
	if err := d.read.QueryRowContext(ctx, s.text.String(), s.args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count %s: %w", q.Resource, err)
	}
	return n, nil
}

// plan translates a query for what comes after a position, or to be counted; nil: that is nothing.
func (d *database) plan(q Query, after position, counting bool) (*plan, error) {
	return d.planned(q, after, counting, nil)
}

// planned is plan, where a declared field or label leads that has any value if it is not nil.
func (d *database) planned(q Query, after position, counting bool, lead *pair) (*plan, error) {
	p, err := compile(q)
	if err != nil || p == nil {
		return nil, err
	}
	if lead != nil {
		p.follow(lead)
	}
	known, dropped := d.names()
	if p.kind = d.kind(q.resource()); p.kind == 0 || !p.within(q, known, dropped, after) {
		return nil, nil
	}
	p.counting = counting
	p.choose()
	return p, nil
}

// mostParameters is how many parameters every database takes.
const mostParameters = 60_000

func (s *statement) fits() error {
	if len(s.args) > mostParameters {
		return fmt.Errorf("%w: it has %d values, and at most %d can be answered", ErrSelector, len(s.args), mostParameters)
	}
	return nil
}

func (d *database) scanRow(rows *sql.Rows, q Query) (found, error) {
	r := found{Row: Row{Group: q.Group, Resource: q.Resource}}
	var created int64
	var labels string
	var packed []byte
	if err := rows.Scan(&r.id, &r.Cluster, &r.Namespace, &r.Name, &r.Version, &r.Kind, &r.UID, &r.OwnerUID, &created, &r.ResourceVersion, &labels, &r.Changed, &r.Body, &packed); err != nil {
		return r, err
	}
	if created != 0 {
		r.Created = time.Unix(created, 0).UTC()
	}
	if labels != "{}" {
		if err := json.Unmarshal([]byte(labels), &r.Labels); err != nil {
			return r, fmt.Errorf("%w: read labels of %s/%s in cluster %s: %w", errDamaged, r.Namespace, r.Name, r.Cluster, err)
		}
	}
	return r, d.unpack(&r.Row, packed)
}
