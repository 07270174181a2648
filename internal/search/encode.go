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

// encoder turns rows of the store into objects or table rows in the form that the client accepts.
// Search.encoder makes one for a request.
type encoder struct {
	// list has the fields of a list except its items and metadata. items is the name of the field
	// for the items.
	list  map[string]any
	items string
	// item returns the object or the table row for a row of the store.
	item func(store.Row) (any, error)
	// shares returns the key under which watches share the JSON of a row; nil: they do not.
	shares func(row store.Row) sharing
	// kind has apiVersion and kind of a single object, for bookmarks. A table has its lists, too.
	kind map[string]any
	wire wire
	// of is the kind in which objects are encoded, unless in a table.
	of schema.GroupVersionKind
	// tag is the tag of the caller's rights (scope.tag), which resourceVersions of objects get.
	tag int64
}

// encoder returns the encoder for objects of the type k at the location, in the form as. include
// says which part of an object a table row has. show says how names and stale clusters are shown.
// The caller sets the tag. The error is that of reading the columns of a table.
func (s *Search) encoder(
	ctx context.Context, as form, at location, k kind, include metav1.IncludeObjectPolicy, show shown,
) (encoder, error) {
	e, err := s.formed(ctx, as, at, k, include, show)
	e.wire, e.of = as.wire, as.encodes(at.as(k))
	return e, err
}

// formed returns the encoder of the method encoder, without the fields wire and of, which are about
// the encoding.
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

// one answers with the object of a row: as the object itself, or as a table with one row. If it
// returns an error, nothing was written.
func (e encoder) one(w http.ResponseWriter, row store.Row) error {
	item, err := e.single(e.tagged(row))
	if err == nil {
		err = e.wire.answer(w, item)
	}
	return about(row, err)
}

// about adds the type, name and cluster of a row's object to an error; nil stays nil.
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

// single returns the content of an answer or event with one object: the object itself, or a table
// with its column definitions and one row.
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

// sharing is the key of the JSON of an object that several watches send. It consists of the state
// of the object and the form in which the watches show it. The version has the tag of the caller's
// rights, so only callers with the same rights share.
type sharing struct {
	body    *byte
	changed store.Version
	names   Names
	as      schema.GroupVersionResource
	own     bool
	shown   *conversion
}

// mostShared is the maximum number of objects whose JSON is kept for other watches, and
// mostSharedBytes the maximum size of each.
const (
	mostShared      = 256
	mostSharedBytes = 16 << 10
)

// watchItem returns what a watch sends for a row: an object, a table with one row, or its JSON,
// which other watches may have encoded before. resourceVersions have the tag of e.
func (s *Search) watchItem(e encoder, row store.Row) (any, error) {
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

// source provides the rows of a list, page by page, for the method list.
type source interface {
	// next returns more rows. No rows: the list is complete.
	next(ctx context.Context) (store.Page, error)
	// tail returns the metadata of the list and other fields, which may be nil. It is called
	// after all rows were read.
	tail() (metav1.ListMeta, map[string]any)
}

// list answers with the rows of pages. It writes page by page, so that an answer need not fit into
// memory. resource names the type in the log.
//
// An error of the first page is returned. A later error aborts the connection by a panic with
// http.ErrAbortHandler, so that the client does not take a part for the whole. Objects that cannot
// be encoded are left out with a warning: in the header for the first page, in the trailer for
// later pages.
//
// In protobuf nothing is written before the end, and list returns all errors. errLongInProtobuf
// means that the list is too long, and a lossError that an object would lose fields.
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
		return err // in protobuf nothing has been written if there is an error
	}
	if err != nil {
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "list broke off", "resource", resource)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

// write writes a whole list to out: the items, which are those of the first page, and the remaining
// pages. left are the warnings about objects of the remaining pages that cannot be encoded and are
// left out. After an error the list is incomplete.
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

// omissions are the warnings about objects that are left out of a list: the first ones, and the
// number of further ones. A list of a million objects could have a million of them.
type omissions struct {
	first []string
	more  int
}

// add adds a warning. If there are enough (named), the warning is only counted.
func (o *omissions) add(text string) {
	if len(o.first) < named {
		o.first = append(o.first, text)
	} else {
		o.more++
	}
}

