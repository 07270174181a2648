package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/seal"
)

// The history in a file that was set aside is copied to the new file in the background, object by
// object. The objects are read in the order of their ids, and keep them. The sequence of the new
// file begins above that of the old file, so that no number is used twice. The progress is stored
// in the new file after each object, so a later start continues there. An object that was copied
// in part is copied again.

var (
	historySalvaged = promauto.NewCounter(prometheus.CounterOpts{
		Name: "orrery_mirror_history_salvaged_revisions_total",
		Help: "Former states of mirrored objects that were read from a damaged database into the one that took its place.",
	})
	historyUnreadable = promauto.NewCounter(prometheus.CounterOpts{
		Name: "orrery_mirror_history_unreadable_total",
		Help: "Parts of the history in a damaged database that could not be read: former states, objects, or stretches of the file with any number of them.",
	})
)

// Sizes and limits of a salvage.
const (
	// salvageRevisions is how many revisions of an object are read from the damaged file, and written
	// to the new one, at once.
	salvageRevisions = wholeEvery
	// salvageObjects is how many objects are read from the damaged file at once.
	salvageObjects = 100
	// salvageDelay is the delay before the next attempt when the new file cannot be written.
	salvageDelay = 10 * time.Second
	// mostBroken is the maximum number of unreadable ranges that a salvage skips. After that, the rest
	// of the file counts as one unreadable range.
	mostBroken = 10_000
	// oldestSalvaged is the first version of the schema whose history this version can still read. So
	// an upgrade of Orrery does not end the salvage of a file with an earlier schema.
	oldestSalvaged = 7
	// mostSequence is the greatest sequence that is accepted from a damaged file. The new file
	// continues above it, and must not run out of numbers.
	mostSequence = sequences / 10
)

// errReplaced means that the database to which the history is copied is no longer the open one. The
// salvage ends.
var errReplaced = errors.New("the mirror's database was replaced")

// predecessor names a damaged file that was set aside, or will be. It is stored as JSON beside the
// database, until the new file has recorded that its history is to be salvaged.
type predecessor struct {
	File string `json:"file"` // file name without the directory
	Seq  int64  `json:"seq"`  // last sequence of the file; 0: unknown
}

// asideNote returns the path of the file beside the database that contains the predecessor as JSON.
func (s *Store) asideNote() string { return s.path + ".aside" }

// noteAside writes the note (asideNote) about the damaged file that is about to be set aside. The
// next new file then salvages the history of that file. It replaces an earlier note.
func (s *Store) noteAside(a predecessor) error {
	b, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(s.asideNote(), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that the database is set aside: %w", err)
	}
	return nil
}

