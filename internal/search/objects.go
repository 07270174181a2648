package search

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/store"
)

// pageSize is the maximum number of rows that a list has in memory at once, for any limit.
const pageSize = 500

// searchTimeout limits a search that is not a watch. The kube-apiserver has the same limit for
// requests that are not streams.
const searchTimeout = time.Minute

// longestQuery limits one query of the store, for a page or a count. Most queries with an index
// take milliseconds.
const longestQuery = 10 * time.Second

// named is how many clusters, warnings or other names a text lists. Further ones are only counted.
const named = 16

// serveObjects answers a request for objects of one type: with a list, one object, counts, a
// history or a watch. at is the parsed path. It returns an error only if nothing was written.
func (s *Search) serveObjects(w http.ResponseWriter, r *http.Request, at location) error {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return refuse(r, at)
	case at.subresource != "":
		return notAllowed(fmt.Sprintf("%s/%s: subresources are not mirrored", at.Resource, at.subresource), at)
	}
	at = s.source(at)
	query := r.URL.Query()
	if err := s.admit(r.Context(), at, firstNamespace(query), verbOf(at, query)); err != nil {
		return err
	}
	p, err := parseParams(query)
	if err != nil {
		return err
	}
	if err := p.checkCollection(); err != nil {
		return err
	}
	p.watch = p.watch && at.name == "" || at.watch
	if err := p.checkListOptions(at.name != "" && !at.watch); err != nil {
		return err
	}
	if api, ok := s.live(at); ok {
		return s.serveLive(w, r, at, p, api)
	}
	if err := at.translate(&p); err != nil {
		return err
	}
	accepts := p.formsFor(r)
	if err := p.checkTimes(at.name != ""); err != nil {
		return err
	}
	switch {
	case at.name != "" && (!p.asked.empty() || p.group != nil):
		return apierrors.NewBadRequest("parameters q, filter and group are for lists: the path names one object")
	case p.explain:
		return apierrors.NewBadRequest("parameter explain: it is for the path " + searchPath)
	case p.group != nil && p.watch:
		return apierrors.NewBadRequest("parameter group: counts have no watch")
	case p.group != nil:
		as, err := formOf(r)
		if err != nil {
			return err
		}
		return s.serveCounts(w, r, at, p, p.form(as))
	}
	if p.watch {
		return s.serveWatch(w, r, at, p, accepts)
	}
	ctx, cancel := context.WithTimeout(r.Context(), searchTimeout)
	defer cancel()
	verb := "list"
	if at.name != "" {
		verb = "get"
	}
	v, err := s.look(ctx, at, p, verb)
	if err != nil {
		return err
	}
	asked, err := s.asked(ctx, p, v.seen.tag)
	if apierrors.IsResourceExpired(err) {
		// The version may be from a search of every kind or from a collection: these have no tag.
		asked, err = s.asked(ctx, p, 0)
	}
	if err != nil {
		return err
	}
	show := shown{names: at.names, stale: s.lastSeen(at, v.kind, p.at)}
	v.kind.isHistory, v.kind.bare = p.isHistory(), len(accepts) > 0 && accepts[0].as == asPartial
	s.warn(w, at, v.kind, v.seen)
	if p.isHistory() {
		return s.serveHistory(ctx, w, at, p, v)
	}
	if v.query.At = p.at; !p.at.IsZero() {
		// The API version may have been another at that moment. Warnings name objects that cannot be
		// converted.
		v.query.Version = ""
		warnOfThen(w, p.at)
	}
	if at.name != "" {
		v.query.Names = []string{at.name}
	}
	for long := false; ; {
		as, err := s.choose(accepts, at.as(v.kind), func(f form) bool { return f.can(at.as(v.kind)) && (!long || !f.wire.protobuf()) })
		if long && err != nil {
			return failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, fmt.Sprintf(
				"the list of %s is longer than %d MiB, too long for one in protobuf: ask for it in pages, with limit and continue, or accept application/json as well", at.GroupResource(), mostInProtobuf>>20))
		}
		if err != nil {
			return err
		}
		enc, err := s.encoder(ctx, as, at, v.kind, p.include, show)
		if err != nil {
			return err
		}
		enc.tag = v.seen.tag
		warnOfLoss(w, at, as)
		switch err := s.answer(ctx, w, at, p, v, asked, enc); {
		case errors.Is(err, errLongInProtobuf):
			long = true
		case !s.learn(enc, err):
			return err
		}
	}
}