// encoded returns the rows of a page as encoded items of a list, and removes the bodies of the
// rows. Objects that cannot be encoded are left out, with a warning in left. It returns a lossError
// for an object that would lose fields in protobuf, and no other error.
func (e encoder) encoded(ctx context.Context, rows []store.Row, left *omissions) (items [][]byte, err error) {
	first, count := "", 0
	for i := range rows {
		encoded, err := e.encode(rows[i])
		rows[i].Body = nil // release the body: items has its encoding
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

// leftOut returns the warning that an object is left out because of err, which names the object.
func leftOut(err error) string { return "left out, since it cannot be shown: " + err.Error() }

// encode returns a row as an encoded item of a list. Its resourceVersion has the tag of e. A
// lossError means that protobuf would lose fields. Any other error means that the object cannot be
// shown.
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

// pager reads the rows of a query in pages, at most limit rows. Its query continues after the last
// row that was read.
//
// Its version is that of the first page, also in later requests that continue the list: a client
// that read all pages and watches from this version misses nothing. Later pages may be newer.
type pager struct {
	search  *Search
	query   store.Query
	limit   int // 0: no limit
	version store.Version
	read    int   // number of rows that this pager has returned
	done    bool  // there are no more rows for this request
	before  int   // number of rows on the pages of earlier requests
	total   int64 // number of rows on all pages; 0: unknown
	last    bool  // the client wants no continue token
	rights  int64 // tag of the rights of the caller

	keep       keep   // reports whether a row of the query matches; nil: all do
	exact      bool   // the list must be as it was at the version, else it has expired
	tag        string // hash of q and filter, in tokens
	candidates int    // number of rows that were read to be filtered
	skip       int    // number of matching rows that are still to be skipped
}

// pages returns a pager for the list of the view v, which continues at the token in p.next. asked
// is the version that the request asks for; 0: any. It returns an error (400) for an invalid token,
// for a token of another q or filter, and for an offset together with q or filter.
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
	if pages.query.At.IsZero() { // the version in tokens of past lists has no tag of rights
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

// badToken returns the error (400) for a continue token that the fleet cannot have made.
func badToken() error {
	return apierrors.NewBadRequest("parameter continue: it is not a token of the fleet; list again without it")
}

// count sets p.total to the number of all rows if the client asks for the number. It also does so
// if the client reads in pages and the store has a counter for the list. Otherwise p.total stays 0.
// If the client asks for the number together with q or filter, the error is 400.
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
		if others == 0 { // all objects have the requested version, except for a moment
			q.Version = ""
		} else if asked.remaining == nil {
			return nil
		}
	}
	p.total, err = p.search.count(ctx, q)
	return err
}

// tail implements source: it returns the metadata of the list. If the list continues and the total
// is known, the number of remaining items is at least 1.
func (p *pager) tail() (metav1.ListMeta, map[string]any) {
	meta := metav1.ListMeta{ResourceVersion: p.resourceVersion(), Continue: p.token()}
	if rest := p.total - int64(p.before+p.read); p.total > 0 && p.query.Continue != "" {
		rest = max(rest, 1)
		meta.RemainingItemCount = &rest
	}
	return meta, nil
}

// token returns the continue token with which the next request reads the next rows. It is "" if
// there are no more rows, or the client wants no token.
func (p *pager) token() string {
	if p.query.Continue == "" || p.last {
		return ""
	}
	if !p.query.At.IsZero() {
		return marked(p.query.At, p.tokenOf(p.version))
	}
	// The tag makes the token invalid if the rights change: other rights mean another list.
	return p.tokenOf(p.version.Tagged(p.rights))
}

// tokenOf returns a continue token with the version of the list, the position in the query and the
// number of rows before.
func (p *pager) tokenOf(version store.Version) string {
	return fmt.Sprintf("%s.%s%s.%d", version, p.tag, p.query.Continue, p.before+p.read)
}

// resourceVersion returns the version of the list for the client, with the tag of the caller's
// rights. It is "" for a list of the past, which cannot be watched.
func (p *pager) resourceVersion() string {
	if !p.query.At.IsZero() {
		return ""
	}
	return p.version.Tagged(p.rights).String()
}

// next returns the next rows; none if the list or the page for this request has ended. With q or
// filter it returns all rows of the request at once. Then the page ends early at mostCandidates or
// mostKept. That is an error (400) if the request has no limit or wants no continue token.
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

// ahead returns a function that returns the next page of candidates, and must be called once. The
// query begins at once in another goroutine, while the present page is filtered. It waits for the
// call if the limit will probably be reached: last is the number of matches on the page before.
func (p *pager) ahead(ctx context.Context, last int) func() (store.Page, error) {
	q := p.query
	if p.limit > 0 && last >= p.skip+p.limit-p.read || q.Continue == "" || q.Limit == 0 {
		return func() (store.Page, error) { return p.ask(ctx, q) }
	}
	type answer struct {
		page store.Page
		err  error
	}
	answered := make(chan answer, 1) // buffered: the request may end without reading it
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

// page returns the next rows of a query that needs no filter; none after the limit or the last row.
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

// ask queries the store. The result goes through checked, which may turn it into an Expired error.
func (p *pager) ask(ctx context.Context, q store.Query) (store.Page, error) {
	return p.checked(p.search.query(ctx, q))
}

// checked sets p.version to the version of the first page. It returns an Expired error if a later
// page comes from another database than that version. The same holds for an exact version if
// selected objects have changed since.
func (p *pager) checked(page store.Page, err error) (store.Page, error) {
	switch {
	case err != nil:
		return page, err
	case p.version == 0:
		p.version = page.Version
	case p.version.At(0) != page.Version.At(0):
		return page, expired() // the page is from another database
	case p.exact:
		return page, p.unchanged()
	}
	return page, nil
}
