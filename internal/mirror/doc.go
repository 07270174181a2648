// Package mirror observes all clusters of the fleet with one watch for each cluster and type. The
// watches fill the store, which search reads, and the consumers in memory: an index of the objects
// that Orrery placed, which apply and status read, and the capacity, which the scheduler reads.
//
// The mirror reports Unknown for an object whose state it does not know. A failed list, an
// unreachable cluster or a type that is not listed yet never make an object count as deleted.
package mirror
