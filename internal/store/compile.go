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

// plan is a query as the dialects get it: what leads to the rows, and what else must hold for them. It has
// values and no SQL, but for names of columns, which are constants.
type plan struct {
	kind   int64 // of the type
	order  Order
	index  index // that leads
	pair   *pair
	owners []string // UIDs, of which one is the owner's; nil: whoever
	name   string   // the only one; "": any
	// contains is what is in names, and candidates the objects that an index says have it, or were created in the time asked for; nil: they are
	// too many, or there is no such index.
	contains     []string
	worded       bool  // names are among the words of what is selected
	since, until int64 // between which objects were created, in seconds; 0: no bound
	candidates   []int64
	recent       bool       // few were created in that time
	texts        []FullText // of words
	// prefix is what names begin with. Where it does not lead it is a condition, too.
	prefix string
	// spans are the ranges of clusters and namespaces that are read; nil: one, of all clusters. Where they lead, that of the leading index
	// is read for each, in their order.
	spans    []span
	narrow   bool // each span is one namespace of a cluster
	leads    bool
	sorted   bool // the rows come in another order
	after    position
	where    []condition
	fields   bool // a condition reads the body
	limit    int  // 0: none
	offset   int
	shunned  []string // clusters that are being dropped
	counting bool     // only how many rows there are
	spread   bool     // the columns of objects are needed, although they are counted
	valued   bool     // pair has a key alone, and any value
	slim     bool     // only the ids of rows
}

// follow makes a key lead, of whatever value, and what would have led a condition.
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

// index is what leads to rows.
type index int

const (
	byKey      index = iota // cluster, namespace, name
	byPair                  // of a label or declared field, in the order of the key
	byPairTime              // of a declared field of few values, in the order of creation
	byOwner
	byName
	byTime
	byCandidates
	byTally // of namespaces: how many objects there are
)

// span is a range of rows: those of a cluster, or of a namespace of it, after a key.
type span struct {
	cluster, namespace  string
	afterSpace, afterOf string
}

// alias is that of the table that leads.
func (p *plan) alias() string {
	if p.index == byPair || p.index == byPairTime {
		return "l"
	}
	return "o"
}

// ordering are the columns of the order of rows, of the leading table.
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

// orderBy is the ORDER BY of columns.
func (p *plan) orderBy(columns []OrderColumn) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		if parts[i] = c.Name; c.Down {
			parts[i] += " DESC"
		}
	}
	return " ORDER BY " + strings.Join(parts, ", ")
}

// beyond is how what comes after a position compares with it in a column.
func (c OrderColumn) beyond() string {
	if c.Down {
		return " < "
	}
	return " > "
}

// position are the values of the columns of the order after which the plan's rows come; nil: it has none, or the spans have it.
func (p *plan) position() (values []any) {
	if p.after.Cluster == "" && p.after.ID == 0 || p.leads && p.order == ByKey {
		return nil
	}
	for _, c := range p.order.columns() {
		values = append(values, p.after.value(c.Name))
	}
	return values
}

// ordered says whether an ORDER BY is to be written: rows of spans come in their order without one.
func (p *plan) ordered() bool { return !p.counting && (!p.leads || p.sorted) }

// whole says whether the rows of objects are needed besides what leads.
func (p *plan) whole() bool { return !p.counting && !p.slim || len(p.where) > 0 || p.spread }

// condition is what must hold for a row.
type condition interface{ write(s *statement) }

