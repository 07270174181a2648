package search

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/store"
)

// grouping is a property by which objects are counted, as named in the parameter group: cluster,
// namespace, kind, phase, node, image or label:KEY.
type grouping struct {
	name string
	key  string // the key of the query language for the property; query.Label for labels
	by   store.By
}

// mostGroupings is the maximum number of groupings in a request.
const mostGroupings = 4

// groupings has the possible groupings by name, except those by a label.
var groupings = map[string]grouping{
	query.Cluster:   {key: query.Cluster, by: store.By{Column: "cluster"}},
	query.Namespace: {key: query.Namespace, by: store.By{Column: "namespace"}},
	query.Kind:      {key: query.Kind},
	query.Phase:     {key: query.Phase, by: store.By{Field: "status.phase"}},
	query.Node:      {key: query.Node, by: store.By{Field: "spec.nodeName"}},
	query.Image:     {key: query.Image, by: store.By{Field: store.FieldImages}},
}

// CheckGroup returns an error, as a text for users, if a text is not a valid value of the parameter
// group. A valid value names the properties by which objects are counted, such as cluster,kind.
// Commands check the parameter with CheckGroup before they ask the hub.
func CheckGroup(text string) error {
	_, err := parseGroupings(text)
	return err
}

// parseGroupings parses the value of the parameter group: names of groupings, separated by commas.
// A name that is unknown or repeated is an error, and so are more than mostGroupings.
func parseGroupings(text string) (out []grouping, err error) {
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "ns" {
			name = query.Namespace
		}
		g, ok := groupings[name]
		if label, of := strings.CutPrefix(name, "label:"); of {
			if wrong := validation.IsQualifiedName(label); len(wrong) > 0 {
				return nil, fmt.Errorf("%s is no key of a label: %s", label, wrong[0])
			}
			g, ok = grouping{key: query.Label, by: store.By{Label: label}}, true
		}
		if !ok {
			return nil, fmt.Errorf("%q is not counted by: there are cluster, namespace, kind, phase, node, image and label:KEY", name)
		}
		g.name = name
		if slices.Contains(out, g) {
			return nil, fmt.Errorf("%s is named twice", name)
		}
		if out = append(out, g); len(out) > mostGroupings {
			return nil, fmt.Errorf("more than %d are named, and it is counted by at most %d", mostGroupings, mostGroupings)
		}
	}
	return out, nil
}

// counts are the numbers of objects that a request counts: the total, and one for each group. A
// group has the objects with the same values of all groupings.
type counts struct {
	total  int64
	groups map[string]int64 // by the values of a group, as a JSON list

	candidates int // objects that were read to be filtered
}

// bounded returns an error (400) if there are more than mostGroups groups in c.
func (c *counts) bounded() error {
	if len(c.groups) > mostGroups {
		return apierrors.NewBadRequest(fmt.Sprintf("parameter group: there are more than %d groups; narrow the search, or count by less", mostGroups))
	}
	return nil
}

// add adds n objects to the group with the given values, one for each grouping. The total stays.
func (c *counts) add(values []string, n int64) {
	key, _ := json.Marshal(values) //nolint:errchkjson // strings
	c.groups[string(key)] += n
}

// serveCounts answers a list of one type that has the parameter group: with the numbers of objects
// in place of the objects.
func (s *Search) serveCounts(w http.ResponseWriter, r *http.Request, at location, p params, as form) error {
	ctx, cancel := context.WithTimeout(r.Context(), searchTimeout)
	defer cancel()
	v, err := s.look(ctx, at, p, "list")
	if err != nil {
		return err
	}
	c := counts{groups: map[string]int64{}}
	if err := s.countView(ctx, at, v, p.group, &c); err != nil {
		return err
	}
	if err := c.bounded(); err != nil {
		return err
	}
	tell(w, s.warnings(at, v.kind, v.seen))
	return answerCounts(w, as, p.group, c)
}

