package search

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/store"
)

// grammar are the parameters of Clusterpedia. docs/search.md defines their meaning here.
type grammar struct {
	contains      []string // texts that names must contain
	since, before time.Time
	order         store.Order
	ordered       bool // the request has an order
	owner         struct {
		uid, name string
		resource  schema.GroupResource
		steps     int
	}
	offset            int
	noContinue        bool
	remaining         *bool // nil: the count is returned where it costs nothing
	onlyMetadata      bool
	groups, resources []string // for the collection "any"
}

// refused returns the parser of a parameter that the fleet does not support. instead is the
// advice in the error.
func refused(instead string) func(*params, string) error {
	return func(*params, string) error { return errors.New("the fleet does not know it: " + instead) }
}

const (
	noSQL    = "nothing of a request becomes SQL; ask with fieldSelector, which takes any path, with labelSelector or with filter"
	noEvents = "events are objects of their own: ask for events with fieldSelector=involvedObject.uid=UID"
)

// truth returns a parser of a boolean.
func truth(set func(p *params, v bool) error) func(*params, string) error {
	return func(p *params, value string) error {
		v, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("must be true or false")
		}
		return set(p, v)
	}
}

// whole returns a parser of a number that is not negative.
func whole(set func(p *params, n int)) func(*params, string) error {
	return func(p *params, value string) error {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return errors.New("must be a number from 0 on")
		}
		set(p, int(n))
		return nil
	}
}

// Prefixes of label keys with which clients of Clusterpedia pass parameters.
const (
	searchLabels = "search.clusterpedia.io/"
	fuzzyLabel   = "internalstorage.clusterpedia.io/fuzzy-name"
)

// labelParameters are the parameters by label key.
var labelParameters = map[string]string{
	searchLabels + "names": "names", searchLabels + "clusters": "clusters", searchLabels + "namespaces": "namespaces",
	searchLabels + "orderby": "orderby", searchLabels + "owner-uid": "ownerUID", searchLabels + "owner-name": "ownerName",
	searchLabels + "owner-gr": "ownerGR", searchLabels + "owner-seniority": "ownerSeniority", searchLabels + "since": "since",
	searchLabels + "before": "before", searchLabels + "limit": "limit", searchLabels + "size": "limit", searchLabels + "offset": "offset",
	searchLabels + "with-continue": "withContinue", searchLabels + "with-remaining-count": "withRemainingCount",
	searchLabels + "inject-events": "injectEvents", searchLabels + "forward": "x-clusterpedia-forward", fuzzyLabel: "fuzzyName",
}

// orderTerm finds the fields of an order in a label selector, because the parser of selectors
// loses their order.
var orderTerm = regexp.MustCompile(regexp.QuoteMeta(searchLabels+"orderby") + `\s+in\s*\(([^()]*)\)`)

// takeLabels moves parameters from the label selector to p. given reports whether the request
// has a parameter outside of the selector.
func (p *params) takeLabels(text string, given func(name string) bool) error {
	requirements, _ := p.labels.Requirements()
	var rest labels.Requirements
	taken := map[string]string{}
	for _, r := range requirements {
		key := r.Key()
		name, known := labelParameters[key]
		switch {
		case !known && (strings.HasPrefix(key, searchLabels) || strings.HasPrefix(key, "internalstorage.clusterpedia.io/")):
			return apierrors.NewBadRequest(fmt.Sprintf("parameter labelSelector: %s is no parameter: the fleet knows %s",
				key, strings.Join(slices.Sorted(maps.Keys(labelParameters)), ", ")))
		case !known:
			rest = append(rest, r)
			continue
		}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
		default:
			return apierrors.NewBadRequest(fmt.Sprintf("parameter labelSelector: %s is a parameter and no label, and takes =, == and in, not %q: exclude by fieldSelector=metadata.name!=NAME, metadata.namespace!=NAMESPACE",
				key, r.Operator()))
		}
		// kubectl always sends a limit of its own
		if before, twice := taken[name]; twice || given(name) && name != "limit" {
			return apierrors.NewBadRequest(fmt.Sprintf("parameter %s is given twice, by %s", name, strings.Join(slices.DeleteFunc([]string{key, before}, func(s string) bool { return s == "" }), " and ")))
		}
		taken[name] = key
		value := strings.Join(r.Values().List(), ",")
		if name == "orderby" {
			if term := orderTerm.FindStringSubmatch(text); term != nil {
				value = term[1]
			}
		}
		if err := parameters[name](p, value); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("parameter labelSelector: %s=%q: %v", key, value, err))
		}
	}
	if taken["limit"] != "" && taken["withContinue"] == "" && !given("withContinue") {
		p.noContinue = true // otherwise kubectl would continue, page after page
	}
	if taken["offset"] != "" && p.next != "" {
		p.offset = 0 // the token has the position
	}
	if p.labels = labels.Everything(); len(requirements) > 0 {
		p.labels = labels.NewSelector().Add(rest...) // in one call: each Add copies and sorts all
	}
	return nil
}