// answer answers with the objects of the view v: with one object if the path names one, else with a
// list. asked is the version that the request asks for; 0: any. If the error is errLongInProtobuf
// or a lossError, nothing was written, and the caller may call answer again with another encoding.
func (s *Search) answer(ctx context.Context, w http.ResponseWriter, at location, p params, v view, asked store.Version, enc encoder) error {
	if at.name != "" {
		return s.get(ctx, w, at, v.query, enc)
	}
	pages, err := s.pages(v, p, asked)
	if err != nil {
		return err
	}
	if err := pages.count(ctx, p, v.kind); err != nil {
		return err
	}
	return s.list(ctx, w, pages, enc, at.Resource)
}

// warnOfLoss adds a warning if the answer is in inProtobuf, which lacks some fields of objects: the
// client accepts nothing else.
func warnOfLoss(w http.ResponseWriter, at location, as form) {
	if as.wire == inProtobuf {
		tell(w, []string{fmt.Sprintf("in protobuf, %s are without fields that their clusters have and the hub does not know: accept application/json as well", at.asked().GroupResource())})
	}
}

// view is what a request selects, restricted to what the caller may see. look makes it.
type view struct {
	query store.Query
	kind  kind
	seen  scope
	keep  keep // reports whether a row of the query belongs to the view; nil: all do
}

// qualifyFields removes the clusters from names NAME@CLUSTER in the field selector, for a request
// with Qualified names. These are values of metadata.namespace and, for a type without namespaces,
// of metadata.name. Unless the path names the cluster, it sets p.clusters to the cluster of the
// names. p gets new slices. It does nothing for Merged names.
//
// It returns an error (400) for a name without a cluster, and for a cluster that is not the one of
// the request. A namespace with a cluster in q is an error, too.
func (s *Search) qualifyFields(at location, p *params) error {
	if at.names == Merged {
		return nil
	}
	if slices.ContainsFunc(p.asked.namespaces(), func(name string) bool { return strings.Contains(name, "@") }) {
		return apierrors.NewBadRequest("parameter q: it is of names as they are in their clusters: write namespace:shop cluster:oak for shop@oak")
	}
	return s.qualifyNamed(at, p, func(path string) bool {
		return path == "metadata.namespace" || path == "metadata.name" && !s.namespaced(at)
	})
}

// qualifyNamed removes the clusters from names NAME@CLUSTER in the field selectors for whose path
// the function is returns true. Unless the path of the request names the cluster, it sets
// p.clusters. A selector without =, a value without a cluster, and a cluster that is not the one of
// the request are errors (400).
func (s *Search) qualifyNamed(at location, p *params, is func(path string) bool) error {
	fields := slices.Clone(p.fields)
	for i, f := range fields {
		if !is(f.Path) {
			continue
		}
		name, cluster, ok := unqualified(f.Value)
		if !ok || f.Operator != selection.Equals && f.Operator != selection.DoubleEquals || p.clusters != nil && !slices.Equal(p.clusters, []string{cluster}) {
			return apierrors.NewBadRequest(fmt.Sprintf("parameter fieldSelector: %s must be one name with its cluster, NAME@CLUSTER", f.Path))
		}
		fields[i].Value = name
		if at.cluster == "" {
			p.clusters = []string{cluster}
		} else if at.cluster != cluster {
			return apierrors.NewBadRequest(fmt.Sprintf("parameter fieldSelector: %s is of another cluster than the path", f.Path))
		}
	}
	p.fields = fields
	return nil
}

// namespaced reports whether objects of the type at have a namespace in at least one cluster.
func (s *Search) namespaced(at location) bool {
	return slices.ContainsFunc(s.Mirror.Types(), func(t mirror.Type) bool {
		return t.Namespaced && t.Resource == at.Resource && t.GroupVersionKind.Group == at.Group
	})
}

