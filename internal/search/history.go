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

// Limits of a history: changesTold is the default number of changes, mostChangesTold the
// maximum, and statesCompared the number that is read at once.
const (
	changesTold     = 100
	mostChangesTold = 500
	statesCompared  = 50
)

// mostRead is the approximate limit of bytes of objects that are read for one answer. The rest
// is for the next page.
const mostRead = 16 << 20

// serveHistory answers with an ObjectHistory.
func (s *Search) serveHistory(ctx context.Context, w http.ResponseWriter, at location, p params, v view) error {
	out := fleetv1alpha1.ObjectHistory{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "ObjectHistory"}, Items: []fleetv1alpha1.ObjectChange{},
	}
	limit := min(p.limit, mostChangesTold)
	if limit == 0 {
		limit = changesTold
	}
	q := v.query
	q.Version = "" // the version may have been another then
	nowhere := q.Clusters != nil && len(q.Clusters) == 0
	t := teller{search: s, ctx: ctx, gr: at.GroupResource(), seen: v.seen, params: p, limit: limit, out: &out}
	var err error
	switch {
	case nowhere:
	case p.history:
		err = t.history(at, slices.Concat(append(slices.Collect(maps.Values(v.kind.others)), v.kind.clusters)...))
	case p.deleted:
		err = t.deleted(q)
	default:
		err = t.since(q)
	}
	if refused := noHistory(err, at.GroupResource().String()); refused != nil {
		return refused
	}
	if err != nil {
		return s.answered(ctx, ctx, q, err)
	}
	return answer.JSON(w, http.StatusOK, out)
}

// teller writes the history of objects of a type.
type teller struct {
	search *Search
	ctx    context.Context //nolint:containedctx // lives as long as one request
	gr     schema.GroupResource
	seen   scope
	params params
	limit  int
	read   int // bytes of objects that were read
	out    *fleetv1alpha1.ObjectHistory
}

// change returns a new change of an object; a zero time is left out.
func change(row *store.Row, kind fleetv1alpha1.ChangeType, revision int64, when time.Time) fleetv1alpha1.ObjectChange {
	c := fleetv1alpha1.ObjectChange{Cluster: row.Cluster, Namespace: row.Namespace, Name: row.Name, UID: row.UID, Change: kind, Revision: revision}
	if !when.IsZero() {
		c.Time = &metav1.MicroTime{Time: when}
	}
	return c
}

// tell adds a change with the states before and after it. A state is nil if it does not exist or
// is not known.
func (t *teller) tell(c fleetv1alpha1.ObjectChange, before, after *history.State) (err error) {
	shown := after
	if after == nil {
		shown = before
	} else {
		c.By, c.Cause = history.By(before, after), history.Cause(before, after)
	}
	if before != nil && after != nil {
		c.Fields = history.Differences(before, after, t.params.all)
	}
	if t.params.include == metav1.IncludeObject && shown != nil {
		if c.Object, err = shown.Object(); err != nil {
			return err
		}
	}
	t.out.Items = append(t.out.Items, c)
	return nil
}

// history adds the changes of the object with the requested name, by cluster, the latest first.
func (t *teller) history(at location, clusters []string) error {
	clusters = slices.Sorted(slices.Values(clusters))
	var before int64
	if t.params.next != "" {
		text, cluster, _ := strings.Cut(t.params.next, ".")
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
		of := store.Object{Cluster: cluster, Resource: t.gr, Namespace: at.namespace, Name: at.name}
		next, told, err := t.revisions(of, before, t.limit-len(t.out.Items))
		switch {
		case err != nil:
			return err
		case next != 0:
			t.out.Continue = fmt.Sprintf("%d.%s", next, cluster)
			return nil
		case told && len(t.out.Items) >= t.limit && i+1 < len(clusters):
			t.out.Continue = fmt.Sprintf("%d.%s", int64(1<<62), clusters[i+1])
			return nil
		}
	}
	if len(t.out.Items) == 0 && t.params.next == "" {
		return apierrors.NewNotFound(t.gr, at.name)
	}
	return nil
}

