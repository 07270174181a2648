package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/words"
)

// plan is a compiled query for the dialects: the index that leads to the rows, and the conditions
// that they must satisfy. It contains values and no SQL, except for names of columns, which are
// constants.
type plan struct {
	kind   int64 // of the queried objects
	order  Order
	index  index // the leading one
	pair   *pair
	owners []string // UIDs, one of them the owner's; nil: any owner
	name   string   // the only name; "": any
	// contains are texts that names must contain. candidates are the ids of the objects that an
	// index found for a prefix, a label key, words or parts of names; nil: they are too many, or
	// there is no such index.
	contains     []string
	worded       bool  // names are among the indexed words of the type
	since, until int64 // bounds of the creation time, in seconds; 0: none
	candidates   []int64
	recent       bool       // few objects were created in that time
	texts        []FullText // conditions on words
	// prefix is the beginning of names. It is always a condition, too.
	prefix string
	// spans are the ranges of clusters and namespaces to read; nil: one range of all clusters. If
	// they lead, the leading index is read for each of them, in order.
	spans    []span
	narrow   bool // each span is one namespace of a cluster
	leads    bool
	sorted   bool // the rows must be sorted
	after    position
	where    []condition
	fields   bool // a condition reads the body
	limit    int  // 0: none
	offset   int
	shunned  []string // clusters that are being dropped
	counting bool     // only the number of rows is wanted
	spread   bool     // counting needs columns of objects
	valued   bool     // pair has only a key, for any value
	slim     bool     // only the ids of rows are read
}

// follow makes a key of a label or declared field lead, with any value. The previous leading
// index becomes a condition.
func (p *plan) follow(lead *pair) {
	switch {
	case p.owners != nil:
		p.where = append(p.where, columnIn{column: "o.owner", values: p.owners})
	case p.name != "":
		p.where = append(p.where, columnIn{column: "o.name", values: []string{p.name}})
	case p.pair != nil && (strings.HasPrefix(p.pair.key, ".") || strings.HasPrefix(p.pair.key, "!")):
		p.where = append(p.where, termIs{key: p.pair.key, values: []string{p.pair.value}})
	case p.pair != nil:
		p.where = append(p.where, labelIn{key: p.pair.key, values: []string{p.pair.value}})
	}
	p.owners, p.name, p.pair, p.valued = nil, "", lead, true
}

// index is the index that leads to the rows.
type index int

const (
	byKey      index = iota // cluster, namespace, name
	byPair                  // of a label or declared field, in the order of the key
	byPairTime              // of a declared field with few values, in the order of creation
	byOwner
	byName
	byTime
	byCandidates
	byTally // counters of objects by namespace
)

// span is the range of rows of a cluster, or of one of its namespaces, after a key.
type span struct {
	cluster, namespace  string
	afterSpace, afterOf string
}

// alias returns the alias of the leading table.
func (p *plan) alias() string {
	if p.index == byPair || p.index == byPairTime {
		return "l"
	}
	return "o"
}

// ordering returns the columns of the order, in the leading table.
func (p *plan) ordering() []OrderColumn {
	columns := p.order.columns()
	for i, c := range columns {
		a := p.alias()
		if c.Name == "id" && a == "l" {
			c.Name = "object"
		}
		columns[i].Name = a + "." + c.Name
	}
	return columns
}

// orderBy returns the ORDER BY clause for columns.
func (p *plan) orderBy(columns []OrderColumn) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		if parts[i] = c.Name; c.Down {
			parts[i] += " DESC"
		}
	}
	return " ORDER BY " + strings.Join(parts, ", ")
}

// beyond returns the operator that selects later values of the column.
func (c OrderColumn) beyond() string {
	if c.Down {
		return " < "
	}
	return " > "
}

// position returns the values of the order's columns after which the plan's rows begin; nil:
// none, or the spans have them.
func (p *plan) position() (values []any) {
	if p.after.Cluster == "" && p.after.ID == 0 || p.leads && p.order == ByKey {
		return nil
	}
	for _, c := range p.order.columns() {
		values = append(values, p.after.value(c.Name))
	}
	return values
}

