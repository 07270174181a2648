package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// migrations lead from an empty database to the schema of this version. The database's
// user_version counts those that ran. A released one is never edited, only followed by
// another.
var migrations = []string{
	// object is slim so that listing, filtering and paging touch little; a body is read only
	// for rows that are returned or whose fields are asked for. label has the page order in its
	// key, so that a page of a label query is one range of it.
	`
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
	`,
	// What is needed to go on after a restart without reading everything again.
	`
	ALTER TABLE object ADD COLUMN note TEXT; -- NULL: written before there were notes
	ALTER TABLE served ADD COLUMN checkpoint TEXT; -- NULL: none

	CREATE TABLE epoch (id TEXT NOT NULL) STRICT; -- of this file: one that replaces it has another
	INSERT INTO epoch VALUES (lower(hex(randomblob(16))));
	`,
}

// migrate runs the migrations that the database has not seen.
func migrate(ctx context.Context, db *sql.DB) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if version > len(migrations) {
		return fmt.Errorf("%w: its schema is %d and this version knows %d", errNewer, version, len(migrations))
	}
	for i, script := range migrations[version:] {
		if err := migrateOne(ctx, db, version+i+1, script); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", version+i+1, err)
		}
	}
	return nil
}

func migrateOne(ctx context.Context, db *sql.DB, version int, script string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, script); err != nil {
		return errors.Join(err, rollback(tx))
	}
	// A pragma takes no parameters.
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
		return errors.Join(err, rollback(tx))
	}
	return tx.Commit()
}