// revisions adds up to limit states of an object, and its deletions. next is where the next page
// begins; 0: there is none. told is true if the object has any state.
func (t *teller) revisions(of store.Object, before int64, limit int) (next int64, told bool, err error) {
	page, err := t.search.Store.Revisions(t.ctx, of, before, limit+1)
	if err != nil {
		return 0, false, err
	}
	if i := slices.IndexFunc(page.Items, func(r store.Revision) bool { return t.search.past(t.seen, t.gr, of.Namespace, of.Name, r.Until) }); i >= 0 {
		page.Items = page.Items[:i] // as if these states were not kept any more
	}
	states := make([]*history.State, len(page.Items))
	for i, r := range page.Items {
		whole, err := t.search.Store.Revision(t.ctx, of, r.Seq)
		// it was dropped just now, and so were the states before
		if errors.Is(err, store.ErrNoHistory) {
			page.Items, states = page.Items[:i], states[:i]
			break
		}
		if err != nil {
			return 0, false, err
		}
		if states[i], err = history.Parse(t.gr, whole.Row.Body); err != nil {
			return 0, false, err
		}
		t.read += len(whole.Row.Body)
		whole.Row.Body = nil
		page.Items[i].Row = whole.Row
		if i > 0 && t.read > mostRead {
			limit = min(limit, i)
			page.Items, states = page.Items[:i+1], states[:i+1]
			break
		}
	}
	for i := range page.Items[:min(limit, len(page.Items))] {
		r := &page.Items[i]
		if r.Deleted {
			if err := t.tell(change(&r.Row, fleetv1alpha1.ChangeDeleted, r.EndSeq, r.Until), states[i], nil); err != nil {
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
		if err := t.tell(change(&r.Row, kind, r.Seq, r.Since), predecessor, states[i]); err != nil {
			return 0, false, err
		}
	}
	if len(page.Items) > limit && limit > 0 {
		next = page.Items[limit-1].Seq
	}
	return next, len(page.Items) > 0, nil
}

// endedBefore begins the continue tokens of deleted objects: a number alone is an offset.
const endedBefore = "ended-"

// deleted adds the deleted objects, the latest first.
func (t *teller) deleted(q store.Query) error {
	var before int64
	if t.params.next != "" {
		text, ok := strings.CutPrefix(t.params.next, endedBefore)
		var err error
		if before, err = strconv.ParseInt(text, 10, 64); !ok || err != nil || before <= 0 {
			return apierrors.NewBadRequest("parameter continue: it is not of this list")
		}
	}
	page, err := t.search.Store.Deleted(t.ctx, q, func(of *store.Row, ended time.Time) bool {
		return t.search.past(t.seen, t.gr, of.Namespace, of.Name, ended)
	}, before, t.limit)
	if err != nil {
		return err
	}
	for i := range page.Items {
		r := &page.Items[i]
		last, err := history.Parse(t.gr, r.Row.Body)
		if err == nil {
			err = t.tell(change(&r.Row, fleetv1alpha1.ChangeDeleted, r.EndSeq, r.Until), last, nil)
		}
		if err != nil {
			return err
		}
	}
	if page.Next != 0 {
		t.out.Continue = endedBefore + strconv.FormatInt(page.Next, 10)
	}
	return nil
}

// since adds the objects that differ from their state at a moment. It leaves out objects in
// which only noise differs, unless the request has allFields.
func (t *teller) since(q store.Query) error {
	q.At, q.Continue = t.params.compared, t.params.next
	for compared := 0; ; compared += statesCompared {
		q.Limit = min(t.limit-len(t.out.Items), statesCompared)
		if q.Limit == 0 || t.read > mostRead || compared >= 10*mostChangesTold {
			t.out.Continue = marked(t.params.compared, q.Continue)
			return nil
		}
		page, err := t.search.Store.Compare(t.ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if err := t.difference(&page.Items[i]); err != nil {
				return err
			}
		}
		if q.Continue = page.Continue; q.Continue == "" {
			return nil
		}
	}
}

func (t *teller) difference(d *store.Difference) error {
	var before, after *history.State
	var err error
	row, kind := d.After, fleetv1alpha1.ChangeUpdated
	switch {
	case d.After == nil:
		row, kind = d.Before, fleetv1alpha1.ChangeDeleted
	case d.Before == nil:
		// an object that is older than the moment became visible since
		kind = history.First(d.After.Created, t.params.compared)
	case d.Before.UID != d.After.UID:
		kind = fleetv1alpha1.ChangeRecreated
	}
	if d.Before != nil {
		if before, err = history.Parse(t.gr, d.Before.Body); err != nil {
			return err
		}
	}
	if d.After != nil {
		if after, err = history.Parse(t.gr, d.After.Body); err != nil {
			return err
		}
	}
	for _, side := range []*store.Row{d.Before, d.After} {
		if side != nil {
			t.read += len(side.Body)
		}
	}
	n := len(t.out.Items)
	if err := t.tell(change(row, kind, 0, d.Changed), before, after); err != nil {
		return err
	}
	if kind == fleetv1alpha1.ChangeUpdated && len(t.out.Items[n].Fields) == 0 {
		t.out.Items = t.out.Items[:n]
	}
	return nil
}
