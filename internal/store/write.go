package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	sqlite3 "modernc.org/sqlite/lib"
)

func (d *database) apply(ctx context.Context, changes []Change) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.identify(ctx, changes); err != nil {
		return fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	rejected, err := d.bisect(ctx, changes)
	if err != nil {
		return fmt.Errorf("write %d changes: %w", len(changes), err)
	}
	return errors.Join(rejected...)
}

// bisect writes the changes, or, when the database refuses one of them, each half of them.
func (d *database) bisect(ctx context.Context, changes []Change) (rejected []error, err error) {
	err = d.transact(ctx, func(tx *sql.Tx) error {
		w := writer{ctx: ctx, tx: tx, stmts: &d.stmts}
		for i := range changes {
			c := &changes[i]
			if err := w.change(c, d.clusters[c.Cluster], d.types[groupResource{c.Group, c.Resource}]); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil || !refused(err):
		return nil, err
	case len(changes) == 1:
		c := &changes[0]
		d.incomplete[clusterType{d.clusters[c.Cluster], d.types[groupResource{c.Group, c.Resource}]}] = true
		return []error{&RejectedError{
			Cluster: c.Cluster, Group: c.Group, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name, Err: err,
		}}, nil
	}
	half := len(changes) / 2
	first, err := d.bisect(ctx, changes[:half])
	if err != nil {
		return nil, err
	}
	second, err := d.bisect(ctx, changes[half:])
	return append(first, second...), err
}

// refused says whether an error is about the row, not about the database.
func refused(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return true
	default:
		return false
	}
}

func (d *database) transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, rollback(tx))
	}
	return tx.Commit()
}

// rollback ends a transaction that failed. SQLite has often ended it by then, which is no
// error.
func rollback(tx *sql.Tx) error {
	err := tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) || code(err) == sqlite3.SQLITE_ERROR {
		return nil
	}
	return err
}

// identify fills the numbers of the clusters and types that the changes write to. They are
// committed before the rows, so that what is remembered of them is never rolled back.
func (d *database) identify(ctx context.Context, changes []Change) error {
	for i := range changes {
		c := &changes[i]
		if err := d.identifyOne(ctx, c.Cluster, groupResource{c.Group, c.Resource}); err != nil && !refused(err) {
			return err
		}
	}
	return nil
}

func (d *database) identifyOne(ctx context.Context, cluster string, gr groupResource) error {
	if _, ok := d.clusters[cluster]; !ok {
		var id int64
		err := d.write.QueryRowContext(ctx,
			"INSERT INTO cluster (name) VALUES (?) ON CONFLICT DO UPDATE SET name = name RETURNING id", cluster).Scan(&id)
		if err != nil {
			return err
		}
		d.clusters[cluster] = id
	}
	if _, ok := d.types[gr]; !ok {
		var id int64
		err := d.write.QueryRowContext(ctx,
			"INSERT INTO type (grp, resource) VALUES (?, ?) ON CONFLICT DO UPDATE SET grp = grp RETURNING id", gr.group, gr.resource).Scan(&id)
		if err != nil {
			return err
		}
		d.types[gr] = id
	}
	return nil
}

// statements are prepared once: parsing them for every row would cost as much as running
// them.
type statements struct {
	find, insert, update, remove, putBody, removeBody, putLabels, removeLabels *sql.Stmt
}