// shows reports whether the view includes the object of a row. row may be nil, for an object that
// does not exist: the result is false. The error is that of the filter.
func (v view) shows(ctx context.Context, row *store.Row) (bool, error) {
	// The view shows nothing if no cluster is left. For the store, an empty list would mean all.
	nowhere := v.query.Clusters != nil && len(v.query.Clusters) == 0
	if row == nil || nowhere || !v.query.Selects(row) || v.keep == nil {
		return row != nil && !nowhere && v.query.Selects(row), nil
	}
	return v.keep(ctx, row)
}

// look returns the view for a request with the parameters p: it checks the rights for verb and the
// parameters, and finds the clusters. Errors are for the client. Those of rights are Forbidden and
// closedError. An unlikeError or NotFound means that the type does not suit the request or does not
// exist. Others are 400 for parameters, and 503 if the hub has not read the clusters yet.
func (s *Search) look(ctx context.Context, at location, p params, verb string) (view, error) {
	if err := s.qualifyFields(at, &p); err != nil {
		return view{}, err
	}
	if p.namespaces == nil && at.namespace == "" {
		p.namespaces = p.asked.namespaces()
	}
	seen, err := s.authorize(ctx, at, p, verb)
	if err != nil {
		return view{}, err
	}
	if err := seen.check(at, p); err != nil {
		return view{}, err
	}
	t, err := s.find(at, p.clusters, seen)
	if err != nil {
		return view{}, err
	}
	if err := seen.narrow(&t); err != nil {
		return view{}, err
	}
	if err := s.narrow(ctx, at, &t, p.asked, seen); err != nil {
		return view{}, err
	}
	if err := s.checkFields(ctx, at, t, p.fields); err != nil {
		return view{}, err
	}
	q := store.Query{
		Group: at.Group, Version: at.Version, Resource: at.Resource, Namespaces: p.namespaces, Names: p.names,
		Labels: p.labels, Fields: p.fields, Scopes: seen.scopes(at, t),
	}
	p.into(&q)
	if !at.own {
		q.Interchangeable = versionsLike(at.GroupResource(), at.Version)
	}
	if err := s.checkOwner(ctx, at, p); err != nil {
		return view{}, err
	}
	if t.partial {
		q.Clusters = append([]string{}, t.clusters...) // never nil, because nil means all clusters
	}
	if p.chained() && len(q.Clusters) > 1 || p.chained() && q.Clusters == nil {
		return view{}, apierrors.NewBadRequest("parameters ownerName and ownerSeniority: owners are looked for within one cluster: name it, by clusters or by the path")
	}
	if at.namespace != "" {
		if q.Namespaces != nil {
			return view{}, apierrors.NewBadRequest("parameter namespaces: the path names the namespace already")
		}
		q.Namespaces = []string{at.namespace}
	}
	kept, err := p.asked.refine(&q, t)
	return view{q, t, seen, kept}, err
}

// kind is the requested type, with the requested clusters that have it. find makes it.
type kind struct {
	member.API
	// clusters have the type in the requested API version.
	clusters []string
	// others has the clusters with the type in another API version, by that version.
	others map[string][]string
	// scopes has the clusters in which the type is namespaced (true) and cluster-scoped (false). A
	// key is also there if the caller sees none of its clusters.
	scopes map[bool][]string
	// partial is true if the query must be restricted to clusters.
	partial bool
	// unread are requested clusters that the hub has not read yet, so their objects are missing.
	unread []string
	// isHistory is true if the answer is the history of objects and not the objects.
	isHistory bool
	// bare is true if the answer has only the metadata of objects.
	bare bool
}

