package search

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/store"
)

// encoder writes rows in the form that the client asked for.
type encoder struct {
	// list is everything of a list but its items and metadata; items is where those go.
	list  map[string]any
	items string
	// item is one row's.
	item func(store.Row) (any, error)
}

// encoder returns the encoder of a form. stale are the clusters whose rows are, and when they were last seen.
func (s *Search) encoder(
	ctx context.Context, as string, at location, k kind, include metav1.IncludeObjectPolicy, stale map[string]time.Time,
) (encoder, error) {
	switch as {
	case asTable:
		columns, err := s.columns(ctx, at, k)
		if err != nil {
			return encoder{}, err
		}
		columns = columns.lastSeen(stale)
		return encoder{
			list: map[string]any{
				"kind": "Table", "apiVersion": metav1.SchemeGroupVersion.String(), "columnDefinitions": columns.definitions(),
			},
			items: "rows",
			item:  func(row store.Row) (any, error) { return tableRow(columns, row, include, stale) },
		}, nil
	case asPartial:
		return encoder{
			list:  map[string]any{"kind": asPartial + "List", "apiVersion": metav1.SchemeGroupVersion.String()},
			items: "items",
			item:  func(row store.Row) (any, error) { return partial(row, stale) },
		}, nil
	default:
		return encoder{
			list:  map[string]any{"kind": k.GroupVersionKind.Kind + "List", "apiVersion": at.GroupVersion().String()},
			items: "items",
			item:  func(row store.Row) (any, error) { return object(row, stale) },
		}, nil
	}
}

// one answers with a single object: a table has one row, other forms are the object.
func (e encoder) one(w http.ResponseWriter, row store.Row) error {
	item, err := e.item(row)
	if err != nil {
		return err
	}
	if e.items == "rows" {
		e.list["metadata"] = metav1.ListMeta{ResourceVersion: row.ResourceVersion}
		e.list[e.items] = []any{item}
		item = e.list
	}
	return answer.JSON(w, http.StatusOK, item)
}

// list answers with the rows of a query page by page, so that no answer has to fit into
// memory. An error after the first page breaks the connection: the client must not take
// what it has for the whole.
func (s *Search) list(ctx context.Context, w http.ResponseWriter, q store.Query, limit int, e encoder) error {
	pages := pager{search: s, query: q, limit: limit}
	rows, err := pages.next(ctx)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 64<<10)
	if err := e.write(ctx, out, rows, &pages); err != nil {
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "list broke off", "resource", q.Resource)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (e encoder) write(ctx context.Context, out *bufio.Writer, rows []store.Row, pages *pager) error {
	head, err := json.Marshal(e.list)
	if err != nil {
		return err
	}
	// The list's own fields, without the closing brace, then the items as they come.
	if _, err := fmt.Fprintf(out, `%s,%q:[`, head[:len(head)-1], e.items); err != nil {
		return err
	}
	separator := ""
	for len(rows) > 0 {
		for _, row := range rows {
			if _, err := io.WriteString(out, separator); err != nil {
				return err
			}
			separator = ","
			if err := e.writeItem(out, row); err != nil {
				return err
			}
		}
		if rows, err = pages.next(ctx); err != nil {
			return err
		}
	}
	// Resource versions of different clusters have nothing in common: 0 is any.
	meta, err := json.Marshal(metav1.ListMeta{ResourceVersion: "0", Continue: pages.query.Continue})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, `],"metadata":%s}`, meta); err != nil {
		return err
	}
	return out.Flush()
}

func (e encoder) writeItem(out io.Writer, row store.Row) error {
	item, err := e.item(row)
	if err != nil {
		return fmt.Errorf("encode %s %s/%s of cluster %s: %w", row.Resource, row.Namespace, row.Name, row.Cluster, err)
	}
	body, err := json.Marshal(item)
	if err != nil {
		return err
	}
	_, err = out.Write(body)
	return err
}

// pager reads a query's rows, at most limit of them, in pages. Its query continues where
// it stopped.
type pager struct {
	search *Search
	query  store.Query
	limit  int // 0: no limit
	read   int
	done   bool
}

func (p *pager) next(ctx context.Context) ([]store.Row, error) {
	if p.done {
		return nil, nil
	}
	p.query.Limit = pageSize
	if p.limit > 0 {
		p.query.Limit = min(pageSize, p.limit-p.read)
	}
	page, err := p.search.query(ctx, p.query)
	if err != nil {
		return nil, err
	}
	p.query.Continue = page.Continue
	p.read += len(page.Rows)
	p.done = page.Continue == "" || p.read == p.limit
	return page.Rows, nil
}
