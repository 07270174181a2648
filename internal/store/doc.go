// Package store holds what was observed of every cluster, in SQL: a slim row for each
// object, its labels for search, and its body. It knows no cluster and no controller; the
// mirror writes, search reads.
package store