// find returns the type at in the clusters only; nil: in all. seen is what the caller may see.
// NotFound means that no requested cluster has the type. If the type exists only in clusters in
// which the caller sees nothing, that error is a closedError. A type of Kubernetes is found then,
// without clusters.
func (s *Search) find(at location, only []string, seen scope) (kind, error) {
	k := kind{others: map[string][]string{}, scopes: map[bool][]string{}, partial: only != nil || at.cluster != ""}
	if err := s.checkClusters(at, only); err != nil {
		return k, err
	}
	if at.cluster != "" {
		only = []string{at.cluster}
	}
	served := map[bool]bool{} // whether the type is namespaced, in clusters with something visible
	wanted := sets.New(only...)
	hidden := false
	missing := func(what string) error {
		if hidden {
			return closedError{notFound(what)}
		}
		return notFound(what)
	}
	types := s.Mirror.Types()
	if err := k.findUnread(s.Clusters(), types, only, seen); err != nil {
		return k, err
	}
	for _, t := range types {
		if t.GroupVersionKind.Group != at.Group || t.Resource != at.Resource {
			continue
		}
		visible := slices.Clone(t.Clusters)
		if seen.fence != nil {
			if visible = slices.DeleteFunc(visible, seen.closed); len(visible) == 0 && !isOfKubernetes(at.Group) {
				hidden = true
				continue
			}
		}
		clusters := slices.DeleteFunc(visible, func(c string) bool {
			return only != nil && !wanted.Has(c)
		})
		if v := t.GroupVersionKind.Version; v != at.Version && !at.own && areInterchangeable(at.GroupResource(), v, at.Version) {
			t.GroupVersionKind.Version = at.Version
		} else if v != at.Version {
			k.others[v] = append(k.others[v], clusters...)
			k.partial = true
			continue
		}
		if len(served) == 0 {
			k.API = t.API
		}
		served[t.Namespaced] = true
		k.clusters = append(k.clusters, clusters...)
		k.scopes[t.Namespaced] = append(k.scopes[t.Namespaced], clusters...)
	}
	slices.Sort(k.clusters)
	switch {
	case len(served) == 0, at.cluster != "" && len(k.clusters) == 0:
		return k, missing(at.Resource + " of " + at.GroupVersion().String())
	case at.namespace != "" && !served[true]:
		return k, missing(at.Resource + " in a namespace")
	case at.namespace == "" && at.name != "" && !served[false]:
		return k, missing(at.Resource + " outside of namespaces")
	}
	return k, nil
}

// findUnread sets k.unread to the clusters that the hub has not read yet, among the clusters only
// in which the caller may see something; only nil: all clusters. types are the mirrored types. It
// returns an error (503) if the hub has read none of these clusters.
func (k *kind) findUnread(clusters []string, types []mirror.Type, only []string, seen scope) error {
	read := sets.New[string]()
	for _, t := range types {
		read.Insert(t.Clusters...)
	}
	if only == nil {
		only = clusters
	}
	known := false
	for _, c := range only {
		switch {
		case seen.fence != nil && seen.closed(c):
		case read.Has(c):
			known = true
		default:
			k.unread = append(k.unread, c)
		}
	}
	if len(k.unread) == 0 || known {
		return nil
	}
	err := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		// The message names no cluster: the name may be hidden from the caller.
		"nothing is known yet of any cluster asked for: see whether it is reachable (orrery cluster describe CLUSTER), and ask again when it was read")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// checkClusters returns an error if the fleet does not have the cluster of the path (404) or one in
// only (400). only is the value of the parameter clusters; nil: not given. Without the error, an
// empty answer would suggest that the cluster has no objects. A request with both is an error
// (400). Whether the caller may know the clusters is not checked.
func (s *Search) checkClusters(at location, only []string) error {
	if at.cluster != "" && only != nil {
		return apierrors.NewBadRequest("parameter clusters: the path names the cluster already")
	}
	if at.cluster == "" && len(only) == 0 {
		return nil
	}
	known := sets.New(s.Clusters()...)
	if at.cluster != "" && !known.Has(at.cluster) {
		return noCluster(at.cluster)
	}
	for _, c := range only {
		if !known.Has(c) {
			return noClusterIn("clusters", c)
		}
	}
	return nil
}

// unreachable returns the warning that a cluster is unreachable since a time; zero: it was never
// reached.
func unreachable(cluster string, since time.Time) string {
	if since.IsZero() {
		return fmt.Sprintf("cluster %s was never reached: none of its objects are known", cluster)
	}
	return fmt.Sprintf("cluster %s is unreachable since %s: its objects are the last known", cluster, since.UTC().Format(time.RFC3339))
}

// lastSeen returns the clusters whose objects of the type are stale, each with the time up to which
// the data is current. moment is the time that the answer is about, zero for now: newer data is not
// stale for it.
func (s *Search) lastSeen(at location, k kind, moment time.Time) map[string]time.Time {
	stale := map[string]time.Time{}
	for _, c := range k.clusters {
		if seen, old := s.Mirror.Freshness(c, at.GroupResource()); old && (moment.IsZero() || seen.Before(moment)) {
			stale[c] = seen
		}
	}
	return stale
}

