package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/search"
)

// rows is an answer: the rows of a window, or the reason why there are none. It is immutable.
type rows struct {
	offset   int
	total    int64
	exact    bool
	columns  []metav1.TableColumnDefinition
	rows     []row
	warnings []string
	refused  *metav1.Status
}

// row is an object as shown. An object that was deleted and created again has another UID, and is
// another row.
type row struct {
	id
	identity

	cells []json.RawMessage
}

// id identifies a row.
type id struct {
	cluster, namespace, name string
	uid                      types.UID
}

// identity is the part of a row that is sent once.
type identity struct {
	apiVersion, kind string
	created          int64
	deleted          bool
}

// mostCell is the maximum size of a sent cell, in bytes. Members may store longer values, but
// users do not read them.
const mostCell = 4 << 10

// ageing is the column that browsers compute: it changes all the time.
const ageing = "Age"

func rowsOf(w search.Window, offset int) (*rows, error) {
	out := &rows{offset: offset, total: w.Total, exact: w.Exact, columns: w.Columns, warnings: w.Warnings, rows: make([]row, 0, len(w.Rows))}
	apiVersion, kind := w.Kind.ToAPIVersionAndKind()
	for i := range w.Rows {
		r := &w.Rows[i]
		one := row{id{r.Cluster, r.Namespace, r.Name, r.UID}, identity{apiVersion, kind, 0, r.Deleted}, make([]json.RawMessage, len(r.Cells))}
		if !r.Created.IsZero() {
			one.created = r.Created.Unix()
		}
		for j, cell := range r.Cells {
			raw, err := json.Marshal(cell)
			if err == nil && len(raw) > mostCell {
				raw, err = json.Marshal(cut(cell, raw))
			}
			if err != nil {
				return nil, fmt.Errorf("encode column %s of %s in cluster %s: %w", w.Columns[j].Name, r.Name, r.Cluster, err)
			}
			one.cells[j] = raw
		}
		out.rows = append(out.rows, one)
	}
	return out, nil
}

// cut returns the beginning of a cell.
func cut(cell any, raw []byte) string {
	text, ok := cell.(string)
	if !ok {
		text = string(raw)
	}
	text = text[:min(len(text), mostCell/2)]
	for !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) && text != "" {
		text = text[:len(text)-1]
	}
	return text + "…"
}

// equal reports whether browsers would show the same.
func (r *rows) equal(to *rows) bool {
	if r.refused != nil || to.refused != nil {
		return r.refused != nil && to.refused != nil && r.refused.Code == to.refused.Code && r.refused.Message == to.refused.Message
	}
	return r.total == to.total && r.exact == to.exact && r.alike(to) &&
		slices.EqualFunc(r.rows, to.rows, func(a, b row) bool { return a.id == b.id && a.identity == b.identity && len(r.differing(a, b)) == 0 })
}

// alike reports whether two answers have the same columns and warnings.
func (r *rows) alike(to *rows) bool {
	return slices.Equal(r.columns, to.columns) && slices.Equal(r.warnings, to.warnings)
}

// differing returns the indexes of the columns in which two rows differ, except ageing.
func (r *rows) differing(a, b row) (columns []int) {
	for i := range a.cells {
		if r.columns[i].Name != ageing && !bytes.Equal(a.cells[i], b.cells[i]) {
			columns = append(columns, i)
		}
	}
	return columns
}

// window is a list on a browser's screen. It is guarded by the mutex of its socket.
type window struct {
	id       int
	question *question
	fresh    bool  // everything must be sent
	sent     *rows // last sent answer
	keys     map[id]int64
	last     int64 // last assigned key
}

// news returns the message that brings the browser from the last sent answer to now; nil: no
// difference. It records now as sent.
func (w *window) news(now *rows) any {
	before, fresh := w.sent, w.fresh
	if before == now && !fresh {
		return nil
	}
	w.sent, w.fresh = now, false
	if now.refused != nil {
		if before != nil && before.equal(now) && !fresh {
			return nil
		}
		return refusal{Type: "error", ID: w.id, Status: now.refused}
	}
	keys := make(map[id]int64, len(now.rows))
	for i := range now.rows {
		key, known := w.keys[now.rows[i].id]
		if !known {
			w.last++
			key = w.last
		}
		keys[now.rows[i].id] = key
	}
	known := w.keys
	w.keys = keys
	if fresh || before == nil || before.refused != nil || !before.alike(now) {
		out := whole{Type: "window", ID: w.id, Offset: now.offset, Total: now.total, Exact: now.exact, Columns: columnsOf(now.columns), Rows: []rowMessage{}, Warnings: now.warnings}
		for _, r := range now.rows {
			out.Rows = append(out.Rows, r.message(keys[r.id]))
		}
		return out
	}
	return w.delta(before, now, known)
}

// delta returns the difference between two answers; nil: none. known has the keys of rows that the
// browser has.
func (w *window) delta(before, now *rows, known map[id]int64) any {
	out := delta{Type: "delta", ID: w.id, Total: now.total, Exact: now.exact}
	was := make(map[id]*row, len(before.rows))
	for i := range before.rows {
		was[before.rows[i].id] = &before.rows[i]
	}
	if !slices.EqualFunc(before.rows, now.rows, func(a, b row) bool { return a.id == b.id }) {
		out.Order = make([]int64, 0, len(now.rows))
		for i := range now.rows {
			out.Order = append(out.Order, w.keys[now.rows[i].id])
		}
	}
	for i := range now.rows {
		r := &now.rows[i]
		key := w.keys[r.id]
		old := was[r.id]
		if _, has := known[r.id]; !has || old == nil || old.identity != r.identity {
			out.Rows = append(out.Rows, r.message(key))
			continue
		}
		for _, column := range now.differing(*old, *r) {
			if out.Cells == nil {
				out.Cells = map[int64]map[int]json.RawMessage{}
			}
			if out.Cells[key] == nil {
				out.Cells[key] = map[int]json.RawMessage{}
			}
			out.Cells[key][column] = r.cells[column]
		}
	}
	if out.Order == nil && out.Rows == nil && out.Cells == nil && before.total == now.total && before.exact == now.exact {
		return nil
	}
	return out
}

func (r row) message(key int64) rowMessage {
	out := rowMessage{
		Key: key, Cells: r.cells, Cluster: r.cluster, Namespace: r.namespace, Name: r.name, UID: r.uid,
		APIVersion: r.apiVersion, Kind: r.kind, Deleted: r.deleted,
	}
	if r.created != 0 {
		out.Created = time.Unix(r.created, 0).UTC().Format(time.RFC3339)
	}
	return out
}

func columnsOf(definitions []metav1.TableColumnDefinition) []column {
	out := make([]column, 0, len(definitions))
	for _, d := range definitions {
		out = append(out, column{Name: d.Name, Type: d.Type, Format: d.Format, Description: strings.TrimSpace(d.Description), Priority: d.Priority})
	}
	return out
}
