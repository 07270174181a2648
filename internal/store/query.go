package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// FieldRequirement is a requirement of a Query: it compares the text of one field of an object with
// values. A missing or null field does not exist and equals the empty string, as in Kubernetes. A
// field label that API servers compute for the type has the computed value (see Computed). If the
// path leads through a list, one matching element suffices. With != and notin, no element may
// match.
type FieldRequirement struct {
	// Path of the field, such as spec.nodeName, metadata.annotations['example.com/team'] or
	// spec.containers[].image. It may also be FieldImages.
	Path     string
	Operator selection.Operator // =, ==, !=, in, notin, exists or !
	Value    string
	Values   []string // for in and notin, instead of Value
}

// Query selects objects of one type: by cluster, namespace, name, owner, creation time, labels,
// fields and words. Empty lists select everything. An unknown cluster has no objects. Order, Limit,
// Offset and Continue define the page. With At, the query selects past states.
type Query struct {
	Group, Resource             string
	Version                     string   // of the stored objects; "": any
	Interchangeable             []string // with Version: other versions to select as well
	Clusters, Namespaces, Names []string
	NamePrefix                  string   // prefix of names
	NameContains                []string // texts that names contain, all of them
	// Scopes are the only namespaces to select from, by cluster. Clusters without an entry are
	// excluded. A nil map excludes nothing.
	Scopes   map[string][]string
	OwnerUID types.UID
	// OwnerName and OwnerResource name an owner instead of its UID. OwnerSteps is the number of
	// owners between this owner and the objects, at most MostOwnerSteps. With OwnerName or
	// OwnerSteps, Clusters must have one cluster, and At must be zero.
	OwnerName     string
	OwnerResource schema.GroupResource
	OwnerSteps    int
	Since, Before time.Time       // creation time: Since or later, and before Before; zero: no bound
	Labels        labels.Selector // nil: everything
	Fields        []FieldRequirement
	Order         Order
	// At is the time whose state is selected, as far as there is a history. Zero: now.
	At       time.Time
	Limit    int    // maximum number of rows of a page; 0: all
	Offset   int    // number of rows to skip, at most MostOffset; not with Continue or At
	Continue string // Page.Continue of the previous page

	Slim // additional requirements
}

// Page is one page of the result of List.
type Page struct {
	Rows []Row
	// Version is the version of a state whose changes are all in the rows. The rows may also contain
	// later changes.
	Version  Version
	Continue string // Query.Continue of the next page; "": this is the last page

	query  Query
	places []position // of the rows
}

// After returns the continue token with which the next page begins after Rows[i]. It is "" if no
// rows follow. i must be an index of Rows. A caller uses it if it returns only a part of the page.
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
	p, err := d.plan(ctx, d.read, q, after, false)
	if err != nil || p == nil {
		return page, err
	}
	if rows, ok, err := d.far(ctx, q, p); ok || err != nil {
		return pageOf(rows, q), err
	}
	if q.Limit > 0 {
		p.limit = q.Limit + 1 // one more shows whether there is a next page
	}
	p.offset = q.Offset
	rows, err := d.page(ctx, d.read, q, p)
	if err != nil {
		return Page{}, err
	}
	return pageOf(rows, q), nil
}

// pageOf makes a Page of rows, which are in the order of the query. If q has a limit and rows are
// more, it drops the rows after the limit, and sets Continue.
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

// page reads the rows of a plan. If the database returns rows that are not in the order of the
// query, the result is an error.
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

// count returns how many objects a query selects. It does the work of Store.Count.
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
	p, err := d.plan(ctx, d.read, q, position{}, true)
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

// plan compiles a query: for the rows after the position after, or with counting for their number.
// It returns a nil plan without an error if the query selects nothing. It uses db to look up owners
// and to probe indexes. A caller that holds a connection must pass that connection, because waiting
// for a second one may never end.
func (d *database) plan(ctx context.Context, db querier, q Query, after position, counting bool) (*plan, error) {
	return d.planned(ctx, db, q, after, counting, nil)
}

