// Package sqlite opens the SQLite databases that the hub keeps in its data directory: one connection that writes and
// several that read, the same pragmas, steps from an older schema to the present one, and errors that say what to do.
//
// The VFS is unix-excl. It keeps the index of the write-ahead log in memory instead of a mapped file beside the
// database, because a mapped file that somebody truncates ends the process with SIGBUS. One process at a time can
// therefore open a database.
package sqlite
