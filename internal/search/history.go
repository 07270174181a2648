package search

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/history"
	"orrery.dev/orrery/internal/store"
)

// Limits of a history: defaultChanges is the default number of changes in an answer, mostChanges
// the maximum. statesCompared is the number of objects that since compares in one query.
const (
	defaultChanges = 100
	mostChanges    = 500
	statesCompared = 50
)

// mostRead is the number of bytes of objects after which an answer stops reading. The remaining
// objects are on the next page.
const mostRead = 16 << 20

// serveHistory answers with an ObjectHistory: the changes of one object (history=true), the deleted
// objects (deleted=true), or the objects that differ from an earlier moment (changedSince). The
// answer has no items if the view v selects no cluster. Errors are for the client, and nothing was
// written then.
func (s *Search) serveHistory(ctx context.Context, w http.ResponseWriter, at location, p params, v view) error {
	out := fleetv1alpha1.ObjectHistory{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "ObjectHistory"}, Items: []fleetv1alpha1.ObjectChange{},
	}
	limit := min(p.limit, mostChanges)
	if limit == 0 {
		limit = defaultChanges
	}
	q := v.query
	q.Version = "" // earlier states may have been stored in another API version
	nowhere := q.Clusters != nil && len(q.Clusters) == 0
	h := historyWriter{search: s, ctx: ctx, gr: at.GroupResource(), seen: v.seen, params: p, limit: limit, out: &out}
	var err error
	switch {
	case nowhere:
	case p.history:
		err = h.history(at, slices.Concat(append(slices.Collect(maps.Values(v.kind.others)), v.kind.clusters)...))
	case p.deleted:
		err = h.deleted(q)
	default:
		err = h.since(q)
	}
	if refused := noHistory(err, at.GroupResource().String()); refused != nil {
		return refused
	}
	if err != nil {
		return s.answered(ctx, ctx, q, err)
	}
	return answer.JSON(w, http.StatusOK, out)
}

// historyWriter collects, for one request, changes of objects of one type in out, which is the
// answer.
type historyWriter struct {
	search *Search
	ctx    context.Context //nolint:containedctx // lives as long as one request
	gr     schema.GroupResource
	seen   scope
	params params
	limit  int
	read   int // bytes of objects that were read
	out    *fleetv1alpha1.ObjectHistory
}

// change returns the entry for a change of the object in row. revision is the number of the state
// in the store, 0 without one. when is the time of the change; zero: unknown.
func change(row *store.Row, kind fleetv1alpha1.ChangeType, revision int64, when time.Time) fleetv1alpha1.ObjectChange {
	c := fleetv1alpha1.ObjectChange{Cluster: row.Cluster, Namespace: row.Namespace, Name: row.Name, UID: row.UID, Change: kind, Revision: revision}
	if !when.IsZero() {
		c.Time = &metav1.MicroTime{Time: when}
	}
	return c
}

// add appends the change c to the answer. From the states of the object before and after the change
// it adds who made the change, the differing fields and, if requested, the object. A nil state
// means that the object did not exist, or that the state is unknown. The error is that of decoding
// the object.
func (h *historyWriter) add(c fleetv1alpha1.ObjectChange, before, after *history.State) (err error) {
	shown := after
	if after == nil {
		shown = before
	} else {
		c.By, c.Cause = history.By(before, after), history.Cause(before, after)
	}
	if before != nil && after != nil {
		c.Fields = history.Differences(before, after, h.params.all)
	}
	if h.params.include == metav1.IncludeObject && shown != nil {
		if c.Object, err = shown.Object(); err != nil {
			return err
		}
	}
	h.out.Items = append(h.out.Items, c)
	return nil
}

// history adds the changes of the object that the path names, in each of the clusters by name, the
// latest first, and sets the continue token. It returns a NotFound error if no cluster has a state
// of the object.
func (h *historyWriter) history(at location, clusters []string) error {
	clusters = slices.Sorted(slices.Values(clusters))
	var before int64
	if h.params.next != "" {
		text, cluster, _ := strings.Cut(h.params.next, ".")
		var err error
		before, err = strconv.ParseInt(text, 10, 64)
		if !slices.Contains(clusters, cluster) || err != nil || before <= 0 {
			return apierrors.NewBadRequest("parameter continue: it is not of this list, or the cluster has gone meanwhile")
		}
		clusters = clusters[slices.Index(clusters, cluster):]
	}
	for i, cluster := range clusters {
		if i > 0 {
			before = 0
		}
		of := store.Object{Cluster: cluster, Resource: h.gr, Namespace: at.namespace, Name: at.name}
		next, found, err := h.revisions(of, before, h.limit-len(h.out.Items))
		switch {
		case err != nil:
			return err
		case next != 0:
			h.out.Continue = fmt.Sprintf("%d.%s", next, cluster)
			return nil
		case found && len(h.out.Items) >= h.limit && i+1 < len(clusters):
			h.out.Continue = fmt.Sprintf("%d.%s", int64(1<<62), clusters[i+1])
			return nil
		}
	}
	if len(h.out.Items) == 0 && h.params.next == "" {
		return apierrors.NewNotFound(h.gr, at.name)
	}
	return nil
}

