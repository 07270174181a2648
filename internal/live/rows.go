package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/search"
)

// rows is an answer to a question: the rows of a window from offset on or, if refused is not nil,
// the reason why there are none. total is the number of rows of the list. If exact is false, the
// list may have more. Sockets share the value, and it is never changed.
type rows struct {
	offset   int
	total    int64
	exact    bool
	columns  []metav1.TableColumnDefinition
	rows     []row
	warnings []string
	refused  *metav1.Status
}

// row is an object in a list: what identifies it, and its cells as JSON. An object that was deleted
// and created again has another UID, and is another row.
type row struct {
	id
	identity

	cells []json.RawMessage
}

// id identifies the object of a row.
type id struct {
	cluster, namespace, name string
	uid                      types.UID
}

// identity has the facts about the object of a row that a browser gets with the row itself, and not
// as changed cells. created is in seconds since 1970; 0: unknown. deleted is true while the object
// is being deleted.
type identity struct {
	apiVersion, kind string
	created          int64
	deleted          bool
}

// mostCell is the maximum size of a cell as JSON, in bytes. Members may store long values, but
// users do not read them.
const mostCell = 4 << 10

// ageing is the name of the column Age. Browsers compute its cells themselves, so changes of these
// cells are not sent.
const ageing = "Age"

// rowsOf returns the answer to a question from the result of the search, with cells as JSON. Cells
// beyond mostCell are cut. It returns an error if a cell cannot be encoded.
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
			raw, err := encoded(cell)
			if err != nil {
				return nil, fmt.Errorf("encode column %s of %s in cluster %s: %w", w.Columns[j].Name, r.Name, r.Cluster, err)
			}
			one.cells[j] = raw
		}
		out.rows = append(out.rows, one)
	}
	return out, nil
}

// encoded returns a cell as JSON of at most mostCell bytes. A longer text is cut at the end of a
// character, and so is the JSON of a longer cell that is not a text. An ellipsis follows. The error
// is that of a cell that cannot be encoded.
func encoded(cell any) (json.RawMessage, error) {
	raw, err := json.Marshal(cell)
	text, ok := cell.(string)
	if !ok {
		text = string(raw)
	}
	// JSON has up to six bytes for a character of one byte, such as < and control characters.
	for most := mostCell / 2; err == nil && len(raw) > mostCell; most /= 2 {
		raw, err = json.Marshal(neutral.Cut(text, most))
	}
	return raw, err
}

// equal reports whether browsers would show two answers alike, apart from ages: the same rows, or
// the same reason why there are none.
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

// differing returns the indexes of the columns in which the cells of two rows differ. The column
// Age (ageing) is left out. Both rows must have the columns of r.
func (r *rows) differing(a, b row) (columns []int) {
	for i := range a.cells {
		if r.columns[i].Name != ageing && !bytes.Equal(a.cells[i], b.cells[i]) {
			columns = append(columns, i)
		}
	}
	return columns
}

// window is a part of a list that a page shows. The mutex of its socket guards it. keys has the
// keys of the rows of the last sent answer: numbers by which the browser identifies rows.
type window struct {
	id       int
	question *question
	fresh    bool  // the next message must be a whole
	sent     *rows // last sent answer; nil: none
	keys     map[id]int64
	last     int64 // last assigned key
}

// news returns the message that takes the browser from the last sent answer to now: a whole, a
// delta or a refusal; nil if the browser has to change nothing. It records now as sent, and assigns
// keys to new rows. The caller holds the mutex of the socket.
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

// delta returns the message with the differences between two answers that have equal columns and
// warnings; nil if nothing differs. known has the keys of the rows that the browser has. w.keys
// already has those of the rows of now.
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

// message returns the row as the browser gets it, with the key that identifies the row in its
// window.
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

// columnsOf returns the columns of a table as the browser gets them.
func columnsOf(definitions []metav1.TableColumnDefinition) []column {
	out := make([]column, 0, len(definitions))
	for _, d := range definitions {
		out = append(out, column{Name: d.Name, Type: d.Type, Format: d.Format, Description: strings.TrimSpace(d.Description), Priority: d.Priority})
	}
	return out
}
