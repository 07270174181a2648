package store

import (
	"context"
	"errors"
	"fmt"
)

// sqliteMigrations are the statements of each version of the schema of a file, from version 1 on.
// The pragma user_version of a file is the number of migrations that ran on it. A released
// migration is never edited, only followed by another one.
var sqliteMigrations = [][]string{
	// object is small, so that listing, filtering and paging read little. A body is only read for
	// returned rows and for requirements on fields. The key of label has the page order, so that
	// a page of a label query is one range.
	{`
	CREATE TABLE cluster (
		id   INTEGER PRIMARY KEY,
		name TEXT UNIQUE CHECK (name <> '') -- NULL: dropped, its rows are being deleted
	) STRICT;

	CREATE TABLE type (
		id       INTEGER PRIMARY KEY,
		grp      TEXT NOT NULL,
		resource TEXT NOT NULL CHECK (resource <> ''),
		UNIQUE (grp, resource)
	) STRICT;

	CREATE TABLE served (
		cluster INTEGER NOT NULL,
		type    INTEGER NOT NULL,
		api     TEXT NOT NULL,
		PRIMARY KEY (cluster, type)
	) STRICT, WITHOUT ROWID;

	CREATE TABLE object (
		id        INTEGER PRIMARY KEY,
		cluster   INTEGER NOT NULL,
		type      INTEGER NOT NULL,
		namespace TEXT NOT NULL,
		name      TEXT NOT NULL CHECK (name <> ''),
		version   TEXT NOT NULL,
		kind      TEXT NOT NULL,
		uid       TEXT NOT NULL,
		owner     TEXT NOT NULL,
		created   INTEGER NOT NULL,
		rv        TEXT NOT NULL,
		labels    TEXT NOT NULL
	) STRICT;
	CREATE UNIQUE INDEX object_key ON object (cluster, type, namespace, name);
	CREATE INDEX object_owner ON object (owner) WHERE owner <> '';

	CREATE TABLE body (
		object INTEGER PRIMARY KEY,
		json   TEXT NOT NULL CHECK (json_valid(json)) -- else every field query would fail on it
	) STRICT;

	CREATE TABLE label (
		cluster   INTEGER NOT NULL,
		type      INTEGER NOT NULL,
		key       TEXT NOT NULL,
		value     TEXT NOT NULL,
		namespace TEXT NOT NULL,
		name      TEXT NOT NULL,
		object    INTEGER NOT NULL,
		PRIMARY KEY (cluster, type, key, value, namespace, name)
	) STRICT, WITHOUT ROWID;
	`},
	// What the mirror needs to continue after a restart without reading everything again: notes and
	// checkpoints. epoch has the ID of the file.
	{`
	ALTER TABLE object ADD COLUMN note TEXT; -- NULL: written before there were notes
	ALTER TABLE served ADD COLUMN checkpoint TEXT; -- NULL: none

	CREATE TABLE epoch (id TEXT NOT NULL) STRICT; -- of this file: one that replaces it has another
	INSERT INTO epoch VALUES (lower(hex(randomblob(16))));
	`},
	// Keys have the name of the cluster, so that one range is a page of all clusters in order.
	// Changes have a sequence. An object's id is the sequence of its first change.
	{`
	CREATE TABLE cluster3 (
		name    TEXT PRIMARY KEY CHECK (name <> ''),
		dropped INTEGER NOT NULL DEFAULT 0 -- 1: its rows are being deleted
	) STRICT, WITHOUT ROWID;
	INSERT INTO cluster3 (name) SELECT name FROM cluster WHERE name IS NOT NULL;

	CREATE TABLE served3 (
		cluster    TEXT NOT NULL,
		type       INTEGER NOT NULL,
		api        TEXT NOT NULL,
		checkpoint TEXT,
		PRIMARY KEY (cluster, type)
	) STRICT, WITHOUT ROWID;
	INSERT INTO served3 SELECT c.name, s.type, s.api, s.checkpoint FROM served s JOIN cluster c ON c.id = s.cluster WHERE c.name IS NOT NULL;

	CREATE TABLE object3 (
		id        INTEGER PRIMARY KEY,
		seq       INTEGER NOT NULL,
		type      INTEGER NOT NULL,
		cluster   TEXT NOT NULL CHECK (cluster <> ''),
		namespace TEXT NOT NULL,
		name      TEXT NOT NULL CHECK (name <> ''),
		version   TEXT NOT NULL,
		kind      TEXT NOT NULL,
		uid       TEXT NOT NULL,
		owner     TEXT NOT NULL,
		created   INTEGER NOT NULL,
		rv        TEXT NOT NULL,
		labels    TEXT NOT NULL,
		note      TEXT
	) STRICT;
	INSERT INTO object3 SELECT o.id, o.id, o.type, c.name, o.namespace, o.name, o.version, o.kind, o.uid, o.owner, o.created, o.rv, o.labels, o.note
		FROM object o JOIN cluster c ON c.id = o.cluster WHERE c.name IS NOT NULL;

	CREATE TABLE label3 (
		type        INTEGER NOT NULL,
		label_key   TEXT NOT NULL,
		label_value TEXT NOT NULL,
		cluster     TEXT NOT NULL,
		namespace   TEXT NOT NULL,
		name        TEXT NOT NULL,
		object      INTEGER NOT NULL,
		PRIMARY KEY (type, label_key, label_value, cluster, namespace, name)
	) STRICT, WITHOUT ROWID;
	INSERT INTO label3 SELECT l.type, l.key, l.value, c.name, l.namespace, l.name, l.object
		FROM label l JOIN cluster c ON c.id = l.cluster WHERE c.name IS NOT NULL;

	DELETE FROM body WHERE object NOT IN (SELECT id FROM object3);
	DROP TABLE label;
	DROP TABLE object;
	DROP TABLE served;
	DROP TABLE cluster;
	ALTER TABLE cluster3 RENAME TO cluster;
	ALTER TABLE served3 RENAME TO served;
	ALTER TABLE object3 RENAME TO object;
	ALTER TABLE label3 RENAME TO label;
	CREATE UNIQUE INDEX object_key ON object (type, cluster, namespace, name);
	CREATE INDEX object_owner ON object (owner) WHERE owner <> '';

	ALTER TABLE epoch ADD COLUMN seq INTEGER NOT NULL DEFAULT 0; -- of the last change
	UPDATE epoch SET seq = max((SELECT coalesce(max(id), 0) FROM object), (SELECT coalesce(max(id), 0) FROM type));
	`},
	// History: revision has the past states of objects, by the sequence of the change that ended
	// them. past has the objects with revisions; ended is the sequence of their deletion.
	{`
	ALTER TABLE object ADD COLUMN began INTEGER NOT NULL DEFAULT 0; -- sequence of the change that made the present state; 0: before there was a history
	ALTER TABLE object ADD COLUMN since INTEGER NOT NULL DEFAULT 0; -- when that was, in milliseconds
	ALTER TABLE object ADD COLUMN revisions INTEGER NOT NULL DEFAULT 0; -- how many were kept; up to 0: none depends on the present state; -1: there are some, and will be no more

	CREATE TABLE revision (
		id     INTEGER PRIMARY KEY,
		object INTEGER NOT NULL,
		began  INTEGER NOT NULL,
		since  INTEGER NOT NULL,
		until  INTEGER NOT NULL,
		rv     TEXT NOT NULL,
		whole  INTEGER NOT NULL, -- 0: it is compressed against the object's next revision, or its present state
		body   BLOB NOT NULL
	) STRICT;
	CREATE INDEX revision_object ON revision (object);
	CREATE INDEX revision_until ON revision (until);

	CREATE TABLE past (
		id        INTEGER PRIMARY KEY,
		type      INTEGER NOT NULL,
		cluster   TEXT NOT NULL,
		namespace TEXT NOT NULL,
		name      TEXT NOT NULL,
		uid       TEXT NOT NULL,
		ended     INTEGER NOT NULL -- 0: it is alive
	) STRICT;
	CREATE INDEX past_key ON past (type, cluster, namespace, name);
	CREATE INDEX past_ended ON past (ended) WHERE ended > 0;

	ALTER TABLE epoch ADD COLUMN history_bytes INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE epoch ADD COLUMN kept_from INTEGER NOT NULL DEFAULT 0; -- milliseconds: of no moment before it is everything known
	UPDATE epoch SET kept_from = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);
	`},
	// Declared fields are stored beside labels, with keys that begin with a dot. Adds indexes for
	// the orders by time and name. tally counts the objects of namespaces.
	{`
	ALTER TABLE object ADD COLUMN terms TEXT NOT NULL DEFAULT '[]'; -- declared fields: keys and values in turn
	ALTER TABLE label ADD COLUMN created INTEGER NOT NULL DEFAULT 0; -- the object's
	UPDATE label SET created = (SELECT o.created FROM object o WHERE o.id = label.object);
	CREATE INDEX label_created ON label (type, label_key, label_value, created, object) WHERE label_key < '.';
	CREATE INDEX object_name ON object (type, name, cluster, namespace);
	CREATE INDEX object_created ON object (type, created, id);
	ALTER TABLE object ADD COLUMN made INTEGER NOT NULL DEFAULT 0; -- when its first state began, in milliseconds; never changed, unlike since
	UPDATE object SET made = since WHERE began = id;
	CREATE INDEX object_made ON object (type, made);

	CREATE TABLE tally (
		type      INTEGER NOT NULL,
		cluster   TEXT NOT NULL,
		namespace TEXT NOT NULL,
		objects   INTEGER NOT NULL,
		PRIMARY KEY (type, cluster, namespace)
	) STRICT, WITHOUT ROWID;
	INSERT INTO tally SELECT type, cluster, namespace, count(*) FROM object GROUP BY type, cluster, namespace;

	ALTER TABLE epoch ADD COLUMN terms INTEGER NOT NULL DEFAULT 0; -- which declared fields are indexed
	`},
	// The progress of copying a damaged file to this one. Salvaged objects that were alive have a
	// past with a negative ended, that of their last revision, since this is not a deletion.
	{`
	CREATE TABLE salvage (
		file       TEXT NOT NULL,
		base       INTEGER NOT NULL, -- the sequence with which this file began: nothing in that one has another above
		after      INTEGER NOT NULL DEFAULT 0, -- the last object that was read
		revisions  INTEGER NOT NULL DEFAULT 0, -- that were read
		unreadable INTEGER NOT NULL DEFAULT 0
	) STRICT;

	CREATE TABLE forgone ( -- what was dropped meanwhile
		cluster  TEXT NOT NULL,
		grp      TEXT NOT NULL,
		resource TEXT NOT NULL -- '': every type
	) STRICT;

	CREATE INDEX past_salvaged ON past (ended) WHERE ended < 0;
	`},
	// Compressed or encrypted bodies.
	{`
	ALTER TABLE body ADD COLUMN packed BLOB;
	`},
	// Index for parts of names: for each run of three characters, the objects that have it. Names
	// do not change.
	{
		`CREATE VIRTUAL TABLE object_grams USING fts5(name, content='', contentless_delete=1, detail=none, tokenize='trigram case_sensitive 1')`,
		`INSERT INTO object_grams (rowid, name) SELECT id, name FROM object`,
		`CREATE TRIGGER object_named AFTER INSERT ON object BEGIN INSERT INTO object_grams (rowid, name) VALUES (new.id, new.name); END`,
		`CREATE TRIGGER object_unnamed AFTER DELETE ON object BEGIN DELETE FROM object_grams WHERE rowid = old.id; END`,
	},
	// Full text: `prose` has the words of each object, and prose_words is the index of the words.
	// Words are ASCII letters, digits and underscores. reindex fills the tables.
	{
		// Fingerprint of its words. 0: none.
		`ALTER TABLE object ADD COLUMN prose INTEGER NOT NULL DEFAULT 0`,
		`CREATE TABLE prose (object INTEGER PRIMARY KEY, words TEXT NOT NULL) STRICT`,
		`CREATE VIRTUAL TABLE prose_words USING fts5(words, content='', contentless_delete=1, detail=none, tokenize="ascii tokenchars '_'")`,
		`CREATE TRIGGER prose_told AFTER INSERT ON prose BEGIN INSERT INTO prose_words (rowid, words) VALUES (new.object, new.words); END`,
		`CREATE TRIGGER prose_changed AFTER UPDATE ON prose BEGIN
			DELETE FROM prose_words WHERE rowid = old.object; INSERT INTO prose_words (rowid, words) VALUES (new.object, new.words); END`,
		`CREATE TRIGGER prose_untold AFTER DELETE ON prose BEGIN DELETE FROM prose_words WHERE rowid = old.object; END`,
	},
	// The indexes of parts of names and of words get smaller pages. A search jumps to a later entry by
	// pages, and then reads through one page. With the previous 4,050 bytes, searches for several
	// texts took nearly twice as long, and writes were no faster.
	{
		`DROP TABLE object_grams`,
		`CREATE VIRTUAL TABLE object_grams USING fts5(name, content='', contentless_delete=1, detail=none, tokenize='trigram case_sensitive 1')`,
		`INSERT INTO object_grams (object_grams, rank) VALUES ('pgsz', 1000)`,
		`INSERT INTO object_grams (rowid, name) SELECT id, name FROM object`,
		`DROP TABLE prose_words`,
		`CREATE VIRTUAL TABLE prose_words USING fts5(words, content='', contentless_delete=1, detail=none, tokenize="ascii tokenchars '_'")`,
		`INSERT INTO prose_words (prose_words, rank) VALUES ('pgsz', 1000)`,
		`INSERT INTO prose_words (rowid, words) SELECT object, words FROM prose`,
	},
	// The writer: claim is the sequence of the owner's claim.
	{
		`ALTER TABLE epoch ADD COLUMN claim INTEGER NOT NULL DEFAULT 0`, // 0: none
		`ALTER TABLE epoch ADD COLUMN owner TEXT NOT NULL DEFAULT ''`,
	},
	// written is the sequence up to which owners wrote, as in the database of a server.
	{
		`ALTER TABLE epoch ADD COLUMN written INTEGER NOT NULL DEFAULT 0`,
		`UPDATE epoch SET written = seq`,
	},
}

func (sqliteDialect) migrations() [][]string { return sqliteMigrations }

// migrate runs the migrations that have not run on the database yet, each in a transaction. The
// error is an errNewer if more migrations ran on it than this version of Orrery has.
func migrate(ctx context.Context, d dialect, db connection) error {
	version, err := d.version(ctx, db)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	migrations := d.migrations()
	if version > len(migrations) {
		return fmt.Errorf("%w: its schema is %d and this version knows %d", errNewer, version, len(migrations))
	}
	for i, script := range migrations[version:] {
		if err := migrateOne(ctx, d, db, version+i+1, script); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", version+i+1, err)
		}
	}
	return nil
}

// migrateOne runs the statements of one migration and stores version, the number of the migration,
// in one transaction.
func migrateOne(ctx context.Context, d dialect, db connection, version int, script []string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, statement := range script {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return errors.Join(err, rollback(d, tx))
		}
	}
	if err := d.setVersion(ctx, tx, version); err != nil {
		return errors.Join(err, rollback(d, tx))
	}
	return tx.Commit()
}
