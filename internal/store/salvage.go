package store

import (
	"cmp"
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

const (
	// salvageRevisions is how many revisions are read, and written, at once.
	salvageRevisions = wholeEvery
	// salvageObjects is how many objects are read at once.
	salvageObjects = 100
	// salvageDelay is the delay before the next attempt when the new file cannot be written.
	salvageDelay = 10 * time.Second
	// mostBroken is how many unreadable ranges are skipped. After that, the rest counts as one
	// unreadable range.
	mostBroken = 10_000
	// oldestSalvaged is the first schema version whose history can be read like that of this
	// version. So an upgrade does not end the salvage of such a file.
	oldestSalvaged = 7
	// mostSequence limits the sequence that a damaged file can cause: there must be numbers left
	// above it.
	mostSequence = sequences / 10
)

// errReplaced means that the target file of the salvage is no longer open.
var errReplaced = errors.New("the mirror's database was replaced")

// predecessor names a file that was set aside, or will be, until the new file has recorded it.
type predecessor struct {
	File string `json:"file"` // file name without the directory
	Seq  int64  `json:"seq"`  // its sequence; 0: unknown
}

func (s *Store) asideNote() string { return s.path + ".aside" }

// noteAside records the file that is about to be set aside, so that the next new file salvages
// its history.
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

// claim returns what is left to salvage into an opened database; nil: nothing. A new database
// takes over from a file that was set aside before.
func (s *Store) claim(ctx context.Context, d *database) (left *salvage, err error) {
	b, err := os.ReadFile(s.asideNote())
	switch {
	case err == nil:
		var a predecessor
		// Otherwise the file was not set aside in the end, or the takeover was done already: a
		// new file has only been claimed.
		if json.Unmarshal(b, &a) == nil && d.found.seq%claimStride == 0 {
			err = s.takeOver(ctx, d, a)
		}
		if err = cmp.Or(err, os.Remove(s.asideNote())); err != nil {
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

// takeOver sets the sequence of a new file above that of the file that was set aside, and records
// that there is a history to salvage.
func (s *Store) takeOver(ctx context.Context, d *database, a predecessor) error {
	base := a.Seq
	old, err := openDamaged(filepath.Join(filepath.Dir(s.path), a.File), &s.sealing)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was never set aside
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
	return d.locked(ctx, base, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO salvage (file, base) VALUES (?, ?)", a.File, base)
		return err
	})
}

// openDamaged opens a file that was set aside, for reading. Any part may be unreadable or
// garbage. The file is not opened read-only, because SQLite would then map its index into memory:
// see fileDSN.
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

// salvage is the progress of reading a damaged file.
type salvage struct {
	file string
	// The sequence of the new file at the takeover. Nothing in the old file has a greater one.
	base       int64
	after      int64 // id of the last object that was read
	revisions  int64 // number of revisions read
	unreadable int64 // number of revisions, objects and ranges that could not be read

	old        *database
	compressor compressor
	broken     int // unreadable ranges that were skipped
}

// left returns the salvage to continue; nil: none.
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

// beginSalvage starts to copy the rest of a damaged file to the database that replaced it, in the
// background.
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

// open opens the damaged file, and reads its types and clusters. Rows of other types and clusters
// cannot be interpreted.
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

// lose counts something that cannot be read.
func (j *salvage) lose() {
	j.unreadable++
	historyUnreadable.Inc()
}

// salvageWrite writes to the new database, and retries until that succeeds.
func (s *Store) salvageWrite(ctx context.Context, into *database, f func(ctx context.Context, tx *sql.Tx) error) error {
	return s.salvageDo(ctx, into, func(d *database) error {
		return d.locked(ctx, 0, func(ctx context.Context, tx *sql.Tx, _ int64) error { return f(ctx, tx) })
	})
}

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

// pastObject is an object with revisions.
type pastObject struct {
	id, kind, ended               int64
	cluster, namespace, name, uid string
}

// next returns the next objects of the damaged file, and skips unreadable ranges; none: the end.
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

// skip skips an unreadable range, up to the next readable object; false: there is none.
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

// pastRevision is a row of the table revision.
type pastRevision struct {
	id, began, since, until, whole int64
	rv                             string
	body                           []byte
}

// salvageObject reads the revisions of an object, some at a time, and stores them. If an object
// was salvaged in part, it is done again: existing rows stay.
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
		case d.dialect.fault(err) == faultRow: // the data is garbage
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

// read reads the next revisions of an object. more is true if there may be further ones.
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

// sound returns the revisions that can be decoded. A revision that is compressed against the next
// one can be decoded if that one can, up to one that stands alone. So it suffices to decode the
// first of them. The last revision of an object that was alive is compressed against the state
// that was current, which is not salvaged. This revision is compressed again, to stand alone.
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

// record decodes a revision of the damaged file. It returns an error if the revision belongs to
// another object.
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

// storeSalvaged stores revisions of an object, unless its cluster or type was dropped meanwhile.
func (s *Store) storeSalvaged(ctx context.Context, d *database, j *salvage, o pastObject, gr schema.GroupResource, some []pastRevision) error {
	if len(some) == 0 {
		return nil
	}
	var stored, grown int64
	err := s.salvageDo(ctx, d, func(d *database) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		stored, grown = 0, 0
		var forgone int
		// Uses the writing connection, because the holder of the lock must not wait for readers.
		if err := d.write.QueryRowContext(ctx, "SELECT count(*) FROM forgone WHERE cluster = ? AND (resource = '' OR grp = ? AND resource = ?)",
			o.cluster, gr.Group, gr.Resource).Scan(&forgone); err != nil || forgone > 0 {
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

// forgo stops the salvage of a cluster, or of one type in it, that is being dropped.
func (d *database) forgo(ctx context.Context, cluster string, gr schema.GroupResource) error {
	if !d.salvaging.Load() {
		return nil
	}
	return d.exec(ctx, "INSERT INTO forgone (cluster, grp, resource) VALUES (?, ?, ?)", cluster, gr.Group, gr.Resource)
}