// moment parses a time as Clusterpedia does: RFC 3339, a date or a date with a time in UTC, or
// seconds or milliseconds since 1970.
func moment(v string) (time.Time, error) {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && n > 0 {
		switch len(v) {
		case 10:
			return time.Unix(n, 0).UTC(), nil
		case 13:
			return time.UnixMilli(n).UTC(), nil
		}
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, v); err == nil && t.Unix() > 0 {
			return t.UTC(), nil
		}
	}
	return time.Time{}, errors.New("must be a time after 1970, as 2026-11-20T10:00:00Z, 2026-11-20 10:00:00, 2026-11-20, or seconds (10 digits) or milliseconds (13) since 1970")
}

// orderNames are the columns by the names that an order may use for them.
var orderNames = map[string]string{
	"name": "name", "namespace": "namespace", "cluster": "cluster",
	"created": "created", "created_at": "created", "creationTimestamp": "created", "metadata.creationTimestamp": "created",
	"metadata.name": "name", "metadata.namespace": "namespace",
}

// parseOrder parses fields separated by commas. Each may end with asc or desc after a blank or,
// for labels, after _.
func parseOrder(v string) (store.Order, error) {
	var columns []store.OrderColumn
	for field := range strings.SplitSeq(v, ",") {
		field = strings.TrimSpace(field)
		var c store.OrderColumn
		for _, direction := range []string{"asc", "desc"} {
			for _, mark := range []string{" ", "_"} {
				if name, ok := strings.CutSuffix(field, mark+direction); ok {
					field, c.Down = strings.TrimSpace(name), direction == "desc"
				}
			}
		}
		var known bool
		if c.Name, known = orderNames[field]; !known {
			return 0, fmt.Errorf("there is no order by %q: only by name, namespace, cluster and created (created_at, creationTimestamp), each followed by desc or not", field)
		}
		if columns = append(columns, c); len(columns) > len(orderNames) {
			break // OrderBy refuses it, because a column occurs twice
		}
	}
	order, err := store.OrderBy(columns...)
	if err != nil {
		return 0, errors.New("a field is named twice")
	}
	return order, nil
}

// checkGrammar refuses parameters that contradict each other.
func (p *params) checkGrammar() error {
	refuse := func(name, why string) error {
		return apierrors.NewBadRequest(fmt.Sprintf("parameter %s: %s", name, why))
	}
	if p.next != "" && strings.Trim(p.next, "0123456789") == "" { // as tokens of Clusterpedia
		n, err := strconv.ParseUint(p.next, 10, 31)
		if err != nil || p.offset != 0 {
			return refuse("continue", "it is a number, which is an offset, and is given twice or too large")
		}
		p.next, p.offset = "", int(n)
	}
	requirements, _ := p.labels.Requirements()
	switch o := &p.owner; {
	case len(requirements)+len(p.fields)+len(p.contains) > store.MostTerms:
		return refuse("labelSelector", fmt.Sprintf("with fieldSelector and fuzzyName it has %d requirements, and at most %d can be answered; write several values of a label as KEY in (A,B)",
			len(requirements)+len(p.fields)+len(p.contains), store.MostTerms))
	case p.offset > store.MostOffset:
		return refuse("offset", fmt.Sprintf("at most %d: go on with the continue token of the page before", store.MostOffset))
	case p.offset > 0 && p.next != "":
		return refuse("offset", "a continue token has its place already")
	case o.uid != "" && (o.name != "" || o.resource.Resource != ""):
		return refuse("ownerUID", "name the owner by UID, or by ownerName and ownerGR")
	case o.name != "" && o.resource.Resource == "":
		return refuse("ownerName", "say its type, with ownerGR=deployments.apps")
	case o.name == "" && o.resource.Resource != "":
		return refuse("ownerGR", "name the owner, with ownerName")
	case o.steps > 0 && o.uid == "" && o.name == "":
		return refuse("ownerSeniority", "name the owner, with ownerUID or with ownerName and ownerGR")
	case o.steps > store.MostOwnerSteps:
		return refuse("ownerSeniority", fmt.Sprintf("at most %d", store.MostOwnerSteps))
	}
	return nil
}

// chained reports whether the query must look up owners.
func (p *params) chained() bool { return p.owner.name != "" || p.owner.steps > 0 }

// checkCollection refuses parameters that are only for collections.
func (p *params) checkCollection() error {
	if p.groups != nil || p.resources != nil {
		return apierrors.NewBadRequest("parameters groups and resources are for the collection any: " + collectionPath + "any")
	}
	return nil
}

// checkWatch refuses parameters that are only for lists.
func (p *params) checkWatch() error {
	switch {
	case p.limit != 0 || p.next != "" || p.offset != 0:
		return apierrors.NewBadRequest("parameters limit, continue and offset are for lists: a watch has none")
	case p.ordered:
		return apierrors.NewBadRequest("parameter orderby is for lists: a watch tells of changes in their own order")
	case p.chained():
		return apierrors.NewBadRequest("parameters ownerName and ownerSeniority are for lists: whose owner is whose may change; watch with ownerUID alone")
	}
	return nil
}