type (
	// columnIn holds if a column of the object has one of the values, or with not, none of them.
	columnIn struct {
		column string
		values []string
		not    bool
	}
	// nameFrom holds if a name begins with something: it is not before from, and before until, if there is an end.
	nameFrom struct{ from, until string }
	// nameHas holds if a name has something in it.
	nameHas struct{ text string }
	// createdIn holds if the object was created at a moment or later, and before another, in seconds; 0: no bound.
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
	// labelSet holds if there is a label, whatever its value; with not, if there is none.
	labelSet struct {
		key string
		not bool
	}
	// labelCompare holds if a label's value is a number, and greater, or less, than the bound.
	labelCompare struct {
		key     string
		greater bool
		bound   int64
	}
	// sinceAtMost holds if the object's state began at a moment, in milliseconds, or before.
	sinceAtMost struct{ moment int64 }
	// fieldIs holds if a field of the body, or one of those that a path through lists leads to, has one of the values as its text, or exists; with not,
	// if that is not so.
	fieldIs struct {
		path   FieldPath
		values []string
		exists bool
		not    bool
	}
)

// MostTerms is how many requirements a query may have: SQLite takes no expression that is
// deeper than 1000.
const MostTerms = 100

// compile checks a query and translates it. What it cannot translate is an error, never
// ignored. It returns nil for a query that selects nothing at all.
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

// named adds what the globs of names say to what leads: how a name begins, and what is in it. That they match is a condition besides.
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

// selectLabels adds what is required of labels. The first that names one value leads, unless the owner does.
func (p *plan) selectLabels(requirements labels.Requirements, owned bool) error {
	for _, r := range requirements {
		if strings.HasPrefix(r.Key(), ".") || strings.HasPrefix(r.Key(), "!") { // as declared fields in the index
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

// selectFields adds what is required of fields, of which one that is declared may lead.
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
				p.pair = image // it has it somewhere; the body says where
			}
			if f.asksForLeft(is) && p.pair == nil && !owned {
				p.pair = &leftPair
			}
		}
		p.where = append(p.where, c)
	}
	return nil
}

// resource is the type of a query.
func (q Query) resource() groupResource { return groupResource{q.Group, q.Resource} }

// choose decides which index leads. There are no statistics: what is few is told by the query, or was probed.
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
		p.index, p.leads, p.sorted = byOwner, false, true // owners have few
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
		p.index, p.sorted = byKey, true // whatever is selected is read
	}
	if p.prefix != "" {
		p.where = append(p.where, prefixed(p.prefix))
	}
}

// fewSpans is how many namespaces of clusters are read whole and sorted, rather than everything in the order of the page until it is full.
const fewSpans = 1000

// prefixed is the range of names that begin with a prefix.
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

// equality says whether a requirement is one value of one key: then the rows of the label
// lead to the objects in the order of the page.
func equality(r labels.Requirement) bool {
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return r.Values().Len() == 1
	default:
		return false
	}
}

func compileLabel(r labels.Requirement) (condition, error) {
	// Keys of labels have no quotes; the parser and the API server see to that.
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

// compileField translates a requirement on a field of the object: of a declared one by the index, of others by the body.
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

// fewValues refuses more values than bodies are compared with.
func fewValues(f FieldRequirement, values []string) error {
	if len(values) > mostValues {
		return fmt.Errorf("%w: %d values of field %s, and at most %d can be answered", ErrSelector, len(values), f.Path, mostValues)
	}
	return nil
}

// image is the image that an object must have for the condition to hold, if that is indexed; nil: it is not.
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

// within makes the plan one for the clusters that are known, of which some are being dropped, and for what comes
// after a position. It says whether anything is left to be read.
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
		// One range of each namespace in each cluster were more than rows: those of the clusters are read, and compared.
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

// mostSpans is how many namespaces of clusters are looked up one by one, at a few microseconds each.
const mostSpans = 20_000

// everywhere are the namespaces that are selected in every cluster alike; nil: not the same are.
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

// resume cuts the spans down to what comes after the position.
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

// found is a row, with what the orders of time tell rows apart by.
type found struct {
	Row

	id int64
}

// at is where the row is in an answer.
func (f *found) at() position {
	p := position{Cluster: f.Cluster, Namespace: f.Namespace, Name: f.Name, ID: f.id}
	if !f.Created.IsZero() {
		p.Created = f.Created.Unix()
	}
	return p
}
