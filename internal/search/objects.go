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

// pageSize is the maximum number of rows in memory at once, for any number of requested rows.
const pageSize = 500

// searchTimeout limits a search that is not a watch. The kube-apiserver has the same limit for
// requests that are not streams.
const searchTimeout = time.Minute

// longestQuery limits a query of the store for one page or count. With an index, most take
// milliseconds.
const longestQuery = 10 * time.Second

// named is how many clusters or warnings are listed by name. Further ones are only counted.
const named = 16

// serveObjects lists objects, reads one object or watches a type.
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
		// Versions from a search of all types and from a collection have no tag.
		asked, err = s.asked(ctx, p, 0)
	}
	if err != nil {
		return err
	}
	show := shown{names: at.names, stale: s.lastSeen(at, v.kind, p.at)}
	v.kind.told, v.kind.bare = p.told(), len(accepts) > 0 && accepts[0].as == asPartial
	s.warn(w, at, v.kind, v.seen)
	if p.told() {
		return s.serveHistory(ctx, w, at, p, v)
	}
	if v.query.At = p.at; !p.at.IsZero() {
		// It may have been another then; objects that cannot be converted are named in warnings.
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

// answer answers with the objects of a view, as a list or as the one object of a name.
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

// warnOfLoss adds a warning if the answer lacks fields because the client accepts protobuf only.
func warnOfLoss(w http.ResponseWriter, at location, as form) {
	if as.wire == inProtobuf {
		tell(w, []string{fmt.Sprintf("in protobuf, %s are without fields that their clusters have and the hub does not know: accept application/json as well", at.asked().GroupResource())})
	}
}

// view is what a request selects, as far as the caller may see it.
type view struct {
	query store.Query
	kind  kind
	seen  scope
	keep  keep // filters rows; nil: the query selects exactly
}

// qualifyFields moves the cluster from names in field selectors to p.clusters, for Qualified
// names.
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

// qualifyNamed does the same for the paths for which is returns true: their values name a
// cluster.
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

// namespaced reports whether objects of a type have a namespace in any cluster.
func (s *Search) namespaced(at location) bool {
	return slices.ContainsFunc(s.Mirror.Types(), func(t mirror.Type) bool {
		return t.Namespaced && t.Resource == at.Resource && t.GroupVersionKind.Group == at.Group
	})
}

// shows reports whether the view has an object; row may be nil, which no view shows.
func (v view) shows(ctx context.Context, row *store.Row) (bool, error) {
	// For the store, an empty list means all.
	nowhere := v.query.Clusters != nil && len(v.query.Clusters) == 0
	if row == nil || nowhere || !v.query.Selects(row) || v.keep == nil {
		return row != nil && !nowhere && v.query.Selects(row), nil
	}
	return v.keep(ctx, row)
}

// look returns the view of a request for verb. It returns an error if the request is invalid or
// not allowed.
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
		q.Clusters = append([]string{}, t.clusters...) // not nil, which means all
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

// kind describes the requested type in the requested clusters.
type kind struct {
	member.API
	// clusters have the type in the requested version.
	clusters []string
	// others have the type in another version, by that version.
	others map[string][]string
	// scopes are the clusters by whether the type is namespaced there. It has a key for each
	// scope that the type has in any cluster, also where the caller sees nothing.
	scopes map[bool][]string
	// partial is true if the query must not ask every cluster with the type.
	partial bool
	// unread are requested clusters about which nothing is known yet: their objects are missing.
	unread []string
	// told is true if the answer is the history of objects and not the objects.
	told bool
	// bare is true if the answer has only the metadata of objects.
	bare bool
}

// find returns the type in the clusters only; nil: in all. A type that exists only in clusters
// in which the caller sees nothing is not found, except types of Kubernetes: for these, no
// cluster has objects that the caller may see.
func (s *Search) find(at location, only []string, seen scope) (kind, error) {
	k := kind{others: map[string][]string{}, scopes: map[bool][]string{}, partial: only != nil || at.cluster != ""}
	if err := s.checkClusters(at, only); err != nil {
		return k, err
	}
	if at.cluster != "" {
		only = []string{at.cluster}
	}
	served := map[bool]bool{} // by scope, in any cluster in which the caller may see something
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

// findUnread sets k.unread to the clusters about which nothing is known yet, among the clusters
// only (nil: clusters) in which the caller may see something. It returns an error if nothing is
// known about any of them.
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
		// The name of the cluster may be hidden from the caller.
		"nothing is known yet of any cluster asked for: see whether it is reachable (orrery cluster describe CLUSTER), and ask again when it was read")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// checkClusters refuses names of clusters that the fleet does not have: an empty answer would
// suggest that such a cluster has no objects.
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

// lastSeen returns the clusters with stale objects of the type, each with the time of its data.
// If moment is not zero, only data from before that moment is stale.
func (s *Search) lastSeen(at location, k kind, moment time.Time) map[string]time.Time {
	stale := map[string]time.Time{}
	for _, c := range k.clusters {
		if seen, old := s.Mirror.Freshness(c, at.GroupResource()); old && (moment.IsZero() || seen.Before(moment)) {
			stale[c] = seen
		}
	}
	return stale
}

// warn adds the warnings of a list to the header.
func (s *Search) warn(w http.ResponseWriter, at location, k kind, seen scope) {
	tell(w, s.warnings(at, k, seen))
}

// warnings returns the warnings of an answer with objects of one type.
func (s *Search) warnings(at location, k kind, seen scope) (warnings []string) {
	only := narrowed{}
	only.add(at.GroupResource(), seen)
	if text := only.text(nil); text != "" {
		warnings = append(warnings, text)
	}
	return append(warnings, s.typeWarnings(at, k, seen)...)
}

// typeWarnings returns the warnings of one type of several. The warning that the caller may list
// types in some namespaces only is for all types together, see narrowed.
func (s *Search) typeWarnings(at location, k kind, seen scope) (warnings []string) {
	gr := at.GroupResource()
	if len(seen.young) > 0 {
		warnings = append(warnings, fmt.Sprintf("the hub did not have %s yet: nothing of them is shown", enumerate(seen.young)))
	}
	if len(k.unread) > 0 {
		warnings = append(warnings, fmt.Sprintf("nothing is known yet of %s: its objects are missing", enumerate(k.unread)))
	}
	var parts []string // clusters from which only a part of the type is mirrored
	for _, c := range k.clusters {
		switch since, stale := s.Mirror.Stale(c); {
		case stale && s.Mirror.Lost(c, gr):
			warnings = append(warnings, fmt.Sprintf("cluster %s is unreachable since %s, and its last known objects were lost: some or all are missing until it answers", c, since.UTC().Format(time.RFC3339)))
		case stale:
			warnings = append(warnings, fmt.Sprintf("cluster %s is unreachable since %s: its objects are the last known", c, since.UTC().Format(time.RFC3339)))
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
	if len(parts) > 0 { // the parts may name namespaces that are hidden from the caller
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
	if gr.Group == "" && gr.Resource == "secrets" && !k.told && !k.bare {
		if bare := slices.DeleteFunc(slices.Clone(k.clusters), func(c string) bool { return !s.Mirror.WithoutData(c) }); len(bare) > 0 {
			warnings = append(warnings, fmt.Sprintf("of some or all secrets of %s only the metadata is mirrored: read their data in the cluster's own context", enumerate(bare)))
		}
	}
	return warnings
}

// tell writes the first warnings to the header, without duplicates.
func tell(w http.ResponseWriter, warnings []string) { tellAs(w, "Warning", warnings, 0) }

// tellAs writes warnings to the named header or trailer. more is the number of other warnings,
// which are only counted.
func tellAs(w http.ResponseWriter, name string, warnings []string, more int) {
	for _, text := range firsts(warnings, more) {
		if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			w.Header().Add(name, header)
		}
	}
}

// firsts returns the first warnings without duplicates, and one with the number of others.
func firsts(warnings []string, more int) (told []string) {
	seen := sets.New[string]()
	for _, text := range warnings {
		if seen.Has(text) {
			continue
		}
		if seen.Insert(text); len(told) < named {
			told = append(told, text)
		} else {
			more++
		}
	}
	if more > 0 {
		told = append(told, fmt.Sprintf("%d more warnings are left out", more))
	}
	return told
}

// enumerate returns the first names of clusters or namespaces, and the number of others. It
// sorts names.
func enumerate(names []string) string {
	slices.Sort(names)
	if more := len(names) - named; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), more)
	}
	return strings.Join(names, ", ")
}

