package search

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/expression"
	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/store"
)

// searchPath is the path of a search of every kind, relative to the root of the fleet or of one
// cluster.
const searchPath = "/search"

// Limits of a page of a search of every kind: default and maximum.
const (
	usualHits = 500
	mostHits  = 1000
)

// noise are types that a search of every kind leaves out unless the query names them: they have
// many objects, and each means little. Events (worded) are also searched if the query has the key
// text.
var noise = append([]schema.GroupResource{
	{Group: "coordination.k8s.io", Resource: "leases"},
	{Resource: "endpoints"},
	{Group: "discovery.k8s.io", Resource: "endpointslices"},
}, worded...)

// worded are the types of Events, which a query with the key text searches, too: their messages
// have words.
var worded = []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}

// hit is an object that a search of every kind has found. status is the value of the column that
// shows the object's state, or "". stale has the stale clusters of its kind.
type hit struct {
	row    store.Row
	status string
	stale  map[string]time.Time
}

// everywhere is a search of every kind: one request that reads the lists of many types one after
// another.
type everywhere struct {
	*Search

	at       location // the path, which has no type
	params   params
	kinds    []location      // types to be searched, sorted
	version  store.Version   // version of the first page of the search; 0: none yet
	warned   []string        // warnings for the client
	said     map[string]bool // the same warnings as a set
	refused  error           // why the caller may not list the first forbidden type; nil: none
	explains fleetv1alpha1.SearchExplanation
	full     bool // the bodies of the objects found so far exceed mostRead bytes
}

// serveSearch answers a search of every kind: with a page of the objects found, with counts or with
// an explanation. Each type has the rights and the rules of its own list. Parameters that only
// lists of one type take are errors (400).
func (s *Search) serveSearch(w http.ResponseWriter, r *http.Request, at location) error {
	if err := s.admitAny(r.Context(), firstNamespace(r.URL.Query())); err != nil {
		return err
	}
	p, err := parseParams(r.URL.Query())
	if err != nil {
		return err
	}
	as, err := formOf(r)
	if err != nil {
		return err
	}
	as = p.form(as)
	switch {
	case p.watch || p.initialSaid:
		return apierrors.NewBadRequest("parameter watch: a search of every kind is not watched; watch the list of one, with the same q and filter")
	case p.ordered || p.offset > 0 || p.noContinue || p.remaining != nil || p.owner.uid != "" || p.owner.name != "" || p.groups != nil || p.resources != nil:
		return apierrors.NewBadRequest("parameters orderby, offset, withContinue, withRemainingCount, those of owners, groups and resources are for lists; use q")
	case p.fields != nil:
		return apierrors.NewBadRequest("parameter fieldSelector: it is of one kind; use q or filter")
	case p.moments() > 0 || p.all:
		return apierrors.NewBadRequest("parameters at, changedSince, history, deleted and allFields are for lists of one kind, which take q and filter beside at")
	case p.version != "" && p.version != "0" || p.match != "" || p.timeout != 0:
		return apierrors.NewBadRequest("parameters resourceVersion, resourceVersionMatch and timeoutSeconds are for lists of one kind")
	}
	ctx, cancel := context.WithTimeout(r.Context(), searchTimeout)
	defer cancel()
	p.asked.budget = new(expression.Budget)
	e := &everywhere{Search: s, at: at, params: p, said: map[string]bool{}}
	if e.kinds, err = s.kindsOf(ctx, at, p.asked.query); err != nil {
		return err
	}
	if p.group != nil {
		return e.counts(ctx, w, as)
	}
	began := time.Now()
	hits, next, err := e.page(ctx)
	if err != nil {
		return err
	}
	if p.explain {
		e.explain(next != "", time.Since(began))
		return as.wire.answer(w, e.explains)
	}
	return e.answer(w, as, hits, next)
}