// warn adds the warnings about an answer with objects of the type at to the header.
func (s *Search) warn(w http.ResponseWriter, at location, k kind, seen scope) {
	tell(w, s.warnings(at, k, seen))
}

// warnings returns the warnings about an answer with objects of the type at: what may be missing or
// old, and namespaces that the caller may not list. k has the clusters, and seen what the caller
// may see.
func (s *Search) warnings(at location, k kind, seen scope) (warnings []string) {
	only := narrowed{}
	only.add(at.GroupResource(), seen)
	if text := only.text(nil); text != "" {
		warnings = append(warnings, text)
	}
	return append(warnings, s.typeWarnings(at, k, seen)...)
}

// typeWarnings returns the warnings about one of several types in an answer: what may be missing or
// old. That the caller may list types in some namespaces only is not included: narrowed makes one
// warning for all types.
func (s *Search) typeWarnings(at location, k kind, seen scope) (warnings []string) {
	gr := at.GroupResource()
	if len(seen.recent) > 0 {
		warnings = append(warnings, fmt.Sprintf("the hub did not have %s yet: nothing of them is shown", enumerate(seen.recent)))
	}
	if len(k.unread) > 0 {
		warnings = append(warnings, fmt.Sprintf("nothing is known yet of %s: its objects are missing", enumerate(k.unread)))
	}
	var parts []string // clusters from which only some objects of the type are mirrored
	for _, c := range k.clusters {
		switch since, stale := s.Mirror.Stale(c); {
		case stale && s.Mirror.Lost(c, gr):
			warnings = append(warnings, fmt.Sprintf("cluster %s is unreachable since %s, and its last known objects were lost: some or all are missing until it answers", c, since.UTC().Format(time.RFC3339)))
		case stale:
			warnings = append(warnings, unreachable(c, since))
		default:
			why, listed := s.Mirror.Silence(c, gr)
			fails := why != "" && !listed
			if seen.refused != nil {
				why = "" // an error of the cluster may name objects that are hidden from the caller
			}
			if fails {
				warnings = append(warnings, unlisted(c, gr, why))
			} else if seen, old := s.Mirror.Freshness(c, gr); old {
				warnings = append(warnings, silent(c, gr, seen, why))
			} else if !s.Mirror.Stored(c, gr) {
				warnings = append(warnings, fmt.Sprintf("cluster %s: %s are still being read, some may be missing", c, gr))
			}
		}
		if s.Mirror.Partial(c, gr) {
			parts = append(parts, c)
		}
		warnings = append(warnings, s.incomplete(c, gr)...)
	}
	if len(parts) > 0 { // the warning does not name the namespaces, which may be hidden
		warnings = append(warnings, fmt.Sprintf("%s of %s are mirrored in part, by namespaces or labels: the rest is not shown", gr, enumerate(parts)))
	}
	for v, clusters := range k.others {
		if len(clusters) == 0 {
			continue
		}
		warnings = append(warnings, fmt.Sprintf("%s of %s are left out: they are in version %s, ask for %s.%s.%s",
			gr, enumerate(clusters), v, at.Resource, v, at.Group))
	}
	if len(k.scopes[true]) > 0 && len(k.scopes[false]) > 0 {
		warnings = append(warnings, fmt.Sprintf("%s are namespaced in %s but not in %s", gr, enumerate(k.scopes[true]), enumerate(k.scopes[false])))
	}
	if gr.Group == "" && gr.Resource == "secrets" && !k.isHistory && !k.bare {
		if bare := slices.DeleteFunc(slices.Clone(k.clusters), func(c string) bool { return !s.Mirror.WithoutData(c) }); len(bare) > 0 {
			warnings = append(warnings, fmt.Sprintf("of some or all secrets of %s only the metadata is mirrored: read their data in the cluster's own context", enumerate(bare)))
		}
	}
	return warnings
}

// tell adds warnings to the header, without duplicates. Beyond the first (named), they are only
// counted.
func tell(w http.ResponseWriter, warnings []string) { tellAs(w, "Warning", warnings, 0) }

