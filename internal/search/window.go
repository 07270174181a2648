package search

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// Window is the part of a list that a page of the console shows, as a table: rows as in the answer
// of a GET, and the length of the list. Search.Window returns it.
type Window struct {
	Kind    schema.GroupVersionKind // the kind in which the objects of the rows are shown
	Columns []metav1.TableColumnDefinition
	Rows    []WindowRow
	// Total is the number of rows of the whole list. If Exact is false, the list may have more.
	Total    int64
	Exact    bool
	Warnings []string
}

// WindowRow is a row of a Window: the cells, and the object without its body.
type WindowRow struct {
	store.Row // without the body

	Deleted bool // the object is being deleted
	Cells   []any
}

// MostWindow is the maximum number of rows of a Window.
const MostWindow = 200

// mostCounted is how many rows beyond a window the store counts one by one for Window.Total. For
// some lists the store has counters, and there is no limit.
const mostCounted = 50_000

// Window returns at most limit rows of a list from an offset on, as the user of ctx sees them. path
// and query are those of a GET of the list. path is escaped and relative to the root of the fleet.
// Objects that cannot be shown are left out, with a warning.
//
// changed is closed when an object of the type of the list has changed; nil: changes cannot be
// observed. Beside an error, a changed that is not nil says when to try again. Parameters that
// windows do not take, such as watch and limit, are errors (400). So are an offset or limit out of
// range.
func (s *Search) Window(ctx context.Context, path string, query url.Values, offset, limit int) (w Window, changed <-chan struct{}, err error) {
	if !s.Ready() {
		return w, nil, starting()
	}
	at, p, err := s.windowed(ctx, path, query)
	if err != nil {
		return w, nil, err
	}
	if offset < 0 || offset > store.MostOffset || limit < 1 || limit > MostWindow {
		return w, nil, apierrors.NewBadRequest(fmt.Sprintf("a window has 1 to %d rows, from offset 0 to %d on: narrow the list to see what is beyond", MostWindow, store.MostOffset))
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	now, err := s.now(ctx) // before the rows are read, so that no change is missed
	if err == nil {
		_, _, changed, err = s.Store.Since(at.GroupResource(), now)
	}
	if err != nil {
		return w, nil, unavailable()
	}
	v, err := s.look(ctx, at, p, "list")
	if err != nil {
		return w, changed, err
	}
	err = s.window(ctx, &w, at, p, v, offset, limit)
	w.Warnings = firsts(append(s.warnings(at, v.kind, v.seen), w.Warnings...), 0)
	return w, changed, err
}

// Visible returns the clusters that the user of ctx may know, for the console. A user that may list
// Clusters, or some type in all namespaces, may know all clusters. Other users may know the
// clusters in which they may see objects of some namespace. If there is no such namespace, the
// error is Forbidden.
func (s *Search) Visible(ctx context.Context) ([]string, error) {
	if !s.Ready() {
		return nil, starting()
	}
	clusters := slices.Clone(s.Clusters())
	v := clusterv1alpha1.GroupVersion
	refused := s.Authorize(ctx, authorizationv1.ResourceAttributes{Verb: "list", Group: v.Group, Version: v.Version, Resource: "clusters"})
	if !apierrors.IsForbidden(refused) {
		return clusters, refused
	}
	seen := scope{}
	for _, t := range s.Mirror.Types() {
		gvr := t.GroupVersionResource()
		what := authorizationv1.ResourceAttributes{Verb: "list", Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource}
		if err := s.Authorize(ctx, what); !apierrors.IsForbidden(err) {
			return clusters, err
		}
		if !t.Namespaced {
			continue
		}
		namespaces, err := s.Namespaces(ctx, what)
		if err != nil {
			return nil, err
		}
		seen.namespaces = append(seen.namespaces, namespaces...)
	}
	if len(seen.namespaces) == 0 {
		return nil, refused
	}
	slices.Sort(seen.namespaces)
	seen.namespaces = slices.Compact(seen.namespaces)
	var err error
	seen.fence, err = s.Fence()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(clusters, seen.closed), nil
}

// windowed checks that the caller may list the type, and parses the path and the query of a window.
// It returns an error (400) if the path is not the list of one mirrored type. It also returns one
// for parameters that windows do not take: watch, limit, continue, at and others.
func (s *Search) windowed(ctx context.Context, path string, query url.Values) (at location, p params, err error) {
	at, ok := locate(path)
	if _, metrics := s.live(at); !ok || at.Resource == "" || at.name != "" || at.watch || metrics || at.GroupVersion() == collectionVersion {
		return at, p, failure(http.StatusBadRequest, metav1.StatusReasonBadRequest,
			path+": windows are of the list of one type that is mirrored, as /api/v1/pods or /clusters/NAME/apis/apps/v1/deployments")
	}
	at = s.source(at)
	if err := s.admit(ctx, at, firstNamespace(query), "list"); err != nil {
		return at, p, err
	}
	if p, err = parseParams(query); err != nil {
		return at, p, err
	}
	if p.watch || p.initialSaid || p.match != "" || p.limit != 0 || p.next != "" || p.offset != 0 || p.version != "" || p.group != nil || p.explain || p.moments() > 0 || p.all || p.noContinue || p.remaining != nil {
		return at, p, apierrors.NewBadRequest("a window is of the list as it is now, and has its own offset and limit: parameters watch, limit, continue, offset, resourceVersion, group, explain, " +
			"at, changedSince, history, deleted, allFields, withContinue and withRemainingCount are for requests")
	}
	if err := p.checkCollection(); err != nil {
		return at, p, err
	}
	return at, p, at.translate(&p)
}

// window reads at most limit rows of the view v, from offset on, into w. It sets all fields of w,
// and appends to w.Warnings. After an error, w may have a part of the rows.
func (s *Search) window(ctx context.Context, w *Window, at location, p params, v view, offset, limit int) error {
	p.limit = limit
	skip := 0
	if v.keep == nil {
		p.offset = offset
	} else {
		skip = offset
	}
	v.query.Offset = p.offset
	if uniform(v.kind) {
		v.query.Version = "" // indexes lack the version, and all objects have the requested one
	}
	pages, err := s.pages(v, p, 0)
	if err != nil {
		return err
	}
	pages.skip = skip
	columns, err := s.columns(ctx, at, v.kind)
	if err != nil {
		return err
	}
	columns = columns.lastSeen(s.lastSeen(at, v.kind, time.Time{}))
	w.Kind, w.Columns = at.as(v.kind), columns.definitions()
	for len(w.Rows) < limit {
		page, err := pages.next(ctx)
		if err != nil {
			return err
		}
		if len(page.Rows) == 0 {
			break
		}
		for _, row := range page.Rows {
			cells, err := columns.cells(row)
			if err != nil {
				w.Warnings = append(w.Warnings, leftOut(about(row, err)))
				continue
			}
			one := WindowRow{Row: row, Deleted: isTerminating(row.Body), Cells: cells}
			one.Body = nil
			w.Rows = append(w.Rows, one)
		}
	}
	read := int64(offset + pages.read)
	rest := pages.query.Continue != ""
	if v.keep != nil && rest && pages.read < limit {
		w.Warnings = append(w.Warnings, fmt.Sprintf("only %d objects were looked through for what q or filter ask: there may be more; name a cluster, a namespace, a label or a kind of field that an index has", mostCandidates))
	}
	switch {
	case v.keep != nil && rest:
		w.Total = int64(offset-pages.skip+pages.read) + 1
	case v.keep != nil:
		w.Total, w.Exact = int64(offset-pages.skip+pages.read), true
	case !rest && (pages.read > 0 || offset == 0):
		w.Total, w.Exact = read, true
	case pages.read == 0: // the list ends before the window
		w.Total, w.Exact, err = s.total(ctx, p, v, 0, offset)
	default:
		w.Total, w.Exact, err = s.total(ctx, p, v, read, 0)
	}
	return err
}

// total returns the number of rows of the view v, and whether the number is exact. known rows were
// read already, so the number is at least known. Without a counter of the store for the list, at
// most known + further + mostCounted rows are counted. If there are more, the number is too small
// and not exact.
func (s *Search) total(ctx context.Context, p params, v view, known int64, further int) (n int64, exact bool, err error) {
	q := v.query
	q.Continue, q.Limit, q.Offset = "", int(known)+further+mostCounted, 0
	if uniform(v.kind) && p.plain() {
		q.Limit = 0
	}
	n, err = s.count(ctx, q)
	return max(n, known), q.Limit == 0 || n < int64(q.Limit), err
}

// uniform reports whether all clusters with the type have it in the requested API version. Then the
// query need not ask for the version.
func uniform(k kind) bool {
	for _, clusters := range k.others {
		if len(clusters) > 0 {
			return false
		}
	}
	return true
}

// isTerminating reports whether an object, given as JSON, is being deleted. It is false for invalid
// JSON.
func isTerminating(raw []byte) bool {
	// This check is cheap, and excludes most objects before the JSON is parsed.
	if !bytes.Contains(raw, []byte(`"deletionTimestamp"`)) {
		return false
	}
	var o metav1.PartialObjectMetadata
	return json.Unmarshal(raw, &o) == nil && o.DeletionTimestamp != nil
}
