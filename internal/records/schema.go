package records

// schema has the SQL of each step from an empty database to the present schema, for sqlite.Open. A
// released step is never edited, only followed by another one.
var schema = []string{
	`
	-- The clusters that decisions and results name. Their numbers are dense, for bitmaps are made of them.
	CREATE TABLE cluster (
		id   INTEGER PRIMARY KEY,
		name TEXT NOT NULL UNIQUE
	) STRICT;

	-- What decisions say again and again: UIDs, policies, reasons, messages.
	CREATE TABLE word (
		id   INTEGER PRIMARY KEY,
		text TEXT NOT NULL UNIQUE,
		used INTEGER NOT NULL -- about the last decision that names it
	) STRICT;

	CREATE TABLE decision (
		id       INTEGER PRIMARY KEY, -- in the order in which they were made
		template INTEGER NOT NULL,    -- word: its UID
		time     INTEGER NOT NULL,    -- Unix milliseconds
		ends     INTEGER NOT NULL,    -- bytes of all decisions up to this one
		body     BLOB NOT NULL
	) STRICT;
	CREATE INDEX decision_template ON decision (template);

	CREATE TABLE result (
		binding     TEXT NOT NULL,
		cluster     INTEGER NOT NULL,
		cluster_uid TEXT NOT NULL,
		applied     INTEGER NOT NULL,
		reason      TEXT NOT NULL,
		message     TEXT NOT NULL,
		generation  INTEGER NOT NULL,
		template    TEXT NOT NULL,
		digest      TEXT NOT NULL,
		fields      INTEGER NOT NULL,
		time        INTEGER NOT NULL, -- Unix milliseconds
		PRIMARY KEY (binding, cluster)
	) STRICT, WITHOUT ROWID;
	CREATE INDEX result_cluster ON result (cluster);

	CREATE TABLE revision (
		id       INTEGER PRIMARY KEY,
		template TEXT NOT NULL,
		number   INTEGER NOT NULL,
		hash     TEXT NOT NULL,
		cause    TEXT NOT NULL,
		created  INTEGER NOT NULL, -- Unix milliseconds
		content  BLOB NOT NULL,    -- deflated
		UNIQUE (template, number)
	) STRICT;
	`,
}
