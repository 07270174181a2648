package search

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// encoder writes rows in the form that the client accepts.
type encoder struct {
	// list is a list without its items and metadata; items is the name of the field for items.
	list  map[string]any
	items string
	// item returns the item for a row.
	item func(store.Row) (any, error)
	// shares returns the key of the shared JSON of a row; nil: JSON is not shared.
	shares func(row store.Row) sharing
	// kind has the type fields of a single object, and no others.
	kind map[string]any
	wire wire
	// of is the kind in which objects are encoded, unless in a table.
	of schema.GroupVersionKind
	// tag is the tag of the rights of the caller, in versions of objects.
	tag int64
}

// encoder returns the encoder for a form.
func (s *Search) encoder(
	ctx context.Context, as form, at location, k kind, include metav1.IncludeObjectPolicy, show shown,
) (encoder, error) {
	e, err := s.formed(ctx, as, at, k, include, show)
	e.wire, e.of = as.wire, as.encodes(at.as(k))
	return e, err
}

func (s *Search) formed(
	ctx context.Context, as form, at location, k kind, include metav1.IncludeObjectPolicy, show shown,
) (encoder, error) {
	show.meta, show.at = as.apiVersion(), at
	shown := at.as(k)
	switch as.as {
	case asTable:
		columns, err := s.columns(ctx, at, k)
		if err != nil {
			return encoder{}, err
		}
		columns = columns.lastSeen(show.stale)
		return encoder{
			list: map[string]any{
				"kind": "Table", "apiVersion": show.meta, "columnDefinitions": columns.definitions(),
			},
			items: "rows",
			item:  func(row store.Row) (any, error) { return tableRow(columns, row, include, show) },
			kind:  map[string]any{"kind": "Table", "apiVersion": show.meta, "columnDefinitions": []any{}, "rows": []any{}},
		}, nil
	case asPartial:
		return encoder{
			list:  map[string]any{"kind": asPartial + "List", "apiVersion": show.meta},
			items: "items",
			item:  func(row store.Row) (any, error) { return partial(row, show) },
			kind:  map[string]any{"kind": asPartial, "apiVersion": show.meta},
		}, nil
	default:
		return encoder{
			list:  map[string]any{"kind": shown.Kind + "List", "apiVersion": shown.GroupVersion().String()},
			items: "items",
			item:  func(row store.Row) (any, error) { return object(row, show) },
			shares: func(row store.Row) sharing {
				return sharing{&row.Body[0], row.Changed, show.names, at.GroupVersionResource, at.own, at.shown}
			},
			kind: map[string]any{"kind": shown.Kind, "apiVersion": shown.GroupVersion().String()},
		}, nil
	}
}

// one answers with a single object: as the object itself or as a table of one row.
func (e encoder) one(w http.ResponseWriter, row store.Row) error {
	item, err := e.single(e.tagged(row))
	if err == nil {
		err = e.wire.answer(w, item)
	}
	return about(row, err)
}

// about adds the object of a row to an error; nil stays nil.
func about(row store.Row, err error) error {
	if err == nil {
		return nil
	}
	name := row.Name
	if row.Namespace != "" {
		name = row.Namespace + "/" + name
	}
	return fmt.Errorf("%s %s of cluster %s: %w", row.Resource, name, row.Cluster, err)
}

// single returns one object by itself: in a table, one row with the column definitions.
func (e encoder) single(row store.Row) (any, error) {
	item, err := e.item(row)
	if err != nil || e.items != "rows" {
		return item, err
	}
	table := maps.Clone(e.list)
	table["metadata"] = metav1.ListMeta{ResourceVersion: row.Changed.String()}
	table[e.items] = []any{item}
	return table, nil
}

// sharing is the key of the JSON of an object that several watches send: the state of the object
// and the form. The tag in the version stands for the rights of the caller.
type sharing struct {
	body    *byte
	changed store.Version
	names   Names
	as      schema.GroupVersionResource
	own     bool
	shown   *conversion
}

// mostShared is the number of objects whose JSON is kept for other watches; mostSharedBytes
// limits the size of each.
const (
	mostShared      = 256
	mostSharedBytes = 16 << 10
)

