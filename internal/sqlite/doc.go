// Package sqlite opens the SQLite databases in the hub's data directory. A database has one
// connection for writes and several for reads, with the same pragmas. The package migrates
// older schemas, and classifies errors by what the caller can do.
//
// The VFS is unix-excl. It keeps the index of the write-ahead log in memory, not in a mapped
// file beside the database: if that file were truncated, the process would end with SIGBUS.
// Only one process at a time can therefore open a database.
package sqlite
