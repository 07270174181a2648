package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/sqlite"
)

// database is the open file of the records. Its methods return errors of package sqlite. Several
// goroutines may read at the same time; only one may write.
type database struct {
	*sqlite.DB
	known *known // numbers of clusters and words that are committed; only the writer uses it
}

// tables is a query that fails if a file lacks one of the tables of this package. Such a file
// belongs to another program, even if its schema version fits.
const tables = `SELECT (SELECT count(*) FROM (SELECT ends FROM decision LIMIT 1)) + (SELECT count(*) FROM (SELECT used FROM word LIMIT 1))
	+ (SELECT count(*) FROM (SELECT fields FROM result LIMIT 1)) + (SELECT count(*) FROM (SELECT content FROM revision LIMIT 1))
	+ (SELECT count(*) FROM (SELECT name FROM cluster LIMIT 1))`

// openDatabase opens or creates the file at path and runs the steps of schema that have not run
// yet. The errors are those of sqlite.Open. A file whose tables are not those of its schema version
// is a sqlite.ErrDamaged.
func openDatabase(ctx context.Context, path string, schema []string) (*database, error) {
	db, err := sqlite.Open(ctx, path, schema)
	if errors.Is(err, sqlite.ErrRefused) {
		return nil, fmt.Errorf("%w: its schema is not what its version says: %w", sqlite.ErrDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	var n int
	if err := sqlite.Classify(db.Read.QueryRowContext(ctx, tables).Scan(&n)); err != nil {
		if errors.Is(err, sqlite.ErrRefused) {
			err = fmt.Errorf("%w: its schema is not what its version says: %w", sqlite.ErrDamaged, err)
		}
		return nil, errors.Join(err, db.Close())
	}
	return &database{DB: db, known: newKnown()}, nil
}

// tally is the result of write: the number of decisions that were stored, and the number of those
// that were not. A decision is not stored if it has the same outcome as the last stored decision on
// its template.
type tally struct{ stored, unchanged int }

// write writes a batch completely or not at all. For an empty batch it begins no transaction. A
// decision with the same outcome as the last stored one on its template is not stored, and counted
// in tally.unchanged.
func (db *database) write(ctx context.Context, b *batch) (t tally, err error) {
	if b.empty() {
		return tally{}, nil
	}
	err = db.Transact(ctx, func(tx *sql.Tx) error {
		d := &dictionary{known: db.known, ctx: ctx, tx: tx}
		if err := d.forget(b); err != nil {
			return err
		}
		if err := d.writeResults(b.results); err != nil {
			return err
		}
		t, err = d.writeDecisions(b.decisions)
		return err
	})
	if err != nil {
		db.known = newKnown() // it may contain data that was rolled back
		return tally{}, err
	}
	return t, nil
}

// forget deletes the stored results of the bindings and clusters that the batch deletes.
func (d *dictionary) forget(b *batch) error {
	for binding := range b.bindings {
		if _, err := d.tx.ExecContext(d.ctx, "DELETE FROM result WHERE binding = ?", string(binding)); err != nil {
			return err
		}
	}
	for cluster := range b.clusters {
		if _, err := d.tx.ExecContext(d.ctx, "DELETE FROM result WHERE cluster = (SELECT id FROM cluster WHERE name = ?)", cluster); err != nil {
			return err
		}
	}
	return nil
}

func (d *dictionary) writeResults(results map[types.UID]map[string]Result) error {
	if len(results) == 0 {
		return nil
	}
	put, err := d.tx.PrepareContext(d.ctx, `INSERT OR REPLACE INTO result
		(binding, cluster, cluster_uid, applied, reason, message, generation, template, digest, fields, time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return err
	}
	defer put.Close() //nolint:errcheck // the transaction closes it too
	for _, binding := range slices.Sorted(maps.Keys(results)) {
		for _, r := range results[binding] {
			cluster, err := ids{d}.cluster(r.Cluster)
			if err != nil {
				return err
			}
			_, err = put.ExecContext(d.ctx, string(r.Binding), cluster, string(r.ClusterUID), r.Applied, r.Reason, r.Message,
				r.Generation, r.Template, r.Digest, int64(r.Fields), r.Time.UnixMilli()) //nolint:gosec // read back the same way
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// diskBytes estimates the disk space of a decision with this encoded body. It includes the row's
// other columns, the index, and free space in pages.
func diskBytes(body []byte) int64 { return int64(len(body)+36) * 6 / 5 }

func (d *dictionary) writeDecisions(ds []Decision) (t tally, err error) {
	if len(ds) == 0 {
		return t, nil
	}
	var id, ends int64
	err = d.tx.QueryRowContext(d.ctx, "SELECT id, ends FROM decision ORDER BY id DESC LIMIT 1").Scan(&id, &ends)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return t, err
	}
	last, err := d.tx.PrepareContext(d.ctx, "SELECT time, body FROM decision WHERE template = ? ORDER BY id DESC LIMIT 1")
	if err != nil {
		return t, err
	}
	defer last.Close() //nolint:errcheck // the transaction closes it too
	put, err := d.tx.PrepareContext(d.ctx, "INSERT INTO decision (id, template, time, ends, body) VALUES (?, ?, ?, ?, ?)")
	if err != nil {
		return t, err
	}
	defer put.Close() //nolint:errcheck // the transaction closes it too
	for _, decision := range ds {
		d.decision, d.added = id+1, 0
		template, err := ids{d}.word(string(decision.Template.UID))
		if err != nil {
			return t, err
		}
		before, err := d.scan(decision.Template.UID, last.QueryRowContext(d.ctx, int64(template))) //nolint:gosec // a row's number
		if err == nil && unchanged(before, decision) {
			t.unchanged++
			continue
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return t, err
		}
		body, err := encode(decision, ids{d})
		if err != nil {
			return t, err
		}
		id++
		ends += diskBytes(body) + d.added
		if _, err := put.ExecContext(d.ctx, id, int64(template), decision.Time.UnixMilli(), ends, body); err != nil { //nolint:gosec // a row's number
			return t, err
		}
		t.stored++
	}
	return t, nil
}

// scan reads a decision on a template from a row with its time and its encoded body. The error is
// sql.ErrNoRows if there is no row, and sqlite.ErrDamaged if the body cannot be decoded.
func (d *dictionary) scan(template types.UID, row interface{ Scan(dest ...any) error }) (Decision, error) {
	var ms int64
	var body []byte
	if err := row.Scan(&ms, &body); err != nil {
		return Decision{}, err
	}
	out, err := decode(body, names{d})
	if errors.Is(err, errBody) {
		return Decision{}, fmt.Errorf("%w: %w", sqlite.ErrDamaged, err)
	}
	if err != nil {
		return Decision{}, err
	}
	out.Template.UID, out.Time = template, fromMilli(ms)
	return out, nil
}

// decisions returns the last decisions on a template, the newest first, at most limit. If limit is
// 0 or negative, it returns all.
func (db *database) decisions(ctx context.Context, template types.UID, limit int) (out []Decision, err error) {
	err = db.View(ctx, func(tx *sql.Tx) error {
		if limit <= 0 {
			limit = -1
		}
		rows, err := tx.QueryContext(ctx, `SELECT time, body FROM decision WHERE template = (SELECT id FROM word WHERE text = ?)
			ORDER BY id DESC LIMIT ?`, string(template), limit)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // Err says it
		d := &dictionary{known: newKnown(), ctx: ctx, tx: tx}
		for rows.Next() {
			decision, err := d.scan(template, rows)
			if err != nil {
				return err
			}
			out = append(out, decision)
		}
		return rows.Err()
	})
	return out, err
}

// selectResults is the beginning of a query for results. The caller appends WHERE and ORDER BY.
const selectResults = `SELECT r.binding, r.cluster, c.name, r.cluster_uid, r.applied, r.reason, r.message, r.generation, r.template,
	r.digest, r.fields, r.time FROM result r JOIN cluster c ON c.id = r.cluster `

// results runs a query that begins with selectResults, and returns its results. cluster is the
// number, in the database, of the cluster of the last result, for the next page; 0: there are no
// results.
func (db *database) results(ctx context.Context, query string, args ...any) (out []Result, cluster int64, err error) {
	err = db.View(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // Err says it
		for rows.Next() {
			var r Result
			var fields, ms int64
			if err := rows.Scan(&r.Binding, &cluster, &r.Cluster, &r.ClusterUID, &r.Applied, &r.Reason, &r.Message, &r.Generation,
				&r.Template, &r.Digest, &fields, &ms); err != nil {
				return err
			}
			r.Fields, r.Time = uint64(fields), fromMilli(ms) //nolint:gosec // as it was written
			out = append(out, r)
		}
		return rows.Err()
	})
	return out, cluster, err
}

func (db *database) putRevision(ctx context.Context, r Revision) error {
	content, err := deflate(r.Content)
	if err != nil {
		return err
	}
	return db.Transact(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO revision (template, number, hash, cause, created, content) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET hash = excluded.hash, cause = excluded.cause, created = excluded.created, content = excluded.content`,
			string(r.Template), r.Number, r.Hash, r.Cause, r.Created.UnixMilli(), content)
		return err
	})
}