// kindsOf returns the types to be searched, sorted by group, resource and version: those that terms
// of q with the key kind select. If no such term is positive, noise is left out, but Events are
// searched if q has the key text. Types that the caller may not know are left out. If a positive
// term leaves no type, it returns the error of noKind.
func (s *Search) kindsOf(ctx context.Context, at location, q query.Query) ([]location, error) {
	terms := q.Of(query.Kind)
	first := slices.IndexFunc(terms, func(t query.Term) bool { return !t.Not })
	named := first >= 0
	texts := slices.ContainsFunc(q.Of(query.Text), func(t query.Term) bool { return !t.Not })
	found := map[schema.GroupVersionResource]bool{}
	for _, t := range s.Mirror.Types() {
		gvr := t.GroupVersionResource()
		if !named && slices.Contains(noise, gvr.GroupResource()) && (!texts || !slices.Contains(worded, gvr.GroupResource())) ||
			slices.ContainsFunc(terms, func(term query.Term) bool { return term.IsKind(gvr.Group, kindNames(kind{API: t.API})) == term.Not }) {
			continue
		}
		visible, err := s.mayName(ctx, t)
		if err != nil {
			return nil, err
		}
		if visible {
			found[gvr] = true
		}
	}
	if len(found) == 0 && named {
		return nil, s.noKind(ctx, terms[first], apierrors.NewBadRequest(fmt.Sprintf("parameter q: no kind is mirrored that is %s; %q lists those that are", terms[first], "kubectl --context fleet api-resources")))
	}
	out := make([]location, 0, len(found))
	for gvr := range maps.Keys(found) {
		out = append(out, location{cluster: at.cluster, document: "apis", GroupVersionResource: gvr, names: at.names, own: true})
	}
	slices.SortFunc(out, compareKinds)
	return out, nil
}

// noKind returns the error for a caller that names a kind by term and sees none of its objects: the
// right is missing, or no cluster has the kind. A caller that may list everything gets reason. Any
// other caller gets a Forbidden error, which does not say which is the case.
func (s *Search) noKind(ctx context.Context, term query.Term, reason error) error {
	err := s.Authorize(ctx, authorizationv1.ResourceAttributes{Verb: "list", Group: "*", Version: "*", Resource: "*"})
	if apierrors.IsForbidden(err) {
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(
			"parameter q: %s: you may not list such objects on the hub, or no cluster has them; %q lists the types that you may know of", term, "kubectl --context fleet api-resources"))
	}
	if err != nil {
		return err
	}
	return reason
}

// compareKinds is the order of types in a search: by group, resource and version.
func compareKinds(a, b location) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Version, b.Version))
}

// each calls f for each type that is searched, with the view of its list, until f returns false for
// more. It begins with the type of from; without a type, with the first. Types that the caller may
// not list are left out with a warning. Types that q does not fit are recorded in e.explains. A
// caller that may list none of the types gets the error. Warnings go to e.warned.
func (e *everywhere) each(ctx context.Context, from location, f func(at location, v view) (more bool, err error)) error {
	var unlisted []string
	var closed error
	only := narrowed{}
	seen := false
	for _, at := range e.kinds {
		if from.Resource != "" && compareKinds(at, from) < 0 {
			seen = true
			continue
		}
		v, err := e.look(ctx, at, e.params, "list")
		why := ""
		switch {
		case apierrors.IsForbidden(err):
			e.refused = cmp.Or(e.refused, err)
			unlisted, why = append(unlisted, at.GroupResource().String()), "you may not list them"
		case isClosed(err):
			// The answer must be the same as if the cluster or the kind did not exist.
			if !isUnlike(err) {
				closed = cmp.Or(closed, err)
			}
			continue
		case isUnlike(err):
			why = strings.TrimPrefix(err.Error(), "parameter q: ")
			seen = true
		case err != nil:
			return err
		}
		if why != "" {
			e.explains.LeftOut = append(e.explains.LeftOut, fleetv1alpha1.SearchedKind{Group: at.Group, Version: at.Version, Resource: at.Resource, Why: why})
			continue
		}
		seen = true
		v.kind.others = nil // in e.kinds, each version of a type has its own entry
		more, err := f(at, v)
		if isUnlike(err) {
			e.explains.LeftOut = append(e.explains.LeftOut, fleetv1alpha1.SearchedKind{Group: at.Group, Version: at.Version, Resource: at.Resource, Why: err.Error()})
			continue
		}
		if err != nil {
			return err
		}
		only.add(at.GroupResource(), v.seen)
		e.warn(e.typeWarnings(at, v.kind, v.seen)...)
		if !more {
			break
		}
	}
	if refused := cmp.Or(closed, e.refused); !seen && refused != nil {
		terms := e.params.asked.query.Of(query.Kind)
		if i := slices.IndexFunc(terms, func(t query.Term) bool { return !t.Not }); i >= 0 && closed == nil {
			return e.noKind(ctx, terms[i], refused)
		}
		return refused
	}
	if text := only.text(unlisted); text != "" {
		e.warn(text)
	}
	return nil
}