// planned does the work of plan. If lead is not nil, the plan reads the index of the declared field
// or label with the key of lead. It then selects only objects that have this field or label, with
// any value.
func (d *database) planned(ctx context.Context, db querier, q Query, after position, counting bool, lead *pair) (*plan, error) {
	p, err := compile(q)
	if err != nil || p == nil {
		return nil, err
	}
	if q.chained() {
		if p.owners, err = d.owners(ctx, db, q); err != nil || len(p.owners) == 0 {
			return nil, err
		}
	}
	if lead != nil {
		p.follow(lead)
	}
	known, dropped := d.names()
	known, dropped = d.pendingDeletions.leaveOut(known, dropped, groupResource{q.Group, q.Resource})
	if p.kind = d.kind(q.resource()); p.kind == 0 || !p.within(q, known, dropped, after) {
		return nil, nil
	}
	p.counting = counting
	if err := d.probe(ctx, db, p); err != nil || p.candidates != nil && len(p.candidates) == 0 {
		return nil, err
	}
	p.choose()
	return p, nil
}

// mostParameters is the maximum number of parameters in a statement. Every supported database
// accepts so many.
const mostParameters = 60_000

// fits returns an ErrSelector if the statement has more parameters than databases accept. It also
// does so for a parameter that is no valid text, at which PostgreSQL fails. Callers run the
// statement only if the result is nil.
func (s *statement) fits() error {
	if len(s.args) > mostParameters {
		return fmt.Errorf("%w: it has %d values, and at most %d can be answered", ErrSelector, len(s.args), mostParameters)
	}
	for _, arg := range s.args {
		texts, _ := arg.([]string)
		if text, ok := arg.(string); ok {
			texts = []string{text}
		}
		for _, text := range texts {
			if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
				return fmt.Errorf("%w: %q is no text: nothing has it", ErrSelector, text)
			}
		}
	}
	return nil
}

// scanRow reads one row of a page, with the original body. q gives the type. The error is an
// errDamaged if the labels or the body cannot be read.
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

// Unindexed returns descriptions, for users, of the requirements that are compared object by
// object, because they have no index. Invalid requirements are left out. It does not read the
// database, in which a requirement may have an index after all.
func (q Query) Unindexed() (out []string) {
	for _, text := range q.NameContains {
		if utf8.RuneCountInString(text) < 3 {
			out = append(out, fmt.Sprintf("names with %q in them, which has less than three characters", text))
		} else {
			out = append(out, fmt.Sprintf("names with %q in them, where they are many or the database has no index of trigrams", text))
		}
	}
	for _, f := range q.Fields {
		c, err := compileField(q.resource(), f)
		if err != nil {
			continue
		}
		switch c := c.(type) {
		case termIs:
			if c.not {
				out = append(out, "what field "+f.Path+" is not")
			}
		case fieldIs, labelIs:
			out = append(out, "field "+f.Path)
		}
	}
	if q.Labels != nil {
		requirements, _ := q.Labels.Requirements()
		for _, r := range requirements {
			if !equality(r) {
				out = append(out, "label "+r.String())
			}
		}
	}
	if len(q.Patterns) > 0 {
		out = append(out, "patterns of names or namespaces")
	}
	if len(q.Mentions) > 0 {
		out = append(out, "parts of fields")
	}
	for _, t := range q.Texts {
		if t.Not {
			out = append(out, "words that are not to be there")
		} else {
			out = append(out, "words that many objects have")
		}
	}
	if !q.CreatedFrom.IsZero() || !q.CreatedBefore.IsZero() {
		out = append(out, "ages")
	}
	if q.Order >= custom && !q.Order.reverse(ByKey) && !q.Order.reverse(ByName) {
		out = append(out, "that order")
	}
	return out
}