func (db *database) revisions(ctx context.Context, template types.UID) (out []Revision, err error) {
	err = db.View(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT number, hash, cause, created, content FROM revision WHERE template = ? ORDER BY number", string(template))
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // Err says it
		for rows.Next() {
			r := Revision{Template: template}
			var created int64
			var content []byte
			if err := rows.Scan(&r.Number, &r.Hash, &r.Cause, &created, &content); err != nil {
				return err
			}
			if r.Content, err = inflate(content); err != nil {
				return fmt.Errorf("%w: revision %d of %s: %w", sqlite.ErrDamaged, r.Number, template, err)
			}
			r.Created = fromMilli(created)
			out = append(out, r)
		}
		return rows.Err()
	})
	return out, err
}

func (db *database) deleteRevisions(ctx context.Context, template types.UID, numbers []int64) error {
	return db.Transact(ctx, func(tx *sql.Tx) error {
		if len(numbers) == 0 {
			_, err := tx.ExecContext(ctx, "DELETE FROM revision WHERE template = ?", string(template))
			return err
		}
		for _, n := range numbers {
			if _, err := tx.ExecContext(ctx, "DELETE FROM revision WHERE template = ? AND number = ?", string(template), n); err != nil {
				return err
			}
		}
		return nil
	})
}

// chunk is the maximum number of decisions that one transaction deletes, while writes wait, and of
// results that are read at once.
const chunk = 1000

// prune deletes up to chunk of the oldest decisions. It deletes those from before the given time,
// and those that exceed the given total size in bytes. more is true if there may be more to delete;
// the caller then calls prune again. The last call deletes the words that no decision uses, and
// empties the cache of words.
func (db *database) prune(ctx context.Context, before time.Time, bytes int64) (more bool, err error) {
	err = db.Transact(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM decision WHERE id IN (SELECT id FROM decision ORDER BY id LIMIT ?)
			AND (time < ? OR ends <= (SELECT ends FROM decision ORDER BY id DESC LIMIT 1) - ?)`, chunk, before.UnixMilli(), bytes)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if more = n == chunk; more || n == 0 || err != nil {
			return err
		}
		// No more decisions are due for deletion. The stored last use of a word is at most usedSlack
		// decisions too old.
		_, err = tx.ExecContext(ctx, "DELETE FROM word WHERE used < coalesce((SELECT min(id) FROM decision), 9e18) - ?", usedSlack)
		return err
	})
	if !more || err != nil {
		db.known = newKnown()
	}
	return more && err == nil, err
}