// claim returns the salvage that is to be done, or continued, into the database d that was just
// opened; nil: none. If d is new and a note names a file that was set aside, it begins the salvage
// of that file. It removes the note, and sets d.salvaging. After an error the note stays, and the
// caller must not use d: the next open calls claim again. The caller holds s.opening.
func (s *Store) claim(ctx context.Context, d *database) (left *salvage, err error) {
	b, err := os.ReadFile(s.asideNote())
	switch {
	case err == nil:
		var a predecessor
		// If the sequence is greater, the file was not set aside in the end, or the salvage was recorded
		// already. A new file has only been claimed.
		if json.Unmarshal(b, &a) == nil && d.found.seq%claimStride == 0 {
			err = s.takeOver(ctx, d, a)
		}
		// After a failure the note stays, so that the next open takes over.
		if err == nil {
			err = os.Remove(s.asideNote())
		}
		if err != nil {
			return nil, fmt.Errorf("take over from the database that was set aside: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("look for a database that was set aside: %w", err)
	}
	if left, err = d.left(ctx); err != nil {
		return nil, err
	}
	d.salvaging.Store(left != nil)
	return left, nil
}

// takeOver prepares the new file d for the history of the file a, which was set aside. It sets the
// sequence of d above that of a, so that no number is used twice. It records in d that there is a
// history to salvage, and the clusters of a, so that Store.Clusters returns them before anything of
// their history is salvaged. If the file a does not exist, or none of its sequences can be read, it
// records nothing and returns nil.
func (s *Store) takeOver(ctx context.Context, d *database, a predecessor) error {
	base := a.Seq
	old, err := openDamaged(filepath.Join(filepath.Dir(s.path), a.File), &s.sealing)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the file was never set aside
	}
	if err != nil {
		return err
	}
	defer old.close() //nolint:errcheck // it was only read
	for _, query := range []string{"SELECT seq FROM epoch", "SELECT max(id) FROM revision", "SELECT max(id) FROM past", "SELECT max(id) FROM object"} {
		var n sql.Null[int64]
		// Unreadable values are ignored.
		if err := old.read.QueryRowContext(ctx, query).Scan(&n); err == nil && n.V < mostSequence {
			base = max(base, n.V)
		}
	}
	if base == 0 {
		historyUnreadable.Inc()
		s.log.Info("Nothing of the history in the damaged database can be read", "setAside", a.File)
		return nil
	}
	var clusters []string
	_ = old.learn(ctx) // unreadable clusters are left out
	for name, dropped := range old.clusters {
		if !dropped && name != "" && utf8.ValidString(name) {
			clusters = append(clusters, name)
		}
	}
	if err := d.locked(ctx, base, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		for _, name := range clusters {
			if _, err := tx.ExecContext(ctx, "INSERT INTO cluster (name, dropped) VALUES (?, 0) ON CONFLICT DO NOTHING", name); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO salvage (file, base) VALUES (?, ?)", a.File, base)
		return err
	}); err != nil {
		return err
	}
	d.known.Lock()
	defer d.known.Unlock()
	for _, name := range clusters {
		d.clusters[name] = false
	}
	return nil
}

// openDamaged opens a damaged file for reading, without a check of its contents. Any part may be
// unreadable or garbage. A missing file is an fs.ErrNotExist, and other damage shows only in
// queries. SQLite's read-only mode is not used, because it would map the index of the file into
// memory: see fileDSN.
func openDamaged(path string, sealing *atomic.Pointer[seal.Keys]) (*database, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	read, err := sql.Open("sqlite", fileDSN(path, "query_only(1)", "cell_size_check(1)"))
	if err != nil {
		return nil, err
	}
	read.SetMaxOpenConns(1)
	return &database{
		dialect: sqliteDialect{}, read: read, write: read, sealing: sealing,
	}, nil
}

// salvage is the copying of the history in a damaged file to the file that replaced it, with its
// progress.
type salvage struct {
	file string
	// The sequence of the new file when the salvage was recorded. Nothing in the old file has a
	// greater one.
	base       int64
	after      int64 // id of the last object that was read
	revisions  int64 // number of revisions stored
	unreadable int64 // number of revisions, objects and ranges that could not be read

	old        *database
	compressor compressor
	broken     int // unreadable ranges that were skipped
}

// left returns the salvage that is recorded in the database and not finished; nil: none.
func (d *database) left(ctx context.Context) (*salvage, error) {
	j := &salvage{}
	err := d.read.QueryRowContext(ctx, "SELECT file, base, after, revisions, unreadable FROM salvage").Scan(&j.file, &j.base, &j.after, &j.revisions, &j.unreadable)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil //nolint:nilnil // documented
	case err != nil:
		return nil, fmt.Errorf("look what is to be salvaged: %w", err)
	}
	return j, nil
}

// beginSalvage starts a goroutine that copies the rest of the damaged file of j to d, and sets
// s.endSalvage. A failure is logged, and the salvage continues after the next open. The caller
// holds s.opening.
func (s *Store) beginSalvage(d *database, j *salvage) {
	ctx, cancel := context.WithCancel(context.Background())
	s.endSalvage = cancel
	s.salvaging.Go(func() {
		defer cancel()
		if err := s.salvage(ctx, d, j); err != nil && ctx.Err() == nil && !errors.Is(err, errReplaced) {
			s.log.Error(err, "History of the damaged database is not salvaged any further before the next start", "setAside", j.file)
		}
	})
}

