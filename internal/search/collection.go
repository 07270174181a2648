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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// collectionVersion is the API of collections. A collection is a list of objects of several types,
// with the path and the format of Clusterpedia.
var collectionVersion = schema.GroupVersion{Group: "clusterpedia.io", Version: "v1beta1"}

const (
	collectionResource = "collectionresources"
	collectionKind     = "CollectionResource"
	collectionPath     = "/apis/clusterpedia.io/v1beta1/collectionresources/"
)

// collection is a list of objects of several types. has decides which types it contains, and what
// describes these types for users.
type collection struct {
	what string
	// has reports whether the collection contains a type. For "any", the request decides.
	has func(p params, t schema.GroupVersionResource, kind string) bool
}

// collections has all collections by name: any, whose types the request names, workloads and
// kuberesources.
var collections = map[string]collection{
	"any": {"what the parameters groups and resources name", func(p params, t schema.GroupVersionResource, _ string) bool {
		return hasOne(p.groups, groupTexts(t)) || hasOne(p.resources, resourceTexts(t))
	}},
	"workloads": {"deployments, statefulsets and daemonsets", func(_ params, t schema.GroupVersionResource, _ string) bool {
		return t.Group == "apps" && slices.Contains([]string{"deployments", "statefulsets", "daemonsets"}, t.Resource)
	}},
	"kuberesources": {"all types of Kubernetes itself", func(_ params, t schema.GroupVersionResource, kind string) bool {
		return scheme.Scheme.Recognizes(t.GroupVersion().WithKind(kind))
	}},
}

// hasOne reports whether at least one of the texts is in a sorted list.
func hasOne(sorted, texts []string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		_, found := slices.BinarySearch(sorted, text)
		return found
	})
}

// groupNames returns the names by which requests may name a group. core and api mean the core
// group. So a group that is itself called core or api has no name.
func groupNames(group string) []string {
	switch group {
	case "":
		return []string{"", "core", "api"}
	case "core", "api":
		return nil
	default:
		return []string{group}
	}
}

// groupTexts returns the values of the parameter groups that select the type t: GROUP and
// GROUP/VERSION, for each name of its group.
func groupTexts(t schema.GroupVersionResource) (texts []string) {
	for _, group := range groupNames(t.Group) {
		texts = append(texts, group, group+"/", group+"/"+t.Version)
	}
	return texts
}

// resourceTexts returns the values of the parameter resources that select the type t:
// RESOURCE.GROUP, GROUP/RESOURCE and GROUP/VERSION/RESOURCE, for each name of its group.
func resourceTexts(t schema.GroupVersionResource) []string {
	texts := []string{t.Resource + "." + t.Group}
	if t.Group == "" {
		texts = append(texts, t.Resource)
		if t.Version == "v1" {
			texts = append(texts, "v1/"+t.Resource)
		}
	}
	for _, group := range groupNames(t.Group) {
		texts = append(texts, group+"/"+t.Resource, group+"/"+t.Version+"/"+t.Resource)
	}
	return texts
}

// addCollections adds the type CollectionResource to the types of discovery.
func (c catalogue) addCollections() {
	c[collectionVersion.Group] = map[string][]member.API{collectionVersion.Version: {{
		GroupVersionKind: collectionVersion.WithKind(collectionKind), Resource: collectionResource, Singular: "collectionresource",
	}}}
}

// entry is one type of a collection in an answer: which of its objects the caller sees (view), and
// how they are encoded.
type entry struct {
	at      location
	view    view
	encoder encoder
}

// key returns a text that identifies the type of the entry, for maps and for continue tokens of a
// collection.
func (e entry) key() string { return e.at.String() }