// tellAs adds warnings to the header or trailer with the given name, without duplicates. Beyond the
// first (named), they are only counted. more is the number of warnings that the caller has already
// left out.
func tellAs(w http.ResponseWriter, name string, warnings []string, more int) {
	for _, text := range firsts(warnings, more) {
		if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			w.Header().Add(name, header)
		}
	}
}

// firsts returns the first warnings, without duplicates, and a text with the number of those left
// out. more is added to that number.
func firsts(warnings []string, more int) (out []string) {
	seen := sets.New[string]()
	for _, text := range warnings {
		if seen.Has(text) {
			continue
		}
		if seen.Insert(text); len(out) < named {
			out = append(out, text)
		} else {
			more++
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("%d more warnings are left out", more))
	}
	return out
}

// enumerate returns the names of clusters, namespaces or types in one text: the first (named) in
// order, and the number of the others. It sorts names in place.
func enumerate(names []string) string {
	slices.Sort(names)
	if more := len(names) - named; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), more)
	}
	return strings.Join(names, ", ")
}

// get answers with the one object that q selects. If q selects no object, the error is NotFound.
// For several objects it is that of ambiguous (409).
func (s *Search) get(ctx context.Context, w http.ResponseWriter, at location, q store.Query, enc encoder) error {
	q.Limit, q.Continue = 2*named, ""
	page, err := s.query(ctx, q)
	if err != nil {
		return err
	}
	row, err := single(at, page.Rows)
	if err != nil {
		return err
	}
	return enc.one(w, row)
}

// single returns the row if there is exactly one. Without rows the error is NotFound. For several
// rows it is that of ambiguous (409).
func single(at location, rows []store.Row) (store.Row, error) {
	switch len(rows) {
	case 0:
		return store.Row{}, apierrors.NewNotFound(at.asked().GroupResource(), at.name)
	case 1:
		return rows[0], nil
	default:
		var clusters []string
		for _, row := range rows {
			clusters = append(clusters, row.Cluster)
		}
		return store.Row{}, ambiguous(at, clusters)
	}
}

// query reads a page of q from the store. Errors are for the client. If q.Clusters is empty and not
// nil, the page is empty and has the current version; for the store, an empty list would mean all
// clusters.
func (s *Search) query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.Clusters != nil && len(q.Clusters) == 0 {
		now, err := s.now(ctx)
		return store.Page{Version: now}, err // for the store, an empty list would mean all
	}
	within, cancel := context.WithTimeout(ctx, s.longest)
	defer cancel()
	page, err := s.Store.List(within, q)
	if refused := noHistory(err, schema.GroupResource{Group: q.Group, Resource: q.Resource}.String()); refused != nil {
		return page, refused
	}
	return page, s.answered(ctx, within, q, err)
}

// count returns the number of objects that q selects. Errors are for the client. If q.Clusters is
// empty and not nil, the number is 0.
func (s *Search) count(ctx context.Context, q store.Query) (int64, error) {
	if q.Clusters != nil && len(q.Clusters) == 0 {
		return 0, nil
	}
	within, cancel := context.WithTimeout(ctx, s.longest)
	defer cancel()
	n, err := s.Store.Count(within, q)
	return n, s.answered(ctx, within, q, err)
}

// answered turns an error of the store into one for the client, and logs it if the client does not
// get its text; nil for nil. within is the context of the query, which has a deadline. ctx is the
// context of the request.
func (s *Search) answered(ctx, within context.Context, q store.Query, err error) error {
	if errors.Is(err, store.ErrOtherQuery) { // only the clusters differ from those in the token
		return apierrors.NewResourceExpired("the continue token is of a list of other objects, or the clusters that have them changed meanwhile: list again without it")
	}
	if errors.Is(err, store.ErrContinue) || errors.Is(err, store.ErrSelector) {
		return apierrors.NewBadRequest(err.Error())
	}
	var known apierrors.APIStatus
	if err == nil || errors.As(err, &known) || ctx.Err() != nil {
		return err
	}
	if within.Err() != nil {
		return tooLong(q, s.longest)
	}
	// The error of the database is for the operator. The client gets advice.
	logr.FromContextOrDiscard(ctx).Error(err, "search failed", "resource", q.Resource)
	if errors.Is(err, store.ErrUnavailable) {
		return unavailable()
	}
	return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, "the fleet's objects cannot be searched so; the server's log says why")
}
