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

// plan is a compiled query, from which the dialects write SQL: the index that leads, and the
// conditions on its rows. An index leads if the database reads rows from it first. A plan contains
// values and no SQL, except for names of columns, which are constants. compile creates it, within
// and probe limit it, and choose selects the index that leads.
type plan struct {
	kind   int64 // number of the queried type
	order  Order
	index  index    // the one that leads
	pair   *pair    // value of a label or declared field to look up; nil: none
	owners []string // UIDs, one of them the owner's; nil: any owner
	name   string   // the only name; "": any
	// contains are texts that names must contain. candidates are the ids of the only objects that can
	// match. An index found them for a prefix, a label key, words or parts of names. nil: they are too
	// many, or there is no such index.
	contains     []string
	worded       bool  // names are among the indexed words of the type
	since, until int64 // bounds of the creation time, in seconds; 0: none
	candidates   []int64
	recent       bool       // few objects were created between since and until
	texts        []FullText // conditions on words
	// prefix is the beginning of all names; "": any. It is always a condition, too.
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
	shunned  []string // clusters that are being dropped, whose rows are left out
	counting bool     // only the number of rows is wanted
	spread   bool     // the count is grouped by columns of objects
	valued   bool     // pair has only a key, and any value matches
	slim     bool     // the statement first reads only the ids of rows
}

// follow makes the index of labels and declared fields lead, with the key of lead and any value.
// The condition that led before (owner, name or label value) becomes a condition on the rows. It is
// for counts of objects by the value of a field.
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

// index is the index or table from which the database reads the rows of a plan first. It is by key,
// label or declared field, owner, name or creation time, a list of ids, or the table of counters.
type index int

const (
	byKey        index = iota // cluster, namespace, name
	byPair                    // of a label or declared field, in the order of the key
	byPairTime                // of a declared field with few values, in the order of creation
	byOwner                   // by the owner's UID
	byName                    // type, name
	byTime                    // creation time
	byCandidates              // ids that probe found
	byTally                   // counters of objects by namespace
)

// span is a range of rows that a plan reads. If plan.narrow is set, it is one namespace of a
// cluster, else a whole cluster. It begins after a namespace and name, where the previous page
// ended; "": at the first row.
type span struct {
	cluster, namespace  string
	afterSpace, afterOf string
}

// alias returns the SQL alias of the table that the database reads first: l for the table label,
// and o for object or tally.
func (p *plan) alias() string {
	if p.index == byPair || p.index == byPairTime {
		return "l"
	}
	return "o"
}

// ordering returns the columns of the plan's order, with the alias of the table that the database
// reads first.
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

// orderBy returns the ORDER BY clause for the columns, with a space before it. columns must not be
// empty.
func (p *plan) orderBy(columns []OrderColumn) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		if parts[i] = c.Name; c.Down {
			parts[i] += " DESC"
		}
	}
	return " ORDER BY " + strings.Join(parts, ", ")
}

// beyond returns the SQL operator, with spaces, that selects values after a given one in the
// direction of the column: > or, for a descending column, <.
func (c OrderColumn) beyond() string {
	if c.Down {
		return " < "
	}
	return " > "
}

// position returns where the page begins: the values of the order's columns in the last row of the
// previous page. It returns nil for the first page, or if the spans contain the position.
func (p *plan) position() (values []any) {
	if p.after.Cluster == "" && p.after.ID == 0 || p.leads && p.order == ByKey {
		return nil
	}
	for _, c := range p.order.columns() {
		values = append(values, p.after.value(c.Name))
	}
	return values
}

// ordered reports whether the statement needs an ORDER BY. A count needs none. If spans lead, their
// rows are in the order already, unless p.sorted is set.
func (p *plan) ordered() bool { return !p.counting && (!p.leads || p.sorted) }

// whole reports whether the statement reads columns of the table object. If not, and the table
// label leads, no join with object is needed.
func (p *plan) whole() bool { return !p.counting && !p.slim || len(p.where) > 0 || p.spread }

// condition is a requirement of a query on the row of one object. write appends it to a statement
// as SQL, in which o is the row of the table object.
type condition interface{ write(s *statement) }

