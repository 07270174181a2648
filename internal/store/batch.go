package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// batch is one SQL statement that reads or writes many rows, prepared for several numbers of rows.
// To parse the statement at each use would cost as much as to run it. Only the goroutine that holds
// database.mu uses it.
type batch struct {
	dialect dialect
	lengths []int       // numbers of rows, from the greatest to 1; or only anyLength
	stmts   []*sql.Stmt // one for each of lengths
}

// anyLength, as the only one of batch.lengths, means that one prepared statement serves any number
// of rows. Each column is then one parameter, an array with the values of all rows.
const anyLength = 0

// mostBytes is the approximate size in bytes up to which rows are put into one execution of a
// statement. Databases refuse packets that are too large.
const mostBytes = 1 << 20

// batches are the prepared statements with which transactions look up and write objects. The
// statements for the table word (recallFullText, putWord, dropWord) are empty unless
// dialect.inverts returns true.
type batches struct {
	find, recall, insertObject, updateObject, moveObject, insertBody, putBody, putLabel, dropObject, dropBody, dropLabel, revision, past, tally, dropTally, putFullText, dropFullText, recallFullText, putWord, dropWord batch
}

var (
	// objectKey are the columns that identify a row of the table object, besides its id.
	objectKey = []string{"type", "cluster", "namespace", "name"}
	// objectColumns are the columns of the table object besides id and objectKey. The last three
	// (created, owner, made) rarely change, and made never does. Setting one of them also writes its
	// index, and in PostgreSQL every index. So updateObject leaves all three unset, and moveObject
	// leaves made unset.
	objectColumns   = []string{"seq", "version", "kind", "uid", "rv", "labels", "note", "began", "since", "revisions", "terms", "prose", "created", "owner", "made"}
	revisionColumns = []string{"id", "object", "began", "since", "until", "rv", "whole", "body"}
	// tallyKey is the key of the table tally, which counts the objects of a type in a namespace.
	tallyKey = []string{"type", "cluster", "namespace"}
	// labelKey is the key of the table label, the index of labels and declared fields.
	labelKey = []string{"type", "label_key", "label_value", "cluster", "namespace", "name"}
)

// prepareBatches prepares the statements in d.batches. After an error, the statements that were
// already prepared stay there, and d.close closes them.
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
		&b.dropTally:    func(n int) string { return d.dialect.remove(n, "tally", append(slices.Clone(tallyKey), "objects")) },
		&b.dropObject:   func(n int) string { return d.dialect.remove(n, "object", id) },
		&b.dropBody:     func(n int) string { return d.dialect.remove(n, "body", object) },
		&b.dropLabel:    func(n int) string { return d.dialect.remove(n, "label", labelKey) },
		&b.putFullText:  d.replaced("prose", "object", object, []string{"words"}),
		&b.dropFullText: func(n int) string { return d.dialect.remove(n, "prose", object) },
	}
	if word := []string{"type", "word", "object"}; d.dialect.inverts() {
		texts[&b.recallFullText] = func(n int) string { return "SELECT object, words FROM prose WHERE " + d.dialect.among(n, "object") }
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

// inserted returns a function that returns, for a number n, the text of a statement that inserts n
// rows into the columns of the table.
func (d *database) inserted(table string, columns []string) func(n int) string {
	return func(n int) string {
		return d.dialect.into() + table + " (" + strings.Join(columns, ", ") + ") " + d.dialect.rows(n, columns)
	}
}

// replaced returns a function that returns, for a number n, the text of a statement that inserts n
// rows. If a row with the same key exists, the statement sets only columns in that row. The columns
// in same are equal then, and setting them would cost as much as changing them. key is the list of
// key columns as SQL text.
func (d *database) replaced(table, key string, same, columns []string) func(n int) string {
	return func(n int) string {
		return d.inserted(table, slices.Concat(same, columns))(n) + d.dialect.replace(key, columns)
	}
}

// values returns the SQL text VALUES (?, ?), (?, ?) with n rows. Each row has a placeholder for
// each of the columns.
func values(n int, columns []string) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?, ", len(columns)), ", ") + ")"
	return "VALUES " + strings.TrimSuffix(strings.Repeat(row+", ", n), ", ")
}

// keyed returns the SQL condition that a row has one of n keys. key has the columns of a key. Each
// of the n keys has a placeholder for each column.
func keyed(n int, key []string) string {
	if len(key) == 1 {
		return key[0] + " IN (" + strings.TrimSuffix(strings.Repeat("?, ", n), ", ") + ")"
	}
	row := "(" + strings.Join(key, " = ? AND ") + " = ?)"
	return strings.TrimSuffix(strings.Repeat(row+" OR ", n), " OR ")
}

// flat returns the values of all rows in one list, row after row, as the parameters of a statement.
// rows must not be empty.
func flat(rows [][]any) []any {
	args := make([]any, 0, len(rows)*len(rows[0]))
	for _, row := range rows {
		args = append(args, row...)
	}
	return args
}

// run runs the statement in a transaction with rows as its parameters, in as many executions as
// needed. It calls f with each row of the result. f is nil for a statement without a result. If
// rows is empty, run does nothing.
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

// query runs a prepared statement and calls f for each row of its result. An error of f ends the
// loop and is returned.
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

// fitting chooses the prepared statement for the next execution. i is its index in b.stmts. n, from
// 1 on, is the number of rows from the beginning of rows that it takes. rows must not be empty.
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

// close closes all prepared statements. It returns one result for each of them: an error, or nil
// for success.
func (b *batches) close() (errs []error) {
	for _, one := range []*batch{
		&b.find, &b.recall, &b.insertObject, &b.updateObject, &b.moveObject, &b.insertBody, &b.putBody, &b.putLabel, &b.dropObject, &b.dropBody, &b.dropLabel,
		&b.revision, &b.past, &b.tally, &b.dropTally, &b.putFullText, &b.dropFullText, &b.recallFullText, &b.putWord, &b.dropWord,
	} {
		for _, stmt := range one.stmts {
			errs = append(errs, stmt.Close())
		}
	}
	return errs
}
