// Package records keeps what is neither intent nor observation: the decisions that placement made, with what every
// filter said; the results of what apply did in each cluster; and the revisions of workloads.
//
// It is a database of its own, records.db. Whoever makes decisions and results never waits for it: they are taken into
// memory and written in batches. Losing the file, or a part of what was to be written, makes results unknown and history
// shorter; nothing else depends on it. A damaged file is set aside and a new one is begun.
package records
