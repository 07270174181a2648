// Package history compares two states of an object: which fields differ, which of these
// differences have no meaning, and which managers made the change. It is pure.
package history