type (
	// columnIn is the condition that a column of the object has one of the values; with not, that it
	// has none of them.
	columnIn struct {
		column string
		values []string
		not    bool
	}
	// nameFrom is the condition that the name is from or greater, and less than until. It selects a
	// prefix of names. until "" is no upper bound.
	nameFrom struct{ from, until string }
	// nameHas is the condition that the name contains the text.
	nameHas struct{ text string }
	// createdIn is the condition that the object was created at since or later, and before until, in
	// Unix seconds. 0 is no bound.
	createdIn struct{ since, until int64 }
	// termIs is the condition that the declared field with this key has one of the values; with not,
	// that it has none of them. A declared field is an indexed one, see declared.
	termIs struct {
		key    string
		values []string
		not    bool
	}
	// labelIn is the condition that the label with this key has one of the values. With not, it is
	// that the label has none of them, or that the object lacks the label.
	labelIn struct {
		key    string
		values []string
		not    bool
	}
	// labelSet is the condition that the object has the label with this key, with any value; with not,
	// that it lacks the label.
	labelSet struct {
		key string
		not bool
	}
	// labelCompare is the condition that the value of the label with this key is an integer greater
	// than the bound. If greater is false, it must be less. The condition is false if the label is
	// absent or not an integer.
	labelCompare struct {
		key     string
		greater bool
		bound   int64
	}
	// sinceAtMost is the condition that the present state of the object began at the moment, in
	// milliseconds, or earlier.
	sinceAtMost struct{ moment int64 }
	// fieldIs is the condition that the text of a field in the body is one of the values or, with
	// exists, that the field exists. If the path leads through a list, one matching element suffices.
	// With not, the result is negated.
	fieldIs struct {
		path   FieldPath
		values []string
		exists bool
		not    bool
	}
)

// MostTerms is the maximum number of requirements on labels, fields and names in a query. SQLite
// refuses expressions deeper than 1000.
const MostTerms = 100

// compile checks a query and translates it. A requirement that it cannot translate is an
// ErrSelector, never ignored. For labels that can select nothing, it returns nil without an error.
// The method within adds the clusters and namespaces later, and planned adds owners that are given
// by name.
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

// named prepares the search for names that match patterns (q.Patterns). From the patterns it adds a
// prefix and texts that names must contain, so that an index of names can find them. It also sets
// p.worded. The patterns themselves are separate conditions.
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

// selectLabels adds the requirements on labels to the plan. The first one that allows a single
// value becomes p.pair, whose index leads; the others become conditions. If owned is true, the
// index of owners leads, and all become conditions. The error is an ErrSelector.
func (p *plan) selectLabels(requirements labels.Requirements, owned bool) error {
	for _, r := range requirements {
		// Keys that begin with these characters belong to declared fields in the index.
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

// selectFields adds the requirements on fields to the plan, as conditions. One on a declared field
// may become p.pair, whose index leads, unless p.pair is set already. If owned is true, the index
// of owners leads, and all become conditions. The error is an ErrSelector.
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

// resource returns the group and resource that the query selects from.
func (q Query) resource() groupResource { return groupResource{q.Group, q.Resource} }

// choose selects the index that leads, from what compile, within and probe have set, and sets
// p.index, p.leads and p.sorted. It uses no statistics of the database. It is called once, at the
// end of planned.
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

// fewSpans is the maximum number of spans (clusters or namespaces) whose rows are all read and then
// sorted. With more, the index of the page's order is read until the page is full.
const fewSpans = 1000

// prefixed returns the condition that a name begins with prefix, as a range of names. If no text is
// greater than all these names, the range has no end.
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

// equality reports whether a requirement on a label allows exactly one value. The label's index
// then has the selected objects in the order of the key.
func equality(r labels.Requirement) bool {
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return r.Values().Len() == 1
	default:
		return false
	}
}

// compileLabel translates a requirement on a label to a condition. The error is an ErrSelector for
// an operator or number that is not supported.
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

// compileField translates a requirement on a field of the type to a condition. A declared field is
// looked up in the index. The name and the namespace are compared in their columns, and other
// fields in the body. The error is an ErrSelector.
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

// fewValues returns an ErrSelector if values are more than mostValues. Each of them is compared
// with each body.
func fewValues(f FieldRequirement, values []string) error {
	if len(values) > mostValues {
		return fmt.Errorf("%w: %d values of field %s, and at most %d can be answered", ErrSelector, len(values), f.Path, mostValues)
	}
	return nil
}

// image returns a value of the index of images (FieldImages) that every object has for which c
// holds. It returns nil if c is not about an image of containers, or images of the type are not
// indexed.
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

// within limits the plan to the query's clusters and namespaces, and to rows after a position, the
// end of the previous page. known are the clusters in the database, sorted. dropped are those that
// are being deleted, which must not be read. It returns false if no cluster or namespace is left to
// read.
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

// mostSpans is the maximum number of namespaces in clusters that a statement looks up one by one.
// Each costs a few microseconds.
const mostSpans = 20_000

// everywhere returns the selected namespaces if they are the same in every cluster. It returns nil
// if they differ between clusters, or if all namespaces are selected.
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

// resume removes the spans before p.after, the end of the previous page, and lets the span with
// that position begin there. It is for the order ByKey, in which spans are read one after another.
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

// found is a row of a result with its id in the database. Orders by time need the id to distinguish
// rows of the same time.
type found struct {
	Row

	id int64
}

// at returns the position of the row, for a page that begins after the row.
func (f *found) at() position {
	p := position{Cluster: f.Cluster, Namespace: f.Namespace, Name: f.Name, ID: f.id}
	if !f.Created.IsZero() {
		p.Created = f.Created.Unix()
	}
	return p
}