// serveCollections answers a request for collections: with the list of the collections or, if the
// path has a name, with the objects of that collection. Parameters that only lists of one type take
// are errors (400).
func (s *Search) serveCollections(w http.ResponseWriter, r *http.Request, at location) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || at.subresource != "" {
		return refuse(r, at)
	}
	if err := s.admitAny(r.Context(), firstNamespace(r.URL.Query())); err != nil {
		return err
	}
	p, err := parseParams(r.URL.Query())
	if err != nil {
		return err
	}
	if err := p.checkListOptions(false); err != nil {
		return err
	}
	if p.moments() > 0 || p.all {
		return withoutHistory("parameters at, changedSince, history and deleted: ask for one type at a time, a collection is as it is now")
	}
	as, err := formOf(r)
	if err != nil {
		return err
	}
	switch one, ok := collections[at.name]; {
	case at.namespace != "":
		return notFound(collectionResource + " in a namespace")
	case p.watch || at.watch:
		return apierrors.NewBadRequest("parameter watch: collections are lists; watch their types one by one")
	case at.name == "":
		if err := s.checkClusters(at, p.clusters); at.cluster != "" && err != nil {
			return err
		}
		return as.wire.answer(w, listCollections(as))
	case !ok:
		return apierrors.NewNotFound(collectionVersion.WithResource(collectionResource).GroupResource(), at.name)
	case !p.asked.empty() || p.group != nil || p.explain:
		return apierrors.NewBadRequest("parameters q, filter, group and explain are not for collections: ask for them at the path " + searchPath)
	case at.name == "any" && p.groups == nil && p.resources == nil:
		return apierrors.NewBadRequest("collection any: name what it is to have, with groups=apps,batch/v1 or resources=core/v1/pods,deployments.apps")
	case at.name != "any" && (p.groups != nil || p.resources != nil):
		return p.checkCollection()
	case p.ordered:
		return apierrors.NewBadRequest("parameter orderby: a collection has its types one after the other, each in the order of the key; order one type")
	case p.offset > 0:
		return apierrors.NewBadRequest("parameter offset: a collection goes on with its continue token")
	case p.version != "" && p.version != "0":
		return apierrors.NewBadRequest("parameter resourceVersion: a collection is as it is now")
	default:
		return s.serveCollection(w, r, at, one, p, p.form(as))
	}
}

// listCollections returns the answer with the names of all collections: a table, or a
// CollectionResourceList whose items have no objects.
func listCollections(as form) any {
	names := slices.Sorted(maps.Keys(collections))
	if as.as == asTable {
		table := metav1.Table{
			TypeMeta:          metav1.TypeMeta{Kind: asTable, APIVersion: as.apiVersion()},
			ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name"}, {Name: "Has", Type: "string"}},
		}
		for _, name := range names {
			table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{name, collections[name].what}})
		}
		return table
	}
	items := make([]any, len(names))
	for i, name := range names {
		items[i] = map[string]any{"apiVersion": collectionVersion.String(), "kind": collectionKind, "metadata": map[string]any{"name": name}, "resourceTypes": []any{}, "items": []any{}}
	}
	return map[string]any{"apiVersion": collectionVersion.String(), "kind": collectionKind + "List", "metadata": map[string]any{}, "items": items}
}