// warn adds warnings for the client to e.warned, each once.
func (e *everywhere) warn(warnings ...string) {
	for _, text := range warnings {
		if !e.said[text] {
			e.said[text] = true
			e.warned = append(e.warned, text)
		}
	}
}

// place is the position in a search of every kind at which the next page begins: a type, and the
// continue token in the list of that type; "": its beginning.
type place struct {
	Group    string `json:"g"`
	Version  string `json:"v"`
	Resource string `json:"r"`
	Continue string `json:"c"`
}

// resume returns the position in the continue token of the request, and sets e.version to the
// version in the token. Without a token the place is empty. A token of another search is an error
// (400).
func (e *everywhere) resume() (p place, err error) {
	if e.params.next == "" {
		return p, nil
	}
	bad := apierrors.NewBadRequest("parameter continue: it is not a token of this search; search again without it")
	version, token, ok := strings.Cut(e.params.next, ".")
	if !ok {
		return p, bad
	}
	if token, ok = strings.CutPrefix(token, e.params.tag+"s."); !ok {
		return p, bad
	}
	if e.version, err = store.ParseVersion(version); err != nil {
		return p, bad
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(raw, &p) != nil || p.Resource == "" {
		return p, bad
	}
	return p, nil
}

// token returns the continue token for the position in the list of the type at. next is the
// continue token of that list; "": its beginning.
func (e *everywhere) token(at location, next string) string {
	raw, _ := json.Marshal(place{at.Group, at.Version, at.Resource, next}) //nolint:errchkjson // strings
	return e.version.String() + "." + e.params.tag + "s." + base64.RawURLEncoding.EncodeToString(raw)
}

// page returns the next page of objects, and the continue token for the page after; "": there is
// none. It sets e.version, e.full and e.explains. A page may be empty and continue, if many objects
// had to be read to be compared with q or filter. It ends early after mostRead bytes of objects.
func (e *everywhere) page(ctx context.Context) (hits []hit, next string, err error) {
	limit := min(cmp.Or(e.params.limit, usualHits), mostHits)
	from, err := e.resume()
	if err != nil {
		return nil, "", err
	}
	begin := location{GroupVersionResource: schema.GroupVersionResource{Group: from.Group, Version: from.Version, Resource: from.Resource}}
	candidates, size := 0, 0
	err = e.each(ctx, begin, func(at location, v view) (bool, error) {
		if len(hits) == limit || candidates >= mostCandidates || e.full {
			next = e.token(at, "")
			return false, nil
		}
		if v.query.NamePrefix != "" && v.query.Order == store.ByKey {
			v.query.Order = store.ByName // this order has an index that finds names by prefix
		}
		pages := &pager{search: e.Search, query: v.query, limit: limit - len(hits), keep: v.keep, version: e.version, candidates: candidates}
		if compareKinds(at, begin) == 0 {
			pages.query.Continue = from.Continue
		}
		found, read := 0, pages.candidates
		for {
			page, err := pages.next(ctx)
			if err != nil {
				return false, err
			}
			if len(page.Rows) == 0 {
				break
			}
			found += len(page.Rows)
			for _, row := range page.Rows {
				size += len(row.Body)
			}
			if hits, err = e.append(ctx, hits, at, v.kind, page.Rows); err != nil {
				return false, err
			}
			if e.full = size > mostRead; e.full {
				break
			}
		}
		e.version, candidates = pages.version, pages.candidates
		e.explains.Kinds = append(e.explains.Kinds, fleetv1alpha1.SearchedKind{
			Group: at.Group, Version: at.Version, Resource: at.Resource, Read: max(candidates-read, found), Found: found,
		})
		if pages.query.Continue != "" {
			next = e.token(at, pages.query.Continue)
			return false, nil
		}
		return true, nil
	})
	return hits, next, err
}

// append appends the rows of one type to hits, and returns the result. The status of a hit is the
// cell of a column of its table: the first that the table has of Status, Phase, Ready, Reason and
// Available.
func (e *everywhere) append(ctx context.Context, hits []hit, at location, k kind, rows []store.Row) ([]hit, error) {
	columns, err := e.columns(ctx, at, k)
	if err != nil {
		return nil, err
	}
	i := -1
	for _, name := range []string{"Status", "Phase", "Ready", "Reason", "Available"} {
		if i = slices.IndexFunc(columns.heads, func(h head) bool { return h.name == name }); i >= 0 {
			break
		}
	}
	stale := e.lastSeen(at, k, time.Time{})
	for _, row := range rows {
		h := hit{row: row, stale: stale}
		if i >= 0 {
			if cells, err := columns.cells(row); err == nil && cells[i] != nil {
				h.status = fmt.Sprint(cells[i])
			}
		}
		hits = append(hits, h)
	}
	return hits, nil
}

// answer writes a page of hits as a List, as a list of PartialObjectMetadata or as a table. next is
// the continue token. Objects that cannot be shown are left out with a warning.
func (e *everywhere) answer(w http.ResponseWriter, as form, hits []hit, next string) error {
	meta := metav1.ListMeta{ResourceVersion: e.version.String(), Continue: next}
	if e.version == 0 {
		meta.ResourceVersion = "" // no type was read
	}
	show := func(h hit) shown { return shown{names: e.at.names, meta: as.apiVersion(), stale: h.stale} }
	if as.as == asTable {
		return e.table(w, as, hits, meta, show)
	}
	items := make([]any, 0, len(hits))
	for _, h := range hits {
		var item body
		var err error
		if as.as == asPartial {
			item, err = partial(h.row, show(h))
		} else {
			item, err = object(h.row, show(h))
		}
		if err != nil {
			e.warn(leftOut(about(h.row, err)))
			continue
		}
		items = append(items, item)
	}
	tell(w, e.warned)
	list := map[string]any{"apiVersion": "v1", "kind": "List", "metadata": meta, "items": items}
	if as.as == asPartial {
		list["apiVersion"], list["kind"] = as.apiVersion(), asPartial+"List"
	}
	return as.wire.answer(w, list)
}

// searched are the columns of the table of a search of every kind.
var searched = []metav1.TableColumnDefinition{
	{Name: "Kind", Type: "string"},
	{Name: "Cluster", Type: "string"},
	{Name: "Namespace", Type: "string"},
	{Name: "Name", Type: "string", Format: "name"},
	{Name: "Age", Type: "string"},
	{Name: "Status", Type: "string"},
	{Name: "API Version", Type: "string", Priority: 1},
	{Name: "Created", Type: "string", Priority: 1},
}

// table writes a page of hits as a table. show returns how a hit is shown. Objects that cannot be
// shown are left out with a warning.
func (e *everywhere) table(w http.ResponseWriter, as form, hits []hit, meta metav1.ListMeta, show func(hit) shown) error {
	table := metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: as.apiVersion(), Kind: asTable}, ListMeta: meta, ColumnDefinitions: searched, Rows: []metav1.TableRow{},
	}
	for _, h := range hits {
		r := h.row
		created := ""
		if !r.Created.IsZero() {
			created = r.Created.Format(time.RFC3339)
		}
		row := metav1.TableRow{Cells: []any{
			neutral.Line(r.Kind), r.Cluster, neutral.Line(r.Namespace), neutral.Line(r.Name), since(r.Created), neutral.Line(h.status),
			neutral.Line(schema.GroupVersion{Group: r.Group, Version: r.Version}.String()), created,
		}}
		var o body
		var err error
		switch e.params.include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			o, err = object(r, show(h))
		default:
			o, err = partial(r, show(h))
		}
		if err != nil {
			e.warn(leftOut(about(r, err)))
			continue
		}
		if o != nil {
			raw, err := json.Marshal(o)
			if err != nil {
				return err
			}
			row.Object = runtime.RawExtension{Raw: raw}
		}
		table.Rows = append(table.Rows, row)
	}
	tell(w, e.warned)
	return as.wire.answer(w, table)
}