// ordered reports whether an ORDER BY is needed. Rows of spans are in order without one.
func (p *plan) ordered() bool { return !p.counting && (!p.leads || p.sorted) }

// whole reports whether the rows of objects are needed besides the leading table.
func (p *plan) whole() bool { return !p.counting && !p.slim || len(p.where) > 0 || p.spread }

// condition is a condition on a row.
type condition interface{ write(s *statement) }

type (
	// columnIn holds if a column of the object has one of the values; with not, if it has none of
	// them.
	columnIn struct {
		column string
		values []string
		not    bool
	}
	// nameFrom holds if a name is in the range [from, until), for a prefix. until "" is no bound.
	nameFrom struct{ from, until string }
	// nameHas holds if a name contains the text.
	nameHas struct{ text string }
	// createdIn holds if the object was created at since or later, and before until, in seconds;
	// 0: no bound.
	createdIn struct{ since, until int64 }
	// termIs holds if a declared field has one of the values; with not, if it has none of them.
	termIs struct {
		key    string
		values []string
		not    bool
	}
	// labelIn holds if a label has one of the values; with not, if it has none of them or is absent.
	labelIn struct {
		key    string
		values []string
		not    bool
	}
	// labelSet holds if a label exists, with any value; with not, if it does not.
	labelSet struct {
		key string
		not bool
	}
	// labelCompare holds if a label's value is a number that is greater, or less, than the bound.
	labelCompare struct {
		key     string
		greater bool
		bound   int64
	}
	// sinceAtMost holds if the object's state began at a moment, in milliseconds, or earlier.
	sinceAtMost struct{ moment int64 }
	// fieldIs holds if a field of the body has one of the values as its text, or exists. For a
	// path through lists, one matching element suffices. With not, the result is negated.
	fieldIs struct {
		path   FieldPath
		values []string
		exists bool
		not    bool
	}
)

// MostTerms is the maximum number of requirements in a query. SQLite refuses expressions deeper
// than 1000.
const MostTerms = 100

// compile checks and translates a query. Requirements that it cannot translate are errors, never
// ignored. It returns nil for a query that selects nothing.
func compile(q Query) (*plan, error) {
	p, nothing := &plan{order: q.Order, limit: max(q.Limit, 0), prefix: q.NamePrefix, contains: slices.Clone(q.NameContains), texts: q.Texts}, false
	if err := q.check(); err != nil {
		return nil, err
	}
	if q.OwnerUID != "" {
		p.owners = []string{string(q.OwnerUID)}
	}
	owned := q.OwnerUID != "" || q.chained()
	p.since, p.until = seconds(q.Since), seconds(q.Before)
	if p.since != 0 || p.until != 0 {
		p.where = append(p.where, createdIn{p.since, p.until})
	}
	for _, text := range q.NameContains {
		p.where = append(p.where, nameHas{text})
	}
	p.named(q)
	terms := len(q.Fields) + len(q.NameContains)
	if q.Labels != nil {
		requirements, selectable := q.Labels.Requirements()
		terms += len(requirements)
		nothing = !selectable
		if err := p.selectLabels(requirements, owned); err != nil {
			return nil, err
		}
	}
	if terms > MostTerms {
		return nil, fmt.Errorf("%w: %d requirements on labels and fields, and at most %d can be answered; write several values of a label as KEY in (A,B)",
			ErrSelector, terms, MostTerms)
	}
	if q.Version != "" {
		p.where = append(p.where, columnIn{column: "o.version", values: append([]string{q.Version}, q.Interchangeable...)})
	}
	if err := p.selectFields(q, owned); err != nil {
		return nil, err
	}
	more, err := q.conditions()
	if err != nil {
		return nil, err
	}
	if terms += len(more); terms > MostTerms {
		return nil, fmt.Errorf("%w: %d requirements, and at most %d can be answered", ErrSelector, terms, MostTerms)
	}
	p.where = append(p.where, more...)
	if len(q.Names) == 1 && p.pair == nil && !owned && q.NamePrefix == "" {
		p.name = q.Names[0]
	} else if len(q.Names) > 0 {
		p.where = append(p.where, columnIn{column: "o.name", values: q.Names})
	}
	if nothing {
		return nil, nil
	}
	return p, nil
}