// salvage copies the rest of the damaged file of j to d, and then deletes the record of the salvage
// in d. A file that cannot be opened counts as one unreadable part. The error is errReplaced if d
// is no longer open.
func (s *Store) salvage(ctx context.Context, d *database, j *salvage) error {
	log := s.log.WithValues("setAside", j.file)
	err := j.open(ctx, filepath.Dir(s.path), &s.sealing)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		log.Error(err, "History of the damaged database cannot be read")
		j.lose()
	} else {
		defer j.old.close() //nolint:errcheck // it was only read
		log.Info("History of the damaged database is being salvaged")
	}
	for err == nil {
		objects, err := j.next(ctx)
		if err != nil {
			return err
		}
		if len(objects) == 0 {
			break
		}
		for _, o := range objects {
			if err := s.salvageObject(ctx, d, j, o); err != nil {
				return err
			}
		}
	}
	if err := s.salvageWrite(ctx, d, func(ctx context.Context, tx *sql.Tx) error {
		for _, text := range []string{"DELETE FROM salvage", "DELETE FROM forgone"} {
			if _, err := tx.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	d.salvaging.Store(false)
	log.Info("History of the damaged database was salvaged, as far as it can be read", "revisions", j.revisions, "unreadable", j.unreadable)
	return nil
}

// open opens the damaged file in dir, and reads its types and clusters, as far as they are
// readable. Revisions of other types and clusters cannot be interpreted. A schema that is too old
// or too new is an error.
func (j *salvage) open(ctx context.Context, dir string, sealing *atomic.Pointer[seal.Keys]) (err error) {
	if j.old, err = openDamaged(filepath.Join(dir, j.file), sealing); err != nil {
		return err
	}
	version, err := j.old.dialect.version(ctx, j.old.read)
	if err == nil && (version < oldestSalvaged || version > len(sqliteMigrations)) {
		err = fmt.Errorf("its schema is %d, and this version reads %d to %d", version, oldestSalvaged, len(sqliteMigrations))
	}
	if err == nil {
		if err = j.old.learn(ctx); damaged(err) {
			err = nil
		}
	}
	if err != nil {
		return errors.Join(err, j.old.close())
	}
	return nil
}

// lose counts one part of the damaged file's history that cannot be read, in j and in the metric.
func (j *salvage) lose() {
	j.unreadable++
	historyUnreadable.Inc()
}

// salvageWrite runs f in a transaction of the new database, and retries until it succeeds. Its
// errors are those of salvageDo.
func (s *Store) salvageWrite(ctx context.Context, into *database, f func(ctx context.Context, tx *sql.Tx) error) error {
	return s.salvageDo(ctx, into, func(d *database) error {
		return d.locked(ctx, 0, func(ctx context.Context, tx *sql.Tx, _ int64) error { return f(ctx, tx) })
	})
}

// salvageDo calls f with the database into, and again every salvageDelay until it succeeds. It
// returns an error if ctx ends, into is no longer the open database (errReplaced), or the database
// refuses a row.
func (s *Store) salvageDo(ctx context.Context, into *database, f func(d *database) error) error {
	for {
		err := s.do(ctx, func(d *database) error {
			if d != into {
				return errReplaced
			}
			return f(d)
		})
		if err == nil || errors.Is(err, errReplaced) || ctx.Err() != nil || into.dialect.fault(err) == faultRow {
			return err
		}
		s.log.V(1).Info("what was salvaged cannot be stored, and is tried again", "error", err.Error())
		select {
		case <-time.After(salvageDelay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pastObject is an object with revisions, read from the damaged file: a row of the table past.
type pastObject struct {
	id, kind, ended               int64
	cluster, namespace, name, uid string
}

// next returns the objects after j.after in the damaged file, up to salvageObjects. It skips
// unreadable ranges and counts them. No objects mean the end of the file.
func (j *salvage) next(ctx context.Context) (out []pastObject, err error) {
	for {
		last := j.after
		err := each(ctx, j.old.read, "SELECT id, type, cluster, namespace, name, uid, ended FROM past WHERE id > ? ORDER BY id LIMIT ?", func(rows *sql.Rows) error {
			var o pastObject
			if err := rows.Scan(&o.id, &o.kind, &o.cluster, &o.namespace, &o.name, &o.uid, &o.ended); err != nil {
				return fmt.Errorf("%w: %w", errDamaged, err)
			}
			if o.id <= last || o.id > j.base {
				return fmt.Errorf("%w: %d follows %d of at most %d", errDamaged, o.id, last, j.base)
			}
			last = o.id
			out = append(out, o)
			return nil
		}, j.after, salvageObjects)
		if err == nil || len(out) > 0 && damaged(err) {
			return out, nil
		}
		if !damaged(err) {
			return nil, fmt.Errorf("read the damaged database: %w", err)
		}
		j.lose()
		if j.broken++; j.broken > mostBroken || !j.skip(ctx) {
			return nil, ctx.Err()
		}
	}
}

// skip moves j.after beyond an unreadable range, so that the next object is readable. It returns
// false if no later object is readable.
func (j *salvage) skip(ctx context.Context) bool {
	readable := func(after int64) bool {
		var id int64
		err := j.old.read.QueryRowContext(ctx, "SELECT id FROM past WHERE id > ? ORDER BY id LIMIT 1", after).Scan(&id)
		return err == nil && id > after && id <= j.base
	}
	from := j.after
	var to int64
	for step := int64(1); ; step *= 2 {
		if to = from + step; to >= j.base {
			return false
		}
		if readable(to) {
			break
		}
		from = to
	}
	for to-from > 1 {
		if middle := from + (to-from)/2; readable(middle) {
			to = middle
		} else {
			from = middle
		}
	}
	j.after = to
	return true
}

// pastRevision is a past state of an object, read from the damaged file: a row of the table
// revision.
type pastRevision struct {
	id, began, since, until, whole int64
	rv                             string
	body                           []byte
}

// salvageObject copies the revisions of one object to d, some at a time, and then stores the
// progress. It counts parts that cannot be read or stored. It skips an object of a dropped cluster,
// or of a type without a history. If an earlier call copied a part of the revisions, these rows
// stay as they are.
func (s *Store) salvageObject(ctx context.Context, d *database, j *salvage, o pastObject) error {
	gr, typed := j.old.kinds[o.kind]
	dropped, known := j.old.clusters[o.cluster]
	wanted := typed && known && !dropped && d.keeping.get().of(gr)
	if !typed || !known {
		j.lose()
	}
	for more, after := wanted, int64(0); more; {
		var some []pastRevision
		var err error
		if some, more, err = j.read(ctx, o, after); err != nil {
			return err
		}
		if len(some) == 0 {
			break
		}
		after = some[len(some)-1].id
		if some, err = j.sound(ctx, d, o, gr, some, !more); err != nil {
			return err
		}
		switch err := s.storeSalvaged(ctx, d, j, o, gr, some); {
		case err == nil:
		case d.dialect.fault(err) == faultRow: // the damaged file has garbage there
			j.lose()
		default:
			return err
		}
	}
	j.after = o.id
	return s.salvageWrite(ctx, d, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE salvage SET after = ?, revisions = ?, unreadable = ?", j.after, j.revisions, j.unreadable)
		return err
	})
}

// read reads the next revisions of an object after the id after, up to salvageRevisions. more is
// true if there may be further ones. If a revision is unreadable, read counts that and returns the
// ones before it, without an error.
func (j *salvage) read(ctx context.Context, o pastObject, after int64) (out []pastRevision, more bool, err error) {
	last := after
	err = each(ctx, j.old.read, "SELECT id, began, since, until, whole, rv, body FROM revision WHERE object = ? AND id > ? ORDER BY id LIMIT ?", func(rows *sql.Rows) error {
		var r pastRevision
		if err := rows.Scan(&r.id, &r.began, &r.since, &r.until, &r.whole, &r.rv, &r.body); err != nil {
			return fmt.Errorf("%w: %w", errDamaged, err)
		}
		if r.id <= last || r.id > j.base || r.began > r.id || r.since > r.until {
			return fmt.Errorf("%w: what should be a revision is none", errDamaged)
		}
		last = r.id
		out = append(out, r)
		return nil
	}, o.id, after, salvageRevisions)
	switch {
	case err == nil:
		return out, len(out) == salvageRevisions, nil
	case damaged(err):
		j.lose()
		return out, false, nil
	default:
		return nil, false, fmt.Errorf("read the damaged database: %w", err)
	}
}

// sound returns the revisions of some that can be decoded and are not too old. It counts those that
// cannot be decoded. A revision is stored as the difference to the next one, up to a revision that
// is stored whole. So it suffices to decode the first of them. last means that no further revisions
// follow. If the object was not deleted, its last revision is a difference to the present state,
// which is not salvaged. sound compresses that revision again, as a whole.
func (j *salvage) sound(ctx context.Context, d *database, o pastObject, gr schema.GroupResource, some []pastRevision, last bool) (out []pastRevision, err error) {
	oldest := d.keeping.now().Add(-d.keeping.get().Time).UnixMilli()
	checked := false // the previous revision was decoded, and so this one can be
	for i, r := range some {
		alone := last && i == len(some)-1 && r.whole == 0
		if !checked || alone {
			record, err := j.record(ctx, o, gr, r.id)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if checked = err == nil; err != nil {
				j.lose()
				continue
			}
			if alone {
				was := r.body
				if r.body, err = j.compressor.compress(record, nil); err != nil {
					return nil, fmt.Errorf("compress a revision: %w", err)
				}
				if sealed(was) {
					of := Row{Cluster: o.cluster, Group: gr.Group, Resource: gr.Resource, Namespace: o.namespace, Name: o.name}
					if r.body, err = d.seal(r.body, revisionIdentity(&of, o.id, r.id)...); err != nil {
						return nil, err
					}
				}
				r.whole = 1
			}
		}
		if checked = r.whole == 0; r.until >= oldest {
			out = append(out, r)
		}
	}
	return out, nil
}

// record decodes the revision with this id in the damaged file, and returns its record (header and
// body). The error is an errDamaged or other error if it cannot be read or belongs to another
// object.
func (j *salvage) record(ctx context.Context, o pastObject, gr schema.GroupResource, id int64) (record []byte, err error) {
	tx, err := j.old.read.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rollback(j.old.dialect, tx)) }()
	r := &reader{database: j.old, ctx: ctx, tx: tx, kind: o.kind}
	row := Row{Cluster: o.cluster, Group: gr.Group, Resource: gr.Resource, Namespace: o.namespace, Name: o.name}
	if record, err = r.restore(&row, o.id, id); err != nil {
		return nil, err
	}
	if err := unrecord(record, &row); err != nil {
		return nil, err
	}
	var body struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(row.Body, &body); err != nil {
		return nil, fmt.Errorf("%w: body of a revision: %w", errDamaged, err)
	}
	if string(row.UID) != o.uid || body.Metadata.Name != o.name || body.Metadata.Namespace != o.namespace {
		return nil, fmt.Errorf("%w: a revision is of another object", errDamaged)
	}
	return record, nil
}

// storeSalvaged stores revisions of an object in d, and then deletes history that is too old. If
// the cluster or the type was dropped meanwhile, it stores nothing. It retries like salvageDo, and
// has the same errors.
func (s *Store) storeSalvaged(ctx context.Context, d *database, j *salvage, o pastObject, gr schema.GroupResource, some []pastRevision) error {
	if len(some) == 0 {
		return nil
	}
	var stored, grown int64
	err := s.salvageDo(ctx, d, func(d *database) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		stored, grown = 0, 0
		var stopped int
		// Uses the writing connection, because the holder of the lock must not wait for readers.
		if err := d.write.QueryRowContext(ctx, "SELECT count(*) FROM forgone WHERE cluster = ? AND (resource = '' OR grp = ? AND resource = ?)",
			o.cluster, gr.Group, gr.Resource).Scan(&stopped); err != nil || stopped > 0 {
			return err
		}
		if err := d.identifyOne(ctx, o.cluster, groupResource{gr.Group, gr.Resource}); err != nil {
			return err
		}
		return d.transact(ctx, 0, func(ctx context.Context, tx *sql.Tx, _ int64) error {
			// The end of an object is known once its last revision is stored. An object that was
			// alive counts as ended with its last revision, with a negative number.
			last := some[len(some)-1].id
			ended := -last
			if last == o.ended {
				ended = last
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO past (id, type, cluster, namespace, name, uid, ended) VALUES (?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (id) DO UPDATE SET ended = excluded.ended`,
				o.id, d.kind(groupResource{gr.Group, gr.Resource}), o.cluster, o.namespace, o.name, o.uid, ended); err != nil {
				return err
			}
			for _, r := range some {
				is, err := tx.ExecContext(ctx, `INSERT INTO revision (id, object, began, since, until, rv, whole, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
					ON CONFLICT DO NOTHING`, r.id, o.id, r.began, r.since, r.until, r.rv, r.whole, r.body)
				if err != nil {
					return err
				}
				n, err := is.RowsAffected()
				if err != nil {
					return err
				}
				stored++
				grown += n * int64(len(r.body)+revisionOverhead)
			}
			_, err := tx.ExecContext(ctx, "UPDATE epoch SET history_bytes = history_bytes + ?", grown)
			return err
		})
	})
	if err != nil {
		return err
	}
	d.grew(grown)
	j.revisions += stored
	historySalvaged.Add(float64(stored))
	return s.salvageDo(ctx, d, func(d *database) error { return d.trim(ctx) })
}

// stopSalvage records that a cluster, or a type in it, is being dropped, so that a salvage stores
// no more of its history. An empty gr means all types. It does nothing while no history is being
// salvaged. transact is d.transact if the caller holds d.mu, else d.locked.
func (d *database) stopSalvage(ctx context.Context, cluster string, gr groupResource, transact transaction) error {
	if !d.salvaging.Load() {
		return nil
	}
	return transact(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO forgone (cluster, grp, resource) VALUES (?, ?, ?)", cluster, gr.group, gr.resource)
		return err
	})
}