// revisions adds the changes of one object in one cluster, both in the argument of. It adds them
// for up to limit states of the object: a state began with a change, and may have ended with a
// deletion. before is the state before which the page begins; 0: at the latest. next is the value
// of before for the next page; 0: there is none. found is true if the caller may see any state of
// the object.
func (h *historyWriter) revisions(of store.Object, before int64, limit int) (next int64, found bool, err error) {
	page, err := h.search.Store.Revisions(h.ctx, of, before, limit+1)
	if err != nil {
		return 0, false, err
	}
	if i := slices.IndexFunc(page.Items, func(r store.Revision) bool { return h.search.past(h.seen, h.gr, of.Namespace, of.Name, r.Until) }); i >= 0 {
		page.Items = page.Items[:i] // hide this state and older ones, as if the store lacked them
	}
	states := make([]*history.State, len(page.Items))
	for i, r := range page.Items {
		whole, err := h.search.Store.Revision(h.ctx, of, r.Seq)
		// The store dropped this state after it returned the page, and so all older states.
		if errors.Is(err, store.ErrNoHistory) {
			page.Items, states = page.Items[:i], states[:i]
			break
		}
		if err != nil {
			return 0, false, err
		}
		if states[i], err = history.Parse(h.gr, whole.Row.Body); err != nil {
			return 0, false, err
		}
		h.read += len(whole.Row.Body)
		whole.Row.Body = nil
		page.Items[i].Row = whole.Row
		if i > 0 && h.read > mostRead {
			limit = min(limit, i)
			page.Items, states = page.Items[:i+1], states[:i+1]
			break
		}
	}
	for i := range page.Items[:min(limit, len(page.Items))] {
		r := &page.Items[i]
		if r.Deleted {
			if err := h.add(change(&r.Row, fleetv1alpha1.ChangeDeleted, r.EndSeq, r.Until), states[i], nil); err != nil {
				return 0, false, err
			}
		}
		kind, predecessor := fleetv1alpha1.ChangeUpdated, (*history.State)(nil)
		switch {
		case i+1 == len(page.Items):
			kind = history.First(r.Row.Created, r.Since)
		case page.Items[i+1].Row.UID != r.Row.UID:
			kind = fleetv1alpha1.ChangeCreated
		default:
			predecessor = states[i+1]
		}
		if err := h.add(change(&r.Row, kind, r.Seq, r.Since), predecessor, states[i]); err != nil {
			return 0, false, err
		}
	}
	if len(page.Items) > limit && limit > 0 {
		next = page.Items[limit-1].Seq
	}
	return next, len(page.Items) > 0, nil
}

// endedBefore is the prefix of continue tokens of lists of deleted objects. Without a prefix the
// token would be a number, and be parsed as an offset.
const endedBefore = "ended-"

// deleted adds a page of the deleted objects that the query selects, the latest deletion first, and
// sets the continue token. Objects that the caller may not see are left out.
func (h *historyWriter) deleted(q store.Query) error {
	var before int64
	if h.params.next != "" {
		text, ok := strings.CutPrefix(h.params.next, endedBefore)
		var err error
		if before, err = strconv.ParseInt(text, 10, 64); !ok || err != nil || before <= 0 {
			return apierrors.NewBadRequest("parameter continue: it is not of this list")
		}
	}
	page, err := h.search.Store.Deleted(h.ctx, q, func(of *store.Row, ended time.Time) bool {
		return h.search.past(h.seen, h.gr, of.Namespace, of.Name, ended)
	}, before, h.limit)
	if err != nil {
		return err
	}
	for i := range page.Items {
		r := &page.Items[i]
		last, err := history.Parse(h.gr, r.Row.Body)
		if err == nil {
			err = h.add(change(&r.Row, fleetv1alpha1.ChangeDeleted, r.EndSeq, r.Until), last, nil)
		}
		if err != nil {
			return err
		}
	}
	if page.Next != 0 {
		h.out.Continue = endedBefore + strconv.FormatInt(page.Next, 10)
	}
	return nil
}

// since adds a page of the objects whose present state differs from their state at the requested
// moment, and sets the continue token. Objects that differ only in their status, or in fields that
// change without meaning, are left out unless the request has allFields. A page may be empty and
// have a token.
func (h *historyWriter) since(q store.Query) error {
	q.At, q.Continue = h.params.compared, h.params.next
	for compared := 0; ; compared += statesCompared {
		q.Limit = min(h.limit-len(h.out.Items), statesCompared)
		if q.Limit == 0 || h.read > mostRead || compared >= 10*mostChanges {
			h.out.Continue = marked(h.params.compared, q.Continue)
			return nil
		}
		page, err := h.search.Store.Compare(h.ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if err := h.difference(&page.Items[i]); err != nil {
				return err
			}
		}
		if q.Continue = page.Continue; q.Continue == "" {
			return nil
		}
	}
}

// difference adds the change of one object from its state at the requested moment to its present
// state. It adds nothing if no field differs that the answer shows.
func (h *historyWriter) difference(d *store.Difference) error {
	var before, after *history.State
	var err error
	row, kind := d.After, fleetv1alpha1.ChangeUpdated
	switch {
	case d.After == nil:
		row, kind = d.Before, fleetv1alpha1.ChangeDeleted
	case d.Before == nil:
		// The object may be older than the moment: then it became visible after the moment.
		kind = history.First(d.After.Created, h.params.compared)
	case d.Before.UID != d.After.UID:
		kind = fleetv1alpha1.ChangeRecreated
	}
	if d.Before != nil {
		if before, err = history.Parse(h.gr, d.Before.Body); err != nil {
			return err
		}
	}
	if d.After != nil {
		if after, err = history.Parse(h.gr, d.After.Body); err != nil {
			return err
		}
	}
	for _, side := range []*store.Row{d.Before, d.After} {
		if side != nil {
			h.read += len(side.Body)
		}
	}
	n := len(h.out.Items)
	if err := h.add(change(row, kind, 0, d.Changed), before, after); err != nil {
		return err
	}
	if kind == fleetv1alpha1.ChangeUpdated && len(h.out.Items[n].Fields) == 0 {
		h.out.Items = h.out.Items[:n]
	}
	return nil
}