// into adds the grammar to a query.
func (p *params) into(q *store.Query) {
	q.NameContains, q.Since, q.Before, q.Order, q.Offset = p.contains, p.since, p.before, p.order, p.offset
	q.OwnerUID, q.OwnerName, q.OwnerResource, q.OwnerSteps = types.UID(p.owner.uid), p.owner.name, p.owner.resource, p.owner.steps
}

// plain reports whether a request selects only by clusters and namespaces. Counters have the
// number of such objects.
func (p *params) plain() bool {
	return p.labels.Empty() && len(p.fields) == 0 && p.names == nil && p.contains == nil && p.since.IsZero() && p.before.IsZero() &&
		p.owner.uid == "" && p.owner.name == "" && p.asked.empty()
}

// parseFields parses a field selector: requirements separated by commas, each PATH=VALUE,
// PATH==VALUE, PATH!=VALUE, PATH in (VALUE,VALUE), PATH notin (VALUE,VALUE), PATH or !PATH. In
// values a backslash escapes a comma, = and a backslash, as in Kubernetes, and in lists also ).
// Blanks belong to the value, except in lists and if a blank precedes the operator.
func parseFields(text string) (out []store.FieldRequirement, err error) {
	for rest := text; rest != ""; {
		var r store.FieldRequirement
		if rest = strings.TrimLeft(rest, " "); strings.HasPrefix(rest, ",") {
			rest = rest[1:]
			continue
		}
		if rest == "" {
			break
		}
		absent := strings.HasPrefix(rest, "!")
		if absent {
			rest = strings.TrimLeft(rest[1:], " ")
		}
		if r.Path, rest = cutPath(rest); r.Path == "" {
			return nil, fmt.Errorf("a field is expected before %q", rest)
		}
		// before the operator; API servers allow no blank there
		spaced := strings.HasPrefix(rest, " ")
		rest = strings.TrimLeft(rest, " ")
		var operator string
		operator, rest = cutOperator(rest)
		r.Operator = selection.Operator(operator)
		switch operator {
		case "":
			if r.Operator = selection.Exists; absent {
				r.Operator = selection.DoesNotExist
			}
			if rest != "" && rest[0] != ',' {
				return nil, fmt.Errorf("after field %s: %q is no operator: use =, ==, !=, in (A,B), notin (A,B), the field alone if it is to exist, and ! before it if not", r.Path, rest)
			}
		case "in", "notin":
			if r.Values, rest, err = cutValues(strings.TrimLeft(rest, " ")[1:]); err != nil {
				return nil, fmt.Errorf("field %s: %w", r.Path, err)
			}
		default:
			var value string
			if value, rest = cutEscaped(rest, ","); spaced {
				value = strings.TrimSpace(value)
			}
			if r.Value, err = fields.UnescapeValue(value); err != nil {
				return nil, fmt.Errorf("field %s: %w", r.Path, err)
			}
		}
		if absent && operator != "" {
			return nil, fmt.Errorf("field %s: ! says that it does not exist, and takes no value", r.Path)
		}
		if rest = strings.TrimLeft(rest, " "); rest != "" && rest[0] != ',' {
			return nil, fmt.Errorf("a comma is expected before %q", rest)
		}
		if out = append(out, r); len(out) > store.MostTerms {
			return nil, fmt.Errorf("more than %d requirements on fields, and at most %d can be answered", store.MostTerms, store.MostTerms)
		}
	}
	return out, nil
}

// cutOperator cuts off an operator; "" if there is none. "in" and "notin" must precede a list.
func cutOperator(text string) (operator, rest string) {
	for _, one := range []string{"==", "=", "!=", "notin", "in"} {
		if after, ok := strings.CutPrefix(text, one); ok && (one[0] == '=' || one[0] == '!' || strings.HasPrefix(strings.TrimLeft(after, " "), "(")) {
			return one, after
		}
	}
	return "", text
}

// cutPath cuts off a path, whose quoted keys may contain any characters.
func cutPath(text string) (path, rest string) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case strings.HasPrefix(text[i:], "['"):
			end := strings.Index(text[i:], "']")
			if end < 0 {
				return text, ""
			}
			i += end + 1
		case strings.IndexByte("=!,<> ()", c) >= 0:
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// cutEscaped cuts a text before the first of the characters ends that has no backslash before
// it.
func cutEscaped(text, ends string) (before, after string) {
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\':
			i++
		case strings.IndexByte(ends, text[i]) >= 0:
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// cutValues cuts off the values of a list, after its opening bracket.
func cutValues(text string) (values []string, rest string, err error) {
	for {
		value, after := cutEscaped(text, ",)")
		if after == "" {
			return nil, "", errors.New("a list of values is not closed with )")
		}
		value, err := fields.UnescapeValue(strings.ReplaceAll(strings.TrimSpace(value), `\)`, ")"))
		if err != nil {
			return nil, "", err
		}
		values = append(values, value)
		if text = after[1:]; after[0] == ')' {
			return values, text, nil
		}
	}
}