// get answers with the one object of a name.
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

// single returns the row if there is exactly one, and an error otherwise.
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

// query queries the store. It returns errors for the client.
func (s *Search) query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.Clusters != nil && len(q.Clusters) == 0 {
		now, err := s.now(ctx)
		return store.Page{Version: now}, err // for the store, an empty list means all
	}
	within, cancel := context.WithTimeout(ctx, s.longest)
	defer cancel()
	page, err := s.Store.List(within, q)
	if refused := noHistory(err, schema.GroupResource{Group: q.Group, Resource: q.Resource}.String()); refused != nil {
		return page, refused
	}
	return page, s.answered(ctx, within, q, err)
}

// count returns the number of objects that a query selects.
func (s *Search) count(ctx context.Context, q store.Query) (int64, error) {
	if q.Clusters != nil && len(q.Clusters) == 0 {
		return 0, nil
	}
	within, cancel := context.WithTimeout(ctx, s.longest)
	defer cancel()
	n, err := s.Store.Count(within, q)
	return n, s.answered(ctx, within, q, err)
}

// answered returns the error for the client, from an error of the store. The query ran with
// within, which has a deadline; ctx is the context of the request.
func (s *Search) answered(ctx, within context.Context, q store.Query, err error) error {
	if errors.Is(err, store.ErrOtherQuery) { // the clusters in the query have changed
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
