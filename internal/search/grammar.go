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

// grammar are the parsed parameters of a request that the fleet takes over from Clusterpedia.
// docs/search.md defines their meaning in the fleet.
type grammar struct {
	contains      []string // texts that names must contain
	since, before time.Time
	order         store.Order
	ordered       bool // the request has the parameter orderby
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

// refused returns the parser of a parameter of Clusterpedia that the fleet does not support. The
// parser always returns an error with the advice instead.
func refused(instead string) func(*params, string) error {
	return func(*params, string) error { return errors.New("the fleet does not know it: " + instead) }
}

const (
	noSQL    = "nothing of a request becomes SQL; ask with fieldSelector, which takes any path, with labelSelector or with filter"
	noEvents = "events are objects of their own: ask for events with fieldSelector=involvedObject.uid=UID"
)

// truth returns the parser of a parameter that is true or false, and passed to set.
func truth(set func(p *params, v bool) error) func(*params, string) error {
	return func(p *params, value string) error {
		v, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("must be true or false")
		}
		return set(p, v)
	}
}

// whole returns the parser of a parameter that is a number from 0 on, and passed to set.
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

// labelParameters has the names of parameters by the label key with which clients of Clusterpedia
// pass them in a label selector.
var labelParameters = map[string]string{
	searchLabels + "names": "names", searchLabels + "clusters": "clusters", searchLabels + "namespaces": "namespaces",
	searchLabels + "orderby": "orderby", searchLabels + "owner-uid": "ownerUID", searchLabels + "owner-name": "ownerName",
	searchLabels + "owner-gr": "ownerGR", searchLabels + "owner-seniority": "ownerSeniority", searchLabels + "since": "since",
	searchLabels + "before": "before", searchLabels + "limit": "limit", searchLabels + "size": "limit", searchLabels + "offset": "offset",
	searchLabels + "with-continue": "withContinue", searchLabels + "with-remaining-count": "withRemainingCount",
	searchLabels + "inject-events": "injectEvents", searchLabels + "forward": "x-clusterpedia-forward", fuzzyLabel: "fuzzyName",
}

// orderTerm finds the value of the parameter orderby in the text of a label selector. The parser of
// selectors sorts values, and so loses the order of the fields.
var orderTerm = regexp.MustCompile(regexp.QuoteMeta(searchLabels+"orderby") + `\s+in\s*\(([^()]*)\)`)

// takeLabels moves parameters that are written as labels from the label selector, p.labels, to
// their fields in p. text is the selector as the client wrote it. given reports whether the request
// has a parameter of that name outside of the selector. An unknown label with the prefix of
// parameters is an error (400). So is a parameter that is given twice, except limit.
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
		// limit may be given twice, because kubectl always sends one
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

// moment parses a time of the parameters since and before, as Clusterpedia does. It must be after
// 1970: in RFC 3339, a date, a date with a time in UTC, or seconds (10 digits) or milliseconds (13)
// since 1970.
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

// orderNames has the columns of the store by the names that the parameter orderby may use for them.
var orderNames = map[string]string{
	"name": "name", "namespace": "namespace", "cluster": "cluster",
	"created": "created", "created_at": "created", "creationTimestamp": "created", "metadata.creationTimestamp": "created",
	"metadata.name": "name", "metadata.namespace": "namespace",
}

// parseOrder parses the parameter orderby: names in orderNames, separated by commas. Each may end
// with asc or desc, after a blank or, as in labels, after _. An unknown or repeated column is an
// error.
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

// checkGrammar returns an error (400) for parameters of the grammar that contradict each other or
// exceed a limit. If the parameter continue is only a number, as in Clusterpedia, the number is an
// offset: checkGrammar moves it to p.offset.
func (p *params) checkGrammar() error {
	refuse := func(name, why string) error {
		return apierrors.NewBadRequest(fmt.Sprintf("parameter %s: %s", name, why))
	}
	if p.next != "" && strings.Trim(p.next, "0123456789") == "" { // tokens of Clusterpedia are numbers
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

// chained reports whether the query selects by an owner's name or by owners of owners, so that the
// store must look up owners.
func (p *params) chained() bool { return p.owner.name != "" || p.owner.steps > 0 }

// checkCollection returns an error (400) if the request has the parameter groups or resources,
// which are only for the collection any.
func (p *params) checkCollection() error {
	if p.groups != nil || p.resources != nil {
		return apierrors.NewBadRequest("parameters groups and resources are for the collection any: " + collectionPath + "any")
	}
	return nil
}

// checkWatch returns an error (400) if a watch has parameters that are only for lists: limit,
// continue, offset, orderby, ownerName or ownerSeniority.
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

// into sets the fields of the store's query that the parameters of the grammar define.
func (p *params) into(q *store.Query) {
	q.NameContains, q.Since, q.Before, q.Order, q.Offset = p.contains, p.since, p.before, p.order, p.offset
	q.OwnerUID, q.OwnerName, q.OwnerResource, q.OwnerSteps = types.UID(p.owner.uid), p.owner.name, p.owner.resource, p.owner.steps
}

// plain reports whether a request selects objects only by type, clusters and namespaces. The store
// has counters for the number of such objects.
func (p *params) plain() bool {
	return p.labels.Empty() && len(p.fields) == 0 && p.names == nil && p.contains == nil && p.since.IsZero() && p.before.IsZero() &&
		p.owner.uid == "" && p.owner.name == "" && p.asked.empty()
}

// parseFields parses a field selector: requirements separated by commas, each PATH=VALUE,
// PATH==VALUE, PATH!=VALUE, PATH in (VALUE,VALUE), PATH notin (VALUE,VALUE), PATH or !PATH. Empty
// requirements are ignored; more than store.MostTerms are an error. The paths are not checked.
//
// In values, a backslash escapes a comma, = and a backslash, as in Kubernetes, and ) in lists.
// Blanks around a value belong to it, except in lists and if a blank precedes the operator.
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
		// whether a blank precedes the operator, which API servers do not allow
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

// cutOperator cuts an operator off the beginning of a text; "" if the text begins with none. in and
// notin count only before a list.
func cutOperator(text string) (operator, rest string) {
	for _, one := range []string{"==", "=", "!=", "notin", "in"} {
		if after, ok := strings.CutPrefix(text, one); ok && (one[0] == '=' || one[0] == '!' || strings.HasPrefix(strings.TrimLeft(after, " "), "(")) {
			return one, after
		}
	}
	return "", text
}

// cutPath cuts the path of a field off the beginning of a text, without checking it. Keys in ['…']
// may contain any characters. If such a key does not end, the path is the whole text.
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

// cutEscaped cuts a text before the first character in ends that has no backslash before it.
// Without such a character, before is the whole text.
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

// cutValues cuts a list of values, up to its closing bracket, off the beginning of a text. text
// begins after the opening bracket. The values are without escapes.
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