// types returns the mirrored types of a collection that the caller may know, each once. They are
// sorted by group, then version (the preferred one first), then resource. The error means that a
// right could not be checked.
func (s *Search) types(ctx context.Context, one collection, p params) (out []schema.GroupVersionResource, err error) {
	for _, t := range s.Mirror.Types() {
		gvr := t.GroupVersionResource()
		if !one.has(p, gvr, t.GroupVersionKind.Kind) || slices.Contains(out, gvr) {
			continue
		}
		visible, err := s.mayName(ctx, t)
		if err != nil {
			return nil, err
		}
		if visible {
			out = append(out, gvr)
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), -version.CompareKubeAwareVersionStrings(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	return out, nil
}

// serveCollection answers with the objects of one collection. Each type has the rights and the
// rules of its own list. Types that the caller may not list are left out with a warning. If all are
// left out so, the error is Forbidden. If none of the requested clusters has a type, it is
// NotFound.
func (s *Search) serveCollection(w http.ResponseWriter, r *http.Request, at location, one collection, p params, as form) error {
	ctx, cancel := context.WithTimeout(r.Context(), searchTimeout)
	defer cancel()
	var entries []entry
	var refused, missing error
	var warnings, closed []string
	only := narrowed{}
	types, err := s.types(ctx, one, p)
	if err != nil {
		return err
	}
	for _, gvr := range types {
		e := entry{at: location{cluster: at.cluster, document: "apis", GroupVersionResource: gvr, names: at.names, own: true}}
		var err error
		e.view, err = s.look(ctx, e.at, p, "list")
		switch {
		case apierrors.IsForbidden(err):
			refused = err
			closed = append(closed, gvr.GroupResource().String())
			continue
		case isClosed(err) && isUnlike(err): // the caller must not learn that the type exists
			continue
		case apierrors.IsNotFound(err), isClosed(err):
			missing = err
			continue
		case err != nil:
			return err
		}
		if len(e.view.kind.clusters) == 0 {
			continue
		}
		e.view.kind.others = nil // each version of a type has its own entry
		only.add(gvr.GroupResource(), e.view.seen)
		warnings = append(warnings, s.typeWarnings(e.at, e.view.kind, e.view.seen)...)
		entries = append(entries, e)
	}
	switch {
	case len(entries) > 0:
	case refused != nil:
		return refused
	case missing != nil:
		return missing
	case at.name == "any":
		return notFound("what groups and resources name")
	}
	if text := only.text(closed); text != "" {
		warnings = append([]string{text}, warnings...)
	}
	others, err := s.otherVersions(ctx, at, one, p)
	if err != nil {
		return err
	}
	warnings = append(warnings, others...)
	pages, err := s.collect(ctx, entries, p)
	if err != nil {
		return err
	}
	enc, err := s.collectionEncoder(ctx, as, at, entries, p)
	if err != nil {
		return err
	}
	pages.name = at.name
	tell(w, warnings)
	return s.list(ctx, w, pages, enc, collectionResource+"/"+at.name)
}

// collectionEncoder returns the encoder for a collection: each object is encoded as in the list of
// its type, and tables have columns that suit every type. It sets the encoder of each entry.
// Encoding a row of a type that is not in entries is an error.
func (s *Search) collectionEncoder(ctx context.Context, as form, at location, entries []entry, p params) (encoder, error) {
	by := map[string]encoder{}
	columns := collectionColumns()
	stale := false
	types := []any{}
	for i := range entries {
		e := &entries[i]
		seen := s.lastSeen(e.at, e.view.kind, time.Time{})
		stale = stale || len(seen) > 0
		show := shown{names: at.names, meta: as.apiVersion(), stale: seen}
		if as.as == asTable {
			of := columns.lastSeen(seen)
			e.encoder.item = func(row store.Row) (any, error) { return tableRow(of, row, p.include, show) }
		} else {
			var err error
			if e.encoder, err = s.encoder(ctx, as, e.at, e.view.kind, p.include, show); err != nil {
				return encoder{}, err
			}
		}
		by[e.key()] = e.encoder
		gvk := e.view.kind.GroupVersionKind
		types = append(types, map[string]any{"group": gvk.Group, "version": gvk.Version, "resource": e.at.Resource, "kind": gvk.Kind})
	}
	out := encoder{wire: as.wire, items: "items", item: func(row store.Row) (any, error) {
		gvr := schema.GroupVersionResource{Group: row.Group, Version: row.Version, Resource: row.Resource}
		one, ok := by[gvr.String()]
		if !ok {
			return nil, fmt.Errorf("%s is not of the collection", gvr)
		}
		item, err := one.item(row)
		if cells, ok := item.(metav1.TableRow); ok && stale && len(cells.Cells) < len(columns.heads)+1 {
			cells.Cells = append(cells.Cells, "now") // a type that is not stale
			item = cells
		}
		return item, err
	}}
	switch as.as {
	case asTable:
		definitions := columns.definitions()
		if stale {
			definitions = columns.lastSeen(map[string]time.Time{"": {}}).definitions()
		}
		out.items, out.list = "rows", map[string]any{"kind": asTable, "apiVersion": as.apiVersion(), "columnDefinitions": definitions}
	case asPartial:
		out.list = map[string]any{"kind": asPartial + "List", "apiVersion": as.apiVersion()}
	default:
		out.list = map[string]any{"kind": collectionKind, "apiVersion": collectionVersion.String(), "resourceTypes": types}
	}
	return out, nil
}

// collectionColumns returns the columns of the table of a collection: cluster, namespace, kind,
// name, API version and age.
func collectionColumns() *columns {
	return &columns{heads: []head{
		clusterHead,
		{name: "Namespace", typ: "string", cell: func(r store.Row) any { return r.Namespace }},
		{name: "Kind", typ: "string", cell: func(r store.Row) any { return r.Kind }},
		nameHead,
		{name: "API Version", typ: "string", wide: true, cell: func(r store.Row) any {
			return schema.GroupVersion{Group: r.Group, Version: r.Version}.String()
		}},
		ageHead,
	}, row: func(store.Row) ([]any, error) { return nil, nil }}
}

// collector is the source of the rows of a collection: it reads the types one after another.
type collector struct {
	tag     string // hash of the request
	entries []entry
	pagers  []*pager
	name    string
	limit   int   // 0: no limit
	now     int   // index of the entry that is being read
	read    int   // number of rows that this request has read
	before  int   // number of rows on the pages before
	total   int64 // number of rows on all pages; 0: unknown
	version store.Version
	last    bool // the client wants no continue token
}

// collectionToken is the content of a continue token of a collection: the type at which the next
// page begins, the token in the list of that type, and the number of rows on the pages before.
type collectionToken struct {
	Type string `json:"t"`
	Next string `json:"n"` // the token of the type; "": its beginning
	Read int    `json:"r"`
	Tag  string `json:"q"` // hash of the request
}

// collect returns a collector for the entries. With a continue token it begins where the page
// before ended. A token of another request is an error (400). If the type in the token is not in
// entries, the error is Expired. It also counts the rows if the client wants that.
func (s *Search) collect(ctx context.Context, entries []entry, p params) (*collector, error) {
	c := &collector{entries: entries, limit: p.limit, last: p.noContinue, tag: p.tag}
	var token collectionToken
	if p.next != "" {
		b, err := base64.RawURLEncoding.DecodeString(p.next)
		if err == nil {
			err = json.Unmarshal(b, &token)
		}
		if err != nil || token.Type == "" || token.Read < 0 || token.Tag != p.tag {
			return nil, badToken()
		}
		c.now = slices.IndexFunc(entries, func(e entry) bool { return e.key() == token.Type })
		if c.now < 0 {
			return nil, apierrors.NewResourceExpired("the continue token is of a type that the collection has no more, for you: list again without it")
		}
		c.before = token.Read
	}
	for i, e := range entries {
		one := p
		one.next, one.limit = "", 0
		if i == c.now {
			one.next = token.Next
		}
		pages, err := s.pages(e.view, one, 0)
		if err != nil {
			return nil, err
		}
		c.pagers = append(c.pagers, pages)
		whole := *pages
		whole.limit = p.limit
		if err := whole.count(ctx, p, e.view.kind); err != nil {
			return nil, err
		}
		c.total += whole.total
	}
	return c, nil
}

// next implements source: it returns the next rows of the collection, and none at its end or after
// c.limit rows. The version of the first page is that of the whole list.
func (c *collector) next(ctx context.Context) (store.Page, error) {
	for c.now < len(c.pagers) && (c.limit == 0 || c.read < c.limit) {
		one := c.pagers[c.now]
		if c.limit > 0 {
			one.limit = one.read + c.limit - c.read
			one.done = one.done && one.query.Continue == ""
		}
		page, err := one.next(ctx)
		if apierrors.IsResourceExpired(err) {
			return page, expired()
		}
		if err != nil {
			return page, err
		}
		c.version = cmp.Or(c.version, page.Version)
		c.read += len(page.Rows)
		if one.query.Continue == "" {
			c.now++
		}
		if len(page.Rows) > 0 {
			return page, nil
		}
	}
	return store.Page{}, nil
}

// tail implements source: it returns the metadata of the list. The continue token is also in
// another field, where clients of Clusterpedia read it.
func (c *collector) tail() (metav1.ListMeta, map[string]any) {
	meta := metav1.ListMeta{ResourceVersion: c.version.String()}
	more := map[string]any{}
	if c.now < len(c.pagers) && !c.last {
		b, _ := json.Marshal(collectionToken{c.entries[c.now].key(), c.pagers[c.now].token(), c.before + c.read, c.tag}) //nolint:errchkjson // strings and a number
		meta.Continue = base64.RawURLEncoding.EncodeToString(b)
		more["continue"] = meta.Continue
	}
	if rest := c.total - int64(c.before+c.read); c.total > 0 && c.now < len(c.pagers) {
		rest = max(rest, 0)
		meta.RemainingItemCount = &rest
		more["remainingItemCount"] = rest
	}
	more["metadata"] = map[string]any{"name": c.name, "resourceVersion": meta.ResourceVersion, "continue": meta.Continue, "remainingItemCount": meta.RemainingItemCount}
	return meta, more
}
