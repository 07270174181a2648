package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// batch is a statement for many rows, prepared for several numbers of rows. Parsing it each time
// would cost as much as running it.
type batch struct {
	dialect dialect
	lengths []int // from the greatest to 1; or only anyLength
	stmts   []*sql.Stmt
}

// anyLength is the length of a statement for any number of rows, with a list as the parameter of
// each column.
const anyLength = 0

// mostBytes is the approximate maximum size of a statement with several rows. Databases refuse
// packets that are too large.
const mostBytes = 1 << 20

// batches are the statements of all writes.
type batches struct {
	find, recall, insertObject, updateObject, moveObject, insertBody, putBody, putLabel, dropObject, dropBody, dropLabel, revision, past, tally, dropTally, putProse, dropProse, recallProse, putWord, dropWord batch
}

var (
	objectKey = []string{"type", "cluster", "namespace", "name"}
	// objectColumns are those besides the key. The last ones rarely change, and made never does.
	// Setting one of them also writes its index, and in PostgreSQL every index.
	objectColumns   = []string{"seq", "version", "kind", "uid", "rv", "labels", "note", "began", "since", "revisions", "terms", "prose", "created", "owner", "made"}
	revisionColumns = []string{"id", "object", "began", "since", "until", "rv", "whole", "body"}
	tallyKey        = []string{"type", "cluster", "namespace"}
	labelKey        = []string{"type", "label_key", "label_value", "cluster", "namespace", "name"}
)

func (d *database) prepareBatches(ctx context.Context) error {
	b, id, object, packed := &d.batches, []string{"id"}, []string{"object"}, []string{"packed"}
	whole := append([]string{"id"}, objectKey...)
	texts := map[*batch]func(n int) string{
		&b.find: func(n int) string {
			return d.dialect.find(n, objectKey, "id", "uid", "owner", "labels", "revisions", "terms", "created", "prose")
		},
		&b.recall: func(n int) string {
			return "SELECT " + stateColumns(d.dialect) + " FROM object o JOIN body b ON b.object = o.id WHERE " + d.dialect.among(n, "o.id")
		},
		&b.insertObject: d.inserted("object", slices.Concat(whole, objectColumns)),
		&b.updateObject: func(n int) string {
			return d.dialect.update(n, "object", whole, objectColumns, len(objectColumns)-3)
		},
		&b.moveObject: func(n int) string { return d.dialect.update(n, "object", whole, objectColumns, len(objectColumns)-1) },
		&b.insertBody: d.inserted("body", slices.Concat(object, d.dialect.bodyColumns(), packed)),
		&b.putBody: func(n int) string {
			content := slices.Concat(d.dialect.bodyColumns(), packed)
			return d.dialect.overwrite(n, "body", object, content)
		},
		&b.putLabel: d.replaced("label", strings.Join(labelKey, ", "), labelKey, append([]string{"created"}, object...)),
		&b.revision: d.inserted("revision", revisionColumns),
		&b.past:     d.replaced("past", "id", append(slices.Clone(whole), "uid"), []string{"ended"}),
		&b.tally: func(n int) string {
			return d.inserted("tally", append(slices.Clone(tallyKey), "objects"))(n) + d.dialect.accumulate("tally", strings.Join(tallyKey, ", "), "objects")
		},
		&b.dropTally:  func(n int) string { return d.dialect.remove(n, "tally", append(slices.Clone(tallyKey), "objects")) },
		&b.dropObject: func(n int) string { return d.dialect.remove(n, "object", id) },
		&b.dropBody:   func(n int) string { return d.dialect.remove(n, "body", object) },
		&b.dropLabel:  func(n int) string { return d.dialect.remove(n, "label", labelKey) },
		&b.putProse:   d.replaced("prose", "object", object, []string{"words"}),
		&b.dropProse:  func(n int) string { return d.dialect.remove(n, "prose", object) },
	}
	if word := []string{"type", "word", "object"}; d.dialect.inverts() {
		texts[&b.recallProse] = func(n int) string { return "SELECT object, words FROM prose WHERE " + d.dialect.among(n, "object") }
		texts[&b.putWord] = d.replaced("word", "", word[:2], word[2:])
		texts[&b.dropWord] = func(n int) string { return d.dialect.remove(n, "word", word) }
	}
	for b, text := range texts {
		b.dialect = d.dialect
		for _, n := range d.dialect.lengths() {
			if n > 1 && text(n) == text(1) { // the statement is always for one row
				continue
			}
			b.lengths = append(b.lengths, n)
			stmt, err := d.write.PrepareContext(ctx, text(n)) //nolint:sqlclosecheck // close does
			if err != nil {
				return fmt.Errorf("prepare %q: %w", text(min(n, 1)), err)
			}
			b.stmts = append(b.stmts, stmt)
		}
	}
	return nil
}