// named derives a prefix and texts from the globs for names, which can lead to the rows. The
// globs themselves are separate conditions.
func (p *plan) named(q Query) {
	p.worded = words.Of(q.Group, q.Resource, "-", nil, nil, nil, "", "").Name != ""
	for _, one := range q.Patterns {
		if one.Namespace || one.Not || len(one.Globs) != 1 {
			continue
		}
		g := one.Globs[0]
		if p.prefix == "" {
			p.prefix = g[0]
		}
		for _, piece := range g {
			if piece != "" {
				p.contains = append(p.contains, piece)
			}
		}
	}
}

// selectLabels adds the requirements on labels. The first one with a single value leads, unless
// the owner leads.
func (p *plan) selectLabels(requirements labels.Requirements, owned bool) error {
	for _, r := range requirements {
		// Such keys belong to declared fields in the index.
		if strings.HasPrefix(r.Key(), ".") || strings.HasPrefix(r.Key(), "!") {
			return fmt.Errorf("%w: label key %q", ErrSelector, r.Key())
		}
		if p.pair == nil && !owned && equality(r) {
			p.pair = &pair{r.Key(), r.ValuesUnsorted()[0]}
			continue
		}
		c, err := compileLabel(r)
		if err != nil {
			return err
		}
		p.where = append(p.where, c)
	}
	return nil
}

// selectFields adds the requirements on fields. A declared field may lead.
func (p *plan) selectFields(q Query, owned bool) error {
	for _, f := range q.Fields {
		c, err := compileField(q.resource(), f)
		if err != nil {
			return err
		}
		switch is := c.(type) {
		case termIs:
			if !is.not && len(is.values) == 1 && p.pair == nil && !owned {
				p.pair = &pair{is.key, is.values[0]}
				continue
			}
		case labelIs:
			p.fields = true
		case fieldIs:
			p.fields = true
			if image := is.image(q.resource()); image != nil && p.pair == nil && !owned {
				p.pair = image // the index finds objects that have the image anywhere; the body shows where
			}
			if f.asksForLeft(is) && p.pair == nil && !owned {
				p.pair = &leftPair
			}
		}
		p.where = append(p.where, c)
	}
	return nil
}

// resource returns the type of a query.
func (q Query) resource() groupResource { return groupResource{q.Group, q.Resource} }

// choose selects the leading index. There are no statistics: small sets are known from the query
// or from probe.
func (p *plan) choose() {
	few := p.spans != nil && len(p.spans) <= fewSpans
	timed := p.order == Newest || p.order == Oldest
	p.leads = p.spans != nil
	switch {
	case p.valued:
		p.index, p.leads, p.sorted = byPair, false, true
	case p.counting && p.pair == nil && p.owners == nil && p.name == "" && p.prefix == "" && len(p.where) == 0:
		p.index = byTally
	case p.owners != nil:
		p.index, p.leads, p.sorted = byOwner, false, true // owners have few objects
	case p.candidates != nil:
		p.index, p.leads, p.sorted = byCandidates, false, true
		if p.pair != nil {
			p.where = append(p.where, termIs{key: p.pair.key, values: []string{p.pair.value}})
		}
	case p.pair != nil && timed && p.pair.timed() && !few:
		p.index, p.leads = byPairTime, false
	case p.pair != nil:
		p.index, p.sorted = byPair, p.order != ByKey
	case p.name != "":
		p.index, p.sorted = byName, p.order != ByKey
	case p.recent && !timed:
		p.index, p.leads, p.sorted = byTime, false, true
	case p.order == ByKey || few:
		p.index, p.sorted = byKey, p.order != ByKey
	case timed:
		p.index, p.leads = byTime, false
	case p.order == ByName || p.order.reverse(ByName):
		p.index, p.leads = byName, false
	case p.order.reverse(ByKey):
		p.index, p.leads = byKey, false
	default:
		p.index, p.sorted = byKey, true // all selected objects are read
	}
	if p.prefix != "" {
		p.where = append(p.where, prefixed(p.prefix))
	}
}