// counts answers with the numbers of objects of all searched types together. Types whose objects do
// not have a property of the parameter group are left out.
func (e *everywhere) counts(ctx context.Context, w http.ResponseWriter, as form) error {
	if e.params.explain {
		return apierrors.NewBadRequest("parameter explain: it is not for counts")
	}
	c := counts{groups: map[string]int64{}}
	if err := e.each(ctx, location{}, func(at location, v view) (bool, error) {
		return true, e.countView(ctx, at, v, e.params.group, &c)
	}); err != nil {
		return err
	}
	if err := c.bounded(); err != nil {
		return err
	}
	tell(w, e.warned)
	return answerCounts(w, as, e.params.group, c)
}

// mostGroups is the maximum number of groups in an answer to the parameter group. A request with
// more is an error.
const mostGroups = 10_000

// The ways in which the store or this package evaluates a term, as texts for users.
const (
	byIndex   = "an index"
	byRow     = "the rows of objects, without their bodies"
	byReading = "objects that are read, at most 10000 for each page"
)

// explain completes e.explains, the answer to the parameter explain, after the page was read: with
// the query, how each term was evaluated, and the time. more reports whether there is a further
// page.
func (e *everywhere) explain(more bool, took time.Duration) {
	x, a := &e.explains, e.params.asked
	x.TypeMeta = metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "SearchExplanation"}
	x.Query, x.More, x.Milliseconds = a.query.String(), more, took.Milliseconds()
	if x.Kinds == nil {
		x.Kinds = []fleetv1alpha1.SearchedKind{}
	}
	if a.filter != nil {
		x.Filter = a.filter.String()
		x.Terms = append(x.Terms, fleetv1alpha1.SearchTerm{Term: x.Filter, Means: "an expression", How: byReading})
	}
	for _, t := range a.query.Terms {
		x.Terms = append(x.Terms, fleetv1alpha1.SearchTerm{Term: t.String(), Means: t.Means(), How: how(t)})
	}
}

// how returns how a term is evaluated, as a text for users. Terms about fields that an index finds
// are also compared with the objects read, which makes them exact.
func how(t query.Term) string {
	globbed := slices.ContainsFunc(t.Values, func(v query.Value) bool { return v.Glob })
	switch t.Key {
	case query.Kind, query.Cluster:
		return byIndex
	case query.Age, query.Created:
		return byRow
	case query.Text:
		if t.Not {
			return byRow
		}
		return byIndex
	case query.Word, query.Name, query.Namespace:
		if globbed || t.Not {
			return byRow
		}
		return byIndex
	case query.Label:
		switch {
		case globbed:
			return byReading
		case t.Not || len(t.Values) != 1:
			return byRow
		}
		return byIndex
	case query.Image:
		if !globbed && !t.Not {
			return byIndex
		}
		return byReading
	case query.Phase, query.Node, query.Uses:
		if !globbed && !t.Not && len(t.Values) == 1 {
			return byIndex
		}
		return byReading
	case query.Is:
		if rare(t) != "" {
			return byIndex
		}
		return byReading
	default:
		return byReading
	}
}
