// Package records stores what is neither intent nor observation: the decisions of placement, with
// the verdicts of every filter; the results of apply in each cluster; and the revisions of
// workloads.
//
// The records are a separate database, records.db. Placement and apply never wait for it: decisions
// and results go to memory and are written in batches. If the file or unwritten records are lost,
// results are unknown and the history is shorter. Nothing else depends on the file. A damaged file
// is set aside, and a new one is started.
package records
