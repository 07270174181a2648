// Package store keeps the observed objects of all clusters in an SQL database: for each object a
// small row, its labels for search, and its body. It depends on no cluster and no controller. The
// mirror writes to it, and search reads from it.
package store
