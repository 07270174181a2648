package search

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"orrery.dev/orrery/internal/neutral"
	"orrery.dev/orrery/internal/store"
)

// columns are the columns of a table of objects of one type, and how cells are computed from a row.
// All requests share the columns in builtin, so they must not be changed.
type columns struct {
	heads []head
	// row returns the cells of the heads without a function cell, in order.
	row func(store.Row) ([]any, error)
	// conditions returns the conditions of a row; nil: rows have none.
	conditions func(store.Row) []metav1.TableRowCondition
}

// head describes one column. cell computes the cell from a row. Without cell, the value comes from
// columns.row. A wide column is shown only by kubectl get -o wide.
type head struct {
	name, typ, format string
	wide              bool
	cell              func(store.Row) any
}

// The columns of every table; a kind may replace the name and the age.
var (
	clusterHead = head{name: "Cluster", typ: "string", cell: func(r store.Row) any { return r.Cluster }}
	nameHead    = head{name: "Name", typ: "string", format: "name", cell: func(r store.Row) any { return r.Name }}
	ageHead     = head{name: "Age", typ: "string", cell: func(r store.Row) any { return since(r.Created) }}
)

// lastSeen returns the columns with a further column Last Seen, if a cluster of the answer is
// stale: the hub has had no news from it for some time. stale has the time of the last news by
// cluster. Cells of other clusters show "now". If stale is empty, lastSeen returns c, so that the
// table is as that of an API server. If c has a column Last Seen, as that of Event, the new one is
// Cluster Last Seen.
func (c *columns) lastSeen(stale map[string]time.Time) *columns {
	if len(stale) == 0 {
		return c
	}
	name := "Last Seen"
	if slices.ContainsFunc(c.heads, func(h head) bool { return h.name == name }) {
		name = "Cluster " + name
	}
	seen := head{name: name, typ: "string", cell: func(r store.Row) any {
		if at, ok := stale[r.Cluster]; ok {
			return since(at)
		}
		return "now"
	}}
	return &columns{heads: append(slices.Clip(c.heads), seen), row: c.row, conditions: c.conditions}
}

// plain returns the columns cluster, name and age, for types without columns of their own.
func plain() *columns {
	return &columns{
		heads: []head{clusterHead, nameHead, ageHead},
		row:   func(store.Row) ([]any, error) { return nil, nil },
	}
}

// definitions returns the column definitions for a table in an answer.
func (c *columns) definitions() []metav1.TableColumnDefinition {
	all := make([]metav1.TableColumnDefinition, 0, len(c.heads))
	for _, h := range c.heads {
		d := metav1.TableColumnDefinition{Name: neutral.Line(h.name), Type: h.typ, Format: h.format}
		if h.wide {
			d.Priority = 1
		}
		all = append(all, d)
	}
	return all
}

// neutralCell returns a text of an object for a cell. Control characters are replaced, because they
// could steer the terminal. Tabs become spaces, because kubectl takes a tab for the end of a cell.
// Line breaks stay: kubectl shows only the first line.
func neutralCell(text string) string { return strings.ReplaceAll(neutral.Text(text), "\t", " ") }

// cells returns the cells of a row, in the order of c.heads. Texts are made safe by neutralCell. A
// body that cannot be parsed is an error.
func (c *columns) cells(row store.Row) ([]any, error) {
	own, err := c.row(row)
	if err != nil {
		return nil, err
	}
	cells := make([]any, len(c.heads))
	for i, h := range c.heads {
		if h.cell != nil {
			cells[i] = h.cell(row)
		} else {
			cells[i], own = own[0], own[1:]
		}
		if text, ok := cells[i].(string); ok {
			cells[i] = neutralCell(text)
		}
	}
	return cells, nil
}

// column is one column of the table of a kind with the Go type T. value computes the cell from the
// object. Without value, head.cell does.
type column[T any] struct {
	head
	value func(*T) any
}

// table returns the columns of a kind with the Go type T: the cluster, the name, then cs. The name
// is left out if it is among cs.
func table[T any](cs ...column[T]) *columns {
	c := &columns{heads: []head{clusterHead}}
	if !slices.ContainsFunc(cs, func(col column[T]) bool { return col.name == nameHead.name }) {
		c.heads = append(c.heads, nameHead)
	}
	for _, col := range cs {
		c.heads = append(c.heads, col.head)
	}
	c.row = func(row store.Row) ([]any, error) {
		o := new(T)
		if err := json.Unmarshal(row.Body, o); err != nil {
			return nil, fmt.Errorf("parse body: %w", err)
		}
		var cells []any
		for _, col := range cs {
			if col.value != nil {
				cells = append(cells, col.value(o))
			}
		}
		return cells, nil
	}
	return c
}

// withConditions returns the columns of table, for a kind whose rows may have conditions.
// conditions returns those of a row.
func withConditions[T any](conditions func(store.Row) []metav1.TableRowCondition, cs ...column[T]) *columns {
	c := table(cs...)
	c.conditions = conditions
	return c
}

func text[T any](name string, value func(*T) string) column[T] {
	return column[T]{head{name: name, typ: "string"}, func(o *T) any { return value(o) }}
}

func number[T any, N int | int32 | int64](name string, value func(*T) N) column[T] {
	return column[T]{head{name: name, typ: "integer"}, func(o *T) any { return value(o) }}
}

// numeral returns a column of numbers that API servers declare as text.
func numeral[T any, N int | int32 | int64](name string, value func(*T) N) column[T] {
	c := number(name, value)
	c.typ = "string"
	return c
}

func wideNumeral[T any, N int | int32 | int64](name string, value func(*T) N) column[T] {
	c := numeral(name, value)
	c.wide = true
	return c
}

func wide[T any](name string, value func(*T) string) column[T] {
	c := text(name, value)
	c.wide = true
	return c
}

func age[T any]() column[T] { return column[T]{head: ageHead} }

// since returns the time that has passed since t, as kubectl shows ages, such as 5m. It is
// <unknown> if t is zero.
func since(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

// or returns value, or otherwise if value is empty.
func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
