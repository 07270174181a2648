// Package mirror observes all clusters of the fleet with one watch for each cluster and type. The
// watches fill the store, which search reads, and an index in memory of the objects that Orrery
// placed, which apply, status and the scheduler read.
//
// The mirror reports Unknown for an object whose state it does not know. A failed list, an
// unreachable cluster or a type that is not listed yet never make an object count as deleted.
package mirror