// fewSpans is the maximum number of namespaces that are read completely and sorted. With more,
// the index of the page's order is read until the page is full.
const fewSpans = 1000

// prefixed returns the range of names with a prefix.
func prefixed(prefix string) nameFrom {
	runes := []rune(prefix)
	for i, last := range slices.Backward(runes) {
		if last == utf8.MaxRune {
			continue
		}
		next := last + 1
		if !utf8.ValidRune(next) { // surrogates
			next = 0xe000
		}
		return nameFrom{prefix, string(runes[:i]) + string(next)}
	}
	return nameFrom{from: prefix}
}

// equality reports whether a requirement is a single value of a label. Then the label's index
// leads to the objects in the order of the page.
func equality(r labels.Requirement) bool {
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return r.Values().Len() == 1
	default:
		return false
	}
}

func compileLabel(r labels.Requirement) (condition, error) {
	// Label keys have no quotes: the parser and the API server prevent that.
	if strings.ContainsAny(r.Key(), `"\`) {
		return nil, fmt.Errorf("%w: label key %q", ErrSelector, r.Key())
	}
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return labelIn{key: r.Key(), values: r.Values().List()}, nil
	case selection.NotEquals, selection.NotIn:
		return labelIn{key: r.Key(), values: r.Values().List(), not: true}, nil
	case selection.Exists:
		return labelSet{key: r.Key()}, nil
	case selection.DoesNotExist:
		return labelSet{key: r.Key(), not: true}, nil
	case selection.GreaterThan, selection.LessThan:
		if values := r.ValuesUnsorted(); len(values) == 1 {
			if bound, err := strconv.ParseInt(values[0], 10, 64); err == nil {
				return labelCompare{key: r.Key(), greater: r.Operator() == selection.GreaterThan, bound: bound}, nil
			}
		}
		return nil, fmt.Errorf("%w: label %s %s needs one number", ErrSelector, r.Key(), r.Operator())
	default:
		return nil, fmt.Errorf("%w: operator %q on label %s", ErrSelector, r.Operator(), r.Key())
	}
}

// compileField translates a requirement on a field: declared fields use the index, others the
// body.
func compileField(gr groupResource, f FieldRequirement) (condition, error) {
	if label, ok := labelOf(gr, f); ok {
		return compileLabelled(gr, f, label)
	}
	values, not, exists, err := f.asked()
	if err != nil {
		return nil, err
	}
	if column, ok := map[string]string{"metadata.name": "o.name", "metadata.namespace": "o.namespace"}[f.Path]; ok {
		if exists {
			values, not = []string{""}, !not
		}
		return columnIn{column: column, values: values, not: not}, nil
	}
	if !exists {
		if key, ok := termsFor(gr, f.Path, values); ok {
			return termIs{key: key, values: values, not: not}, nil
		}
	}
	if several(f.Path) {
		return nil, fmt.Errorf("%w: %s is a field of pods and of what makes pods, which has values of 1 to %d bytes, and is always there", ErrSelector, f.Path, mostTerm)
	}
	path, err := ParseFieldPath(f.Path)
	if err != nil {
		return nil, err
	}
	if err := fewValues(f, values); err != nil {
		return nil, err
	}
	if path.lists() && slices.Contains(values, "") {
		return nil, fmt.Errorf("%w: field %s: in a list nothing equals the empty value: ask whether it exists, or not", ErrSelector, f.Path)
	}
	return fieldIs{path: path, values: values, exists: exists, not: not}, nil
}

// fewValues returns an error for more values than bodies are compared with.
func fewValues(f FieldRequirement, values []string) error {
	if len(values) > mostValues {
		return fmt.Errorf("%w: %d values of field %s, and at most %d can be answered", ErrSelector, len(values), f.Path, mostValues)
	}
	return nil
}

// image returns the index term that an object must have to satisfy the condition; nil: the
// condition is not about an indexed image.
func (c fieldIs) image(gr groupResource) *pair {
	n := len(c.path)
	if c.not || c.exists || len(c.values) != 1 || n < 3 || c.path[n-1].Key != "image" || c.path[n-2].Key != "" {
		return nil
	}
	switch c.path[n-3].Key {
	case "containers", "initContainers", "ephemeralContainers":
	default:
		return nil
	}
	switch c.path[:n-3].String() {
	case "spec", "spec.template.spec", "spec.jobTemplate.spec.template.spec", "template.spec":
	default:
		return nil
	}
	one, ok := termOf(gr, FieldImages, c.values[0])
	if !ok {
		return nil
	}
	return &one
}

// within limits the plan to clusters and to rows after a position. dropped are clusters that are
// being deleted. It returns false if nothing is left to read.
func (p *plan) within(q Query, known, dropped []string, after position) bool {
	p.after = after
	if len(q.Clusters) == 0 && q.Scopes == nil && len(q.Namespaces) == 0 {
		p.shunned = dropped
		return true
	}
	var clusters []string
	switch {
	case len(q.Clusters) > 0:
		clusters = slices.Compact(slices.Sorted(slices.Values(q.Clusters)))
	case q.Scopes != nil:
		clusters = slices.Sorted(maps.Keys(q.Scopes))
	default:
		clusters = known
	}
	p.narrow = q.Scopes != nil || len(q.Namespaces) > 0
	if namespaces := q.everywhere(); len(namespaces) > mostSpans/max(len(clusters), 1) {
		// One range for each namespace in each cluster would be too many. The ranges of clusters
		// are read, and the namespaces compared.
		p.narrow = false
		p.where = append(p.where, columnIn{column: "o.namespace", values: namespaces})
	}
	named := sets.New(q.Namespaces...)
	for _, c := range clusters {
		if p.order == ByKey && c < after.Cluster {
			continue
		}
		if _, ok := slices.BinarySearch(known, c); !ok {
			continue
		}
		if _, ok := q.Scopes[c]; q.Scopes != nil && !ok {
			continue
		}
		if !p.narrow {
			p.spans = append(p.spans, span{cluster: c})
			continue
		}
		namespaces := q.Namespaces
		if q.Scopes != nil {
			namespaces = q.Scopes[c]
			if len(q.Namespaces) > 0 {
				namespaces = slices.DeleteFunc(slices.Clone(namespaces), func(n string) bool { return !named.Has(n) })
			}
		}
		for _, n := range slices.Compact(slices.Sorted(slices.Values(namespaces))) {
			p.spans = append(p.spans, span{cluster: c, namespace: n})
		}
	}
	if p.order == ByKey {
		p.resume()
	}
	return len(p.spans) > 0
}

// mostSpans is the maximum number of namespaces that are looked up one by one, at a few
// microseconds each.
const mostSpans = 20_000

// everywhere returns the namespaces, if the same ones are selected in every cluster; else nil.
func (q Query) everywhere() []string {
	if q.Scopes == nil {
		return q.Namespaces
	}
	var same []string
	first := true
	for _, namespaces := range q.Scopes {
		if first {
			same, first = namespaces, false
		}
		if !slices.Equal(same, namespaces) {
			return nil
		}
	}
	if len(q.Namespaces) > 0 {
		named := sets.New(q.Namespaces...)
		same = slices.DeleteFunc(slices.Clone(same), func(n string) bool { return !named.Has(n) })
	}
	return same
}

// resume limits the spans to rows after the position.
func (p *plan) resume() {
	a := p.after
	p.spans = slices.DeleteFunc(p.spans, func(s span) bool {
		return p.narrow && s.cluster == a.Cluster && s.namespace < a.Namespace
	})
	for i := range p.spans {
		s := &p.spans[i]
		switch {
		case s.cluster != a.Cluster:
		case !p.narrow:
			s.afterSpace, s.afterOf = a.Namespace, a.Name
		case s.namespace == a.Namespace:
			s.afterOf = a.Name
		}
	}
}

// found is a row with its id, which orders by time need to distinguish rows.
type found struct {
	Row

	id int64
}

// at returns the position of the row in a result.
func (f *found) at() position {
	p := position{Cluster: f.Cluster, Namespace: f.Namespace, Name: f.Name, ID: f.id}
	if !f.Created.IsZero() {
		p.Created = f.Created.Unix()
	}
	return p
}