// told returns what a watch sends for a row.
func (s *Search) told(e encoder, row store.Row) (any, error) {
	row = e.tagged(row)
	if e.shares == nil || len(row.Body) == 0 {
		return e.single(row)
	}
	key := e.shares(row)
	if raw, ok := s.encoded.Get(key); ok {
		return raw, nil
	}
	item, err := e.single(row)
	if err != nil {
		return nil, err
	}
	raw, err := marshal(item)
	if err == nil && len(raw) <= mostSharedBytes {
		s.encoded.Add(key, raw)
	}
	return raw, err
}

// source provides the rows of a list.
type source interface {
	// next returns more rows. No rows: the list is complete.
	next(ctx context.Context) (store.Page, error)
	// tail returns the metadata of the list and other fields, which may be nil. It is called
	// after all rows were read.
	tail() (metav1.ListMeta, map[string]any)
}

// list answers with the rows of a query page by page, so that an answer need not fit into
// memory. An error after the first page aborts the connection, so that the client does not take
// a part for the whole. Objects that cannot be encoded are left out, each with a warning: for
// the first page in the header, for later pages in the trailer. In protobuf, list returns
// errLongInProtobuf for a list that is too long, and a lossError for objects that would lose
// fields, before anything is written.
func (s *Search) list(ctx context.Context, w http.ResponseWriter, pages source, e encoder, resource string) error {
	page, err := pages.next(ctx)
	if err != nil {
		return err
	}
	var left omissions
	items, err := e.encoded(ctx, page.Rows, &left)
	if err != nil {
		return err
	}
	tellAs(w, "Warning", left.first, left.more)
	w.Header().Set("Content-Type", e.wire.mediaType())
	out := bufio.NewWriterSize(w, 64<<10)
	left, err = e.write(ctx, out, items, pages)
	tellAs(w, http.TrailerPrefix+"Warning", left.first, left.more)
	if e.wire.protobuf() {
		return err // nothing was written yet
	}
	if err != nil {
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "list broke off", "resource", resource)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

// write writes a list: the given items of the first page, then the remaining pages. left are the
// objects that the remaining pages leave out.
func (e encoder) write(ctx context.Context, out *bufio.Writer, items [][]byte, pages source) (left omissions, err error) {
	list := e.wire.listing(out)
	if err := list.begin(e.list, e.items); err != nil {
		return left, err
	}
	for {
		for _, item := range items {
			if err := list.item(item); err != nil {
				return left, err
			}
		}
		page, err := pages.next(ctx)
		if err != nil {
			return left, err
		}
		if len(page.Rows) == 0 {
			break
		}
		if items, err = e.encoded(ctx, page.Rows, &left); err != nil {
			return left, err
		}
	}
	meta, more := pages.tail()
	tail := map[string]any{"metadata": meta}
	maps.Copy(tail, more)
	if err := list.end(tail); err != nil {
		return left, err
	}
	return left, out.Flush()
}

// omissions are warnings about objects that are left out of a list: the first ones, and the
// number of others. A list of a million objects could have a million of them.
type omissions struct {
	first []string
	more  int
}

func (o *omissions) add(text string) {
	if len(o.first) < named {
		o.first = append(o.first, text)
	} else {
		o.more++
	}
}

// encoded returns the rows as items of a list, and drops the bodies of the rows. Objects that
// cannot be encoded are added to left. It returns a lossError for a row that would lose fields.
func (e encoder) encoded(ctx context.Context, rows []store.Row, left *omissions) (items [][]byte, err error) {
	first, count := "", 0
	for i := range rows {
		encoded, err := e.encode(rows[i])
		rows[i].Body = nil // a page is in memory only once
		if _, lost := errors.AsType[lossError](err); lost {
			return nil, err
		}
		if err != nil {
			text := leftOut(about(rows[i], err))
			left.add(text)
			first, count = cmp.Or(first, text), count+1
			continue
		}
		items = append(items, encoded)
	}
	if count > 0 {
		logr.FromContextOrDiscard(ctx).Info("objects cannot be encoded and are left out of a list", "objects", count, "first", first)
	}
	return items, nil
}

func leftOut(err error) string { return "left out, since it cannot be shown: " + err.Error() }

func (e encoder) encode(row store.Row) ([]byte, error) {
	item, err := e.item(e.tagged(row))
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(item)
	if err != nil {
		return nil, err
	}
	return e.wire.item(raw)
}

// pager reads the rows of a query in pages, at most limit rows. Its query continues after the
// last row that was read.
//
// Its version is that of the first page, for this request and all that continue it: a client
// that read all pages and follows the changes since this version misses nothing. Later pages may
// be newer.
type pager struct {
	search  *Search
	query   store.Query
	limit   int // 0: no limit
	version store.Version
	read    int
	done    bool
	before  int   // number of rows on the pages before
	total   int64 // number of rows on all pages; 0: unknown
	last    bool  // the client wants no continue token
	rights  int64 // tag of the rights of the caller

	keep       keep   // filters the rows that are read; nil: all match
	exact      bool   // selected objects must not have changed since the version
	tag        string // hash of q and filter, in tokens
	candidates int    // number of rows that were read to be filtered
	skip       int    // number of matching rows that are still to be skipped
}

// pages returns a pager for a request, which may continue an earlier one. asked is the version
// that the request asks for, or 0.
func (s *Search) pages(v view, p params, asked store.Version) (*pager, error) {
	if v.keep != nil && p.offset > 0 {
		return nil, apierrors.NewBadRequest("parameter offset: what q or filter ask for is looked for in objects, page by page; go on with continue")
	}
	pages := &pager{search: s, query: v.query, limit: p.limit, keep: v.keep, tag: p.asked.tag(), before: p.offset, last: p.noContinue, rights: v.seen.tag}
	if p.exact {
		pages.version, pages.exact = asked, true
	}
	if p.next == "" {
		return pages, nil
	}
	parts := strings.Split(p.next, ".")
	if len(parts) != 3 {
		return nil, badToken()
	}
	before, err := strconv.ParseUint(parts[2], 10, 31)
	if err == nil {
		pages.version, err = store.ParseVersion(parts[0])
	}
	if pages.query.At.IsZero() { // else the version has no tag of rights
		pages.version = pages.version.Untagged(pages.rights)
	}
	if err != nil || parts[1] == "" {
		return nil, badToken()
	}
	token, ok := strings.CutPrefix(parts[1], pages.tag)
	if !ok || pages.tag == "" && strings.Contains(token, "~") {
		return nil, apierrors.NewBadRequest("parameter continue: it was returned for another q or filter; list again without it")
	}
	pages.query.Continue, pages.before = token, int(before)
	return pages, nil
}

func badToken() error {
	return apierrors.NewBadRequest("parameter continue: it is not a token of the fleet; list again without it")
}

// count sets the number of all rows, if the client asks for it, or if a counter has it and the
// client reads in pages.
func (p *pager) count(ctx context.Context, asked params, k kind) (err error) {
	if p.keep != nil {
		if asked.remaining != nil && *asked.remaining {
			return apierrors.NewBadRequest("parameter withRemainingCount: what q or filter ask for is looked for in objects, page by page; count with group=")
		}
		return nil
	}
	if p.limit == 0 || asked.remaining == nil && (!asked.plain() || !asked.at.IsZero()) || asked.remaining != nil && !*asked.remaining {
		return nil
	}
	q := p.query
	q.Continue, q.Limit, q.Offset = "", 0, 0
	if others := 0; asked.plain() {
		for _, clusters := range k.others {
			others += len(clusters)
		}
		if others == 0 { // all objects have this version, except for a moment
			q.Version = ""
		} else if asked.remaining == nil {
			return nil
		}
	}
	p.total, err = p.search.count(ctx, q)
	return err
}

// tail implements source.
func (p *pager) tail() (metav1.ListMeta, map[string]any) {
	meta := metav1.ListMeta{ResourceVersion: p.resourceVersion(), Continue: p.token()}
	if rest := p.total - int64(p.before+p.read); p.total > 0 && p.query.Continue != "" {
		rest = max(rest, 1)
		meta.RemainingItemCount = &rest
	}
	return meta, nil
}

// token returns the token with which the next request continues; "": there are no more rows, or
// the client wants no token.
func (p *pager) token() string {
	if p.query.Continue == "" || p.last {
		return ""
	}
	if !p.query.At.IsZero() {
		return marked(p.query.At, p.tokenOf(p.version))
	}
	// With other rights than those of the pages before, a page belongs to another list.
	return p.tokenOf(p.version.Tagged(p.rights))
}

// tokenOf returns the token of a list at a version.
func (p *pager) tokenOf(version store.Version) string {
	return fmt.Sprintf("%s.%s%s.%d", version, p.tag, p.query.Continue, p.before+p.read)
}

// resourceVersion returns the version of the list; "" for a list of the past, which cannot be
// watched.
func (p *pager) resourceVersion() string {
	if !p.query.At.IsZero() {
		return ""
	}
	return p.version.Tagged(p.rights).String()
}

// next returns the next rows. No rows: the list ends, or the rest is for another request.
func (p *pager) next(ctx context.Context) (store.Page, error) {
	if p.keep == nil || p.done {
		return p.page(ctx)
	}
	var out store.Page
	kept, last := 0, p.skip+p.limit
	p.query.Limit = min(pageSize, mostCandidates-p.candidates)
	page, err := p.ask(ctx, p.query)
	for {
		if err != nil {
			return page, err
		}
		p.candidates += len(page.Rows)
		p.query.Continue, p.query.Limit = page.Continue, min(pageSize, mostCandidates-p.candidates)
		ahead := p.ahead(ctx, last)
		found, failed := p.keep.sift(ctx, page.Rows)
		if failed != nil {
			return page, failed
		}
		last = len(found)
		passed := min(p.skip, len(found))
		found, p.skip = found[passed:], p.skip-passed
		if p.limit > 0 && len(found) >= p.limit-p.read {
			found, p.done = found[:p.limit-p.read], true
			p.query.Continue = page.After(found[len(found)-1])
		}
		for _, i := range found {
			out.Rows = append(out.Rows, page.Rows[i])
			kept += len(page.Rows[i].Body)
		}
		p.read += len(found)
		switch {
		case p.query.Continue == "":
			p.done = true
		case p.done:
		case (p.limit == 0 || p.last) && (p.candidates >= mostCandidates || kept > mostKept):
			return page, tooMany(p.query.Resource)
		case p.candidates >= mostCandidates || kept > mostKept:
			p.done = true
		}
		if p.done {
			return out, nil
		}
		page, err = ahead()
	}
}

// ahead reads the next page of candidates. It begins while the present page is filtered, unless
// as many matches as on the last page would reach the limit.
func (p *pager) ahead(ctx context.Context, last int) func() (store.Page, error) {
	q := p.query
	if p.limit > 0 && last >= p.skip+p.limit-p.read || q.Continue == "" || q.Limit == 0 {
		return func() (store.Page, error) { return p.ask(ctx, q) }
	}
	type answer struct {
		page store.Page
		err  error
	}
	answered := make(chan answer, 1) // buffered: the request may have ended
	go func() {
		var a answer
		defer func() {
			if panicked := recover(); panicked != nil {
				a.err = unexpected(panicked)
			}
			answered <- a
		}()
		a.page, a.err = p.search.query(ctx, q)
	}()
	return func() (store.Page, error) {
		a := <-answered
		return p.checked(a.page, a.err)
	}
}

// page returns the next rows of a query without a filter.
func (p *pager) page(ctx context.Context) (store.Page, error) {
	if p.done {
		return store.Page{}, nil
	}
	p.query.Limit = pageSize
	if p.limit > 0 {
		p.query.Limit = min(pageSize, p.limit-p.read)
	}
	page, err := p.ask(ctx, p.query)
	if err != nil {
		return page, err
	}
	p.query.Continue, p.query.Offset = page.Continue, 0
	p.read += len(page.Rows)
	p.done = page.Continue == "" || p.read == p.limit
	return page, nil
}

// ask queries the store. It returns an error if the database is not the one of the pager's
// version.
func (p *pager) ask(ctx context.Context, q store.Query) (store.Page, error) {
	return p.checked(p.search.query(ctx, q))
}

func (p *pager) checked(page store.Page, err error) (store.Page, error) {
	switch {
	case err != nil:
		return page, err
	case p.version == 0:
		p.version = page.Version
	case p.version.At(0) != page.Version.At(0):
		return page, expired() // another database
	case p.exact:
		return page, p.unchanged()
	}
	return page, nil
}