// countView adds to c the numbers of the objects that the view v shows, in groups by the groupings
// in by. It returns an unlikeError if the objects of the type do not have such a property.
func (s *Search) countView(ctx context.Context, at location, v view, by []grouping, c *counts) error {
	for _, g := range by {
		if err := s.about(ctx, at, v.kind, g.key); err != nil {
			return ofGroup(err)
		}
		if g.by.Field != "" && !store.FieldOf(at.Group, at.Resource, g.by.Field) {
			return ofGroup(unlike("%s are not counted by %s", at.GroupResource(), g.name))
		}
	}
	if v.query.Clusters != nil && len(v.query.Clusters) == 0 {
		return nil // no cluster is left; for the store, an empty list would mean all
	}
	if v.keep != nil {
		return s.countCandidates(ctx, v, by, c)
	}
	var columns []store.By
	several := false
	for _, g := range by {
		if g.key != query.Kind {
			columns = append(columns, g.by)
		}
		several = several || g.key == query.Image
	}
	if len(columns) == 0 || several {
		n, err := s.count(ctx, v.query)
		if err != nil {
			return err
		}
		if c.total += n; len(columns) == 0 && n > 0 {
			c.add([]string{v.kind.GroupVersionKind.Kind}, n)
		}
		if len(columns) == 0 {
			return nil
		}
	}
	within, cancel := context.WithTimeout(ctx, s.longest)
	defer cancel()
	groups, err := s.Store.Groups(within, v.query, columns)
	if err := s.answered(ctx, within, v.query, err); err != nil {
		return err
	}
	for _, g := range groups {
		values := g.Values
		if i := slices.IndexFunc(by, func(g grouping) bool { return g.key == query.Kind }); i >= 0 {
			values = slices.Insert(slices.Clone(values), i, v.kind.GroupVersionKind.Kind)
		}
		c.add(values, g.Objects)
		if !several {
			c.total += g.Objects
		}
	}
	return nil
}

// countCandidates does the work of countView if rows must be compared with q or filter: it reads
// the objects. An object with several values, such as images, counts in several groups. If all
// types of the request together would need more than mostCandidates objects, it returns an error
// (400).
func (s *Search) countCandidates(ctx context.Context, v view, by []grouping, c *counts) error {
	if c.candidates >= mostCandidates {
		return tooMany(v.query.Resource)
	}
	pages := pager{search: s, query: v.query, keep: v.keep, candidates: c.candidates}
	page, err := pages.next(ctx)
	if err != nil {
		return err
	}
	c.candidates = pages.candidates
	for i := range page.Rows {
		row := &page.Rows[i]
		c.total++
		all := [][]string{{}}
		for _, g := range by {
			var values []string
			switch g.key {
			case query.Cluster:
				values = []string{row.Cluster}
			case query.Namespace:
				values = []string{row.Namespace}
			case query.Kind:
				values = []string{v.kind.GroupVersionKind.Kind}
			case query.Label:
				values = []string{row.Labels[g.by.Label]}
			default:
				values = query.Object{Body: row.Body}.Values(g.key)
			}
			var next [][]string
			for _, before := range all {
				for _, value := range values {
					next = append(next, append(slices.Clone(before), value))
				}
			}
			all = next
		}
		for _, values := range all {
			c.add(values, 1)
		}
		if err := c.bounded(); err != nil {
			return err
		}
	}
	return nil
}

// answerCounts writes c as a SearchCounts or as a table, with the largest groups first. by are the
// groupings, whose names head the columns.
func answerCounts(w http.ResponseWriter, as form, by []grouping, c counts) error {
	out := fleetv1alpha1.SearchCounts{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "SearchCounts"},
		By:       []string{}, Total: c.total, Groups: []fleetv1alpha1.SearchGroup{},
	}
	for _, g := range by {
		out.By = append(out.By, g.name)
	}
	for key, n := range c.groups {
		g := fleetv1alpha1.SearchGroup{Objects: n}
		if err := json.Unmarshal([]byte(key), &g.Values); err != nil {
			return err
		}
		out.Groups = append(out.Groups, g)
	}
	slices.SortFunc(out.Groups, func(a, b fleetv1alpha1.SearchGroup) int {
		return cmp.Or(cmp.Compare(b.Objects, a.Objects), slices.Compare(a.Values, b.Values))
	})
	if as.as != asTable {
		return as.wire.answer(w, out)
	}
	table := metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: as.apiVersion(), Kind: asTable}, Rows: []metav1.TableRow{}}
	for _, name := range out.By {
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: strings.ToUpper(name[:1]) + name[1:], Type: "string"})
	}
	table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: "Objects", Type: "integer"})
	for _, g := range out.Groups {
		row := metav1.TableRow{}
		for _, value := range g.Values {
			row.Cells = append(row.Cells, neutralCell(or(value, "<none>")))
		}
		row.Cells = append(row.Cells, g.Objects)
		table.Rows = append(table.Rows, row)
	}
	return as.wire.answer(w, table)
}

// isUnlike reports whether an error means that a type does not suit the request: an unlikeError, or
// the error of notFound, which says that the type does not exist in the requested place. It is
// false for the error that a cluster does not exist.
func isUnlike(err error) bool {
	if _, ok := errors.AsType[unlikeError](err); ok {
		return true
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsNotFound(err) && status.ErrStatus.Details == nil
}