func (s *statements) prepare(ctx context.Context, db *sql.DB) error {
	for stmt, query := range map[**sql.Stmt]string{
		&s.find: `SELECT id, labels FROM object WHERE cluster = ? AND type = ? AND namespace = ? AND name = ?`,
		&s.insert: `INSERT INTO object (cluster, type, namespace, name, version, kind, uid, owner, created, rv, labels, note)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		&s.update:     `UPDATE object SET version = ?, kind = ?, uid = ?, owner = ?, created = ?, rv = ?, labels = ?, note = ? WHERE id = ?`,
		&s.remove:     `DELETE FROM object WHERE id = ?`,
		&s.putBody:    `INSERT INTO body (object, json) VALUES (?, ?) ON CONFLICT DO UPDATE SET json = excluded.json`,
		&s.removeBody: `DELETE FROM body WHERE object = ?`,
		&s.putLabels: `INSERT INTO label (cluster, type, namespace, name, object, key, value)
			SELECT ?, ?, ?, ?, ?, key, value FROM json_each(?)`,
		&s.removeLabels: `DELETE FROM label WHERE cluster = ? AND type = ? AND namespace = ? AND name = ?
			AND (key, value) IN (SELECT key, value FROM json_each(?))`,
	} {
		var err error
		if *stmt, err = db.PrepareContext(ctx, query); err != nil { //nolint:sqlclosecheck // close does
			return fmt.Errorf("prepare %q: %w", query, err)
		}
	}
	return nil
}

func (s *statements) close() error {
	var errs []error
	for _, stmt := range []*sql.Stmt{s.find, s.insert, s.update, s.remove, s.putBody, s.removeBody, s.putLabels, s.removeLabels} {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	return errors.Join(errs...)
}

// writer writes changes in one transaction.
type writer struct {
	ctx   context.Context //nolint:containedctx // lives as long as one transaction
	tx    *sql.Tx
	stmts *statements
}

func (w *writer) exec(stmt *sql.Stmt, args ...any) (sql.Result, error) {
	return w.tx.StmtContext(w.ctx, stmt).ExecContext(w.ctx, args...) //nolint:sqlclosecheck // the transaction closes it
}

func (w *writer) change(c *Change, cluster, kind int64) error {
	var id int64
	var stored string
	err := w.tx.StmtContext(w.ctx, w.stmts.find).QueryRowContext(w.ctx, cluster, kind, c.Namespace, c.Name).Scan(&id, &stored) //nolint:sqlclosecheck // the transaction closes it
	known := err == nil
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	before := map[string]string{}
	if known {
		if err := json.Unmarshal([]byte(stored), &before); err != nil {
			return fmt.Errorf("%w: read labels of %s/%s: %w", errDamaged, c.Namespace, c.Name, err)
		}
	}
	if c.Delete {
		if !known {
			return nil
		}
		if err := w.label(c, cluster, kind, id, before, nil); err != nil {
			return err
		}
		_, bodyErr := w.exec(w.stmts.removeBody, id)
		_, err := w.exec(w.stmts.remove, id)
		return errors.Join(bodyErr, err)
	}
	if id, err = w.put(c, cluster, kind, id, known); err != nil {
		return err
	}
	if _, err := w.exec(w.stmts.putBody, id, string(c.Body)); err != nil {
		return err
	}
	return w.label(c, cluster, kind, id, before, c.Labels)
}

// put writes the slim row and returns its id.
func (w *writer) put(c *Change, cluster, kind, id int64, known bool) (int64, error) {
	labels := encode(c.Labels)
	created := int64(0)
	if !c.Created.IsZero() {
		created = c.Created.Unix()
	}
	if known {
		_, err := w.exec(w.stmts.update, c.Version, c.Kind, string(c.UID), string(c.OwnerUID), created, c.ResourceVersion, labels, c.Note, id)
		return id, err
	}
	r, err := w.exec(w.stmts.insert, cluster, kind, c.Namespace, c.Name,
		c.Version, c.Kind, string(c.UID), string(c.OwnerUID), created, c.ResourceVersion, labels, c.Note)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}

// label makes the rows of an object's labels those of after; most updates change none.
func (w *writer) label(c *Change, cluster, kind, id int64, before, after map[string]string) error {
	if gone := without(before, after); len(gone) > 0 {
		if _, err := w.exec(w.stmts.removeLabels, cluster, kind, c.Namespace, c.Name, encode(gone)); err != nil {
			return err
		}
	}
	if added := without(after, before); len(added) > 0 {
		if _, err := w.exec(w.stmts.putLabels, cluster, kind, c.Namespace, c.Name, id, encode(added)); err != nil {
			return err
		}
	}
	return nil
}

// without returns the labels of a that b does not have.
func without(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.DeleteFunc(out, func(k, v string) bool { other, ok := b[k]; return ok && other == v })
	return out
}

func encode(labels map[string]string) string {
	if len(labels) == 0 {
		return "{}"
	}
	b, _ := json.Marshal(labels) //nolint:errchkjson // strings
	return string(b)
}