// inserted returns the text of a statement that inserts n rows.
func (d *database) inserted(table string, columns []string) func(n int) string {
	return func(n int) string {
		return d.dialect.into() + table + " (" + strings.Join(columns, ", ") + ") " + d.dialect.rows(n, columns)
	}
}

// replaced returns the text of a statement that inserts n rows, or sets columns of those with the
// same keys. Setting the other columns to equal values would cost as much as changing them.
func (d *database) replaced(table, key string, same, columns []string) func(n int) string {
	return func(n int) string {
		return d.inserted(table, slices.Concat(same, columns))(n) + d.dialect.replace(key, columns)
	}
}

// values returns n rows of placeholders.
func values(n int, columns []string) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?, ", len(columns)), ", ") + ")"
	return "VALUES " + strings.TrimSuffix(strings.Repeat(row+", ", n), ", ")
}

// keyed returns the condition that a row has one of n keys.
func keyed(n int, key []string) string {
	if len(key) == 1 {
		return key[0] + " IN (" + strings.TrimSuffix(strings.Repeat("?, ", n), ", ") + ")"
	}
	row := "(" + strings.Join(key, " = ? AND ") + " = ?)"
	return strings.TrimSuffix(strings.Repeat(row+" OR ", n), " OR ")
}

// flat returns the parameters of rows, one after another.
func flat(rows [][]any) []any {
	args := make([]any, 0, len(rows)*len(rows[0]))
	for _, row := range rows {
		args = append(args, row...)
	}
	return args
}

// run runs the statement for all rows in a transaction, and calls f with each row of a result; f
// may be nil.
func (b *batch) run(ctx context.Context, tx *sql.Tx, rows [][]any, f func(*sql.Rows) error) error {
	stmts := make([]*sql.Stmt, len(b.stmts))
	for len(rows) > 0 {
		i, n := b.fitting(rows)
		if stmts[i] == nil {
			stmts[i] = tx.StmtContext(ctx, b.stmts[i])
		}
		args := b.dialect.arguments(rows[:n])
		rows = rows[n:]
		if f == nil {
			if _, err := stmts[i].ExecContext(ctx, args...); err != nil {
				return err
			}
			continue
		}
		if err := query(ctx, stmts[i], args, f); err != nil {
			return err
		}
	}
	return nil
}

// query calls f for each row of a result.
func query(ctx context.Context, stmt *sql.Stmt, args []any, f func(*sql.Rows) error) error {
	answer, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer answer.Close() //nolint:errcheck // rows.Err says it
	for answer.Next() {
		if err := f(answer); err != nil {
			return err
		}
	}
	return answer.Err()
}

// fitting returns the index of the statement for the next rows, and their number.
func (b *batch) fitting(rows [][]any) (i, n int) {
	bytes, most, bound := 0, 0, len(rows)
	if b.lengths[0] != anyLength {
		bound = min(bound, b.lengths[0])
	}
	for most < bound {
		for _, v := range rows[most] {
			switch v := v.(type) {
			case string:
				bytes += len(v)
			case []byte:
				bytes += len(v)
			}
		}
		if most++; bytes > mostBytes {
			break
		}
	}
	for i, n := range b.lengths {
		if n == anyLength {
			return i, most
		}
		if n <= most {
			return i, n
		}
	}
	return len(b.lengths) - 1, 1
}

func (b *batches) close() (errs []error) {
	for _, one := range []*batch{
		&b.find, &b.recall, &b.insertObject, &b.updateObject, &b.moveObject, &b.insertBody, &b.putBody, &b.putLabel, &b.dropObject, &b.dropBody, &b.dropLabel,
		&b.revision, &b.past, &b.tally, &b.dropTally, &b.putProse, &b.dropProse, &b.recallProse, &b.putWord, &b.dropWord,
	} {
		for _, stmt := range one.stmts {
			errs = append(errs, stmt.Close())
		}
	}
	return errs
}
