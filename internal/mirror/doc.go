// Package mirror keeps the hub's picture of the fleet: one watch for each cluster and
// type fills the store, which search reads, and an index in memory of the objects that
// Orrery placed, which apply, status and the scheduler read.
//
// What the mirror does not know it calls Unknown. Nothing is taken for deleted because a
// list failed, a cluster is away or a type is not listed yet.
package mirror
